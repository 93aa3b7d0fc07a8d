package partition_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/partition"
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
	cfg := partition.MemberConfig{HostName: "h", TTL: ttl, Heartbeat: 3 * time.Second, Partitions: c.n}
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
