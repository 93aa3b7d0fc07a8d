package host_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// The hosts of these tests run within testing/synctest: every sleep is of
// virtual time.

// owners lists who owns each partition of a consumer.
func owners(t *testing.T, st *fake.Store, name string) []store.Ownership {
	t.Helper()
	con, err := st.Consumer(t.Context(), projection(name))
	require.NoError(t, err)
	list, err := st.Owners(t.Context(), con.Build)
	require.NoError(t, err)
	return list
}

// of is what status tells of a host's own partitions.
func of(t *testing.T, h running, name string) []host.PartitionStatus {
	t.Helper()
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	for _, c := range s.Consumers {
		if c.ID.Name == name {
			return slices.DeleteFunc(c.Topics[0].Partitions, func(p host.PartitionStatus) bool { return p.Owner != s.InstanceID })
		}
	}
	return nil
}

// Hosts that come and go share the partitions of a consumer: what stays with a
// host stays under its generation, what moves is applied by its new owner from
// where the old one stopped, and in the end there is one session on each.
func TestHostsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(900)
		feed := func(from, to int) {
			for i := from; i < to; i++ {
				st.Append(events[i])
				time.Sleep(50 * time.Millisecond) // virtual time
			}
		}
		first := start(t, st, nil, counter("c", "d"))
		feed(0, 200)
		require.Len(t, of(t, first, "c"), partitions)
		before := owners(t, st, "c")

		second := start(t, st, nil, counter("c", "d"))
		feed(200, 400)
		a, b := of(t, first, "c"), of(t, second, "c")
		require.Equal(t, partitions, len(a)+len(b))
		require.LessOrEqual(t, max(len(a), len(b)), 10, "1.25 times a half")
		require.NotEmpty(t, b)
		after := owners(t, st, "c")
		for _, p := range a {
			require.Equal(t, before[p.Partition], after[p.Partition], "what stays is not claimed again")
		}
		for _, p := range b {
			require.Equal(t, before[p.Partition].Generation+1, after[p.Partition].Generation, "what moves is claimed once")
		}

		third := start(t, st, nil, counter("d", "c"))
		feed(400, 600)
		for _, h := range []running{first, second, third} {
			require.LessOrEqual(t, len(of(t, h, "c")), 7)
			require.LessOrEqual(t, len(status(t, h, "c").Lanes), min(host.DefaultConfig().LaneCount(), len(of(t, h, "c"))), "one session")
		}
		require.NoError(t, first.stop())
		feed(600, 800)
		require.Equal(t, partitions, len(of(t, second, "c"))+len(of(t, third, "c")))
		require.NoError(t, third.stop())
		feed(800, 900)
		require.Len(t, of(t, second, "d"), partitions)
		for _, name := range []string{"c", "d"} {
			require.NoError(t, second.WaitApplied(t.Context(), projection(name), store.EventsTopic, 900, host.AllPartitions))
			require.Equal(t, want(events), seen(st, name))
		}
		require.LessOrEqual(t, len(status(t, second, "c").Lanes), host.DefaultConfig().LaneCount(), "one session")
		require.NoError(t, second.stop())
		require.Empty(t, st.Problems())
	})
}

// No host takes more than its limit over all consumers. What fits nowhere is told
// and stands still, until a host comes that has room for it.
func TestPartitionLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		st.Append(events...)
		limit := func(n int) func(*host.Config) { return func(c *host.Config) { c.MaxPartitions = n } }
		first, second := start(t, st, limit(10), counter("c", "d")), start(t, st, limit(3), counter("c", "d"))
		time.Sleep(time.Minute)
		own := func(h running) int { return len(of(t, h, "c")) + len(of(t, h, "d")) }
		require.Equal(t, 10, own(first))
		require.Equal(t, 3, own(second))
		require.Equal(t, 2*partitions-13, len(status(t, first, "c").Orphans)+len(status(t, first, "d").Orphans))

		third := start(t, st, nil, counter("c", "d"))
		for _, name := range []string{"c", "d"} {
			require.NoError(t, third.WaitApplied(t.Context(), projection(name), store.EventsTopic, 60, host.AllPartitions))
			require.Equal(t, want(events), seen(st, name))
			require.Empty(t, status(t, third, name).Orphans)
		}
		for _, h := range []running{first, second, third} {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// A stop hands over at once: the others have it at their next look, and nobody
// waits for an expiry.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		st.Append(events[:30]...)
		first, second := start(t, st, nil, counter("c")), start(t, st, nil, counter("c"))
		time.Sleep(time.Minute)
		require.NotEmpty(t, of(t, first, "c"))
		require.NoError(t, first.stop())
		began := time.Now()
		st.Append(events[30:]...)
		require.NoError(t, second.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 60, host.AllPartitions))
		require.LessOrEqual(t, time.Since(began), host.DefaultConfig().Rebalance+time.Second)
		require.Equal(t, want(events), seen(st, "c"))
		require.NoError(t, second.stop())
		require.Empty(t, st.Problems())
	})
}

