package host_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// module is a plugin written in Go.
type module struct {
	manifest abi.Manifest
	digest   string
	handle   func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure)
	keys     func(e *abi.Entry) ([]string, *plugins.Failure)
	before   func(ctx context.Context, entries int) error

	mu     sync.Mutex
	guests []*instance
}

type instance struct {
	*fake.Guest
	m *module
}

func (m *module) Manifest() *abi.Manifest { return &m.manifest }
func (m *module) Digest() string          { return m.digest }

func (m *module) NewInstance(context.Context, hclog.Logger) (host.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &instance{m: m, Guest: &fake.Guest{Handle: m.handle, Before: m.before}}
	m.guests = append(m.guests, g)
	return g, nil
}

func (g *instance) Apply(ctx context.Context, consumer int, entries []abi.Entry, sink plugins.Sink) (int, *plugins.Failure, error) {
	g.Shapes = g.m.manifest.Consumers[consumer].Shape
	return g.Guest.Apply(ctx, consumer, entries, sink)
}

func (g *instance) Keys(_ context.Context, _ int, entries []abi.Entry, each func(int, [][]byte) error) (int, *plugins.Failure, error) {
	for i := range entries {
		keys, fail := g.m.keys(&entries[i])
		if fail != nil {
			fail.Index = i
			return i, fail, nil
		}
		var out [][]byte
		for _, k := range keys {
			out = append(out, []byte(k))
		}
		if err := each(i, out); err != nil {
			return i, nil, err
		}
	}
	return len(entries), nil, nil
}

func (g *instance) Stats() plugins.Stats {
	return plugins.Stats{Calls: uint64(g.Calls), MemoryBytes: 1 << 16}
}

// counter declares consumers of all events by aggregate id that count them.
func counter(names ...string) *module {
	m := &module{digest: "sha256:1", manifest: abi.Manifest{ABI: 1, Name: "counter", Version: "1"}}
	for _, name := range names {
		m.manifest.Consumers = append(m.manifest.Consumers, abi.Consumer{
			Type: abi.Projection, Name: name,
			Inputs: []abi.Input{{Topic: store.EventsTopic, Types: []string{"*"}, Key: abi.KeyRule{Kind: abi.KeyAggregateID}}},
			Tables: []abi.Table{{Name: name, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}, {Name: "seen", Kind: abi.ColumnText}}}},
		})
	}
	m.handle = count
	return m
}

// count adds one, and appends the message's position to what was seen, through
// the row the guest gets: a message lost, doubled or out of order shows.
func count(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
	seen := ""
	if v := c.Values(0, "", ""); v != nil {
		seen = string(v[1].B)
	}
	c.Begin(abi.OpAdd, 0, "", "")
	c.Ops.Int(0, 1)
	c.Begin(abi.OpPatch, 0, "", "")
	c.Ops.Text(1, fmt.Sprint(seen, " ", e.Position))
	return abi.StatusOK, nil
}

func projection(name string) store.ConsumerID {
	return store.ConsumerID{Type: abi.Projection, Name: name}
}

// want is the text that count leaves per key.
func want(events []store.Event) map[string]string {
	out := make(map[string]string)
	for i := range events {
		out[events[i].AggregateID] += fmt.Sprint(" ", i+1)
	}
	return out
}

func seen(st *fake.Store, name string) map[string]string {
	out := make(map[string]string)
	for k, row := range st.Rows(projection(name), 0) {
		values, err := abi.ReadRow(row.Row, nil)
		if err != nil {
			panic(err)
		}
		out[k.Key] = string(values[1].B)
		if n := len(strings.Fields(out[k.Key])); int64(n) != values[0].I {
			panic(fmt.Sprintf("row %v counts %d of %d", k, values[0].I, n))
		}
	}
	return out
}

func someEvents(n int) []store.Event {
	rng := rand.New(rand.NewPCG(7, 7))
	out := make([]store.Event, n)
	for i := range out {
		out[i] = store.Event{AggregateType: "a", AggregateID: fmt.Sprintf("k%d", rng.IntN(9)), Type: "T", Data: []byte(`{"key":"x"}`), ID: store.ID{15: byte(i)}}
	}
	return out
}

const partitions = 16

// running is a host under test.
type running struct {
	*host.Host
	stop func() error
}

