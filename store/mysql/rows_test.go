package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

func users(t testing.TB) []*readmodel.Table {
	return tables(t, abi.Table{Name: "users", Columns: []abi.Column{{Name: "mail", Kind: abi.ColumnText, Max: 50, Unique: true}}})
}

func user(t testing.TB, made *readmodel.Table, key, mail string) readmodel.Write {
	row, err := made.Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Value{Tag: abi.TagText, B: []byte(mail)}}})
	require.NoError(t, err)
	return readmodel.Write{Key: readmodel.Key{Key: key}, Row: row, Position: 1}
}

// The upsert that everybody writes takes any unique index for the key: it changes
// another row and loses the new one, without an error (H18).
func TestUniqueValueOfAnotherRowIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	made := users(t)
	l := newLane(t, s, "i", made, 3)
	b := l.batch("i", 1)
	b.Tables = []store.TableWrites{{Table: l.c.Tables[0], Writes: []readmodel.Write{user(t, made[0], "A", "x")}}}
	require.NoError(t, s.Apply(t.Context(), b))
	l.moved(b)

	c := conns(t, s, 1)[0]
	exec(t, c, "START TRANSACTION")
	exec(t, c, fmt.Sprintf("INSERT INTO `%s` (`key`, mail, ph_position) VALUES ('B', 'x', 2) ON DUPLICATE KEY UPDATE mail = VALUES(mail), ph_position = VALUES(ph_position)", l.c.Tables[0].Physical))
	var key string
	var position int64
	require.NoError(t, c.QueryRowContext(t.Context(), fmt.Sprintf("SELECT `key`, ph_position FROM `%s`", l.c.Tables[0].Physical)).Scan(&key, &position))
	require.Equal(t, "A", key, "B is lost")
	require.EqualValues(t, 2, position, "and A was changed")
	exec(t, c, "ROLLBACK")

	b = l.batch("i", 2)
	b.Tables = []store.TableWrites{{Table: l.c.Tables[0], Writes: []readmodel.Write{user(t, made[0], "B", "x")}}}
	var data *store.DataError
	require.ErrorAs(t, s.Apply(t.Context(), b), &data)
	require.Equal(t, "users", data.Table)
	rows, err := s.LoadRows(t.Context(), l.c.Tables[0], []store.RowKey{{Key: "A"}, {Key: "B"}})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.EqualValues(t, 1, rows[0].Position)
}

// At REPEATABLE READ two transactions that delete absent neighbours and then
// insert them wait for each other (H39); as the driver's sessions are set they do
// not.
func TestAbsentNeighboursDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := conns(t, s, 2)
	patient(t, s, c...)
	exec(t, c[0], "CREATE TABLE things (id int PRIMARY KEY) ENGINE=InnoDB")
	exec(t, c[0], "INSERT INTO things VALUES (10), (100)")
	meet := func(level string) error {
		for i := range c {
			if level != "" {
				exec(t, c[i], "SET TRANSACTION ISOLATION LEVEL "+level)
			}
			exec(t, c[i], "START TRANSACTION")
			exec(t, c[i], "DELETE FROM things WHERE id = ?", 40+i)
		}
		errs := make([]error, len(c))
		var wg sync.WaitGroup
		for i := range c {
			wg.Go(func() { _, errs[i] = c[i].ExecContext(context.Background(), "INSERT INTO things VALUES (?)", 40+i) })
		}
		wg.Wait()
		for i := range c {
			exec(t, c[i], "ROLLBACK")
		}
		return errors.Join(errs...)
	}
	requireClass(t, sqlstore.Retry, []uint16{1213}, meet("REPEATABLE READ"))
	require.NoError(t, meet(""))
}

// The library counts changed rows unless it is told otherwise: a fence that
// changes nothing would find no lease at all (H39).
func TestFenceCountsRowsThatMatch(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	s := open(t, Options{DSN: dsn})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	l := newLane(t, s, "i", users(t), 3, 5)
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	cfg.ClientFoundRows = false
	naive, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	defer naive.Close()
	fence := "UPDATE ph_ownership SET generation = generation WHERE build = ? AND instance_id = ?"
	r, err := naive.ExecContext(t.Context(), fence, l.c.Build, "i")
	require.NoError(t, err)
	n, err := r.RowsAffected()
	require.NoError(t, err)
	require.Zero(t, n)
	r, err = conns(t, s, 1)[0].ExecContext(t.Context(), fence, l.c.Build, "i")
	require.NoError(t, err)
	n, err = r.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	require.NoError(t, s.Apply(t.Context(), l.batch("i", 1)))
}

