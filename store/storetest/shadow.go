package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store"
)

var shadowCases = []testCase{
	{"ShadowIsABuildOfItsOwn", shadowStart},
	{"ShadowIsBegunOnce", shadowOnce},
	{"NamesAreClaimedAtTheStart", shadowNames},
	{"NothingStartsUnderWrongNames", shadowRefused},
	{"BuildsAreAppliedApart", shadowApart},
	{"HaltOfAShadowHaltsItAlone", shadowHalt},
	{"SwitchToAHaltedBuildIsRefused", shadowHaltedSwitch},
	{"CancelLeavesOnlyHistory", shadowCancel},
	{"StandbyIsKeptAndDropped", shadowDrop},
	{"DropTakesAllBuilds", shadowDropConsumer},
	{"UnknownBuildsAreNotFound", shadowUnknown},
	{"HostsBeginAtOnce", shadowStartRace},
}

// changed declares the usual projection anew: a table has another column, one has
// gone, and one is new.
func changed(t require.TestingT) store.Declaration {
	tables := accounts()
	tables[0].Columns = append(slices.Clone(tables[0].Columns), abi.Column{Name: "note", Kind: abi.ColumnText})
	tables[1] = abi.Table{Name: "totals", Columns: []abi.Column{{Name: "sum", Kind: abi.ColumnInt}}}
	d := declare(t, "accounts", tables...)
	d.Digest, d.Fingerprint.Logic = "sha256:changed", "changed"
	return d
}

// sameTables declares the usual projection with another logic.
func sameTables(t require.TestingT) store.Declaration {
	d := declare(t, "accounts", accounts()...)
	d.Digest, d.Fingerprint.Logic = "sha256:changed", "changed"
	return d
}

// shadow begins a shadow and gives a lane of it, for the same instance.
func (l *lane) shadow(decl store.Declaration, partitions ...int) *lane {
	l.d.t.Helper()
	b, err := l.d.StartShadow(l.d.ctx(), decl, ops)
	require.NoError(l.d.t, err)
	return l.of(b, partitions...)
}

// of is a lane of another build of the consumer.
func (l *lane) of(b store.Build, partitions ...int) *lane {
	l.d.t.Helper()
	c := l.c
	c.Build, c.Epoch, c.Tables = b.ID, b.Epoch, b.Tables
	s := &lane{d: l.d, c: c, instance: l.instance}
	s.claim(partitions...)
	return s
}

// builds are the consumer's builds as "number role state".
func (l *lane) builds() (list []string) {
	l.d.t.Helper()
	builds, err := l.d.ListBuilds(l.d.ctx(), l.c.ID)
	require.NoError(l.d.t, err)
	for _, b := range builds {
		require.Equal(l.d.t, l.c.ID, b.Consumer)
		list = append(list, fmt.Sprint(b.ID, " ", b.Role, " ", b.State))
	}
	return list
}

func (l *lane) build(id int64) store.Build {
	l.d.t.Helper()
	builds, err := l.d.ListBuilds(l.d.ctx(), l.c.ID)
	require.NoError(l.d.t, err)
	for _, b := range builds {
		if b.ID == id {
			return b
		}
	}
	l.d.t.Fatalf("%s has no build %d", l.c.ID, id)
	return store.Build{}
}

func (l *lane) switchTo(b *lane, k ...store.Keep) error {
	s := store.Switch{Consumer: l.c.ID, Build: b.c.Build, Actor: ops}
	if len(k) > 0 {
		s.Keep = k[0]
	}
	return l.d.Switch(l.d.ctx(), s)
}

func (l *lane) requireBuildError(err error, action string, build int64) {
	l.d.t.Helper()
	var wrong *store.BuildError
	require.ErrorAs(l.d.t, err, &wrong)
	require.Equal(l.d.t, []any{l.c.ID, build, action}, []any{wrong.Consumer, wrong.Build, wrong.Action})
	require.NotEmpty(l.d.t, wrong.Why)
}

