package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// projection declares a projection with a table and a child of it.
func projection(t testing.TB, name string) store.Declaration {
	tables, err := readmodel.NewTables([]abi.Table{
		{Name: name, Columns: []abi.Column{
			{Name: "n", Kind: abi.ColumnInt},
			{Name: "owner", Kind: abi.ColumnText, Max: 100, Index: true},
		}},
		{Name: name + "_lines", Parent: name, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
	})
	require.NoError(t, err)
	return store.Declaration{ID: store.ConsumerID{Type: "projection", Name: name}, Topics: []string{store.EventsTopic},
		Tables: tables, Plugin: "p", Digest: "sha256:1"}
}

func subscribe(t testing.TB, s *Store, d store.Declaration) store.Consumer {
	t.Helper()
	c, err := s.Subscribe(t.Context(), d)
	require.NoError(t, err)
	return c
}

// sql runs statements as a user with a client of his own would.
func (s *Store) sql(t testing.TB, statements ...string) {
	t.Helper()
	for _, text := range statements {
		require.NoError(t, s.write(t.Context(), "test", 1, func(tx *tx) error { return tx.script(text) }), text)
	}
}

// texts runs a query of one column of text.
func (s *Store) texts(t testing.TB, query string) (list []string) {
	t.Helper()
	require.NoError(t, s.read(t.Context(), "test", func(c *conn) (err error) {
		list, err = c.queryTexts(query)
		return err
	}))
	return list
}

// tester holds all partitions of a projection.
type tester struct {
	t        testing.TB
	s        *Store
	c        store.Consumer
	leases   []store.Lease
	position int64 // of partition 0
}

func newTester(t testing.TB, s *Store, d store.Declaration) *tester {
	t.Helper()
	x := &tester{t: t, s: s, c: subscribe(t, s, d)}
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: d.ID.Name, HostName: "h"}))
	x.claim()
	return x
}

func (x *tester) claim() {
	x.t.Helper()
	var err error
	x.leases, _, err = x.s.Claim(x.t.Context(), x.c.ID.Name, x.c.Build, []int{0, 1})
	require.NoError(x.t, err)
}

// batch writes rows of the first table and moves a checkpoint.
func (x *tester) batch(writes ...readmodel.Write) *store.Batch {
	return &store.Batch{Consumer: x.c.ID, Build: x.c.Build, Epoch: x.c.Epoch, InstanceID: x.c.ID.Name, Incarnation: x.s.Incarnation(),
		Leases: x.leases, Tables: []store.TableWrites{{Table: x.c.Tables[0], Writes: writes}},
		Checkpoints: []store.CheckpointMove{{Topic: store.EventsTopic, From: x.position, To: x.position + 1}}}
}

func (x *tester) apply(writes ...readmodel.Write) {
	x.t.Helper()
	require.NoError(x.t, x.s.Apply(x.t.Context(), x.batch(writes...)))
	x.position++
}

func (x *tester) put(key string, n int64) readmodel.Write {
	x.t.Helper()
	row, err := x.c.Tables[0].Table.Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Value{Tag: abi.TagInt, I: n}}})
	require.NoError(x.t, err)
	return readmodel.Write{Key: readmodel.Key{Key: key}, Row: row, Position: x.position + 1, UpdatedUS: 1}
}

// rows reads the first table through a view: its keys and the column n.
func (x *tester) rows() map[string]int64 {
	x.t.Helper()
	v, err := x.s.View(x.t.Context(), x.c.ID)
	require.NoError(x.t, err)
	defer v.Close()
	list, _, err := v.Query(x.t.Context(), x.c.Tables[0].Table.Name, store.Query{Limit: 1000})
	require.NoError(x.t, err)
	rows := map[string]int64{}
	for _, row := range list {
		values, err := x.c.Tables[0].Table.Values(row.Row, nil)
		require.NoError(x.t, err)
		rows[row.Key.Key] = values[0].I
	}
	return rows
}

