package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var operationCases = []testCase{
	{"PauseRefusesWhatIsUnderWay", operationPause},
	{"ResumeGivesFreshBudgets", operationResume},
	{"ResumePastPoison", operationPastPoison},
	{"ResumePastUnresolved", operationPastUnresolved},
	{"ResetMovesForward", operationReset},
	{"RetryOfEachStatus", operationRetry},
	{"DeleteOfEachStatus", operationDelete},
	{"DeletedHeadsLetTheNextOn", operationDeleteHead},
	{"DryRunsDoNothing", operationDryRun},
	{"ActionsOnOneRowNameIt", operationNamed},
	{"ActionsRaiseGenerations", operationGenerations},
	{"ManyRowsInOneAction", operationMany},
	{"DropRemovesEverything", operationDrop},
	{"DropOfARunningConsumerIsRefused", operationDropInUse},
	{"UnknownConsumerIsNotFound", operationUnknown},
	{"AnotherDigestTriesAgain", operationDeploy},
	{"SameDigestChangesNothing", operationSameDigest},
	{"OperatorsTakeTurns", operationConcurrent},
	{"OperatorsAndLanesTakeTurns", operationBesideLanes},
}

const ops = "ops@example"

func (l *lane) state() store.Consumer {
	l.d.t.Helper()
	c, err := l.d.Consumer(l.d.ctx(), l.c.ID)
	require.NoError(l.d.t, err)
	return c
}

func (l *lane) requireState(action string, err error, state store.ConsumerState) {
	l.d.t.Helper()
	var wrong *store.StateError
	require.ErrorAs(l.d.t, err, &wrong)
	require.Equal(l.d.t, store.StateError{Consumer: l.c.ID, Action: action, State: state}, *wrong)
}

// raised checks that an action raised the generations of just these partitions, and
// left them their owner; then it claims anew.
func (l *lane) raised(partitions []int, action func()) {
	l.d.t.Helper()
	before, err := l.d.Owners(l.d.ctx(), l.c.Build)
	require.NoError(l.d.t, err)
	action()
	after, err := l.d.Owners(l.d.ctx(), l.c.Build)
	require.NoError(l.d.t, err)
	for i := range before {
		if partitions == nil || slices.Contains(partitions, i) {
			before[i].Generation++
		}
	}
	require.Equal(l.d.t, before, after)
	var held []int
	for _, lease := range l.leases {
		held = append(held, lease.Partition)
	}
	l.claim(held...)
}

// halted is a lane whose consumer a message of key a, partition 3 has halted.
func halted(d *db) *lane {
	d.t.Helper()
	l := d.lane("i", 3, 4)
	l.held(9, record(store.StatusFailed, 3, "b", 1), record(store.StatusDeadLetterKey, 3, "c", 2))
	b := l.batch(20, 3)
	b.Records = []store.Record{record(store.StatusHalted, 3, "a", 11), record(store.StatusWaiting, 3, "a", 12)}
	b.Halt = &store.Halt{Reason: store.HaltApplyError, Partition: 3, Key: "a", Position: 11}
	l.apply(b)
	return l
}

func operationPause(t *testing.T, d *db) {
	l := filled(d)
	old := l.batch(9, 3)
	l.raised(nil, func() { require.NoError(t, d.Pause(d.ctx(), l.c.ID, ops)) })
	c := l.state()
	require.Equal(t, store.StatePaused, c.State)
	l.refused(store.ErrFenced, old)
	l.raised([]int{}, func() { require.NoError(t, d.Pause(d.ctx(), l.c.ID, "somebody else")) })
	require.Equal(t, c, l.state(), "it stays paused")
	entries := l.history(store.ActionPause)
	require.Len(t, entries, 1)
	require.Equal(t, store.HistoryEntry{ID: entries[0].ID, Build: l.c.Build, AtUS: entries[0].AtUS, Actor: ops, Action: store.ActionPause, Partition: -1,
		Detail: "{}"}, entries[0])

	old = l.batch(9, 3)
	l.raised(nil, func() { require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops)) })
	l.refused(store.ErrFenced, old)
	require.Equal(t, store.StateRunning, l.state().State)
	kept := l.requireKept()
	l.requireState(store.ActionResume, d.Resume(d.ctx(), l.c.ID, 0, ops), store.StateRunning)
	kept()

	h := halted(d.fresh(Config{}))
	kept = h.requireKept()
	h.requireState(store.ActionPause, h.d.Pause(h.d.ctx(), h.c.ID, ops), store.StateHalted)
	kept()
}

