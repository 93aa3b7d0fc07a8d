package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var memberCases = []testCase{
	{"EnlistSetsTheBuildsOfAnInstance", memberEnlist},
	{"EnlistTellsSingleOwners", memberSingleOwner},
	{"EnlistNeedsAnInstance", memberNeedsInstance},
	{"LeaveEndsMemberships", memberLeave},
	{"ReapRemovesTheLapsed", memberReap},
	{"JoinRemovesMembershipsOfTheLapsed", memberJoin},
	{"MembersNeedNotBeLive", memberLapsed},
	{"CeilingIsStored", memberCeiling},
	{"AdvanceIsHowFarAllIsApplied", advanceIsSeen},
	{"AdvanceOfAnEarlierTenureChangesNothing", advanceLate},
	{"ClaimSetsBackToTheLowestCheckpoint", advanceSetBack},
	{"AdvanceOnlyRises", advanceRises},
	{"AdvanceIsForManyBuildsAtOnce", advanceMany},
	{"PositionsOfALapsedOwnerStand", advanceLapsed},
	{"ProgressOfAnotherIncarnationIsRefused", advanceIncarnation},
	{"SurveyTellsTheTenure", surveyTenure},
	{"MembershipThatBeginsAgainKnowsNoEarlierTenure", advanceAnew},
	{"SurveyShowsTheCluster", memberSurvey},
	{"SurveyOfAnEmptyCluster", memberSurveyEmpty},
	{"SurveyWhileEverythingMoves", memberSurveyMoving},
}

func (d *db) enlist(instance string, builds ...int64) {
	d.t.Helper()
	require.NoError(d.t, d.Enlist(d.ctx(), instance, enlistments(builds)))
}

func enlistments(builds []int64) (list []store.Enlistment) {
	for _, b := range builds {
		list = append(list, store.Enlistment{Build: b})
	}
	return list
}

func (d *db) survey(builds ...int64) store.Survey {
	d.t.Helper()
	s, err := d.Survey(d.ctx(), builds)
	require.NoError(d.t, err)
	return s
}

// membersOf lists who runs a build.
func (d *db) membersOf(build int64) (instances []string) {
	d.t.Helper()
	for _, m := range d.survey().Members {
		if m.Build == build {
			instances = append(instances, m.InstanceID)
		}
	}
	return instances
}

func memberEnlist(t *testing.T, d *db) {
	first := d.subscribe(declare(t, "accounts", accounts()...)).Build
	second := d.subscribe(declare(t, "other", declareOther()...)).Build
	for _, i := range []string{"b", "a", "A", "ä"} {
		d.join(i)
	}
	d.enlist("b", second, first)
	d.enlist("a", first)
	d.enlist("ä", first, first+50, first)
	require.Equal(t, []string{"a", "b", "ä"}, d.membersOf(first), "builds that do not exist are passed over")
	require.Equal(t, []string{"b"}, d.membersOf(second))
	for _, m := range d.survey().Members {
		require.Equal(t, map[string]int64{store.EventsTopic: 0}, m.ReadThrough)
	}
	d.enlist("a", second)
	d.enlist("b", second, first)
	require.Equal(t, []string{"b", "ä"}, d.membersOf(first), "exactly those of the last call")
	require.Equal(t, []string{"a", "b"}, d.membersOf(second))
	d.enlist("b")
	d.enlist("A")
	require.Equal(t, []string{"ä"}, d.membersOf(first))
	require.Equal(t, []string{"a"}, d.membersOf(second))
}

func memberSingleOwner(t *testing.T, d *db) {
	first := d.subscribe(declare(t, "accounts", accounts()...)).Build
	second := d.subscribe(declare(t, "other", declareOther()...)).Build
	d.join("a")
	enlist := func(list ...store.Enlistment) {
		t.Helper()
		require.NoError(t, d.Enlist(d.ctx(), "a", list))
		var have []store.Enlistment
		for _, m := range d.survey().Members {
			have = append(have, m.Enlistment)
		}
		require.Equal(t, list, have)
	}
	enlist(store.Enlistment{Build: first, SingleOwner: true}, store.Enlistment{Build: second})
	enlist(store.Enlistment{Build: first}, store.Enlistment{Build: second, SingleOwner: true})
	enlist(store.Enlistment{Build: second, SingleOwner: true})
	enlist(store.Enlistment{Build: first, SingleOwner: true}, store.Enlistment{Build: second, SingleOwner: true})
}

