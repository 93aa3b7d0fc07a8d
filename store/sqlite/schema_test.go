package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
)

// run runs SQL on a database file, as its administrator would.
func run(t testing.TB, path, text string) {
	t.Helper()
	c, err := openConn(path, false)
	require.NoError(t, err)
	require.NoError(t, c.script(text))
	require.NoError(t, c.close())
}

// dump is everything a database holds, but the time a migration was applied at.
func dump(t testing.TB, path string) []string {
	t.Helper()
	c, err := openConn(path, true)
	require.NoError(t, err)
	defer c.close()
	texts, err := c.queryTexts(`SELECT type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY type, name`)
	require.NoError(t, err)
	tables, err := c.queryTexts(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name`)
	require.NoError(t, err)
	for _, table := range tables {
		r, err := c.query(context.Background(), `SELECT * FROM `+quote(table))
		require.NoError(t, err)
		for r.next() {
			if strings.HasSuffix(table, "schema_migrations") {
				r.vals[3] = nil
			}
			texts = append(texts, fmt.Sprint(table, r.vals))
		}
		require.NoError(t, r.close())
	}
	return texts
}

func TestPrintedSchemaIsTheHosts(t *testing.T) {
	for _, prefix := range []string{"ph_", "", "Other_App1_"} {
		for _, partitions := range []int{0, 7} {
			dir := t.TempDir()
			script, err := SchemaSQL(prefix, partitions)
			require.NoError(t, err)
			run(t, filepath.Join(dir, "printed.db"), script)
			for _, name := range []string{"printed.db", "made.db"} {
				s, err := Open(t.Context(), Options{DSN: filepath.Join(dir, name), TablePrefix: prefix, Partitions: partitions, NeverInitialize: name == "printed.db"})
				require.NoError(t, err)
				require.NoError(t, s.Check(t.Context()))
				require.NoError(t, s.Close())
			}
			require.Equal(t, dump(t, filepath.Join(dir, "made.db")), dump(t, filepath.Join(dir, "printed.db")))
		}
	}
}

func TestPrintedSchemaRefusesBadSettings(t *testing.T) {
	for _, prefix := range []string{"1x", "a-b", `a"b`, "a b", "é", "_x", strings.Repeat("x", 33), "a;b"} {
		_, err := SchemaSQL(prefix, 0)
		require.ErrorContains(t, err, "table_prefix", prefix)
		_, err = Open(t.Context(), Options{DSN: filepath.Join(t.TempDir(), "x.db"), TablePrefix: prefix})
		require.ErrorContains(t, err, "table_prefix", prefix)
	}
	_, err := SchemaSQL("ph_", partitionsMax+1)
	require.ErrorContains(t, err, "partitions")
}

// Two applications may share a file when their prefixes differ.
func TestPrefixesKeepApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shared.db")
	for _, prefix := range []string{"a_", "b_"} {
		s := openTest(t, Options{DSN: path, TablePrefix: prefix})
		appendOne(t, s, prefix)
		require.NoError(t, s.Close())
	}
	s := openTest(t, Options{DSN: path, TablePrefix: "a_"})
	require.EqualValues(t, 1, version(t, s, "a_"))
	require.EqualValues(t, 0, version(t, s, "b_"))
}

func appendOne(t testing.TB, s *Store, aggregate string) {
	t.Helper()
	require.NoError(t, tryAppend(t.Context(), s, aggregate))
}

func tryAppend(ctx context.Context, s *Store, aggregate string) error {
	_, err := s.Commit(ctx, store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: aggregate, ExpectedVersion: store.AnyVersion,
		Events: []store.NewEvent{{Type: "Counted", Data: []byte(`{"n":1}`)}}}}})
	return err
}

func version(t testing.TB, s *Store, aggregate string) int64 {
	t.Helper()
	v, err := s.StreamVersion(t.Context(), "account", aggregate)
	require.NoError(t, err)
	return v
}

func TestNeverInitializeTellsWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		change string // made to a sound database
		want   []string
	}{
		"table": {`DROP TABLE ph_snapshots`,
			[]string{`table "ph_snapshots" is missing`, "restore it from a backup", "projhost schema print"}},
		"column": {`ALTER TABLE ph_events DROP COLUMN metadata`,
			[]string{`table "ph_events"`, `column "metadata"`, "missing", "should be ANY", "projhost schema print"}},
		"column of another shape": {`ALTER TABLE ph_topics RENAME TO x; CREATE TABLE ph_topics (name TEXT NOT NULL PRIMARY KEY, kind TEXT, topic_start INTEGER NOT NULL DEFAULT 0, end_position INTEGER NOT NULL DEFAULT 0,
			high_water_mark INTEGER NOT NULL GENERATED ALWAYS AS (end_position) VIRTUAL); DROP TABLE x`,
			[]string{`table "ph_topics"`, `column "kind"`, "is TEXT, should be TEXT NOT NULL"}},
		"index": {`DROP INDEX ph_events_id`,
			[]string{`table "ph_events"`, "index on ('id' BINARY)", "missing", "a unique index"}},
		"index not unique": {`DROP INDEX ph_events_id; CREATE INDEX mine ON ph_events (id)`,
			[]string{`table "ph_events"`, "is an index on", "should be a unique index on"}},
		"index too unique": {`CREATE UNIQUE INDEX mine ON ph_events (aggregate_id, sequence)`,
			[]string{`table "ph_events"`, "a unique index on ('aggregate_id' BINARY, 'sequence' BINARY)", "should be absent"}},
		"column in the way": {`ALTER TABLE ph_topics RENAME TO x; CREATE TABLE ph_topics (name TEXT NOT NULL PRIMARY KEY, kind TEXT NOT NULL, topic_start INTEGER NOT NULL DEFAULT 0, end_position INTEGER NOT NULL DEFAULT 0,
			high_water_mark INTEGER NOT NULL GENERATED ALWAYS AS (end_position) VIRTUAL, mine TEXT NOT NULL); DROP TABLE x`,
			[]string{`table "ph_topics"`, `column "mine"`, "TEXT NOT NULL", "should be absent"}},
		"record": {`DELETE FROM ph_schema_migrations WHERE version > 1`,
			[]string{"0002_consumers", "schema_migrations", "projhost schema print"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "projhost.db")
			script, err := SchemaSQL("ph_", 0)
			require.NoError(t, err)
			run(t, path, script)
			run(t, path, c.change)
			before := dump(t, path)
			_, err = Open(t.Context(), Options{DSN: path, TablePrefix: "ph_", NeverInitialize: true})
			for _, want := range append(c.want, path) {
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, before, dump(t, path), "nothing was mended behind the administrator's back")
		})
	}
}

func TestNeverInitializeMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_", NeverInitialize: true})
	require.ErrorContains(t, err, "the file cannot be opened")
	require.NoFileExists(t, path)
}

// What the user adds is the user's own.
func TestNeverInitializeBearsAdditions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	script, err := SchemaSQL("ph_", 0)
	require.NoError(t, err)
	run(t, path, script)
	run(t, path, `CREATE TABLE mine (x); ALTER TABLE ph_events ADD COLUMN note TEXT; ALTER TABLE ph_events ADD COLUMN stars INTEGER NOT NULL DEFAULT 5;
		CREATE INDEX mine_type ON ph_events (type)`)
	s := openTest(t, Options{DSN: path, NeverInitialize: true})
	appendOne(t, s, "A-1")
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	require.NoError(t, openTest(t, Options{DSN: path}).Close())
	run(t, path, `INSERT INTO ph_schema_migrations VALUES (99, 'later', 'x', 0)`)
	before := dump(t, path)
	for _, never := range []bool{false, true} {
		_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_", NeverInitialize: never})
		var newer *migrate.NewerError
		require.ErrorAs(t, err, &newer)
		require.Equal(t, 99, newer.Found)
	}
	require.Equal(t, before, dump(t, path))
}

func TestChangedMigrationIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	require.NoError(t, openTest(t, Options{DSN: path}).Close())
	run(t, path, `UPDATE ph_schema_migrations SET checksum = 'x' WHERE version = 1`)
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	var changed *migrate.ChecksumError
	require.ErrorAs(t, err, &changed)
	require.Equal(t, 1, changed.Version)
}

func TestFrozenSettingsAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	require.NoError(t, openTest(t, Options{DSN: path, Partitions: 12}).Close())
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_", Partitions: 13})
	require.ErrorContains(t, err, "12 partitions")
	require.ErrorContains(t, err, "13")
	require.ErrorContains(t, err, "[partitions] count = 12")
	for change, want := range map[string]string{
		"hash = 'sha1'":             "sha1",
		"key_encoding = 2":          "key encoding 2",
		"position_mode = 'guesses'": "guesses",
	} {
		run(t, path, `UPDATE ph_partition_metadata SET `+change)
		_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
		require.ErrorContains(t, err, want)
		run(t, path, fmt.Sprintf(`UPDATE ph_partition_metadata SET hash = '%s', key_encoding = %d, position_mode = 'counter'`, store.PartitionHash, store.KeyEncodingVersion))
	}
	require.NoError(t, openTest(t, Options{DSN: path}).Close())
}

// openShared opens without the lock that keeps other processes off, to see what
// the database's own lock is good for.
func openShared(ctx context.Context, path string) (*Store, error) {
	s, err := newStore(Options{DSN: path, TablePrefix: "ph_"})
	if err != nil {
		return nil, err
	}
	return s.start(ctx)
}

func childOpens(path string) {
	s, err := openShared(context.Background(), path)
	if err != nil {
		childFails(err)
	}
	if err := s.Close(); err != nil {
		childFails(err)
	}
	fmt.Println("opened")
}

func TestConcurrentFirstStarts(t *testing.T) {
	want := filepath.Join(t.TempDir(), "want.db")
	require.NoError(t, openTest(t, Options{DSN: want}).Close())
	for range 5 {
		path := filepath.Join(t.TempDir(), "projhost.db")
		var wg sync.WaitGroup
		for range 4 {
			c := startChild(t, "open", path)
			wg.Go(func() {
				if line := c.line(); line != "opened" {
					t.Errorf("a process answered %q", line)
				}
				if err := c.Wait(); err != nil {
					t.Errorf("a process ended with %v", err)
				}
			})
			wg.Go(func() {
				s, err := openShared(t.Context(), path)
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, dump(t, want), dump(t, path))
	}
}

// A migration that fails leaves nothing of itself.
func TestFailedMigrationLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	run(t, path, `CREATE TABLE ph_consumers (mine TEXT)`)
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.ErrorContains(t, err, "0002_consumers")
	require.NotContains(t, strings.Join(dump(t, path), "\n"), "ph_builds")
	run(t, path, `DROP TABLE ph_consumers`)
	require.NoError(t, openTest(t, Options{DSN: path}).Close())
}

func TestSettingsOfEveryConnection(t *testing.T) {
	s := openTest(t, Options{})
	appendOne(t, s, "A-1")
	pragma := func(c *conn, name string) any {
		row, err := c.queryRow(t.Context(), "PRAGMA "+name)
		require.NoError(t, err)
		return row[0]
	}
	check := func(c *conn, queryOnly, synchronous int64) {
		require.Equal(t, "wal", pragma(c, "journal_mode"))
		require.EqualValues(t, 1, pragma(c, "foreign_keys"))
		require.EqualValues(t, 50, pragma(c, "busy_timeout"))
		require.Equal(t, queryOnly, pragma(c, "query_only"))
		require.Equal(t, synchronous, pragma(c, "synchronous"), "2 is FULL: what is acknowledged is synced (P9)")
	}
	func() {
		for range cap(s.readers.slots) {
			c, err := s.readers.get(t.Context(), "test")
			require.NoError(t, err)
			defer s.readers.put(c, nil)
			check(c, 1, 2)
		}
	}()
	check(s.writer.conn, 0, 2)
	s.writer.discard()
	appendOne(t, s, "A-1")
	check(s.writer.conn, 0, 2)
}

func TestFolderMustExist(t *testing.T) {
	_, err := Open(t.Context(), Options{DSN: filepath.Join(t.TempDir(), "no", "projhost.db"), TablePrefix: "ph_"})
	require.ErrorContains(t, err, "does not exist")
	_, err = Open(t.Context(), Options{})
	require.ErrorContains(t, err, "[store] dsn")
}

// A path is a path, whatever characters it has.
func TestOddPaths(t *testing.T) {
	for _, name := range []string{"with space.db", "per%20cent.db", "question?mode=memory.db", "hash#tag.db", "ü.db", "a&b=c.db", "file:x.db"} {
		path := filepath.Join(t.TempDir(), name)
		s := openTest(t, Options{DSN: path})
		appendOne(t, s, "A-1")
		require.NoError(t, s.Close())
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Positive(t, fi.Size())
		require.NoError(t, openTest(t, Options{DSN: path, NeverInitialize: true}).Close())
	}
}