func operationResume(t *testing.T, d *db) {
	l := halted(d)
	other := l.undeliveredAt(1)
	before := l.undeliveredAt(11)
	l.raised(nil, func() { require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops)) })
	c := l.state()
	require.Equal(t, store.StateRunning, c.State)
	require.Nil(t, c.Halt)
	m := l.undeliveredAt(11)
	want := before
	want.Status, want.Attempts, want.Passing, want.LastUS = store.StatusFailed, 0, 0, m.LastUS
	require.Equal(t, want, m, "due at once, with a fresh budget")
	require.Equal(t, other, l.undeliveredAt(1))
	require.Equal(t, []string{"1 FAILED", "2 DEAD_LETTER_KEY", "11 FAILED", "12 WAITING"}, l.statuses())
	require.Len(t, l.history(store.ActionResume), 1)
	require.Empty(t, l.skips())

	// The budget's age begins with the first try that fails, not with the record.
	l.claim(3)
	fail := func(passing int) store.UndeliveredMessage {
		then := record(store.StatusFailed, 3, "a", 11)
		then.Attempts, then.Passing = 0, passing
		b := l.batch(0)
		b.Leases = l.leases
		b.Retries = []store.Retry{l.retried(11, &then)}
		l.apply(b)
		return l.undeliveredAt(11)
	}
	first := fail(1)
	require.Equal(t, before.FirstUS, first.FirstUS)
	require.Equal(t, first.LastUS, first.BudgetUS)
	require.Greater(t, first.BudgetUS, before.LastUS)
	second := fail(2)
	require.Equal(t, first.BudgetUS, second.BudgetUS)
	require.Greater(t, second.LastUS, first.LastUS)
}

func operationPastPoison(t *testing.T, d *db) {
	l := halted(d)
	kept := l.requireKept()
	for _, wrong := range []int64{l.undeliveredAt(1).ID, l.undeliveredAt(12).ID, 1 << 40} {
		err := d.Resume(d.ctx(), l.c.ID, wrong, ops)
		var changed *store.ChangedError
		require.ErrorAs(t, err, &changed)
		require.Equal(t, wrong, changed.ID)
		kept()
	}
	poison := l.undeliveredAt(11).ID
	l.raised(nil, func() { require.NoError(t, d.Resume(d.ctx(), l.c.ID, poison, ops)) })
	require.Equal(t, store.StateRunning, l.state().State)
	require.Equal(t, []string{"1 FAILED", "2 DEAD_LETTER_KEY", "12 WAITING"}, l.statuses())
	require.Equal(t, []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 11, Key: "a"}}, l.skips())
	entries := l.history(store.ActionSkip, store.ActionResume)
	require.Len(t, entries, 2)
	for _, h := range entries {
		require.Equal(t, ops, h.Actor)
		require.Equal(t, []any{store.EventsTopic, 3, int64(11), "a"}, []any{h.Topic, h.Partition, h.Position, h.Key})
	}
}

func operationPastUnresolved(t *testing.T, d *db) {
	l := d.lane("i", 3)
	r := record(store.StatusHalted, 3, "", 5)
	r.Unresolved = true
	b := l.batch(0)
	b.Records = []store.Record{r}
	b.Halt = &store.Halt{Reason: store.HaltApplyError}
	l.apply(b)
	require.NoError(t, d.Resume(d.ctx(), l.c.ID, l.undeliveredAt(5).ID, ops))
	require.Empty(t, l.undelivered())
	require.Equal(t, []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 5, EveryKey: true}}, l.skips())
	require.Equal(t, `{"every_key":true}`, l.history(store.ActionSkip)[0].Detail)
}