// owners are a build's.
func (l *lane) owners() []store.Ownership {
	l.d.t.Helper()
	list, err := l.d.Owners(l.d.ctx(), l.c.Build)
	require.NoError(l.d.t, err)
	return list
}

// few is a database of few partitions, so that all of them can be moved.
func few(d *db) *db { return d.fresh(Config{Partitions: 4}) }

func shadowStart(t *testing.T, d *db) {
	l := filled(d)
	unchanged := l.requireUnchanged()
	owners, consumer := l.owners(), l.state()
	decl := changed(t)
	b, err := d.StartShadow(d.ctx(), decl, ops)
	require.NoError(t, err)
	entries := l.history(store.ActionShadow)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, b.ID}, []any{entries[0].Actor, entries[0].Build})
	require.Contains(t, entries[0].Detail, decl.Digest)
	require.Equal(t, owners, l.owners(), "the live build is not disturbed")
	require.Equal(t, consumer, l.state())
	unchanged()

	require.Greater(t, b.ID, l.c.Build)
	require.Equal(t, []any{store.RoleShadow, store.StateRunning, decl.Plugin, decl.Digest, decl.Topics, decl.Fingerprint, int64(0)},
		[]any{b.Role, b.State, b.Plugin, b.Digest, b.Topics, b.Fingerprint, b.Epoch})
	require.True(t, b.Made(&decl))
	require.Positive(t, b.CreatedUS)
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running"), fmt.Sprint(b.ID, " shadow running")}, l.builds())
	s := l.of(b)
	for _, c := range s.checkpoints() {
		require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: c.Partition}, c)
	}
	require.Empty(t, s.load("accounts", store.RowKey{Key: "a"}))
	empty, err := d.Empty(d.ctx(), s.ref("totals"))
	require.NoError(t, err)
	require.True(t, empty)
	d.reopen()
	found := l.build(b.ID)
	require.Equal(t, len(b.Tables), len(found.Tables))
	for i := range found.Tables {
		require.Equal(t, b.Tables[i].Physical, found.Tables[i].Physical)
		require.Equal(t, b.Tables[i].Table.Name, found.Tables[i].Table.Name)
		found.Tables[i] = b.Tables[i]
	}
	require.Equal(t, b, found)
	// A start of either module goes on as before.
	require.Equal(t, l.c.Build, d.subscribe(declare(t, "accounts", accounts()...)).Build)
	_, err = d.Subscribe(d.ctx(), decl)
	var other *store.DeclarationError
	require.ErrorAs(t, err, &other)
	require.NoError(t, d.CheckTables(d.ctx()))
}

func shadowOnce(t *testing.T, d *db) {
	l := d.lane("i", 3)
	s := l.shadow(changed(t), 3)
	owners := s.owners()
	again, err := d.StartShadow(d.ctx(), changed(t), "somebody else")
	require.NoError(t, err)
	require.Equal(t, s.c.Build, again.ID)
	require.Equal(t, owners, s.owners())
	require.Len(t, l.history(store.ActionShadow), 1)
	_, err = d.StartShadow(d.ctx(), sameTables(t), ops)
	l.requireBuildError(err, store.ActionShadow, s.c.Build)
	require.Len(t, l.builds(), 2)
	require.NoError(t, l.switchTo(s))
	_, err = d.StartShadow(d.ctx(), changed(t), ops)
	l.requireBuildError(err, store.ActionShadow, l.c.Build)
	require.Len(t, l.builds(), 2, "a standby is kept")
}

