package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/store"
)

// ledger is what is kept of a consumer's messages, in memory: the same batches and
// actions on it and on the database must give the same.
type ledger struct {
	*lane
	t       *rapid.T
	decl    store.Declaration
	state   store.ConsumerState
	halt    string // reason
	rows    []store.UndeliveredMessage
	skipped map[store.Skip]bool
	last    [modelPartitions]int64 // generation
	at      [modelPartitions]int64 // checkpoint
	next    int64                  // position
}

var walkKeys = []string{"a", "A", "å"}

// randomUndelivered walks through batches and actions at random (every transition
// of an undelivered message, on every database).
func randomUndelivered(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: modelPartitions})
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		n := runs.Add(1)
		m := &ledger{t: rt, decl: declare(rt, fmt.Sprint("p", n)), state: store.StateRunning, skipped: map[store.Skip]bool{}}
		m.lane = &lane{d: d, c: d.subscribe(m.decl), positions: map[int]int64{}}
		m.start()
		for range rapid.IntRange(5, 25).Draw(rt, "steps") {
			switch step := rapid.SampledFrom([]string{"record", "record", "record", "retry", "retry", "retry", "pause", "resume", "resume past", "retry rows",
				"delete rows", "deploy", "reset", "sweep", "stale", "restart"}).Draw(rt, "step"); step {
			case "record":
				m.record()
			case "retry":
				m.retry()
			case "pause":
				m.pause()
			case "resume":
				m.resume(0)
			case "resume past":
				if i := m.find(func(r *store.UndeliveredMessage) bool { return r.Status == store.StatusHalted }); i >= 0 {
					m.resume(m.rows[i].ID)
				}
			case "retry rows":
				m.retryRows()
			case "delete rows":
				m.deleteRows()
			case "deploy":
				m.deploy()
			case "reset":
				m.reset()
			case "sweep":
				m.sweep()
			case "stale":
				m.stale()
			case "restart":
				if rapid.IntRange(0, 4).Draw(rt, "restart") == 0 {
					require.NoError(rt, d.Leave(d.ctx(), m.instance))
					d.reopen()
					m.c = d.subscribe(m.decl)
					m.start()
				}
			}
			m.check()
		}
		require.NoError(rt, d.Leave(d.ctx(), m.instance))
	})
}

func (m *ledger) start() {
	m.instance = fmt.Sprint("walk ", instances.Add(1))
	require.NoError(m.t, m.d.Join(m.d.ctx(), store.Instance{ID: m.instance}))
	m.claimAll()
}

func (m *ledger) claimAll() {
	leases, _, err := m.d.Claim(m.d.ctx(), m.instance, m.c.Build, m.d.partitions())
	require.NoError(m.t, err)
	require.Len(m.t, leases, modelPartitions)
	m.leases = leases
	for _, l := range leases {
		m.last[l.Partition]++
		require.Equal(m.t, m.last[l.Partition], l.Generation)
		m.positions[l.Partition] = m.at[l.Partition]
	}
}

// acted notes that an action raised generations, and claims anew.
func (m *ledger) acted(partitions ...int) {
	slices.Sort(partitions)
	for _, p := range slices.Compact(partitions) {
		m.last[p]++
	}
	m.claimAll()
}

func (m *ledger) all() []int { return []int{0, 1, 2, 3} }

func (m *ledger) find(is func(*store.UndeliveredMessage) bool) int {
	return slices.IndexFunc(m.rows, func(r store.UndeliveredMessage) bool { return is(&r) })
}

// head is the index of the head of a line, -1 for none.
func (m *ledger) head(partition int, key string) int {
	return m.find(func(r *store.UndeliveredMessage) bool {
		return r.Partition == partition && r.Key == key && r.Status != store.StatusDeadLetter
	})
}

func (m *ledger) isHead(i int) bool { return m.head(m.rows[i].Partition, m.rows[i].Key) == i }

// lineOf gives the rows behind a head a status.
func (m *ledger) lineOf(i int, status store.UndeliveredStatus) {
	for n := i + 1; n < len(m.rows); n++ {
		r := &m.rows[n]
		if r.Partition == m.rows[i].Partition && r.Key == m.rows[i].Key && (r.Status == store.StatusWaiting || r.Status == store.StatusDeadLetterKey) {
			r.Status = status
		}
	}
}

func (m *ledger) skip(r *store.UndeliveredMessage) {
	m.skipped[store.Skip{Topic: r.Topic, Partition: r.Partition, Position: r.Event.Position, Key: r.Key}] = true
}

