package sqlserver

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
)

// column is a column of a schema file, read line by line: another reading than
// the one that the check of the schema is made of.
type column struct {
	name, base, size, collation string
	null, filled                bool
}

var (
	tableLine  = regexp.MustCompile(`^CREATE TABLE \{\{(\w+)\}\} \($`)
	columnLine = regexp.MustCompile(`^    \[?(\w+)\]? +(\w+)(?:\((\w+)\))?(?: \{\{(text)\}\})?(?: +(NOT NULL|NULL))(?: (DEFAULT \d|IDENTITY\(1,1\)))?,$`)
	keyLine    = regexp.MustCompile(`^    PRIMARY KEY (?:NONCLUSTERED )?\(([^)]+)\)$`)
	indexLine  = regexp.MustCompile(`^CREATE (UNIQUE )?INDEX \{\{(\w+)\}\} ON \{\{(\w+)\}\} \(([^)]+)\);$`)
)

// catalogue answers as the database would, in which the schema files were run.
type catalogue struct {
	columns map[string][]column
	indexes map[string][]index
}

type index struct {
	name            string
	unique, primary bool
	columns         []string
}

func names(list string) []string {
	return strings.Split(strings.NewReplacer("[", "", "]", "", " ", "").Replace(list), ",")
}

func readCatalogue(t testing.TB) *catalogue {
	t.Helper()
	c := &catalogue{map[string][]column{}, map[string][]index{}}
	for _, m := range migrations(t) {
		table := ""
		for line := range strings.Lines(m.SQL) {
			line = strings.TrimRight(line, "\n")
			switch {
			case line == "" || line == ");" || strings.HasPrefix(line, "--"):
			case tableLine.MatchString(line):
				table = "ph_" + tableLine.FindStringSubmatch(line)[1]
			case keyLine.MatchString(line):
				c.indexes[table] = append(c.indexes[table], index{"PK__" + table, true, true, names(keyLine.FindStringSubmatch(line)[1])})
			case columnLine.MatchString(line):
				f := columnLine.FindStringSubmatch(line)
				col := column{name: f[1], base: f[2], size: f[3], null: f[5] == "NULL", filled: f[6] != ""}
				if f[4] != "" {
					col.collation = collation
				}
				c.columns[table] = append(c.columns[table], col)
			case indexLine.MatchString(line):
				f := indexLine.FindStringSubmatch(line)
				c.indexes["ph_"+f[3]] = append(c.indexes["ph_"+f[3]], index{"ph_" + f[2], f[1] != "", false, names(f[4])})
			default:
				t.Fatalf("a line of a schema file is not understood: %s", line)
			}
		}
	}
	return c
}

func migrations(t testing.TB) []migrate.Migration {
	t.Helper()
	list, err := migrate.Load(schemaFiles, "schema")
	require.NoError(t, err)
	return list
}

var fixedSizes = map[string]int64{"int": 4, "bigint": 8, "bit": 1}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (c *catalogue) columnRows(table string) (list [][]driver.Value) {
	for _, col := range c.columns[table] {
		length := fixedSizes[col.base]
		if col.size == "max" {
			length = -1
		} else if col.size != "" {
			length, _ = strconv.ParseInt(col.size, 10, 64)
		}
		list = append(list, []driver.Value{col.name, col.base, length, int64(0), int64(0), flag(col.null), col.collation, flag(col.filled)})
	}
	return list
}

func (c *catalogue) indexRows(table string) (list [][]driver.Value) {
	for _, ix := range c.indexes[table] {
		for _, name := range ix.columns {
			list = append(list, []driver.Value{ix.name, flag(ix.unique), flag(ix.primary), "", name})
		}
	}
	return list
}

// soundSettings is the row of a database that is as it has to be.
func soundSettings() []driver.Value {
	return []driver.Value{"16.0.4135.4", int64(3), "orders", int64(160), int64(1), int64(1), int64(0), "READ_WRITE"}
}

