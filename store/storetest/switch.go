package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var switchCases = []testCase{
	{"SwitchWhenBehindTellsHowFar", shadowBehind},
	{"SwitchIsOneMoment", shadowSwitch},
	{"SwitchRefusesWhatIsUnderWay", shadowFences},
	{"ReadersKeepTheirSnapshot", shadowReaders},
	{"SwitchEndsAHaltAndKeepsAPause", shadowStates},
	{"RollBackIsTheSameSwitch", shadowRollBack},
	{"EffectsAreNeitherLostNorDoubled", shadowEffects},
	{"KeysThatDifferMeetAtOnePosition", shadowRekeyed},
	{"StopAtIsToldWithCheckpoints", shadowStop},
	{"SwitchAndCancelTakeTurns", shadowSwitchRace},
	{"SwitchAndLanesTakeTurns", shadowBesideLanes},
}

func shadowBehind(t *testing.T, d *db) {
	d = few(d)
	l := d.lane("i")
	s := l.shadow(sameTables(t))
	l.apply(l.batch(5, 0))
	l.apply(l.batch(9, 1))
	s.apply(s.batch(9, 0, 2))
	s.apply(s.batch(8, 1))
	kept, builds := l.requireKept(), l.builds()
	before, beside := l.owners(), s.owners()
	err := l.switchTo(s)
	var behind *store.BehindError
	require.ErrorAs(t, err, &behind)
	require.Equal(t, store.BehindError{Consumer: l.c.ID, Build: s.c.Build, Topics: []store.TopicBehind{{Topic: store.EventsTopic, Need: 9,
		Partitions: []store.PartitionBehind{{Partition: 1, Position: 8, Need: 9}, {Partition: 3, Position: 0, Need: 9}}}}}, *behind)
	require.ErrorContains(t, err, "2 partitions, the last of them 3 at 0 of 9")
	kept()
	require.Equal(t, builds, l.builds())
	require.Equal(t, [][]store.Ownership{before, beside}, [][]store.Ownership{l.owners(), s.owners()}, "nobody was disturbed")
	s.apply(s.batch(9, 1, 3))
	require.NoError(t, l.switchTo(s))
}

func shadowSwitch(t *testing.T, d *db) {
	d = few(d)
	l := d.lane("i")
	b := l.batch(9, 1)
	l.write(b, "accounts", l.account("a", 1, "old"))
	l.write(b, "entries", l.entry("a", "c", 1))
	l.apply(b)
	s := l.shadow(changed(t))
	b = s.batch(10, 0, 1, 2, 3)
	row := s.account("a", 2, "new")
	s.write(b, "accounts", row)
	s.apply(b)
	before, beside := l.owners(), s.owners()
	require.NoError(t, l.switchTo(s, store.Keep{For: time.Hour}))

	c := l.state()
	require.Equal(t, []any{s.c.Build, store.StateRunning, "sha256:changed", changed(t).Fingerprint}, []any{c.Build, c.State, c.Digest, c.Fingerprint})
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " standby running"), fmt.Sprint(s.c.Build, " live running")}, l.builds())
	old := l.build(l.c.Build)
	require.Equal(t, time.Hour.Microseconds(), old.KeepUntilUS-old.StoodDownUS)
	require.False(t, old.Cold)
	for i := range before {
		before[i].Generation++
		beside[i].Generation++
	}
	require.Equal(t, [][]store.Ownership{before, beside}, [][]store.Ownership{l.owners(), s.owners()})
	for _, c := range s.checkpoints() {
		want := map[int]int64{1: 9}[c.Partition]
		require.Equal(t, []int64{10, want, want}, []int64{c.Position, c.EffectsThrough, c.EffectsBefore}, "with effects the live build has come to its checkpoints")
	}
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	got, err := v.Get(d.ctx(), "accounts", row.Key)
	require.NoError(t, err)
	require.Equal(t, stored(row), got)
	positions, err := v.Positions()
	require.NoError(t, err)
	require.Equal(t, map[string]int64{store.EventsTopic: 10}, positions)
	_, err = v.Get(d.ctx(), "entries", store.RowKey{Key: "a", Child: "c"})
	require.ErrorIs(t, err, store.ErrNotFound, "it has no such table")
	require.NoError(t, v.Close())
	entries := l.history(store.ActionSwitch)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, s.c.Build, store.EventsTopic, int64(9)}, []any{entries[0].Actor, entries[0].Build, entries[0].Topic, entries[0].Position})

	require.NoError(t, l.switchTo(s), "it is live already")
	require.Len(t, l.history(store.ActionSwitch), 1)
	require.NoError(t, d.ShowLive(d.ctx(), l.c.ID))
	require.NoError(t, d.ShowLive(d.ctx(), l.c.ID), "again")
	require.NoError(t, d.CheckTables(d.ctx()))
	d.reopen()
	found := d.subscribe(changed(t))
	require.Equal(t, s.c.Build, found.Build)
	_, err = d.Subscribe(d.ctx(), declare(t, "accounts", accounts()...))
	var other *store.DeclarationError
	require.ErrorAs(t, err, &other, "a host that has the old module stays out")
	require.Equal(t, []string{"tables"}, other.Changed)
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " standby running"), fmt.Sprint(s.c.Build, " live running")}, l.builds())
}

