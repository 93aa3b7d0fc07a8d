package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/store/drivers"
)

// servers give a database each; a driver without one here fails the test.
var servers = map[string]func(testing.TB) string{
	"postgres":  dbtest.Postgres,
	"mysql":     dbtest.MySQL,
	"sqlserver": dbtest.SQLServer,
}

// onServers runs a test in a place of its own on a new database of each server.
func onServers(t *testing.T, test func(p *place, driver, dsn string)) {
	for _, driver := range drivers.Names() {
		if driver == "sqlite" {
			continue
		}
		require.Contains(t, servers, driver)
		t.Run(driver, func(t *testing.T) {
			dsn := servers[driver](t)
			test(newPlace(t), driver, dsn)
		})
	}
}

func serverConfig(driver, dsn string) string {
	return fmt.Sprintf("[store]\ndriver = %q\ndsn = %q\n", driver, dsn)
}

// The commands answer on every database as they do on a file; the golden
// answers are those of SQLite.
func TestCommandsAnswerAlikeOnEveryDatabase(t *testing.T) {
	accounts, loans := guest.Build(t, "testplugins/accounts"), guest.Build(t, "testplugins/loans")
	data := fmt.Sprintf("data_dir = %q\n", t.TempDir()) // what is compiled once is there for all
	onServers(t, func(p *place, driver, dsn string) {
		t := p.t
		noHost := strings.Replace(hostConfigText, "127.0.0.1:0", "127.0.0.1:1", 1) + serverConfig(driver, dsn)
		p.write("config.toml", noHost)

		// A database without tables is told, and none are made by who only looks.
		for _, args := range [][]string{{"topics", "list"}, {"schema", "check"}, {"export", "events"}} {
			o := p.run("", args...)
			require.Equal(t, exitFailed, o.code, args)
			require.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
			require.Contains(t, o.stderr, "is missing")
		}
		doctor := p.run("", "doctor")
		require.Equal(t, exitOK, doctor.code, doctor.stdout)
		require.Contains(t, doctor.stdout, "→ the first start makes the tables")

		// Without a host a command opens the database itself.
		p.write("events.jsonl", sampleLines())
		require.Contains(t, p.run("", "import", "events.jsonl").ok(), "1,000 events stored in")
		require.Contains(t, p.run("", "import", "events.jsonl").ok(), "0 events stored, 1,000 already there in")
		require.Contains(t, p.run("", "schema", "check").ok(), "is in shape\n")
		require.Equal(t, 1000, strings.Count(p.run("", "export", "events").ok(), "\n"))
		doctor = p.run("", "doctor")
		require.Equal(t, exitOK, doctor.code, doctor.stdout)
		require.Regexp(t, `\(`+servedBy(driver)+` \S+, positions from a (counter|sequence)\)`, doctor.stdout)
		require.Contains(t, doctor.stdout, "16 partitions")
		if os.Getenv("PROJHOST_TEST_"+strings.ToUpper(driver)+"_DSN") == "" { // the private servers trade safety for speed
			require.Regexp(t, `warn +settings +(fsync|innodb_flush_log_at_trx_commit) is `, doctor.stdout)
		}

		p.write("config.toml", data+hostConfigText+serverConfig(driver, dsn)+writePlugin(p, "accounts", accounts)+writePlugin(p, "loans", loans))
		h := p.host()
		fresh := []string{"--min-position", p.end(), "--wait", "60s"}
		query := func(args ...string) string {
			t.Helper()
			o := p.run("", append(append([]string{"query"}, args...), fresh...)...)
			require.Equal(t, exitOK, o.code, o.stderr)
			return o.stdout + o.stderr
		}
		golden(t, "query-table", query("accounts", "--limit", "5"))
		golden(t, "query-where", query("accounts", "--where", "status=open", "--order", "owner:desc", "--limit", "4"))
		require.Equal(t, withoutPosition(p.golden("query-key")), withoutPosition(query("accounts", "account-00003")))
		require.Equal(t, withoutPosition(p.golden("query-children")), withoutPosition(query("resources", "112", "--limit", "3")))
		golden(t, "query-children-table", query("resources", "112", "--table", "resource_applications", "--limit", "3"))
		golden(t, "query-after-desc", query("accounts", "--order", "key:desc", "--after", "account-00003", "--limit", "2"))
		require.Regexp(t, `\nstore `+servedBy(driver)+` \S.*, schema \d+, 16 partitions\n`, p.run("", "status").ok())
		o := p.run(`{"type":"opened","data":{"owner":"o"}}`, "append", "account", "new", "--expected-version", "new")
		require.Equal(t, exitOK, o.code, o.stderr)
		o = p.run(`{"type":"opened","data":{"owner":"o"}}`, "append", "account", "new", "--expected-version", "new")
		require.Equal(t, exitFailed, o.code)
		require.Contains(t, o.stderr, "concurrent_write")
		doctor = p.run("", "doctor")
		require.Equal(t, exitOK, doctor.code, doctor.stdout)

		// Others read the same database while the host runs.
		before := query("accounts", "--limit", "5")
		url := h.address
		t.Setenv("PROJHOST_URL", "")
		p.write("config.toml", noHost)
		require.Equal(t, 1001, strings.Count(p.run("", "export", "events").ok(), "\n"))
		t.Setenv("PROJHOST_URL", url)
		h.end()
		fresh = nil
		require.Equal(t, before, query("accounts", "--limit", "5"))
	})
}

