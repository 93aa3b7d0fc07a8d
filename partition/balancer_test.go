package partition_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

const (
	ttl       = 15 * time.Second
	rebalance = 5 * time.Second
)

// host is a member with its balancer and shares, which does what it is ordered at
// once.
type host struct {
	*partition.Balancer
	member *partition.Member
	shares map[int64]*partition.Share
	work   sync.WaitGroup
	stop   context.CancelFunc
}

// startHost joins and runs the builds.
func startHost(t *testing.T, c *cluster, configure func(*partition.MemberConfig), builds ...int64) *host {
	t.Helper()
	cfg := partition.MemberConfig{HostName: "h", TTL: ttl, Heartbeat: 3 * time.Second}
	if configure != nil {
		configure(&cfg)
	}
	m, err := partition.Join(t.Context(), c, cfg, hclog.NewNullLogger())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	h := &host{
		Balancer: partition.NewBalancer(c, m, partition.BalancerConfig{
			Partitions: c.n, Rebalance: rebalance, Hasty: 250 * time.Millisecond,
		}, hclog.NewNullLogger()),
		member: m, shares: make(map[int64]*partition.Share), stop: stop,
	}
	h.work.Go(func() { m.Run(ctx) })
	for _, b := range builds {
		s := h.Enlist(partition.ShareConfig{Build: b, Consumer: consumerOf(b)})
		h.shares[b] = s
		h.work.Go(func() { obey(ctx, s) })
	}
	h.work.Go(func() { h.Run(ctx) })
	return h
}

// obey carries out orders until ctx ends.
func obey(ctx context.Context, s *partition.Share) {
	for {
		changed, orders := s.Changed(), s.Orders()
		if len(orders.Drop) > 0 {
			_ = s.Release(ctx, orders.Drop)
		}
		if len(orders.Take) > 0 {
			_, _ = s.Take(ctx, orders.Take)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// end stops the host without a word.
func (h *host) end() {
	h.stop()
	h.work.Wait()
}

func (h *host) id() string {
	id, _ := h.member.Instance()
	return id
}

// Hosts that come get their part, from hosts that stay and keep the rest, and
// hosts that go leave theirs to the others: at once when they say so, and within
// the TTL and one survey when they do not.
func TestBalance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1, 2)
		a := startHost(t, c, nil, 1, 2)
		pass(time.Second)
		require.Equal(t, map[string]int{a.id(): 256}, c.loads(1))
		require.Equal(t, map[string]int{a.id(): 256}, c.loads(2))

		b := startHost(t, c, nil, 1)
		pass(rebalance + time.Second)
		n := c.loads(1)
		require.Len(t, n, 2)
		require.InDelta(t, 128, n[b.id()], 32)
		require.Equal(t, map[string]int{a.id(): 256}, c.loads(2), "b does not run it")

		d := startHost(t, c, nil, 1, 2)
		pass(rebalance + time.Second)
		require.Len(t, c.loads(1), 3)
		for _, l := range c.loads(1) {
			require.LessOrEqual(t, l, 107)
		}

		b.end()
		require.NoError(t, b.member.Leave(t.Context()))
		pass(rebalance)
		require.Len(t, c.loads(1), 2)
		require.NotContains(t, c.loads(1), nobody)

		a.end()
		pass(ttl + rebalance)
		require.Equal(t, map[string]int{d.id(): 256}, c.loads(1))
		require.Equal(t, map[string]int{d.id(): 256}, c.loads(2))
		d.end()
	})
}

// slowly has each call of a kind take its time.
func slowly(call string, d time.Duration) func(context.Context, string) (func() error, error) {
	return func(_ context.Context, c string) (func() error, error) {
		if c == call {
			time.Sleep(d) // virtual
		}
		return func() error { return nil }, nil
	}
}

// failing has each call of a kind fail.
func failing(call string) func(context.Context, string) (func() error, error) {
	return func(_ context.Context, c string) (func() error, error) {
		if c == call {
			return nil, errDown
		}
		return func() error { return nil }, nil
	}
}

// share makes a share that nobody obeys.
func share(h *host, build int64) *partition.Share {
	return h.Enlist(partition.ShareConfig{Build: build, Consumer: consumerOf(build)})
}

// all is every partition.
func all(n int) []int {
	list := make([]int, n)
	for p := range list {
		list[p] = p
	}
	return list
}