func (m *ledger) halting(b *store.Batch) {
	b.Halt = &store.Halt{Reason: store.HaltApplyError}
	if m.state == store.StateRunning {
		m.state, m.halt = store.StateHalted, b.Halt.Reason
	}
}

// record sends a batch of messages that were not applied.
func (m *ledger) record() {
	p := rapid.IntRange(0, modelPartitions-1).Draw(m.t, "partition")
	b := m.batch(0)
	for range rapid.IntRange(1, 3).Draw(m.t, "records") {
		m.next++
		key := rapid.SampledFrom(walkKeys).Draw(m.t, "key")
		status := rapid.SampledFrom([]store.UndeliveredStatus{store.StatusFailed, store.StatusDeadLetter, store.StatusHalted, store.StatusDeadLetterKey}).Draw(m.t, "status")
		if i := m.head(p, key); i >= 0 {
			status = store.StatusWaiting
			if m.rows[i].Status == store.StatusDeadLetterKey {
				status = store.StatusDeadLetterKey
			}
		}
		r := record(status, p, key, m.next)
		r.Attempts = rapid.IntRange(0, 5).Draw(m.t, "attempts")
		b.Records = append(b.Records, r)
		m.rows = append(m.rows, store.UndeliveredMessage{Topic: r.Topic, Partition: p, Key: key, Status: status, Attempts: r.Attempts, Passing: r.Passing,
			Event: store.Event{Position: m.next}})
		if status == store.StatusHalted {
			m.halting(b)
		}
	}
	b.Checkpoints = []store.CheckpointMove{{Topic: store.EventsTopic, Partition: p, From: m.at[p], To: m.next}}
	require.NoError(m.t, m.d.Apply(m.d.ctx(), b))
	m.at[p], m.positions[p] = m.next, m.next
}

// retry sends a batch that tried heads again.
func (m *ledger) retry() {
	b := m.batch(0)
	wrong := rapid.IntRange(0, 5).Draw(m.t, "wrong") == 0
	var gone []int
	before := slices.Clone(m.rows)
	state, halt := m.state, m.halt
	skipped := len(m.skipped)
	var heads []int
	for i := range m.rows {
		if m.isHead(i) && rapid.Bool().Draw(m.t, "this") {
			heads = append(heads, i)
		}
	}
	for _, i := range heads {
		r := &m.rows[i]
		retry := store.Retry{ID: r.ID, Partition: r.Partition, Status: r.Status, Attempts: r.Attempts, Passing: r.Passing}
		then := rapid.SampledFrom([]store.UndeliveredStatus{"", "skip", store.StatusFailed, store.StatusHalted, store.StatusDeadLetterKey, store.StatusDeadLetter}).Draw(m.t, "then")
		switch then {
		case "", "skip":
			if r.Status == store.StatusDeadLetterKey {
				retry.Line = store.StatusWaiting
				m.lineOf(i, store.StatusWaiting)
			}
			if then == "skip" {
				b.Skips = append(b.Skips, store.Skip{Topic: r.Topic, Partition: r.Partition, Position: r.Event.Position, Key: r.Key})
			}
			gone = append(gone, i)
		default:
			retry.Then = &store.Record{Status: then, Attempts: r.Attempts + 1, Passing: r.Passing, Code: 1, Reason: "again"}
			if then == store.StatusDeadLetterKey {
				retry.Line = store.StatusDeadLetterKey
			} else {
				retry.Line = store.StatusWaiting
			}
			m.lineOf(i, retry.Line)
			r.Status, r.Attempts = then, r.Attempts+1
			if then == store.StatusHalted {
				m.halting(b)
			}
		}
		b.Retries = append(b.Retries, retry)
	}
	if len(b.Retries) == 0 {
		return
	}
	if wrong {
		b.Retries[len(b.Retries)-1].Attempts++
		require.ErrorIs(m.t, m.d.Apply(m.d.ctx(), b), store.ErrRetryMoved)
		m.rows, m.state, m.halt = before, state, halt
		require.Len(m.t, m.skipped, skipped)
		return
	}
	require.NoError(m.t, m.d.Apply(m.d.ctx(), b))
	for _, s := range b.Skips {
		m.skipped[s] = true
	}
	for _, i := range slices.Backward(gone) {
		m.rows = slices.Delete(m.rows, i, i+1)
	}
	got, err := m.d.Settle(m.d.ctx(), b)
	require.NoError(m.t, err)
	require.Equal(m.t, store.OutcomeCommitted, got)
	require.ErrorIs(m.t, m.d.Apply(m.d.ctx(), b), store.ErrRetryMoved)
}

