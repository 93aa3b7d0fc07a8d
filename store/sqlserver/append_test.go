package sqlserver

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

func id(n byte) store.ID { return store.ID{6: 0x40, 8: 0x80, 15: n} }

func newEvent(n byte) store.NewEvent {
	return store.NewEvent{ID: id(n), HasID: true, Type: "Opened", Data: []byte(fmt.Sprintf(`{"n": %d}`, n))}
}

func appendTo(stream string, expected int64, events ...store.NewEvent) store.Commit {
	return store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: stream, ExpectedVersion: expected, Events: events}}}
}

func isAppend(s sent) bool { return strings.Contains(s.text, "@snapshots") }

// members are the rows that a batch was sent.
func members(t testing.TB, s sent, name string) (list []map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(s.args[name].(mssql.NVarCharMax)), &list))
	return list
}

// eventRow gives an event as the database returns it.
func storedRow(e store.NewEvent, stream string, position, sequence int64) []driver.Value {
	return []driver.Value{position, sequence, int64(17), e.ID[:], int64(e.Revision), int64(1), "account", stream, e.Type, "json", string(e.Data), nil, nil}
}

func TestAppendIsOneBatch(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, func(sent) (*reply, error) {
		return rows([]driver.Value{int64(41), int64(3)}, []driver.Value{int64(43), int64(8)}), nil
	})
	c := appendTo("A-1", 2, newEvent(1), store.NewEvent{Type: "Bytes", Codec: "avro", CodecVersion: 3, Data: []byte{0, 1}, Metadata: []byte(`{"u": 1}`),
		HasRevision: true, Revision: 4, HasOccurred: true, OccurredUS: -5})
	c.Streams = append(c.Streams, store.StreamAppend{AggregateType: "account", AggregateID: "A-2", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{newEvent(3)}})
	c.Snapshots = []store.Snapshot{{AggregateType: "account", AggregateID: "A-1", Sequence: 4, Data: []byte(`{}`)},
		{AggregateType: "account", AggregateID: "A-1", Sequence: 3, Data: []byte(`{"older": 1}`)}}
	wake := s.Wake(store.EventsTopic)
	res, err := s.Commit(t.Context(), c)
	require.NoError(t, err)
	<-wake
	require.Len(t, srv.log, 1)
	golden(t, "append.sql", srv.log[0].text)

	require.EqualValues(t, 4, res.Streams[0].Version)
	require.EqualValues(t, 41, res.Streams[0].FirstPosition)
	require.EqualValues(t, 42, res.Streams[0].LastPosition)
	require.EqualValues(t, 8, res.Streams[1].Version)
	require.EqualValues(t, 43, res.Streams[1].LastPosition)
	require.Equal(t, id(3), res.Streams[1].IDs[0])

	events := members(t, srv.log[0], "events")
	require.Len(t, events, 3)
	key := streamKey{"account", "A-1"}
	require.Equal(t, map[string]any{"o": 1.0, "n": 1.0, "q": 3.0, "i": "00000000000040008000000000000001", "s": fmt.Sprintf("%x", key.hash()),
		"p": float64(store.PartitionOf("A-1", 256)), "r": 0.0, "v": 1.0, "a": "account", "k": "A-1", "t": "Opened", "c": "json", "d": `{"n": 1}`}, events[0])
	require.Equal(t, "0001", events[1]["b"])
	require.Equal(t, `{"u": 1}`, events[1]["m"])
	require.Equal(t, -5.0, events[1]["w"])
	require.Equal(t, 4.0, events[1]["q"])
	require.NotContains(t, events[2], "q", "any version: the sequence is told under the counter")
	require.NotContains(t, events[0], "w", "the server's clock")
	snapshots := members(t, srv.log[0], "snapshots")
	require.Len(t, snapshots, 1)
	require.Equal(t, 4.0, snapshots[0]["q"])
}

// H39 and the counter: staging and refusals come before the counter is taken,
// and the counter is in the transaction.
func TestAppendTakesTheCounterLast(t *testing.T) {
	t.Parallel()
	last := -1
	for _, step := range []string{"SET XACT_ABORT ON", "READ COMMITTED", "OPENJSON(@events)", "OPENJSON(@snapshots)", "BEGIN TRANSACTION;", "THROW 51302", "THROW 51301",
		"UPDATE {{topics}}", "THROW 51303", "SELECT @last", "UPDATE e SET e.sequence", "INSERT INTO {{events}}", "COMMIT TRANSACTION;"} {
		i := strings.Index(appendSQL, step)
		require.Greater(t, i, last, step)
		last = i
	}
}