// What a slow consumer has in hand holds up the hand-over of its own partitions
// only.
func TestStopHandsOverBesideASlowConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		slow := counter("slow")
		slow.before = func(context.Context, int) error { time.Sleep(9 * time.Second); return nil }
		first, second := start(t, st, nil, counter("c"), slow), start(t, st, nil, counter("c"))
		time.Sleep(time.Minute)
		require.NotEmpty(t, of(t, first, "c"))
		st.Append(someEvents(60)...)
		time.Sleep(time.Second) // the guest is at work
		began, stopped := time.Now(), make(chan error, 1)
		go func() { stopped <- first.stop() }()
		st.Append(someEvents(1)...)
		require.NoError(t, second.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 61, host.AllPartitions))
		require.LessOrEqual(t, time.Since(began), host.DefaultConfig().Rebalance+time.Second)
		require.NoError(t, <-stopped)
		require.GreaterOrEqual(t, time.Since(began), 8*time.Second)
		require.NoError(t, second.stop())
		require.Empty(t, st.Problems())
	})
}

// A single-owner consumer is applied by one host, which is the next one when that
// stops; it never sees two at work.
func TestSingleOwnerMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(400)
		m := counter("c")
		m.manifest.Consumers[0].Distribution = abi.SingleOwner
		m.manifest.Consumers[0].Tables[0].Free = true
		m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			seen := ""
			if v := c.Values(0, "all", ""); v != nil {
				seen = string(v[1].B)
			}
			c.Begin(abi.OpUpsert, 0, "all", "")
			c.Ops.Int(0, int64(len(strings.Fields(seen)))+1)
			c.Ops.Text(1, fmt.Sprint(seen, " ", e.Position))
			return abi.StatusOK, nil
		}
		var hosts []running
		at := 0
		for range 4 {
			hosts = append(hosts, start(t, st, nil, m))
			for range 50 {
				st.Append(events[at])
				at++
				time.Sleep(200 * time.Millisecond)
			}
		}
		for len(hosts) > 1 {
			require.NoError(t, hosts[0].stop())
			hosts = hosts[1:]
			for range 50 {
				st.Append(events[at])
				at++
				time.Sleep(200 * time.Millisecond)
			}
		}
		require.NoError(t, hosts[0].WaitApplied(t.Context(), projection("c"), store.EventsTopic, int64(at), host.AllPartitions))
		require.Len(t, of(t, hosts[0], "c"), partitions)
		all := ""
		for i := range at {
			all += fmt.Sprint(" ", i+1)
		}
		require.Equal(t, map[string]string{"all": all}, seen(st, "c"))
		require.NoError(t, hosts[0].stop())
		require.Empty(t, st.Problems())
	})
}

