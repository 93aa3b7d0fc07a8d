//go:build unix

package mark

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

func TestKilledBackendRestartsTheServerAndTheDetector(t *testing.T) {
	// One process killed: the server throws away its memory and recovers, while
	// its parent, whose start time people compare, lives on.
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "wal_writer_delay=10s")
	b := newBenchAt(t, server.DSN)
	lost, told := make(chan error, 100), make(chan int64, 10000)
	d := b.open(func(c *Config) {
		c.OnLoss = func(err error) { lost <- err }
		c.OnMark = func(m int64) { told <- m }
	})
	a, victim := b.appender(), b.appender()
	p := a.append()
	a.drawInVain(100)
	d.Wake()
	waitFor(t, told, p+100)
	a.drawInVain(100)
	started := b.value("SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1e6)::bigint")
	victim.do("BEGIN")
	victim.insert()
	require.NoError(t, syscall.Kill(int(victim.conn.PgConn().PID()), syscall.SIGKILL))
	require.Error(t, <-lost)
	b.until("the detector is back", func() bool { return d.State().Err == nil })
	require.Equal(t, started, b.value("SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1e6)::bigint"))
	require.GreaterOrEqual(t, b.value(`SELECT last_value FROM "My events_position_seq"`), b.persisted())
	last := b.appender().append()
	require.Greater(t, last, p+100)
	waitFor(t, told, last)
}