func TestSubscribeMakesTablesAndViews(t *testing.T) {
	s := openTest(t, Options{ReadModelPrefix: "rm_"})
	x := newTester(t, s, projection(t, "Accounts"))
	require.Equal(t, "rm_accounts__b1", x.c.Tables[0].Physical)
	x.apply(x.put("a", 7))
	require.Equal(t, []string{"a=7 at 1"}, s.texts(t, `SELECT key || '=' || n || ' at ' || ph_position FROM rm_accounts`))
	require.Equal(t, []string{"rm_accounts", "rm_accounts_lines"}, s.texts(t, `SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name`))
	require.Equal(t, []string{"rm_accounts projection/Accounts Accounts 1", "rm_accounts_lines projection/Accounts Accounts_lines 1"},
		s.texts(t, `SELECT name || ' ' || consumer_type || '/' || consumer_name || ' ' || declared || ' ' || build FROM ph_read_model_tables ORDER BY name`))
}

func TestSubscribeRepairsViews(t *testing.T) {
	s := openTest(t, Options{})
	d := projection(t, "accounts")
	x := newTester(t, s, d)
	x.apply(x.put("a", 7))
	before := s.texts(t, `SELECT sql FROM sqlite_schema WHERE type = 'view' ORDER BY name`)
	version := s.texts(t, `SELECT schema_version || '' FROM pragma_schema_version`)
	subscribe(t, s, d)
	require.Equal(t, version, s.texts(t, `SELECT schema_version || '' FROM pragma_schema_version`), "views that are right are left alone")
	for name, damage := range map[string][]string{
		"dropped":              {`DROP VIEW accounts`},
		"shows something else": {`DROP VIEW accounts`, `CREATE VIEW accounts AS SELECT 1 AS x`},
		"in another case":      {`DROP VIEW accounts`, `CREATE VIEW ACCOUNTS AS SELECT 1 AS x`},
		"both dropped":         {`DROP VIEW accounts`, `DROP VIEW accounts_lines`},
	} {
		s.sql(t, damage...)
		subscribe(t, s, d)
		require.Equal(t, before, s.texts(t, `SELECT sql FROM sqlite_schema WHERE type = 'view' ORDER BY name`), name)
		require.Equal(t, []string{"7"}, s.texts(t, `SELECT n || '' FROM accounts`), name)
	}
	s.sql(t, `DROP VIEW accounts`, `CREATE TABLE accounts (mine TEXT)`)
	_, err := s.Subscribe(t.Context(), d)
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, store.NameTakenError{Table: "accounts", Owner: "a table that projhost did not create"}, *taken)
}

func TestSubscribeChecksShapes(t *testing.T) {
	for name, c := range map[string]struct {
		damage []string
		column string
		tells  string
	}{
		"table dropped":       {[]string{`DROP TABLE accounts__b1`}, "", "restore it"},
		"column dropped":      {[]string{`ALTER TABLE accounts__b1 DROP COLUMN n`}, "n", "ADD"},
		"column renamed":      {[]string{`ALTER TABLE accounts__b1 RENAME COLUMN n TO m`}, "n", "ADD"},
		"system column lost":  {[]string{`ALTER TABLE accounts__b1 DROP COLUMN ph_epoch`}, "ph_epoch", "ADD"},
		"type changed":        {[]string{`ALTER TABLE accounts__b1 DROP COLUMN n`, `ALTER TABLE accounts__b1 ADD COLUMN n TEXT`}, "n", "INTEGER"},
		"unique index":        {[]string{`CREATE UNIQUE INDEX x ON accounts__b1 (owner)`}, "", "drop the index"},
		"required column":     {[]string{`ALTER TABLE accounts__b1 ADD COLUMN must TEXT NOT NULL DEFAULT 'x'`, remake("must TEXT NOT NULL")}, "must", "default"},
		"key without its key": {[]string{remakeWithoutKey}, "key", "primary key"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{})
			d := projection(t, "accounts")
			subscribe(t, s, d)
			// The view would keep SQLite from changing the table.
			s.sql(t, append([]string{`DROP VIEW accounts`}, c.damage...)...)
			schema := s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`)
			_, err := s.Subscribe(t.Context(), d)
			var shape *readmodel.ShapeError
			require.ErrorAs(t, err, &shape)
			require.EqualError(t, s.CheckTables(t.Context()), d.ID.String()+": "+shape.Error(), "who only looks is told the same")
			require.Equal(t, "accounts__b1", shape.Table)
			require.Equal(t, c.column, shape.Column)
			require.Contains(t, shape.Remedy, c.tells)
			require.Equal(t, schema, s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`), "a table is never altered")
		})
	}
}