func start(t *testing.T, st store.Store, cfg func(*host.Config), modules ...*module) running {
	t.Helper()
	h, err := newHost(t, st, cfg, modules...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() })
	return running{h, stop}
}

func newHost(t *testing.T, st store.Store, cfg func(*host.Config), modules ...*module) (*host.Host, error) {
	c := host.DefaultConfig()
	c.PageMessages = 20
	if cfg != nil {
		cfg(&c)
	}
	deps := host.Deps{Store: st, Metrics: prometheus.NewRegistry(),
		Log: hclog.New(&hclog.LoggerOptions{Output: t.Output(), Level: hclog.Debug})}
	for i, m := range modules {
		deps.Plugins = append(deps.Plugins, host.Plugin{Name: fmt.Sprint("plugin", i), Module: m})
	}
	return host.New(deps, c)
}

func status(t *testing.T, h running, name string) host.ConsumerStatus {
	t.Helper()
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	for _, c := range s.Consumers {
		if c.ID.Name == name {
			return c
		}
	}
	t.Fatalf("no consumer %s", name)
	return host.ConsumerStatus{}
}

// From the log to the rows, and on while events come; stopped and started again
// it goes on where it was, having saved all checkpoints.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(200)
		st.Append(events[:100]...)
		h := start(t, st, nil, counter("one", "two"))
		synctest.Wait()
		require.Equal(t, want(events[:100]), seen(st, "one"))

		began := time.Now()
		st.Append(events[100:150]...)
		require.NoError(t, h.WaitApplied(t.Context(), projection("one"), store.EventsTopic, 150, host.AllPartitions))
		require.NoError(t, h.WaitApplied(t.Context(), projection("two"), store.EventsTopic, 150, 3))
		require.Zero(t, time.Since(began))
		require.Equal(t, want(events[:150]), seen(st, "one"))
		synctest.Wait()
		ready, reasons := h.Ready()
		require.True(t, ready, reasons)

		s := status(t, h, "two")
		require.Equal(t, host.StateRunning, s.State)
		require.Zero(t, s.Lag)
		require.Equal(t, int64(150), s.Topics[0].Applied)
		require.Len(t, s.Topics[0].Partitions, partitions)

		require.NoError(t, h.stop())
		require.Equal(t, int64(150), st.Lowest(projection("two"), store.EventsTopic))
		require.Zero(t, st.Instances())

		st.Append(events[150:]...)
		h = start(t, st, nil, counter("one", "two"))
		synctest.Wait()
		require.Equal(t, want(events), seen(st, "one"))
		require.Equal(t, want(events), seen(st, "two"))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// What happens and what is held reaches Prometheus under stable names.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(50)
		events[40].Type = "bad"
		// An earlier run leaves rows to read.
		st.Append(events[:20]...)
		before := start(t, st, nil, counter("c"))
		synctest.Wait()
		require.NoError(t, before.stop())
		st.Append(events[20:]...)
		m := counter("c")
		m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			if e.TypeName == "bad" {
				return abi.StatusReject, nil
			}
			return count(c, e)
		}
		r := prometheus.NewRegistry()
		h, err := host.New(host.Deps{Store: st, Plugins: []host.Plugin{{Name: "p", Module: m}}, Metrics: r}, host.DefaultConfig())
		require.NoError(t, err)
		_, err = host.New(host.Deps{Store: st, Metrics: r}, host.DefaultConfig())
		require.ErrorContains(t, err, "register metrics")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		families, err := r.Gather()
		require.NoError(t, err)
		got := make(map[string]float64)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		for name, atLeast := range map[string]float64{
			"projhost_messages_applied_total": 1, "projhost_batch_messages": 1, "projhost_guest_call_seconds": 1,
			"projhost_commit_seconds": 1, "projhost_halts_total": 1, "projhost_consumer_lag": 9, "projhost_consumer_state": 1,
			"projhost_cache_rows": 1, "projhost_cache_bytes": 1, "projhost_cache_misses_total": 1, "projhost_guest_memory_bytes": 0,
			"projhost_guest_instances": 0, "projhost_guest_calls_total": 1, "projhost_guest_reinstantiations_total": 0,
			"projhost_undelivered": 1, "projhost_undelivered_held": 0, "projhost_undelivered_held_max": 100_000,
			"projhost_topic_end": 50, "projhost_topic_high_water_mark": 50, "projhost_topic_lag": 0, "projhost_topic_mark_held_seconds": 0, "projhost_queue_bytes": 0, "projhost_cache_hits_total": 0, "projhost_guest_restores_total": 0,
		} {
			require.Contains(t, got, name)
			require.GreaterOrEqual(t, got[name], atLeast, name)
		}
		cancel()
		require.NoError(t, <-done)
	})
}