func (m *ledger) pause() {
	err := m.d.Pause(m.d.ctx(), m.c.ID, ops)
	switch m.state {
	case store.StateRunning:
		require.NoError(m.t, err)
		m.state = store.StatePaused
		m.acted(m.all()...)
	case store.StatePaused:
		require.NoError(m.t, err)
	default:
		var wrong *store.StateError
		require.ErrorAs(m.t, err, &wrong)
	}
}

func (m *ledger) resume(past int64) {
	err := m.d.Resume(m.d.ctx(), m.c.ID, past, ops)
	if m.state == store.StateRunning {
		var wrong *store.StateError
		require.ErrorAs(m.t, err, &wrong)
		return
	}
	require.NoError(m.t, err)
	m.state, m.halt = store.StateRunning, ""
	if i := m.find(func(r *store.UndeliveredMessage) bool { return past != 0 && r.ID == past }); i >= 0 {
		m.skip(&m.rows[i])
		m.rows = slices.Delete(m.rows, i, i+1)
	}
	for i := range m.rows {
		if m.rows[i].Status == store.StatusHalted {
			m.fresh(i)
		}
	}
	m.acted(m.all()...)
}

func (m *ledger) fresh(i int) {
	m.rows[i].Status, m.rows[i].Attempts, m.rows[i].Passing = store.StatusFailed, 0, 0
}

// selection draws rows of a key, of a status, or all.
func (m *ledger) selection() (sel store.Selection, is func(r *store.UndeliveredMessage) bool) {
	if rapid.Bool().Draw(m.t, "by key") {
		sel.Key = rapid.SampledFrom(walkKeys).Draw(m.t, "key")
	}
	if rapid.Bool().Draw(m.t, "by status") {
		sel.Status = rapid.SampledFrom([]store.UndeliveredStatus{store.StatusFailed, store.StatusWaiting, store.StatusHalted, store.StatusDeadLetterKey, store.StatusDeadLetter}).Draw(m.t, "of status")
	}
	return sel, func(r *store.UndeliveredMessage) bool {
		return (sel.Key == "" || sel.Key == r.Key) && (sel.Status == "" || sel.Status == r.Status)
	}
}

func (m *ledger) retryRows() {
	sel, is := m.selection()
	a := store.Action{Actor: ops, OutOfOrder: rapid.Bool().Draw(m.t, "out of order"), DryRun: rapid.IntRange(0, 3).Draw(m.t, "dry") == 0}
	var take, partitions []int
	refused := int64(0)
	for i := range m.rows {
		r := &m.rows[i]
		if !is(r) {
			continue
		}
		if r.Status == store.StatusDeadLetter && a.OutOfOrder || m.isHead(i) && (r.Status == store.StatusFailed || r.Status == store.StatusDeadLetterKey) {
			take, partitions = append(take, i), append(partitions, r.Partition)
		} else {
			refused++
		}
	}
	got, err := m.d.RetryUndelivered(m.d.ctx(), m.c.ID, sel, a)
	require.NoError(m.t, err)
	require.Equal(m.t, []int64{int64(len(take)), refused}, []int64{got.Count, got.Refused})
	if a.DryRun || len(take) == 0 {
		return
	}
	for _, i := range take {
		if m.rows[i].Status == store.StatusDeadLetterKey {
			m.lineOf(i, store.StatusWaiting)
		}
	}
	for _, i := range take {
		m.fresh(i)
	}
	m.acted(partitions...)
}

func (m *ledger) deleteRows() {
	sel, is := m.selection()
	var take, partitions []int
	for i := range m.rows {
		if is(&m.rows[i]) {
			take, partitions = append(take, i), append(partitions, m.rows[i].Partition)
		}
	}
	got, err := m.d.DeleteUndelivered(m.d.ctx(), m.c.ID, sel, store.Action{Actor: ops})
	require.NoError(m.t, err)
	require.EqualValues(m.t, len(take), got.Count)
	if len(take) == 0 {
		return
	}
	for _, i := range take {
		if m.rows[i].Status == store.StatusDeadLetterKey && m.isHead(i) {
			m.lineOf(i, store.StatusWaiting)
		}
	}
	for _, i := range slices.Backward(take) {
		m.skip(&m.rows[i])
		m.rows = slices.Delete(m.rows, i, i+1)
	}
	m.acted(partitions...)
}

