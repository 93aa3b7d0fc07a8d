package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// frozen is a host that comes to stand still in the middle of a flight: its
// server waits for the rest of it, with everything locked, and does not count
// that as idle. No limit of a session is short enough to end it here.
type frozen struct {
	*lane
	t     *testing.T
	other *Store
	proxy *dbtest.Proxy
}

const frozenTTL = 2 * time.Second

// drawn tells whether a transaction has drawn a position.
const drawn = `SELECT count(*) > 0 FROM pg_locks WHERE relation = pg_get_serial_sequence('ph_events', 'position')::regclass AND mode = 'RowExclusiveLock'`

func newFrozen(t *testing.T) *frozen {
	dsn := dbtest.Postgres(t)
	p := dbtest.NewProxy(t, dsn)
	patient := func(o *Options) { o.Timeout = markPatience }
	s := host(t, with(t, p.DSN, "", map[string]string{"default_query_exec_mode": "cache_statement"}), patient,
		func(o *Options) { o.DirectDSN, o.MaxOpenConns = dsn, 1 })
	c, err := s.Subscribe(t.Context(), declare(t, "p"))
	require.NoError(t, err)
	t.Cleanup(p.Release)
	f := &frozen{t: t, lane: &lane{s: s, c: c}, proxy: p, other: host(t, dsn, patient)}
	require.NoError(t, f.other.Join(t.Context(), store.Instance{ID: "other"}))
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: "i", TTL: frozenTTL}))
	require.NoError(t, s.Enlist(t.Context(), "i", []store.Enlistment{{Build: c.Build}}))
	f.claim()
	return f
}

func (f *frozen) claim() {
	leases, _, err := f.s.Claim(f.t.Context(), "i", f.c.Build, []int{2, 3, 4})
	require.NoError(f.t, err)
	f.leases = leases
}

// freeze holds a call back at one message after the other, until it is inside. It
// gives what wakes the host and tells how the call ended.
func (f *frozen) freeze(inside string, call func() error) (thaw func() error) {
	f.t.Helper()
	look := rawConn(f.t, f.other.opt.DSN)
	for n := 1; n < 100; n++ {
		require.NoError(f.t, f.s.Heartbeat(f.t.Context(), "i"))
		ended := make(chan error, 1)
		f.proxy.HoldAt(dbtest.ToServer, n)
		go func() { ended <- call() }()
		require.Eventually(f.t, func() bool { return f.proxy.Held() || len(ended) > 0 }, markPatience, time.Millisecond)
		thaw := func() error {
			f.proxy.Disarm()
			f.proxy.Release()
			return <-ended
		}
		for range 50 {
			var is bool
			require.NoError(f.t, look.QueryRow(f.t.Context(), inside).Scan(&is))
			if is {
				return thaw
			}
			time.Sleep(2 * time.Millisecond) // nothing tells how far the server is with what it has
		}
		require.NoError(f.t, thaw())
	}
	require.FailNow(f.t, "it was never inside")
	return nil
}

