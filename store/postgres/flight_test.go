package postgres

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
)

// turns counts how often something was sent after something was read: the
// flights of a connection.
type turns struct {
	net.Conn
	flights *atomic.Int64
	mu      sync.Mutex
	sending bool
}

func (c *turns) Write(b []byte) (int, error) {
	c.mu.Lock()
	if !c.sending {
		c.sending = true
		c.flights.Add(1)
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *turns) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	c.sending = false
	c.mu.Unlock()
	return n, err
}

// countFlights gives the store a pool of one connection that counts.
func countFlights(t *testing.T, s *Store) func(act func()) int64 {
	t.Helper()
	cfg := s.engine.pool.Config()
	dial := cfg.ConnConfig.DialFunc
	var flights atomic.Int64
	cfg.MaxConns = 1
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &turns{Conn: c, flights: &flights}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	s.engine.pool.Close()
	s.engine.pool = pool
	return func(act func()) int64 {
		before := flights.Load()
		act()
		return flights.Load() - before
	}
}

// An append and a batch are one flight from BEGIN to COMMIT, and one that is
// stale is too: what stops it is an error on the server (H1).
func TestOneFlight(t *testing.T) {
	t.Parallel()
	s := host(t, with(t, dbtest.Postgres(t), "", map[string]string{"sslmode": "disable"}))
	l := newLane(t, s, "accounts")
	flights := countFlights(t, s)
	require.NoError(t, s.Apply(t.Context(), l.batch(t)))
	l.position++
	commit := func(expected int64) store.Commit {
		return store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: expected,
			Events: []store.NewEvent{{Type: "Opened", Data: []byte(`{}`)}, {Type: "Closed", Data: []byte(`{}`)}}}}}
	}
	_, err := s.Commit(t.Context(), commit(store.NewStream))
	require.NoError(t, err)
	version := int64(2)

	for name, c := range map[string]struct {
		flights int64 // one for what is stale, and one that rolls back
		want    error
		act     func() error
	}{
		"append": {1, nil, func() error {
			v := version
			version += 2
			_, err := s.Commit(t.Context(), commit(v))
			return err
		}},
		"append to any version": {1, nil, func() error {
			version += 2
			_, err := s.Commit(t.Context(), commit(store.AnyVersion))
			return err
		}},
		"append to many streams with a snapshot": {1, nil, func() error {
			c := store.Commit{Snapshots: []store.Snapshot{{AggregateType: "many", AggregateID: "0", Sequence: 1, Data: []byte(`{}`)}}}
			for i := range 20 {
				c.Streams = append(c.Streams, store.StreamAppend{AggregateType: "many", AggregateID: fmt.Sprint(i), ExpectedVersion: store.AnyVersion, Events: commit(0).Streams[0].Events})
			}
			_, err := s.Commit(t.Context(), c)
			return err
		}},
		"batch": {1, nil, func() error {
			err := s.Apply(t.Context(), l.batch(t))
			l.position++
			return err
		}},
		"batch of nothing": {1, nil, func() error {
			b := l.batch(t)
			b.Tables, b.Checkpoints = nil, nil
			return s.Apply(t.Context(), b)
		}},
		"stale generation": {2, store.ErrFenced, func() error {
			b := l.batch(t)
			b.Leases = []store.Lease{{Build: l.c.Build, Partition: 3, Generation: l.leases[0].Generation - 1}}
			return s.Apply(t.Context(), b)
		}},
		"stale checkpoint": {2, store.ErrCheckpointMoved, func() error {
			b := l.batch(t)
			b.Checkpoints[0].From--
			return s.Apply(t.Context(), b)
		}},
		"stale epoch": {2, store.ErrCheckpointMoved, func() error {
			b := l.batch(t)
			b.Epoch++
			b.Tables[0].Table.Epoch++
			return s.Apply(t.Context(), b)
		}},
		"page": {1, nil, func() error {
			_, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: 100, MaxBytes: 1 << 20})
			return err
		}},
		"rows": {1, nil, func() error {
			_, err := s.LoadRows(t.Context(), l.c.Tables[0], []store.RowKey{{Key: "k0"}, {Key: "k1"}})
			return err
		}},
		"settle": {1, nil, func() error {
			_, err := s.Settle(t.Context(), l.batch(t))
			return err
		}},
	} {
		for _, time := range []string{"first", "second"} { // statements are prepared on the way
			n := flights(func() { require.ErrorIs(t, c.act(), c.want, name) })
			require.Equal(t, c.flights, n, "%s, %s time", name, time)
			require.Equal(t, l.position, l.stored(t, s), name)
		}
	}
}

// What a role or a database sets for its sessions does no harm: every
// transaction names its isolation level (H39).
func TestDefaultsOfTheServerDoNoHarm(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	c := rawConn(t, dsn)
	for _, set := range []string{"default_transaction_isolation = 'serializable'", "default_transaction_read_only = on", "default_transaction_deferrable = on",
		"timezone = 'Asia/Kolkata'", "datestyle = 'German'", "bytea_output = 'escape'", "intervalstyle = 'sql_standard'", "extra_float_digits = -5",
		"standard_conforming_strings = off", "statement_timeout = '30s'", "enable_indexscan = off", "client_encoding = 'LATIN1'"} {
		_, err := c.Exec(t.Context(), "ALTER DATABASE "+c.Config().Database+" SET "+set)
		require.NoError(t, err, set)
	}
	works(t, host(t, dsn))
}