// boot answers what Open asks of a database that has its schema, and leaves
// everything else to next.
func boot(t testing.TB, next func(s sent) (*reply, error)) func(s sent) (*reply, error) {
	c := readCatalogue(t)
	name := func(s sent) string { return fmt.Sprint(s.args["p1"]) }
	return func(s sent) (*reply, error) {
		switch {
		case s.text == settingsSQL:
			return rows(soundSettings()), nil
		case strings.HasPrefix(s.text, "SELECT c.name, COALESCE"):
			return rows(c.columnRows(name(s))...), nil
		case strings.HasPrefix(s.text, "SELECT i.name"):
			return rows(c.indexRows(name(s))...), nil
		case strings.HasPrefix(s.text, "SELECT o.type"):
			if _, ok := c.columns[name(s)]; ok {
				return rows([]driver.Value{"U ", name(s)}), nil
			}
		case strings.HasPrefix(s.text, "SELECT version, name, checksum"):
			r := &reply{columns: 3}
			for _, m := range migrations(t) {
				r.rows = append(r.rows, []driver.Value{int64(m.Version), m.Name, m.Checksum})
			}
			return r, nil
		case strings.HasPrefix(s.text, "SELECT partitions"):
			return rows([]driver.Value{int64(256), store.PartitionHash, int64(store.KeyEncodingVersion), "counter"}), nil
		case s.text == lockSQL:
			return rows([]driver.Value{int64(0)}), nil
		case next != nil:
			return next(s)
		}
		return nil, nil
	}
}

