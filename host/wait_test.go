package host_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/store"
)

// Who waits for what other hosts apply asks nobody himself: the store is asked as
// often for a thousand readers as for one, and no more when they are gone.
func TestOneLookIsForAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		var views atomic.Int64
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "View" {
				views.Add(1)
				time.Sleep(3 * time.Millisecond)
			}
			return nil, nil
		})
		others, idle := start(t, st, nil, counter("c")), start(t, st, func(c *host.Config) { c.MaxPartitions = 1 }, counter("c"))
		time.Sleep(time.Minute)
		waiting := func(readers int, each time.Duration) (looks int64) {
			before := views.Load()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var done sync.WaitGroup
			for i := range readers {
				time.Sleep(each / time.Duration(readers))
				done.Go(func() {
					p := i % partitions
					if i%3 == 0 {
						p = host.AllPartitions
					}
					var late *host.NotCaughtUpError
					require.ErrorAs(t, idle.WaitApplied(ctx, projection("c"), store.EventsTopic, 1, p), &late)
				})
			}
			done.Wait()
			synctest.Wait()
			looks = views.Load() - before
			time.Sleep(10 * time.Second)
			require.Equal(t, before+looks, views.Load(), "nobody waits any more")
			return looks
		}
		one := waiting(1, 0)
		require.InDelta(t, 20+16, one, 3, "each 50 ms for a second, each 250 ms for four")
		require.InDelta(t, one, waiting(1000, 0), 1)
		require.LessOrEqual(t, waiting(1000, 4*time.Second), int64(5*20), "they come one after the other: each 50 ms")

		before := views.Load()
		st.Append(store.Event{AggregateType: "a", AggregateID: "k", Type: "T"})
		began := time.Now()
		var done sync.WaitGroup
		for range 1000 {
			done.Go(func() {
				require.NoError(t, idle.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 1, host.AllPartitions))
				require.LessOrEqual(t, time.Since(began), 350*time.Millisecond)
			})
		}
		done.Wait()
		require.LessOrEqual(t, views.Load()-before, int64(8))
		require.NoError(t, others.stop())
		require.NoError(t, idle.stop())
		require.Empty(t, st.Problems())
	})
}

// A reader whose time was too short is told which partitions lag and where they
// are, on whichever host; so is who asks for the status, also on a host that does
// not run the consumer. What is there is said to be there however short the time.
func TestLaggingIsToldOfAllHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		sick := &ill{Store: st}
		hosts := []running{start(t, sick, nil, counter("c")), start(t, st, nil, counter("c")), start(t, st, nil, counter("d"))}
		time.Sleep(20 * time.Second)
		// Each hundred has something for every partition: one without would go on
		// whether its host can apply or not.
		events := someEvents(200)
		for i, busy := range [2]map[int]bool{{}, {}} {
			for j := range 100 {
				e := &events[100*i+j]
				e.AggregateID = fmt.Sprintf("k%d", j)
				busy[store.PartitionOf(e.AggregateID, partitions)] = true
			}
			require.Len(t, busy, partitions)
		}
		st.Append(events[:100]...)
		time.Sleep(5 * time.Second)
		ended := func(wait time.Duration, h running, position int64, p int) error {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			return h.WaitApplied(ctx, projection("c"), store.EventsTopic, position, p)
		}
		for _, h := range hosts {
			require.NoError(t, ended(0, h, 100, host.AllPartitions))
			require.NoError(t, ended(0, h, 100, 3))
			require.Equal(t, int64(0), status(t, h, "c").Lag)
		}

		behind := make(map[int]int64) // where they stand
		for _, p := range of(t, hosts[0], "c") {
			behind[p.Partition] = 100
		}
		require.Greater(t, len(behind), 3)
		require.Less(t, len(behind), partitions)
		con, err := st.Consumer(t.Context(), projection("c"))
		require.NoError(t, err)
		sick.of.Store(con.Build)
		st.Append(events[100:]...)
		time.Sleep(5 * time.Second)
		for i, h := range hosts {
			for _, wait := range []time.Duration{0, 40 * time.Millisecond, 2 * time.Second} {
				var late *host.NotCaughtUpError
				require.ErrorAs(t, ended(wait, h, 200, host.AllPartitions), &late, "host %d", i)
				lagging := make(map[int]int64)
				for _, l := range late.Lagging {
					lagging[l.Partition] = l.Position
				}
				require.Equal(t, behind, lagging, "host %d after %v", i, wait)
				for p := range partitions { // so soon that the sick host is not found out meanwhile
					wait := min(wait, 40*time.Millisecond)
					if _, lags := behind[p]; lags {
						require.ErrorAs(t, ended(wait, h, 200, p), &late)
						require.Equal(t, []host.Lagging{{Partition: p, Position: 100}}, late.Lagging)
					} else {
						require.NoError(t, ended(wait, h, 200, p))
					}
				}
			}
			s := status(t, h, "c")
			require.Equal(t, int64(100), s.Lag, "host %d", i)
			require.Len(t, s.Topics[0].Partitions, partitions)
			for _, p := range s.Topics[0].Partitions {
				want := int64(0)
				if _, lags := behind[p.Partition]; lags {
					want = 100
				}
				require.Equal(t, want, p.Lag, "partition %d on host %d", p.Partition, i)
				require.NotEmpty(t, p.Owner)
				require.NotZero(t, p.Generation)
			}
		}
		sick.of.Store(0)
		for _, h := range hosts {
			require.NoError(t, ended(time.Minute, h, 200, host.AllPartitions))
			require.ErrorIs(t, h.WaitApplied(t.Context(), projection("nobody"), store.EventsTopic, 1, 0), host.ErrUnknownConsumer)
			require.ErrorIs(t, h.WaitApplied(t.Context(), projection("c"), "capture", 1, 0), host.ErrNotAnInput)
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// A reader who has gone is not waited for; nor does a store that does not answer
// keep one for much longer than his time.
func TestWaitEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		h := start(t, st, nil, counter("c"))
		other := start(t, st, nil, counter("d"))
		time.Sleep(20 * time.Second)
		var silent atomic.Bool
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "View" && silent.Load() {
				time.Sleep(time.Minute)
			}
			return nil, nil
		})
		silent.Store(true)
		var late *host.NotCaughtUpError
		gone, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		require.ErrorAs(t, other.WaitApplied(gone, projection("c"), store.EventsTopic, 1, 0), &late)
		require.Equal(t, time.Second, time.Since(began))
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began = time.Now()
		require.ErrorAs(t, other.WaitApplied(short, projection("c"), store.EventsTopic, 1, 0), &late)
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Empty(t, late.Lagging, "nothing is known")
		silent.Store(false)
		time.Sleep(2 * time.Minute)
		require.NoError(t, h.stop())
		require.NoError(t, other.stop())
		require.Empty(t, st.Problems())
	})
}