func TestAppendThatMetAnother(t *testing.T) {
	t.Parallel()
	e := newEvent(1)
	for name, c := range map[string]struct {
		expected int64
		refusals []int32 // of the batch, one after the other
		version  int64   // after them
		stored   [][]driver.Value
		want     func(t *testing.T, r store.CommitResult, err error)
		batches  int
	}{
		"version moved": {2, []int32{errVersion}, 3, nil, func(t *testing.T, _ store.CommitResult, err error) {
			var conflict *store.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, store.ConflictError{AggregateType: "account", AggregateID: "A-1", Expected: 2, Actual: 3}, *conflict)
		}, 1},
		"unique key": {2, []int32{2601}, 3, nil, func(t *testing.T, _ store.CommitResult, err error) {
			var conflict *store.ConflictError
			require.ErrorAs(t, err, &conflict)
		}, 1},
		"repeat": {2, []int32{errKnown}, 3, [][]driver.Value{storedRow(e, "A-1", 40, 3)}, func(t *testing.T, r store.CommitResult, err error) {
			require.NoError(t, err)
			require.True(t, r.Streams[0].Replayed)
			require.EqualValues(t, 40, r.Streams[0].LastPosition)
			require.EqualValues(t, 3, r.Streams[0].Version)
		}, 1},
		"elsewhere": {2, []int32{2627}, 2, [][]driver.Value{storedRow(e, "A-2", 40, 3)}, func(t *testing.T, _ store.CommitResult, err error) {
			var duplicate *store.DuplicateEventError
			require.ErrorAs(t, err, &duplicate)
			require.Equal(t, "A-2", duplicate.AggregateID)
		}, 1},
		"lost race": {store.AnyVersion, []int32{2601, 2601}, 9, nil, func(t *testing.T, r store.CommitResult, err error) {
			require.NoError(t, err)
			require.EqualValues(t, 77, r.Streams[0].LastPosition)
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, srv := openFake(t, nil)
			n := 0
			srv.answer = func(q sent) (*reply, error) {
				switch {
				case isAppend(q):
					if n++; n <= len(c.refusals) {
						return nil, failure(c.refusals[n-1])
					}
					return rows([]driver.Value{int64(77), int64(10)}), nil
				case q.text == s.q.versions:
					return rows([]driver.Value{c.version}), nil
				case q.text == s.q.byID:
					return &reply{columns: 13, rows: c.stored}, nil
				}
				return nil, fmt.Errorf("not expected: %s", q.text)
			}
			res, err := s.Commit(t.Context(), appendTo("A-1", c.expected, e))
			c.want(t, res, err)
			require.Len(t, srv.named("@snapshots"), c.batches)
			var texts []string
			for _, q := range srv.log {
				texts = append(texts, q.text)
			}
			require.Less(t, indexOf(texts, s.q.versions), indexOf(texts, s.q.byID), "versions are read first")
		})
	}
}

func indexOf(list []string, text string) int {
	for i := range list {
		if list[i] == text {
			return i
		}
	}
	return -1
}

// Some streams of a commit were stored before, others not: only those are sent.
func TestCommitOfOldAndNewStreams(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	n := 0
	srv.answer = func(q sent) (*reply, error) {
		switch {
		case isAppend(q):
			if n++; n == 1 {
				return nil, failure(errKnown)
			}
			return rows([]driver.Value{int64(50), int64(1)}), nil
		case q.text == s.q.versions:
			return rows([]driver.Value{int64(1)}, []driver.Value{int64(0)}), nil
		case q.text == s.q.byID:
			return rows(storedRow(newEvent(1), "A-1", 40, 1)), nil
		}
		return nil, nil
	}
	c := appendTo("A-1", 0, newEvent(1))
	c.Streams = append(c.Streams, store.StreamAppend{AggregateType: "account", AggregateID: "A-2", Events: []store.NewEvent{newEvent(2)}})
	res, err := s.Commit(t.Context(), c)
	require.NoError(t, err)
	require.True(t, res.Streams[0].Replayed)
	require.False(t, res.Streams[1].Replayed)
	require.EqualValues(t, 50, res.Streams[1].FirstPosition)
	second := members(t, srv.named("@snapshots")[1], "events")
	require.Len(t, second, 1)
	require.Equal(t, "A-2", second[0]["k"])
}

func TestAppendOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{io.EOF, driver.ErrBadConn, failure(596)} {
		s, srv := openFake(t, func(sent) (*reply, error) { return nil, lost })
		before := s.Incarnation()
		_, err := s.Commit(t.Context(), appendTo("A-1", 0, newEvent(1)))
		isTransient(true)(t, err)
		require.Len(t, srv.log, 1, "it is not sent again: the first may have committed")
		require.Greater(t, s.Incarnation(), before)
	}
	s, srv := openFake(t, func(sent) (*reply, error) { return nil, failure(9002) })
	_, err := s.Commit(t.Context(), appendTo("A-1", 0, newEvent(1)))
	isTransient(false)(t, err)
	require.Len(t, srv.log, 1)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	srv.log = nil
	_, err = s.Commit(ctx, appendTo("A-1", 0, newEvent(1)))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, srv.log)
}