// A message halts its consumer on every host, also on one that starts; once an
// operator resumes it, it goes on on every host.
func TestHaltIsEverywhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(100)
		events[41].Type = "bad"
		st.Append(events[:20]...)
		broken := counter("c")
		bad := true
		broken.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			if e.TypeName == "bad" && bad {
				return abi.StatusReject, nil
			}
			return count(c, e)
		}
		hosts := []running{start(t, st, nil, broken, counter("d")), start(t, st, nil, broken, counter("d"))}
		time.Sleep(30 * time.Second)
		st.Append(events[20:]...)
		time.Sleep(30 * time.Second)
		for _, h := range hosts {
			s := status(t, h, "c")
			require.Equal(t, host.StateHalted, s.State)
			require.Equal(t, int64(42), s.Halt.Position)
			require.Equal(t, host.StateRunning, status(t, h, "d").State)
			require.NotEmpty(t, of(t, h, "d"))
		}
		require.Equal(t, want(events), seen(st, "d"))
		bad = false
		hosts = append(hosts, start(t, st, nil, broken))
		time.Sleep(30 * time.Second)
		for _, h := range hosts {
			require.Equal(t, host.StateHalted, status(t, h, "c").State, "a start is no transition (H5)")
		}
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(30 * time.Second)
		for _, h := range hosts {
			require.Equal(t, host.StateRunning, status(t, h, "c").State)
			require.NotEmpty(t, of(t, h, "c"))
		}
		require.Equal(t, want(events), seen(st, "c"))
		for _, h := range hosts {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// A host with another declaration stays out while hosts with the stored one run,
// and disturbs none of them (H37); once there are none it says so for all.
func TestAnotherDeclarationStaysOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(90)
		st.Append(events[:30]...)
		first := start(t, st, nil, counter("c"))
		time.Sleep(10 * time.Second)
		changed := counter("c")
		changed.manifest.Consumers[0].Tables[0].Columns = append(changed.manifest.Consumers[0].Tables[0].Columns, abi.Column{Name: "new", Kind: abi.ColumnInt})
		second := start(t, st, nil, changed)
		st.Append(events[30:60]...)
		time.Sleep(time.Minute)
		s := status(t, second, "c")
		require.Equal(t, host.StatePending, s.State)
		require.Contains(t, s.Reason, "tables")
		require.Empty(t, of(t, second, "c"))
		ready, reasons := second.Ready()
		require.True(t, ready, reasons)
		require.Len(t, of(t, first, "c"), partitions)
		require.Equal(t, want(events[:60]), seen(st, "c"))
		require.NoError(t, second.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 60, host.AllPartitions), "others apply it")

		require.NoError(t, first.stop())
		time.Sleep(time.Minute)
		require.Equal(t, store.HaltDeclarationChanged, status(t, second, "c").Halt.Reason)
		con, err := st.Consumer(t.Context(), projection("c"))
		require.NoError(t, err)
		require.Equal(t, store.StateHalted, con.State)

		st.Append(events[60:]...)
		third := start(t, st, nil, counter("c"))
		time.Sleep(time.Minute)
		require.Equal(t, host.StateHalted, status(t, third, "c").State)
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(time.Minute)
		require.Equal(t, want(events), seen(st, "c"))
		require.Equal(t, host.StatePending, status(t, second, "c").State)
		require.NoError(t, second.stop())
		require.NoError(t, third.stop())
		require.Empty(t, st.Problems())
	})
}

// A host that cannot get on leaves the consumer to one that can, stays out for
// longer each time it fails again, and is back once it is well (H34). Alone it
// goes on trying.
func TestStalledHostStaysOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(300)
		sick := &ill{Store: st}
		h := start(t, sick, nil, counter("c", "d"))
		time.Sleep(10 * time.Second)
		sick.of.Store(1) // build of c
		st.Append(events[:100]...)
		time.Sleep(10 * time.Minute)
		require.Equal(t, host.StateRetrying, status(t, h, "c").State, "nobody else runs it")
		require.Equal(t, want(events[:100]), seen(st, "d"))

		well := start(t, st, nil, counter("c", "d"))
		began := time.Now()
		require.NoError(t, well.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 100, host.AllPartitions))
		require.LessOrEqual(t, time.Since(began), 2*time.Minute)
		require.Equal(t, want(events[:100]), seen(st, "c"))
		s := status(t, h, "c")
		require.Equal(t, host.StateWithdrawn, s.State)
		require.Contains(t, s.Reason, "no progress")
		require.Empty(t, of(t, h, "c"))
		require.NotEmpty(t, of(t, h, "d"), "it is of one consumer only")

		st.Append(events[100:200]...)
		time.Sleep(time.Hour)
		sick.of.Store(0)
		time.Sleep(time.Hour)
		require.Equal(t, host.StateRunning, status(t, h, "c").State)
		require.NotEmpty(t, of(t, h, "c"))
		st.Append(events[200:]...)
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 300, host.AllPartitions))
		require.Equal(t, want(events), seen(st, "c"))
		require.NoError(t, h.stop())
		require.NoError(t, well.stop())
		require.Empty(t, st.Problems())
	})
}