// What it holds ends with the first claim after it has lapsed, and nothing of it
// is stored (H35).
func TestHostFrozenInAnApplyIsTakenOver(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	var b *store.Batch
	thaw := f.freeze(`SELECT (SELECT count(*) FROM (SELECT 1 FROM ph_ownership FOR UPDATE SKIP LOCKED) o) < (SELECT count(*) FROM ph_ownership)`, func() error {
		b = f.batch(t)
		err := f.s.Apply(context.Background(), b)
		if err == nil {
			f.position++
		}
		return err
	})
	require.NoError(t, f.other.Enlist(t.Context(), "other", []store.Enlistment{{Build: f.c.Build}}))
	var tenure int64
	was, began, taken := f.position, time.Now(), 0
	require.Eventually(t, func() bool {
		leases, begun, err := f.other.Claim(t.Context(), "other", f.c.Build, []int{2, 3, 4})
		require.NoError(t, err)
		if len(leases) > 0 {
			tenure = begun
		}
		taken += len(leases)
		return taken == 3
	}, markPatience, 20*time.Millisecond)
	t.Logf("taken over after %v", time.Since(began).Round(time.Millisecond))
	require.Equal(t, was, f.stored(t, f.other))
	require.Error(t, thaw())
	outcome, err := f.s.Settle(t.Context(), b)
	require.NoError(t, err)
	require.Equal(t, store.OutcomeLost, outcome)
	require.Equal(t, was, f.stored(t, f.other))

	// A claim that took something twice is in the tenure of the second.
	require.NoError(t, f.other.Advance(t.Context(), "other", []store.Progress{{Incarnation: f.other.Incarnation(), Build: f.c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: was + 1}}))
	v, err := f.other.View(t.Context(), f.c.ID)
	require.NoError(t, err)
	defer v.Close()
	position, err := v.Position(store.EventsTopic, 3)
	require.NoError(t, err)
	require.Equal(t, was+1, position)
}

// Others append meanwhile, and read what they appended once the host that holds a
// position has been removed.
func TestHostFrozenInAnAppendIsRemoved(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	n, r := 0, &reader{s: f.other}
	thaw := f.freeze(drawn, func() error {
		n++
		_, err := f.s.Commit(context.Background(), store.Commit{Streams: []store.StreamAppend{
			{AggregateType: "account", AggregateID: fmt.Sprint(n), Events: []store.NewEvent{given(n)}}}})
		return err
	})
	_, err := f.other.Commit(t.Context(), store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "other", Events: []store.NewEvent{given(1000)}}}})
	require.NoError(t, err)
	removed := 0
	require.Eventually(t, func() bool {
		reaped, err := f.other.Reap(t.Context())
		require.NoError(t, err)
		removed += reaped
		return removed == 1
	}, markPatience, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := r.page(t.Context())
		require.NoError(t, err)
		return r.got[given(1000).ID] == 1
	}, markPatience, 10*time.Millisecond)
	require.Error(t, thaw())
	version, err := f.other.StreamVersion(t.Context(), "account", fmt.Sprint(n))
	require.NoError(t, err)
	require.Zero(t, version)
}

// A host may lapse just after it began something, if its heartbeats were late
// before: it is not removed as long as that is open and too young to be ended.
func TestYoungTransactionOfALapsedHostIsNotForgotten(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	n := 0
	thaw := f.freeze(drawn, func() error {
		n++
		_, err := f.s.Commit(context.Background(), store.Commit{Streams: []store.StreamAppend{
			{AggregateType: "account", AggregateID: fmt.Sprint(n), Events: []store.NewEvent{given(n)}}}})
		return err
	})
	look := rawConn(t, f.other.opt.DSN)
	const late = `UPDATE ph_instances SET ttl_us = ttl_us * 100, last_heartbeat_us = last_heartbeat_us - ttl_us * 101 WHERE id = 'i'`
	_, err := look.Exec(t.Context(), late)
	require.NoError(t, err)
	reaped, err := f.other.Reap(t.Context())
	require.NoError(t, err)
	require.Zero(t, reaped)
	_, err = look.Exec(t.Context(), `UPDATE ph_instances SET ttl_us = 1 WHERE id = 'i'`) // any transaction is old enough
	require.NoError(t, err)
	reaped, err = f.other.Reap(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, reaped)
	require.Error(t, thaw())
}