func TestImport(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	versions := []driver.Value{int64(2), int64(0)}
	refuse := 1
	srv.answer = func(q sent) (*reply, error) {
		switch {
		case isAppend(q):
			if refuse--; refuse >= 0 {
				versions[0] = int64(3) // somebody appended
				return nil, failure(2601)
			}
			return rows([]driver.Value{int64(60), int64(4)}, []driver.Value{int64(61), int64(1)}), nil
		case q.text == s.q.versions:
			return rows([]driver.Value{versions[0]}, []driver.Value{versions[1]}), nil
		case q.text == s.q.byID:
			return rows(storedRow(newEvent(9), "A-1", 12, 1)), nil
		}
		return nil, nil
	}
	at := func(stream string, n byte) store.ImportEvent {
		return store.ImportEvent{AggregateType: "account", AggregateID: stream, NewEvent: newEvent(n)}
	}
	events := []store.ImportEvent{at("A-1", 9), at("A-1", 1), at("A-2", 2), at("A-1", 3), at("A-1", 3)}
	res, err := s.Import(t.Context(), events)
	require.NoError(t, err)
	require.Equal(t, store.ImportResult{Stored: 3, AlreadyThere: 2, There: []int{0, 4}, LastPosition: 62}, res)
	batches := srv.named("@snapshots")
	require.Len(t, batches, 2, "it is decided anew when somebody was first")
	var sequences []any
	for _, e := range members(t, batches[1], "events") {
		sequences = append(sequences, e["q"])
	}
	require.Equal(t, []any{4.0, 1.0, 5.0}, sequences)

	events[1].Sequence = 7
	_, err = s.Import(t.Context(), events)
	var invalid *store.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, 1, invalid.Index)
	require.Len(t, srv.named("@snapshots"), 2)
}

func TestReadPage(t *testing.T) {
	t.Parallel()
	page := func(end, start int64, list ...[]driver.Value) *reply {
		r := &reply{}
		for _, e := range list {
			r.rows = append(r.rows, append([]driver.Value{end, start}, e...))
		}
		if len(list) == 0 {
			r.rows = [][]driver.Value{append([]driver.Value{end, start}, make([]driver.Value, 13)...)}
		}
		return r
	}
	var next *reply
	s, srv := openFake(t, func(sent) (*reply, error) { return next, nil })
	read := func(q store.PageQuery) store.Page {
		t.Helper()
		q.Topic = store.EventsTopic
		p, err := s.ReadPage(t.Context(), q)
		require.NoError(t, err)
		return p
	}
	one, two := storedRow(newEvent(1), "A-1", 4, 1), storedRow(newEvent(2), "A-1", 6, 2)

	next = page(9, 3, one, two)
	p := read(store.PageQuery{After: 3, Limit: 10})
	require.Equal(t, []int64{3, 9, 9, 3, 2}, []int64{p.From, p.To, p.End, p.Start, int64(len(p.Events))})
	require.Equal(t, store.PartitionOf("A-1", 256), p.Events[0].Partition)
	golden(t, "page.sql", srv.log[0].text)

	next = page(9, 3, one, two)
	p = read(store.PageQuery{After: 3, Limit: 2, Partitions: []int{5}})
	require.EqualValues(t, 6, p.To, "a full page ends at its last message")
	golden(t, "page_of_partition.sql", srv.log[1].text)
	require.Equal(t, int64(5), srv.log[1].args["partition"])

	next = page(9, 3, one, two)
	p = read(store.PageQuery{After: 3, Limit: 10, Partitions: []int{5, 9}})
	require.EqualValues(t, 9, p.To)
	golden(t, "page_of_partitions.sql", srv.log[2].text)
	require.Equal(t, append([]byte{1 << 5, 1 << 1}, make([]byte, 30)...), srv.log[2].args["partitions"])

	next = page(9, 3, one, two)
	p = read(store.PageQuery{After: 3, Limit: 10, MaxBytes: 9})
	require.Len(t, p.Events, 1)
	require.EqualValues(t, 4, p.To)

	next = page(9, 3)
	p = read(store.PageQuery{After: 9, Limit: 10})
	require.Equal(t, []int64{9, 9}, []int64{p.From, p.To})
	before := p.Incarnation

	next = page(5, 3) // another database stands there
	p = read(store.PageQuery{After: 9, Limit: 10})
	require.Greater(t, p.Incarnation, before)

	next = &reply{columns: 15}
	_, err := s.ReadPage(t.Context(), store.PageQuery{Topic: "nothing"})
	require.ErrorIs(t, err, store.ErrNotFound)
}

// The other statements of this driver.
func TestGoldenStatements(t *testing.T) {
	t.Parallel()
	s, _ := openFake(t, nil)
	golden(t, "reads.sql", strings.Join([]string{s.q.version, s.q.versions, s.q.byID, s.q.stream, s.q.snapshot, settingsSQL,
		columnsSQL, indexesSQL, findSQL, viewSQL, strings.Join(adopt("it's [a] table", "b__b7", nil), ";\n"),
		strings.ReplaceAll(lockSQL, "\n", " "), unlockSQL}, ";\n\n")+";\n")
}
