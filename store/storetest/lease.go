package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var leaseCases = []testCase{
	{"ClaimRaisesTheGeneration", leaseClaimRaises},
	{"LiveOwnerKeepsItsPartitions", leaseLiveOwnerKeeps},
	{"OwnerThatRunsItNoMoreIsTakenOver", leaseOwnerNoMember},
	{"OwnPartitionsAreClaimedAnew", leaseOwnAnew},
	{"ReleasedCanBeClaimed", leaseReleased},
	{"ReleaseOfALostLeaseIsPassedOver", leaseReleaseLost},
	{"LeaveGivesEverythingBack", leaseLeave},
	{"DeadOwnerIsTakenOver", leaseDeadOwner},
	{"LapsedOwnerIsTakenOver", leaseLapsed},
	{"HeartbeatKeepsAnInstance", leaseHeartbeat},
	{"HeartbeatNeedsNobodysConnection", leaseHeartbeatAlone},
	{"JoinRemovesTheLapsed", leaseJoinRemoves},
	{"InstancesAreListed", leaseInstances},
	{"ClaimNeedsAnInstance", leaseNeedsInstance},
	{"UnknownPartitionsAreLeftOut", leaseUnknownPartition},
	{"ConcurrentClaimsHaveOneWinnerEach", leaseConcurrentClaims},
	{"LockedRowsHoldNoClaimUp", leaseLocked},
	{"BuildsAreApart", leaseBuilds},
}

func (d *db) join(instance string) {
	d.t.Helper()
	require.NoError(d.t, d.Join(d.ctx(), store.Instance{ID: instance, HostName: "host"}))
}

func (d *db) claim(instance string, build int64, partitions ...int) []store.Lease {
	d.t.Helper()
	leases, _, err := d.Claim(d.ctx(), instance, build, partitions)
	require.NoError(d.t, err)
	return leases
}

func (d *db) owner(build int64, partition int) store.Ownership {
	d.t.Helper()
	owners, err := d.Owners(d.ctx(), build)
	require.NoError(d.t, err)
	return owners[partition]
}

func leaseClaimRaises(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 2, Generation: 1}, {Build: c.Build, Partition: 7, Generation: 1}},
		d.claim("a", c.Build, 7, 2), "leases come by partition")
	require.Equal(t, store.Ownership{Partition: 2, InstanceID: "a", Generation: 1}, d.owner(c.Build, 2))
	require.Equal(t, store.Ownership{Partition: 3}, d.owner(c.Build, 3))
}

func leaseLiveOwnerKeeps(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	d.join("b")
	d.enlist("a", c.Build)
	d.claim("a", c.Build, 1, 2, 3)
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 4, Generation: 1}}, d.claim("b", c.Build, 2, 3, 4))
	require.Equal(t, store.Ownership{Partition: 2, InstanceID: "a", Generation: 1}, d.owner(c.Build, 2), "a claim in vain changes nothing")
}

// Who owns a partition and does not run the build applies it for nobody, however
// well it is (H36): it never enlisted, enlisted for another build, or thought
// better of it.
func leaseOwnerNoMember(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	other := d.subscribe(declare(t, "other", declareOther()...))
	for _, i := range []string{"never", "elsewhere", "withdrawn", "next"} {
		d.join(i)
	}
	d.enlist("elsewhere", other.Build)
	d.enlist("withdrawn", c.Build)
	d.claim("never", c.Build, 1)
	d.claim("elsewhere", c.Build, 2)
	d.claim("withdrawn", c.Build, 3)
	d.enlist("next", c.Build)
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 1, Generation: 2}, {Build: c.Build, Partition: 2, Generation: 2}},
		d.claim("next", c.Build, 1, 2, 3))
	d.enlist("withdrawn")
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 3, Generation: 2}}, d.claim("next", c.Build, 3))
	require.Empty(t, d.claim("withdrawn", c.Build, 1, 2, 3))
}