// A cold start is one claim a consumer, a few at a time.
func TestColdStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var builds []int64
		for b := range int64(50) {
			builds = append(builds, b)
		}
		c := newCluster(256, builds...)
		c.fault = slowly("claim", 100*time.Millisecond)
		h := startHost(t, c, nil, builds...)
		pass(2 * time.Second)
		for _, b := range builds {
			require.Equal(t, map[string]int{h.id(): 256}, c.loads(b))
		}
		require.Equal(t, 50, c.count("claim"))
		require.Equal(t, 4, c.atOnce("claim"))
		require.LessOrEqual(t, c.count("enlist"), 2)
		pass(10 * time.Minute)
		require.Equal(t, 50, c.count("claim"))
		require.InDelta(t, 120, c.count("survey"), 5, "one every five seconds")
		require.LessOrEqual(t, c.count("enlist"), 2)
		h.end()
	})
}

// Claims that fail are counted and tried again after a survey, hastily and then
// less and less.
func TestClaimsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1)
		c.fault = failing("claim")
		h := startHost(t, c, nil, 1)
		pass(time.Second)
		require.InDelta(t, 5, c.count("claim"), 1)
		pass(time.Hour)
		require.InDelta(t, 40+720, c.count("claim"), 40)
		v := h.View()
		require.EqualValues(t, c.count("claim"), v.Claims)
		require.Equal(t, v.Claims, v.ClaimFailures)
		require.Equal(t, 256*v.Claims, v.Refused)
		require.Len(t, v.Shares[0].Unowned, 256)
		require.Empty(t, v.Shares[0].Orphans)
		require.NoError(t, v.Err)
		c.set(func() { c.fault = nil })
		pass(rebalance + time.Second)
		require.Equal(t, map[string]int{h.id(): 256}, c.loads(1))
		require.Len(t, h.View().Shares[0].Held, 256)
		require.Empty(t, h.View().Shares[0].Unowned)

		// Likewise when it is an ordinary survey that finds something to take.
		b := startHost(t, c, nil, 1)
		pass(rebalance + time.Second)
		require.Len(t, c.loads(1), 2)
		b.end()
		c.set(func() { c.fault = failing("claim") })
		require.NoError(t, b.member.Leave(t.Context()))
		looked := h.Looked()
		<-looked
		before := c.count("claim")
		pass(time.Second)
		require.InDelta(t, 5, c.count("claim")-before, 1)
		h.end()
	})
}

// What a claim did not get is not ordered again before another survey.
func TestRefusedIsNotOrderedAgainAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		h := startHost(t, c, nil)
		s := share(h, 1)
		pass(time.Second)
		c.set(func() { c.fault = failing("claim") })
		_, err := s.Take(t.Context(), all(4))
		require.ErrorIs(t, err, errDown)
		require.Empty(t, s.Orders().Take)
		changed := s.Changed()
		pass(rebalance)
		<-changed
		require.Equal(t, all(4), s.Orders().Take)
		h.end()
	})
}

// A host whose heartbeats do not arrive claims nothing, and goes on with what
// nobody else takes.
func TestLapsedAndAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1, 2)
		h := startHost(t, c, nil, 1)
		pass(time.Second)
		c.set(func() { c.fault = failing("heartbeat") })
		pass(ttl + rebalance)
		require.False(t, h.View().Instances[0].Live)
		s := share(h, 2)
		pass(time.Minute)
		require.Empty(t, s.Orders().Take)
		require.Empty(t, h.shares[1].Orders().Drop)
		_, held := h.shares[1].Lease(0)
		require.True(t, held)
		require.Zero(t, c.count("release"))
		c.set(func() { c.fault = nil })
		pass(2 * rebalance)
		require.Len(t, s.Orders().Take, 4)
		require.Equal(t, 1, c.count("claim"))
		h.end()
	})
}

// Who waits for a live owner looks hastily for as long as that needs to notice,
// and less and less often if it goes on holding.
func TestWaitingBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1)
		a := startHost(t, c, nil)
		s := share(a, 1)
		pass(time.Second)
		_, err := s.Take(t.Context(), s.Orders().Take)
		require.NoError(t, err)
		b := startHost(t, c, nil, 1)
		before := c.count("survey")
		pass(2 * rebalance)
		require.InDelta(t, 40+2, c.count("survey")-before, 4)
		pass(time.Minute)
		before = c.count("survey")
		pass(10 * time.Minute)
		require.InDelta(t, 240, c.count("survey")-before, 5, "two hosts, each every five seconds")
		require.Equal(t, map[string]int{a.id(): 256}, c.loads(1))

		drop := s.Orders().Drop
		require.Subset(t, slices.Collect(maps.Values(s.Orders().Why)), []string{partition.WhyRebalanced})
		require.NoError(t, s.Release(t.Context(), drop))
		pass(rebalance)
		require.Equal(t, map[string]int{a.id(): 256 - len(drop), b.id(): len(drop)}, c.loads(1))
		a.end()
		b.end()
	})
}