// withoutPosition leaves out the position of a row: a start may draw some of its
// own, so they are not the same everywhere.
func withoutPosition(s string) string {
	return regexp.MustCompile(`(?m)^\(position\) .*\n`).ReplaceAllString(s, "")
}

// golden is the text of a golden file.
func (p *place) golden(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(testdata, name+".golden"))
	require.NoError(p.t, err)
	return string(b)
}

// servedBy matches what a server calls itself.
func servedBy(driver string) string {
	if driver == "mysql" {
		return "(mysql|mariadb)"
	}
	return driver
}

// end is the highest position of the events.
func (p *place) end() string {
	p.t.Helper()
	for line := range strings.Lines(p.run("", "topics", "list").ok()) {
		if f := strings.Fields(line); f[0] == "events" {
			return f[3]
		}
	}
	p.t.Fatal("no topic events")
	return ""
}

// A store moves from SQLite to a server and on to a file again: what is
// exported stays the same but for the positions, which each draws anew.
func TestExportAndImportMoveAStore(t *testing.T) {
	onServers(t, func(p *place, driver, dsn string) {
		t := p.t
		position := regexp.MustCompile(`"position":\d+,?`)
		export := func() string {
			t.Helper()
			return position.ReplaceAllString(p.run("", "export", "events", "--with-sequence").ok(), "")
		}
		lines := sampleLines() + `{"id":"` + id1 + `","aggregate_type":"Ünï","aggregate_id":"a","type":"T","revision":7,"data":{"n":123456789012345678901234567890,"n":1.10,"s":"\u0000 😀"},"metadata":{"a":[ ]},"occurred_at":"2026-01-02T03:04:05.678901Z"}` + "\n"
		p.write("events.jsonl", lines)
		p.run("", "import", "events.jsonl").ok()
		before := export()
		require.Equal(t, 1001, strings.Count(before, "\n"))
		p.write("moved.jsonl", p.run("", "export", "events", "--with-sequence").ok())

		p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n"+serverConfig(driver, dsn))
		require.Contains(t, p.run("", "import", "moved.jsonl").ok(), "1,001 events stored in")
		require.Equal(t, before, export())
		require.Contains(t, p.run("", "import", "moved.jsonl").ok(), "0 events stored, 1,001 already there in")
		p.write("back.jsonl", p.run("", "export", "events", "--with-sequence").ok())

		p.write("config.toml", "data_dir = \"other\"\n[http]\nlisten = \"127.0.0.1:1\"\n")
		p.run("", "import", "back.jsonl").ok()
		require.Equal(t, before, export())
	})
}

// The transaction that holds the mark is named, with and without a host.
func TestHolderOfTheMarkIsNamed(t *testing.T) {
	p := newPlace(t)
	dsn := dbtest.Postgres(t)
	p.write("config.toml", hostConfigText+serverConfig("postgres", dsn))
	h := p.host()
	conn, err := pgx.Connect(t.Context(), dsn+"&application_name=forgetful")
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "BEGIN; SELECT nextval(pg_get_serial_sequence('ph_events', 'position'))")
	require.NoError(t, err)
	o := p.run(`{"type":"T","data":1}`, "append", "a", "1")
	require.Equal(t, exitOK, o.code, o.stderr)
	want := fmt.Sprintf(`events: what follows position \d+ waits for the open transaction of the session with process id %d \(forgetful\), idle in transaction, since `, conn.PgConn().PID())
	require.Eventually(t, func() bool { return strings.Contains(p.run("", "status").ok(), "forgetful") }, time.Minute, 10*time.Millisecond)
	require.Regexp(t, want, p.run("", "status").ok())
	o = p.run("", "doctor")
	require.Equal(t, exitOK, o.code)
	require.Regexp(t, `warn +topics +`+want, o.stdout)
	// An export that lacks what was appended says so.
	defer func(d time.Duration) { markPatience = d }(markPatience)
	markPatience = time.Millisecond
	o = p.run("", "export", "events")
	require.Equal(t, exitFailed, o.code)
	require.Regexp(t, `^projhost: export events: what follows may be missing up to position \d+: `+want, o.stderr)
	h.end()
	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n[partitions]\ncount = 16\n"+serverConfig("postgres", dsn))
	named := regexp.MustCompile(`warn +topics +` + want)
	require.Eventually(t, func() bool { return named.MatchString(p.run("", "doctor").stdout) }, time.Minute, 10*time.Millisecond)
}

