package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
)

// accountLines are sample events, a line each.
func accountLines(n int) (lines []string) {
	for e := range samples.Accounts(n, samples.AccountsDefault) {
		lines = append(lines, string(e.AppendLine(nil)))
	}
	return lines
}

// A bad line ends an import with its number and reason, whichever way it goes:
// what is before it is stored, nothing of it or after it is, and once it is
// mended the same command completes.
func TestImportStopsAtABadLine(t *testing.T) {
	const bad, all = 7000, 9000 // in the second batch
	lines := accountLines(all)
	var first struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &first))
	other := strings.Replace(lines[2], `"data":{`, `"data":{"forged":true,`, 1)
	for _, running := range []bool{false, true} {
		for name, test := range map[string]struct{ line, want string }{
			"malformed":           {`{"aggregate_type":"a",`, `malformed JSON at byte 22: the end where the name of a member is expected`},
			"another content":     {strings.TrimSpace(other), `event id ` + first.ID + ` is already stored at position 3 \(stream account/\S+\): its data differs \(duplicate_event\)`},
			"half of a surrogate": {`{"aggregate_type":"a","aggregate_id":"\ud800","type":"T","data":1}`, `member "aggregate_id" has half of a surrogate pair, which is no character`},
		} {
			t.Run(fmt.Sprintf("%s/host=%v", name, running), func(t *testing.T) {
				s := emptySite(t, "")
				args := []string{"import", "events.jsonl"}
				if running {
					h := s.start()
					defer h.stop()
					args = append(args, "--url", h.url)
				}
				s.write("events.jsonl", strings.Join(lines[:bad-1], "")+test.line+"\n"+strings.Join(lines[bad:], ""))
				o := s.run("", args...)
				require.Equal(t, 1, o.code)
				require.Empty(t, o.stdout)
				require.Regexp(t, fmt.Sprintf(`^projhost: import events\.jsonl: line %d: %s \(6,999 events stored before it; mend the line and import again, or pass bad lines with --skip-bad FILE\)\n$`, bad, test.want), o.stderr)
				require.Equal(t, bad-1, s.count("ph_events"))

				o = s.run("", args...)
				require.Equal(t, 1, o.code)
				require.Contains(t, o.stderr, "(0 events stored and 6,999 already there before it;")
				s.write("events.jsonl", strings.Join(lines, ""))
				require.Contains(t, s.run("", args...).ok(), "2,001 events stored, 6,999 already there")
				require.Equal(t, all, s.count("ph_events"))
			})
		}
	}
}