func shadowFences(t *testing.T, d *db) {
	l := d.lane("i", 3)
	s := l.shadow(sameTables(t), 3)
	l.held(1, record(store.StatusFailed, 3, "x", 1))
	for p := range d.partitions() {
		if p != 3 {
			s.claim(p)
			s.apply(s.batch(9, p))
		}
	}
	s.claim(3)
	s.apply(s.batch(9, 3))
	old, young := l.batch(8, 3), s.batch(12, 3)
	retry := l.batch(0)
	retry.Retries = []store.Retry{l.retried(1, nil)}
	leases := [][]store.Lease{slices.Clone(l.leases), slices.Clone(s.leases)}
	require.NoError(t, l.switchTo(s))
	for _, b := range []*store.Batch{old, young, retry} {
		require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrFenced)
		outcome, err := d.Settle(d.ctx(), b)
		require.NoError(t, err)
		require.Equal(t, store.OutcomeLost, outcome)
	}
	for _, lease := range leases {
		require.ErrorIs(t, d.Halt(d.ctx(), l.c.ID, lease[0], store.Halt{Reason: store.HaltApplyError}), store.ErrFenced)
	}
	// Both go on under new leases, each for its own build.
	l.claim(3)
	s.claim(3)
	l.apply(l.batch(8, 3))
	s.apply(s.batch(12, 3))
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], store.Halt{Reason: store.HaltApplyError}))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " standby halted"), fmt.Sprint(s.c.Build, " live running")}, l.builds())
}

func shadowReaders(t *testing.T, d *db) {
	l := filled(d)
	s := l.shadow(changed(t))
	s.apply(s.batch(99, d.partitions()...))
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	_, err = v.Positions()
	require.NoError(t, err)
	before := l.all("accounts")
	require.NotEmpty(t, before)
	require.NoError(t, l.switchTo(s))
	require.Equal(t, l.c.Build, v.Consumer().Build)
	rows, _, err := v.Query(d.ctx(), "accounts", store.Query{Limit: 100})
	require.NoError(t, err)
	require.Equal(t, before, rows, "of the moment when it was opened")
	require.Empty(t, l.all("accounts"), "the new one has none")
}

func shadowStates(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(5, 3)
	b.Records = []store.Record{record(store.StatusHalted, 3, "a", 5)}
	b.Halt = &store.Halt{Reason: store.HaltApplyError, Message: "the old one"}
	l.apply(b)
	s := l.shadow(sameTables(t))
	s.apply(s.batch(5, d.partitions()...))
	require.NoError(t, l.switchTo(s))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " standby halted"), fmt.Sprint(s.c.Build, " live running")}, l.builds())
	c := l.state()
	require.Nil(t, c.Halt)
	require.Equal(t, "the old one", l.build(l.c.Build).Halt.Message)
	l.requireBuildError(s.switchTo(l), store.ActionSwitch, l.c.Build)
	require.NoError(t, d.ResumeBuild(d.ctx(), l.c.ID, l.c.Build, ops))
	l.claim()
	l.apply(l.batch(5, slices.DeleteFunc(d.partitions(), func(p int) bool { return p == 3 })...))

	require.NoError(t, d.Pause(d.ctx(), l.c.ID, ops))
	require.NoError(t, s.switchTo(l))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live paused"), fmt.Sprint(s.c.Build, " standby running")}, l.builds())
	require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running"), fmt.Sprint(s.c.Build, " standby running")}, l.builds())
}

func shadowRollBack(t *testing.T, d *db) {
	d = few(d)
	l := d.lane("i")
	l.apply(l.batch(5, 0, 1, 2, 3))
	s := l.shadow(changed(t))
	s.apply(s.batch(5, 0, 1, 2, 3))
	require.NoError(t, l.switchTo(s))
	s.claim()
	s.apply(s.batch(9, 2))
	var behind *store.BehindError
	require.ErrorAs(t, s.switchTo(l), &behind, "never into the past")
	require.EqualValues(t, 9, behind.Topics[0].Need)
	require.Len(t, behind.Topics[0].Partitions, 4)
	l.claim()
	l.apply(l.batch(9, 0, 1, 2, 3))
	require.NoError(t, s.switchTo(l, store.Keep{Cold: true}))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running"), fmt.Sprint(s.c.Build, " standby running")}, l.builds())
	require.True(t, l.build(s.c.Build).Cold)
	live := l.build(l.c.Build)
	require.Equal(t, []int64{0, 0}, []int64{live.StoodDownUS, live.KeepUntilUS})
	require.NoError(t, d.ShowLive(d.ctx(), l.c.ID))
	require.Equal(t, l.c.Build, d.subscribe(declare(t, "accounts", accounts()...)).Build)
	l.claim()
	l.apply(l.batch(10, 0))
	require.EqualValues(t, 10, l.checkpoints()[0].Position)
}