func memberNeedsInstance(t *testing.T, d *db) {
	build := d.subscribe(declare(t, "accounts", accounts()...)).Build
	d.join("a")
	require.ErrorIs(t, d.Enlist(d.ctx(), "nobody", enlistments([]int64{build})), store.ErrNotFound)
	require.ErrorIs(t, d.Enlist(d.ctx(), "A", nil), store.ErrNotFound)
	require.Empty(t, d.survey().Members)
	require.NoError(t, d.Leave(d.ctx(), "a"))
	require.ErrorIs(t, d.Enlist(d.ctx(), "a", enlistments([]int64{build})), store.ErrNotFound)
}

func memberLeave(t *testing.T, d *db) {
	build := d.subscribe(declare(t, "accounts", accounts()...)).Build
	d.join("a")
	d.join("b")
	d.enlist("a", build)
	d.enlist("b", build)
	require.NoError(t, d.Leave(d.ctx(), "a"))
	require.Equal(t, []string{"b"}, d.membersOf(build))
}

// silent is an instance that has joined, runs a build, owns a partition of it
// and has lapsed since.
func (d *db) silent(id string, build int64, partition int) {
	d.t.Helper()
	require.NoError(d.t, d.Join(d.ctx(), store.Instance{ID: id, TTL: 200 * time.Millisecond}))
	d.enlist(id, build)
	require.Len(d.t, d.claim(id, build, partition), 1)
	require.Eventually(d.t, func() bool { return !d.instance(id).Live }, waitMax, 10*time.Millisecond)
}

func memberReap(t *testing.T, d *db) {
	build := d.subscribe(declare(t, "accounts", accounts()...)).Build
	d.join("stays")
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "beats", TTL: time.Hour}))
	d.enlist("stays", build)
	d.enlist("beats", build)
	reaped := func() int {
		t.Helper()
		n, err := d.Reap(d.ctx())
		require.NoError(t, err)
		return n
	}
	require.Zero(t, reaped())
	d.silent("slow", build, 1)
	require.Equal(t, 1, reaped())
	require.Zero(t, reaped())
	require.ErrorIs(t, d.Heartbeat(d.ctx(), "slow"), store.ErrNotFound)
	require.Equal(t, []string{"beats", "stays"}, d.membersOf(build))
	require.Len(t, d.survey().Instances, 2)
	require.Equal(t, store.Ownership{Partition: 1, InstanceID: "slow", Generation: 1}, d.owner(build, 1), "nobody has wanted it yet")
	require.Len(t, d.claim("stays", build, 1), 1)
	require.NoError(t, d.Heartbeat(d.ctx(), "beats"))
}

func memberJoin(t *testing.T, d *db) {
	build := d.subscribe(declare(t, "accounts", accounts()...)).Build
	d.silent("slow", build, 1)
	d.join("new")
	require.Empty(t, d.membersOf(build))
}

// Who has lapsed may come back in time, and is shown until somebody removes it.
func memberLapsed(t *testing.T, d *db) {
	build := d.subscribe(declare(t, "accounts", accounts()...)).Build
	d.silent("slow", build, 1)
	require.Equal(t, []string{"slow"}, d.membersOf(build))
	require.NoError(t, d.Enlist(d.ctx(), "slow", nil), "it has joined")
	require.Empty(t, d.membersOf(build))
}

func memberCeiling(t *testing.T, d *db) {
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "a", MaxPartitions: 32767 * 64}))
	d.join("b")
	require.Equal(t, 32767*64, d.instance("a").MaxPartitions)
	require.Zero(t, d.instance("b").MaxPartitions)
}

