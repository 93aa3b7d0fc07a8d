package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// someTables has a column of each kind, unique columns, and children.
func someTables(t testing.TB) []*readmodel.Table {
	t.Helper()
	no := false
	tables, err := readmodel.NewTables([]abi.Table{
		{Name: "every", Columns: []abi.Column{
			{Name: "t", Kind: "text"},
			{Name: "short", Kind: "text", Max: 10, Index: true},
			{Name: "i", Kind: "int", Index: true},
			{Name: "d", Kind: "decimal", Precision: 19, Scale: 2, Index: true},
			{Name: "f", Kind: "float", Index: true},
			{Name: "b", Kind: "bool"},
			{Name: "day", Kind: "date"},
			{Name: "clock", Kind: "time"},
			{Name: "at", Kind: "timestamp", Index: true},
			{Name: "id", Kind: "uuid"},
			{Name: "raw", Kind: "bytes"},
			{Name: "doc", Kind: "json"},
		}},
		{Name: "lines", Parent: "every", Columns: []abi.Column{{Name: "n", Kind: "int", Index: true}}},
		{Name: "users", Columns: []abi.Column{
			{Name: "email", Kind: "text", Max: 100, Unique: true, Null: &no},
			{Name: "bio", Kind: "text", Max: 5000},
		}},
		{Name: "notes", Parent: "users", Columns: []abi.Column{{Name: "doc", Kind: "json", Null: &no}}},
	})
	require.NoError(t, err)
	return tables
}

func row(t testing.TB, table *readmodel.Table, values ...any) readmodel.Row {
	t.Helper()
	var list []abi.ColumnValue
	for i := 0; i < len(values); i += 2 {
		n, ok := table.ColumnByName(values[i].(string))
		require.True(t, ok, values[i])
		list = append(list, abi.ColumnValue{Column: uint16(n), Value: values[i+1].(abi.Value)})
	}
	r, err := table.Upsert(list)
	require.NoError(t, err)
	return r
}

// someBatch writes, updates and deletes rows of all tables.
func someBatch(t testing.TB, s *Store) *store.Batch {
	tables := someTables(t)
	b := &store.Batch{Consumer: store.ConsumerID{Type: "projection", Name: "x"}, Build: 7, Epoch: 2, InstanceID: "i-1", Incarnation: s.Incarnation(),
		Leases:      []store.Lease{{Build: 7, Partition: 3, Generation: 5}, {Build: 7, Partition: 9, Generation: 1}},
		Checkpoints: []store.CheckpointMove{{Topic: "events", Partition: 3, From: 100, To: 150}, {Topic: "events", Partition: 9, From: 0, To: 150}}}
	ref := func(i int) store.TableRef {
		return store.TableRef{Table: tables[i], Physical: readmodel.PhysicalName("", tables[i].Name, 7), Build: 7, Epoch: 2}
	}
	key := func(key, child string) readmodel.Key { return readmodel.Key{Key: key, Child: child} }
	every := row(t, tables[0], "t", abi.Text("a \"quoted\" line\n\\ \u2028 😀"), "short", abi.Text("ä "), "i", abi.Int(-1<<63), "d", abi.Decimal("-12.5"),
		"f", abi.Float(0.1), "b", abi.Bool(true), "raw", abi.Bytes([]byte{0, 255}), "doc", abi.JSON([]byte(`{"a": 1e2}`)))
	before := row(t, tables[2], "email", abi.Text("a@b"), "bio", abi.Text("old"))
	after := row(t, tables[2], "email", abi.Text("a@b"), "bio", abi.Text("new"))
	b.Tables = []store.TableWrites{
		{Table: ref(0), Writes: []readmodel.Write{
			{Key: key("gone", "")},
			{Key: key("k", ""), Row: every, Position: 149, UpdatedUS: 1_700_000_000_000_000, Exists: readmodel.Present},
			{Key: key("nulls", ""), Row: row(t, tables[0]), Position: 150, UpdatedUS: 5},
		}},
		{Table: ref(1), PruneKeys: []string{"a", "b"}, DeleteChildrenOf: []string{"k"}, Writes: []readmodel.Write{
			{Key: key("k", "1"), Row: row(t, tables[1], "n", abi.Int(4)), Position: 150, UpdatedUS: 5},
			{Key: key("k", "2")},
		}},
		{Table: ref(2), Writes: []readmodel.Write{
			{Key: key("changed", ""), Row: row(t, tables[2], "email", abi.Text("c@d")), Position: 150, UpdatedUS: 5},
			{Key: key("same", ""), Row: after, Before: before, Exists: readmodel.Present, Position: 150, UpdatedUS: 5},
		}},
		{Table: ref(3), PruneKeys: []string{"a", "b"}, DeleteChildrenOf: []string{"gone"}},
	}
	return b
}

