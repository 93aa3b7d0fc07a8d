package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var rebuildCases = []testCase{
	{"BeginsAnEpoch", rebuildBegins},
	{"RefusesWhatIsUnderWay", rebuildFences},
	{"RefusedWhilePaused", rebuildStates},
	{"RefusedForAnotherDeclaration", rebuildDeclared},
	{"SupersedesOneUnderWay", rebuildTwice},
	{"StopsAndGoesOn", rebuildGoesOn},
	{"EffectsAreOwedOnce", rebuildOwed},
	{"OldRowsAreAbsentToLanesAndThereForReaders", rebuildRows},
	{"PruneLeavesWhatIsNotOurs", rebuildPrune},
	{"PruneFreesUniqueValues", rebuildUnique},
	{"EndsWithTheLastPartition", rebuildEnds},
	{"UnfinishedPartitionsAreNotPruned", rebuildUnfinished},
	{"MissingHistoryIsOfThisRebuild", rebuildIncomplete},
	{"DeletedHeadsLeaveNoOldRow", rebuildDeleted},
	{"HostsEndAtOnce", rebuildConcurrent},
}

// readable appends n events and waits until they can be read.
func (d *db) readable(n int) int64 {
	d.t.Helper()
	for range n {
		d.append("account", "a", store.AnyVersion, event("E"))
	}
	d.all()
	topic, err := d.Topic(d.ctx(), store.EventsTopic)
	require.NoError(d.t, err)
	return topic.HighWaterMark
}

// rebuild rebuilds, and has the lane claim anew.
func (l *lane) rebuild() {
	l.d.t.Helper()
	require.NoError(l.d.t, l.d.RebuildInPlace(l.d.ctx(), l.c.ID, store.Rebuild{Actor: ops}))
	l.again()
}

// again claims what the lane had, and reads its consumer.
func (l *lane) again() {
	l.d.t.Helper()
	var held []int
	for _, lease := range l.leases {
		held = append(held, lease.Partition)
	}
	l.claim(held...)
	tables := l.c.Tables
	l.c = l.state()
	l.c.Tables = slices.Clone(tables)
	for i := range l.c.Tables {
		l.c.Tables[i].Epoch = l.c.Epoch
	}
}

func (l *lane) done(partitions ...int) store.Pruned {
	p := store.Pruned{Consumer: l.c.ID, Build: l.c.Build, Epoch: l.c.Epoch, InstanceID: l.instance}
	for _, lease := range l.leases {
		if len(partitions) == 0 || slices.Contains(partitions, lease.Partition) {
			p.Leases = append(p.Leases, lease)
		}
	}
	return p
}

func (l *lane) pruned(partitions ...int) (ended bool) {
	l.d.t.Helper()
	ended, err := l.d.Pruned(l.d.ctx(), l.done(partitions...))
	require.NoError(l.d.t, err)
	return ended
}

func (l *lane) stale(table string) []string {
	l.d.t.Helper()
	keys, err := l.d.StaleKeys(l.d.ctx(), l.ref(table), "", 1000)
	require.NoError(l.d.t, err)
	return keys
}

func (l *lane) owed() (list []string) {
	l.d.t.Helper()
	owed, err := l.d.EffectsOwed(l.d.ctx(), l.c.Build, store.EventsTopic, 0)
	require.NoError(l.d.t, err)
	for _, o := range owed {
		list = append(list, fmt.Sprint(o.Position, " ", o.Partition, " ", o.Key))
	}
	return list
}

