package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/store"
)

var policy = retry.Policy{Min: 50 * time.Millisecond, Max: 10 * time.Second}

// A transient failure is tried for ever, at a bounded rate, and its end is told.
func TestTransientForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []error
		loop := policy.NewLoop(func(err error) { told = append(told, err) })
		busy := &store.TransientError{Op: "apply", Err: errors.New("busy")}
		start := time.Now()
		for range 1000 {
			require.NoError(t, loop.Again(t.Context(), busy))
		}
		require.InDelta(t, 10*time.Second*990, time.Since(start), float64(10*time.Second*300))
		loop.Done()
		require.Len(t, told, 1001)
		require.NoError(t, told[1000])
		loop.Done()
		require.Len(t, told, 1001)

		start = time.Now()
		require.NoError(t, loop.Again(t.Context(), busy))
		require.LessOrEqual(t, time.Since(start), 60*time.Millisecond)
	})
}

// An error nobody knows is given up after ten tries; success in between counts
// anew.
func TestUnknownEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		odd := errors.New("odd")
		loop := policy.NewLoop(nil)
		for range retry.UnknownMax {
			require.NoError(t, loop.Again(t.Context(), odd))
		}
		var exhausted *retry.ExhaustedError
		err := loop.Again(t.Context(), odd)
		require.ErrorAs(t, err, &exhausted)
		require.ErrorIs(t, err, odd)

		loop = policy.NewLoop(nil)
		for range 5 * retry.UnknownMax {
			require.NoError(t, loop.Again(t.Context(), odd))
			loop.Done()
		}
	})
}

func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Millisecond, func() { cancel(stop) })
		require.ErrorIs(t, policy.NewLoop(nil).Again(ctx, &store.TransientError{Err: errors.New("busy")}), stop)
	})
}