// A module that is none, or asks for what it may not have, stops the start with
// every reason; check says the same, and nothing has been made for it.
func TestBadModules(t *testing.T) {
	good := tiny{table: "rows", column: "n"}
	for name, test := range map[string]struct {
		module  []byte
		reasons []string
	}{
		"text":      {[]byte("(module)"), []string{`not a WebAssembly module (no \0asm header)`}},
		"empty":     {nil, []string{`not a WebAssembly module (no \0asm header)`}},
		"component": {[]byte("\x00asm\x0d\x00\x01\x00"), []string{`it is a WebAssembly component; build a core module instead (for Rust target wasm32-unknown-unknown or wasm32-wasip1, without componentizing)`}},
		"cut":       {good.bytes()[:60], []string{`malformed module at byte 49: unexpected end`}},
		"exports":   {tiny{table: "rows", column: "n", without: []string{"ph_init", "ph_apply", "memory"}}.bytes(), []string{`it exports no memory named "memory"`, `it does not export ph_init`, `it does not export ph_apply`}},
		"imports":   {tiny{table: "rows", column: "n", imports: [2]string{"env", "system"}}.bytes(), []string{`it imports what this host does not have: env.system; there are projhost_v1 and wasi_snapshot_preview1, functions only`}},
		"manifest":  {tiny{manifest: `{"abi":1,`}.bytes(), []string{`manifest: it is not JSON: stopped at byte 9`}},
		"SQL in a column": {tiny{table: "rows", column: `n" INTEGER); DROP TABLE ph_events; --`}.bytes(),
			[]string{`manifest: consumers[0].tables[0].columns[0].name: "n\" INTEGER); DROP TABLE ph_events; --" is no name of a table or column: a letter, then letters, digits or _, at most 48 in all`}},
		"SQL in a table": {tiny{table: `rows; DROP TABLE ph_events`, column: "n"}.bytes(),
			[]string{`manifest: consumers[0].tables[0].name: "rows; DROP TABLE ph_events" is no name of a table or column: a letter, then letters, digits or _, at most 48 in all`}},
		"a table of the host": {tiny{table: "ph_events", column: "n"}.bytes(),
			[]string{`manifest: consumers[0].tables[0].name: "ph_events" is reserved: key, child and names that begin with ph_ are the host's`}},
		"a column of the host": {tiny{table: "rows", column: "key"}.bytes(),
			[]string{`manifest: consumers[0].tables[0].columns[0].name: "key" is reserved: key, child and names that begin with ph_ are the host's`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := emptySite(t, "[[plugin]]\nname = \"bad\"\npath = \"bad.wasm\"\n[[plugin]]\nname = \"good\"\npath = \"good.wasm\"\n")
			s.write("bad.wasm", string(test.module))
			s.write("good.wasm", string(good.bytes()))
			if n := len(test.reasons); n == 1 {
				s.run("", "run").fails(1, "plugin bad is rejected: "+test.reasons[0])
			} else {
				s.run("", "run").fails(1, append([]string{fmt.Sprintf("plugin bad is rejected for %d reasons:", n)}, bullets(test.reasons)...)...)
			}
			require.Zero(t, s.count("ph_consumers"), "the good plugin waits for a start that succeeds")

			o := s.run("", "plugins", "check", "bad.wasm")
			require.Equal(t, 1, o.code)
			require.Equal(t, "bad.wasm: not admitted\n  - "+strings.Join(test.reasons, "\n  - ")+"\n", o.stdout)
			require.Equal(t, "projhost: 1 module of 1 would not be admitted\n", o.stderr)

			s.write("bad.wasm", string(tiny{name: "other", table: "others", column: "n"}.bytes()))
			s.start().ready().stop()
			require.Equal(t, 2, s.count("ph_consumers"))
		})
	}
}

func bullets(reasons []string) (lines []string) {
	for _, r := range reasons {
		lines = append(lines, "  - "+r)
	}
	return lines
}

// Names that are taken, and tables that are not what was declared: the start
// says which, what is there, what was declared, and what to do. It changes
// nothing.
func TestTableThatExists(t *testing.T) {
	s := emptySite(t, "[[plugin]]\nname = \"tiny\"\npath = \"tiny.wasm\"\n")
	s.write("tiny.wasm", string(tiny{table: "rows", column: "n"}.bytes()))
	s.run(`{"type":"T","data":1}`, "append", "a", "1").ok() // makes the database
	refused := func(sql, want string) {
		t.Helper()
		s.sql(sql)
		before := s.schema()
		s.run("", "run").fails(1, want)
		require.Equal(t, before, s.schema())
		require.Equal(t, 1, s.count("ph_events"))
	}
	refused(`CREATE TABLE "rows" ("key" TEXT PRIMARY KEY, n INTEGER); INSERT INTO "rows" VALUES ('mine', 1)`,
		`subscribe projection/tiny: table "rows" belongs to a table that projhost did not create: rename it in the plugin, or set [store] read_model_prefix`)
	require.Equal(t, 1, s.count(`"rows"`))
	refused(`DROP TABLE "rows"; CREATE VIEW "ROWS" AS SELECT 1 AS n`,
		`subscribe projection/tiny: table "rows" belongs to a view that projhost did not create: rename it in the plugin, or set [store] read_model_prefix`)
	s.sql(`DROP VIEW "rows"`)

	s.start().ready().stop()
	for _, test := range []struct{ harm, repair, want string }{
		{`ALTER TABLE rows__b1 RENAME COLUMN n TO m`, `ALTER TABLE rows__b1 RENAME COLUMN m TO n`,
			`subscribe projection/tiny: table "rows__b1", column "n": declared is INTEGER, the database has no such column; add it: ALTER TABLE "rows__b1" ADD "n" INTEGER`},
		{`ALTER TABLE rows__b1 RENAME TO aside`, `ALTER TABLE aside RENAME TO rows__b1`,
			`subscribe projection/tiny: table "rows__b1": declared is a table, the database has none; restore it from a backup, or rebuild the consumer: projhost does not begin anew with an empty one by itself`},
		{`ALTER TABLE rows__b1 RENAME TO aside; CREATE TABLE rows__b1 ("key" TEXT NOT NULL PRIMARY KEY, n TEXT, ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER)`, `DROP TABLE rows__b1; ALTER TABLE aside RENAME TO rows__b1`,
			`subscribe projection/tiny: table "rows__b1", column "n": declared is INTEGER, the database has TEXT; change it to "n" INTEGER, or rename the table so that projhost makes its own`},
		{`DROP VIEW "rows"; CREATE TABLE "rows" (n)`, `DROP TABLE "rows"`,
			`subscribe projection/tiny: table "rows" belongs to a table that projhost did not create: rename it in the plugin, or set [store] read_model_prefix`},
	} {
		refused(`DROP VIEW IF EXISTS "rows"; `+strings.TrimPrefix(test.harm, `DROP VIEW "rows"; `), test.want)
		s.sql(test.repair)
		s.start().ready().stop()
	}
	require.Equal(t, 0, s.count(`"rows"`), "the view is back")
}