func memberSurvey(t *testing.T, d *db) {
	l := d.lane("a", 1, 2)
	second := d.subscribe(declare(t, "other", declareOther()...))
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "b", HostName: "Büro", TTL: time.Hour, MaxPartitions: 9}))
	d.enlist("b", l.c.Build, second.Build)
	d.enlist("a", l.c.Build)
	d.claim("b", second.Build, 0, 255)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(7)))

	s := d.survey(l.c.Build, second.Build+50, l.c.Build)
	instances, err := d.ListInstances(d.ctx())
	require.NoError(t, err)
	require.Equal(t, instances, s.Instances)
	owners, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.Equal(t, map[int64][]store.Ownership{l.c.Build: owners}, s.Owners)
	nothing := map[string]int64{store.EventsTopic: 0}
	require.NotZero(t, s.Members[2].Tenure)
	for i := range s.Members {
		s.Members[i].Tenure = 0
	}
	require.Equal(t, []store.Membership{
		{Enlistment: store.Enlistment{Build: l.c.Build}, InstanceID: "a", ReadThrough: nothing},
		{Enlistment: store.Enlistment{Build: l.c.Build}, InstanceID: "b", ReadThrough: nothing},
		{Enlistment: store.Enlistment{Build: second.Build}, InstanceID: "b", ReadThrough: nothing}}, s.Members)
	halted, err := d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.NotNil(t, halted.Halt)
	require.Equal(t, []store.ConsumerStatus{{ID: l.c.ID, Build: l.c.Build, State: store.StateHalted, Halt: halted.Halt},
		{ID: second.ID, Build: second.Build, State: store.StateRunning}}, s.Consumers)

	s = d.survey(second.Build, l.c.Build)
	require.Len(t, s.Owners, 2)
	require.Len(t, s.Owners[second.Build], 256)
	require.Equal(t, store.Ownership{Partition: 255, InstanceID: "b", Generation: 1}, s.Owners[second.Build][255])
	require.Empty(t, d.survey().Owners)
}

func memberSurveyEmpty(t *testing.T, d *db) {
	s := d.survey(1, 2)
	require.Empty(t, s.Instances)
	require.Empty(t, s.Members)
	require.Empty(t, s.Consumers)
	require.Empty(t, s.Owners)
}

