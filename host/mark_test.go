package host_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/store"
)

// A mark that stays behind the end holds back what follows it and nothing else:
// who waits for an acknowledged position is answered the moment the mark passes
// it, holes of rolled-back appends included.
func TestMarkBehindTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		h := start(t, st, nil, counter("c"))
		st.Append(events[:20]...)
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 20, host.AllPartitions))
		st.Hold(&store.MarkHolder{PID: 7, SinceUS: time.Now().UnixMicro()})
		st.Append(events[20:40]...)
		time.Sleep(time.Minute)
		require.Equal(t, want(events[:20]), seen(st, "c"))
		s, err := h.Status(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 40, s.Topics[0].End)
		require.EqualValues(t, 20, s.Topics[0].HighWaterMark)
		require.EqualValues(t, 7, s.Topics[0].Holder.PID)
		require.Zero(t, s.Consumers[0].Lag, "a consumer cannot be behind what nobody may read")

		done := make(chan time.Time, 1)
		go func() {
			require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 40, host.AllPartitions))
			done <- time.Now()
		}()
		time.Sleep(90*time.Millisecond + time.Second)
		st.Hold(nil)
		require.Zero(t, time.Until(<-done))
		require.Equal(t, want(events[:40]), seen(st, "c"))

		// A draw that was rolled back is passed, whether more comes or not.
		st.Hole(5)
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 45, host.AllPartitions))
		st.Append(events[40:]...)
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 65, host.AllPartitions))
		require.NoError(t, h.stop())
		require.EqualValues(t, 65, st.Lowest(projection("c"), store.EventsTopic))
		require.Empty(t, st.Problems())
	})
}

// Appends, roll-backs and holders in any order, readers of pages of any size:
// every event once and in order.
func TestMarkMovesInFits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 3))
			st := fake.NewStore(partitions)
			h := start(t, st, func(c *host.Config) {
				c.PageMessages, c.RingBytes, c.QueueBytes, c.Batch = 1+random.IntN(9), random.IntN(9000), 1+random.IntN(9000), random.IntN(8)
			}, counter("c", "d"))
			wanted := make(map[string]string)
			at := int64(0)
			for range 200 {
				switch random.IntN(5) {
				case 0:
					st.Hold(&store.MarkHolder{PID: 1})
				case 1:
					st.Hold(nil)
				case 2:
					n := 1 + random.Int64N(4)
					st.Hole(n)
					at += n
				case 3:
					time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
				default:
					for _, e := range someEvents(1 + random.IntN(7)) {
						st.Append(e)
						at++
						wanted[e.AggregateID] += fmt.Sprint(" ", at)
					}
				}
			}
			st.Hold(nil)
			for _, name := range []string{"c", "d"} {
				require.NoError(t, h.WaitApplied(t.Context(), projection(name), store.EventsTopic, at, host.AllPartitions))
				require.Equal(t, wanted, seen(st, name), "seed %d", seed)
			}
			require.NoError(t, h.stop())
			require.Empty(t, st.Problems())
		}
	})
}

// The lag of a mark and the age of its oldest holder are metrics; where the
// store does not answer they are absent, and nothing hangs.
func TestMetricsOfTheMark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		st.Append(someEvents(5)...)
		st.Hold(&store.MarkHolder{PID: 1, SinceUS: time.Now().Add(-time.Minute).UnixMicro()})
		st.Append(someEvents(7)...)
		r := prometheus.NewRegistry()
		_, err := host.New(host.Deps{Store: st, Metrics: r}, host.DefaultConfig())
		require.NoError(t, err)
		gauges := func() map[string]float64 {
			families, err := r.Gather()
			require.NoError(t, err)
			got := make(map[string]float64)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					got[f.GetName()] = m.GetGauge().GetValue()
				}
			}
			return got
		}
		got := gauges()
		require.EqualValues(t, 12, got["projhost_topic_end"])
		require.EqualValues(t, 5, got["projhost_topic_high_water_mark"])
		require.EqualValues(t, 7, got["projhost_topic_lag"])
		require.EqualValues(t, 60, got["projhost_topic_mark_held_seconds"])
		st.SetFault(func(string, int) (error, error) { return &store.TransientError{Op: "x"}, nil })
		require.NotContains(t, gauges(), "projhost_topic_lag")
	})
}

// What a host asks of the database while nothing happens does not grow with its
// consumers and partitions: pages every 250 ms for all together, heartbeats, surveys, and now and then a look for what hosts that are gone
// have left open. Only skip records are swept consumer by consumer, once a minute.
func TestIdleHostAsksLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls []int
		for _, consumers := range []int{1, 10} {
			st := fake.NewStore(partitions)
			// They come at different times, and have to meet at the end.
			st.Append(someEvents(500)...)
			var names []string
			for i := range consumers {
				names = append(names, fmt.Sprint("c", i))
			}
			h := start(t, st, func(c *host.Config) { c.RingBytes = 100 }, counter(names...))
			st.Append(someEvents(33)...)
			time.Sleep(5 * time.Minute)
			var sweeps atomic.Int32
			st.SetFault(func(call string, _ int) (error, error) {
				if call == "SweepSkips" {
					sweeps.Add(1)
				}
				return nil, nil
			})
			before := st.Calls()
			time.Sleep(time.Minute)
			require.InDelta(t, consumers, sweeps.Load(), float64(consumers), "none or two for some, as the minute falls")
			calls = append(calls, st.Calls()-before-int(sweeps.Load()))
			require.NoError(t, h.stop())
		}
		require.InDelta(t, calls[0], calls[1], 4)
		require.LessOrEqual(t, calls[0], 60*4+20+12+4+4)
	})
}
