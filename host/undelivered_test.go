package host_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// The hosts of these tests run within testing/synctest: every sleep is of
// virtual time.

// faults has messages at some positions fail with a status, in a counter that
// otherwise works.
type faults struct {
	mu  sync.Mutex
	bad map[uint64]abi.Status
}

func (f *faults) set(position uint64, status abi.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bad == nil {
		f.bad = make(map[uint64]abi.Status)
	}
	f.bad[position] = status
}

func (f *faults) counter(names ...string) *module {
	m := counter(names...)
	m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		f.mu.Lock()
		status := f.bad[e.Position]
		f.mu.Unlock()
		if status != 0 {
			return status, nil
		}
		return count(c, e)
	}
	return m
}

func exhausted(e lane.Exhausted) func(*host.Config) {
	return func(c *host.Config) { c.Delivery.OnExhausted = e }
}

// rowsIn are the positions of undelivered messages by status.
func rowsIn(st *fake.Store, name string) map[store.UndeliveredStatus][]int64 {
	out := make(map[store.UndeliveredStatus][]int64)
	for _, m := range st.Undelivered(projection(name)) {
		out[m.Status] = append(out[m.Status], m.Event.Position)
	}
	return out
}

func me() store.Action { return store.Action{Actor: "me"} }

// A paused consumer is not applied on any host, restarts included, until it is
// resumed, and says so.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(90)
		st.Append(events[:30]...)
		first := start(t, st, nil, counter("c", "d"))
		second := start(t, st, nil, counter("c", "d"))
		time.Sleep(30 * time.Second)
		require.NoError(t, st.Pause(t.Context(), projection("c"), "me"))
		st.Append(events[30:60]...)
		time.Sleep(10 * time.Second)
		require.Equal(t, want(events[:30]), seen(st, "c"), "the generations are raised: what was on its way is refused")
		require.Equal(t, want(events[:60]), seen(st, "d"))
		for _, h := range []running{first, second} {
			require.Equal(t, host.StatePaused, status(t, h, "c").State)
			ready, reasons := h.Ready()
			require.True(t, ready, reasons)
		}
		require.NoError(t, first.stop())
		first = start(t, st, nil, counter("c", "d"))
		time.Sleep(30 * time.Second)
		require.Equal(t, host.StatePaused, status(t, first, "c").State)
		st.Append(events[60:]...)
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(15 * time.Second)
		require.Equal(t, want(events), seen(st, "c"))
		require.Equal(t, host.StateRunning, status(t, first, "c").State)
		for _, h := range []running{first, second} {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// What is held goes on being counted and tried by whichever host has its
// partition; when it succeeds what waits follows in order.
func TestBudgetMovesWithThePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(100)
		st.Append(events...)
		var f faults
		f.set(42, abi.StatusRetry)
		passing := 0
		for range 3 {
			h := start(t, st, nil, f.counter("c"))
			time.Sleep(10 * time.Second)
			s := status(t, h, "c")
			require.Equal(t, host.StateRunning, s.State)
			require.Len(t, rowsIn(st, "c")[store.StatusFailed], 1)
			require.Equal(t, int64(len(st.Undelivered(projection("c")))), s.Held)
			require.NotZero(t, s.NextRetryUS)
			require.Greater(t, st.Undelivered(projection("c"))[0].Passing, passing)
			passing = st.Undelivered(projection("c"))[0].Passing
			require.NoError(t, h.stop())
		}
		for key, positions := range want(events) {
			if key != events[41].AggregateID {
				require.Equal(t, positions, seen(st, "c")[key])
			}
		}
		f.set(42, 0)
		h := start(t, st, nil, f.counter("c"))
		time.Sleep(time.Minute)
		require.Equal(t, want(events), seen(st, "c"))
		require.Empty(t, st.Undelivered(projection("c")))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// An operator passes over the very message that halted the consumer, or has a dead
// key tried again, or deletes messages; the consumer's own override decides which
// of these there is.
func TestOperatorDecides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(100)
		st.Append(events...)
		var f faults
		f.set(42, abi.StatusReject)
		f.set(43, abi.StatusReject)
		halts := start(t, st, nil, f.counter("c"))
		keeps := start(t, st, exhausted(lane.ExhaustedDeadLetterKey), f.counter("d"))
		synctest.Wait()

		id := rowsID(st, "c", 42)
		var changed *store.ChangedError
		require.ErrorAs(t, st.Resume(t.Context(), projection("c"), id+100, "me"), &changed)
		require.NoError(t, st.Resume(t.Context(), projection("c"), id, "me"))
		time.Sleep(10 * time.Second)
		require.Equal(t, int64(43), status(t, halts, "c").Halt.Position)
		require.NoError(t, st.Resume(t.Context(), projection("c"), rowsID(st, "c", 43), "me"))
		time.Sleep(10 * time.Second)
		require.Equal(t, without(events, 42, 43), seen(st, "c"))
		require.Empty(t, st.Undelivered(projection("c")))

		require.Equal(t, host.StateRunning, status(t, keeps, "d").State)
		require.Contains(t, rowsIn(st, "d")[store.StatusDeadLetterKey], int64(42))
		f.set(42, 0)
		_, err := st.RetryUndelivered(t.Context(), projection("d"), store.Selection{Key: events[41].AggregateID}, me())
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Equal(t, want(events)[events[41].AggregateID], seen(st, "d")[events[41].AggregateID])
		_, err = st.DeleteUndelivered(t.Context(), projection("d"), store.Selection{ID: rowsID(st, "d", 43)}, me())
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Equal(t, without(events, 43), seen(st, "d"))
		require.Empty(t, st.Undelivered(projection("d")))

		require.NotEmpty(t, st.SkipsOf(projection("d")))
		time.Sleep(3 * time.Minute) // idle checkpoints, then the sweep
		require.Empty(t, st.SkipsOf(projection("d")))
		require.NoError(t, halts.stop())
		require.NoError(t, keeps.stop())
		require.Empty(t, st.Problems())
	})
}

