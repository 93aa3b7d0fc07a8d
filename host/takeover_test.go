package host_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/store"
)

// ownedBy waits until every partition of a consumer is owned by one of these hosts,
// and returns how long that took.
func ownedBy(t *testing.T, st *fake.Store, name string, hosts ...running) time.Duration {
	t.Helper()
	known := make(map[string]bool)
	for _, h := range hosts {
		s, err := h.Status(t.Context())
		require.NoError(t, err)
		known[s.InstanceID] = true
	}
	for began := time.Now(); ; {
		if !slices.ContainsFunc(owners(t, st, name), func(o store.Ownership) bool { return !known[o.InstanceID] }) {
			return time.Since(began)
		}
		require.Less(t, time.Since(began), time.Minute)
		time.Sleep(10 * time.Millisecond)
	}
}

// toTake is what comes after the look that shows what is free: the batch at work is
// brought to its end, then it is claimed.
var toTake = host.DefaultConfig().BatchAge + 100*time.Millisecond

// What a host hands over when it stops is owned by others within one rebalance
// interval, whenever it stops: nobody waits for it to lapse.
func TestHandOverIsWithinARebalance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		hosts := []running{start(t, st, nil, counter("c")), start(t, st, nil, counter("c")), start(t, st, nil, counter("c"))}
		time.Sleep(time.Minute)
		longest := time.Duration(0)
		for i := range 20 {
			require.NotEmpty(t, of(t, hosts[0], "c"))
			st.Append(events[3*i : 3*i+3]...)
			require.NoError(t, hosts[0].stop())
			longest = max(longest, ownedBy(t, st, "c", hosts[1:]...))
			hosts = append(hosts[1:], start(t, st, nil, counter("c")))
			time.Sleep(time.Minute + time.Duration(i)*270*time.Millisecond)
		}
		require.LessOrEqual(t, longest, host.DefaultConfig().Rebalance+toTake)
		require.Greater(t, longest, host.DefaultConfig().Rebalance/2, "the moments differ")
		require.Equal(t, want(events), seen(st, "c"))
		for _, h := range hosts {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// mortal is what a host sees of the store that may be as good as dead.
type mortal struct {
	*fake.Store
	dead atomic.Bool
}

var errDead = &store.TransientError{Op: "any", Err: errors.New("dead")}

func (s *mortal) Heartbeat(ctx context.Context, id string) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Heartbeat(ctx, id)
}

func (s *mortal) Join(ctx context.Context, i store.Instance) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Join(ctx, i)
}

func (s *mortal) Survey(ctx context.Context, builds []int64) (store.Survey, error) {
	if s.dead.Load() {
		return store.Survey{}, errDead
	}
	return s.Store.Survey(ctx, builds)
}

func (s *mortal) Claim(ctx context.Context, instance string, build int64, list []int) ([]store.Lease, int64, error) {
	if s.dead.Load() {
		return nil, 0, errDead
	}
	return s.Store.Claim(ctx, instance, build, list)
}

func (s *mortal) Release(ctx context.Context, instance string, leases []store.Lease) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Release(ctx, instance, leases)
}

func (s *mortal) Apply(ctx context.Context, b *store.Batch) error {
	if s.dead.Load() {
		return errDead
	}
	return s.Store.Apply(ctx, b)
}

// What a host had that died is owned by others within its TTL and one rebalance
// interval, whenever it died.
func TestTakeOverIsWithinTTLAndRebalance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(60)
		sick := &mortal{Store: st}
		dies := start(t, sick, nil, counter("c"))
		others := []running{start(t, st, nil, counter("c")), start(t, st, nil, counter("c"))}
		time.Sleep(time.Minute)
		longest, limit := time.Duration(0), host.DefaultConfig().InstanceTTL+host.DefaultConfig().Rebalance
		for i := range 20 {
			require.NotEmpty(t, of(t, dies, "c"))
			sick.dead.Store(true)
			st.Append(events[3*i : 3*i+3]...)
			longest = max(longest, ownedBy(t, st, "c", others...))
			for _, h := range others {
				began := time.Now()
				require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, int64(3*i+3), host.AllPartitions))
				require.LessOrEqual(t, time.Since(began), time.Second, "they are at work")
			}
			sick.dead.Store(false)
			time.Sleep(time.Minute + time.Duration(i)*270*time.Millisecond)
		}
		require.LessOrEqual(t, longest, limit+toTake)
		require.Greater(t, longest, limit-host.DefaultConfig().Heartbeat-host.DefaultConfig().Rebalance/2, "the moments differ")
		require.Equal(t, want(events), seen(st, "c"))
		for _, h := range append(others, dies) {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// A host with another declaration does not halt a consumer while one starts that
// runs the stored one, and takes its time to become a member (H37).
func TestAnotherDeclarationLetsOthersStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(30)
		first := start(t, st, nil, counter("c"))
		time.Sleep(10 * time.Second)
		changed := counter("c")
		changed.manifest.Consumers[0].Tables[0].Columns = append(changed.manifest.Consumers[0].Tables[0].Columns, abi.Column{Name: "new", Kind: abi.ColumnInt})
		second := start(t, st, nil, changed)
		time.Sleep(time.Minute)
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Subscribe" {
				time.Sleep(4 * time.Second) // virtual time
			}
			return nil, nil
		})
		third := start(t, st, nil, counter("c", "d", "e", "f"))
		time.Sleep(time.Second)
		require.NoError(t, first.stop())
		st.Append(events...)
		time.Sleep(time.Minute)
		require.Equal(t, host.StateRunning, status(t, third, "c").State)
		require.Equal(t, host.StatePending, status(t, second, "c").State)
		require.Equal(t, want(events), seen(st, "c"))
		require.NoError(t, third.stop())
		time.Sleep(time.Minute)
		require.Equal(t, store.HaltDeclarationChanged, status(t, second, "c").Halt.Reason, "now there is none")
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(host.DefaultConfig().Rebalance)
		con, err := st.Consumer(t.Context(), projection("c"))
		require.NoError(t, err)
		require.Equal(t, store.StateRunning, con.State, "who is to run it has time to come")
		require.NoError(t, second.stop())
		require.Empty(t, st.Problems())
	})
}