// isStanding tells the batch that asks how an apply stands.
func isStanding(s sent) bool { return strings.Contains(s.text, "@at_from") }

func standingRow(held, from, to int64) *reply { return rows([]driver.Value{held, from, to}) }

func TestApplyIsOneBatch(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	b := someBatch(t, s)
	require.NoError(t, s.Apply(t.Context(), b))
	require.Len(t, srv.log, 1, "nothing is left to the client between BEGIN and COMMIT")
	e := srv.log[0]
	golden(t, "apply.sql", e.text)
	var args strings.Builder
	for _, name := range []string{"build", "epoch", "instance", "held", "checkpoints", "rows0", "rows1", "gone1", "rows2", "gone3"} {
		require.Contains(t, e.args, name)
		fmt.Fprintf(&args, "@%s %T\n%v\n\n", name, e.args[name], e.args[name])
	}
	require.Len(t, e.args, 12)
	golden(t, "apply_args.txt", args.String())
}

// What a batch's text depends on is the tables alone, so that its plan is kept.
func TestTextOfABatchDoesNotDependOnItsRows(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	b := someBatch(t, s)
	require.NoError(t, s.Apply(t.Context(), b))
	w := b.Tables[0].Writes[1]
	b.Tables[0].Writes = nil
	for i := range 3000 {
		w.Key.Key = fmt.Sprintf("k%04d", i)
		b.Tables[0].Writes = append(b.Tables[0].Writes, w)
	}
	require.NoError(t, s.Apply(t.Context(), b))
	require.Equal(t, srv.log[0].text, srv.log[1].text)
}

// keptBatch is someBatch with messages that were not applied, and a halt.
func keptBatch(t testing.TB, s *Store) *store.Batch {
	b := someBatch(t, s)
	e := &store.Event{Position: 149, ID: store.ID{1}, AggregateType: "a", AggregateID: "ä", Sequence: 2, Type: "E", Codec: "json", CodecVersion: 1,
		Data: []byte(`{"a": "\u2028"}`), OccurredUS: 5}
	raw := *e
	raw.Codec, raw.Data, raw.Metadata = "raw", []byte{0, 255}, []byte(`{}`)
	then := store.Record{Status: store.StatusDeadLetterKey, Code: 102, Reason: "why", Attempts: 6, Passing: 1, Digest: "sha256:0"}
	b.Retries = []store.Retry{{ID: 4, Partition: 3, Status: store.StatusFailed, Attempts: 5, Then: &then, Line: store.StatusDeadLetterKey},
		{ID: 9, Partition: 9, Status: store.StatusWaiting}}
	b.Records = []store.Record{
		{Topic: "events", Partition: 3, Key: "k", Status: store.StatusFailed, Code: 102, Reason: "why\x00", Attempts: 1, RetryIn: time.Second, Digest: "sha256:0", Event: e},
		{Topic: "events", Partition: 9, Key: "k", Status: store.StatusWaiting, Event: &raw},
		{Topic: "events", Partition: 9, Unresolved: true, Status: store.StatusHalted, Event: e},
	}
	b.Skips = []store.Skip{{Topic: "events", Partition: 3, Position: 7, Key: "k"}, {Topic: "events", Partition: 3, Position: 7, Key: "k"},
		{Topic: "events", Partition: 9, Position: 8, EveryKey: true}}
	b.Halt = &store.Halt{Reason: store.HaltApplyError, Topic: "events", Position: 149, Partition: 9}
	return b
}