func shadowNames(t *testing.T, d *db) {
	l := d.lane("i", 3)
	totals := declare(t, "thief", abi.Table{Name: "Totals", Columns: []abi.Column{{Name: "sum", Kind: abi.ColumnInt}}})
	s := l.shadow(changed(t), 3)
	_, err := d.Subscribe(d.ctx(), totals)
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	require.Contains(t, taken.Owner, l.c.ID.String())
	require.NoError(t, d.CancelShadow(d.ctx(), l.c.ID, s.c.Build, ops))
	d.subscribe(totals)
	_, err = d.StartShadow(d.ctx(), changed(t), ops)
	require.ErrorAs(t, err, &taken, "now it is the other's")
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running")}, l.builds())
	// What the consumer had before is its own still.
	_, err = d.Subscribe(d.ctx(), declare(t, "another", accounts()...))
	require.ErrorAs(t, err, &taken)
}

func shadowRefused(t *testing.T, d *db) {
	decl := changed(t)
	_, err := d.StartShadow(d.ctx(), decl, ops)
	require.ErrorIs(t, err, store.ErrNotFound, "there is no such consumer")
	l := d.lane("i", 3)
	kept := l.requireKept()
	decl.Topics = []string{"nowhere"}
	_, err = d.StartShadow(d.ctx(), decl, ops)
	require.ErrorIs(t, err, store.ErrNotFound)
	decl.Topics = nil
	_, err = d.StartShadow(d.ctx(), decl, ops)
	requireInvalid(t, err, "bad_request", -1)
	kept()
	require.Len(t, l.builds(), 1)
}

func shadowApart(t *testing.T, d *db) {
	l := filled(d)
	s := l.shadow(sameTables(t), 3, 4)
	unchanged := l.requireUnchanged()
	b := s.batch(7, 3)
	row := s.account("a", 777, "shadow")
	s.write(b, "accounts", row)
	b.Records = []store.Record{record(store.StatusFailed, 3, "bad", 5), record(store.StatusWaiting, 3, "bad", 6)}
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 4, Key: "gone"}}
	s.apply(b)
	require.Equal(t, []store.StoredRow{stored(row)}, s.load("accounts", row.Key))
	require.Len(t, s.heads(3), 1)
	require.Len(t, s.skips(), 1)
	line, err := d.Line(d.ctx(), s.c.Build, 3, "bad", 0, 10)
	require.NoError(t, err)
	require.Len(t, line, 2)
	rows, err := d.ListUndelivered(d.ctx(), store.UndeliveredQuery{Consumer: l.c.ID, Build: s.c.Build})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	m, err := d.UndeliveredMessage(d.ctx(), l.c.ID, rows[0].ID)
	require.NoError(t, err)
	require.EqualValues(t, 5, m.Event.Position)
	other := d.laneOf(declare(t, "other", declareOther()...), "j", 3)
	_, err = d.UndeliveredMessage(d.ctx(), other.c.ID, rows[0].ID)
	require.ErrorIs(t, err, store.ErrNotFound)
	rows, err = d.ListUndelivered(d.ctx(), store.UndeliveredQuery{Consumer: other.c.ID, Build: s.c.Build})
	require.NoError(t, err)
	require.Empty(t, rows)
	// The history tells of both; nothing else of the live build has changed.
	require.Len(t, l.history(store.ActionSkip), 1)
	counts, err := d.CountUndelivered(d.ctx())
	require.NoError(t, err)
	require.Empty(t, counts[l.c.ID])
	unchanged()
	require.NotEqual(t, []store.StoredRow{stored(row)}, l.load("accounts", row.Key))
	require.Empty(t, l.undelivered())
	require.Empty(t, l.skips())

	require.NoError(t, d.Enlist(d.ctx(), "i", []store.Enlistment{{Build: l.c.Build}, {Build: s.c.Build, SingleOwner: true}}))
	v, err := d.Survey(d.ctx(), []int64{s.c.Build})
	require.NoError(t, err)
	require.Len(t, v.Members, 3, "and that of the other consumer")
	require.Equal(t, []store.BuildStatus{{Build: s.c.Build, Consumer: l.c.ID, Role: store.RoleShadow, State: store.StateRunning}}, v.Builds)
	require.Len(t, v.Consumers, 2)
	require.Equal(t, "i", v.Owners[s.c.Build][3].InstanceID)
	// A batch of one build under a lease of the other is refused.
	wrong := s.batch(9, 3)
	wrong.Leases[0].Generation += 5
	require.ErrorIs(t, d.Apply(d.ctx(), wrong), store.ErrFenced)
	wrong = s.batch(9, 3)
	wrong.Checkpoints[0].From = 1
	require.ErrorIs(t, d.Apply(d.ctx(), wrong), store.ErrCheckpointMoved)
}