func rebuildBegins(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(10)
	l := d.lane("i")
	require.NoError(t, d.Enlist(d.ctx(), "i", []store.Enlistment{{Build: l.c.Build}}))
	leases, tenure, err := d.Claim(d.ctx(), "i", l.c.Build, d.partitions())
	require.NoError(t, err)
	l.leases = leases
	l.held(4, record(store.StatusFailed, 1, "a", 2), record(store.StatusDeadLetter, 2, "b", 3))
	b := l.batch(7, 0, 3)
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 6, Key: "c"}}
	l.apply(b)
	require.NoError(t, d.Advance(d.ctx(), "i", []store.Progress{{Incarnation: d.Incarnation(), Build: l.c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: 4}}))

	before := l.state()
	owners, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.NoError(t, d.RebuildInPlace(d.ctx(), l.c.ID, store.Rebuild{Actor: ops, Declared: &before.Fingerprint}))
	for i := range owners {
		owners[i].Generation++
	}
	after, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.Equal(t, owners, after)
	c := l.state()
	require.Equal(t, store.StateRebuilding, c.State)
	require.Equal(t, []int64{before.Epoch + 1, before.Build}, []int64{c.Epoch, c.Build})
	require.GreaterOrEqual(t, c.StateSinceUS, before.StateSinceUS)
	for _, cp := range l.checkpoints() {
		through := []int64{7, 4, 4, 7}[cp.Partition]
		require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: cp.Partition, Epoch: 1, EffectsThrough: through, EffectsBefore: through,
			ReplayThrough: mark}, cp)
		require.True(t, cp.Rebuilding())
		require.False(t, cp.Replayed())
	}
	require.Empty(t, l.undelivered())
	require.Empty(t, l.skips())
	require.Equal(t, []string{"2 1 a", "3 2 b"}, l.owed())

	view, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	positions, err := view.Positions()
	require.NoError(t, err)
	require.Equal(t, map[string]int64{store.EventsTopic: 0}, positions, "what was told is no longer true")
	standings, err := view.Standings()
	require.NoError(t, err)
	require.Equal(t, mark, standings[store.EventsTopic][2].ReplayThrough)
	require.True(t, standings[store.EventsTopic][2].Rebuilding)
	require.NoError(t, view.Close())
	// One who has not heard of it tells what was.
	require.NoError(t, d.Advance(d.ctx(), "i", []store.Progress{{Incarnation: d.Incarnation(), Build: l.c.Build, Tenure: tenure, Topic: store.EventsTopic, ReadThrough: 7}}))
	view, err = d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	positions, err = view.Positions()
	require.NoError(t, err)
	require.Equal(t, map[string]int64{store.EventsTopic: 0}, positions)
	require.NoError(t, view.Close())

	entries := l.history(store.ActionRebuild)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, -1, l.c.Build}, []any{entries[0].Actor, entries[0].Partition, entries[0].Build})
	var detail struct {
		Mode, Digest, Was string
		Epoch             int64
	}
	require.NoError(t, json.Unmarshal([]byte(entries[0].Detail), &detail))
	require.Equal(t, []any{"in-place", before.Digest, "running", int64(1)}, []any{detail.Mode, detail.Digest, detail.Was, detail.Epoch})
	require.ErrorIs(t, d.RebuildInPlace(d.ctx(), store.ConsumerID{Type: "projection", Name: "nobody"}, store.Rebuild{Actor: ops}), store.ErrNotFound)
}

func rebuildFences(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	d.readable(10)
	l := d.lane("i")
	l.held(3, record(store.StatusFailed, 1, "a", 2))
	stale, retry := l.batch(9, 0), l.batch(0)
	l.write(stale, "accounts", l.account("x", 1, ""))
	retry.Retries = []store.Retry{l.retried(2, nil)}
	require.NoError(t, d.RebuildInPlace(d.ctx(), l.c.ID, store.Rebuild{Actor: ops}))
	l.refused(store.ErrFenced, stale)
	l.refused(store.ErrFenced, retry)
	_, err := d.Pruned(d.ctx(), store.Pruned{Consumer: l.c.ID, Build: l.c.Build, Epoch: 1, InstanceID: "i", Leases: l.leases})
	require.ErrorIs(t, err, store.ErrFenced)
	// Under the new leases, but read under the old epoch.
	old := l.c
	l.again()
	l.c = old
	late := l.batch(9, 0)
	l.refused(store.ErrCheckpointMoved, late)
	_, err = d.Pruned(d.ctx(), store.Pruned{Consumer: l.c.ID, Build: l.c.Build, Epoch: 0, InstanceID: "i", Leases: l.leases})
	require.ErrorIs(t, err, store.ErrCheckpointMoved)
	require.Empty(t, l.all("accounts"))
}