func operationReset(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	for range 10 {
		d.append("account", "a", store.AnyVersion, event("E"))
	}
	d.all() // the mark has reached them
	topic, err := d.Topic(d.ctx(), store.EventsTopic)
	require.NoError(t, err)
	l := d.lane("i")
	l.held(3, record(store.StatusFailed, 0, "a", 2))
	l.apply(l.batch(8, 1))
	old := l.batch(9, 3)
	l.raised(nil, func() { require.NoError(t, d.Reset(d.ctx(), l.c.ID, store.EventsTopic, 5, ops)) })
	var positions []int64
	for _, c := range l.checkpoints() {
		positions = append(positions, c.Position)
	}
	require.Equal(t, []int64{5, 8, 5, 5}, positions, "only forward")
	require.Equal(t, []string{"2 FAILED"}, l.statuses(), "lines stay")
	l.refused(store.ErrFenced, old)
	l.apply(l.batch(9, 0, 1, 2, 3))
	entries := l.history(store.ActionReset)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, store.EventsTopic, int64(5), -1}, []any{entries[0].Actor, entries[0].Topic, entries[0].Position, entries[0].Partition})

	kept := l.requireKept()
	requireInvalid(t, d.Reset(d.ctx(), l.c.ID, store.EventsTopic, topic.HighWaterMark+1, ops), "bad_request", -1)
	requireInvalid(t, d.Reset(d.ctx(), l.c.ID, store.EventsTopic, -1, ops), "bad_request", -1)
	require.ErrorIs(t, d.Reset(d.ctx(), l.c.ID, "another", 1, ops), store.ErrNotFound)
	kept()
	require.NoError(t, d.Reset(d.ctx(), l.c.ID, store.EventsTopic, topic.HighWaterMark, ops))
}

// each is a lane with a row of each kind, by position.
func each(d *db) *lane {
	d.t.Helper()
	l := d.lane("i", 3, 4, 5)
	l.held(99,
		record(store.StatusFailed, 3, "failed", 1), record(store.StatusWaiting, 3, "failed", 2),
		record(store.StatusHalted, 3, "halted", 3), record(store.StatusWaiting, 3, "halted", 4),
		record(store.StatusDeadLetterKey, 4, "dead key", 5), record(store.StatusDeadLetterKey, 4, "dead key", 6), record(store.StatusDeadLetterKey, 4, "dead key", 7),
		record(store.StatusDeadLetter, 5, "dead", 8), record(store.StatusWaiting, 5, "dead", 9), record(store.StatusWaiting, 5, "dead", 10))
	return l
}

// decided checks what a decision tells: rows by position, those that it passes over
// negative.
func decided(t *testing.T, got store.Decision, positions ...int64) {
	t.Helper()
	var have []int64
	var count, refused int64
	for i, r := range got.Rows {
		require.True(t, i == 0 || r.ID > got.Rows[i-1].ID)
		require.NotEmpty(t, r.Topic)
		require.NotEmpty(t, r.Key)
		require.NotEmpty(t, r.EventType)
		require.NotEmpty(t, r.Was)
		if r.Refused != "" {
			refused++
			have = append(have, -r.Position)
		} else {
			count++
			have = append(have, r.Position)
		}
	}
	require.Equal(t, positions, have)
	require.Equal(t, []int64{count, refused}, []int64{got.Count, got.Refused})
}

func operationRetry(t *testing.T, d *db) {
	l := each(d)
	retry := func(sel store.Selection, a store.Action) store.Decision {
		t.Helper()
		a.Actor = ops
		got, err := d.RetryUndelivered(d.ctx(), l.c.ID, sel, a)
		require.NoError(t, err)
		return got
	}
	// Of each line only its head, and not what has halted the consumer, waits for
	// nothing, or may have been overtaken.
	l.raised([]int{3, 4}, func() { decided(t, retry(store.Selection{}, store.Action{}), 1, -2, -3, -4, 5, -6, -7, -8, -9, -10) })
	require.Equal(t, []string{"1 FAILED", "2 WAITING", "3 HALTED", "4 WAITING", "5 FAILED", "6 WAITING", "7 WAITING", "8 DEAD_LETTER", "9 WAITING", "10 WAITING"}, l.statuses())
	for _, position := range []int64{1, 5} {
		m := l.undeliveredAt(position)
		require.Equal(t, []int{0, 0}, []int{m.Attempts, m.Passing})
		require.Zero(t, m.RetryUS)
		require.GreaterOrEqual(t, m.LastUS, m.FirstUS)
	}
	entries := l.history(store.ActionRetry)
	require.Len(t, entries, 1)
	require.Equal(t, ops, entries[0].Actor)
	require.Contains(t, entries[0].Detail, `"rows":2`)

	kept := l.requireKept()
	l.raised([]int{}, func() { decided(t, retry(store.Selection{Status: store.StatusDeadLetter}, store.Action{}), -8) })
	kept()
	require.Empty(t, l.history(store.ActionOutOfOrder))
	l.raised([]int{5}, func() {
		decided(t, retry(store.Selection{Status: store.StatusDeadLetter}, store.Action{OutOfOrder: true}), 8)
	})
	require.Equal(t, store.StatusFailed, l.undeliveredAt(8).Status)
	require.EqualValues(t, 8, l.heads(5)[0].Event.Position, "it holds its key again")
	entries = l.history(store.ActionOutOfOrder)
	require.Len(t, entries, 1)
	require.Equal(t, []any{ops, store.EventsTopic, 5, int64(8), "dead"}, []any{entries[0].Actor, entries[0].Topic, entries[0].Partition, entries[0].Position, entries[0].Key})
	decided(t, retry(store.Selection{Key: "nobody"}, store.Action{}))
}