// What stops every host is nobody's own trouble: a database that is away, or one
// that takes no writes for the consumer, does not leave it to nobody.
func TestTroubleOfAllKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			st := fake.NewStore(partitions)
			events := someEvents(200)
			sick := &ill{Store: st}
			hosts := []running{start(t, sick, nil, counter("c")), start(t, sick, nil, counter("c"))}
			time.Sleep(20 * time.Second)
			st.Append(events[:100]...)
			time.Sleep(20 * time.Second)
			sick.of.Store(1)
			st.Append(events[100:]...)
			time.Sleep(time.Second) // read, and not applied
			if away {
				st.SetFault(func(string, int) (error, error) {
					return &store.TransientError{Op: "any", Err: errors.New("away")}, nil
				})
			}
			time.Sleep(70 * time.Second) // both would leave it to each other now
			st.SetFault(nil)
			sick.of.Store(0)
			began := time.Now()
			require.NoError(t, hosts[0].WaitApplied(t.Context(), projection("c"), store.EventsTopic, 200, host.AllPartitions))
			require.LessOrEqual(t, time.Since(began), 30*time.Second, "away: %v", away)
			require.Equal(t, want(events), seen(st, "c"))
			for _, h := range hosts {
				require.NoError(t, h.stop())
			}
			require.Empty(t, st.Problems())
		})
	}
}

// ill is what a host sees of the store whose writes for one build do not go
// through.
type ill struct {
	*fake.Store
	of atomic.Int64
}

func (s *ill) Apply(ctx context.Context, b *store.Batch) error {
	if b.Build == s.of.Load() {
		return &store.TransientError{Op: "apply", Err: errors.New("disk full")}
	}
	return s.Store.Apply(ctx, b)
}

// A batch that takes longer than the TTL costs no lease while heartbeats go
// through: nothing is claimed twice.
func TestSlowGuestsKeepTheirLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(40)
		st.Append(events...)
		slow := counter("c")
		slow.before = func(context.Context, int) error {
			time.Sleep(40 * time.Second) // virtual time: more than two TTLs
			return nil
		}
		few := func(c *host.Config) { c.Batch = 4 }
		hosts := []running{start(t, st, few, slow), start(t, st, few, slow)}
		for _, h := range hosts {
			require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 40, host.AllPartitions))
		}
		require.Equal(t, want(events), seen(st, "c"))
		for _, o := range owners(t, st, "c") {
			require.LessOrEqual(t, o.Generation, int64(2), "by the first that came, and by the second")
		}
		for _, h := range hosts {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// A lease that is lost ends its own session, at once and with nothing of it
// committed; another session of the consumer goes on under its generations.
func TestLostLeaseIsOfOneSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := make([]store.Event, 4000)
		for i := range events { // of every partition
			events[i] = store.Event{AggregateType: "a", AggregateID: fmt.Sprintf("k%d", i%64), Type: "T"}
		}
		st.Append(events[:2000]...)
		slow := func(d time.Duration) *module {
			m := counter("c")
			m.before = func(context.Context, int) error {
				time.Sleep(d) // virtual time
				return nil
			}
			return m
		}
		few := func(c *host.Config) { c.Batch, c.Lanes, c.PageMessages, c.ShutdownTimeout = 5, 2, 20, time.Minute }
		first, second := start(t, st, few, slow(time.Second)), start(t, st, few, slow(5*time.Second))
		time.Sleep(time.Minute)
		st.Append(events[2000:]...)
		moving := of(t, second, "c")
		require.NotEmpty(t, moving)
		// What second has is far behind when it comes to first: that does not read
		// its own messages again.
		require.NoError(t, second.stop())
		time.Sleep(8 * time.Second)
		require.Len(t, of(t, first, "c"), partitions)
		require.Len(t, status(t, first, "c").Lanes, 4, "two sessions")

		before := owners(t, st, "c")
		st.StealOne(1, moving[0].Partition)
		time.Sleep(20 * time.Second)
		after := owners(t, st, "c")
		came := make(map[int]bool)
		for _, p := range moving {
			came[p.Partition] = true
		}
		for p := range after {
			if came[p] {
				require.Greater(t, after[p].Generation, before[p].Generation, "partition %d", p)
			} else {
				require.Equal(t, before[p], after[p], "partition %d", p)
			}
		}
		require.NoError(t, first.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 4000, host.AllPartitions))
		require.Equal(t, want(events), seen(st, "c"))
		time.Sleep(time.Minute)
		require.Len(t, status(t, first, "c").Lanes, 2, "one session in the end")
		require.NoError(t, first.stop())
		require.Empty(t, st.Problems())
	})
}