// The rights that docs/databases.md lists are enough for everything the host
// does: the statements there are run, and a host under that user builds a read model.
func TestDocumentedRightsSuffice(t *testing.T) {
	accounts := guest.Build(t, "testplugins/accounts")
	doc, err := os.ReadFile("../../docs/databases.md")
	require.NoError(t, err)
	onServers(t, func(p *place, driver, dsn string) {
		t := p.t
		_, rest, ok := strings.Cut(string(doc), "<!-- tested: rights "+driver+" -->\n```sql\n")
		require.True(t, ok, "docs/databases.md lists the rights on %s as statements to run", driver)
		text, _, _ := strings.Cut(rest, "```")
		own := "ph_role_" + strings.ReplaceAll(uuid.NewString()[:13], "-", "_") // roles belong to the whole server
		text = strings.ReplaceAll(text, "projhost", own)
		limited := asUser[driver](t, dsn, own, strings.Split(text, ";\n"))
		p.write("config.toml", hostConfigText+serverConfig(driver, limited)+writePlugin(p, "accounts", accounts))
		h := p.host()
		p.write("events.jsonl", sampleLines())
		o := p.run("", "import", "events.jsonl")
		require.Equal(t, exitOK, o.code, o.stderr)
		o = p.run("", "query", "accounts", "--limit", "5", "--min-position", p.end(), "--wait", "60s")
		require.Equal(t, exitOK, o.code, o.stderr)
		require.Equal(t, p.golden("query-table"), o.stdout+o.stderr)
		h.end()
		require.NotContains(t, h.text(), `"error"`)
	})
}

// asUser runs statements as an administrator and gives the connection string of
// the user they made, whose name is that of its schema or database too.
var asUser = map[string]func(t *testing.T, dsn, user string, statements []string) string{
	"postgres": func(t *testing.T, dsn, user string, statements []string) string {
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx := context.Background()
			_, err := conn.Exec(ctx, "DROP OWNED BY "+user+" CASCADE; DROP ROLE "+user)
			require.NoError(t, err)
			require.NoError(t, conn.Close(ctx))
		})
		for _, s := range statements {
			_, err := conn.Exec(t.Context(), s)
			require.NoError(t, err, s)
		}
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		u.User = url.UserPassword(user, "change me")
		return u.String()
	},
	"mysql": func(t *testing.T, dsn, user string, statements []string) string {
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		t.Cleanup(func() {
			for _, s := range []string{"DROP DATABASE IF EXISTS " + user, "DROP USER IF EXISTS " + user} {
				_, err := db.ExecContext(context.Background(), s)
				require.NoError(t, err)
			}
			require.NoError(t, db.Close())
		})
		for _, s := range statements {
			if strings.TrimSpace(s) != "" {
				_, err := db.ExecContext(t.Context(), s)
				require.NoError(t, err, s)
			}
		}
		return user + ":change me@" + dsn[strings.LastIndexByte(dsn, '@')+1:strings.LastIndexByte(dsn, '/')+1] + user
	},
}

// Behind a pooler in transaction mode a host works with a direct_dsn, and says
// so without one.
func TestHostBehindAPooler(t *testing.T) {
	accounts := guest.Build(t, "testplugins/accounts")
	direct := dbtest.Postgres(t)
	pooled := dbtest.PgBouncer(t, direct)
	p := newPlace(t)
	p.write("config.toml", hostConfigText+serverConfig("postgres", pooled))
	o := p.run("", "run")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "direct_dsn")

	p.write("config.toml", hostConfigText+serverConfig("postgres", pooled)+fmt.Sprintf("direct_dsn = %q\n", direct)+writePlugin(p, "accounts", accounts))
	h := p.host()
	p.write("events.jsonl", sampleLines())
	o = p.run("", "import", "events.jsonl")
	require.Equal(t, exitOK, o.code, o.stderr)
	o = p.run("", "query", "accounts", "--limit", "5", "--min-position", p.end(), "--wait", "60s")
	require.Equal(t, p.golden("query-table"), o.stdout+o.stderr)
	h.end()
	require.NotContains(t, h.text(), `"error"`)

	// A direct_dsn that is the pooler as well, or another database, is refused.
	for _, bad := range []string{pooled, dbtest.Postgres(t)} {
		p.write("config.toml", hostConfigText+serverConfig("postgres", pooled)+fmt.Sprintf("direct_dsn = %q\n", bad))
		o = p.run("", "run")
		require.Equal(t, exitFailed, o.code)
		require.Contains(t, o.stderr, "direct_dsn")
	}
}