func operationDelete(t *testing.T, d *db) {
	for position, left := range map[int64]int{1: 9, 2: 9, 3: 9, 5: 9, 6: 9, 8: 9} {
		l := each(d.fresh(Config{}))
		m := l.undeliveredAt(position)
		l.raised([]int{m.Partition}, func() {
			got, err := l.d.DeleteUndelivered(l.d.ctx(), l.c.ID, store.Selection{ID: m.ID}, store.Action{Actor: ops})
			require.NoError(t, err)
			decided(t, got, position)
			require.Equal(t, m.Status, got.Rows[0].Was)
		})
		require.Len(t, l.undelivered(), left)
		require.Equal(t, []store.Skip{{Topic: store.EventsTopic, Partition: m.Partition, Position: position, Key: m.Key}}, l.skips())
		entries := l.history(store.ActionDelete, store.ActionSkip)
		require.Len(t, entries, 2)
		for _, h := range entries {
			require.Equal(t, []any{ops, store.EventsTopic, m.Partition, position, m.Key}, []any{h.Actor, h.Topic, h.Partition, h.Position, h.Key})
		}
		wants := map[bool]store.UndeliveredStatus{true: store.StatusWaiting, false: store.StatusDeadLetterKey}
		require.Equal(t, wants[position == 5], l.undeliveredAt(7).Status, "only behind a head that was removed the line waits")
	}
}

func operationDeleteHead(t *testing.T, d *db) {
	l := each(d)
	erase := func(sel store.Selection, positions ...int64) {
		t.Helper()
		got, err := d.DeleteUndelivered(d.ctx(), l.c.ID, sel, store.Action{Actor: ops})
		require.NoError(t, err)
		decided(t, got, positions...)
	}
	heads := func(want ...int64) {
		t.Helper()
		var have []int64
		for _, h := range l.heads(3, 4, 5) {
			have = append(have, h.Event.Position)
		}
		require.Equal(t, want, have)
	}
	heads(1, 3, 5, 9)
	erase(store.Selection{Key: "failed", Status: store.StatusFailed}, 1)
	heads(2, 3, 5, 9)
	erase(store.Selection{Status: store.StatusDeadLetterKey}, 5, 6, 7)
	heads(2, 3, 9)
	erase(store.Selection{Key: "halted"}, 3, 4)
	erase(store.Selection{EventType: "Failed", Topic: store.EventsTopic}, 2, 8, 9, 10)
	require.Empty(t, l.undelivered())
	require.Len(t, l.skips(), 10)
	require.Len(t, l.history(store.ActionSkip), 10)
}

func operationDryRun(t *testing.T, d *db) {
	l := each(d)
	kept := l.requireKept()
	l.raised([]int{}, func() {
		for _, sel := range []store.Selection{{}, {Key: "dead key"}, {Status: store.StatusDeadLetter}} {
			dry := store.Action{Actor: ops, DryRun: true, OutOfOrder: true}
			would, err := d.RetryUndelivered(d.ctx(), l.c.ID, sel, dry)
			require.NoError(t, err)
			require.Positive(t, would.Count)
			_, err = d.DeleteUndelivered(d.ctx(), l.c.ID, sel, dry)
			require.NoError(t, err)
		}
	})
	kept()
	would, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "dead key"}, store.Action{DryRun: true})
	require.NoError(t, err)
	did, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "dead key"}, store.Action{Actor: ops})
	require.NoError(t, err)
	require.Equal(t, would, did)
}