func shadowEffects(t *testing.T, d *db) {
	d = few(d)
	l := d.laneOf(saga(t), "i")
	l.apply(l.batch(5, 0))
	l.apply(l.batch(9, 1))
	decl := saga(t)
	decl.Digest, decl.Fingerprint.Logic = "sha256:changed", "changed"
	s := l.shadow(decl)
	s.apply(s.batch(9, 0, 1))
	var behind *store.BehindError
	require.ErrorAs(t, l.switchTo(s), &behind)
	require.Equal(t, []store.PartitionBehind{{Partition: 0, Position: 9, Need: 5}}, behind.Topics[0].Partitions, "6 to 9 would have no effects")
	l.apply(l.batch(9, 0))
	l.held(10, record(store.StatusFailed, 2, "k", 10))
	s.apply(s.batch(10, 2))
	l.requireBuildError(l.switchTo(s), store.ActionSwitch, s.c.Build)
	b := l.batch(0)
	b.Retries = []store.Retry{l.retried(10, nil)}
	l.apply(b)
	require.NoError(t, l.switchTo(s))
	for i, c := range s.checkpoints() {
		require.Equal(t, []int64{9, 9, 10, 0}[i], c.EffectsThrough)
	}
}

func shadowRekeyed(t *testing.T, d *db) {
	d = few(d)
	l := d.laneOf(saga(t), "i")
	l.apply(l.batch(5, 0, 1, 2))
	decl := saga(t)
	decl.Fingerprint.Keys = "others"
	s := l.shadow(decl)
	s.apply(s.batch(5, 0, 1, 2, 3))
	var behind *store.BehindError
	require.ErrorAs(t, l.switchTo(s), &behind)
	require.Equal(t, []store.PartitionBehind{{Partition: 3, Position: 0, Need: 5}}, behind.Topics[0].Partitions, "of the live build")
	l.apply(l.batch(5, 3))
	require.NoError(t, l.switchTo(s))
	for _, c := range s.checkpoints() {
		require.EqualValues(t, 5, c.EffectsThrough)
	}
}

func shadowStop(t *testing.T, d *db) {
	d = few(d)
	l := d.lane("i")
	_, err := d.StopAt(d.ctx(), l.c.ID)
	require.ErrorIs(t, err, store.ErrNotFound, "there is nothing to stop for")
	l.apply(l.batch(5, 0))
	l.apply(l.batch(9, 1))
	s := l.shadow(sameTables(t))
	stops := func() (list []int64) {
		for _, c := range l.checkpoints() {
			list = append(list, c.StopAt)
		}
		return list
	}
	old := l.batch(6, 0)
	l.raised(nil, func() {
		at, err := d.StopAt(d.ctx(), l.c.ID)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{store.EventsTopic: 9}, at)
	})
	l.refused(store.ErrFenced, old)
	require.Equal(t, []int64{9, 9, 9, 9}, stops())
	require.Positive(t, l.build(l.c.Build).StoppedUS)
	for _, c := range s.checkpoints() {
		require.Zero(t, c.StopAt, "only the live build stops")
	}
	l.apply(l.batch(9, 0))
	l.raised([]int{}, func() {
		at, err := d.StopAt(d.ctx(), l.c.ID)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{store.EventsTopic: 9}, at, "where it stops already")
		did, err := d.GoOn(d.ctx(), l.c.ID, time.Hour)
		require.NoError(t, err)
		require.False(t, did)
	})
	l.raised(nil, func() {
		did, err := d.GoOn(d.ctx(), l.c.ID, 0)
		require.NoError(t, err)
		require.True(t, did)
	})
	require.Equal(t, []int64{0, 0, 0, 0}, stops())
	require.Zero(t, l.build(l.c.Build).StoppedUS)
	did, err := d.GoOn(d.ctx(), l.c.ID, 0)
	require.NoError(t, err)
	require.False(t, did)
	// Both ends of a shadow end the stop as well.
	_, err = d.StopAt(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.NoError(t, d.CancelShadow(d.ctx(), l.c.ID, s.c.Build, ops))
	require.Equal(t, []int64{0, 0, 0, 0}, stops())
	s = l.shadow(sameTables(t))
	_, err = d.StopAt(d.ctx(), l.c.ID)
	require.NoError(t, err)
	s.apply(s.batch(9, 0, 1, 2, 3))
	require.NoError(t, l.switchTo(s))
	require.Equal(t, []int64{0, 0, 0, 0}, stops(), "the standby goes on")
	require.Zero(t, l.build(l.c.Build).StoppedUS)
	require.Zero(t, l.build(s.c.Build).StoppedUS)
}