// Who runs a consumer no more has time to hand its partitions back, and does not
// keep them for ever if it does not (H36).
func TestOwnerThatIsNoMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		a := startHost(t, c, nil)
		_, _, err := c.Claim(t.Context(), a.id(), 1, []int{0}) // past all shares
		require.NoError(t, err)
		b := startHost(t, c, nil, 1)
		pass(ttl - time.Second)
		require.Equal(t, map[string]int{a.id(): 1, b.id(): 3}, c.loads(1))
		pass(rebalance + time.Second)
		require.Equal(t, map[string]int{b.id(): 4}, c.loads(1))
		pass(rebalance)
		require.Equal(t, partition.WhyWithdrawn, b.View().Shares[0].Last[0].Why)
		require.True(t, b.View().Instances[0].Live)
		a.end()
		b.end()
	})
}

// A build that the database does not know any more costs no more than any other
// that waits, and the others nothing.
func TestUnknownBuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(16, 1)
		h := startHost(t, c, nil, 1, 99)
		pass(time.Minute)
		require.Equal(t, map[string]int{h.id(): 16}, c.loads(1))
		require.Len(t, h.View().Shares[1].Orphans, 16)
		before := c.count("survey")
		pass(10 * time.Minute)
		require.InDelta(t, 120, c.count("survey")-before, 5)
		h.end()
	})
}

// A generation that somebody raised is noticed although nobody applies, and so is
// an owner that is another one.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		h := startHost(t, c, nil)
		s := share(h, 1)
		pass(time.Second)
		orders := s.Orders()
		require.Equal(t, all(4), orders.Take)
		require.Equal(t, partition.WhyFirst, orders.Why[0])
		require.Equal(t, store.ConsumerStatus{Build: 1, ID: consumerOf(1), State: store.StateRunning}, orders.Consumer)
		g, err := s.Take(t.Context(), orders.Take)
		require.NoError(t, err)
		require.Len(t, g.Leases, 4)
		require.Equal(t, h.id(), g.InstanceID)
		_, err = s.Take(t.Context(), []int{2})
		require.ErrorContains(t, err, "in use here")
		require.Empty(t, s.Orders().Take)

		c.set(func() { c.owners[1][2].Generation++ })
		changed := s.Changed()
		pass(rebalance)
		<-changed
		require.Equal(t, []int{2}, s.Orders().Drop)
		require.Equal(t, partition.WhyOvertaken, s.Orders().Why[2])
		require.NoError(t, s.Release(t.Context(), []int{2}))
		require.Equal(t, []int{2}, s.Orders().Take)
		require.Equal(t, partition.WhyReclaimed, s.Orders().Why[2])
		g, err = s.Take(t.Context(), []int{2})
		require.NoError(t, err)
		require.Equal(t, []store.Lease{{Build: 1, Partition: 2, Generation: 3}}, g.Leases)
		l, held := s.Lease(2)
		require.True(t, held)
		require.Equal(t, g.Leases[0], l)
		require.Empty(t, s.Orders().Drop)

		s.Lost([]int{1, 2})
		_, held = s.Lease(2)
		require.False(t, held)
		require.Equal(t, []int{1, 2}, s.Orders().Take)
		h.end()
	})
}

// A survey that began before something was taken or given back says nothing about
// that.
func TestStaleSurvey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		h := startHost(t, c, nil)
		s := share(h, 1)
		pass(time.Second)
		// The answer of a survey is under way for as long as the claim takes.
		hold := make(chan struct{})
		held := func(_ context.Context, call string) (func() error, error) {
			return func() error {
				if call == "survey" {
					<-hold
				}
				return nil
			}, nil
		}
		c.set(func() { c.fault = held })
		pass(rebalance)
		_, err := s.Take(t.Context(), all(4))
		require.NoError(t, err)
		c.set(func() { c.fault = nil })
		close(hold)
		synctest.Wait()
		require.Empty(t, s.Orders().Drop)
		require.Zero(t, c.count("release"))

		// The other way round.
		hold = make(chan struct{})
		c.set(func() { c.fault = held })
		pass(rebalance)
		s.Withdraw("")
		require.Equal(t, all(4), s.Orders().Drop)
		require.NoError(t, s.Release(t.Context(), all(4)))
		c.set(func() { c.fault = nil })
		close(hold)
		pass(2 * rebalance)
		require.Equal(t, 1, c.count("release"))
		h.end()
	})
}