func TestApplyKeepsInTheSameBatch(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	require.NoError(t, s.Apply(t.Context(), keptBatch(t, s)))
	require.Len(t, srv.log, 1, "nothing is left to the client between BEGIN and COMMIT")
	e := srv.log[0]
	golden(t, "apply_kept.sql", e.text)
	var args strings.Builder
	for _, name := range []string{"retried", "recorded", "skipping", "type", "name", "halt", "halt_topic", "halt_partition", "halt_position", "halt_key"} {
		require.Contains(t, e.args, name)
		fmt.Fprintf(&args, "@%s %T\n%v\n\n", name, e.args[name], e.args[name])
	}
	golden(t, "apply_kept_args.txt", args.String())
	last := -1
	for _, step := range []string{
		"OPENJSON(@retried)", "OPENJSON(@recorded)", "OPENJSON(@skipping)", "BEGIN TRANSACTION;", "THROW 51304", "INSERT INTO [users__b7]",
		"UPDATE u SET u.status = r.line", "DELETE u FROM @retries", "UPDATE u SET u.status = r.becomes", "THROW 51307", "INSERT INTO [ph_undelivered]",
		"INSERT INTO [ph_skipped]", "UPDATE c SET c.position", "THROW 51305", "UPDATE [ph_consumers]", "COMMIT TRANSACTION;",
	} {
		i := strings.Index(e.text, step)
		require.Greater(t, i, last, step)
		last = i
	}
	require.NotRegexp(t, regexp.MustCompile(`(?m)^(UPDATE|DELETE)[^;]* (INNER|LEFT) JOIN `), e.text, "a join without an order scans, and locks what it scans")
}

func TestApplyTellsWhatTheServerRefusedToKeep(t *testing.T) {
	t.Parallel()
	retriedRow := func(asRead int64) *reply { return rows([]driver.Value{int64(2), int64(0), int64(2), asRead}) }
	for name, c := range map[string]struct {
		number int32
		asRead int64
		want   func(t *testing.T, err error)
	}{
		"moved":       {errRetry, 2, is(store.ErrRetryMoved)},
		"twice":       {2627, 2, isTransient(false)},
		"too long":    {2628, 2, isTransient(false)},
		"moved twice": {2627, 1, is(store.ErrRetryMoved)},
	} {
		s, srv := openFake(t, nil)
		b := keptBatch(t, s)
		w, err := s.writes(b)
		require.NoError(t, err)
		line := 1 + strings.Count(w.text()[:strings.Index(w.text(), "INSERT INTO [ph_undelivered]")], "\n")
		srv.answer = func(e sent) (*reply, error) {
			switch {
			case isStanding(e):
				return standingRow(2, 2, 0), nil
			case e.text == s.q.retried:
				return retriedRow(c.asRead), nil
			}
			failed := failure(c.number).(mssql.Error)
			failed.LineNo = int32(line)
			failed.All[0].LineNo = int32(line)
			return nil, failed
		}
		err = s.Apply(t.Context(), b)
		c.want(t, err)
		var data *store.DataError
		require.False(t, errors.As(err, &data), "%s: no message is to blame", name)
	}
}

func TestSettleOfRetries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		held, done, same int64
		want             store.Outcome
	}{
		"done":       {2, 2, 0, store.OutcomeCommitted},
		"not done":   {2, 0, 2, store.OutcomeNotCommitted},
		"half":       {2, 1, 1, store.OutcomeLost},
		"lease gone": {1, 2, 0, store.OutcomeLost},
	} {
		s, srv := openFake(t, func(sent) (*reply, error) { return rows([]driver.Value{c.held, c.done, c.same, c.same}), nil })
		b := keptBatch(t, s)
		b.Checkpoints = nil
		got, err := s.Settle(t.Context(), b)
		require.NoError(t, err)
		require.Equal(t, c.want, got, name)
		require.Len(t, srv.log, 1)
		golden(t, "retried.sql", srv.log[0].text)
	}
}