// Hosts come and go, enlist, claim and survey all at once: nobody fails, and
// whoever owned something when it was looked at has joined before that.
func memberSurveyMoving(t *testing.T, d *db) {
	builds := []int64{d.subscribe(declare(t, "accounts", accounts()...)).Build, d.subscribe(declare(t, "other", declareOther()...)).Build}
	const hosts, rounds = 4, 5
	errs := make([]error, hosts)
	var wg sync.WaitGroup
	for h := range hosts {
		wg.Go(func() {
			errs[h] = func() error {
				for r := range rounds {
					id := fmt.Sprintf("%d/%d", h, r)
					if err := d.Join(d.ctx(), store.Instance{ID: id, TTL: time.Hour}); err != nil {
						return err
					}
					if err := d.Enlist(d.ctx(), id, enlistments(builds[:1+r%2])); err != nil {
						return err
					}
					if _, _, err := d.Claim(d.ctx(), id, builds[0], []int{h, h + 1, h + 2}); err != nil {
						return err
					}
					if _, err := d.Reap(d.ctx()); err != nil {
						return err
					}
					s, err := d.Survey(d.ctx(), builds)
					if err != nil {
						return err
					}
					if !slices.ContainsFunc(s.Instances, func(i store.InstanceStatus) bool { return i.ID == id && i.Live }) {
						return fmt.Errorf("%s is live and was not seen", id)
					}
					if !slices.ContainsFunc(s.Members, func(m store.Membership) bool { return m.InstanceID == id && m.Build == builds[0] }) {
						return fmt.Errorf("%s is a member and was not seen", id)
					}
					if err := d.Heartbeat(d.ctx(), id); err != nil {
						return err
					}
					if err := d.Leave(d.ctx(), id); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, d.survey().Members)
	require.Empty(t, d.survey().Instances)
	for _, o := range d.survey(builds[0]).Owners[builds[0]] {
		require.Empty(t, o.InstanceID)
	}
}

// enlisted is an instance that runs a build and owns partitions of it.
type enlisted struct {
	*lane
	tenure int64
}

// enlistedLane is lane for a member.
func (d *db) enlistedLane(instance string, partitions ...int) *enlisted {
	d.t.Helper()
	e := &enlisted{lane: &lane{d: d, c: d.subscribe(declare(d.t, "accounts", accounts()...)), instance: instance}}
	d.join(instance)
	d.enlist(instance, e.c.Build)
	e.take(partitions...)
	return e
}

// take claims partitions as well as those it has.
func (e *enlisted) take(partitions ...int) {
	e.d.t.Helper()
	leases, tenure, err := e.d.Claim(e.d.ctx(), e.instance, e.c.Build, partitions)
	require.NoError(e.d.t, err)
	require.Len(e.d.t, leases, len(partitions))
	require.NotZero(e.d.t, tenure)
	require.NotEqual(e.d.t, e.tenure, tenure)
	e.tenure = tenure
	e.leases = slices.DeleteFunc(e.leases, func(l store.Lease) bool { return slices.Contains(partitions, l.Partition) })
	e.leases = append(e.leases, leases...)
	if e.positions == nil {
		e.positions = map[int]int64{}
	}
	for _, c := range e.checkpoints() {
		e.positions[c.Partition] = c.Position
	}
}

func (e *enlisted) advance(through int64) {
	e.d.t.Helper()
	e.advanceOf(e.tenure, through)
}

func (e *enlisted) advanceOf(tenure, through int64) {
	e.d.t.Helper()
	require.NoError(e.d.t, e.d.Advance(e.d.ctx(), e.instance,
		[]store.Progress{{Incarnation: e.d.Incarnation(), Build: e.c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: through}}))
}

// applied is how far each partition counts as applied.
func (d *db) applied(c store.Consumer, partitions ...int) (list []int64) {
	d.t.Helper()
	v, err := d.View(d.ctx(), c.ID)
	require.NoError(d.t, err)
	defer v.Close()
	for _, p := range partitions {
		at, err := v.Position(store.EventsTopic, p)
		require.NoError(d.t, err)
		list = append(list, at)
	}
	d.standsAsTold(v)
	return list
}

// standsAsTold checks that what a view tells of all partitions at once is what it
// and the store tell of each.
func (d *db) standsAsTold(v store.ReadView) {
	d.t.Helper()
	standings, err := v.Standings()
	require.NoError(d.t, err)
	checkpoints, err := d.Checkpoints(d.ctx(), v.Consumer().Build)
	require.NoError(d.t, err)
	owners, err := d.Owners(d.ctx(), v.Consumer().Build)
	require.NoError(d.t, err)
	want := map[string][]store.Standing{}
	for _, c := range checkpoints {
		at, err := v.Position(c.Topic, c.Partition)
		require.NoError(d.t, err)
		o := owners[c.Partition]
		want[c.Topic] = append(want[c.Topic], store.Standing{
			Partition: c.Partition, Checkpoint: c.Position, Applied: at, Owner: o.InstanceID, Generation: o.Generation})
	}
	require.Equal(d.t, want, standings)
}

func (d *db) lowest(c store.Consumer) int64 {
	d.t.Helper()
	v, err := d.View(d.ctx(), c.ID)
	require.NoError(d.t, err)
	defer v.Close()
	positions, err := v.Positions()
	require.NoError(d.t, err)
	require.Len(d.t, positions, 1)
	return positions[store.EventsTopic]
}

func advanceIsSeen(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	a := d.enlistedLane("a", 0, 1)
	a.apply(a.batch(7, 1))
	require.Equal(t, []int64{0, 7, 0, 0}, d.applied(a.c, 0, 1, 2, 3))
	a.advance(5)
	require.Equal(t, []int64{5, 7, 0, 0}, d.applied(a.c, 0, 1, 2, 3), "the larger of the two; nothing is told of what it does not own")
	require.Zero(t, d.lowest(a.c))
	a.take(2, 3)
	a.advance(6)
	require.Equal(t, []int64{6, 7, 6, 6}, d.applied(a.c, 0, 1, 2, 3))
	require.EqualValues(t, 6, d.lowest(a.c))
	require.Equal(t, map[string]int64{store.EventsTopic: 6}, d.survey().Members[0].ReadThrough)
	for _, c := range a.checkpoints() {
		require.Equal(t, int64(map[int]int64{1: 7}[c.Partition]), c.Position, "checkpoints are only what was saved")
	}
	a.apply(a.batch(9, 0, 1, 2, 3))
	require.Equal(t, []int64{9, 9, 9, 9}, d.applied(a.c, 0, 1, 2, 3))
	require.EqualValues(t, 9, d.lowest(a.c))
	a.advance(10)
	require.NoError(t, d.Release(d.ctx(), "a", a.leases[:1]))
	require.Equal(t, []int64{9, 10, 10, 10}, d.applied(a.c, 0, 1, 2, 3), "nobody speaks for a partition without owner")
	require.EqualValues(t, 9, d.lowest(a.c))
	a.advance(11)
	require.Equal(t, []int64{9, 11, 11, 11}, d.applied(a.c, 0, 1, 2, 3), "the tenure goes on with what remains")
	require.NoError(t, d.Leave(d.ctx(), "a"))
	require.Equal(t, []int64{9, 9, 9, 9}, d.applied(a.c, 0, 1, 2, 3))
}

// What was said before a claim must not hold of what came with it, however late
// it arrives.
func advanceLate(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1)
	first := a.tenure
	a.advance(50)
	a.take(2)
	a.advanceOf(first, 60)
	require.Equal(t, []int64{0, 0}, d.applied(a.c, 1, 2))
	a.advanceOf(0, 60)
	a.advanceOf(a.tenure+1, 60)
	require.NoError(t, d.Advance(d.ctx(), "b", []store.Progress{{Incarnation: d.Incarnation(), Build: a.c.Build, Tenure: a.tenure, Topic: store.EventsTopic, ReadThrough: 60}}))
	require.NoError(t, d.Advance(d.ctx(), "a", []store.Progress{{Incarnation: d.Incarnation(), Build: a.c.Build, Tenure: a.tenure, Topic: "Events", ReadThrough: 60}}))
	require.NoError(t, d.Advance(d.ctx(), "a", nil))
	require.Equal(t, []int64{0, 0}, d.applied(a.c, 1, 2))
	a.advance(60)
	require.Equal(t, []int64{60, 60}, d.applied(a.c, 1, 2))

	// A claim in vain begins nothing.
	d.join("b")
	d.enlist("b", a.c.Build)
	leases, tenure, err := d.Claim(d.ctx(), "b", a.c.Build, []int{1, 2})
	require.NoError(t, err)
	require.Empty(t, leases)
	require.Zero(t, tenure)
	require.Equal(t, []int64{60, 60}, d.applied(a.c, 1, 2))
	// Nor does one of another build, or of another instance.
	other := d.subscribe(declare(t, "other", declareOther()...))
	d.enlist("a", a.c.Build, other.Build)
	d.claim("a", other.Build, 3)
	d.claim("b", a.c.Build, 3)
	a.advance(61)
	require.Equal(t, []int64{61, 61, 0}, d.applied(a.c, 1, 2, 3))
}

func advanceSetBack(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1, 2, 3)
	a.apply(a.batch(7, 1))
	a.apply(a.batch(5, 2, 3))
	a.advance(100)
	require.NoError(t, d.Release(d.ctx(), "a", a.leases[2:]))
	a.take(1)
	require.Equal(t, []int64{7, 7, 5}, d.applied(a.c, 1, 2, 3), "it begins anew at 7 in partition 1")
	a.take(3, 1)
	require.Equal(t, []int64{7, 5, 5}, d.applied(a.c, 1, 2, 3))
	a.take(1)
	require.Equal(t, []int64{7, 5, 5}, d.applied(a.c, 1, 2, 3), "a claim tells nothing new")
	a.take(4)
	require.Equal(t, []int64{7, 5, 5, 0}, d.applied(a.c, 1, 2, 3, 4))
	require.Equal(t, map[string]int64{store.EventsTopic: 0}, d.survey().Members[0].ReadThrough)
}

func advanceRises(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1)
	a.advance(9)
	a.advance(8)
	require.Equal(t, []int64{9}, d.applied(a.c, 1))
	d.enlist("a", a.c.Build)
	require.Equal(t, []int64{9}, d.applied(a.c, 1), "a membership that was there goes on")
	a.advance(10)
	require.Equal(t, []int64{10}, d.applied(a.c, 1))
}

func advanceMany(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 2})
	d.join("a")
	const count = 60
	var builds []int64
	var list []store.Progress
	for n := range count {
		c := d.subscribe(declare(t, fmt.Sprint("c", n)))
		builds = append(builds, c.Build)
		d.enlist("a", builds...)
		_, tenure, err := d.Claim(d.ctx(), "a", c.Build, []int{0, 1})
		require.NoError(t, err)
		list = append(list, store.Progress{Incarnation: d.Incarnation(), Build: c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: int64(100 + n)})
	}
	list[7].Tenure = list[8].Tenure
	require.NoError(t, d.Advance(d.ctx(), "a", list))
	for n, m := range d.survey().Members {
		want := int64(100 + n)
		if n == 7 {
			want = 0
		}
		require.Equal(t, builds[n], m.Build)
		require.Equal(t, want, m.ReadThrough[store.EventsTopic])
	}
	for range 5 { // more than one statement can name
		list = append(list, list...)
	}
	require.NoError(t, d.Advance(d.ctx(), "a", list))
}