// An instance that lost track of its leases, after a fence failed say, gets
// them back; the old ones are void.
func leaseOwnAnew(t *testing.T, d *db) {
	l := d.lane("a", 1, 2)
	old := l.batch(7, 1)
	l.claim(1)
	require.Equal(t, store.Ownership{Partition: 1, InstanceID: "a", Generation: 2}, d.owner(l.c.Build, 1))
	require.ErrorIs(t, d.Apply(d.ctx(), old), store.ErrFenced)
	l.apply(l.batch(7, 1))
}

func leaseReleased(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	d.join("b")
	d.enlist("a", c.Build)
	leases := d.claim("a", c.Build, 1, 2)
	require.NoError(t, d.Release(d.ctx(), "a", leases[:1]))
	require.Equal(t, store.Ownership{Partition: 1, Generation: 1}, d.owner(c.Build, 1), "handing back keeps the generation")
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 1, Generation: 2}}, d.claim("b", c.Build, 1, 2))
}

func leaseReleaseLost(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	d.join("b")
	old := d.claim("a", c.Build, 1, 2)
	d.claim("a", c.Build, 1)
	require.NoError(t, d.Release(d.ctx(), "a", old))
	require.Equal(t, store.Ownership{Partition: 1, InstanceID: "a", Generation: 2}, d.owner(c.Build, 1), "an old lease gives nothing back")
	require.Equal(t, store.Ownership{Partition: 2, Generation: 1}, d.owner(c.Build, 2))
	require.NoError(t, d.Release(d.ctx(), "b", []store.Lease{{Build: c.Build, Partition: 1, Generation: 2}}))
	require.Equal(t, "a", d.owner(c.Build, 1).InstanceID, "nor does somebody else's")
}

func leaseLeave(t *testing.T, d *db) {
	l := d.lane("a", 1, 2)
	b := l.batch(7, 1)
	require.NoError(t, d.Leave(d.ctx(), "a"))
	require.Equal(t, store.Ownership{Partition: 1, Generation: 1}, d.owner(l.c.Build, 1))
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrFenced)
	_, _, err := d.Claim(d.ctx(), "a", l.c.Build, []int{1})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, d.Leave(d.ctx(), "a"), "leaving twice is no error")
}

// A host that was killed is taken over by the next once its time is out, where
// the database cannot tell by itself that the process ended.
func leaseDeadOwner(t *testing.T, d *db) {
	l := d.laneTTL("killed", time.Second, 1, 2)
	old := l.batch(7, 1)
	d.reopen()
	d.join("next")
	var got []store.Lease
	require.Eventually(t, func() bool {
		got = append(got, d.claim("next", l.c.Build, 1, 2)...)
		return len(got) >= 2
	}, waitMax, 20*time.Millisecond)
	require.Equal(t, []store.Lease{{Build: l.c.Build, Partition: 1, Generation: 2}, {Build: l.c.Build, Partition: 2, Generation: 2}}, got)
	old.Incarnation = d.Incarnation()
	require.ErrorIs(t, d.Apply(d.ctx(), old), store.ErrFenced)
}

func leaseLapsed(t *testing.T, d *db) {
	l := d.laneTTL("slow", time.Second, 1, 2)
	d.join("next")
	require.Eventually(t, func() bool { return len(d.claim("next", l.c.Build, 1)) == 1 }, waitMax, 20*time.Millisecond)
	require.ErrorIs(t, d.Apply(d.ctx(), l.batch(7, 1)), store.ErrFenced)
	_, _, err := d.Claim(d.ctx(), "slow", l.c.Build, []int{2})
	require.ErrorIs(t, err, store.ErrNotFound, "who has lapsed claims nothing")
}