func rowsID(st *fake.Store, name string, position int64) int64 {
	for _, m := range st.Undelivered(projection(name)) {
		if m.Event.Position == position {
			return m.ID
		}
	}
	return 0
}

// without is what count leaves per key if some positions are passed over.
func without(events []store.Event, positions ...int) map[string]string {
	out := make(map[string]string)
	for i := range events {
		if !slices.Contains(positions, i+1) {
			out[events[i].AggregateID] += fmt.Sprint(" ", i+1)
		}
	}
	return out
}

// A message whose keys cannot be told is one row without copy that no checkpoint
// passes (H38); halted it is tried again when an operator resumes, and its row goes
// once its keys can be told, or it is skipped for every key.
func TestUntold(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"resume", "past", "skip"} {
		synctest.Test(t, func(t *testing.T) {
			st := fake.NewStore(partitions)
			events := someEvents(100)
			st.Append(events...)
			m := counter("c")
			m.manifest.Consumers[0].Inputs[0].Key.Kind = abi.KeyFunction
			var dark sync.Map
			dark.Store(uint64(40), true)
			m.keys = func(e *abi.Entry) ([]string, *plugins.Failure) {
				if _, ok := dark.Load(e.Position); ok {
					return nil, &plugins.Failure{Code: abi.CodeTrap, Message: "no idea"}
				}
				return []string{e.AggregateID}, nil
			}
			var cfg func(*host.Config)
			if end == "skip" {
				cfg = exhausted(lane.ExhaustedSkip)
			}
			h := start(t, st, cfg, m)
			time.Sleep(10 * time.Second)
			if end == "skip" {
				require.Equal(t, without(events, 40), seen(st, "c"))
				require.Empty(t, st.Undelivered(projection("c")))
				require.Equal(t, host.StateRunning, status(t, h, "c").State)
				require.NoError(t, h.stop())
				require.Empty(t, st.Problems())
				return
			}
			row := func() store.UndeliveredMessage {
				rows := st.Undelivered(projection("c"))
				require.Len(t, rows, 1)
				require.True(t, rows[0].Unresolved)
				require.Equal(t, store.StatusHalted, rows[0].Status)
				require.Equal(t, int64(40), rows[0].Event.Position)
				require.Empty(t, rows[0].Event.Data)
				require.Contains(t, rows[0].Reason, "no idea")
				require.Equal(t, int64(40), status(t, h, "c").Halt.Position)
				require.Equal(t, want(events[:39]), seen(st, "c"))
				return rows[0]
			}
			id := row().ID
			require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
			time.Sleep(10 * time.Second)
			require.Equal(t, id, row().ID, "the same row, again")
			wanted := want(events)
			if end == "past" {
				require.NoError(t, st.Resume(t.Context(), projection("c"), id, "me"))
				wanted = without(events, 40)
			} else {
				dark.Clear()
				require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
			}
			time.Sleep(10 * time.Second)
			require.Equal(t, wanted, seen(st, "c"))
			require.Empty(t, st.Undelivered(projection("c")))
			require.NoError(t, h.stop())
			require.Empty(t, st.Problems())
		})
	}
}