// sql runs statements on the site's database, as a user with a client does.
func (s *site) sql(text string) {
	s.t.Helper()
	db := s.open()
	defer db.Close()
	_, err := db.Exec(text)
	require.NoError(s.t, err, text)
}

// schema is everything the database has but rows.
func (s *site) schema() (text string) {
	s.t.Helper()
	db := s.open()
	defer db.Close()
	rows, err := db.Query(`SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name`)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var typ, name, sql string
		require.NoError(s.t, rows.Scan(&typ, &name, &sql))
		text += typ + " " + name + " " + sql + "\n"
	}
	require.NoError(s.t, rows.Err())
	return text
}

// A mistake in the configuration stops every command with status 2, file, line,
// key and what would do, and makes nothing.
func TestBadConfiguration(t *testing.T) {
	for name, test := range map[string]struct {
		config string
		want   []string
	}{
		"unknown key":    {"[http]\nlissten = \"127.0.0.1:0\"\n", []string{`config.toml:2: http.lissten: unknown key (did you mean "listen"?); the keys of [http] are listen, max_body, tls_cert, tls_key, tokens`}},
		"type":           {"[apply]\nlanes = \"2\"\n", []string{`config.toml:2: apply.lanes: is a string; it must be a whole number`}},
		"duration":       {"[apply]\npoll = \"1y\"\n", []string{`config.toml:2: apply.poll: "1y": a duration is numbers with a unit of ms, s, m or h, such as "250ms" or "1m30s"`}},
		"environment":    {"data_dir = \"${PROJHOST_TEST_UNSET}/data\"\n", []string{`config.toml:1: data_dir: the environment variable PROJHOST_TEST_UNSET is not set (set it, or give a default: "${PROJHOST_TEST_UNSET:-…}")`}},
		"open to others": {"[http]\nlisten = \"0.0.0.0:0\"\n", []string{`config.toml:2: http.listen: "0.0.0.0:0" can be reached from other machines, and no [[http.tokens]] are configured: add a token, or listen on 127.0.0.1`}},
		"syntax":         {"[http\n", []string{`config.toml:2: not valid TOML: expected '.' or ']' to end table name, but got '\n' instead`}},
		"several": {"[log]\nlevel = \"loud\"\n[[plugin]]\nname = \"a\"\n", []string{
			`config.toml:2: log.level: "loud" is not allowed; the values are trace, debug, info, warn, error, off`,
			`config.toml:3: plugin[0].path: is missing: the module's file`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{t: t, dir: t.TempDir()}
			s.write("config.toml", test.config)
			for _, command := range [][]string{{"run"}, {"import", "x.jsonl"}, {"status"}} {
				s.run("", command...).fails(2, test.want...)
			}
			left, err := os.ReadDir(s.dir)
			require.NoError(t, err)
			require.Len(t, left, 1, "nothing but the config")
		})
	}
}