func rebuildStates(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	d.readable(5)
	l := d.lane("i")
	require.NoError(t, d.Pause(d.ctx(), l.c.ID, ops))
	kept := l.requireKept()
	l.requireState(store.ActionRebuild, d.RebuildInPlace(d.ctx(), l.c.ID, store.Rebuild{Actor: ops}), store.StatePaused)
	kept()

	h := halted(d.fresh(Config{Partitions: 5}))
	require.NoError(t, h.d.RebuildInPlace(h.d.ctx(), h.c.ID, store.Rebuild{Actor: ops}))
	c := h.state()
	require.Equal(t, store.StateRebuilding, c.State)
	require.Nil(t, c.Halt)
	require.Empty(t, h.undelivered())
}

func rebuildDeclared(t *testing.T, d *db) {
	l := d.fresh(Config{Partitions: 4}).lane("i")
	kept := l.requireKept()
	other := l.c.Fingerprint
	other.Keys += "x"
	err := l.d.RebuildInPlace(l.d.ctx(), l.c.ID, store.Rebuild{Actor: ops, Declared: &other})
	var changed *store.DeclarationError
	require.ErrorAs(t, err, &changed)
	require.Equal(t, []string{"keys"}, changed.Changed)
	kept()
	other = l.c.Fingerprint
	other.Logic += "x"
	require.NoError(t, l.d.RebuildInPlace(l.d.ctx(), l.c.ID, store.Rebuild{Actor: ops, Declared: &other}))
}

func rebuildTwice(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	first := d.readable(6)
	l := d.lane("i")
	l.apply(l.batch(first, 0, 1, 2, 3))
	l.rebuild()
	l.apply(l.batch(first, 0, 1, 2, 3))
	require.False(t, l.pruned(0, 1))
	mark := d.readable(2)
	l.rebuild()
	require.Equal(t, int64(2), l.state().Epoch)
	for _, cp := range l.checkpoints() {
		require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: cp.Partition, Epoch: 2, EffectsThrough: first, EffectsBefore: first,
			ReplayThrough: mark, PrunedEpoch: cp.PrunedEpoch}, cp)
		require.True(t, cp.Rebuilding())
	}
	l.apply(l.batch(mark, 0, 1, 2, 3))
	require.True(t, l.pruned())
	l.rebuild()
	require.Equal(t, []any{store.StateRebuilding, int64(3)}, []any{l.state().State, l.state().Epoch})
	require.Len(t, l.history(store.ActionRebuild), 3)
}

func rebuildGoesOn(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(5)
	l := d.lane("i")
	l.rebuild()
	require.NoError(t, d.Pause(d.ctx(), l.c.ID, ops))
	require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops))
	require.Equal(t, store.StateRebuilding, l.state().State)
	l.again()
	halt := func() {
		require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], store.Halt{Reason: store.HaltApplyError}))
		require.Equal(t, store.StateHalted, l.state().State)
	}
	halt()
	was, err := d.ClearHalt(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.True(t, was)
	require.Equal(t, store.StateRebuilding, l.state().State)
	halt()
	l.apply(l.batch(mark, 0, 1, 2, 3))
	require.False(t, l.pruned(), "not while it is halted")
	require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops))
	require.Equal(t, store.StateRebuilding, l.state().State)
	l.again()
	require.True(t, l.pruned())
	require.Equal(t, store.StateRunning, l.state().State)
	halt()
	// Another module tries a halted message again, and that is no rebuild any more.
	decl := declare(t, "accounts", accounts()...)
	decl.Digest += "x"
	d.subscribe(decl)
	require.Equal(t, store.StateRunning, l.state().State)
}