// A host that was removed and does not know it yet begins something and is frozen
// in the middle: nobody has an instance that tells of it.
func TestHostFrozenAfterItWasRemovedIsEnded(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	require.NoError(t, f.other.Join(t.Context(), store.Instance{ID: "third", TTL: frozenTTL}))
	n := 0
	look := rawConn(t, f.other.opt.DSN)
	thaw := f.freeze(drawn, func() error {
		n++
		_, err := f.s.Commit(context.Background(), store.Commit{Streams: []store.StreamAppend{
			{AggregateType: "account", AggregateID: fmt.Sprint(n), Events: []store.NewEvent{given(n)}}}})
		return err
	})
	require.NoError(t, f.other.Heartbeat(t.Context(), "third"))
	_, err := look.Exec(t.Context(), `DELETE FROM ph_instances WHERE id = 'i'`)
	require.NoError(t, err)
	reaped, err := f.other.Reap(t.Context())
	require.NoError(t, err)
	require.Zero(t, reaped)
	var open bool
	require.NoError(t, look.QueryRow(t.Context(), drawn).Scan(&open))
	require.True(t, open, "it has as long as a live host may be silent")
	require.Eventually(t, func() bool {
		require.NoError(t, f.other.Heartbeat(t.Context(), "third"))
		_, err := f.other.Reap(t.Context())
		require.NoError(t, err)
		require.NoError(t, look.QueryRow(t.Context(), drawn).Scan(&open))
		return !open
	}, markPatience, 50*time.Millisecond)
	require.Error(t, thaw())
}

// A host that was removed and has joined again is the same process: what it has
// under way is not that of the instance that lapsed. Nor is anybody else's.
func TestOthersKeepWhatTheyHaveUnderWay(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	require.NoError(t, f.s.Join(t.Context(), store.Instance{ID: "again"}))
	in, out := make(chan int, 2), make(chan struct{})
	ended := make(chan error, 2)
	for _, s := range []*Store{f.s, f.other} {
		go func() {
			ended <- s.engine.Write(context.Background(), "stay", func(c sqlstore.Conn) error {
				_, err := c.Exec(context.Background(), `SELECT pg_current_xact_id()`)
				in <- 1
				<-out
				return err
			})
		}()
	}
	<-in
	<-in
	look := rawConn(t, f.other.opt.DSN)
	require.Eventually(t, func() bool {
		var old bool
		require.NoError(t, look.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE statement_timestamp() - xact_start > $1 * interval '1 microsecond') = 2
			FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'projhost %' AND backend_xid IS NOT NULL`,
			float64(frozenTTL.Microseconds())).Scan(&old))
		return old
	}, markPatience, 20*time.Millisecond)
	reaped, err := f.other.Reap(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, reaped)
	close(out)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
}

// Where nobody lapses, since it is no host or the only one, PostgreSQL 17 and later
// ends it by itself.
func TestFrozenFlightIsEndedByTheServer(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	p := dbtest.NewProxy(t, dsn)
	t.Cleanup(p.Release)
	s := host(t, with(t, p.DSN, "", map[string]string{"default_query_exec_mode": "cache_statement"}),
		func(o *Options) { o.DirectDSN, o.MaxOpenConns, o.Timeout = dsn, 1, time.Second })
	if s.engine.bound == "" {
		var version int
		require.NoError(t, rawConn(t, dsn).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version))
		require.Less(t, version, transactionTimeout)
		return // its instance has to lapse
	}
	f := &frozen{t: t, lane: &lane{s: s}, proxy: p, other: host(t, dsn)}
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: "i"}))
	n := 0
	thaw := f.freeze(drawn, func() error {
		n++
		_, err := s.Commit(context.Background(), store.Commit{Streams: []store.StreamAppend{
			{AggregateType: "account", AggregateID: fmt.Sprint(n), Events: []store.NewEvent{given(n)}}}})
		return err
	})
	look := rawConn(t, dsn)
	require.Eventually(t, func() bool {
		var is bool
		require.NoError(t, look.QueryRow(t.Context(), drawn).Scan(&is))
		return !is
	}, markPatience, 20*time.Millisecond)
	require.Error(t, thaw())
	version, err := f.other.StreamVersion(t.Context(), "account", fmt.Sprint(n))
	require.NoError(t, err)
	require.Zero(t, version)
}