// Work goes through a pooler that gives every transaction another session; the
// detector and locks go past it.
func TestThroughAPooler(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	pooled := dbtest.PgBouncer(t, dsn)
	for name, params := range map[string]map[string]string{
		"by default": nil, "exec": {"default_query_exec_mode": "exec"}, "cache_describe": {"default_query_exec_mode": "cache_describe"},
	} {
		t.Run(name, func(t *testing.T) {
			works(t, host(t, with(t, pooled, "", params), func(o *Options) {
				o.DirectDSN, o.TablePrefix = dsn, fmt.Sprintf("p%d_", len(name))
				o.ReadModelPrefix = "m" + o.TablePrefix
			}))
		})
	}
	_, err := Open(t.Context(), Options{DSN: pooled, TablePrefix: "none_"})
	require.ErrorContains(t, err, "pooler", "without a direct connection a start says what is missing")
}

// works does a little of everything, by several at once.
func works(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	l := newLane(t, s, "accounts")
	named, err := s.ask(ctx, tables(s.opt.TablePrefix, `SELECT count(*)::text FROM {{instances}} i JOIN pg_stat_activity a ON a.application_name = i.session
 WHERE a.pid = pg_backend_pid()`))
	require.NoError(t, err)
	require.Equal(t, "1", named, "what it would leave open is known to be its own")
	const writers, rounds = 6, 10
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for r := range rounds {
				_, err := s.Commit(ctx, store.Commit{Streams: []store.StreamAppend{
					{AggregateType: "own", AggregateID: fmt.Sprint(w), ExpectedVersion: int64(r), Events: []store.NewEvent{{Type: "T", Data: []byte(`"ä"`)}}},
					{AggregateType: "shared", AggregateID: "x", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{{Type: "T", Codec: "raw", Data: []byte{0, 0xff, '\\'}}}},
				}})
				if err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	for range 10 {
		require.NoError(t, s.Apply(ctx, l.batch(t)))
		l.position++
		require.Equal(t, l.position, l.stored(t, s))
	}
	wg.Wait()
	stale := l.batch(t)
	stale.Checkpoints[0].From--
	require.ErrorIs(t, s.Apply(ctx, stale), store.ErrCheckpointMoved)
	var list []store.ImportEvent
	for n := range 50 {
		list = append(list, store.ImportEvent{AggregateType: "imported", AggregateID: fmt.Sprint(n % 3), NewEvent: given(n)})
	}
	for _, want := range []store.ImportResult{{Stored: 50}, {AlreadyThere: 50}} {
		res, err := s.Import(ctx, list)
		require.NoError(t, err)
		require.Equal(t, want.Stored, res.Stored)
		require.Equal(t, want.AlreadyThere, res.AlreadyThere)
	}
	shared, err := s.ReadStream(ctx, "shared", "x", 1, 1000)
	require.NoError(t, err)
	require.Len(t, shared, writers*rounds)
	require.Equal(t, []byte{0, 0xff, '\\'}, shared[0].Data)
	r := &reader{s: s}
	require.Eventually(t, func() bool {
		_, err := r.page(ctx)
		return err == nil && len(r.got) == 2*writers*rounds+50
	}, markPatience, 10e6)
	rows, err := s.LoadRows(ctx, l.c.Tables[0], []store.RowKey{{Key: "k0"}, {Key: "k4"}, {Key: "none"}})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	release, err := s.engine.Lock(ctx, "x")
	require.NoError(t, err)
	require.NoError(t, release())
	require.NoError(t, s.Check(ctx))
}

// A lock lasts while its holder works elsewhere, whatever limits the role has,
// and one that went with its connection is told.
func TestLockLastsOrIsTold(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	s, err := Open(t.Context(), Options{DSN: dsn, TablePrefix: "ph_"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const limit = 500 * time.Millisecond // also what the server leaves a slow test before the first statement
	for _, name := range []string{"idle_session_timeout", "statement_timeout", "lock_timeout"} {
		s.engine.direct.RuntimeParams[name] = limit.String()
	}
	release, err := s.engine.Lock(t.Context(), "x")
	require.NoError(t, err)
	waits := make(chan error)
	go func() {
		next, err := s.engine.Lock(t.Context(), "x")
		if err == nil {
			err = next()
		}
		waits <- err
	}()
	time.Sleep(2 * limit) // the limits are the server's, by its own clock
	require.NoError(t, release())
	require.NoError(t, <-waits)

	release, err = s.engine.Lock(t.Context(), "x")
	require.NoError(t, err)
	admin(t, dsn, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	var transient *store.TransientError
	require.ErrorAs(t, release(), &transient)
}