func rebuildOwed(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(9)
	l := d.lane("i")
	unresolved := record(store.StatusHalted, 1, "", 9)
	unresolved.Unresolved = true
	l.held(8, record(store.StatusFailed, 1, "a", 2), record(store.StatusWaiting, 1, "a", 5), record(store.StatusDeadLetterKey, 2, "b", 3), unresolved)
	l.rebuild()
	require.Equal(t, []string{"2 1 a", "3 2 b", "5 1 a"}, l.owed())
	// 2 is applied, 3 fails again, 4 fails though it had its effects, 5 is to come.
	l.held(4, record(store.StatusFailed, 2, "b", 3), record(store.StatusFailed, 2, "c", 4))
	l.apply(l.batch(4, 1))
	l.rebuild()
	require.Equal(t, []string{"3 2 b", "5 1 a"}, l.owed())
	for p := range 4 {
		l.apply(l.batch(mark, p))
	}
	require.True(t, l.pruned())
	require.Empty(t, l.owed(), "all were had")
	owed, err := d.EffectsOwed(d.ctx(), l.c.Build, store.EventsTopic, 5)
	require.NoError(t, err)
	require.Empty(t, owed)
}

// older is a lane whose consumer has rows of an older epoch: a with entries 1 and
// 2, and b.
func older(d *db) *lane {
	d.t.Helper()
	l := d.lane("i")
	b := l.batch(5, 0, 1, 2, 3)
	l.write(b, "accounts", l.account("a", 1, "x"), l.account("b", 2, "y"))
	l.write(b, "entries", l.entry("a", "1", 10), l.entry("a", "2", 20))
	l.apply(b)
	l.rebuild()
	return l
}

func keysIn(rows []store.StoredRow) (keys []string) {
	for _, r := range rows {
		keys = append(keys, r.Key.Key+r.Child)
	}
	return keys
}

func rebuildRows(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	d.readable(5)
	l := older(d)
	require.Empty(t, l.load("accounts", readmodel.Key{Key: "a"}, readmodel.Key{Key: "b"}))
	require.Empty(t, l.load("entries", readmodel.Key{Key: "a", Child: "1"}))
	children, err := d.ListChildren(d.ctx(), l.ref("entries"), "a", "", 10)
	require.NoError(t, err)
	require.Empty(t, children)
	empty, err := d.Empty(d.ctx(), l.ref("accounts"))
	require.NoError(t, err)
	require.False(t, empty)
	require.Equal(t, []string{"a", "b"}, l.stale("accounts"))
	require.Equal(t, []string{"a"}, l.stale("entries"), "once a key")

	readers := func(accounts, entries []string) {
		t.Helper()
		require.Equal(t, accounts, keysIn(l.all("accounts")))
		view, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		defer view.Close()
		rows, err := view.Children(d.ctx(), "entries", "a", "", 10)
		require.NoError(t, err)
		require.Equal(t, entries, keysIn(rows))
		row, err := view.Get(d.ctx(), "accounts", readmodel.Key{Key: "a"})
		require.NoError(t, err)
		require.Equal(t, "a", row.Key.Key)
	}
	readers([]string{"a", "b"}, []string{"a1", "a2"})

	b := l.batch(3, 0, 1, 2, 3)
	l.write(b, "accounts", l.account("a", 7, ""))
	l.write(b, "entries", l.entry("a", "2", 70))
	l.apply(b)
	readers([]string{"a", "b"}, []string{"a1", "a2"})
	require.Equal(t, []store.StoredRow{stored(l.account("a", 7, ""))}, l.load("accounts", readmodel.Key{Key: "a"}, readmodel.Key{Key: "b"}))
	require.Equal(t, []string{"b"}, l.stale("accounts"))
	require.Equal(t, []string{"a"}, l.stale("entries"))

	b = l.batch(0)
	b.Tables = []store.TableWrites{{Table: l.ref("accounts"), PruneKeys: []string{"a", "b", "no such"}}, {Table: l.ref("entries"), PruneKeys: []string{"a"}}}
	l.apply(b)
	readers([]string{"a"}, []string{"a2"})
	require.Empty(t, l.stale("accounts"))
	require.Empty(t, l.stale("entries"))
	l.apply(b) // again, as one does who does not know
	readers([]string{"a"}, []string{"a2"})
}

