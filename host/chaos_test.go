package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
	"github.com/projhost/projhost/store/storetest/faultstore"
)

var chaos = flag.Int("chaos", 12, "how many seeds of random faults are tried")

// family declares a parent table with a child table, and a guest that reads
// what it writes: every row depends on all that was there before.
func family(name string) *module {
	m := &module{digest: "sha256:1", manifest: abi.Manifest{ABI: 1, Name: name, Version: "1", Consumers: []abi.Consumer{{
		Type: abi.Projection, Name: name,
		Inputs: []abi.Input{{Topic: store.EventsTopic, Types: []string{"*"}, Key: abi.KeyRule{Kind: abi.KeyAggregateID}}},
		Tables: []abi.Table{
			{Name: name, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}, {Name: "seen", Kind: abi.ColumnText}}},
			{Name: name + "_parts", Parent: name, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
		},
	}}}}
	m.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		do, arg := scriptOf(e.Data)
		switch do {
		case "count":
			n := int64(0)
			if v := c.Values(0, "", ""); v != nil {
				n = v[0].I
			}
			c.Begin(abi.OpUpsert, 0, "", "")
			c.Ops.Int(0, n+1)
			c.Ops.Text(1, fmt.Sprint(e.Position))
		case "part":
			n := int64(1)
			if v := c.Values(1, "", arg); v != nil {
				n = v[0].I * 2
			}
			c.Begin(abi.OpUpsert, 1, "", arg)
			c.Ops.Int(0, n)
		case "toggle":
			if c.Get(1, "", arg) != nil {
				c.Begin(abi.OpDelete, 1, "", arg)
			} else {
				c.Begin(abi.OpInsert, 1, "", arg)
				c.Ops.Int(0, int64(e.Position))
			}
		case "list":
			c.Begin(abi.OpPatch, 0, "", "")
			c.Ops.Text(1, strings.Join(c.List(1, "", arg, 3), " "))
		case "add":
			c.Begin(abi.OpAdd, 0, "", "")
			c.Ops.Int(0, 10)
		case "clear":
			c.Begin(abi.OpDeleteChildren, 1, "", "")
		case "delete":
			c.Begin(abi.OpDelete, 0, "", "")
		case "refuse": // after it has changed something
			c.Begin(abi.OpDelete, 0, "", "")
			return abi.StatusReject, nil
		}
		return abi.StatusOK, nil
	}
	return m
}

func scriptOf(data []byte) (do, arg string) {
	var s [2]string
	_ = json.Unmarshal(data, &s)
	return s[0], s[1]
}

// foldFamily is what family leaves, one event after the other: "n seen" by key
// and "n" by key/child.
func foldFamily(events []store.Event) map[string]string {
	type parent struct {
		n    int64
		seen string
	}
	parents, parts := map[string]*parent{}, map[string]map[string]int64{}
	own := func(key string) *parent {
		if parents[key] == nil {
			parents[key] = &parent{}
		}
		return parents[key]
	}
	for i := range events {
		e := &events[i]
		key := e.AggregateID
		if parts[key] == nil {
			parts[key] = map[string]int64{}
		}
		switch do, arg := scriptOf(e.Data); do {
		case "count":
			own(key).n++
			own(key).seen = fmt.Sprint(e.Position)
		case "part":
			if n, ok := parts[key][arg]; ok {
				parts[key][arg] = n * 2
			} else {
				parts[key][arg] = 1
			}
		case "toggle":
			if _, ok := parts[key][arg]; ok {
				delete(parts[key], arg)
			} else {
				parts[key][arg] = e.Position
			}
		case "list":
			var children []string
			for _, child := range slices.Sorted(maps.Keys(parts[key])) {
				if child > arg && len(children) < 3 {
					children = append(children, child)
				}
			}
			own(key).seen = strings.Join(children, " ")
		case "add":
			own(key).n += 10
		case "refuse": // as it is once it is mended
			own(key).n += 1000
		case "clear":
			parts[key] = nil
		case "delete":
			delete(parents, key)
			parts[key] = nil
		}
	}
	out := map[string]string{}
	for key, p := range parents {
		out[key] = fmt.Sprint(p.n, " ", p.seen)
	}
	for key, children := range parts {
		for child, n := range children {
			out[key+"/"+child] = fmt.Sprint(n)
		}
	}
	return out
}

