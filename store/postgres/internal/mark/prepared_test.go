package mark

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// newPreparedBench is on a server that takes prepared transactions.
func newPreparedBench(t *testing.T) *bench {
	b := newBench(t)
	if b.value("SELECT current_setting('max_prepared_transactions')::bigint") == 0 {
		b = newBenchAt(t, dbtest.NewPostgres(t, "max_prepared_transactions=10").DSN)
	}
	return b
}

// prepare ends the appender's transaction by PREPARE and gives its name. What is
// left of it is rolled back at the end of the test: it would outlive everything.
func (a *appender) prepare() string {
	a.b.t.Helper()
	gid := fmt.Sprintf("ph_%d_%d", a.conn.PgConn().PID(), a.value("SELECT txid_current()"))
	a.b.t.Cleanup(func() {
		c, err := pgx.Connect(context.Background(), a.b.dsn)
		require.NoError(a.b.t, err)
		_, _ = c.Exec(context.Background(), "ROLLBACK PREPARED '"+gid+"'")
		_ = c.Close(context.Background())
	})
	a.do("PREPARE TRANSACTION '" + gid + "'")
	return gid
}

func TestTransactionPreparedWhileItIsAwaited(t *testing.T) { // D6
	t.Parallel()
	play := func(b *bench, f *follower) {
		a := b.appender()
		f.step()
		a.do("BEGIN")
		a.insert()
		f.step()
		b.appender().append()
		f.step()
		gid := a.prepare()
		f.step()
		b.appender().append()
		f.step()
		b.exec("COMMIT PREPARED '" + gid + "'")
		f.step()
	}
	t.Run("loses", func(t *testing.T) {
		t.Parallel()
		b := newPreparedBench(t)
		f := b.follow(b.variant(sequenceHolders, func(v *variant) { v.byPID = true }))
		play(b, f)
		require.NotEmpty(t, f.lost())
	})
	t.Run("detector", func(t *testing.T) {
		t.Parallel()
		b := newPreparedBench(t)
		f := b.follow(b.detector())
		play(b, f)
		require.Empty(t, f.lost())
		require.Equal(t, b.value(`SELECT max(position) FROM "My events"`), f.cursor)
	})
}

func TestPreparedAppendIsAwaitedAndNamed(t *testing.T) {
	t.Parallel()
	b := newPreparedBench(t)
	d := b.byHand()
	f := b.follow(real{t, d})
	f.step()
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	gid := a.prepare()
	last := b.appender().append()
	require.Less(t, f.step(), p)
	d.since = d.since.Add(-2 * holderAfter)
	f.step()
	h := d.State().Holder
	require.NotNil(t, h)
	require.Equal(t, gid, h.Prepared)
	require.Zero(t, h.PID)
	require.NotZero(t, h.SinceUS)
	b.exec("COMMIT PREPARED '" + gid + "'")
	require.Equal(t, last, f.step())
	require.Empty(t, f.lost())
	require.Nil(t, d.State().Holder)
}

func TestPreparedAppendOutlivesACrash(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "max_prepared_transactions=10")
	b := newBenchAt(t, server.DSN)
	f := b.follow(b.detector())
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	gid := a.prepare()
	b.appender().append()
	require.Less(t, f.step(), p)
	server.Kill()
	server.Start()
	// It has another name now, and the detector is a new one.
	var name string
	require.NoError(t, b.conn().QueryRow(t.Context(), `SELECT virtualtransaction FROM pg_locks
		WHERE relation = '"My events_position_seq"'::regclass AND mode = 'RowExclusiveLock'`).Scan(&name))
	require.Regexp(t, "^-1/", name)
	d := b.byHand()
	f.by, f.conn = real{t, d}, b.conn()
	last := b.appender().append()
	require.Less(t, f.step(), p)
	d.since = d.since.Add(-2 * holderAfter)
	f.step()
	require.Equal(t, gid, d.State().Holder.Prepared)
	b.exec("COMMIT PREPARED '" + gid + "'")
	require.Equal(t, last, f.step())
	require.Empty(t, f.lost())
}

func TestUnrelatedTransactionsHoldNothing(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(b, elsewhere *bench){
		"idle writer in another database": func(_, elsewhere *bench) {
			elsewhere.appender().do(`BEGIN; INSERT INTO "My events" (body) VALUES ('x')`)
		},
		"forgotten prepared transaction in another database": func(_, elsewhere *bench) {
			a := elsewhere.appender()
			a.do("BEGIN")
			a.insert()
			a.prepare()
		},
		"idle writer of another table": func(b, _ *bench) {
			a := b.appender()
			a.do("CREATE TABLE other (x int)")
			a.do("BEGIN; INSERT INTO other VALUES (1)")
		},
		"forgotten prepared transaction of another table": func(b, _ *bench) {
			a := b.appender()
			a.do("CREATE TABLE other (x int)")
			a.do("BEGIN; INSERT INTO other VALUES (1)")
			a.prepare()
		},
		"idle retention": func(b, _ *bench) {
			b.appender().append()
			b.appender().do(`BEGIN; DELETE FROM "My events"`)
		},
		"idle writer that reads the sequence": func(b, _ *bench) {
			a := b.appender()
			a.do("CREATE TABLE other (x int)")
			a.do(`BEGIN; INSERT INTO other VALUES (1); SELECT last_value FROM "My events_position_seq"`)
		},
		"idle reader in an old snapshot": func(b, _ *bench) {
			b.appender().do(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM "My events"`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newPreparedBench(t)
			// The same oids in another database must not be taken for ours.
			elsewhere := newBenchAt(t, dbtest.Postgres(t))
			open(b, elsewhere)
			f := b.follow(b.detector())
			for range 5 {
				p := b.appender().append()
				require.Equal(t, p, f.step())
			}
			require.Len(t, f.got, int(f.b.value(`SELECT count(*) FROM "My events"`)))
		})
	}
}
