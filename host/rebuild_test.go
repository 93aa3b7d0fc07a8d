package host_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// mending counts, but for the bug it has until it is mended: it counts events of the
// type "Ghost" as well. It notes which of the others were told to be replayed.
type mending struct {
	faults
	mended   bool
	quiet    uint64 // of this position it makes nothing, once it is mended
	replayed map[uint64]bool
}

func (m *mending) mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mended, m.replayed = true, make(map[uint64]bool)
}

// flags are the positions that were told to be replayed, and those that were not,
// since it was mended.
func (m *mending) flags() (yes, no map[uint64]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	yes, no = make(map[uint64]bool), make(map[uint64]bool)
	for p, replay := range m.replayed {
		if replay {
			yes[p] = true
		} else {
			no[p] = true
		}
	}
	return yes, no
}

func (m *mending) counter(names ...string) *module {
	mod := m.faults.counter(names...)
	good := mod.handle
	mod.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		m.mu.Lock()
		mended, quiet := m.mended, m.quiet
		m.mu.Unlock()
		if mended && (e.TypeName == "Ghost" || e.Position == quiet) {
			return abi.StatusOK, nil
		}
		status, fail := good(c, e)
		if status == abi.StatusOK && mended {
			m.mu.Lock()
			m.replayed[e.Position] = e.Flags&abi.FlagReplay != 0
			m.mu.Unlock()
		}
		return status, fail
	}
	return mod
}

// haunted are events of which some are of the type Ghost, and some keys have no
// others.
func haunted(n int) []store.Event {
	events := someEvents(n)
	for i := range events {
		switch {
		case i%5 == 0:
			events[i].Type = "Ghost"
		case i%7 == 0:
			events[i].Type, events[i].AggregateID = "Ghost", fmt.Sprint("ghost", i%4)
		}
	}
	return events
}

// exorcised is want without the ghosts.
func exorcised(events []store.Event) map[string]string {
	out := make(map[string]string)
	for i := range events {
		if events[i].Type != "Ghost" {
			out[events[i].AggregateID] += fmt.Sprint(" ", i+1)
		}
	}
	return out
}

func rebuild(t *testing.T, st *fake.Store, name string) {
	t.Helper()
	require.NoError(t, st.RebuildInPlace(t.Context(), projection(name), store.Rebuild{Actor: "me"}))
}

// Several hosts make the rows anew while events go on coming. Readers have rows all
// the time; at the end there are those of the mended module and no others, and what
// came meanwhile is applied after that.
func TestRebuildInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := haunted(300)
		st.Append(events[:200]...)
		var m mending
		cfg := func(c *host.Config) { c.Batch = 3 }
		first := start(t, st, cfg, m.counter("c", "d"))
		second := start(t, st, cfg, m.counter("c", "d"))
		time.Sleep(30 * time.Second)
		require.Equal(t, want(events[:200]), seen(st, "c"))
		keys := len(seen(st, "c"))
		m.mend()
		slow := func(call string, _ int) (error, error) {
			if call == "Apply" {
				time.Sleep(200 * time.Millisecond)
			}
			return nil, nil
		}
		st.SetFault(slow)
		rebuild(t, st, "c")
		first.Look()
		st.Append(events[200:250]...)
		rebuilding := false
		for i := range 40 {
			time.Sleep(100 * time.Millisecond)
			require.LessOrEqual(t, st.Lowest(projection("c"), store.EventsTopic), int64(250))
			if i < 10 {
				require.Len(t, seen(st, "c"), keys, "nothing is gone before all is there")
			}
			rebuilding = rebuilding || status(t, first, "c").State == host.StateRebuilding
		}
		require.True(t, rebuilding)
		st.SetFault(nil)
		st.Append(events[250:]...)
		time.Sleep(30 * time.Second)
		require.Equal(t, exorcised(events), seen(st, "c"))
		require.Empty(t, st.Stale(projection("c")))
		for _, h := range []running{first, second} {
			require.Equal(t, host.StateRunning, status(t, h, "c").State)
			require.NoError(t, h.stop())
		}
		yes, no := m.flags()
		for i := range events {
			if position := uint64(i + 1); events[i].Type != "Ghost" {
				require.Equal(t, i < 200, yes[position], "%d", position)
				require.Equal(t, i >= 200, no[position], "%d", position)
			}
		}
		con, err := st.Consumer(t.Context(), projection("c"))
		require.NoError(t, err)
		require.Equal(t, []any{store.StateRunning, int64(1)}, []any{con.State, con.Epoch})
		require.Empty(t, st.Problems())
	})
}

