package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/store"
)

// madeBuild is a build of the model of builds.
type madeBuild struct {
	id      int64
	stood   bool // it was live
	cold    bool
	state   store.ConsumerState // while it is not live
	at      [modelPartitions]int64
	effects [modelPartitions]int64
	last    [modelPartitions]int64 // generation
	held    []store.Lease          // of the latest claim
	stale   *store.Batch           // made before the latest action
}

// buildModel is a consumer's builds, in memory.
type buildModel struct {
	t       *rapid.T
	d       *db
	id      store.ConsumerID
	logic   int
	state   store.ConsumerState // of the consumer
	live    *madeBuild
	other   *madeBuild
	stop    int64
	stops   bool // the live build was told to stop
	history map[string]int
}

// randomBuilds walks through what can be done with the builds of a consumer: each
// action does what the model does, or is refused as there, and then has done
// nothing.
func randomBuilds(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: modelPartitions})
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "i"}))
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		decl := declare(rt, fmt.Sprint("b", runs.Add(1)))
		m := &buildModel{t: rt, d: d, id: decl.ID, state: store.StateRunning, history: map[string]int{}}
		m.live = &madeBuild{id: d.subscribe(decl).Build, state: store.StateRunning}
		m.claim(m.live)
		for range rapid.IntRange(5, 20).Draw(rt, "steps") {
			step := rapid.SampledFrom([]string{"apply", "apply", "catch up", "catch up", "halt", "start", "start", "cancel", "drop", "switch", "switch",
				"stop", "go on", "keep", "pause", "resume", "resume build", "stale"}).Draw(rt, "step")
			m.step(step)
			m.check(step)
		}
	})
}

func (m *buildModel) claim(b *madeBuild) {
	leases, _, err := m.d.Claim(m.d.ctx(), "i", b.id, m.d.partitions())
	require.NoError(m.t, err)
	require.Len(m.t, leases, modelPartitions)
	for i, l := range leases {
		b.last[i]++
		require.Equal(m.t, b.last[i], l.Generation)
	}
	b.held = leases
}

// some is one of the builds there are.
func (m *buildModel) some() *madeBuild {
	if m.other != nil && rapid.Bool().Draw(m.t, "other") {
		return m.other
	}
	return m.live
}

// raised notes that an action has raised a build's generations: what was made
// before is refused from now on.
func (m *buildModel) raised(b *madeBuild) {
	for i := range b.last {
		b.last[i]++
	}
	b.stale = m.batch(b, 100)
	m.claim(b)
}

func (m *buildModel) batch(b *madeBuild, by int64, partitions ...int) *store.Batch {
	if len(partitions) == 0 {
		partitions = m.d.partitions()
	}
	batch := &store.Batch{Consumer: m.id, Build: b.id, InstanceID: "i", Incarnation: m.d.Incarnation(), Leases: slices.Clone(b.held)}
	for _, p := range partitions {
		batch.Checkpoints = append(batch.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: b.at[p], To: b.at[p] + by})
	}
	return batch
}

func (m *buildModel) moved(b *madeBuild, batch *store.Batch) {
	for _, c := range batch.Checkpoints {
		b.at[c.Partition] = c.To
		b.effects[c.Partition] = max(b.effects[c.Partition], c.To)
	}
}