func shadowHalt(t *testing.T, d *db) {
	l := d.lane("i", 3)
	s := l.shadow(sameTables(t), 3)
	consumer := l.state()
	for n, halt := range []func() error{
		func() error {
			return d.Halt(d.ctx(), l.c.ID, s.leases[0], store.Halt{Reason: store.HaltApplyError, Message: "why", Partition: 3, Key: "k"})
		},
		func() error {
			b := s.batch(5, 3)
			b.Records = []store.Record{record(store.StatusHalted, 3, "k", 4)}
			b.Halt = &store.Halt{Reason: store.HaltApplyError, Message: "why", Partition: 3, Key: "k"}
			err := d.Apply(d.ctx(), b)
			s.moved(b)
			return err
		},
	} {
		require.NoError(t, halt())
		require.Equal(t, consumer, l.state(), "the consumer runs")
		b := l.build(s.c.Build)
		require.Equal(t, store.StateHalted, b.State)
		require.Equal(t, "why", b.Halt.Message)
		require.Positive(t, b.Halt.AtUS)
		entries := l.history(store.ActionHalt)
		require.Len(t, entries, n+1)
		require.Equal(t, s.c.Build, entries[n].Build)
		v, err := d.Survey(d.ctx(), nil)
		require.NoError(t, err)
		require.Equal(t, store.StateRunning, v.Consumers[0].State)
		require.Equal(t, store.StateHalted, v.Builds[0].State)
		require.Equal(t, "why", v.Builds[0].Halt.Message)
		// The first halt stands.
		require.NoError(t, d.Halt(d.ctx(), l.c.ID, s.leases[0], store.Halt{Reason: store.HaltMissingHistory}))
		require.Equal(t, "why", l.build(s.c.Build).Halt.Message)
		require.Len(t, l.history(store.ActionHalt), n+1)
		was, err := d.ClearHalt(d.ctx(), l.c.ID)
		require.NoError(t, err)
		require.False(t, was)

		s.raised(nil, func() { require.NoError(t, d.ResumeBuild(d.ctx(), l.c.ID, s.c.Build, ops)) })
		b = l.build(s.c.Build)
		require.Equal(t, store.StateRunning, b.State)
		require.Nil(t, b.Halt)
		require.Len(t, l.history(store.ActionResumed), n+1)
		s.raised([]int{}, func() { require.NoError(t, d.ResumeBuild(d.ctx(), l.c.ID, s.c.Build, ops)) })
	}
	rows, err := d.ListUndelivered(d.ctx(), store.UndeliveredQuery{Consumer: l.c.ID, Build: s.c.Build})
	require.NoError(t, err)
	require.Equal(t, store.StatusFailed, rows[0].Status)
	// A halt of the live build is the consumer's, and not the shadow's.
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], store.Halt{Reason: store.HaltApplyError}))
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live halted"), fmt.Sprint(s.c.Build, " shadow running")}, l.builds())
	l.requireBuildError(d.ResumeBuild(d.ctx(), l.c.ID, l.c.Build, ops), store.ActionResume, l.c.Build)
}

func shadowHaltedSwitch(t *testing.T, d *db) {
	l := d.lane("i", 3)
	s := l.shadow(sameTables(t), 3)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, s.leases[0], store.Halt{Reason: store.HaltApplyError}))
	owners := s.owners()
	l.requireBuildError(l.switchTo(s), store.ActionSwitch, s.c.Build)
	require.Equal(t, owners, s.owners())
	require.Equal(t, l.c.Build, l.state().Build)
}