// Whatever stops the hosts, they go on with the rebuild where it was: a pause, a halt,
// a restart, and another rebuild begins anew.
func TestRebuildGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := haunted(200)
		st.Append(events...)
		var m mending
		cfg := func(c *host.Config) { c.Batch = 2 }
		h := start(t, st, cfg, m.counter("c"))
		time.Sleep(30 * time.Second)
		m.mend()
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" {
				time.Sleep(500 * time.Millisecond)
			}
			return nil, nil
		})
		rebuild(t, st, "c")
		h.Look()
		time.Sleep(5 * time.Second)
		require.Equal(t, host.StateRebuilding, status(t, h, "c").State)
		require.NoError(t, st.Pause(t.Context(), projection("c"), "me"))
		h.Look()
		time.Sleep(5 * time.Second)
		at := st.Applies()
		time.Sleep(20 * time.Second)
		require.Equal(t, at, st.Applies())
		var wrong *store.StateError
		require.ErrorAs(t, st.RebuildInPlace(t.Context(), projection("c"), store.Rebuild{}), &wrong)
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(8 * time.Second)
		require.NoError(t, h.stop())
		require.NotEmpty(t, st.Stale(projection("c")), "it has not come to an end yet")

		m.set(180, abi.StatusReject)
		h = start(t, st, cfg, m.counter("c"))
		time.Sleep(5 * time.Second)
		rebuild(t, st, "c")
		st.SetFault(nil)
		time.Sleep(30 * time.Second)
		require.Equal(t, host.StateHalted, status(t, h, "c").State)
		m.set(180, 0)
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		time.Sleep(30 * time.Second)
		require.Equal(t, host.StateRunning, status(t, h, "c").State)
		require.Equal(t, exorcised(events), seen(st, "c"))
		require.Empty(t, st.Stale(projection("c")))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// A key that is held keeps its old row, through the prune, and loses it when it is
// let go without having made it anew: by its own lane, or by an operator.
func TestRebuildKeepsRowsOfHeldKeys(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"retried", "deleted"} {
		synctest.Test(t, func(t *testing.T) {
			st := fake.NewStore(partitions)
			events := someEvents(60)
			events[10].AggregateID, events[20].AggregateID = "held", "gone"
			st.Append(events...)
			var m mending
			h := start(t, st, exhausted("dead_letter_key"), m.counter("c"))
			time.Sleep(30 * time.Second)
			before := seen(st, "c")
			m.mend()
			m.set(11, abi.StatusReject)
			m.set(21, abi.StatusReject)
			rebuild(t, st, "c")
			h.Look()
			time.Sleep(20 * time.Second)
			require.Equal(t, host.StateRunning, status(t, h, "c").State)
			require.Equal(t, before, seen(st, "c"))
			require.Equal(t, []string{"gone", "held"}, st.Stale(projection("c")))
			m.set(11, 0)
			_, err := st.RetryUndelivered(t.Context(), projection("c"), store.Selection{Key: "held"}, me())
			require.NoError(t, err)
			if way == "deleted" {
				_, err = st.DeleteUndelivered(t.Context(), projection("c"), store.Selection{Key: "gone"}, me())
			} else {
				m.set(21, 0)
				m.mu.Lock()
				m.quiet = 21
				m.mu.Unlock()
				_, err = st.RetryUndelivered(t.Context(), projection("c"), store.Selection{Key: "gone"}, me())
			}
			require.NoError(t, err)
			h.Look()
			time.Sleep(20 * time.Second)
			delete(before, "gone")
			require.Equal(t, before, seen(st, "c"))
			require.Empty(t, st.Undelivered(projection("c")))
			require.Empty(t, st.Stale(projection("c")))
			require.NoError(t, h.stop())
			require.Empty(t, st.Problems())
		})
	}
}

// A key that is let go while there is more to replay keeps its row until the message
// that makes it anew: readers never miss it (P8).
func TestRebuildKeepsRowsThatAreMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(40)
		events[10].AggregateID, events[34].AggregateID = "held", "held"
		st.Append(events...)
		var m mending
		h := start(t, st, func(c *host.Config) { c.Batch, c.Lanes = 1, 1 }, m.counter("c"))
		time.Sleep(30 * time.Second)
		m.mend()
		m.set(11, abi.StatusRetry)
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" {
				time.Sleep(200 * time.Millisecond)
			}
			return nil, nil
		})
		rebuild(t, st, "c")
		h.Look()
		let := false
		for range 400 {
			time.Sleep(50 * time.Millisecond)
			require.Contains(t, seen(st, "c"), "held")
			if len(st.Undelivered(projection("c"))) > 0 && !let {
				let = true
				m.mu.Lock()
				m.bad[11], m.quiet = 0, 11
				m.mu.Unlock()
			}
		}
		require.True(t, let)
		require.Equal(t, " 35", seen(st, "c")["held"])
		require.Empty(t, st.Stale(projection("c")))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// Hosts that wait for the end of a rebuild are not taken for ones that stand still,