// Promises P1 and P4 with many faults at once: every few calls of the store
// fail, alone and in a row, in every way, also while the host starts, halts and
// stops; hosts come and go, caches hold nothing or everything, and messages are
// refused until the module is mended, and all is rebuilt. In the end the rows are those of one fold
// and all checkpoints are at the end of the log.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	seeds := *chaos
	if testing.Short() {
		seeds = min(seeds, 3)
	}
	// On a busy machine the faults of one seed may all come too late.
	var faults atomic.Int64
	t.Cleanup(func() { require.Positive(t, faults.Load()) })
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			faults.Add(manyFaults(t, rand.New(rand.NewPCG(uint64(seed), 9))))
		})
	}
}

// manyFaults is the life of one database; it returns how many faults there were.
func manyFaults(t *testing.T, random *rand.Rand) int64 {
	const parts = 8
	path := filepath.Join(t.TempDir(), "p.db")
	open := func() *sqlite.Store {
		// The wall clock jumps from one life to the next.
		jump := time.Duration(rand.IntN(100)-50) * time.Hour
		inner, err := sqlite.Open(t.Context(), sqlite.Options{DSN: path, Partitions: parts,
			Now: func() time.Time { return time.Now().Add(jump) }})
		require.NoError(t, err)
		return inner
	}
	words := []string{"count", "count", "part", "part", "part", "toggle", "toggle", "list", "add", "clear", "delete", "refuse"}
	var events []store.Event
	var lines []store.ImportEvent
	for i := range 400 {
		word := words[random.IntN(len(words))]
		if word == "refuse" && random.IntN(8) > 0 {
			word = "count"
		}
		e := store.Event{Position: int64(i + 1), AggregateID: fmt.Sprintf("k%d", random.IntN(6)),
			Data: fmt.Appendf(nil, `[%q,"c%02d"]`, word, random.IntN(12))}
		events = append(events, e)
		lines = append(lines, store.ImportEvent{AggregateType: "a", AggregateID: e.AggregateID,
			NewEvent: store.NewEvent{ID: store.ID{0: 1, 14: byte(i >> 8), 15: byte(i)}, HasID: true, Type: "T", Data: e.Data}})
	}

	var faults atomic.Int64
	arm := func(st *faultstore.Store, random *rand.Rand) {
		faults.Add(int64(len(st.Fired())))
		st.Inject(faultstore.Fault{At: 1 + random.IntN(12), Times: 1 + random.IntN(3), Mode: faultstore.Mode(random.IntN(3)),
			NewIncarnation: random.IntN(3) == 0})
	}
	mended := map[string]bool{} // by event
	var mending sync.Mutex
	module := family("family")
	handle := module.handle
	module.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		mending.Lock()
		good := mended[fmt.Sprint(e.Position)]
		mending.Unlock()
		if do, _ := scriptOf(e.Data); do == "refuse" && good {
			c.Begin(abi.OpAdd, 0, "", "")
			c.Ops.Int(0, 1000)
			return abi.StatusOK, nil
		}
		return handle(c, e)
	}

	sent, rebuilds := 0, 0
	for life := 0; ; life++ {
		require.Less(t, life, 500, "it does not come to an end")
		inner := open() // a new process: what an earlier one held is free
		st := faultstore.New(inner)
		cfg := host.DefaultConfig()
		cfg.Batch, cfg.PageMessages, cfg.Lanes, cfg.CacheBytes = 1+random.IntN(30), 1+random.IntN(40), 1+random.IntN(3), random.IntN(2)*(1<<20)
		cfg.RetryMin, cfg.RetryMax, cfg.Poll, cfg.IdleSave = time.Millisecond, 2*time.Millisecond, 5*time.Millisecond, 20*time.Millisecond
		h, err := host.New(host.Deps{Store: st, Plugins: []host.Plugin{{Name: "family", Module: module}}, Log: hclog.NewNullLogger()}, cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()

		for sent < len(lines) && sent < 40*(life+1) {
			next := min(sent+1+random.IntN(40), len(lines))
			_, err := inner.Import(t.Context(), lines[sent:next])
			require.NoError(t, err)
			sent = next
		}
		last := sent == len(lines) && random.IntN(3) == 0
		if random.IntN(4) == 0 {
			switch err := inner.RebuildInPlace(t.Context(), projection("family"), store.Rebuild{Actor: "me"}); {
			case err == nil:
				rebuilds++
			default:
				require.ErrorIs(t, err, store.ErrNotFound, "it has not subscribed yet")
			}
		}
		// How long a life is, and when the next fault comes, is random: nothing
		// here waits for it.
		limit := time.Duration(1+random.IntN(60)) * time.Millisecond
		if last {
			limit = 20 * time.Second
		}
		until, ended := context.WithTimeout(ctx, limit)
		tick := time.NewTicker(time.Millisecond)
		stopped := make(chan struct{})
		go func(random *rand.Rand) {
			defer close(stopped)
			for {
				select {
				case <-until.Done():
					return
				case <-tick.C:
					if !last {
						arm(st, random)
					}
				}
			}
		}(rand.New(rand.NewPCG(random.Uint64(), 0)))
		err = h.WaitApplied(until, projection("family"), store.EventsTopic, int64(len(lines)), host.AllPartitions)
		complete := err == nil
		for complete && last {
			con, err := inner.Consumer(t.Context(), projection("family"))
			require.NoError(t, err)
			held, err := inner.ListUndelivered(t.Context(), store.UndeliveredQuery{})
			require.NoError(t, err)
			if con.State == store.StateRunning && len(held) == 0 {
				break // what is rebuilt is pruned, and what was held is let go
			}
			select {
			case <-until.Done():
				complete = false
			case <-tick.C:
				complete = h.Halted(projection("family")) == nil
			}
		}
		ended()
		<-stopped
		tick.Stop()
		status, err := h.Status(t.Context())
		if err == nil && status.Consumers[0].Halt != nil {
			halt := status.Consumers[0].Halt
			require.Equal(t, store.HaltApplyError, halt.Reason, halt.Message)
			require.Equal(t, int(abi.StatusReject), halt.Code, halt.Message)
			mending.Lock()
			mended[fmt.Sprint(halt.Position)] = true
			mending.Unlock()
			// It may not be recorded yet, or gone on already.
			var state *store.StateError
			if err := inner.Resume(t.Context(), projection("family"), 0, "me"); !errors.As(err, &state) {
				require.NoError(t, err)
			}
		}
		if last && !complete && status.Consumers[0].Halt == nil {
			t.Fatalf("life %d: %+v", life, status.Consumers[0].Reason)
		}
		cancel()
		if err := <-done; err != nil {
			require.ErrorIs(t, err, faultstore.ErrInjected)
		}
		require.NoError(t, inner.Close())
		if complete && last {
			break
		}
	}
	inner := open()
	defer inner.Close()
	t.Logf("%d faults, %d messages refused, %d rebuilds", faults.Load(), len(mended), rebuilds)

	got := map[string]string{}
	for _, row := range rowsOf(t, inner, "family", "family") {
		values, err := abi.ReadRow(row.Row, nil)
		require.NoError(t, err)
		got[row.Key.Key] = fmt.Sprint(values[0].I, " ", string(values[1].B))
	}
	for _, row := range rowsOf(t, inner, "family", "family_parts") {
		values, err := abi.ReadRow(row.Row, nil)
		require.NoError(t, err)
		got[row.Key.Key+"/"+row.Child] = fmt.Sprint(values[0].I)
	}
	require.Equal(t, foldFamily(events), got)
	con, err := inner.Consumer(t.Context(), projection("family"))
	require.NoError(t, err)
	checkpoints, err := inner.Checkpoints(t.Context(), con.Build)
	require.NoError(t, err)
	require.Len(t, checkpoints, parts)
	for _, c := range checkpoints {
		require.Equal(t, int64(len(lines)), c.Position, "partition %d", c.Partition)
	}
	return faults.Load()
}