func TestDemoOnAServer(t *testing.T) {
	guest.Build(t, "testplugins/accounts")
	data := t.TempDir() // what is compiled once is there for all
	onServers(t, func(p *place, driver, dsn string) {
		t := p.t
		demo := func(events string) outcome {
			return p.run("", "demo", "--once", "--events", events, "--listen", "127.0.0.1:0", "--driver", driver, "--dsn", dsn, "--data-dir", data)
		}
		o := demo("3000")
		require.Equal(t, exitOK, o.code, o.stderr)
		require.Contains(t, o.stdout, "the read model has caught up: 3,000 events appended and applied in ")
		golden(t, "demo-rows", strings.TrimSuffix(o.stdout[strings.Index(o.stdout, "KEY"):], "\n"))
		o = demo("3500")
		require.Equal(t, exitOK, o.code, o.stderr)
		require.Contains(t, o.stdout, "3,000 events are there from before\nappended 500 events in ")

		// A database of somebody's is left alone.
		mine := servers[driver](t)
		p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n"+serverConfig(driver, mine))
		p.run(`{"type":"T","data":1}`, "append", "a", "1").ok()
		o = p.run("", "demo", "--once", "--events", "10", "--listen", "127.0.0.1:0", "--driver", driver, "--dsn", mine)
		require.Equal(t, exitFailed, o.code)
		require.Regexp(t, `^projhost: `+driver+` at \S+ has tables of a projhost that are not the demo's: name an empty database with --dsn\n$`, o.stderr)
		require.Equal(t, 1, strings.Count(p.run("", "export", "events").ok(), "\n"))
	})
}

// What is wrong with a connection is one line that says what to mend, and never
// the password.
func TestConnectionsThatFail(t *testing.T) {
	onServers(t, func(p *place, driver, dsn string) {
		t := p.t
		for what, bad := range badDSNs(t, driver, dsn) {
			p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n"+serverConfig(driver, bad))
			for _, args := range [][]string{{"run"}, {"topics", "list"}, {"schema", "check"}, {"append", "a", "1"}, {"demo", "--once", "--listen", "127.0.0.1:0", "--driver", driver, "--dsn", bad}} {
				o := p.run("", args...)
				require.Equal(t, exitFailed, o.code, "%s: %v", what, args)
				require.Equal(t, 1, strings.Count(o.stderr, "\n"), "%s: %v: %s", what, args, o.stderr)
				require.Regexp(t, `^projhost: `, o.stderr)
				require.NotContains(t, o.stderr+o.stdout, "hunter2")
				if slices.Contains(args, "run") {
					t.Logf("%s: %s", what, o.stderr)
				}
			}
			o := p.run("", "doctor")
			require.Equal(t, exitFailed, o.code, what)
			require.Regexp(t, `fail +database +`, o.stdout)
			require.NotContains(t, o.stderr+o.stdout, "hunter2")
		}
	})
}

// badDSNs are connection strings that go wrong, each in its way.
func badDSNs(t *testing.T, driver, dsn string) map[string]string {
	t.Helper()
	replace := func(old, with string) string {
		t.Helper()
		out := strings.Replace(dsn, old, with, 1)
		require.NotEqual(t, dsn, out, "%s is not in the connection string", old)
		return out
	}
	database := dsn[strings.Index(dsn, "ph_test_"):]
	database, _, _ = strings.Cut(database, "?")
	user, _, _ := strings.Cut(dsn, "@")
	user = user[strings.LastIndexByte(user, '/')+1:]
	address := hostOf(dsn)
	return map[string]string{
		"no such database": replace(database, "ph_test_nope"),
		"no such user":     replace(user+"@", "nobody:hunter2@"),
		"nobody listens":   strings.Replace(replace(address, "127.0.0.1:1"), user+"@", user+":hunter2@", 1),
		"no such host":     replace(address, "no-such-host.invalid:1"),
	}
}

// hostOf is host and port of a connection string of the tests.
func hostOf(dsn string) string {
	_, rest, _ := strings.Cut(dsn, "@")
	rest = strings.TrimPrefix(rest, "tcp(")
	return rest[:strings.IndexAny(rest, "/)?")]
}