func (m *buildModel) step(step string) {
	ctx := m.d.ctx()
	switch step {
	case "apply":
		b := m.some()
		batch := m.batch(b, rapid.Int64Range(1, 3).Draw(m.t, "by"), rapid.IntRange(0, modelPartitions-1).Draw(m.t, "partition"))
		require.NoError(m.t, m.d.Apply(ctx, batch))
		m.moved(b, batch)
	case "catch up":
		if m.other == nil {
			return
		}
		batch := m.batch(m.other, 1)
		need := slices.Max(m.live.at[:])
		batch.Checkpoints = slices.DeleteFunc(batch.Checkpoints, func(c store.CheckpointMove) bool { return c.From >= need })
		for i := range batch.Checkpoints {
			batch.Checkpoints[i].To = need
		}
		require.NoError(m.t, m.d.Apply(ctx, batch))
		m.moved(m.other, batch)
	case "halt":
		m.halt(m.some())
	case "stale":
		if b := m.some(); b.stale != nil {
			require.ErrorIs(m.t, m.d.Apply(ctx, b.stale), store.ErrFenced)
			require.ErrorIs(m.t, m.d.Halt(ctx, m.id, b.stale.Leases[0], store.Halt{Reason: store.HaltApplyError}), store.ErrFenced)
		}
	case "start":
		m.start()
	case "cancel", "drop":
		m.giveUp(step)
	case "switch":
		m.switchOver()
	case "stop":
		at, err := m.d.StopAt(ctx, m.id)
		if m.other == nil {
			require.ErrorIs(m.t, err, store.ErrNotFound)
			return
		}
		require.NoError(m.t, err)
		// At 0 it is stopped as well, by the record, and nobody would be kept from
		// reading on.
		if !m.stopped() {
			m.raised(m.live)
			m.stop = slices.Max(m.live.at[:])
			m.stops = true
		}
		require.Equal(m.t, map[string]int64{store.EventsTopic: m.stop}, at)
	case "go on":
		did, err := m.d.GoOn(ctx, m.id, 0)
		require.NoError(m.t, err)
		require.Equal(m.t, m.stopped(), did)
		if did {
			m.raised(m.live)
			m.runsOn()
		}
	case "keep":
		b := m.some()
		cold := rapid.Bool().Draw(m.t, "cold")
		err := m.d.KeepBuild(ctx, m.id, b.id, store.Keep{Cold: cold}, ops)
		if b == m.live || !b.stood {
			m.refused(err)
			return
		}
		require.NoError(m.t, err)
		b.cold = cold
		m.history[store.ActionKeep]++
		m.raised(b)
	case "pause":
		err := m.d.Pause(ctx, m.id, ops)
		if m.state == store.StateHalted {
			var wrong *store.StateError
			require.ErrorAs(m.t, err, &wrong)
			return
		}
		require.NoError(m.t, err)
		if m.state != store.StatePaused {
			m.state = store.StatePaused
			m.raised(m.live)
		}
	case "resume":
		err := m.d.Resume(ctx, m.id, 0, ops)
		if m.state == store.StateRunning {
			var wrong *store.StateError
			require.ErrorAs(m.t, err, &wrong)
			return
		}
		require.NoError(m.t, err)
		m.state = store.StateRunning
		m.raised(m.live)
	case "resume build":
		b := m.some()
		err := m.d.ResumeBuild(ctx, m.id, b.id, ops)
		if b == m.live {
			m.refused(err)
			return
		}
		require.NoError(m.t, err)
		if b.state == store.StateHalted {
			b.state = store.StateRunning
			m.history[store.ActionResumed]++
			m.raised(b)
		}
	}
}

func (m *buildModel) stopped() bool { return m.stops }

func (m *buildModel) runsOn() {
	m.stop = 0
	m.stops = false
}

func (m *buildModel) refused(err error) {
	var wrong *store.BuildError
	require.ErrorAs(m.t, err, &wrong)
	require.Equal(m.t, m.id, wrong.Consumer)
}

func (m *buildModel) halt(b *madeBuild) {
	require.NoError(m.t, m.d.Halt(m.d.ctx(), m.id, b.held[0], store.Halt{Reason: store.HaltApplyError}))
	state := &b.state
	if b == m.live {
		state = &m.state
	}
	if *state == store.StateRunning {
		*state = store.StateHalted
		m.history[store.ActionHalt]++
	}
}

func (m *buildModel) start() {
	decl := declare(m.t, m.id.Name)
	if m.other == nil || m.other.stood {
		m.logic++
	}
	decl.Fingerprint.Logic = fmt.Sprint("logic ", m.logic)
	b, err := m.d.StartShadow(m.d.ctx(), decl, ops)
	switch {
	case m.other == nil:
		require.NoError(m.t, err)
		require.Greater(m.t, b.ID, m.live.id)
		m.other = &madeBuild{id: b.ID, state: store.StateRunning}
		m.history[store.ActionShadow]++
		m.claim(m.other)
	case m.other.stood:
		m.refused(err)
	default:
		require.NoError(m.t, err)
		require.Equal(m.t, m.other.id, b.ID)
	}
}