func (m *ledger) deploy() {
	var partitions []int
	var heads []int
	for i := range m.rows {
		if s := m.rows[i].Status; s == store.StatusHalted || s == store.StatusDeadLetterKey {
			partitions = append(partitions, m.rows[i].Partition)
			if s == store.StatusHalted || m.isHead(i) {
				heads = append(heads, i)
			}
		}
	}
	m.decl.Digest += "+"
	m.c = m.d.subscribe(m.decl)
	for i := range m.rows {
		if m.rows[i].Status == store.StatusDeadLetterKey && !m.isHead(i) {
			m.rows[i].Status = store.StatusWaiting
		}
	}
	for _, i := range heads {
		m.fresh(i)
	}
	if m.state == store.StateHalted {
		m.state, m.halt = store.StateRunning, ""
	}
	m.acted(partitions...)
}

// reset goes to where the topic begins: its checkpoints are all past that.
func (m *ledger) reset() {
	require.NoError(m.t, m.d.Reset(m.d.ctx(), m.c.ID, store.EventsTopic, 0, ops))
	m.acted(m.all()...)
}

func (m *ledger) sweep() {
	want := 0
	for s := range m.skipped {
		there := m.find(func(r *store.UndeliveredMessage) bool { return r.Event.Position == s.Position }) >= 0
		if !there && m.at[s.Partition] >= s.Position {
			delete(m.skipped, s)
			want++
		}
	}
	n, err := m.d.SweepSkips(m.d.ctx(), m.c.Build)
	require.NoError(m.t, err)
	require.Equal(m.t, want, n)
}

// stale sends a batch of a lease from before.
func (m *ledger) stale() {
	b := m.batch(0)
	b.Leases[rapid.IntRange(0, modelPartitions-1).Draw(m.t, "lease")].Generation--
	b.Records = []store.Record{record(store.StatusFailed, 0, "a", m.next+1)}
	require.ErrorIs(m.t, m.d.Apply(m.d.ctx(), b), store.ErrFenced)
}

// check compares everything that is kept with the model.
func (m *ledger) check() {
	c, err := m.d.Consumer(m.d.ctx(), m.c.ID)
	require.NoError(m.t, err)
	require.Equal(m.t, m.state, c.State)
	require.Equal(m.t, m.halt != "", c.Halt != nil)
	list, err := m.d.ListUndelivered(m.d.ctx(), store.UndeliveredQuery{Consumer: m.c.ID})
	require.NoError(m.t, err)
	require.Len(m.t, list, len(m.rows))
	held := int64(0)
	var heads []int
	for i, have := range list {
		want := &m.rows[i]
		require.True(m.t, want.ID == 0 || want.ID == have.ID)
		want.ID = have.ID
		require.Equal(m.t, [...]any{want.Partition, want.Key, want.Event.Position, want.Status, want.Attempts, want.Passing},
			[...]any{have.Partition, have.Key, have.Event.Position, have.Status, have.Attempts, have.Passing})
		if want.Status != store.StatusDeadLetter {
			held++
		}
		if m.isHead(i) {
			heads = append(heads, i)
		}
	}
	slices.SortStableFunc(heads, func(a, b int) int { return cmp.Compare(m.rows[a].Partition, m.rows[b].Partition) })
	got, err := m.d.Heads(m.d.ctx(), m.c.Build, m.all())
	require.NoError(m.t, err)
	require.Len(m.t, got, len(heads))
	for n, i := range heads {
		require.Equal(m.t, m.rows[i].ID, got[n].ID)
	}
	v, err := m.d.View(m.d.ctx(), m.c.ID)
	require.NoError(m.t, err)
	n, err := v.CountHeld()
	require.NoError(m.t, err)
	require.NoError(m.t, v.Close())
	require.Equal(m.t, held, n)
	skips, err := m.d.Skips(m.d.ctx(), m.c.Build, store.EventsTopic, 0)
	require.NoError(m.t, err)
	require.Len(m.t, skips, len(m.skipped))
	for _, s := range skips {
		require.True(m.t, m.skipped[s])
	}
	owners, err := m.d.Owners(m.d.ctx(), m.c.Build)
	require.NoError(m.t, err)
	for _, o := range owners {
		require.Equal(m.t, m.last[o.Partition], o.Generation)
		require.Equal(m.t, m.instance, o.InstanceID, "an action leaves the owner")
	}
}