// requireGone checks that nothing of a build is left.
func (l *lane) requireGone() {
	l.d.t.Helper()
	require.Empty(l.d.t, l.checkpoints())
	require.Empty(l.d.t, l.owners())
	require.Empty(l.d.t, l.skips())
	require.Empty(l.d.t, l.heads(3))
	v, err := l.d.Survey(l.d.ctx(), nil)
	require.NoError(l.d.t, err)
	for _, m := range v.Members {
		require.NotEqual(l.d.t, l.c.Build, m.Build)
	}
	for _, ref := range l.c.Tables {
		_, err := l.d.LoadRows(l.d.ctx(), ref, []store.RowKey{{Key: "a"}})
		require.Error(l.d.t, err, "the table has gone")
	}
}

func shadowCancel(t *testing.T, d *db) {
	l := filled(d)
	kept := l.requireUnchanged()
	s := l.shadow(changed(t), 3)
	s.held(9, record(store.StatusFailed, 3, "a", 8))
	b := s.batch(0)
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 2, Key: "a"}}
	s.apply(b)
	require.NoError(t, d.Enlist(d.ctx(), "i", []store.Enlistment{{Build: l.c.Build}, {Build: s.c.Build}}))
	owners := l.owners()
	old := s.batch(20, 3)
	l.requireBuildError(d.CancelShadow(d.ctx(), l.c.ID, l.c.Build, ops), store.ActionCancel, l.c.Build)
	l.requireBuildError(d.DropBuild(d.ctx(), l.c.ID, s.c.Build, ops), store.ActionDropBuild, s.c.Build)
	require.NoError(t, d.CancelShadow(d.ctx(), l.c.ID, s.c.Build, ops))
	require.ErrorIs(t, d.Apply(d.ctx(), old), store.ErrFenced)
	s.requireGone()
	kept()
	require.Equal(t, owners, l.owners(), "the live build is not disturbed")
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running")}, l.builds())
	entries := l.history(store.ActionCancel)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, s.c.Build}, []any{entries[0].Actor, entries[0].Build})
	require.ErrorIs(t, d.CancelShadow(d.ctx(), l.c.ID, s.c.Build, ops), store.ErrNotFound)
	require.NoError(t, d.Enlist(d.ctx(), "i", []store.Enlistment{{Build: l.c.Build}, {Build: s.c.Build}}), "it is passed over")
	again := l.shadow(changed(t), 3)
	require.Greater(t, again.c.Build, s.c.Build, "a number is used once")
	require.Zero(t, again.positions[3])
	require.Empty(t, again.heads(3))
}

func shadowDrop(t *testing.T, d *db) {
	l := d.lane("i", 3)
	s := l.shadow(changed(t), 3)
	require.NoError(t, l.switchTo(s, store.Keep{Cold: true, For: time.Minute}))
	b := l.build(l.c.Build)
	require.Equal(t, []any{store.RoleStandby, true, time.Minute.Microseconds()}, []any{b.Role, b.Cold, b.KeepUntilUS - b.StoodDownUS})
	l.raised(nil, func() { require.NoError(t, d.KeepBuild(d.ctx(), l.c.ID, l.c.Build, store.Keep{}, ops)) })
	b = l.build(l.c.Build)
	require.Equal(t, []any{false, int64(0)}, []any{b.Cold, b.KeepUntilUS})
	require.Len(t, l.history(store.ActionKeep), 1)
	l.requireBuildError(d.KeepBuild(d.ctx(), l.c.ID, s.c.Build, store.Keep{}, ops), store.ActionKeep, s.c.Build)
	l.requireBuildError(d.CancelShadow(d.ctx(), l.c.ID, l.c.Build, ops), store.ActionCancel, l.c.Build)
	l.requireBuildError(d.DropBuild(d.ctx(), l.c.ID, s.c.Build, ops), store.ActionDropBuild, s.c.Build)
	require.NoError(t, d.DropBuild(d.ctx(), l.c.ID, l.c.Build, ops))
	l.requireGone()
	require.Equal(t, []string{fmt.Sprint(s.c.Build, " live running")}, l.builds())
	require.Len(t, l.history(store.ActionDropBuild), 1)
	require.NoError(t, d.CheckTables(d.ctx()))
	// The name that only the old build had is free, the others are not.
	d.subscribe(declare(t, "heir", abi.Table{Name: "entries", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}}))
	_, err := d.Subscribe(d.ctx(), declare(t, "thief", abi.Table{Name: "totals", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}}))
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, s.c.Build, d.subscribe(changed(t)).Build)
}