// What was applied to another incarnation of the database may be lost since.
func advanceIncarnation(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1)
	p := store.Progress{Build: a.c.Build, Incarnation: d.Incarnation(), Tenure: a.tenure, Topic: store.EventsTopic, ReadThrough: 9}
	for _, other := range []uint64{p.Incarnation - 1, p.Incarnation + 1} {
		q := p
		q.Incarnation = other
		require.ErrorIs(t, d.Advance(d.ctx(), "a", []store.Progress{p, q}), store.ErrIncarnation)
	}
	require.Equal(t, []int64{0}, d.applied(a.c, 1))
	require.NoError(t, d.Advance(d.ctx(), "a", []store.Progress{p}))
	require.Equal(t, []int64{9}, d.applied(a.c, 1))
}

// A survey tells the tenure of each membership.
func surveyTenure(t *testing.T, d *db) {
	d.join("a")
	c := d.subscribe(declare(t, "accounts", accounts()...))
	tenure := func() int64 { return d.survey().Members[0].Tenure }
	d.enlist("a", c.Build)
	require.Zero(t, tenure())
	for _, p := range []int{1, 2, 1} {
		_, begun, err := d.Claim(d.ctx(), "a", c.Build, []int{p})
		require.NoError(t, err)
		require.Equal(t, begun, tenure())
	}
	d.enlist("a")
	d.enlist("a", c.Build)
	require.Zero(t, tenure(), "that membership has ended")
}