// A host whose instance was removed finds out by the next survey, loses what it
// held, also what a claim under way brings, and takes it again as another.
func TestInstanceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		h := startHost(t, c, nil)
		s := share(h, 1)
		pass(time.Second)
		g, err := s.Take(t.Context(), []int{0, 1})
		require.NoError(t, err)

		hold, done := make(chan struct{}), make(chan struct{})
		c.set(func() {
			c.fault = func(_ context.Context, call string) (func() error, error) {
				return func() error {
					if call == "claim" {
						<-hold
					}
					return nil
				}, nil
			}
		})
		go func() {
			defer close(done)
			late, err := s.Take(t.Context(), []int{2, 3})
			require.NoError(t, err)
			require.Empty(t, late.Leases)
			require.Equal(t, g.InstanceID, late.InstanceID)
		}()
		synctest.Wait()
		c.set(func() {
			c.fault = nil
			c.remove(g.InstanceID)
		})
		h.Look()
		pass(100 * time.Millisecond)
		<-g.Ended
		require.NotEqual(t, g.InstanceID, h.id())
		close(hold)
		<-done
		for p := range 4 {
			_, held := s.Lease(p)
			require.False(t, held)
		}
		pass(rebalance)
		require.Equal(t, all(4), s.Orders().Take)
		require.Equal(t, partition.WhyLeft, s.Orders().Why[3])
		again, err := s.Take(t.Context(), all(4))
		require.NoError(t, err)
		require.Len(t, again.Leases, 4)
		require.Equal(t, h.id(), again.InstanceID)
		h.end()
	})
}

// What nobody may have is told, and so are consumers that nobody runs.
func TestOrphans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1, 2)
		limited := func(cfg *partition.MemberConfig) { cfg.MaxPartitions = 100 }
		a := startHost(t, c, limited, 1)
		pass(time.Second)
		require.Equal(t, map[string]int{a.id(): 100, nobody: 156}, c.loads(1))
		v := a.View()
		require.Len(t, v.Shares[0].Orphans, 156)
		require.Empty(t, v.Shares[0].Unowned)
		require.Equal(t, []store.ConsumerStatus{{Build: 2, ID: consumerOf(2), State: store.StateRunning}}, v.Abandoned)
		require.Zero(t, a.shares[1].Others())

		b := startHost(t, c, nil, 1, 2)
		pass(rebalance + time.Second)
		require.Empty(t, a.View().Shares[0].Orphans)
		require.Empty(t, a.View().Abandoned)
		require.Equal(t, []string{b.id()}, a.View().Members[2])
		require.Equal(t, 1, a.shares[1].Others())

		b.shares[2].Withdraw("the module is missing")
		pass(rebalance)
		v = b.View()
		require.Equal(t, "the module is missing", v.Shares[1].Withdrawn)
		require.Len(t, v.Shares[1].Orphans, 256)
		require.Empty(t, v.Shares[1].Held)
		require.Zero(t, b.shares[2].Others())
		require.Equal(t, map[string]int{nobody: 256}, c.loads(2))
		b.shares[2].Return()
		pass(time.Second)
		require.Equal(t, map[string]int{b.id(): 256}, c.loads(2))
		a.end()
		b.end()
	})
}

// Each move is told with its reason, by every host that runs the build.
func TestMovesTellWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1)
		a := startHost(t, c, nil, 1)
		seen := 0
		latest := func() map[string]int {
			n := make(map[string]int)
			moves := a.View().Moves
			for _, m := range moves[seen:] {
				n[m.Why] += len(m.Partitions)
				require.Equal(t, consumerOf(1), m.Consumer)
			}
			seen = len(moves)
			return n
		}
		pass(2 * rebalance)
		require.Equal(t, map[string]int{partition.WhyFirst: 256}, latest())
		b := startHost(t, c, nil, 1)
		pass(3 * rebalance)
		n := c.loads(1)[b.id()]
		require.Equal(t, map[string]int{partition.WhyRebalanced: n}, latest())
		b.shares[1].Withdraw("it fails")
		pass(3 * rebalance)
		require.Equal(t, map[string]int{partition.WhyWithdrawn: n}, latest())
		b.shares[1].Return()
		pass(3 * rebalance)
		require.Equal(t, map[string]int{partition.WhyRebalanced: n}, latest())
		c.set(func() {
			for p := range c.owners[1] {
				c.owners[1][p].Generation++
			}
		})
		pass(3 * rebalance)
		require.Equal(t, map[string]int{partition.WhyReclaimed: 2 * 256}, latest(), "raised, and then claimed")
		b.end()
		pass(ttl + 2*rebalance)
		require.Equal(t, map[string]int{partition.WhyLapsed: n}, latest())
		d := startHost(t, c, nil, 1)
		pass(3 * rebalance)
		n = latest()[partition.WhyRebalanced]
		require.Equal(t, n, c.loads(1)[d.id()])
		d.end()
		require.NoError(t, d.member.Leave(t.Context()))
		pass(3 * rebalance)
		require.Equal(t, map[string]int{partition.WhyLeft: n}, latest())
		require.Equal(t, partition.WhyLeft, a.View().Shares[0].Last[slices.IndexFunc(a.View().Shares[0].Last, func(m partition.Moved) bool {
			return m.From == d.id()
		})].Why)
		a.end()
	})
}

