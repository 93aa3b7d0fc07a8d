package mysql

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
)

// queued is the number of appends that wait for their turn.
func (g *groups) queued() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// Appends that wait share a transaction, and what one of them did wrong is its own
// affair.
func TestAppendsThatWaitShareATransaction(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t), Timeout: 2 * time.Minute}) // the appends wait for the lock
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err := s.Commit(t.Context(), appendTo("old", 0, withID(1000)))
	require.NoError(t, err)
	for _, bad := range []bool{false, true} {
		c := conns(t, s, 1)[0]
		patient(t, s, c)
		exec(t, c, "START TRANSACTION")
		exec(t, c, s.q.lockEnd)
		end := topic(t, s).End

		const writers = 20
		var wg sync.WaitGroup
		errs := make([]error, writers)
		results := make([]store.CommitResult, writers)
		call := func(ctx context.Context, w int, c store.Commit) {
			wg.Go(func() { results[w], errs[w] = s.Commit(ctx, c) })
		}
		// The first two are on their way and wait for the counter; the rest queue.
		for w := range writers {
			if w == groupsRunning {
				waitFor(t, func() bool {
					var n int
					err := c.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.PROCESSLIST WHERE DB = database() AND INFO LIKE 'UPDATE%'").Scan(&n)
					return err == nil && n == groupsRunning
				})
			}
			name := fmt.Sprint("w", w, " ", bad)
			switch {
			case bad && w == 7:
				call(t.Context(), w, appendTo("old", 0, event("2"))) // a conflict
			case bad && w == 9:
				call(t.Context(), w, appendTo("old", 0, withID(1000))) // a repeat
			case bad && w == 11:
				call(t.Context(), w, appendTo(name, 3, event("3"))) // there is no such version
			case w == 12:
				call(t.Context(), w, appendTo(fmt.Sprint("w13 ", bad), store.AnyVersion, event("1"))) // a stream that another has as well
			case w == 13:
				call(t.Context(), w, appendTo(name, store.AnyVersion, event("1")))
			default:
				call(t.Context(), w, appendTo(name, 0, event("1"), event("2")))
			}
		}
		waitFor(t, func() bool { return s.groups.queued() == writers-groupsRunning })
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := s.Commit(ctx, appendTo("gone", 0, event("1")))
			gone <- err
		}()
		waitFor(t, func() bool { return s.groups.queued() == writers-groupsRunning+1 })
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		exec(t, c, "ROLLBACK")
		wg.Wait()

		stored := 0
		for w, err := range errs {
			var conflict *store.ConflictError
			switch {
			case bad && (w == 7 || w == 11):
				require.ErrorAs(t, err, &conflict)
				require.EqualValues(t, map[int]int64{7: 1, 11: 0}[w], conflict.Actual)
				continue
			case bad && w == 9:
				require.NoError(t, err)
				require.True(t, results[w].Streams[0].Replayed)
				continue
			}
			require.NoError(t, err)
			r := results[w].Streams[0]
			require.False(t, r.Replayed)
			list, err := s.ReadStream(t.Context(), "account", r.AggregateID, r.Version-int64(len(r.IDs))+1, 10)
			require.NoError(t, err)
			require.Equal(t, r.FirstPosition, list[0].Position)
			require.Equal(t, r.IDs[0], list[0].ID)
			stored += len(r.IDs)
		}
		require.EqualValues(t, end+int64(stored), topic(t, s).End)
		version, err := s.StreamVersion(t.Context(), "account", "gone")
		require.NoError(t, err)
		require.Zero(t, version)
		require.Zero(t, s.groups.queued())
		require.Zero(t, s.groups.running)
		require.Empty(t, s.groups.busy)
	}
}
