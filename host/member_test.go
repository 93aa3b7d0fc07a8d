package host_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/store"
)

// logged is a host whose log is kept.
func logged(t *testing.T, st store.Store, modules ...*module) (h running, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	var plugins []host.Plugin
	for _, m := range modules {
		plugins = append(plugins, host.Plugin{Name: m.manifest.Consumers[0].Name, Module: m})
	}
	one, err := host.New(host.Deps{Store: st, Plugins: plugins, Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info, JSONFormat: true})}, host.DefaultConfig())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- one.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() })
	return running{one, stop}, log
}

// hold has another host, which runs it alone, own all partitions of a consumer.
func hold(t *testing.T, st *fake.Store, name, instance string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, st.Join(t.Context(), store.Instance{ID: instance, HostName: "other", TTL: ttl}))
	con, err := st.Consumer(t.Context(), projection(name))
	require.NoError(t, err)
	require.NoError(t, st.Enlist(t.Context(), instance, []store.Enlistment{{Build: con.Build}}))
	var all []int
	for p := range partitions {
		all = append(all, p)
	}
	leases, _, err := st.Claim(t.Context(), instance, con.Build, all)
	require.NoError(t, err)
	require.Len(t, leases, partitions)
}

// made is a store whose consumers have run once.
func made(t *testing.T, events []store.Event, names ...string) *fake.Store {
	t.Helper()
	st := fake.NewStore(partitions)
	h := start(t, st, nil, counter(names...))
	synctest.Wait()
	require.NoError(t, h.stop())
	st.Append(events...)
	return st
}

// The host that was killed counts as running until its time is over: the next one
// waits for its partitions, says so once and shows it, and then goes on. It
// counts no failure and asks little meanwhile.
func TestWaitsForAHostThatWasKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := someEvents(60)
		st := made(t, events, "c", "d", "e")
		hold(t, st, "c", "killed", 15*time.Second)
		hold2 := func(name string) {
			con, err := st.Consumer(t.Context(), projection(name))
			require.NoError(t, err)
			_, _, err = st.Claim(t.Context(), "killed", con.Build, []int{1, 2})
			require.NoError(t, err)
		}
		hold2("d")
		began := time.Now()
		h, log := logged(t, st, counter("c", "d", "e"))
		synctest.Wait()
		require.Equal(t, want(events), seen(st, "e"), "who is held up by nobody runs")
		s := status(t, h, "c")
		require.Equal(t, host.StateWaiting, s.State)
		require.Equal(t, `host "other" (instance killed) has 16 partitions and counts as running until 2000-01-01T00:00:15Z`, s.Reason)
		require.Len(t, of(t, h, "d"), partitions-2)
		ready, reasons := h.Ready()
		require.True(t, ready, reasons)

		calls := st.Calls()
		time.Sleep(10 * time.Second)
		require.Less(t, st.Calls()-calls, 10*(4+4+4+1)+5, "looking at the topic, who owns what, claims, heartbeats")
		require.Empty(t, seen(st, "c"))
		for name := range map[string]bool{"c": true, "d": true} {
			require.NoError(t, h.WaitApplied(t.Context(), projection(name), store.EventsTopic, 60, host.AllPartitions))
			require.Equal(t, want(events), seen(st, name))
			require.Equal(t, host.StateRunning, status(t, h, name).State)
		}
		require.InDelta(t, 15, time.Since(began).Seconds(), 5.5)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
		require.NotContains(t, log.String(), `"warn"`)
		require.NotContains(t, log.String(), `"error"`)
	})
}