// Every guard of a transaction of steps is an error in it (H1).
func TestStepsThrow(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	broken := errors.New("broken")
	steps := []sqlstore.Step{{Text: "UPDATE a SET b = @p1", Args: []any{int64(1)}, Broken: errors.New("another"), Rows: 1}, {Text: "SELECT 1"},
		{Text: "DELETE FROM a WHERE c = @p1", Args: []any{"x"}, Broken: broken, Rows: 7}}
	srv.answer = func(e sent) (*reply, error) {
		require.Contains(t, e.text, "IF @@ROWCOUNT <> 7\nBEGIN\n  THROW 51402")
		return nil, failure(errStep + 2)
	}
	require.ErrorIs(t, s.engine.WriteAll(t.Context(), "steps", steps), broken)
	require.Len(t, srv.log, 1)
}

// H1, H39: guards throw, and locks are taken in the one order: ownership, rows,
// checkpoints, the transaction beginning behind all staging.
func TestApplyTakesLocksInOrder(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	require.NoError(t, s.Apply(t.Context(), someBatch(t, s)))
	text := srv.log[0].text
	last := -1
	for _, step := range []string{
		"SET XACT_ABORT ON;", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;", "OPENJSON(@gone3)", "BEGIN TRANSACTION;",
		"UPDATE o SET o.generation", "THROW 51304", "DELETE t FROM @w0", "DELETE t FROM @g3", "UPDATE t SET", "INSERT INTO [every__b7]",
		"INSERT INTO [users__b7]", "UPDATE c SET c.position", "THROW 51305", "COMMIT TRANSACTION;",
	} {
		i := strings.Index(text, step)
		require.Greater(t, i, last, step)
		last = i
	}
	require.Equal(t, 1, strings.Count(text, "BEGIN TRANSACTION"))
	require.NotContains(t, text, "MERGE")
	require.NotContains(t, text, "VALUES", "rows are never a list of values")
	require.NotRegexp(t, regexp.MustCompile(`(?m)^(UPDATE|DELETE)[^;]* (INNER|LEFT) JOIN `), text, "a join without an order scans, and locks what it scans")
}

func TestApplyTellsWhatTheServerRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		number int32
		stands *reply
		want   func(t *testing.T, err error)
	}{
		"lease":       {errFenced, nil, is(store.ErrFenced)},
		"checkpoint":  {errCheckpoint, nil, is(store.ErrCheckpointMoved)},
		"too long":    {2628, standingRow(2, 2, 0), isData("users")},
		"unique":      {2601, standingRow(2, 2, 0), isData("users")},
		"stale lease": {2628, standingRow(1, 2, 0), is(store.ErrFenced)},
		"stale from":  {8114, standingRow(2, 1, 0), is(store.ErrCheckpointMoved)},
		"disk full":   {1105, nil, isTransient(false)},
		"permission":  {229, nil, isTransient(false)},
		"unheard of": {31999, nil, func(t *testing.T, err error) {
			var transient *store.TransientError
			require.False(t, errors.As(err, &transient), "it is not tried for ever (H33)")
			require.ErrorContains(t, err, "apply: ")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, srv := openFake(t, nil)
			b := someBatch(t, s)
			// The server names the line of the statement.
			w, err := s.writes(b)
			require.NoError(t, err)
			line := 1 + strings.Count(w.text()[:strings.Index(w.text(), "INSERT INTO [users__b7]")], "\n")
			srv.answer = func(e sent) (*reply, error) {
				if isStanding(e) {
					return c.stands, nil
				}
				failed := failure(c.number).(mssql.Error)
				failed.LineNo = int32(line)
				failed.All[0].LineNo = int32(line)
				return nil, failed
			}
			c.want(t, s.Apply(t.Context(), b))
			if c.stands != nil {
				require.Len(t, srv.log, 2)
				require.True(t, isStanding(srv.log[1]))
			} else {
				require.Len(t, srv.log, 1)
			}
		})
	}
}

