package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
)

// The one limit of everything that is waited for, and how often it is looked at.
const (
	waitMax  = 30 * time.Second
	waitStep = time.Millisecond
)

// hold keeps the writer busy until the returned function is called.
func hold(t testing.TB, s *Store) (release func()) {
	t.Helper()
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := s.write(context.Background(), "hold", 1, func(*tx) error {
			close(held)
			<-free
			return nil
		})
		if err != nil {
			t.Errorf("hold: %v", err)
		}
	}()
	<-held
	return func() {
		close(free)
		<-done
	}
}

// put inserts a row of a scratch table and then does what f says.
func put(tx *tx, n int, f func() error) error {
	if _, err := tx.exec(`INSERT INTO scratch VALUES (?)`, int64(n)); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	return f()
}

func scratch(t testing.TB, opt Options) *Store {
	s := openTest(t, opt)
	run(t, s.opt.DSN, `CREATE TABLE scratch (n INTEGER NOT NULL UNIQUE)`)
	return s
}

func scratchRows(t testing.TB, s *Store) (list []int64) {
	t.Helper()
	require.NoError(t, s.read(t.Context(), "test", func(c *conn) error {
		r, err := c.query(t.Context(), `SELECT n FROM scratch ORDER BY rowid`)
		if err != nil {
			return err
		}
		for r.next() {
			list = append(list, r.int(0))
		}
		return r.close()
	}))
	return list
}

// queued starts writes one after the other while the writer is held, so that
// they share a transaction, and returns their errors once they have ended.
func queued(t testing.TB, s *Store, writes ...func(tx *tx) error) []error {
	t.Helper()
	release := hold(t, s)
	errs := make([]error, len(writes))
	var wg sync.WaitGroup
	for i, fn := range writes {
		wg.Go(func() { errs[i] = s.write(context.Background(), fmt.Sprint("write ", i), 1, fn) })
		waitForQueue(t, s.writer, i+1)
	}
	release()
	wg.Wait()
	return errs
}

func TestWaitingWritesShareACommit(t *testing.T) {
	s := scratch(t, Options{})
	boom := errors.New("boom")
	var order []int
	after := func(tx *tx, n int) { tx.afterCommit(func() { order = append(order, n) }) }
	errs := queued(t, s,
		func(tx *tx) error { after(tx, 0); return put(tx, 0, nil) },
		func(tx *tx) error { after(tx, 1); return put(tx, 1, func() error { return boom }) },
		func(tx *tx) error { after(tx, 2); return put(tx, 0, nil) },
		func(tx *tx) error {
			after(tx, 3)
			n, err := tx.queryInt(bg, `SELECT count(*) FROM scratch`)
			return errors.Join(err, put(tx, int(n)*100, nil))
		},
	)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], boom)
	require.True(t, isData(errs[2]), "%v", errs[2])
	require.NoError(t, errs[3])
	require.Equal(t, []int64{0, 100}, scratchRows(t, s), "what failed has left nothing, what went before it stays")
	require.Equal(t, []int{0, 3}, order, "only the committed are told, in order")
}

// A transaction that SQLite gave up as a whole takes nobody down but the one
// it failed for.
func TestLostTransactionIsRunAgainOneByOne(t *testing.T) {
	s := scratch(t, Options{})
	runs := make([]int, 3)
	errs := queued(t, s,
		func(tx *tx) error { runs[0]++; return put(tx, 0, nil) },
		func(tx *tx) error {
			runs[1]++
			return put(tx, 1, func() error {
				// What a full disk does in the middle.
				_, err := tx.exec("ROLLBACK")
				return errors.Join(err, errors.New("lost"))
			})
		},
		func(tx *tx) error { runs[2]++; return put(tx, 2, nil) },
	)
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "lost")
	require.NoError(t, errs[2])
	require.Equal(t, []int64{0, 2}, scratchRows(t, s))
	require.Equal(t, []int{2, 2, 1}, runs)
}

func TestWritesRunInOrderOfArrival(t *testing.T) {
	s := scratch(t, Options{})
	var writes []func(tx *tx) error
	var want []int64
	for n := range 3*groupMax + 5 {
		writes = append(writes, func(tx *tx) error { return put(tx, n, nil) })
		want = append(want, int64(n))
	}
	for _, err := range queued(t, s, writes...) {
		require.NoError(t, err)
	}
	require.Equal(t, want, scratchRows(t, s))
}