func rebuildPrune(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	d.readable(5)
	l := older(d)
	keys := []string{"A", "a", "é", "ü"}
	b := l.batch(1, 0)
	var writes []readmodel.Write
	for _, key := range keys {
		writes = append(writes, l.account(key+"2", 2, ""))
	}
	l.write(b, "accounts", writes...)
	l.apply(b)
	l.rebuild() // all that is there is older now
	require.Equal(t, []string{"A2", "a", "a2", "b", "é2", "ü2"}, l.stale("accounts"))
	page, err := d.StaleKeys(d.ctx(), l.ref("accounts"), "a", 2)
	require.NoError(t, err)
	require.Equal(t, []string{"a2", "b"}, page, "behind the key, as many as asked for")
	b = l.batch(2, 0)
	l.write(b, "accounts", l.account("b", 9, ""))
	b.Tables[0].PruneKeys = []string{"a", "b", "é2"}
	l.apply(b)
	require.Equal(t, []string{"A2", "a2", "b", "ü2"}, keysIn(l.all("accounts")), "what is written is there")
	require.Equal(t, []string{"A2", "a2", "ü2"}, l.stale("accounts"), "keys are exact")
}

func rebuildUnique(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	d.readable(5)
	decl := declare(t, "users", abi.Table{Name: "users", Columns: []abi.Column{{Name: "mail", Kind: abi.ColumnText, Max: 50, Unique: true}}})
	l := d.laneOf(decl, "i")
	user := func(key, mail string) readmodel.Write {
		return put(key, l.row("users", abi.ColumnValue{Column: 0, Value: textValue(mail)}), 1)
	}
	b := l.batch(5, 0)
	l.write(b, "users", user("a", "m1"), user("b", "m2"))
	l.apply(b)
	l.rebuild()
	ref := l.ref("users")
	_, err := d.FindUnique(d.ctx(), ref, 0, user("c", "m1").Row)
	require.ErrorIs(t, err, store.ErrNotFound, "an older row has no say")
	ref.Epoch = 0
	found, err := d.FindUnique(d.ctx(), ref, 0, user("c", "m1").Row)
	require.NoError(t, err)
	require.Equal(t, "a", found.Key.Key)
	b = l.batch(1, 0)
	l.write(b, "users", user("c", "m1"))
	b.Tables[0].PruneKeys = []string{"a"}
	l.apply(b)
	require.Equal(t, []string{"b", "c"}, keysIn(l.all("users")))
}

func rebuildEnds(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(5)
	l := older(d)
	l.apply(l.batch(mark, 0, 1, 2, 3))
	before, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.False(t, l.pruned(0, 2))
	require.False(t, l.pruned(0, 2), "again")
	require.False(t, l.pruned(1))
	d.reopen()
	l = &lane{d: d, c: l.c, instance: "j", leases: l.leases}
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "j", HostName: "host"}))
	for _, o := range before {
		if o.InstanceID != "" {
			require.NoError(t, d.Leave(d.ctx(), o.InstanceID))
			break
		}
	}
	l.again()
	require.Equal(t, store.StateRebuilding, l.c.State)
	require.True(t, l.pruned(3))
	c := l.state()
	require.Equal(t, []any{store.StateRunning, int64(1)}, []any{c.State, c.Epoch})
	for _, cp := range l.checkpoints() {
		require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: cp.Partition, Position: mark, Epoch: 1, EffectsThrough: mark, EffectsBefore: 5,
			PrunedEpoch: 1}, cp)
	}
	require.False(t, l.pruned(), "it has ended")
	entries := l.history(store.ActionRebuilt)
	require.Len(t, entries, 1)
	require.Equal(t, `{"epoch":1}`, entries[0].Detail)
	require.Equal(t, []string{"a", "b"}, l.stale("accounts"), "what was not pruned stays, to be pruned yet")
}