func (m *buildModel) giveUp(step string) {
	b := m.some()
	give, action := m.d.CancelShadow, store.ActionCancel
	if step == "drop" {
		give, action = m.d.DropBuild, store.ActionDropBuild
	}
	err := give(m.d.ctx(), m.id, b.id, ops)
	if b == m.live || b.stood != (step == "drop") {
		m.refused(err)
		return
	}
	require.NoError(m.t, err)
	require.ErrorIs(m.t, m.d.Apply(m.d.ctx(), m.batch(b, 1)), store.ErrFenced)
	m.other = nil
	m.history[action]++
	if m.stopped() {
		m.raised(m.live)
		m.runsOn()
	}
}

func (m *buildModel) switchOver() {
	b := m.some()
	cold := rapid.Bool().Draw(m.t, "cold")
	err := m.d.Switch(m.d.ctx(), store.Switch{Consumer: m.id, Build: b.id, Keep: store.Keep{Cold: cold, For: time.Hour}, Actor: ops})
	need := slices.Max(m.live.at[:])
	switch {
	case b == m.live:
		require.NoError(m.t, err)
		return
	case b.state == store.StateHalted:
		m.refused(err)
		return
	case slices.Min(b.at[:]) < need:
		var behind *store.BehindError
		require.ErrorAs(m.t, err, &behind)
		var want []store.PartitionBehind
		for p, at := range b.at {
			if at < need {
				want = append(want, store.PartitionBehind{Partition: p, Position: at, Need: need})
			}
		}
		require.Equal(m.t, []store.TopicBehind{{Topic: store.EventsTopic, Need: need, Partitions: want}}, behind.Topics)
		return
	}
	require.NoError(m.t, err)
	old := m.live
	m.history[store.ActionSwitch]++
	m.raised(old)
	m.raised(b)
	b.effects, b.stood, b.cold = old.effects, false, false
	old.stood, old.cold, old.state = true, cold, store.StateRunning
	if m.state == store.StateHalted {
		old.state, m.state = store.StateHalted, store.StateRunning
	}
	m.live, m.other = b, old
	m.runsOn()
}

// check compares all that can be seen with the model.
func (m *buildModel) check(step string) {
	ctx := m.d.ctx()
	c, err := m.d.Consumer(ctx, m.id)
	require.NoError(m.t, err)
	require.Equal(m.t, []any{m.live.id, m.state, m.state == store.StateHalted}, []any{c.Build, c.State, c.Halt != nil}, step)
	list, err := m.d.ListBuilds(ctx, m.id)
	require.NoError(m.t, err)
	made := []*madeBuild{m.live}
	if m.other != nil {
		made = append(made, m.other)
		slices.SortFunc(made, func(a, b *madeBuild) int { return int(a.id - b.id) })
	}
	require.Len(m.t, list, len(made), step)
	for i, b := range made {
		role, state, stop := store.RoleShadow, b.state, int64(0)
		switch {
		case b == m.live:
			role, state, stop = store.RoleLive, m.state, m.stop
		case b.stood:
			role = store.RoleStandby
		}
		require.Equal(m.t, []any{b.id, role, state, b.cold, b == m.live && m.stopped(), state == store.StateHalted, b.stood},
			[]any{list[i].ID, list[i].Role, list[i].State, list[i].Cold, list[i].StoppedUS != 0, list[i].Halt != nil, list[i].StoodDownUS != 0}, step)
		checkpoints, err := m.d.Checkpoints(ctx, b.id)
		require.NoError(m.t, err)
		require.Len(m.t, checkpoints, modelPartitions)
		for p, c := range checkpoints {
			require.Equal(m.t, []int64{b.at[p], b.effects[p], stop}, []int64{c.Position, c.EffectsThrough, c.StopAt}, step)
		}
		owners, err := m.d.Owners(ctx, b.id)
		require.NoError(m.t, err)
		for p, o := range owners {
			require.Equal(m.t, store.Ownership{Partition: p, InstanceID: "i", Generation: b.last[p]}, o, step)
		}
	}
	history, err := m.d.History(ctx, m.id, 0, 0)
	require.NoError(m.t, err)
	counts := map[string]int{}
	for _, h := range history {
		switch h.Action {
		case store.ActionSubscribe, store.ActionPause, store.ActionResume:
		default:
			counts[h.Action]++
		}
	}
	require.Equal(m.t, m.history, counts, step)
}