// A survey that fails or hangs leaves all as it is, and is made again.
func TestSurveyFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(16, 1)
		a := startHost(t, c, nil, 1)
		pass(time.Second)
		c.set(func() { c.fault = failing("survey") })
		pass(rebalance)
		require.ErrorIs(t, a.View().Err, errDown)
		before := c.count("survey")
		pass(time.Minute)
		require.InDelta(t, 14, c.count("survey")-before, 6)
		c.set(func() {
			c.fault = func(ctx context.Context, call string) (func() error, error) {
				if call == "survey" {
					<-ctx.Done()
				}
				return func() error { return nil }, ctx.Err()
			}
		})
		pass(time.Minute)
		require.ErrorIs(t, a.View().Err, context.DeadlineExceeded)
		require.Equal(t, map[string]int{a.id(): 16}, c.loads(1))
		c.set(func() { c.fault = nil })
		looked := a.Looked()
		pass(20 * time.Second)
		<-looked
		require.NoError(t, a.View().Err)
		require.Len(t, a.View().Shares[0].Held, 16)
		a.end()
	})
}

// What a host cannot give back it gives back later.
func TestReleaseFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(256, 1)
		a := startHost(t, c, nil, 1)
		pass(time.Second)
		c.set(func() { c.fault = failing("release") })
		b := startHost(t, c, nil, 1)
		pass(time.Minute)
		require.Equal(t, map[string]int{a.id(): 256}, c.loads(1))
		c.set(func() { c.fault = nil })
		pass(2*rebalance + time.Second)
		require.Len(t, c.loads(1), 2)
		a.end()
		b.end()
	})
}

// Where the store has another tenure than the host, whatever the host tells is not
// heard: one partition is claimed anew, once, and they agree again.
func TestTenureIsTheStores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(16, 1)
		a := startHost(t, c, nil, 1)
		agreed := func() (raised int) {
			t.Helper()
			tenure, leases := a.shares[1].Tenure()
			require.Len(t, leases, 16)
			for _, l := range leases {
				raised += int(l.Generation) - 1
			}
			c.set(func() { require.Equal(t, c.tenureOf[a.id()][1], tenure) })
			return raised
		}
		pass(time.Second)
		require.Zero(t, agreed())
		for n, stored := range []int64{99, 0} {
			c.set(func() { c.tenureOf[a.id()][1] = stored })
			pass(2*rebalance + time.Second)
			require.Equal(t, n+1, agreed())
			claims := c.count("claim")
			pass(time.Minute)
			require.Equal(t, n+1, agreed())
			require.Equal(t, claims, c.count("claim"))
		}
		a.end()
	})
}

// What is held is told of in the tenure that the latest claim began, and nothing
// is told while the store may have more under the host than it holds.
func TestTenure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(16, 1)
		a := startHost(t, c, nil, 1)
		s := a.shares[1]
		_, leases := s.Tenure()
		require.Empty(t, leases)
		pass(time.Second)
		first, leases := s.Tenure()
		require.Len(t, leases, 16)
		require.NotZero(t, first)

		c.set(func() { c.fault = failing("claim") })
		s.Lost([]int{3})
		_, leases = s.Tenure()
		require.Empty(t, leases, "what was lost is the host's in the store")
		pass(time.Minute)
		_, leases = s.Tenure()
		require.Empty(t, leases, "nobody has taken it")
		c.set(func() { c.fault = nil })
		pass(rebalance + time.Second)
		second, leases := s.Tenure()
		require.Len(t, leases, 16)
		require.NotEqual(t, first, second)

		c.set(func() { c.fault = failing("release") })
		b := startHost(t, c, nil, 1)
		pass(time.Minute)
		_, leases = s.Tenure()
		require.Empty(t, leases, "what is not handed back is the host's in the store")
		c.set(func() { c.fault = nil })
		pass(2*rebalance + time.Second)
		third, leases := s.Tenure()
		require.Len(t, leases, c.loads(1)[a.id()])
		require.Equal(t, second, third, "what remains was told of before")
		a.end()
		b.end()
	})
}