// A big write is in a transaction of its own: nobody's single row waits for it
// longer than it has to.
func TestBigWritesAreNotJoined(t *testing.T) {
	s := scratch(t, Options{})
	release := hold(t, s)
	var mu sync.Mutex
	var seen []string
	var wg sync.WaitGroup
	for i, rows := range []int{1, 1, 5000, 1, 1} {
		wg.Go(func() {
			err := s.write(context.Background(), "test", rows, func(tx *tx) error {
				return put(tx, i, func() error {
					// What readers see tells which transaction this is.
					mu.Lock()
					defer mu.Unlock()
					n := len(scratchRows(t, s))
					seen = append(seen, fmt.Sprint(i, " after ", n))
					return nil
				})
			})
			if err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
		waitForQueue(t, s.writer, i+1)
	}
	release()
	wg.Wait()
	require.Equal(t, []string{"0 after 0", "1 after 0", "2 after 2", "3 after 3", "4 after 3"}, seen)
}

func TestWaitingWriteCanBeCancelled(t *testing.T) {
	s := scratch(t, Options{})
	release := hold(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		left <- s.write(ctx, "test", 1, func(tx *tx) error { return put(tx, 1, nil) })
	}()
	waitForQueue(t, s.writer, 1)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled, "it does not wait for the writer")
	release()
	require.Empty(t, scratchRows(t, s))
}

// Who is handed the queue in the moment it goes away hands it on: else nobody
// would ever write again.
func TestCancelledLeaderHandsOver(t *testing.T) {
	s := scratch(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	leaves := &writeCall{ctx: ctx, turn: make(chan turn, 1)}
	stays := &writeCall{ctx: t.Context(), turn: make(chan turn, 1), fn: func(tx *tx) error { return put(tx, 1, nil) }}
	s.writer.led, s.writer.queue = true, []*writeCall{leaves, stays}
	leaves.state = callLeads
	require.ErrorIs(t, s.writer.leave(leaves), context.Canceled)
	require.Equal(t, turnLead, <-stays.turn)
	require.NoError(t, s.writer.lead(stays))
	require.Equal(t, []int64{1}, scratchRows(t, s))
	require.False(t, s.writer.led)
}

func TestCloseRefusesWhoWaits(t *testing.T) {
	s := scratch(t, Options{})
	release := hold(t, s)
	waiting := make(chan error)
	go func() {
		waiting <- s.write(context.Background(), "test", 1, func(tx *tx) error { return put(tx, 1, nil) })
	}()
	waitForQueue(t, s.writer, 1)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	require.ErrorIs(t, <-waiting, errClosed)
	release()
	require.NoError(t, <-closed)
}

// An unknown outcome is told as one, costs an incarnation and a connection, and
// is over with the next write.
func TestUnknownOutcomeOfACommit(t *testing.T) {
	s := scratch(t, Options{})
	before := s.Incarnation()
	err := s.write(t.Context(), "test", 1, func(tx *tx) error {
		return put(tx, 1, func() error {
			_, err := tx.exec("COMMIT") // then the writer's own COMMIT fails
			return err
		})
	})
	var transient *store.TransientError
	require.ErrorAs(t, err, &transient)
	require.True(t, transient.OutcomeUnknown)
	require.Equal(t, lib.SQLITE_ERROR, primary(code(err)))
	require.Greater(t, s.Incarnation(), before)
	require.NoError(t, s.write(t.Context(), "test", 1, func(tx *tx) error { return put(tx, 2, nil) }))
	require.Equal(t, []int64{1, 2}, scratchRows(t, s))
}

func TestPanicOfAWriteLeavesTheQueueWorking(t *testing.T) {
	s := scratch(t, Options{})
	release := hold(t, s)
	panicked, beside := make(chan any), make(chan error)
	go func() {
		defer func() { panicked <- recover() }()
		_ = s.write(context.Background(), "test", 1, func(tx *tx) error { panic("mistake") })
	}()
	waitForQueue(t, s.writer, 1)
	go func() {
		beside <- s.write(context.Background(), "test", 1, func(tx *tx) error { return put(tx, 1, nil) })
	}()
	waitForQueue(t, s.writer, 2)
	release()
	require.Equal(t, "mistake", <-panicked)
	require.ErrorContains(t, <-beside, "panicked")
	require.NoError(t, s.write(t.Context(), "test", 1, func(tx *tx) error { return put(tx, 2, nil) }))
	require.Equal(t, []int64{2}, scratchRows(t, s))
}

// Many callers, some of which go away, fail or write much: every write that was
// acknowledged is there, once, and none that was refused.
func TestWriterHammer(t *testing.T) {
	s := scratch(t, Options{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	boom := errors.New("boom")
	const callers, rounds = 12, 60
	var mu sync.Mutex
	want := map[int64]bool{}
	var wg sync.WaitGroup
	for c := range callers {
		r := rand.New(rand.NewPCG(seed, uint64(c)))
		wg.Go(func() {
			for round := range rounds {
				n := c*rounds + round
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(3) == 0 {
					time.AfterFunc(time.Duration(r.IntN(1500))*time.Microsecond, cancel)
				}
				fails := r.IntN(4) == 0
				err := s.write(ctx, "test", 1+r.IntN(300), func(tx *tx) error {
					return put(tx, n, func() error {
						if fails {
							return boom
						}
						return nil
					})
				})
				cancel()
				switch {
				case err == nil && !fails:
					mu.Lock()
					want[int64(n)] = true
					mu.Unlock()
				case err == nil || !errors.Is(err, boom) && !errors.Is(err, context.Canceled):
					t.Errorf("write %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	got := map[int64]bool{}
	for _, n := range scratchRows(t, s) {
		require.False(t, got[n])
		got[n] = true
	}
	require.Equal(t, want, got)
	require.False(t, s.writer.led)
	require.Empty(t, s.writer.queue)
}