func shadowDropConsumer(t *testing.T, d *db) {
	for _, switched := range []bool{false, true} {
		d := d.fresh(Config{})
		l := filled(d)
		s := l.shadow(changed(t), 3)
		if switched {
			s.claim()
			s.apply(s.batch(99, d.partitions()...))
			require.NoError(t, l.switchTo(s))
		}
		require.NoError(t, d.Enlist(d.ctx(), "i", nil))
		require.NoError(t, d.Drop(d.ctx(), l.c.ID, ops))
		l.requireGone()
		s.requireGone()
		_, err := d.ListBuilds(d.ctx(), l.c.ID)
		require.ErrorIs(t, err, store.ErrNotFound)
		d.subscribe(declare(t, "heir", abi.Table{Name: "totals", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}}, accounts()[0]))
	}
}

func shadowUnknown(t *testing.T, d *db) {
	nobody := store.ConsumerID{Type: "projection", Name: "nobody"}
	l := d.lane("i", 3)
	other := d.laneOf(declare(t, "other", declareOther()...), "j", 3)
	for _, c := range []struct {
		id    store.ConsumerID
		build int64
	}{{nobody, 1}, {l.c.ID, 1 << 40}, {l.c.ID, other.c.Build}, {l.c.ID, 0}} {
		for name, err := range map[string]error{
			"cancel": d.CancelShadow(d.ctx(), c.id, c.build, ops),
			"drop":   d.DropBuild(d.ctx(), c.id, c.build, ops),
			"switch": d.Switch(d.ctx(), store.Switch{Consumer: c.id, Build: c.build, Actor: ops}),
			"keep":   d.KeepBuild(d.ctx(), c.id, c.build, store.Keep{}, ops),
			"resume": d.ResumeBuild(d.ctx(), c.id, c.build, ops),
		} {
			require.ErrorIs(t, err, store.ErrNotFound, "%s of %v", name, c)
		}
	}
	_, err := d.ListBuilds(d.ctx(), nobody)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = d.StopAt(d.ctx(), nobody)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = d.GoOn(d.ctx(), nobody, 0)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorIs(t, d.ShowLive(d.ctx(), nobody), store.ErrNotFound)
	require.NoError(t, d.ShowLive(d.ctx(), l.c.ID))
}

func shadowStartRace(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const hosts = 4
	var wg sync.WaitGroup
	var got [hosts]store.Build
	var errs [hosts]error
	for i := range hosts {
		decl := []func(require.TestingT) store.Declaration{changed, sameTables}[i%2](t)
		wg.Go(func() { got[i], errs[i] = d.StartShadow(d.ctx(), decl, ops) })
	}
	wg.Wait()
	var winner int64
	won := 0
	for i := range hosts {
		if errs[i] != nil {
			var wrong *store.BuildError
			require.ErrorAs(t, errs[i], &wrong)
			continue
		}
		won++
		require.True(t, winner == 0 || winner == got[i].ID)
		winner = got[i].ID
	}
	require.Equal(t, hosts/2, won)
	require.Equal(t, []string{fmt.Sprint(l.c.Build, " live running"), fmt.Sprint(winner, " shadow running")}, l.builds())
	require.Len(t, l.history(store.ActionShadow), 1)
}