// Lanes that hold other partitions are not waited for, however many rows the
// server would rather look through.
func TestLanesOfOtherPartitionsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t), Timeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	made := tables(t, abi.Table{Name: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
		abi.Table{Name: "entries", Parent: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}})
	var even, odd []int
	for p := range s.Partitions() {
		if p%2 == 0 {
			even = append(even, p)
		} else {
			odd = append(odd, p)
		}
	}
	l := newLane(t, s, "i", made, even...)
	leases, _, err := s.Claim(t.Context(), "i", l.c.Build, odd)
	require.NoError(t, err)
	other := &lane{s: s, c: l.c, leases: leases, positions: map[int]int64{}}
	writes := func(prefix string) (parents, children []readmodel.Write) {
		row, err := made[0].Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Value{Tag: abi.TagInt, I: 1}}})
		require.NoError(t, err)
		for i := range 20 {
			w := readmodel.Write{Key: readmodel.Key{Key: fmt.Sprintf("%02d%s", i, prefix)}, Position: 1}
			if i%2 == 0 {
				w.Row = row
			}
			parents = append(parents, w)
			w.Key.Child = "c"
			children = append(children, w)
		}
		return parents, children
	}
	fill := func(l *lane, prefix string, to int64) *store.Batch {
		b := l.batch("i", to)
		parents, children := writes(prefix)
		b.Tables = []store.TableWrites{{Table: l.c.Tables[0], Writes: parents},
			{Table: l.c.Tables[1], DeleteChildrenOf: []string{"00" + prefix, "01" + prefix}, Writes: children}}
		return b
	}
	for _, pair := range []struct {
		l      *lane
		prefix string
	}{{l, "even"}, {other, "odd"}} {
		b := fill(pair.l, pair.prefix, 1)
		require.NoError(t, s.Apply(t.Context(), b))
		pair.l.moved(b)
	}

	// One lane stands still in the middle of its transaction, all locks held.
	held, goOn := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	go func() {
		b := fill(l, "even", 2)
		ended <- s.engine.write(context.Background(), "apply", func(se *session) error {
			if err := errors.Join(s.holdLeases(context.Background(), se, b), s.writeRows(context.Background(), se, b.Tables), s.moveCheckpoints(context.Background(), se, b)); err != nil {
				return err
			}
			close(held)
			<-goOn
			return nil
		})
	}()
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than a wait for a lock
	defer cancel()
	require.NoError(t, s.Apply(ctx, fill(other, "odd", 2)), "an apply waited for another partition's")
	close(goOn)
	require.NoError(t, <-ended)
}

// Equality of keys is that of their bytes.
func TestKeysAreComparedExactly(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	made := tables(t, abi.Table{Name: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}})
	l := newLane(t, s, "i", made, 3)
	c := conns(t, s, 1)[0]
	keys := []string{"a", "A", "a ", " a", "å", "a\u030a", "ａ", "😀", "😁", "ß", "ss", "a\u200b", "ǆ"}
	for _, key := range keys {
		exec(t, c, fmt.Sprintf("INSERT INTO `%s` (`key`, n) VALUES (?, 1)", l.c.Tables[0].Physical), key)
		_, err := c.ExecContext(t.Context(), "INSERT INTO ph_topics (name, kind) VALUES (?, 'x')", key)
		require.NoError(t, err)
	}
	for _, key := range keys {
		for _, text := range []string{"SELECT count(*) FROM `" + l.c.Tables[0].Physical + "` WHERE `key` = ?", "SELECT count(*) FROM ph_topics WHERE name = ?"} {
			var n int
			require.NoError(t, c.QueryRowContext(t.Context(), text, key).Scan(&n))
			require.Equal(t, 1, n, "%q", key)
		}
	}
	long := string([]rune("😀ä")[0])
	for range 254 {
		long += "😀"
	}
	exec(t, c, fmt.Sprintf("INSERT INTO `%s` (`key`, n) VALUES (?, 1)", l.c.Tables[0].Physical), long)
	_, err := s.Commit(t.Context(), store.Commit{Streams: []store.StreamAppend{{AggregateType: long, AggregateID: long, ExpectedVersion: 0, Events: []store.NewEvent{event("1")}}}})
	require.NoError(t, err)
	version, err := s.StreamVersion(t.Context(), long, long)
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
}

// However many rows a batch has and whatever is in them, they arrive as they are:
// statements end before the server's limit, and no text ends its literal.
func TestRowsArriveInStatementsOfAnySize(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	made := tables(t, abi.Table{Name: "notes", Columns: []abi.Column{{Name: "text", Kind: abi.ColumnText}, {Name: "raw", Kind: abi.ColumnBytes}}})
	l := newLane(t, s, "i", made, 3)
	at := int64(0)
	for _, room := range []int{1, 300, 1000, statementMax} {
		s.server.packetMax = packetSpare/2 + room
		var writes []readmodel.Write
		var keys []store.RowKey
		for i := range 60 {
			text := "'\"\\\x1a\r\n`;-- ?%_ 😀'" + string(rune('a'+i)) + `\'`
			row, err := made[0].Upsert([]abi.ColumnValue{
				{Column: 0, Value: abi.Value{Tag: abi.TagText, B: []byte(text)}},
				{Column: 1, Value: abi.Value{Tag: abi.TagBytes, B: []byte("\x00\xff'\\" + text)}},
			})
			require.NoError(t, err)
			k := readmodel.Key{Key: fmt.Sprintf(`k'%02d\`, i)}
			writes, keys = append(writes, readmodel.Write{Key: k, Row: row, Position: at + 1}), append(keys, k)
		}
		b := l.batch("i", at+1)
		b.Tables = []store.TableWrites{{Table: l.c.Tables[0], Writes: writes}}
		require.NoError(t, s.Apply(t.Context(), b), "room %d", room)
		l.moved(b)
		at++
		rows, err := s.LoadRows(t.Context(), l.c.Tables[0], keys)
		require.NoError(t, err)
		require.Len(t, rows, len(writes))
		for i := range rows {
			w := writes[slices.IndexFunc(writes, func(w readmodel.Write) bool { return w.Key == rows[i].Key })]
			require.Equal(t, w.Row, rows[i].Row)
			require.Equal(t, at, rows[i].Position, "room %d", room)
		}
	}
}