// What it has said is true of what it has applied, until somebody else owns it.
func advanceLapsed(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1)
	a.advance(9)
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "slow", TTL: 200 * time.Millisecond}))
	d.enlist("slow", a.c.Build)
	_, tenure, err := d.Claim(d.ctx(), "slow", a.c.Build, []int{2})
	require.NoError(t, err)
	require.NoError(t, d.Advance(d.ctx(), "slow", []store.Progress{{Incarnation: d.Incarnation(), Build: a.c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: 11}}))
	require.Eventually(t, func() bool { return !d.instance("slow").Live }, waitMax, 10*time.Millisecond)
	require.Equal(t, []int64{9, 11}, d.applied(a.c, 1, 2))
	a.take(2)
	require.Equal(t, []int64{0, 0}, d.applied(a.c, 1, 2))
}

func advanceAnew(t *testing.T, d *db) {
	a := d.enlistedLane("a", 1)
	first := a.tenure
	d.enlist("a")
	require.Equal(t, []int64{0}, d.applied(a.c, 1))
	a.advance(9)
	require.Equal(t, []int64{0}, d.applied(a.c, 1), "no member")
	d.enlist("a", a.c.Build)
	a.advance(9)
	require.Equal(t, []int64{0}, d.applied(a.c, 1), "that membership has ended")
	a.take(2)
	a.advanceOf(first, 9)
	require.Equal(t, []int64{0, 0}, d.applied(a.c, 1, 2))
	a.advance(9)
	require.Equal(t, []int64{9, 9}, d.applied(a.c, 1, 2))
}