// A host that was silent for too long and removed is another instance
// afterwards: everything is claimed anew under that, and nothing is lost or
// applied twice, whether or not somebody else was there in between.
func TestRemovedHostStartsAnew(t *testing.T) {
	t.Parallel()
	for _, stolen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			events := someEvents(90)
			st := made(t, events[:30], "c", "d")
			h, log := logged(t, st, counter("c", "d"))
			synctest.Wait()
			before, err := h.Status(t.Context())
			require.NoError(t, err)
			require.Len(t, before.Instances, 1)

			st.Kill()
			st.Append(events[30:60]...)
			if stolen {
				hold(t, st, "c", "quick", time.Second)
			}
			time.Sleep(4 * time.Second)
			st.Append(events[60:]...)
			for _, name := range []string{"c", "d"} {
				require.NoError(t, h.WaitApplied(t.Context(), projection(name), store.EventsTopic, 90, host.AllPartitions))
				require.Equal(t, want(events), seen(st, name))
			}
			after, err := h.Status(t.Context())
			require.NoError(t, err)
			require.NotEqual(t, before.InstanceID, after.InstanceID)
			for _, name := range []string{"c", "d"} {
				con, err := st.Consumer(t.Context(), projection(name))
				require.NoError(t, err)
				owners, err := st.Owners(t.Context(), con.Build)
				require.NoError(t, err)
				for _, o := range owners {
					require.Equal(t, after.InstanceID, o.InstanceID)
				}
			}
			require.NoError(t, h.stop())
			require.LessOrEqual(t, st.Instances(), 1, "it leaves under its last id; quick never does")
			require.Empty(t, st.Problems())
			require.Equal(t, 1, strings.Count(log.String(), "was removed"))
			if !stolen {
				require.NotContains(t, log.String(), `"retrying"`)
			}
		})
	}
}

// A database that cannot be reached for longer than the TTL, with nobody there to
// remove the host: it goes on under its id.
func TestOutageLongerThanTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := someEvents(60)
		st := made(t, events[:30], "c")
		h, _ := logged(t, st, counter("c"))
		synctest.Wait()
		before, err := h.Status(t.Context())
		require.NoError(t, err)
		st.SetFault(func(string, int) (error, error) {
			return &store.TransientError{Op: "any", Err: errors.New("away")}, nil
		})
		st.Append(events[30:]...)
		st.Crash()
		time.Sleep(time.Minute)
		st.SetFault(nil)
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 60, host.AllPartitions))
		require.Equal(t, want(events), seen(st, "c"))
		after, err := h.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.InstanceID, after.InstanceID)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// Heartbeats go on while a stop waits for the batches in hand: nobody takes the
// partitions away meanwhile.
func TestHeartbeatsWhileStopping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := made(t, someEvents(10), "c")
		release := make(chan struct{})
		var blocked atomic.Bool
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" && blocked.CompareAndSwap(false, true) {
				<-release
			}
			return nil, nil
		})
		h, _ := logged(t, st, counter("c"))
		synctest.Wait()
		began := time.Now()
		go h.stop()
		time.Sleep(14 * time.Second)
		list, err := st.ListInstances(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.InDelta(t, 12, time.UnixMicro(list[0].HeartbeatUS).Sub(began).Seconds(), 1)
		close(release)
		require.NoError(t, h.stop())
		require.Zero(t, st.Instances())
	})
}

// Surveys or heartbeats that fail are seen: the host is not ready after twice the
// TTL, and is again with the next that succeeds.
func TestOutOfTouchIsNotReady(t *testing.T) {
	t.Parallel()
	for call, reason := range map[string]string{"Survey": "no survey", "Heartbeat": "no heartbeat"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				st := fake.NewStore(partitions)
				h := start(t, st, nil, counter("c"))
				time.Sleep(10 * time.Second)
				st.SetFault(func(c string, _ int) (error, error) {
					if c == call {
						return errors.New("out of order"), nil
					}
					return nil, nil
				})
				ttl := host.DefaultConfig().InstanceTTL
				time.Sleep(2*ttl - 6*time.Second)
				ready, reasons := h.Ready()
				require.True(t, ready, reasons)
				time.Sleep(12 * time.Second)
				ready, reasons = h.Ready()
				require.False(t, ready)
				require.Contains(t, reasons[0], reason)
				st.SetFault(nil)
				time.Sleep(20 * time.Second)
				ready, reasons = h.Ready()
				require.True(t, ready, reasons)
				require.NoError(t, h.stop())
			})
		})
	}
}

// What no host runs is orphaned, and every host says so.
func TestAbandonedIsOrphaned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := made(t, nil, "c", "old")
		h := start(t, st, nil, counter("c"))
		time.Sleep(10 * time.Second)
		require.Len(t, status(t, h, "old").Orphans, partitions)
		require.Empty(t, status(t, h, "c").Orphans)
		other := start(t, st, nil, counter("old"))
		time.Sleep(20 * time.Second)
		require.Empty(t, status(t, h, "old").Orphans)
		require.NoError(t, other.stop())
		require.NoError(t, h.stop())
	})
}
