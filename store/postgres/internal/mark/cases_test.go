package mark

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The deterministic interleavings. In each, an algorithm that is wrong loses an
// event, and the detector does not.

func (b *bench) detector() looker { return real{b.t, b.byHand()} }

// both runs an interleaving with the algorithm that loses and with the detector.
func both(t *testing.T, wrong func(*bench) looker, play func(*bench, *follower)) {
	t.Run("loses", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		f := b.follow(wrong(b))
		play(b, f)
		require.NotEmpty(t, f.lost())
	})
	t.Run("detector", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		f := b.follow(b.detector())
		play(b, f)
		f.step()
		require.Empty(t, f.lost())
		require.Equal(t, b.value(`SELECT max(position) FROM "My events"`), f.cursor, "the mark reaches the last event")
	})
}

func TestLockTakenAfterTheDraw(t *testing.T) { // D1
	t.Parallel()
	both(t, func(b *bench) looker { return b.variant(advisoryHolders) }, func(b *bench, f *follower) {
		a := b.appender()
		a.do("BEGIN")
		p := a.draw()
		f.step()
		a.advisory()
		f.step()
		a.insertAt(p)
		a.do("COMMIT")
		f.step()
	})
	t.Run("advisory lock first", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		f := b.follow(b.variant(advisoryHolders))
		a := b.appender()
		a.do("BEGIN")
		a.advisory()
		p := a.draw()
		f.step()
		a.insertAt(p)
		a.do("COMMIT")
		f.step()
		require.Empty(t, f.lost())
		require.Equal(t, p, f.cursor)
	})
}

func TestAppenderActsBetweenTheReads(t *testing.T) { // D2
	t.Parallel()
	play := func(b *bench, f *follower) {
		a, other := b.appender(), b.appender()
		f.step()
		f.step(func() {
			a.do("BEGIN")
			a.insert()
			other.append()
		})
		a.do("COMMIT")
		f.step()
	}
	both(t, func(b *bench) looker { return b.variant(sequenceHolders, setFirst) }, play)
}

func TestForeignAppenderWithoutAnExtraLock(t *testing.T) { // D3
	t.Parallel()
	play := func(b *bench, f *follower) {
		a := b.appender()
		a.do("BEGIN")
		a.insert()
		f.step()
		a.do("COMMIT")
		f.step()
	}
	both(t, func(b *bench) looker { return b.variant(advisoryHolders) }, play)
	t.Run("table lock", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		f := b.follow(b.variant(tableHolders))
		play(b, f)
		require.Empty(t, f.lost())
	})
}

func TestPositionDrawnBeforeTheInsert(t *testing.T) { // D4
	t.Parallel()
	both(t, func(b *bench) looker { return b.variant(tableHolders) }, func(b *bench, f *follower) {
		a := b.appender()
		a.do("BEGIN")
		p := a.draw()
		f.step()
		a.insertAt(p)
		a.do("COMMIT")
		f.step()
	})
}

func TestAdvisoryLockOfARolledBackSavepoint(t *testing.T) { // D5m
	t.Parallel()
	both(t, func(b *bench) looker { return b.variant(advisoryHolders) }, func(b *bench, f *follower) {
		a := b.appender()
		a.do("BEGIN; SAVEPOINT s")
		a.advisory()
		a.draw()
		a.do("ROLLBACK TO s")
		a.insert()
		f.step()
		a.do("COMMIT")
		f.step()
	})
}

func TestPositionDrawnInARolledBackSavepoint(t *testing.T) { // D5t
	t.Parallel()
	both(t, func(b *bench) looker { return b.variant(tableHolders) }, func(b *bench, f *follower) {
		a := b.appender()
		a.do("BEGIN; SAVEPOINT s")
		p := a.insert()
		a.do("ROLLBACK TO s")
		f.step()
		a.insertAt(p)
		a.do("COMMIT")
		f.step()
	})
}

func TestSequenceWithACache(t *testing.T) { // D7
	t.Parallel()
	play := func(b *bench, look func()) {
		b.exec(`ALTER SEQUENCE "My events_position_seq" CACHE 20`)
		a := b.appender()
		a.append()
		look()
		a.append() // the second of those drawn ahead
		look()
	}
	t.Run("loses", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		f := b.follow(b.variant(sequenceHolders))
		play(b, func() { f.step() })
		require.NotEmpty(t, f.lost())
	})
	t.Run("detector", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		d := b.byHand()
		f := b.follow(real{t, d})
		first := b.appender().append()
		f.step()
		play(b, func() {
			_, err := d.cycle(t.Context(), true, false)
			require.ErrorContains(t, err, "CACHE 1")
			require.Equal(t, first, d.State().Mark, "the mark stands still")
		})
		b.exec(`ALTER SEQUENCE "My events_position_seq" CACHE 1`)
		f.step()
		last := b.appender().append()
		require.Equal(t, last, f.step(), "and goes on")
		require.Empty(t, f.lost())
	})
}