// A host that has just come answers its readers as soon as it runs, although the one
// that has all partitions has not seen it yet: what that has applied it tells at once.
func TestNewcomerAnswersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		first := start(t, st, nil, counter("c"))
		time.Sleep(time.Minute)
		for i := range 20 {
			st.Append(store.Event{AggregateType: "a", AggregateID: "k", Type: "T"}) // nothing for the other partitions
			time.Sleep(time.Duration(i) * 270 * time.Millisecond)
			second := start(t, st, nil, counter("c"))
			synctest.Wait()
			began := time.Now()
			require.NoError(t, second.WaitApplied(t.Context(), projection("c"), store.EventsTopic, int64(i+1), host.AllPartitions))
			require.LessOrEqual(t, time.Since(began), 350*time.Millisecond, "the one that came %d", i)
			require.NoError(t, second.stop())
			time.Sleep(20 * time.Second) // first has everything again
		}
		require.NoError(t, first.stop())
		require.Empty(t, st.Problems())
	})
}

// A read that waits for a position is answered by every host, about 300 ms after
// the partition is there although it is another's, and never before that: also
// while partitions move, leases are lost and hosts come and go. A partition
// without messages is as far as its owner.
func TestEveryHostAnswersForAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 4))
			st := fake.NewStore(partitions)
			m := counter("c")
			slow := seed%2 == 1 // then calls take long, and fail in between
			var calls atomic.Uint64
			st.SetFault(func(call string, _ int) (error, error) {
				if slow && slices.Contains([]string{"Checkpoints", "Apply", "Release", "Claim", "Advance"}, call) {
					n := rand.New(rand.NewPCG(seed, calls.Add(1))).IntN(1000)
					time.Sleep(time.Duration(n/2) * time.Millisecond)
					if n < 30 {
						return store.ErrFenced, nil
					}
				}
				return nil, nil
			})
			hosts := []running{start(t, st, nil, m), start(t, st, nil, m)}
			time.Sleep(20 * time.Second)
			wanted := make(map[string]string)
			at, quiet := int64(0), time.Now()
			for range 300 {
				key := fmt.Sprintf("k%d", random.IntN(5))
				st.Append(store.Event{AggregateType: "a", AggregateID: key, Type: "T"})
				at++
				wanted[key] += fmt.Sprint(" ", at)
				h := hosts[random.IntN(len(hosts))]
				p := partition.Of(key, partitions)
				if random.IntN(3) == 0 {
					p = random.IntN(partitions)
				}
				began := time.Now()
				require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, at, p))
				if !slow && time.Since(quiet) > 15*time.Second {
					require.LessOrEqual(t, time.Since(began), 350*time.Millisecond, "seed %d", seed)
				}
				for k, want := range wanted {
					if partition.Of(k, partitions) == p {
						require.Equal(t, want, seen(st, "c")[k], "seed %d: partition %d is said to be at %d", seed, p, at)
					}
				}
				switch what := random.IntN(60); {
				case what == 0 && len(hosts) < 4:
					hosts, quiet = append(hosts, start(t, st, nil, m)), time.Now()
				case what == 1 && len(hosts) > 1:
					require.NoError(t, hosts[0].stop())
					hosts, quiet = hosts[1:], time.Now()
				case what == 2:
					st.StealOne(1, random.IntN(partitions))
					quiet = time.Now()
				case what < 30:
					time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
				}
			}
			for _, h := range hosts {
				began := time.Now()
				require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, at, host.AllPartitions))
				require.LessOrEqual(t, time.Since(began), time.Minute)
			}
			require.Equal(t, wanted, seen(st, "c"))
			for _, h := range hosts {
				require.NoError(t, h.stop())
			}
			require.Empty(t, st.Problems())
		})
	}
}