func shadowSwitchRace(t *testing.T, d *db) {
	l := d.lane("i", 3)
	for range 6 {
		s := l.shadow(sameTables(t), 3)
		var wg sync.WaitGroup
		var switched, cancelled, stopped error
		wg.Go(func() { switched = l.switchTo(s) })
		wg.Go(func() { cancelled = d.CancelShadow(d.ctx(), l.c.ID, s.c.Build, ops) })
		wg.Go(func() { _, stopped = d.StopAt(d.ctx(), l.c.ID) })
		wg.Wait()
		require.True(t, (switched == nil) != (cancelled == nil), "switch: %v, cancel: %v", switched, cancelled)
		if stopped != nil {
			require.ErrorIs(t, stopped, store.ErrNotFound)
		}
		builds, err := d.ListBuilds(d.ctx(), l.c.ID)
		require.NoError(t, err)
		if switched != nil {
			require.ErrorIs(t, switched, store.ErrNotFound)
			require.Len(t, builds, 1)
			require.Zero(t, builds[0].StoppedUS)
			continue
		}
		l.requireBuildError(cancelled, store.ActionCancel, s.c.Build)
		require.NoError(t, d.DropBuild(d.ctx(), l.c.ID, l.c.Build, ops))
		l = s
	}
}

// The shadow is switched to while lanes of both builds commit: what is live is at no
// time behind what was.
func shadowBesideLanes(t *testing.T, d *db) {
	d = few(d)
	l := d.lane("i")
	s := l.shadow(sameTables(t))
	stop, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	ctx := d.ctx()
	apply := func(l *lane, by int64) error {
		b := l.batch(l.positions[0]+by, 0, 1, 2, 3)
		err := d.Apply(ctx, b)
		if err == nil {
			l.moved(b)
		}
		if !errors.Is(err, store.ErrFenced) {
			return err
		}
		// What the switch holds locked is passed by, and claimed a moment later.
		leases, _, err := d.Claim(ctx, l.instance, l.c.Build, []int{0, 1, 2, 3})
		if err != nil || len(leases) < 4 {
			return err
		}
		l.leases = leases
		checkpoints, err := d.Checkpoints(ctx, l.c.Build)
		for _, c := range checkpoints {
			l.positions[c.Partition] = c.Position
		}
		return err
	}
	run := func(l *lane, by int64, stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := apply(l, by); err != nil {
				t.Errorf("build %d: %v", l.c.Build, err)
				return
			}
		}
	}
	wg.Go(func() { run(l, 1, stop) })
	wg.Go(func() { run(s, 2, end) })
	stopOne, stopAll := sync.OnceFunc(func() { close(stop) }), sync.OnceFunc(func() { close(end) })
	defer func() {
		stopOne()
		stopAll()
		wg.Wait()
	}()
	at, seen := map[int64]*lane{l.c.Build: l, s.c.Build: s}, int64(0)
	look := func() int64 {
		v, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		defer v.Close()
		p, err := v.Positions()
		require.NoError(t, err)
		require.GreaterOrEqual(t, p[store.EventsTopic], seen, "readers never go back in time")
		seen = p[store.EventsTopic]
		return v.Consumer().Build
	}
	switches := 0
	const tries = 40
	for n := 0; n < tries || switches == 0; n++ {
		if n == tries {
			stopOne() // so that the shadow is ahead before long
		}
		live := look()
		other := s
		if at[live] == s {
			other = l
		}
		switch err := d.Switch(d.ctx(), store.Switch{Consumer: l.c.ID, Build: other.c.Build, Actor: ops}); {
		case err == nil:
			switches++
			require.Equal(t, other.c.Build, look())
		default:
			var behind *store.BehindError
			var transient *store.TransientError
			require.True(t, errors.As(err, &behind) || errors.As(err, &transient), "%v", err)
		}
	}
	stopOne()
	stopAll()
	wg.Wait()
	require.Len(t, l.history(store.ActionSwitch), switches)
}

// saga is the declaration of a consumer that may have effects.
func saga(t require.TestingT) store.Declaration {
	decl := declare(t, "accounts", accounts()...)
	decl.ID.Type = "saga"
	return decl
}