// remake makes the table anew with a further column.
func remake(column string) string {
	return `DROP TABLE accounts__b1; CREATE TABLE accounts__b1 ("key" TEXT NOT NULL PRIMARY KEY, n INTEGER, owner TEXT, ` + column +
		`, ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER)`
}

const remakeWithoutKey = `DROP TABLE accounts__b1;
CREATE TABLE accounts__b1 ("key" TEXT NOT NULL, n INTEGER, owner TEXT, ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER)`

func TestSubscribeLeavesHarmlessChanges(t *testing.T) {
	s := openTest(t, Options{})
	d := projection(t, "accounts")
	x := newTester(t, s, d)
	s.sql(t, `ALTER TABLE accounts__b1 ADD COLUMN note TEXT`, `CREATE INDEX mine ON accounts__b1 (note)`)
	subscribe(t, s, d)
	x.apply(x.put("a", 7))
	s.sql(t, `UPDATE accounts__b1 SET note = 'mine'`)
	x.apply(x.put("a", 8))
	require.Equal(t, []string{"8 mine"}, s.texts(t, `SELECT n || ' ' || note FROM accounts__b1`))
}

func TestSubscribeRefusesForeignNames(t *testing.T) {
	for name, c := range map[string]struct{ there, table, owner string }{
		"table":          {`CREATE TABLE accounts (mine TEXT)`, "accounts", "a table that projhost did not create"},
		"view":           {`CREATE VIEW Accounts AS SELECT 1 AS x`, "accounts", "a view that projhost did not create"},
		"index":          {`CREATE TABLE t (x); CREATE INDEX accounts_lines ON t (x)`, "accounts_lines", "an index that projhost did not create"},
		"physical table": {`CREATE TABLE "ACCOUNTS__b1" (mine TEXT)`, "accounts__b1", "a table that projhost did not create"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{})
			s.sql(t, c.there)
			schema := s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`)
			_, err := s.Subscribe(t.Context(), projection(t, "accounts"))
			var taken *store.NameTakenError
			require.ErrorAs(t, err, &taken)
			require.Equal(t, store.NameTakenError{Table: c.table, Owner: c.owner}, *taken)
			require.Equal(t, schema, s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`))
			require.Empty(t, s.texts(t, `SELECT name FROM ph_consumers UNION ALL SELECT name FROM ph_read_model_tables`))
		})
	}
}

// An operator gives a consumer a table that was there before. Its rows stay,
// and so does whoever reads it by its name.
func TestSubscribeAdoptsTables(t *testing.T) {
	s := openTest(t, Options{})
	s.sql(t, `CREATE TABLE Accounts ("key" TEXT NOT NULL PRIMARY KEY, n INTEGER, owner TEXT, ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER, mine TEXT)`,
		`INSERT INTO accounts ("key", n, mine) VALUES ('old', 5, 'note'), ('older', 6, 'note')`,
		`CREATE VIEW users_own AS SELECT "key" FROM accounts`)
	d := projection(t, "accounts")
	_, err := s.Subscribe(t.Context(), d)
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	d.Adopt = []string{"ACCOUNTS"}
	x := newTester(t, s, d)
	require.Equal(t, map[string]int64{"old": 5, "older": 6}, x.rows(), "rows that the host did not write are there as they are")
	x.apply(x.put("old", 50), x.put("new", 7))
	require.Equal(t, map[string]int64{"old": 50, "older": 6, "new": 7}, x.rows())
	require.Equal(t, []string{"new", "old", "older"}, s.texts(t, `SELECT "key" FROM users_own ORDER BY 1`))
	require.Equal(t, []string{`CREATE VIEW users_own AS SELECT "key" FROM accounts`}, s.texts(t, `SELECT sql FROM sqlite_schema WHERE name = 'users_own'`),
		"a user's view reads the public name, not one build's table")
	require.Equal(t, []string{"note"}, s.texts(t, `SELECT mine FROM accounts__b1 WHERE "key" = 'old'`))
	subscribe(t, s, d)
}