func operationNamed(t *testing.T, d *db) {
	l := each(d)
	m := l.undeliveredAt(5)
	kept := l.requireKept()
	for _, act := range []func(store.ConsumerID, store.Selection) error{
		func(id store.ConsumerID, sel store.Selection) error {
			_, err := d.RetryUndelivered(d.ctx(), id, sel, store.Action{Actor: ops})
			return err
		},
		func(id store.ConsumerID, sel store.Selection) error {
			_, err := d.DeleteUndelivered(d.ctx(), id, sel, store.Action{Actor: ops})
			return err
		},
	} {
		require.ErrorIs(t, act(l.c.ID, store.Selection{ID: 1 << 40}), store.ErrNotFound)
		var changed *store.ChangedError
		require.ErrorAs(t, act(l.c.ID, store.Selection{ID: m.ID, Status: store.StatusFailed}), &changed)
		require.Equal(t, m.ID, changed.ID)
		require.ErrorAs(t, act(l.c.ID, store.Selection{ID: m.ID, Key: "another"}), &changed)
		kept()
	}
}

func operationGenerations(t *testing.T, d *db) {
	l := each(d)
	for _, act := range []func() error{
		func() error {
			_, err := d.RetryUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "failed"}, store.Action{Actor: ops})
			return err
		},
		func() error {
			_, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "failed"}, store.Action{Actor: ops})
			return err
		},
	} {
		old := l.batch(200, 3)
		l.raised([]int{3}, func() { require.NoError(t, act()) })
		l.refused(store.ErrFenced, old)
		require.ErrorIs(t, d.Halt(d.ctx(), l.c.ID, old.Leases[0], store.Halt{Reason: store.HaltApplyError}), store.ErrFenced)
	}
}

func operationMany(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const n = 2500
	var records []store.Record
	for i := range int64(n) {
		records = append(records, record(store.StatusDeadLetterKey, 3, "a", i+1))
	}
	l.held(n, records...)
	got, err := d.RetryUndelivered(d.ctx(), l.c.ID, store.Selection{}, store.Action{Actor: ops})
	require.NoError(t, err)
	require.Equal(t, []int64{1, n - 1, store.DecisionMax}, []int64{got.Count, got.Refused, int64(len(got.Rows))})
	require.EqualValues(t, n-1, l.heads(3)[0].Followers)
	counts, err := d.CountUndelivered(d.ctx())
	require.NoError(t, err)
	require.Equal(t, map[store.UndeliveredStatus]int64{store.StatusFailed: 1, store.StatusWaiting: n - 1}, counts[l.c.ID])
	got, err = d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "a"}, store.Action{Actor: ops})
	require.NoError(t, err)
	require.EqualValues(t, n, got.Count)
	require.Len(t, l.skips(), n)
	require.Empty(t, l.undelivered())
}

func operationDrop(t *testing.T, d *db) {
	l := filled(d)
	l.held(9, record(store.StatusFailed, 3, "a", 8))
	b := l.batch(0)
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 2, Key: "a"}}
	l.apply(b)
	other := d.laneOf(declare(t, "other", declareOther()...), "j", 3)
	other.held(5, record(store.StatusFailed, 3, "a", 1))
	unchanged := other.requireKept()
	old := l.batch(20, 3)
	l.write(old, "accounts", l.account("a", 999, ""))

	d.enlist(l.instance)
	require.NoError(t, d.Drop(d.ctx(), l.c.ID, ops))
	_, err := d.Consumer(d.ctx(), l.c.ID)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorIs(t, d.Apply(d.ctx(), old), store.ErrFenced)
	require.ErrorIs(t, d.Drop(d.ctx(), l.c.ID, ops), store.ErrNotFound)
	_, err = d.View(d.ctx(), l.c.ID)
	require.ErrorIs(t, err, store.ErrNotFound)
	checkpoints, err := d.Checkpoints(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.Empty(t, checkpoints)
	owners, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.Empty(t, owners)
	require.Empty(t, l.skips())
	require.Empty(t, l.heads(3))
	require.NoError(t, d.CheckTables(d.ctx()))
	_, err = d.LoadRows(d.ctx(), l.ref("accounts"), []store.RowKey{{Key: "a"}})
	require.Error(t, err, "the table has gone")
	unchanged()
	entries := l.history()
	require.Equal(t, store.ActionDrop, entries[len(entries)-1].Action)
	require.Equal(t, ops, entries[len(entries)-1].Actor)

	// The names are free, and it begins anew.
	again := d.subscribe(declare(t, "accounts", accounts()...))
	require.Greater(t, again.Build, l.c.Build)
	fresh := &lane{d: d, c: again, instance: "i"}
	fresh.claim(3)
	require.Empty(t, fresh.undelivered())
	require.Empty(t, fresh.all("accounts"))
	require.Zero(t, fresh.checkpoints()[3].Position)
	require.Greater(t, len(fresh.history()), len(entries), "the history is kept for good")
	d.reopen()
	require.NoError(t, d.Drop(d.ctx(), l.c.ID, ops))
	// Its names are somebody else's now.
	d.subscribe(declare(t, "third", accounts()...))
}