// though messages wait.
func TestRebuildThatWaitsDoesNotStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := haunted(80)
		st.Append(events[:50]...)
		var m mending
		first, second := start(t, st, nil, m.counter("c")), start(t, st, nil, m.counter("c"))
		time.Sleep(30 * time.Second)
		m.mend()
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Pruned" {
				return &store.TransientError{Op: call, Err: errors.New("full")}, nil
			}
			return nil, nil
		})
		rebuild(t, st, "c")
		st.Append(events[50:]...)
		for range 30 {
			time.Sleep(10 * time.Second)
			for _, h := range []running{first, second} {
				require.NotEqual(t, host.StateWithdrawn, status(t, h, "c").State)
				require.Empty(t, status(t, h, "c").Stuck)
			}
		}
		s := status(t, first, "c")
		require.Equal(t, host.StateRebuilding, s.State)
		require.Equal(t, host.RebuildStatus{Total: 50, Partitions: partitions}, *s.Rebuild)
		st.SetFault(nil)
		time.Sleep(30 * time.Second)
		require.Equal(t, exorcised(events), seen(st, "c"))
		require.Nil(t, status(t, first, "c").Rebuild)
		for _, h := range []running{first, second} {
			require.NoError(t, h.stop())
		}
		require.Empty(t, st.Problems())
	})
}

// Where history is missing nothing is pruned: what is not made again may be of what
// is missing.
func TestRebuildWithMissingHistoryKeepsRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := haunted(100)
		st.Append(events...)
		var m mending
		h := start(t, st, nil, m.counter("c"))
		time.Sleep(30 * time.Second)
		before := seen(st, "c")
		m.mend()
		require.NoError(t, h.stop()) // it would have kept what it has read
		st.Truncate(40)
		rebuild(t, st, "c")
		h = start(t, st, nil, m.counter("c"))
		time.Sleep(20 * time.Second)
		require.Equal(t, store.HaltMissingHistory, status(t, h, "c").Halt.Reason)
		require.Equal(t, before, seen(st, "c"))
		require.NoError(t, st.Reset(t.Context(), projection("c"), store.EventsTopic, 40, "me"))
		require.NoError(t, st.Resume(t.Context(), projection("c"), 0, "me"))
		h.Look()
		time.Sleep(20 * time.Second)
		require.Equal(t, host.StateRunning, status(t, h, "c").State)
		require.NotEmpty(t, st.Stale(projection("c")))
		require.Len(t, seen(st, "c"), len(before))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// Whichever call of the store fails during a rebuild, before it was done or after,
// the rows are the mended module's in the end and no others (P1).
func TestEveryCallFailsDuringRebuild(t *testing.T) {
	t.Parallel()
	failed := errors.New("lost")
	for _, hidden := range []bool{false, true} {
		for k := 1; ; k++ {
			fired := ""
			synctest.Test(t, func(t *testing.T) {
				st := fake.NewStore(4)
				events := haunted(60)
				st.Append(events[:50]...)
				var m mending
				h := start(t, st, func(c *host.Config) { c.Batch, c.Lanes = 10, 2 }, m.counter("c"))
				time.Sleep(10 * time.Second)
				m.mend()
				var mu sync.Mutex
				n := 0
				st.SetFault(func(call string, _ int) (before, after error) {
					mu.Lock()
					defer mu.Unlock()
					switch call {
					case "Heartbeat", "Survey", "Topic", "ListTopics", "ReadPage", "Advance", "SweepSkips", "CountUndelivered", "ListInstances", "View":
						return nil, nil
					}
					if n++; n != k {
						return nil, nil
					}
					fired = call
					if hidden {
						return nil, &store.TransientError{Op: call, OutcomeUnknown: true, Err: failed}
					}
					return &store.TransientError{Op: call, Err: failed}, nil
				})
				err := st.RebuildInPlace(t.Context(), projection("c"), store.Rebuild{Actor: "me"})
				if err != nil && !hidden {
					rebuild(t, st, "c")
				}
				h.Look()
				st.Append(events[50:]...)
				time.Sleep(40 * time.Second)
				require.Equal(t, exorcised(events), seen(st, "c"), "call %d: %s", k, fired)
				require.Empty(t, st.Stale(projection("c")))
				require.Equal(t, host.StateRunning, status(t, h, "c").State)
				require.NoError(t, h.stop())
				require.Empty(t, st.Problems())
			})
			if fired == "" {
				require.Greater(t, k, 12)
				break
			}
		}
	}
}