// A message that fails halts its own consumer and nobody else, with all that is
// needed to find it; a restart changes nothing of that (H5), and with a mended
// module it goes on as if nothing had been.
func TestHaltIsOfOneConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(100)
		events[41].Type = "bad"
		st.Append(events...)
		broken, good := counter("broken"), counter("good")
		broken.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			if e.TypeName == "bad" {
				return 0, &plugins.Failure{Code: abi.CodeTrap, Message: "unreachable", Trap: "in main.apply", Deterministic: true}
			}
			return count(c, e)
		}
		for range 2 {
			h := start(t, st, nil, broken, good)
			synctest.Wait()
			require.Equal(t, want(events), seen(st, "good"))
			s := status(t, h, "broken")
			require.Equal(t, host.StateHalted, s.State)
			require.Equal(t, int64(42), s.Halt.Position)
			require.Equal(t, events[41].AggregateID, s.Halt.Key)
			require.Equal(t, "bad", s.Halt.EventType)
			require.Equal(t, "sha256:1", s.Halt.Digest)
			require.Contains(t, s.Halt.Message, "unreachable")
			con, err := st.Consumer(t.Context(), projection("broken"))
			require.NoError(t, err)
			require.Equal(t, store.StateHalted, con.State)
			require.Equal(t, s.Halt, con.Halt)
			ready, reasons := h.Ready()
			require.True(t, ready, reasons)

			err = h.WaitApplied(t.Context(), projection("broken"), store.EventsTopic, 100, host.AllPartitions)
			var halted *host.HaltedError
			require.ErrorAs(t, err, &halted)
			require.NoError(t, h.WaitApplied(t.Context(), projection("broken"), store.EventsTopic, 41, s.Halt.Partition))
			require.NoError(t, h.stop())
		}
		require.Len(t, st.Undelivered(projection("broken")), 1)
		mended := counter("broken")
		mended.digest = "sha256:2"
		h := start(t, st, nil, mended, good)
		synctest.Wait()
		require.Equal(t, want(events), seen(st, "broken"))
		require.Empty(t, st.Undelivered(projection("broken")))
		require.NoError(t, h.stop())
	})
}

// Promises P1 and P4: the host dies at any call of the store; the next one goes
// on from the checkpoints, and in the end every message was applied once.
func TestDieAtEveryStoreCall(t *testing.T) {
	t.Parallel()
	events := someEvents(60)
	for _, after := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			for k := 1; ; k++ {
				st := fake.NewStore(partitions)
				st.Append(events...)
				dead := &store.TransientError{Op: "any", Err: errors.New("dead"), OutcomeUnknown: true}
				var died atomic.Bool
				st.SetFault(func(_ string, n int) (error, error) {
					switch {
					case n < k:
						return nil, nil
					case n == k && after:
						died.Store(true)
						return nil, dead
					}
					died.Store(true)
					return dead, nil
				})
				small := func(c *host.Config) { c.Batch, c.PageMessages, c.Lanes = 5, 7, 2 }
				h := start(t, st, small, counter("c"))
				synctest.Wait()
				time.Sleep(time.Second) // virtual time
				h.stop()
				st.Kill()
				st.SetFault(nil)
				h = start(t, st, small, counter("c"))
				synctest.Wait()
				time.Sleep(time.Second) // virtual time
				require.Equal(t, want(events), seen(st, "c"), "died at call %d", k)
				require.NoError(t, h.stop())
				require.Empty(t, st.Problems())
				if !died.Load() {
					require.Greater(t, k, 20)
					return
				}
			}
		})
	}
}

