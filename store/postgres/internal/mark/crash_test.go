package mark

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// drawInVain draws positions in transactions that roll back: nothing makes the
// server write them down.
func (a *appender) drawInVain(n int) {
	a.b.t.Helper()
	a.do("BEGIN")
	for range n {
		a.insert()
	}
	a.do("ROLLBACK")
}

func TestCrashNeverLeavesThePersistedMarkAheadOfTheSequence(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: -short (kills a server)")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "wal_writer_delay=10s", "synchronous_commit=off")
	b := newBenchAt(t, server.DSN)
	rewound := false
	for range 3 {
		lost := make(chan error, 100)
		told := make(chan int64, 10000)
		d, err := Open(t.Context(), func() Config {
			c := b.config()
			c.Cycle, c.Idle = time.Hour, time.Hour // it looks only when told: the last draws stay unlooked at
			c.OnLoss = func(err error) { lost <- err }
			c.OnMark = func(m int64) { told <- m }
			return c
		}())
		require.NoError(t, err)
		a := b.appender()
		p := a.append()
		a.drawInVain(100)
		d.Wake()
		waitFor(t, told, p+100) // holes and all, and the crash may come at any time now
		a.drawInVain(200)
		inMemory := b.value(`SELECT last_value FROM "My events_position_seq"`)
		server.Kill()
		require.Error(t, <-lost)
		server.Start()
		stored := b.persisted()
		require.GreaterOrEqual(t, stored, p+100, "what was told is stored")
		end := b.value(`SELECT last_value FROM "My events_position_seq"`)
		require.GreaterOrEqual(t, end, stored)
		rewound = rewound || end < inMemory
		next := b.appender().append()
		d.Wake()
		waitFor(t, told, next)
		require.NoError(t, d.State().Err)
		d.Close()
	}
	require.True(t, rewound, "no crash set the sequence back: the test shows nothing")
}

func TestMarkInMemoryLosesInACrash(t *testing.T) {
	// What the persisted mark is for: a reader that follows a mark in memory is
	// ahead of the recovered sequence, and new events come to lie behind it.
	if testing.Short() {
		t.Skip("not run: -short (kills a server)")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "wal_writer_delay=10s")
	b := newBenchAt(t, server.DSN)
	for range 5 {
		f := b.follow(b.variant(sequenceHolders))
		a := b.appender()
		a.append()
		a.drawInVain(200)
		f.step()
		server.Kill()
		server.Start()
		b.appender().append()
		if len(f.lostAnew()) > 0 {
			return
		}
	}
	t.Fatal("no crash set the sequence back")
}

// lostAnew is lost, by way of a new connection.
func (f *follower) lostAnew() []int64 {
	f.conn = f.b.conn()
	return f.lost()
}

// consumer applies events as a projection does: rows and checkpoint in one
// transaction of the same database, under the stored mark of the same snapshot.
func (b *bench) consume(ctx context.Context, conn *pgx.Conn) (n int64, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO applied SELECT position, body FROM "My events"
			WHERE position > (SELECT position FROM checkpoint) AND position <= (SELECT high_water_mark FROM "My topics")`)
		if err != nil {
			return err
		}
		n = tag.RowsAffected()
		// A mark that moved over nothing but holes is kept too: it is stored.
		_, err = tx.Exec(ctx, `UPDATE checkpoint SET position = greatest(position, (SELECT high_water_mark FROM "My topics"))`)
		return err
	})
	return n, err
}

const consumerSchema = `CREATE TABLE applied (position bigint PRIMARY KEY, body text NOT NULL);
	CREATE TABLE checkpoint (position bigint NOT NULL); INSERT INTO checkpoint VALUES (0)`

func TestServerKilledInMidAppendLosesNothingAcknowledged(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: -short (kills a server)")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "wal_writer_delay=10s")
	b := newBenchAt(t, server.DSN)
	b.exec(consumerSchema)
	var losses int
	var mu sync.Mutex
	d := b.open(func(c *Config) {
		c.OnLoss = func(error) { mu.Lock(); losses++; mu.Unlock() }
	})
	crowd := b.crowd(d)
	acknowledged := map[string]bool{}
	for range 3 {
		for name := range crowd.run(8, killAfter, func() { server.Kill() }) {
			acknowledged[name] = true
		}
		server.Start()
		b.until("the detector is back", func() bool { return d.State().Err == nil })
	}
	require.NotEmpty(t, acknowledged)
	mu.Lock()
	require.Equal(t, 3, losses)
	mu.Unlock()
	last := b.appender().append()
	conn := b.conn()
	b.until("the mark reaches the end", func() bool { return b.persisted() >= last })
	for {
		n, err := b.consume(t.Context(), conn)
		require.NoError(t, err)
		if n == 0 {
			break
		}
	}
	rows, err := conn.Query(t.Context(), "SELECT body FROM applied")
	require.NoError(t, err)
	bodies, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	applied := map[string]int{}
	for _, body := range bodies {
		applied[body]++
	}
	for name := range acknowledged {
		require.Equalf(t, 1, applied[name], "event %s", name)
	}
	require.Zero(t, b.value(`SELECT count(*) FROM "My events" e WHERE NOT EXISTS (SELECT FROM applied a WHERE a.position = e.position)`))
	t.Logf("%d events acknowledged over 3 crashes, %d applied", len(acknowledged), len(bodies))
}