func TestPositionDrawnInAnEarlierTransaction(t *testing.T) { // D8
	// No detector can see it: the contract forbids it, and this is what it is for.
	t.Parallel()
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	p := a.draw()
	f.step()
	a.insertAt(p)
	f.step()
	require.Equal(t, []int64{p}, f.lost())
}

func TestReaderWhoseSnapshotIsOlderThanTheMark(t *testing.T) { // D9
	t.Parallel()
	both := func(t *testing.T, isolation pgx.TxIsoLevel) []int64 {
		b := newBench(t)
		f := b.follow(b.detector())
		tx, err := f.conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: isolation})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		f.read(0) // takes the snapshot
		b.appender().append()
		f.step()
		return f.lost()
	}
	t.Run("loses", func(t *testing.T) { t.Parallel(); require.NotEmpty(t, both(t, pgx.RepeatableRead)) })
	t.Run("new snapshot", func(t *testing.T) { t.Parallel(); require.Empty(t, both(t, pgx.ReadCommitted)) })
}

func TestKilledAppenderHoldsNothing(t *testing.T) { // D10
	t.Parallel()
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	b.appender().append()
	require.Less(t, f.step(), p)
	b.exec("SELECT pg_terminate_backend($1)", a.conn.PgConn().PID())
	b.until("its locks are gone", func() bool { return f.step() == p+1 })
	require.Empty(t, f.lost())
}

func TestAlterSequenceBehindAnAppender(t *testing.T) { // D11
	// ALTER makes the appender's lock move from its own slots to the main table.
	t.Parallel()
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	b.appender().append()
	require.Less(t, f.step(), p)
	altered := make(chan error, 1)
	other := b.conn()
	go func() {
		_, err := other.Exec(context.Background(), `ALTER SEQUENCE "My events_position_seq" CACHE 1`)
		altered <- err
	}()
	b.until("ALTER waits", func() bool {
		return b.value(`SELECT count(*) FROM pg_locks WHERE relation = '"My events_position_seq"'::regclass AND NOT granted`) == 1
	})
	require.Less(t, f.step(), p)
	a.do("COMMIT")
	require.NoError(t, <-altered)
	require.Equal(t, p+1, f.step())
	require.Empty(t, f.lost())
}

func TestFreshDetectorMeetsAnOpenAppender(t *testing.T) { // D12
	t.Parallel()
	b := newBench(t)
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	last := b.appender().append()
	f := b.follow(b.detector())
	require.Less(t, f.step(), p)
	a.do("COMMIT")
	require.GreaterOrEqual(t, f.step(), last)
	require.Empty(t, f.lost())

	t.Run("loses", func(t *testing.T) {
		// Whoever is open at the first look is taken for somebody who came after it.
		b := newBench(t)
		v := b.variant(sequenceHolders)
		a := b.appender()
		a.do("BEGIN")
		a.insert()
		v.tracker.fresh, v.tracker.prevEnd = false, b.value(`SELECT last_value FROM "My events_position_seq"`)
		f := b.follow(v)
		f.step()
		a.do("COMMIT")
		f.step()
		require.NotEmpty(t, f.lost())
	})
}

func TestMoreLocksThanATransactionsOwnSlots(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	for i := range 20 {
		a.do(`CREATE TABLE t_` + string(rune('a'+i)) + ` (x int)`)
	}
	a.do("BEGIN")
	for i := range 20 {
		a.do(`INSERT INTO t_` + string(rune('a'+i)) + ` VALUES (1)`)
	}
	p := a.insert()
	b.appender().append()
	require.Less(t, f.step(), p)
	a.do("COMMIT")
	require.Equal(t, p+1, f.step())
	require.Empty(t, f.lost())
}

func TestDrawsByCopyAndByReadersOfTheSequence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	f := b.follow(b.detector())
	a := b.appender()
	a.do("BEGIN")
	_, err := a.conn.CopyFrom(t.Context(), pgx.Identifier{"My events"}, []string{"body"}, pgx.CopyFromRows([][]any{{"1"}, {"2"}}))
	require.NoError(t, err)
	b.appender().append()
	before := f.step()
	require.Zero(t, b.value(`SELECT count(*) FROM "My events" WHERE position <= $1`, before))
	a.do("COMMIT")
	last := f.step()
	require.EqualValues(t, 3, b.value(`SELECT count(*) FROM "My events" WHERE position <= $1`, last))
	// Reading the sequence, as pg_dump does, holds nothing.
	a.do(`BEGIN; SELECT last_value FROM "My events_position_seq"`)
	p := b.appender().append()
	require.Equal(t, p, f.step())
}
