package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// cuts are places at which a connection ends, in turn: every message of a flight
// in both directions, and bytes within them.
func cuts(p *dbtest.Proxy, run func(where string)) {
	for _, d := range []dbtest.Direction{dbtest.ToServer, dbtest.ToClient} {
		for n := 1; ; n++ {
			before := p.Cuts()
			p.CutAt(d, n)
			run(fmt.Sprintf("direction %d, message %d", d, n))
			p.Disarm()
			if p.Cuts() == before {
				break
			}
		}
		for n := 1; n < 4000; n += 1 + n/3 {
			p.CutAfter(d, n)
			run(fmt.Sprintf("direction %d, byte %d", d, n))
			p.Disarm()
		}
	}
}

// throughProxy is a store whose work goes through a proxy, its detector not, and
// another that sees what is really there.
func throughProxy(t *testing.T) (*Store, *Store, *dbtest.Proxy) {
	dsn := dbtest.Postgres(t)
	p := dbtest.NewProxy(t, dsn)
	direct := host(t, dsn)
	s := host(t, with(t, p.DSN, "", map[string]string{"default_query_exec_mode": "cache_statement"}),
		func(o *Options) { o.DirectDSN, o.MaxOpenConns = dsn, 1 })
	return s, direct, p
}

// Wherever the connection ends: an error that leaves nothing open stands for
// nothing stored, and the append repeated stores it once.
func TestCutAppendStoresOnce(t *testing.T) {
	t.Parallel()
	s, direct, p := throughProxy(t)
	n := 0
	cuts(p, func(where string) {
		n++
		id := fmt.Sprint("A-", n)
		c := store.Commit{
			Streams: []store.StreamAppend{
				{AggregateType: "account", AggregateID: id, Events: []store.NewEvent{given(3 * n), given(3*n + 1)}},
				{AggregateType: "audit", AggregateID: "all", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{given(3*n + 2)}},
			},
			Snapshots: []store.Snapshot{{AggregateType: "account", AggregateID: id, Sequence: 2, Data: []byte(`{"n":2}`)}},
		}
		_, err := s.Commit(t.Context(), c)
		if err != nil {
			var transient *store.TransientError
			require.ErrorAs(t, err, &transient, where)
			if !transient.OutcomeUnknown {
				v, err := direct.StreamVersion(t.Context(), "account", id)
				require.NoError(t, err)
				require.Zero(t, v, "%s: stored, though the error (%v) says that it is not", where, transient)
			}
		}
		p.Disarm()
		res, err := s.Commit(t.Context(), c)
		require.NoError(t, err, where)
		require.EqualValues(t, 2, res.Streams[0].Version)
		require.EqualValues(t, n, res.Streams[1].Version, where)
		snap, err := direct.LoadSnapshot(t.Context(), "account", id)
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Sequence)
	})
	t.Logf("%d places, %d cuts", n, p.Cuts())
	list, err := direct.ReadStream(t.Context(), "audit", "all", 1, 100_000)
	require.NoError(t, err)
	require.Len(t, list, n)
	require.Greater(t, p.Cuts(), 30)
}

// given is the n-th of events with ids.
func given(n int) store.NewEvent {
	e := store.NewEvent{HasID: true, Type: "Counted", Data: fmt.Appendf(nil, `{"n":%d}`, n)}
	e.ID[0], e.ID[1], e.ID[2], e.ID[6], e.ID[8] = byte(n), byte(n>>8), 1, 0x70, 0x80
	return e
}

// lane applies batches of one partition.
type lane struct {
	s        *Store
	c        store.Consumer
	leases   []store.Lease
	position int64
}

func newLane(t *testing.T, s *Store, name string) *lane {
	t.Helper()
	c, err := s.Subscribe(t.Context(), declare(t, name))
	require.NoError(t, err)
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: "i", HostName: "host"}))
	leases, _, err := s.Claim(t.Context(), "i", c.Build, []int{3})
	require.NoError(t, err)
	return &lane{s: s, c: c, leases: leases}
}

// batch moves the checkpoint by one and sets n of some rows to where it is then.
func (l *lane) batch(t *testing.T) *store.Batch {
	t.Helper()
	to := l.position + 1
	w := store.TableWrites{Table: l.c.Tables[0]}
	row, err := l.c.Tables[0].Table.Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Int(to)}})
	require.NoError(t, err)
	for i := range 5 {
		w.Writes = append(w.Writes, readmodel.Write{Key: readmodel.Key{Key: fmt.Sprint("k", i)}, Row: row, Position: to})
	}
	w.Writes = append(w.Writes, readmodel.Write{Key: readmodel.Key{Key: "never"}})
	return &store.Batch{Consumer: l.c.ID, Build: l.c.Build, Epoch: l.c.Epoch, InstanceID: "i", Incarnation: l.s.Incarnation(), Leases: l.leases,
		Tables: []store.TableWrites{w}, Checkpoints: []store.CheckpointMove{{Topic: store.EventsTopic, Partition: 3, From: l.position, To: to}}}
}

