package postgres

import (
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// losesServer is a pooler that passes on the answer to a flight's first
// statement, then loses the server, and says so as pgbouncer does.
func losesServer(t *testing.T) *pgconn.PgConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		b := pgproto3.NewBackend(nc, nc)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		for err := b.Flush(); err == nil; {
			var m pgproto3.FrontendMessage
			if m, err = b.Receive(); err != nil {
				return
			}
			if _, ok := m.(*pgproto3.Sync); ok { // all of the flight is on its way
				break
			}
		}
		b.Send(&pgproto3.ParseComplete{})
		b.Send(&pgproto3.BindComplete{})
		b.Send(&pgproto3.NoData{})
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte("BEGIN")})
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: "server conn crashed?"})
		_ = b.Flush()
	}()
	addr := l.Addr().(*net.TCPAddr)
	pg, err := pgconn.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=u database=d sslmode=disable", addr.Port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = pg.Close(t.Context()) })
	return pg
}

// A pooler that lost the server tells so with an error, at whatever statement's
// answer it was; the server may have the whole flight and commit it (H2).
func TestPoolerLosesServer(t *testing.T) {
	t.Parallel()
	c := newConn(losesServer(t), false)
	e := &engine{}
	err := e.inFlight(t.Context(), "apply", func() (bool, error) {
		list := []*statement{{sql: "BEGIN"}, {sql: "SELECT 1"}, {sql: "COMMIT"}}
		failed, err := c.run(t.Context(), list...)
		return failed >= len(list)-1, err
	})
	var transient *store.TransientError
	require.ErrorAs(t, err, &transient)
	require.True(t, transient.OutcomeUnknown, "%v", err)
}

// A server that was restarted, or has taken another's place, is noticed by the
// first connection to it, though no connection was lost in use (H3).
func TestPoolNoticesAnotherServer(t *testing.T) {
	t.Parallel()
	server := dbtest.NewPostgres(t)
	e, _, err := openEngine(t.Context(), &Options{DSN: server.DSN, Timeout: markPatience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	raised := 0
	e.raise = func() { raised++ }
	look := func() {
		require.NoError(t, e.with(t.Context(), func(c *conn) error {
			_, err := c.run(t.Context(), &statement{sql: "SELECT 1"})
			return err
		}))
	}
	look()
	e.pool.Reset()
	look()
	require.Zero(t, raised, "another connection to the same server")
	e.pool.Reset()
	server.Kill()
	server.Start()
	look()
	require.Equal(t, 1, raised)
}

// A connection that is lost between two statements has been read from, whether
// or not the second was sent.
func TestLossBetweenStatements(t *testing.T) {
	t.Parallel()
	e, _, err := openEngine(t.Context(), &Options{DSN: dbtest.Postgres(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	for name, statements := range map[string]int{"before the first": 0, "before the second": 1} {
		raised, tries := 0, 0
		e.raise = func() { raised++ }
		err := e.with(t.Context(), func(c *conn) error {
			tries++
			for n := range 2 {
				if n == statements && tries == 1 {
					require.NoError(t, c.pg.Close(t.Context()))
				}
				if _, err := c.run(t.Context(), &statement{sql: "SELECT 1"}); err != nil {
					return err
				}
			}
			return nil
		})
		if statements == 0 {
			require.NoError(t, err, name)
			require.Equal(t, 2, tries, name)
			require.Zero(t, raised, name)
			continue
		}
		require.Error(t, err, name)
		class, _ := classOf(err)
		require.Equal(t, sqlstore.Lost, class, name)
		require.Equal(t, 1, raised, name)
	}
}