// One call of the store fails, whichever and however: the host goes on by
// itself.
func TestOneStoreCallFails(t *testing.T) {
	t.Parallel()
	events := someEvents(60)
	for name, fault := range map[string]func() (error, error){
		"transient": func() (error, error) { return &store.TransientError{Op: "x", Err: errors.New("busy")}, nil },
		"unknown": func() (error, error) {
			return nil, &store.TransientError{Op: "x", Err: errors.New("cut"), OutcomeUnknown: true}
		},
		"fenced": func() (error, error) { return store.ErrFenced, nil },
		"moved":  func() (error, error) { return store.ErrCheckpointMoved, nil },
		"odd":    func() (error, error) { return errors.New("odd"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				// The calls of the start are the operator's to repeat.
				for k := 5; ; k++ {
					st := fake.NewStore(partitions)
					st.Append(events...)
					var hit atomic.Bool
					st.SetFault(func(call string, n int) (error, error) {
						if n != k {
							return nil, nil
						}
						hit.Store(true)
						return fault()
					})
					h := start(t, st, func(c *host.Config) { c.Batch, c.PageMessages, c.Lanes = 5, 7, 2 }, counter("c"))
					err := h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 60, host.AllPartitions)
					require.NoError(t, err, "call %d", k)
					require.Equal(t, want(events), seen(st, "c"), "call %d", k)
					require.NoError(t, h.stop())
					require.Empty(t, st.Problems())
					if !hit.Load() {
						require.Greater(t, k, 20)
						return
					}
				}
			})
		})
	}
}

// Somebody else takes the leases, or the database comes back as another
// incarnation: the host claims and reads anew, and nothing is lost or doubled.
func TestLeaseLostAndIncarnation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(300)
		h := start(t, st, func(c *host.Config) { c.Batch = 3 }, counter("c"))
		for i := range events {
			st.Append(events[i])
			switch i % 40 {
			case 13:
				st.Steal(1)
			case 29:
				st.Crash()
			}
			time.Sleep(time.Millisecond) // virtual time
		}
		require.NoError(t, h.WaitApplied(t.Context(), projection("c"), store.EventsTopic, 300, host.AllPartitions))
		require.Equal(t, want(events), seen(st, "c"))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// An error of a kind nobody knows halts its consumer where it does not go away,
// also between two sessions, and the halt is recorded under the latest claim: a
// consumer never just stops.
func TestUnknownErrorBetweenSessionsHalts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		h := start(t, st, nil, counter("c"))
		synctest.Wait()
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Checkpoints" {
				return errors.New("the record does not read"), nil
			}
			return nil, nil
		})
		st.Steal(1)
		st.Append(someEvents(1)...)
		time.Sleep(time.Hour) // virtual time
		s := status(t, h, "c")
		require.Equal(t, host.StateHalted, s.State)
		require.Contains(t, s.Halt.Message, "the record does not read")
		con, err := st.Consumer(t.Context(), projection("c"))
		require.NoError(t, err)
		require.Equal(t, store.StateHalted, con.State)
		require.NoError(t, h.stop())
	})
}

// A message whose keys cannot be told halts the consumer with everything before
// it applied, and no checkpoint passes it; a module that can tell goes on.
func TestUnresolvedKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(100)
		events[70].Data = []byte(`{"key":true}`)
		st.Append(events...)
		m := counter("c")
		m.manifest.Consumers[0].Inputs[0].Key = abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/key"}}
		h := start(t, st, nil, m, counter("other"))
		synctest.Wait()
		s := status(t, h, "c")
		require.Equal(t, host.StateHalted, s.State)
		require.Equal(t, int64(71), s.Halt.Position)
		require.Equal(t, int64(70), s.Topics[0].Applied)
		require.Len(t, strings.Fields(seen(st, "c")["x"]), 70)
		require.Equal(t, want(events), seen(st, "other"))
		require.NoError(t, h.stop())
		require.Equal(t, int64(70), st.Lowest(projection("c"), store.EventsTopic))
	})
}

// A message that fails before one whose keys cannot be told is where the
// consumer halts, although the reader comes to the other one first.
func TestFailureBeforeUnresolvedKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(10)
		events[4].Type = "bad"
		events[7].Data = []byte(`{"key":true}`)
		st.Append(events...)
		m := counter("c")
		m.manifest.Consumers[0].Inputs[0].Key = abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/key"}}
		m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			if e.TypeName == "bad" {
				return abi.StatusReject, nil
			}
			return count(c, e)
		}
		h := start(t, st, nil, m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // virtual time
		defer cancel()
		err := h.WaitApplied(ctx, projection("c"), store.EventsTopic, 10, host.AllPartitions)
		var halted *host.HaltedError
		require.ErrorAs(t, err, &halted)
		require.Equal(t, int64(5), halted.Halt.Position)
		require.NoError(t, h.stop())
	})
}