// Two hosts on one folder, another number of partitions, a newer schema, a file
// that is no database: each start says so and leaves everything as it was.
func TestDatabaseThatCannotBeUsed(t *testing.T) {
	s := emptySite(t, "")
	h := s.start()
	s.write("x.jsonl", accountLines(1)[0])
	for _, command := range [][]string{{"run"}, {"import", "x.jsonl"}} {
		o := s.run("", command...)
		require.Equal(t, 1, o.code)
		require.Regexp(t, fmt.Sprintf(`^projhost: another projhost \(process %d on \S+, since \S+Z\) has the database open, .*\n$`, h.cmd.Process.Pid), o.stderr)
		require.Contains(t, o.stderr, "DIR/data/projhost.db.lock")
		require.Contains(t, o.stderr, "--url")
	}
	require.Contains(t, s.run("", "import", "x.jsonl", "--url", h.url).ok(), "1 event stored")
	h.stop()

	path := filepath.Join(s.dir, "data", "projhost.db")
	config := s.read("config.toml")
	s.write("config.toml", config+"[partitions]\ncount = 16\n")
	for _, command := range [][]string{{"run"}, {"import", "x.jsonl"}} {
		s.run("", command...).fails(1, `open DIR/data/projhost.db: the database has 256 partitions, fixed by its first start, the configuration says 16: set [partitions] count = 256, or begin with a new database and import into it`)
	}
	s.write("config.toml", config)
	s.sql(`INSERT INTO ph_schema_migrations SELECT max(version) + 70, 'later', 'x', 1 FROM ph_schema_migrations`)
	o := s.run("", "run")
	require.Equal(t, 1, o.code)
	require.Regexp(t, `^projhost: open DIR/data/projhost\.db: the database's schema has version 7\d, this projhost knows \d: start the newer projhost\n$`, o.stderr)
	s.sql(`DELETE FROM ph_schema_migrations WHERE name = 'later'`)
	s.sql(`UPDATE ph_schema_migrations SET checksum = 'other' WHERE version = 1`)
	o = s.run("", "run")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "migration 0001_events was applied with checksum other, this projhost has")
	require.Equal(t, 1, s.count("ph_events"))

	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("not a database. ", 512)), 0o600))
	s.run("", "run").fails(1, `open DIR/data/projhost.db: migrate: file is not a database (26) (the file is not an SQLite database: set [store] dsn to another path, or move the file away)`)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, text, 8192)
}

// Another declaration of a consumer that exists halts it, and no other: its
// rows were made by other rules.
func TestChangedDeclaration(t *testing.T) {
	s := emptySite(t, "[[plugin]]\nname = \"tiny\"\npath = \"tiny.wasm\"\n[[plugin]]\nname = \"accounts\"\npath = \"accounts.wasm\"\n")
	s.write("tiny.wasm", string(tiny{table: "rows", column: "n"}.bytes()))
	s.write("accounts.wasm", string(guest.Build(t, "testplugins/accounts")))
	s.start().ready().stop()
	before := s.schema()
	s.write("tiny.wasm", string(tiny{table: "rows", column: "m"}.bytes()))
	h := s.start()
	c := h.until("tiny", "halted")
	require.Equal(t, "DECLARATION_CHANGED", c.Halt.Reason)
	require.Contains(t, c.Halt.Message, "tables")
	require.Contains(t, c.Halt.Message, "run the earlier module and resume the consumer, or give it another name")
	require.True(t, h.send([]byte(strings.Join(accountLines(100), ""))))
	h.applied("accounts", 100)
	require.Equal(t, http.StatusServiceUnavailable, h.must("GET", "/v1/read-models/tiny", "").status)
	require.Equal(t, http.StatusOK, h.must("GET", "/v1/read-models/tiny?stale=ok", "").status)
	h.stop()
	require.Equal(t, before, s.schema())

	s.write("tiny.wasm", string(tiny{table: "rows", column: "n"}.bytes()))
	h = s.start().ready()
	require.Equal(t, "halted", h.consumer("tiny").State, "a start is no transition")
	s.command("consumers", "resume", "tiny", "--url", h.url)
	h.until("tiny", "running")
	h.stop()
}