// Alarms come before the cap, which halts the consumer.
func TestUndeliveredAlarms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		var f faults
		f.set(1, abi.StatusReject)
		h := start(t, st, func(c *host.Config) {
			c.Delivery.OnExhausted, c.MaxUndelivered = lane.ExhaustedDeadLetterKey, 10
		}, f.counter("c"))
		one := func() {
			st.Append(store.Event{AggregateType: "a", AggregateID: "k", Type: "T", ID: store.ID{15: byte(time.Now().Unix())}})
			time.Sleep(time.Second)
		}
		for range 5 {
			one()
		}
		require.Empty(t, status(t, h, "c").Alarms)
		one()
		require.Contains(t, status(t, h, "c").Alarms[0], "max_undelivered")
		for range 5 {
			one()
		}
		s := status(t, h, "c")
		require.Equal(t, host.StateHalted, s.State)
		require.Contains(t, s.Halt.Message, "max_undelivered")
		require.Equal(t, int64(11), s.Halt.Position)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// model is what the rules of semantics.md 2.6 make of a consumer that is left
// alone for long after each thing that happens to it: by key, the messages that
// hold it and wait, and what was applied, in order.
type model struct {
	policy  lane.Exhausted
	bad     map[int64]bool
	events  []store.Event
	lines   map[string][]int64
	dead    map[int64]bool // DEAD_LETTER
	skipped map[int64]bool
	applied map[string]string
}

func (m *model) arrive(position int64) {
	key := m.events[position-1].AggregateID
	m.lines[key] = append(m.lines[key], position)
	if len(m.lines[key]) == 1 {
		m.drain(key)
	}
}

// drain tries a line from its head on, as when its turn has come.
func (m *model) drain(key string) {
	for len(m.lines[key]) > 0 {
		at := m.lines[key][0]
		switch {
		case !m.bad[at]:
			m.applied[key] += fmt.Sprint(" ", at)
		case m.policy == lane.ExhaustedDeadLetterKey:
			return
		case m.policy == lane.ExhaustedDeadLetter:
			m.dead[at] = true
		case m.policy == lane.ExhaustedSkip:
			m.skipped[at] = true
		}
		m.lines[key] = m.lines[key][1:]
	}
}

// rows are the positions of undelivered messages, rising.
func (m *model) rows() []int64 {
	out := slices.Collect(maps.Keys(m.dead))
	for _, line := range m.lines {
		out = append(out, line...)
	}
	slices.Sort(out)
	return out
}

// A random walk of messages, failures that heal and that do not, restarts, deploys
// and operators' actions against that model: after each step and a long while,
// rows and undelivered messages are what it says.
func TestUndeliveredWalk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		policy := rapid.SampledFrom([]lane.Exhausted{lane.ExhaustedDeadLetterKey, lane.ExhaustedDeadLetter, lane.ExhaustedSkip}).Draw(r, "policy")
		synctest.Test(t, func(t *testing.T) { walk(t, r, policy) })
	})
}