func rebuildUnfinished(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(5)
	l := older(d)
	l.apply(l.batch(mark, 0))
	l.apply(l.batch(mark-1, 1))
	kept := l.requireKept()
	_, err := d.Pruned(d.ctx(), l.done(0, 1))
	require.ErrorIs(t, err, store.ErrCheckpointMoved)
	kept()
	require.False(t, l.pruned(0))
	require.Zero(t, l.checkpoints()[1].PrunedEpoch)
	require.Equal(t, int64(1), l.checkpoints()[0].PrunedEpoch)
}

func rebuildIncomplete(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(5)
	l := older(d)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], store.Halt{Reason: store.HaltMissingHistory}))
	require.NoError(t, d.Reset(d.ctx(), l.c.ID, store.EventsTopic, 3, ops))
	require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops))
	l.again()
	require.Equal(t, store.StateRebuilding, l.c.State)
	require.Equal(t, int64(3), l.checkpoints()[1].IncompleteThrough)
	l.apply(l.batch(mark, 0, 1, 2, 3))
	require.True(t, l.pruned())
	require.Equal(t, int64(3), l.checkpoints()[1].IncompleteThrough, "it is told still")
	l.rebuild()
	require.Zero(t, l.checkpoints()[1].IncompleteThrough)
}

func rebuildDeleted(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	mark := d.readable(5)
	l := d.lane("i")
	at := func(key string) int { return store.PartitionOf(key, 4) }
	b := l.batch(5, 0, 1, 2, 3)
	l.write(b, "accounts", l.account("a", 1, ""), l.account("b", 2, ""), l.account("c", 3, ""), l.account("d", 3, ""))
	l.write(b, "entries", l.entry("a", "1", 1), l.entry("b", "1", 1))
	l.apply(b)
	l.rebuild()
	b = l.batch(2, 0, 1, 2, 3)
	b.Records = []store.Record{record(store.StatusFailed, at("a"), "a", 1), record(store.StatusFailed, at("b"), "b", 1), record(store.StatusWaiting, at("b"), "b", 2),
		record(store.StatusFailed, at("c"), "c", 1)}
	l.apply(b)
	remove := func(position int64, key string) {
		t.Helper()
		for _, m := range l.undelivered() {
			if m.Key == key && m.Event.Position == position {
				_, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{ID: m.ID}, store.Action{Actor: ops})
				require.NoError(t, err)
				l.again()
				return
			}
		}
		t.Fatal("there is no such row")
	}
	remove(1, "c") // it may be made again yet
	require.Equal(t, []string{"a", "b", "c", "d"}, l.stale("accounts"))
	l.apply(l.batch(mark, 0, 1, 2, 3))
	remove(1, "a")
	remove(1, "b") // another row holds the key
	require.Equal(t, []string{"b", "c", "d"}, l.stale("accounts"))
	require.Equal(t, []string{"b"}, l.stale("entries"))
	remove(2, "b")
	require.Equal(t, []string{"c", "d"}, l.stale("accounts"), "those are for the prune")
	require.Empty(t, l.stale("entries"))
}

func rebuildConcurrent(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 8})
	mark := d.readable(3)
	l := d.lane("i")
	l.rebuild()
	l.apply(l.batch(mark, 0, 1, 2, 3, 4, 5, 6, 7))
	var wait sync.WaitGroup
	var mu sync.Mutex
	ends := 0
	for p := range 8 {
		wait.Go(func() {
			ended, err := d.Pruned(d.ctx(), l.done(p))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if ended {
				ends++
			}
		})
	}
	wait.Wait()
	if ends == 0 { // each may have seen another's under way
		require.True(t, l.pruned())
		ends++
	}
	require.Equal(t, 1, ends)
	require.Equal(t, store.StateRunning, l.state().State)
	require.Len(t, l.history(store.ActionRebuilt), 1)
}