func is(want error) func(*testing.T, error) {
	return func(t *testing.T, err error) { require.ErrorIs(t, err, want) }
}

func isData(table string) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var data *store.DataError
		require.ErrorAs(t, err, &data)
		require.Equal(t, table, data.Table)
		require.NotContains(t, err.Error(), "scripted", "the server's text quotes values")
	}
}

func isTransient(unknown bool) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var transient *store.TransientError
		require.ErrorAs(t, err, &transient)
		require.Equal(t, unknown, transient.OutcomeUnknown)
	}
}

// Every line of a table's statements is known to be that table's.
func TestEveryLineHasItsTable(t *testing.T) {
	t.Parallel()
	s, _ := openFake(t, nil)
	w, err := s.writes(someBatch(t, s))
	require.NoError(t, err)
	for i, line := range strings.Split(w.text(), "\n") {
		for _, table := range []string{"every", "lines", "users", "notes"} {
			if strings.HasPrefix(line, "INSERT INTO ["+table+"__b7]") {
				require.Equal(t, table, w.tableAt(i+1), line)
			}
		}
		if strings.HasPrefix(line, "DECLARE @w2 ") || strings.HasPrefix(line, "UPDATE t SET t.[bio]") {
			require.Equal(t, "users", w.tableAt(i+1), line)
		}
	}
}

// What the server gave up is sent again; a lost connection is not, and leaves
// open what became of it.
func TestDeadlocksAreRepeatedAndLossesAreNot(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	left := 3
	srv.answer = func(sent) (*reply, error) {
		if left--; left > 0 {
			return nil, failure([]int32{1205, 1222}[left%2])
		}
		return nil, nil
	}
	require.NoError(t, s.Apply(t.Context(), someBatch(t, s)))
	require.Len(t, srv.log, 3)

	for name, lost := range map[string]error{"eof": io.EOF, "bad": driver.ErrBadConn, "stream": mssql.StreamError{InnerError: io.ErrUnexpectedEOF},
		"killed": failure(596)} {
		s, srv := openFake(t, nil)
		b := someBatch(t, s)
		srv.answer = func(sent) (*reply, error) { return nil, lost }
		err := s.Apply(t.Context(), b)
		isTransient(true)(t, err)
		require.Len(t, srv.log, 1, name)
		require.NotEqual(t, b.Incarnation, s.Incarnation(), "%s: what was read may no longer be true", name)
		require.ErrorIs(t, s.Apply(t.Context(), b), store.ErrIncarnation)
		require.Len(t, srv.log, 1, name)
	}
}

func TestApplyIsNotBegunWhenItIsTooLate(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Apply(ctx, someBatch(t, s)), context.Canceled)
	require.Empty(t, srv.texts())
}

func TestSettle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stands *reply
		want   store.Outcome
	}{
		"moved":      {standingRow(2, 0, 2), store.OutcomeCommitted},
		"not moved":  {standingRow(2, 2, 0), store.OutcomeNotCommitted},
		"half":       {standingRow(2, 1, 1), store.OutcomeLost},
		"elsewhere":  {standingRow(2, 0, 0), store.OutcomeLost},
		"lease gone": {standingRow(1, 0, 2), store.OutcomeLost},
	} {
		s, srv := openFake(t, func(sent) (*reply, error) { return c.stands, nil })
		b := someBatch(t, s)
		b.Incarnation = 0 // is not looked at
		got, err := s.Settle(t.Context(), b)
		require.NoError(t, err)
		require.Equal(t, c.want, got, name)
		require.Len(t, srv.log, 1)
		golden(t, "standing.sql", srv.log[0].text)
		lock, read := strings.Index(srv.log[0].text, "UPDATE o SET o.generation"), strings.Index(srv.log[0].text, "SELECT @at_from")
		require.Greater(t, read, lock, "the lock comes first (H2)")
	}
	s, srv := openFake(t, func(sent) (*reply, error) { return nil, io.EOF })
	_, err := s.Settle(t.Context(), someBatch(t, s))
	isTransient(false)(t, err)
	require.Len(t, srv.log, 1)
}