// A guest tells keys; one that fails on a message in company only is asked
// alone, one that fails alone too halts its consumer.
func TestFunctionKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(50)
		st.Append(events...)
		m := counter("c")
		m.manifest.Consumers[0].Inputs[0].Key.Kind = abi.KeyFunction
		tries := 0
		m.keys = func(e *abi.Entry) ([]string, *plugins.Failure) {
			if e.Position == 20 {
				if tries++; tries == 1 {
					return nil, &plugins.Failure{Code: abi.CodeMemory}
				}
			}
			if e.Position == 40 {
				return nil, &plugins.Failure{Code: abi.CodeTrap, Message: "no idea"}
			}
			return []string{"all", e.AggregateID}, nil
		}
		h := start(t, st, nil, m)
		synctest.Wait()
		s := status(t, h, "c")
		require.Equal(t, host.StateHalted, s.State)
		require.Equal(t, int64(40), s.Halt.Position)
		require.Contains(t, s.Halt.Message, "no idea")
		require.Len(t, strings.Fields(seen(st, "c")["all"]), 39)
		require.NoError(t, h.stop())
		for _, g := range m.guests {
			require.True(t, g.Closed)
		}
	})
}

// A single-owner consumer sees all messages in the order of their positions,
// whatever their keys, and a free table has one fence.
func TestSingleOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(150)
		st.Append(events...)
		m := counter("c")
		m.manifest.Consumers[0].Distribution = abi.SingleOwner
		m.manifest.Consumers[0].Tables[0].Free = true
		var order []uint64
		m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			order = append(order, e.Position)
			n := int64(0)
			if v := c.Values(0, "total", ""); v != nil {
				n = v[0].I
			}
			c.Begin(abi.OpUpsert, 0, "total", "")
			c.Ops.Int(0, n+1)
			return abi.StatusOK, nil
		}
		h := start(t, st, func(c *host.Config) { c.Lanes, c.Batch = 4, 13 }, m)
		synctest.Wait()
		require.Len(t, order, 150)
		require.True(t, slices.IsSorted(order))
		require.Len(t, status(t, h, "c").Lanes, 1)
		row := st.Rows(projection("c"), 0)[store.RowKey{Key: "total"}]
		values, err := abi.ReadRow(row.Row, nil)
		require.NoError(t, err)
		require.Equal(t, int64(150), values[0].I)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// A panic of the host's own code in one consumer's lane is that consumer's halt.
func TestPanicIsOfOneConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(50)
		st.Append(events...)
		m := counter("broken")
		m.handle = func(*fake.Call, *abi.Entry) (abi.Status, *plugins.Failure) { panic("a bug") }
		h := start(t, st, nil, m, counter("good"))
		synctest.Wait()
		s := status(t, h, "broken")
		require.Equal(t, host.StateHalted, s.State)
		require.Contains(t, s.Halt.Message, "a bug")
		require.Equal(t, want(events), seen(st, "good"))
		require.NoError(t, h.stop())
	})
}

// A slow guest holds nobody up, and a stop does not wait for more than the call
// it is in.
func TestSlowConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(2000)
		st.Append(events...)
		slow := counter("slow")
		slow.before = func(context.Context, int) error {
			time.Sleep(time.Second) // virtual time
			return nil
		}
		h := start(t, st, func(c *host.Config) { c.QueueBytes, c.Batch, c.Lanes = 1, 1, 1 }, slow, counter("fast"))
		began := time.Now()
		require.NoError(t, h.WaitApplied(t.Context(), projection("fast"), store.EventsTopic, 2000, host.AllPartitions))
		require.Zero(t, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := h.WaitApplied(ctx, projection("slow"), store.EventsTopic, 2000, host.AllPartitions)
		var behind *host.NotCaughtUpError
		require.ErrorAs(t, err, &behind)
		require.NotEmpty(t, behind.Lagging)
		began = time.Now()
		require.NoError(t, h.stop())
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		applied := len(strings.Fields(strings.Join(slices.Collect(maps.Values(seen(st, "slow"))), " ")))
		require.InDelta(t, 5, applied, 1)
	})
}

