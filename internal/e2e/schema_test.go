package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// client runs a script with the database's own client, as an administrator does.
func (s *site) client(script string) {
	s.t.Helper()
	var c *exec.Cmd
	switch s.driver {
	case "postgres":
		c = exec.CommandContext(s.t.Context(), dbtest.PostgresProgram(s.t, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", s.dsn)
	case "mysql":
		program, err := exec.LookPath("mariadb")
		if err != nil {
			program, err = exec.LookPath("mysql")
		}
		require.NoError(s.t, err, "the client of MariaDB or MySQL")
		cfg, err := mysql.ParseDSN(s.dsn)
		require.NoError(s.t, err)
		args := []string{"--no-defaults", "-u" + cfg.User}
		if cfg.Net == "unix" {
			args = append(args, "-S"+cfg.Addr)
		} else {
			host, port, _ := strings.Cut(cfg.Addr, ":")
			args = append(args, "-h"+host, "-P"+port)
		}
		if cfg.Passwd != "" {
			args = append(args, "-p"+cfg.Passwd)
		}
		c = exec.CommandContext(s.t.Context(), program, append(args, cfg.DBName)...)
	}
	c.Stdin = strings.NewReader(script)
	out, err := c.CombinedOutput()
	require.NoErrorf(s.t, err, "%s", out)
}

// catalogues are queries that show everything there is to the tables of a
// database whose names begin with ph_, and what the first start puts into them.
var catalogues = map[string][]string{
	"postgres": {
		`SELECT table_name, ordinal_position, column_name, data_type, udt_name, character_maximum_length, numeric_precision, is_nullable,
			column_default, collation_name, is_identity, identity_generation, identity_start, identity_increment, identity_maximum, identity_minimum, identity_cycle
			FROM information_schema.columns WHERE table_schema = current_schema() AND table_name LIKE 'ph\_%'`,
		`SELECT tablename, indexname, replace(indexdef, current_schema() || '.', '') FROM pg_indexes WHERE schemaname = current_schema()`,
		`SELECT conrelid::regclass, conname, contype, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = current_schema()::regnamespace`,
		`SELECT sequencename, data_type, start_value, increment_by, cache_size, cycle FROM pg_sequences WHERE schemaname = current_schema()`,
		`SELECT relname, relkind, relpersistence, reloptions FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'v', 'S', 'i')`,
		`SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE NOT tgisinternal`,
	},
	"mysql": {
		`SELECT table_name, ordinal_position, column_name, column_type, is_nullable, column_default, collation_name, extra
			FROM information_schema.columns WHERE table_schema = database()`,
		`SELECT table_name, index_name, non_unique, seq_in_index, column_name, sub_part, index_type FROM information_schema.statistics WHERE table_schema = database()`,
		`SELECT table_name, constraint_name, constraint_type FROM information_schema.table_constraints WHERE table_schema = database()`,
		`SELECT table_name, table_type, engine, row_format, table_collation FROM information_schema.tables WHERE table_schema = database()`,
		`SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = database()`,
	},
}

// catalogue is what those queries give, sorted.
func (s *site) catalogue() (lines []string) {
	s.t.Helper()
	for _, query := range append(catalogues[s.driver],
		`SELECT version, name, checksum FROM ph_schema_migrations`, `SELECT * FROM ph_partition_metadata`,
		`SELECT name, kind, topic_start FROM ph_topics`) { // a host's self-test may have drawn a position
		for _, row := range s.rows(query) {
			lines = append(lines, strings.Join(row, " | "))
		}
	}
	slices.Sort(lines)
	require.Greater(s.t, len(lines), 50)
	return lines
}

// Promise P6: the script that schema print gives, run by hand with the database's
// own client, makes what a host makes; with initialize_schema = "never" a host
// works on it, makes no table of its own, and tells what is missing or differs:
// table, column, both shapes, and the script.
func TestSchemaByHand(t *testing.T) {
	long(t)
	onPrivate(t, func(t *testing.T, v server) {
		made := newSiteOn(t, v.driver, v.dsn(t), "")
		made.write("config.toml", strings.Split(made.read("config.toml"), "[[plugin]]")[0])
		made.start().ready().stop()

		s := newSiteOn(t, v.driver, v.dsn(t), "initialize_schema = \"never\"\n")
		refused := func(want ...string) {
			t.Helper()
			for _, command := range [][]string{{"run"}, {"schema", "check"}} {
				o := s.run("", command...)
				require.Equal(t, 1, o.code, o.stderr)
				for _, w := range want {
					require.Contains(t, o.stderr, w)
				}
				require.Contains(t, o.stderr, "`projhost schema print --driver ")
			}
		}
		refused("missing")
		require.Empty(t, slices.DeleteFunc(s.tables(), func(name string) bool { return !strings.HasPrefix(name, "ph_") }), "nothing is made")

		driver := v.driver
		if driver == "mysql" && strings.Contains(s.rows("SELECT version()")[0][0], "MariaDB") {
			driver = "mariadb"
		}
		script := s.command("schema", "print", "--driver", driver)
		s.client(script)
		require.Equal(t, made.catalogue(), s.catalogue())
		require.Contains(t, s.run("", "schema", "check").ok(), "is in shape")

		for harm, test := range map[string]struct {
			repair map[string]string
			want   []string
		}{
			`ALTER TABLE ph_events RENAME COLUMN metadata TO meta`: {
				map[string]string{"": `ALTER TABLE ph_events RENAME COLUMN meta TO metadata`},
				[]string{`table "ph_events"`, `metadata`, "missing"},
			},
			`ALTER TABLE ph_snapshots RENAME TO other`: {
				map[string]string{"": `ALTER TABLE other RENAME TO ph_snapshots`},
				[]string{`table "ph_snapshots" is missing`},
			},
			map[string]string{"postgres": `ALTER TABLE ph_instances ALTER COLUMN ttl_us TYPE integer`, "mysql": `ALTER TABLE ph_instances MODIFY ttl_us INT NOT NULL`}[v.driver]: {
				map[string]string{"postgres": `ALTER TABLE ph_instances ALTER COLUMN ttl_us TYPE bigint`, "mysql": `ALTER TABLE ph_instances MODIFY ttl_us BIGINT NOT NULL`},
				[]string{`table "ph_instances"`, `ttl_us`, "is int", "should be bigint"},
			},
		} {
			s.client(harm + ";")
			refused(test.want...)
			repair := test.repair[v.driver]
			if repair == "" {
				repair = test.repair[""]
			}
			s.client(repair + ";")
		}

		fold, lines := loanSample(t, 500)
		h := s.start().ready()
		require.True(t, h.send(bytes.Join(lines, nil)))
		h.caughtUp()
		h.stop()
		s.equalsOracle(fold)
	})
}

// tables are the names of all tables and views.
func (s *site) tables() (names []string) {
	s.t.Helper()
	schema := map[string]string{"postgres": "current_schema()", "mysql": "database()", "sqlserver": "schema_name()"}[s.driver]
	for _, row := range s.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = " + schema) {
		names = append(names, row[0])
	}
	slices.Sort(names)
	return names
}

// Promise P10: two applications with prefixes of their own share one schema, both
// at once, and neither sees the other.
func TestTwoApplicationsInOneSchema(t *testing.T) {
	long(t)
	onServers(t, func(t *testing.T, v server) {
		dsn := v.dsn(t)
		type app struct {
			*site
			host   *host
			events int
		}
		var apps []app
		for i, prefix := range []string{"one", "two"} {
			s := newSiteOn(t, v.driver, dsn, "table_prefix = \""+prefix+"_\"\nread_model_prefix = \"rm"+prefix+"_\"\n")
			s.prefix = "rm" + prefix + "_"
			apps = append(apps, app{s, s.start(), 400 + 300*i})
		}
		for _, a := range apps {
			_, lines := loanSample(t, a.events)
			require.True(t, a.host.ready().send(bytes.Join(lines, nil)))
		}
		for _, a := range apps {
			a.host.caughtUp()
			require.EqualValues(t, a.events, a.count(strings.TrimPrefix(strings.TrimSuffix(a.prefix, "_"), "rm")+"_events"))
		}
		for _, a := range apps {
			a.host.stop()
			fold, _ := loanSample(t, a.events)
			a.equalsOracle(fold)
		}
		for _, name := range apps[0].tables() {
			require.Regexp(t, `^(one|two|rmone|rmtwo)_`, name)
		}
	})
}

// The demo of the README, on each server; a second run goes on where the first
// one stopped.
func TestDemoOnServers(t *testing.T) {
	long(t)
	onServers(t, func(t *testing.T, v server) {
		s := &site{t: t, dir: t.TempDir(), driver: v.driver, dsn: v.dsn(t)}
		root, err := filepath.Abs("../..")
		require.NoError(t, err)
		demo := func() string {
			c := exec.CommandContext(t.Context(), program, "demo", "--once", "--events", "3000", "--driver", v.driver, "--dsn", s.dsn, "--listen", "127.0.0.1:0")
			c.Dir = root
			out, err := c.CombinedOutput()
			require.NoErrorf(t, err, "%s", out)
			return string(out)
		}
		first := demo()
		require.Contains(t, first, "3,000 events appended and applied")
		require.Contains(t, first, "account-00000")
		second := demo()
		require.Contains(t, second, "3,000 events are there from before")
		require.Equal(t, first[strings.Index(first, "KEY "):], second[strings.Index(second, "KEY "):])
		require.Equal(t, [][]string{{"3000"}}, s.rows(`SELECT sum("events") FROM "accounts"`))
	})
}