func leaseHeartbeat(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	require.ErrorIs(t, d.Heartbeat(d.ctx(), "nobody"), store.ErrNotFound)
	const ttl = time.Second
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "a", HostName: "host", TTL: ttl}))
	d.join("b")
	d.enlist("a", c.Build)
	d.claim("a", c.Build, 1)
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(ttl / 20) {
		require.NoError(t, d.Heartbeat(d.ctx(), "a"))
	}
	require.Empty(t, d.claim("b", c.Build, 1))
	require.NoError(t, d.Leave(d.ctx(), "a"))
	require.ErrorIs(t, d.Heartbeat(d.ctx(), "a"), store.ErrNotFound)
}

// A host whose calls have every connection, and wait for more, is heard.
func leaseHeartbeatAlone(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	var views []store.ReadView
	defer func() {
		for _, v := range views {
			require.NoError(t, v.Close())
		}
	}()
	for len(views) < 200 {
		ctx, cancel := context.WithCancel(d.ctx()) // for as long as the view is open
		defer cancel()
		late := time.AfterFunc(time.Second, cancel)
		v, err := d.View(ctx, c.ID)
		late.Stop()
		if err != nil {
			break
		}
		views = append(views, v)
	}
	require.NotEmpty(t, views)
	soon, cancel := context.WithTimeout(d.ctx(), 10*time.Second)
	defer cancel()
	require.NoError(t, d.Heartbeat(soon, "a"), "beside %d views", len(views))
}