// A stop waits for the batch in hand, but not for ever; the leases are given
// back all the same.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		st.Append(someEvents(10)...)
		st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" {
				return &store.TransientError{Op: "apply", Err: errors.New("disk full")}, nil
			}
			return nil, nil
		})
		h := start(t, st, nil, counter("c"))
		time.Sleep(20 * time.Second) // virtual time
		s := status(t, h, "c")
		require.Equal(t, host.StateRetrying, s.State)
		require.Contains(t, s.Reason, "disk full")
		ready, reasons := h.Ready()
		require.False(t, ready)
		require.Contains(t, reasons[0], "disk full")
		began := time.Now()
		require.NoError(t, h.stop())
		require.Equal(t, host.DefaultConfig().ShutdownTimeout, time.Since(began))
		require.Zero(t, st.Instances())
	})
}

// What the database refuses of one message's data is found among the others by
// halving, and halts the consumer there.
func TestRefusedData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(500)
		events[333].Type = "bad"
		events[333].AggregateID = "own"
		st.Append(events...)
		m := counter("c")
		m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			status, fail := count(c, e)
			if e.TypeName == "bad" {
				c.Begin(abi.OpPatch, 0, "", "")
				c.Ops.Text(1, fake.Poison)
			}
			return status, fail
		}
		h := start(t, st, nil, m)
		time.Sleep(time.Minute) // virtual time
		s := status(t, h, "c")
		require.Equal(t, host.StateHalted, s.State)
		require.Equal(t, int(abi.CodeData), s.Halt.Code)
		require.Equal(t, int64(334), s.Halt.Position)
		require.Equal(t, "own", s.Halt.Key)
		require.NoError(t, h.stop())
	})
}

// A declaration that is not the stored one's halts its consumer only; the
// history it cannot have any more does too.
func TestDeclarationChangedAndMissingHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(30)
		st.Append(events...)
		h := start(t, st, nil, counter("c"))
		synctest.Wait()
		require.NoError(t, h.stop())

		st.Truncate(10)
		changed := counter("c")
		changed.manifest.Consumers[0].Tables[0].Columns = append(changed.manifest.Consumers[0].Tables[0].Columns, abi.Column{Name: "new", Kind: abi.ColumnInt})
		h = start(t, st, nil, changed, counter("late"))
		synctest.Wait()
		s := status(t, h, "c")
		require.Equal(t, host.StatePending, s.State)
		require.Contains(t, s.Reason, "tables")
		time.Sleep(time.Minute) // virtual time: nobody else runs it either
		require.Equal(t, store.HaltDeclarationChanged, status(t, h, "c").Halt.Reason)
		require.Equal(t, store.HaltMissingHistory, status(t, h, "late").Halt.Reason)
		require.NoError(t, h.stop())
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	st := fake.NewStore(partitions)
	_, err := newHost(t, st, nil, counter("a"), counter("b", "a"))
	require.ErrorContains(t, err, "projection/a is already declared by plugin plugin0")
	saga := counter("a")
	saga.manifest.Consumers[0].Type = abi.Saga
	_, err = newHost(t, st, nil, saga)
	require.ErrorContains(t, err, "projections only")
	_, err = newHost(t, st, func(c *host.Config) { c.Poll, c.BatchMax = 0, -1 })
	require.ErrorContains(t, err, "poll must be positive")
	require.ErrorContains(t, err, "batch_max must be positive")

	unknown := counter("a")
	unknown.manifest.Consumers[0].Inputs[0].Topic = "nowhere"
	h, err := newHost(t, st, nil, unknown)
	require.NoError(t, err)
	require.ErrorContains(t, h.Run(t.Context()), `reads topic "nowhere"`)
	require.ErrorContains(t, h.Run(t.Context()), "once")
	require.ErrorIs(t, h.WaitApplied(t.Context(), projection("zzz"), "events", 1, 0), host.ErrUnknownConsumer)
	require.ErrorIs(t, h.WaitApplied(t.Context(), projection("a"), "events", 1, 0), host.ErrNotAnInput)
}
