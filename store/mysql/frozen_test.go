package mysql

import (
	"context"
	"database/sql/driver"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
)

// freeze runs fn in a transaction that then stands still, as that of a suspended
// host does. What the host gets when it goes on comes over the channel.
func freeze(t *testing.T, s *Store, fn func(se *session) error) (thaw func() error) {
	held, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.engine.write(context.Background(), "frozen", func(se *session) error {
			if err := fn(se); err != nil {
				return err
			}
			close(held)
			<-goOn
			return nil
		})
	}()
	select {
	case <-held:
	case err := <-ended:
		require.FailNow(t, "it did not begin", "%v", err)
	}
	return func() error {
		close(goOn)
		return <-ended
	}
}

// The counter's row is everybody's: a host that is suspended while it holds it
// must not hold up all others for longer than the server lets it (H35).
func TestHostFrozenInAnAppendIsEnded(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	frozen, other := open(t, Options{DSN: dsn, Timeout: 3 * time.Second}), open(t, Options{DSN: dsn})
	t.Cleanup(func() { require.NoError(t, frozen.Close()); require.NoError(t, other.Close()) })
	c := appendTo("A-1", 0, withID(1), withID(2))
	thaw := freeze(t, frozen, func(se *session) error {
		_, err := frozen.newAppend(context.Background(), se).commit(&c, []store.ID{withID(1).ID, withID(2).ID}, wayFast)
		return err
	})
	res, err := other.Commit(t.Context(), appendTo("A-2", 0, withID(3)))
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Streams[0].LastPosition)
	var transient *store.TransientError
	require.ErrorAs(t, thaw(), &transient)
	require.Len(t, all(t, other, store.PageQuery{Limit: 10}), 1)
	res, err = frozen.Commit(t.Context(), c)
	require.NoError(t, err)
	require.False(t, res.Streams[0].Replayed)
	require.EqualValues(t, 3, res.Streams[0].LastPosition)
}

func TestHostFrozenInAnApplyIsEnded(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	frozen, other := open(t, Options{DSN: dsn, Timeout: 3 * time.Second}), open(t, Options{DSN: dsn})
	t.Cleanup(func() { require.NoError(t, frozen.Close()); require.NoError(t, other.Close()) })
	made := users(t)
	l := newLane(t, frozen, "frozen", made, 3, 4)
	require.NoError(t, other.Join(t.Context(), store.Instance{ID: "other"}))
	b := l.batch("frozen", 5)
	thaw := freeze(t, frozen, func(se *session) error {
		if err := frozen.holdLeases(context.Background(), se, b); err != nil {
			return err
		}
		return frozen.moveCheckpoints(context.Background(), se, b)
	})
	// The rest of the host is as frozen as its lane.
	exec(t, conns(t, other, 1)[0], "UPDATE ph_instances SET ttl_us = 1 WHERE id = 'frozen'")
	require.Eventually(t, func() bool {
		leases, _, err := other.Claim(t.Context(), "other", l.c.Build, []int{3, 4})
		require.NoError(t, err)
		return len(leases) == 2
	}, time.Minute, 50*time.Millisecond, "a claim waits for no locked row, and the server ends who locks it")
	require.Error(t, thaw())
	outcome, err := frozen.Settle(t.Context(), b)
	require.NoError(t, err)
	require.Equal(t, store.OutcomeLost, outcome)
	checkpoints, err := other.Checkpoints(t.Context(), l.c.Build)
	require.NoError(t, err)
	for _, c := range checkpoints {
		require.Zero(t, c.Position)
	}
}

// The same in the middle of a statement: the server waits for its rest, and the
// transaction is not idle.
func TestHostFrozenWithinAStatementIsEnded(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	var mu sync.Mutex
	dialed := map[string]net.Conn{} // by the client's address
	mysql.RegisterDialContext("tcpcaught", func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			dialed[c.LocalAddr().String()] = c
		}
		return c, err
	})
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	cfg.Net = "tcpcaught"
	frozen, other := open(t, Options{DSN: cfg.FormatDSN(), Timeout: 3 * time.Second}), open(t, Options{DSN: dsn})
	t.Cleanup(func() { require.NoError(t, frozen.Close()); require.NoError(t, other.Close()) })
	c := appendTo("A-1", 0, withID(1))
	thaw := freeze(t, frozen, func(se *session) error {
		if _, err := frozen.newAppend(context.Background(), se).commit(&c, []store.ID{withID(1).ID}, wayFast); err != nil {
			return err
		}
		var from string
		err := se.scan(context.Background(), "SELECT host FROM information_schema.PROCESSLIST WHERE id = connection_id()", nil, func(v []driver.Value) error {
			from = string(v[0].([]byte))
			return nil
		}, nil)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = dialed[from].Write([]byte{100, 0, 0, 0, 3, 'S', 'E', 'L'}) // of a query of 99 bytes
		return err
	})
	res, err := other.Commit(t.Context(), appendTo("A-2", 0, withID(3)))
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Streams[0].LastPosition)
	require.Error(t, thaw())
	require.Len(t, all(t, other, store.PageQuery{Limit: 10}), 1)
}