// openFake opens a store on a server that has its schema. What it sent until
// then is forgotten.
func openFake(t testing.TB, answer func(s sent) (*reply, error)) (*Store, *server) {
	t.Helper()
	srv := &server{t: t, answer: boot(t, nil)}
	s, err := open(t.Context(), sql.OpenDB(srv), Options{TablePrefix: "ph_"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	srv.mu.Lock()
	srv.log, srv.answer = nil, answer
	srv.mu.Unlock()
	return s, srv
}

// The host's check of its tables agrees with another reading of the schema files
// than its own, and a database that lacks something is told.
func TestSchemaIsWhatTheCatalogueTells(t *testing.T) {
	t.Parallel()
	srv := &server{t: t, answer: boot(t, nil)}
	s, err := open(t.Context(), sql.OpenDB(srv), Options{TablePrefix: "ph_", NeverInitialize: true})
	require.NoError(t, err)
	defer s.Close()
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, store.Info{Driver: "sqlserver", ServerVersion: "16.0.4135.4", SchemaVersion: len(migrations(t)),
		Partitions: 256, Hash: store.PartitionHash, PositionMode: "counter"}, info)
	require.Len(t, readCatalogue(t).columns, 17)

	sound := boot(t, nil)
	srv.answer = func(e sent) (*reply, error) {
		r, err := sound(e)
		if strings.HasPrefix(e.text, "SELECT i.name") {
			r = &reply{} // no index at all
		}
		return r, err
	}
	var schema *store.SchemaError
	require.ErrorAs(t, s.Check(t.Context()), &schema)
	require.NotEmpty(t, schema.Table)
}

// A new database gets each statement of the schema by itself, and then the rows
// that the host needs.
func TestFirstStartMakesTheSchema(t *testing.T) {
	t.Parallel()
	sound := boot(t, nil)
	made := map[string]bool{}
	srv := &server{t: t}
	srv.answer = func(s sent) (*reply, error) {
		switch {
		case strings.HasPrefix(s.text, "CREATE TABLE ["):
			name, _, _ := strings.Cut(strings.TrimPrefix(s.text, "CREATE TABLE ["), "]")
			made[name] = true
		case strings.HasPrefix(s.text, "INSERT INTO [ph_partition_metadata]"):
			made["rows"] = true
		case strings.HasPrefix(s.text, "INSERT INTO [ph_schema_migrations]"):
			made[s.text[:len(s.text)-len(nowSQL)-1]] = true
		case strings.HasPrefix(s.text, "SELECT version, name, checksum"):
			r := &reply{columns: 3}
			for _, m := range migrations(t) {
				for text := range made {
					if strings.Contains(text, m.Checksum) {
						r.rows = append(r.rows, []driver.Value{int64(m.Version), m.Name, m.Checksum})
					}
				}
			}
			return r, nil
		case strings.HasPrefix(s.text, "SELECT partitions") && !made["rows"]:
			return nil, nil
		case strings.HasPrefix(s.text, "SELECT o.type") && !made[fmt.Sprint(s.args["p1"])]:
			return nil, nil
		}
		return sound(s)
	}
	s, err := open(t.Context(), sql.OpenDB(srv), Options{TablePrefix: "ph_"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	var statements []string
	for _, text := range srv.texts() {
		if strings.HasPrefix(text, "CREATE") || strings.HasPrefix(text, "INSERT") {
			statements = append(statements, text)
		}
	}
	golden(t, "first_start.sql", strings.Join(statements, ";\n\n")+";\n")
	require.Equal(t, len(srv.named("sp_getapplock")), len(srv.named("sp_releaseapplock")))
}

func TestSettingsThatBreakAPromiseAreRefused(t *testing.T) {
	t.Parallel()
	sound := settings{version: "15.0.2000.5", database: "a]b", edition: 2, level: 150, committedSnapshot: 1, snapshotOn: 1, updateability: "READ_WRITE"}
	require.NoError(t, sound.check())
	for name, c := range map[string]struct {
		spoil func(at *settings)
		says  string
	}{
		"old server":    {func(at *settings) { at.version = "14.0.3456.2" }, "SQL Server 2019 (15) or later is needed"},
		"odd version":   {func(at *settings) { at.version = "" }, "SQL Server 2019 (15) or later is needed"},
		"old level":     {func(at *settings) { at.level = 120 }, "ALTER DATABASE [a]]b] SET COMPATIBILITY_LEVEL = 150"},
		"readers block": {func(at *settings) { at.committedSnapshot = 0 }, "ALTER DATABASE [a]]b] SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE"},
		"no snapshots":  {func(at *settings) { at.snapshotOn = 0 }, "ALTER DATABASE [a]]b] SET ALLOW_SNAPSHOT_ISOLATION ON"},
		"pending":       {func(at *settings) { at.snapshotOn = 3 }, "ALLOW_SNAPSHOT_ISOLATION ON"},
		"not durable":   {func(at *settings) { at.delayedDurability = 2 }, "ALTER DATABASE [a]]b] SET DELAYED_DURABILITY = DISABLED"},
		"read-only":     {func(at *settings) { at.updateability = "READ_ONLY" }, "database [a]]b] is read-only"},
	} {
		at := sound
		c.spoil(&at)
		require.ErrorContains(t, at.check(), c.says, name)
	}
	require.Empty(t, sound.warning())
	older := sound
	older.level = 140
	require.NoError(t, older.check())
	require.Contains(t, older.warning(), "ALTER DATABASE [a]]b] SET COMPATIBILITY_LEVEL = 150")
	azure := sound
	azure.version, azure.edition = "12.0.2000.8", editionAzure
	require.NoError(t, azure.check(), "Azure SQL keeps the version of 2014")
}

// Whatever is wrong with a connection string, the password is not told.
func TestConnectionStringsAreNotQuoted(t *testing.T) {
	t.Parallel()
	const secret = "pa55-0rd"
	for _, dsn := range []string{
		"", "sqlserver://sa:" + secret + "@db.example:port?database=x", "sqlserver://sa:" + secret + "%zz@db.example?database=x",
		"sqlserver://sa:" + secret + "@db.example", "server=db.example;user id=sa;password=" + secret,
		"sqlserver://sa:" + secret + "@db.example?database=x&encrypt=perhaps", "odbc:server=x;password={" + secret,
	} {
		_, err := Open(t.Context(), Options{DSN: dsn, TablePrefix: "ph_"})
		require.Error(t, err, dsn)
		require.NotContains(t, err.Error(), secret)
		require.ErrorContains(t, err, "[store] dsn")
	}
	c, err := connect(Options{DSN: "sqlserver://sa:" + secret + "@db.example?database=x"})
	require.NoError(t, err)
	golden(t, "session.sql", c.SessionInitSQL)
}
