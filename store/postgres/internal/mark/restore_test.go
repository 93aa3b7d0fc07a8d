package mark

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// copyTo dumps a database and restores it into another one, with the programs
// that people use.
func (b *bench) copyTo(dsn string, options ...string) *bench {
	b.t.Helper()
	run := func(in []byte, name string, args ...string) []byte {
		cmd := exec.CommandContext(b.t.Context(), dbtest.PostgresProgram(b.t, name), args...)
		var out, problems bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &problems
		require.NoError(b.t, cmd.Run(), problems.String())
		return out.Bytes()
	}
	dump := run(nil, "pg_dump", append([]string{"--no-owner", "-d", b.dsn}, options...)...)
	run(dump, "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn)
	return &bench{t: b.t, dsn: dsn}
}

func TestDatabaseRestoredIntoANewCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	dbtest.PostgresProgram(t, "pg_dump") // or not at all
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	a.drawInVain(7)
	for range 20 {
		a.append()
	}
	a.drawInVain(5)
	mark := f.step()
	open := b.appender() // somebody appends during the dump
	open.do("BEGIN")
	open.insert()
	server := dbtest.NewPostgres(t)

	t.Run("whole", func(t *testing.T) {
		there := b.copyTo(server.DSN)
		there.t = t
		require.Equal(t, mark, there.persisted())
		log := &notes{}
		r := there.follow(real{t, there.byHand(func(c *Config) { c.Logf = log.logf })})
		p := there.appender().append()
		require.Greater(t, p, mark)
		require.Equal(t, p, r.step())
		require.Empty(t, r.lost())
		require.Empty(t, log.String(), "nothing to mend")
	})
	t.Run("without the sequence", func(t *testing.T) {
		// As logical replication leaves it, and as a restore of tables does.
		there := b.copyTo(dbtest.Postgres(t))
		there.t = t
		there.exec(`SELECT setval('"My events_position_seq"', 1, false)`)
		log := &notes{}
		r := there.follow(real{t, there.byHand(func(c *Config) { c.Logf = log.logf })})
		require.Contains(t, log.String(), "restored, copied or moved")
		p := there.appender().append()
		require.Greater(t, p, mark, "past the mark, which is past the last event")
		require.Equal(t, p, r.step())
		require.Empty(t, r.lost())
		require.Len(t, r.got, 21)
	})
}

func TestClusterChangesUnderALiveDetector(t *testing.T) {
	// A proxy stands for the name that is pointed at the new cluster.
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	dbtest.PostgresProgram(t, "pg_dump") // or not at all
	b := newBench(t)
	old := dbtest.NewProxy(t, b.dsn)
	log := &notes{}
	lost, told := make(chan error, 100), make(chan int64, 1000)
	d := b.byHand(func(c *Config) {
		c.Conn = parse(t, old.DSN)
		c.Logf = log.logf
		c.OnLoss = func(err error) { lost <- err }
		c.OnMark = func(m int64) { told <- m }
	})
	last := b.appender().append()
	real{t, d}.look(nil)
	require.Equal(t, last, d.State().Mark)
	// What follows is what the loop does when the connection breaks.
	old.Cut()
	there := b.copyTo(dbtest.NewPostgres(t).DSN)
	there.exec(`SELECT setval('"My events_position_seq"', 1, false); UPDATE "My topics" SET high_water_mark = 0`)
	_, err := d.cycle(t.Context(), true, false)
	require.Error(t, err)
	require.True(t, d.session.conn.IsClosed())
	d.lost(err)
	require.Len(t, lost, 1)
	d.cfg.Conn = there.config().Conn
	require.NoError(t, d.connect(t.Context()))
	require.Contains(t, log.String(), "another cluster")
	require.Contains(t, log.String(), "behind position")
	require.Zero(t, d.State().Mark, "what is stored there counts")
	p := there.appender().append()
	require.Greater(t, p, last)
	require.Equal(t, p, real{t, d}.look(nil))
}
