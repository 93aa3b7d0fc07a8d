package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/store"
)

// The hosts of these tests run within testing/synctest: every sleep is of virtual
// time.

// Claims that fail, with whatever, for however long, and what a session is opened
// with that is not read in time, halt nothing: none of that is a message's fault.
// Once they succeed everything goes on, and nobody speaks of it any more.
func TestFailedClaimsHaltNothing(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("wait for a connection: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		call string
		err  error
	}{{"Claim", late}, {"Claim", errors.New("a code that nobody knows")}, {"Claim", store.ErrNotFound}, {"Checkpoints", late}} {
		t.Run(fmt.Sprint(c.call, " ", c.err), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := fake.NewStore(partitions)
				events := someEvents(60)
				st.Append(events[:30]...)
				hosts := []running{start(t, st, nil, counter("c")), start(t, st, nil, counter("c")), start(t, st, nil, counter("c"))}
				time.Sleep(time.Minute)
				var failed atomic.Int64
				st.SetFault(func(call string, _ int) (error, error) {
					if call == c.call {
						failed.Add(1)
						return c.err, nil
					}
					return nil, nil
				})
				require.NoError(t, hosts[2].stop())
				st.Append(events[30:]...)
				time.Sleep(10 * time.Minute)
				require.Greater(t, failed.Load(), int64(20))
				st.SetFault(nil)
				time.Sleep(time.Minute)
				for _, h := range hosts[:2] {
					require.Equal(t, host.StateRunning, status(t, h, "c").State)
					ready, why := h.Ready()
					require.True(t, ready, why)
				}
				require.Equal(t, want(events), seen(st, "c"))
				for _, h := range hosts[:2] {
					require.NoError(t, h.stop())
				}
				require.Empty(t, st.Problems())
			})
		})
	}
}

// A halt that cannot be recorded, since the database refuses that, is not for
// ever: what failed is tried again, for nobody could clear what nobody knows.
func TestHaltNotRecordedIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		var mended, refused atomic.Bool
		h := start(t, st, nil, counter("c"))
		time.Sleep(time.Minute)
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Halt" {
				refused.Store(true)
			}
			if call == "Halt" || call == "Apply" && !mended.Load() {
				return errors.New("a code that nobody knows"), nil
			}
			return nil, nil
		})
		st.Append(events...)
		time.Sleep(10 * time.Minute)
		require.True(t, refused.Load())
		mended.Store(true)
		time.Sleep(2 * time.Minute)
		require.Equal(t, host.StateRunning, status(t, h, "c").State)
		ready, why := h.Ready()
		require.True(t, ready, why)
		require.Equal(t, want(events), seen(st, "c"))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}