// Rows of hosts that were killed do not pile up, and one that only slept is told
// that it holds nothing any more.
func leaseJoinRemoves(t *testing.T, d *db) {
	l := d.laneTTL("slow", time.Second, 1)
	d.join("stays")
	require.Eventually(t, func() bool { return !d.instance("slow").Live }, waitMax, 20*time.Millisecond)
	require.Equal(t, "slow", d.owner(l.c.Build, 1).InstanceID, "nobody wanted it yet")
	d.join("new")
	require.ErrorIs(t, d.Heartbeat(d.ctx(), "slow"), store.ErrNotFound)
	list, err := d.ListInstances(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.NoError(t, d.Heartbeat(d.ctx(), "stays"))
	require.Len(t, d.claim("new", l.c.Build, 1), 1)
}

// instance is a recorded one.
func (d *db) instance(id string) store.InstanceStatus {
	d.t.Helper()
	list, err := d.ListInstances(d.ctx())
	require.NoError(d.t, err)
	for _, i := range list {
		if i.ID == id {
			return i
		}
	}
	require.FailNow(d.t, "no such instance", id)
	return store.InstanceStatus{}
}

func leaseInstances(t *testing.T, d *db) {
	list, err := d.ListInstances(d.ctx())
	require.NoError(t, err)
	require.Empty(t, list)
	for _, i := range []store.Instance{{ID: "b", HostName: "Büro 🏠", TTL: 15 * time.Second}, {ID: "a", HostName: "", TTL: 1500 * time.Millisecond}, {ID: "A"}} {
		require.NoError(t, d.Join(d.ctx(), i))
		got := d.instance(i.ID)
		require.Equal(t, i, got.Instance)
		require.True(t, got.Live)
		require.Equal(t, got.StartedUS, got.HeartbeatUS)
		require.InDelta(t, time.Now().UnixMicro(), got.StartedUS, float64(time.Hour.Microseconds()))
	}
	before := d.instance("b")
	require.Eventually(t, func() bool {
		require.NoError(t, d.Heartbeat(d.ctx(), "b"))
		return d.instance("b").HeartbeatUS > before.HeartbeatUS
	}, waitMax, time.Millisecond)
	require.Equal(t, before.StartedUS, d.instance("b").StartedUS)
	list, err = d.ListInstances(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.True(t, slices.IsSortedFunc(list, func(a, b store.InstanceStatus) int {
		return cmp.Or(cmp.Compare(a.StartedUS, b.StartedUS), strings.Compare(a.ID, b.ID))
	}))
	require.NoError(t, d.Leave(d.ctx(), "b"))
	list, err = d.ListInstances(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func leaseNeedsInstance(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	_, _, err := d.Claim(d.ctx(), "nobody", c.Build, []int{1})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.Equal(t, store.Ownership{Partition: 1}, d.owner(c.Build, 1))
	d.join("a")
	require.Error(t, d.Join(d.ctx(), store.Instance{ID: "a"}), "an id is of one run")
	require.Error(t, d.Join(d.ctx(), store.Instance{}))
}

func leaseUnknownPartition(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	d.join("a")
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 255, Generation: 1}}, d.claim("a", c.Build, -1, 255, 256, 1<<20))
	require.Empty(t, d.claim("a", c.Build+50, 1, 2))
	require.Empty(t, d.claim("a", c.Build))
}

func leaseConcurrentClaims(t *testing.T, d *db) {
	c := d.subscribe(declare(t, "accounts", accounts()...))
	const instances = 8
	all := d.partitions()
	got := make([][]store.Lease, instances)
	errs := make([]error, instances)
	var wg sync.WaitGroup
	for i := range instances {
		d.join(fmt.Sprint(i))
		d.enlist(fmt.Sprint(i), c.Build)
	}
	for i := range instances {
		wg.Go(func() { got[i], _, errs[i] = d.Claim(d.ctx(), fmt.Sprint(i), c.Build, all) })
	}
	wg.Wait()
	owner := map[int]string{}
	for i := range instances {
		require.NoError(t, errs[i])
		for _, lease := range got[i] {
			require.Empty(t, owner[lease.Partition], "partition %d has two owners", lease.Partition)
			require.EqualValues(t, 1, lease.Generation)
			owner[lease.Partition] = fmt.Sprint(i)
		}
	}
	require.Len(t, owner, len(all))
	owners, err := d.Owners(d.ctx(), c.Build)
	require.NoError(t, err)
	for _, o := range owners {
		require.Equal(t, owner[o.Partition], o.InstanceID)
	}
}

// A host is frozen in the middle of an apply: its locks are in the way of one
// partition, not of all, until they end (H35). Nobody waits for its own either.
func leaseLocked(t *testing.T, d *db) {
	rows, ok := d.Store.(RowLocker)
	if !ok {
		return // a claim is alone in the database
	}
	l := d.laneTTL("frozen", time.Second, 1, 2, 3)
	d.join("next")
	require.Eventually(t, func() bool { return !d.instance("frozen").Live }, waitMax, 20*time.Millisecond)
	unlock, err := rows.LockLease(d.ctx(), l.c.Build, 2)
	require.NoError(t, err)
	defer func() { _ = unlock() }()
	require.Equal(t, []store.Lease{{Build: l.c.Build, Partition: 1, Generation: 2}, {Build: l.c.Build, Partition: 3, Generation: 2}},
		d.claim("next", l.c.Build, 1, 2, 3))
	require.Empty(t, d.claim("next", l.c.Build, 2))
	require.Equal(t, store.Ownership{Partition: 2, InstanceID: "frozen", Generation: 1}, d.owner(l.c.Build, 2))
	require.NoError(t, unlock())
	require.Equal(t, []store.Lease{{Build: l.c.Build, Partition: 2, Generation: 2}}, d.claim("next", l.c.Build, 2))
}

func leaseBuilds(t *testing.T, d *db) {
	first := d.subscribe(declare(t, "accounts", accounts()...))
	second := d.subscribe(declare(t, "other", declareOther()...))
	d.join("a")
	d.join("b")
	d.claim("a", first.Build, 1, 2)
	require.Len(t, d.claim("b", second.Build, 1, 2), 2)
	require.NoError(t, d.Release(d.ctx(), "a", []store.Lease{{Build: second.Build, Partition: 1, Generation: 1}}))
	require.Equal(t, "b", d.owner(second.Build, 1).InstanceID)
}