// stored is where rows and checkpoint are, which has to be the same.
func (l *lane) stored(t *testing.T, s *Store) int64 {
	t.Helper()
	v, err := s.View(t.Context(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	position, err := v.Position(store.EventsTopic, 3)
	require.NoError(t, err)
	for i := range 5 {
		row, err := v.Get(t.Context(), "accounts", store.RowKey{Key: fmt.Sprint("k", i)})
		if errors.Is(err, store.ErrNotFound) && position == 0 {
			continue
		}
		require.NoError(t, err)
		values, err := l.c.Tables[0].Table.Values(row.Row, nil)
		require.NoError(t, err)
		require.Equal(t, position, values[0].I, "row and checkpoint are not of one batch")
	}
	return position
}

// settling counts what became of batches whose connection was cut.
type settling struct{ unknown, committed int }

// finish brings a batch to its end whatever became of it. unchanged holds what must
// be so if it is known not to be in the database; moved is what an attempt meets
// that comes after one that had committed.
func (c *settling) finish(t *testing.T, s *Store, p *dbtest.Proxy, b *store.Batch, where string, unchanged func(), moved error) {
	t.Helper()
	err := s.Apply(t.Context(), b)
	p.Disarm()
	var transient *store.TransientError
	switch {
	case err == nil:
	case errors.As(err, &transient) && transient.OutcomeUnknown:
		c.unknown++
		outcome, err := s.Settle(t.Context(), b)
		require.NoError(t, err, where)
		if outcome == store.OutcomeCommitted {
			c.committed++
			return
		}
		require.Equal(t, store.OutcomeNotCommitted, outcome, where)
		b.Incarnation = s.Incarnation()
		// The server may still have had the first attempt before it: then that one
		// counts, and this one is refused.
		if err := s.Apply(t.Context(), b); err != nil {
			require.ErrorIs(t, err, moved, where)
		}
	default:
		require.ErrorAs(t, err, &transient, where)
		unchanged()
		b.Incarnation = s.Incarnation()
		require.NoError(t, s.Apply(t.Context(), b), where)
	}
}

// Wherever the connection ends, rows and checkpoint are of one batch, and Settle
// tells which (P1).
func TestCutApplyIsSettledRight(t *testing.T) {
	t.Parallel()
	s, direct, p := throughProxy(t)
	l := newLane(t, s, "accounts")
	var c settling
	cuts(p, func(where string) {
		c.finish(t, s, p, l.batch(t), where, func() { require.Equal(t, l.position, l.stored(t, direct), where) }, store.ErrCheckpointMoved)
		l.position++
		require.Equal(t, l.position, l.stored(t, direct), where)
	})
	t.Logf("%d batches, %d cuts, %d of unknown outcome, %d of them committed", l.position, p.Cuts(), c.unknown, c.committed)
	require.Positive(t, c.committed)
	require.Greater(t, c.unknown, c.committed)
}

// A retry moves no checkpoint: wherever the connection ends, its row tells what
// became of it, and it is applied once (H12).
func TestCutRetryIsSettledRight(t *testing.T) {
	t.Parallel()
	s, direct, p := throughProxy(t)
	l := newLane(t, s, "accounts")
	var c settling
	n := int64(0)
	cuts(p, func(where string) {
		n++
		e := &store.Event{Position: n, AggregateType: "a", AggregateID: "b", Sequence: n, Type: "E", Codec: store.DefaultCodec, CodecVersion: 1, Data: []byte(`{}`)}
		batch := func() *store.Batch {
			return &store.Batch{Consumer: l.c.ID, Build: l.c.Build, InstanceID: "i", Incarnation: direct.Incarnation(), Leases: l.leases}
		}
		first := batch()
		first.Records = []store.Record{{Topic: store.EventsTopic, Partition: 3, Key: "k", Status: store.StatusFailed, Event: e}}
		require.NoError(t, direct.Apply(t.Context(), first))
		heads, err := direct.Heads(t.Context(), l.c.Build, []int{3})
		require.NoError(t, err)
		require.Len(t, heads, 1, where)
		b := batch()
		b.Incarnation = s.Incarnation()
		b.Retries = []store.Retry{{ID: heads[0].ID, Partition: 3, Status: store.StatusFailed}}
		b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: n, Key: "k"}}
		skipped := func(want int64) {
			skips, err := direct.Skips(t.Context(), l.c.Build, store.EventsTopic, 0)
			require.NoError(t, err)
			require.Len(t, skips, int(want), where)
		}
		c.finish(t, s, p, b, where, func() { skipped(n - 1) }, store.ErrRetryMoved)
		skipped(n)
	})
	t.Logf("%d batches, %d cuts, %d of unknown outcome, %d of them committed", n, p.Cuts(), c.unknown, c.committed)
	require.Positive(t, c.committed)
}

// A lost connection begins a new incarnation; one that was dead before its first
// statement is replaced and nobody notices.
func TestCutIdleConnectionIsNoLoss(t *testing.T) {
	t.Parallel()
	s, _, p := throughProxy(t)
	_, err := s.Commit(t.Context(), oneEvent())
	require.NoError(t, err)
	before := s.Incarnation()
	p.CutAt(dbtest.ToClient, 1)
	_, err = s.Commit(t.Context(), oneEvent())
	require.Error(t, err)
	require.Greater(t, s.Incarnation(), before)
	_, err = s.Commit(t.Context(), oneEvent())
	require.NoError(t, err)
	before = s.Incarnation()
	s.engine.pool.Reset() // the pool gives up what is idle
	_, err = s.Commit(context.Background(), oneEvent())
	require.NoError(t, err)
	require.Equal(t, before, s.Incarnation())
}