func TestSubscribeAdoptsOnlyWhatFits(t *testing.T) {
	s := openTest(t, Options{})
	s.sql(t, `CREATE TABLE accounts ("key" TEXT NOT NULL PRIMARY KEY, n INTEGER)`)
	schema := s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`)
	d := projection(t, "accounts")
	d.Adopt = []string{"accounts"}
	_, err := s.Subscribe(t.Context(), d)
	var shape *readmodel.ShapeError
	require.ErrorAs(t, err, &shape)
	require.Equal(t, "accounts", shape.Table)
	require.Equal(t, schema, s.texts(t, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name`))
}

func TestSubscribeTellsLostBookkeeping(t *testing.T) {
	for table, tells := range map[string]string{"ph_checkpoints": "255 checkpoint rows where 256", "ph_ownership": "255 ownership rows where 256"} {
		s := openTest(t, Options{})
		d := projection(t, "accounts")
		subscribe(t, s, d)
		s.sql(t, fmt.Sprintf(`DELETE FROM %s WHERE partition = 7`, table))
		_, err := s.Subscribe(t.Context(), d)
		require.ErrorContains(t, err, tells)
	}
}

// Rows of an earlier epoch are absent to lanes until they are written, and then whole.
func TestEpochsOfRows(t *testing.T) {
	s := openTest(t, Options{})
	d := projection(t, "accounts")
	x := newTester(t, s, d)
	x.apply(x.put("a", 1), x.put("b", 2), x.put("c", 3))
	s.sql(t, `UPDATE accounts__b1 SET owner = 'old'`, `UPDATE accounts__b1 SET ph_epoch = NULL WHERE "key" = 'c'`,
		`UPDATE ph_consumers SET epoch = 4`, `UPDATE ph_checkpoints SET epoch = 4`)
	stale := x.batch(x.put("a", 99))
	require.ErrorIs(t, s.Apply(t.Context(), stale), store.ErrCheckpointMoved)

	x.c = subscribe(t, s, d)
	require.EqualValues(t, 4, x.c.Epoch)
	require.Equal(t, map[string]int64{"a": 1, "b": 2, "c": 3}, x.rows(), "readers see them")
	keys := []store.RowKey{{Key: "a"}, {Key: "b"}, {Key: "c"}}
	rows, err := s.LoadRows(t.Context(), x.c.Tables[0], keys)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, "c", rows[0].Key.Key)
	x.apply(x.put("a", 10))
	require.Equal(t, map[string]int64{"a": 10, "b": 2, "c": 3}, x.rows())
	require.Equal(t, []string{"a 4 -", "b 0 old", "c - old"},
		s.texts(t, `SELECT "key" || ' ' || coalesce(ph_epoch, '-') || ' ' || coalesce(owner, '-') FROM accounts__b1 ORDER BY 1`))
}

// The clock is set back: a heartbeat from before that proves nothing until it
// is there again (H36).
func TestHeartbeatOfTheFutureProvesNothing(t *testing.T) {
	t.Parallel()
	s := openTest(t, Options{})
	c := subscribe(t, s, projection(t, "a"))
	for i, id := range []string{"dead", "next"} {
		require.NoError(t, s.Join(t.Context(), store.Instance{ID: id, TTL: time.Minute}))
		require.NoError(t, s.Enlist(t.Context(), id, []store.Enlistment{{Build: c.Build}}))
		_, _, err := s.Claim(t.Context(), id, c.Build, []int{i})
		require.NoError(t, err)
	}
	taken := func(ahead time.Duration) []store.Lease {
		s.sql(t, fmt.Sprintf(`UPDATE ph_instances SET last_heartbeat_us = %d WHERE id = 'dead'`, s.nowUS()+ahead.Microseconds()))
		leases, _, err := s.Claim(t.Context(), "next", c.Build, []int{0})
		require.NoError(t, err)
		return leases
	}
	require.Empty(t, taken(30*time.Second), "a small step is no reason")
	require.Len(t, taken(time.Hour), 1)
	list, err := s.ListInstances(t.Context())
	require.NoError(t, err)
	for _, i := range list {
		require.Equal(t, i.ID == "next", i.Live, i.ID)
	}
	_, _, err = s.Claim(t.Context(), "dead", c.Build, []int{2})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: "another"}))
	require.ErrorIs(t, s.Heartbeat(t.Context(), "dead"), store.ErrNotFound)
}