func walk(t *testing.T, r *rapid.T, policy lane.Exhausted) {
	st := fake.NewStore(partitions)
	var f faults
	m := &model{policy: policy, bad: map[int64]bool{}, lines: map[string][]int64{}, dead: map[int64]bool{},
		skipped: map[int64]bool{}, applied: map[string]string{}}
	digest := 1
	run := func() running {
		module := f.counter("c")
		module.digest = fmt.Sprint("sha256:", digest)
		defer synctest.Wait()
		return start(t, st, func(c *host.Config) {
			c.Delivery.OnExhausted, c.Delivery.MaxTransient, c.Delivery.Backoff.Max = policy, 4, time.Second
			c.Batch, c.Lanes = rapid.IntRange(0, 5).Draw(r, "batch"), rapid.IntRange(1, 3).Draw(r, "lanes")
		}, module)
	}
	h := run()
	heal := func(position int64) {
		delete(m.bad, position)
		f.set(uint64(position), 0)
	}
	for range rapid.IntRange(1, 25).Draw(r, "steps") {
		rows := m.rows()
		var row int64
		if len(rows) > 0 {
			row = rapid.SampledFrom(rows).Draw(r, "row")
		}
		switch step := rapid.SampledFrom([]string{"append", "append", "append", "heal", "restart", "deploy", "retry", "delete", "pause"}).Draw(r, "step"); {
		case step == "append":
			n := rapid.IntRange(1, 12).Draw(r, "n")
			var events []store.Event
			for range n {
				at := int64(len(m.events) + 1)
				e := store.Event{AggregateType: "a", AggregateID: fmt.Sprint("k", rapid.IntRange(0, 4).Draw(r, "key")), Type: "T",
					ID: store.ID{14: byte(at >> 8), 15: byte(at)}}
				if status := rapid.SampledFrom([]abi.Status{0, 0, 0, 0, abi.StatusReject, abi.StatusRetry}).Draw(r, "status"); status != 0 {
					m.bad[at] = true
					f.set(uint64(at), status)
				}
				m.events, events = append(m.events, e), append(events, e)
			}
			st.Append(events...)
			for i := range events {
				m.arrive(int64(len(m.events) - n + i + 1))
			}
		case step == "heal" && row != 0:
			heal(row) // nobody tries it again by itself
		case step == "restart":
			require.NoError(t, h.stop())
			h = run()
		case step == "deploy":
			require.NoError(t, h.stop())
			digest++
			h = run()
			for key := range m.lines {
				m.drain(key)
			}
		case step == "retry" && row != 0:
			d, err := st.RetryUndelivered(t.Context(), projection("c"), store.Selection{ID: rowsID(st, "c", row)}, me())
			require.NoError(t, err)
			key := m.events[row-1].AggregateID
			require.Equal(t, !m.dead[row] && m.lines[key][0] == row, d.Count == 1, "of those that hold nothing, none without being told to")
			if d.Count == 1 {
				m.drain(key)
			}
		case step == "delete" && row != 0:
			_, err := st.DeleteUndelivered(t.Context(), projection("c"), store.Selection{ID: rowsID(st, "c", row)}, me())
			require.NoError(t, err)
			m.skipped[row] = true
			delete(m.dead, row)
			key := m.events[row-1].AggregateID
			if at := slices.Index(m.lines[key], row); at >= 0 {
				m.lines[key] = slices.Delete(m.lines[key], at, at+1)
				if at == 0 {
					m.drain(key)
				}
			}
		case step == "pause":
			require.NoError(t, st.Pause(t.Context(), projection("c"), "me"))
			time.Sleep(10 * time.Second)
			require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		}
		time.Sleep(time.Minute)
		require.Equal(t, m.applied, seen(st, "c"))
		var got []int64
		for _, row := range st.Undelivered(projection("c")) {
			got = append(got, row.Event.Position)
			require.NotEqual(t, store.StatusFailed, row.Status)
		}
		slices.Sort(got)
		require.Equal(t, m.rows(), got)
		passed := 0
		for _, positions := range seen(st, "c") {
			for word := range strings.FieldsSeq(positions) {
				_, err := strconv.Atoi(word)
				require.NoError(t, err)
				passed++
			}
		}
		require.Equal(t, len(m.events), passed+len(got)+len(m.skipped), "each is applied, waiting, dead or skipped (P5)")
	}
	require.NoError(t, h.stop())
	require.Empty(t, st.Problems())
}