func operationDropInUse(t *testing.T, d *db) {
	l := filled(d)
	require.NoError(t, d.Enlist(d.ctx(), "i", []store.Enlistment{{Build: l.c.Build}}))
	kept := l.requireKept()
	err := d.Drop(d.ctx(), l.c.ID, ops)
	var used *store.InUseError
	require.ErrorAs(t, err, &used)
	require.Equal(t, store.InUseError{Consumer: l.c.ID, Instances: []string{"i"}}, *used)
	kept()
	require.NoError(t, d.Leave(d.ctx(), "i"))
	require.NoError(t, d.Drop(d.ctx(), l.c.ID, ops))
}

func operationUnknown(t *testing.T, d *db) {
	id := store.ConsumerID{Type: "projection", Name: "nobody"}
	for name, err := range map[string]error{
		"pause":  d.Pause(d.ctx(), id, ops),
		"resume": d.Resume(d.ctx(), id, 0, ops),
		"reset":  d.Reset(d.ctx(), id, store.EventsTopic, 0, ops),
		"drop":   d.Drop(d.ctx(), id, ops),
		"retry":  func() error { _, err := d.RetryUndelivered(d.ctx(), id, store.Selection{}, store.Action{}); return err }(),
		"delete": func() error {
			_, err := d.DeleteUndelivered(d.ctx(), id, store.Selection{}, store.Action{})
			return err
		}(),
	} {
		require.ErrorIs(t, err, store.ErrNotFound, name)
	}
	list, err := d.History(d.ctx(), id, 0, 10)
	require.NoError(t, err)
	require.Empty(t, list)
}

func operationDeploy(t *testing.T, d *db) {
	l := each(d)
	b := l.batch(0)
	b.Halt = &store.Halt{Reason: store.HaltApplyError}
	l.apply(b)
	entries := l.history()
	require.Equal(t, store.ActionSubscribe, entries[0].Action)
	require.Contains(t, entries[0].Detail, l.c.Digest)

	decl := declare(t, "accounts", accounts()...)
	decl.Digest, decl.Fingerprint.Logic = "sha256:another", "another"
	var c store.Consumer
	l.raised([]int{3, 4}, func() { c = d.subscribe(decl) })
	require.Equal(t, store.StateRunning, c.State)
	require.Nil(t, c.Halt)
	require.Equal(t, decl.Digest, c.Digest)
	require.Equal(t, c, func() store.Consumer { c := l.state(); return c }())
	require.Equal(t, []string{"1 FAILED", "2 WAITING", "3 FAILED", "4 WAITING", "5 FAILED", "6 WAITING", "7 WAITING", "8 DEAD_LETTER", "9 WAITING", "10 WAITING"}, l.statuses())
	for _, position := range []int64{3, 5} {
		m := l.undeliveredAt(position)
		require.Equal(t, []int64{0, 0, 0}, []int64{int64(m.Attempts), int64(m.Passing), m.RetryUS})
	}
	require.Equal(t, 1, l.undeliveredAt(1).Attempts, "what is tried again anyway keeps its budget")
	entries = l.history(store.ActionRevision)
	require.Len(t, entries, 1)
	require.Equal(t, []any{store.EventsTopic, int64(99), "host"}, []any{entries[0].Topic, entries[0].Position, entries[0].Actor})
	require.Contains(t, entries[0].Detail, decl.Digest)

	// A halt for another reason, or a pause, is not a message's.
	for _, other := range []func(){
		func() { require.NoError(t, d.Pause(d.ctx(), l.c.ID, ops)) },
		func() {
			require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, ops))
			l.claim(3)
			b := l.batch(0)
			b.Halt = &store.Halt{Reason: store.HaltMissingHistory}
			l.apply(b)
		},
	} {
		other()
		before := l.state()
		decl.Digest += "+"
		c := d.subscribe(decl)
		require.Equal(t, []any{before.State, before.Halt}, []any{c.State, c.Halt})
	}
}

func operationSameDigest(t *testing.T, d *db) {
	l := each(d)
	b := l.batch(0)
	b.Halt = &store.Halt{Reason: store.HaltApplyError}
	l.apply(b)
	kept := l.requireKept()
	l.raised([]int{}, func() { d.subscribe(declare(t, "accounts", accounts()...)) })
	kept()
	decl := declare(t, "accounts", accounts()...)
	decl.Fingerprint.Logic = "another configuration"
	statuses := l.statuses()
	l.raised([]int{}, func() { d.subscribe(decl) })
	require.Equal(t, statuses, l.statuses())
	require.Equal(t, store.StateHalted, l.state().State)
	require.Len(t, l.history(store.ActionRevision), 1)
}

func operationConcurrent(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const n, operators = 40, 4
	var records []store.Record
	for i := range int64(n) {
		records = append(records, record(store.StatusFailed, 3, fmt.Sprint("k", i), i+1))
	}
	l.held(n, records...)
	var wg sync.WaitGroup
	var deleted, paused, resumed atomic.Int64
	for o := range operators {
		wg.Go(func() {
			for i := range n {
				sel := store.Selection{Key: fmt.Sprint("k", (i+o*7)%n)}
				got, err := d.DeleteUndelivered(d.ctx(), l.c.ID, sel, store.Action{Actor: fmt.Sprint(o)})
				if busy(err) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
				deleted.Add(got.Count)
				if i%10 == 0 {
					if err := d.Pause(d.ctx(), l.c.ID, fmt.Sprint(o)); err == nil {
						paused.Add(1)
					}
					if err := d.Resume(d.ctx(), l.c.ID, 0, fmt.Sprint(o)); err == nil {
						resumed.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	left := int64(len(l.undelivered()))
	require.EqualValues(t, n-left, deleted.Load(), "each row is deleted by one")
	require.EqualValues(t, n-left, len(l.skips()))
	require.EqualValues(t, n-left, len(l.history(store.ActionSkip)))
	require.EqualValues(t, resumed.Load(), len(l.history(store.ActionResume)))
	require.LessOrEqual(t, int64(len(l.history(store.ActionPause))), paused.Load())
	require.Contains(t, []store.ConsumerState{store.StateRunning, store.StatePaused}, l.state().State)
}

// busy tells an action that others were always quicker than.
func busy(err error) bool {
	var transient *store.TransientError
	return errors.As(err, &transient)
}

func operationBesideLanes(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const n = 30
	var records []store.Record
	for i := range int64(n) {
		records = append(records, record(store.StatusFailed, 3, fmt.Sprint("k", i), i+1))
	}
	l.held(n, records...)
	rows := l.undelivered()
	var wg sync.WaitGroup
	var deleted atomic.Int64
	wg.Go(func() {
		for _, m := range rows {
			got, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{ID: m.ID}, store.Action{Actor: ops})
			if err != nil && !errors.Is(err, store.ErrNotFound) && !busy(err) {
				t.Error(err)
			}
			deleted.Add(got.Count)
		}
	})
	applied := int64(0)
	for i := len(rows) - 1; i >= 0; i-- {
		m := rows[i]
		b := &store.Batch{Consumer: l.c.ID, Build: l.c.Build, InstanceID: l.instance, Incarnation: d.Incarnation(),
			Retries: []store.Retry{{ID: m.ID, Partition: 3, Status: m.Status, Attempts: m.Attempts, Passing: m.Passing}}}
		leases, _, err := d.Claim(d.ctx(), l.instance, l.c.Build, []int{3})
		require.NoError(t, err)
		if len(leases) == 0 {
			continue // an operator holds the row locked
		}
		b.Leases = leases
		switch err := d.Apply(d.ctx(), b); {
		case err == nil:
			applied++
		case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrRetryMoved):
		default:
			require.NoError(t, err)
		}
	}
	wg.Wait()
	left := int64(len(l.undelivered()))
	require.EqualValues(t, n, left+applied+deleted.Load(), "each message is applied, deleted or there")
	require.EqualValues(t, deleted.Load(), len(l.skips()))
}
