package host_test

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
	"github.com/projhost/projhost/testplugins/loans/oracle"
)

func openSQLite(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	st, err := sqlite.Open(t.Context(), sqlite.Options{DSN: path})
	require.NoError(t, err)
	return st
}

func loadPlugin(t testing.TB, engine *plugins.Engine, name string, wasm []byte, set func(*plugins.Settings)) host.Plugin {
	t.Helper()
	settings := plugins.DefaultSettings(name)
	if set != nil {
		set(&settings)
	}
	m, err := engine.Load(t.Context(), wasm, settings)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close(context.Background()) })
	return host.Plugin{Name: name, Module: host.ModuleOf(m), Config: settings.Config}
}

func newEngine(t testing.TB) *plugins.Engine {
	t.Helper()
	// Compiling is what takes long, most of all under the race detector.
	mode := plugins.Compile
	if testing.Short() {
		mode = plugins.Interpret
	}
	engine, err := plugins.NewEngine(t.TempDir(), hclog.NewNullLogger(), mode)
	require.NoError(t, err)
	t.Cleanup(func() { engine.Close(context.Background()) })
	return engine
}

func imported(e samples.Event) store.ImportEvent {
	return store.ImportEvent{
		AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		NewEvent: store.NewEvent{
			ID: e.ID, HasID: true, Type: e.Type, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS, HasOccurred: true,
		},
	}
}

// importAll appends a sequence of events in batches, and returns the last
// position.
func importAll(t testing.TB, st store.Store, events iter.Seq[samples.Event]) (last int64) {
	t.Helper()
	var batch []store.ImportEvent
	flush := func() {
		if len(batch) == 0 {
			return
		}
		r, err := st.Import(t.Context(), batch)
		require.NoError(t, err)
		last, batch = r.LastPosition, batch[:0]
	}
	for e := range events {
		if batch = append(batch, imported(e)); len(batch) == 1000 {
			flush()
		}
	}
	flush()
	return last
}

// runUntil runs a host until its consumers have applied up to a position.
func runUntil(t testing.TB, st store.Store, ps []host.Plugin, set func(*host.Config), last int64) time.Duration {
	t.Helper()
	cfg := host.DefaultConfig()
	if set != nil {
		set(&cfg)
	}
	h, err := host.New(host.Deps{Store: st, Plugins: ps, Log: hclog.NewNullLogger()}, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- h.Run(ctx) }()
	for _, p := range ps {
		for _, c := range p.Module.Manifest().Consumers {
			require.NoError(t, h.WaitApplied(ctx, store.ConsumerID{Type: c.Type, Name: c.Name}, store.EventsTopic, last, host.AllPartitions))
		}
	}
	took := time.Since(began)
	if st, err := h.Status(ctx); err == nil && testing.Verbose() {
		for _, c := range st.Consumers {
			t.Logf("%s: %+v", c.ID, c.Lanes)
		}
	}
	cancel()
	require.NoError(t, <-done)
	return took
}

// rowsOf reads all rows of a table through the store's own queries.
func rowsOf(t testing.TB, st store.Store, name, table string) []store.StoredRow {
	t.Helper()
	view, err := st.View(t.Context(), projection(name))
	require.NoError(t, err)
	defer view.Close()
	var out []store.StoredRow
	for after := ""; ; {
		rows, next, err := view.Query(t.Context(), table, store.Query{Limit: 1000, After: after})
		require.NoError(t, err)
		if out = append(out, rows...); next == "" {
			return out
		}
		after = next
	}
}

// tablesOf are the declared tables of a projection by name.
func tablesOf(t testing.TB, st store.Store, name string) map[string]*readmodel.Table {
	t.Helper()
	view, err := st.View(t.Context(), projection(name))
	require.NoError(t, err)
	defer view.Close()
	out := make(map[string]*readmodel.Table)
	for _, ref := range view.Consumer().Tables {
		out[ref.Table.Name] = ref.Table
	}
	return out
}

// Promise P7 on a real database with a real plugin: batches of 1, 7, 256 and
// adaptive ones, calls, pages, lanes and caches of several sizes, stopped and
// started in between, give the same rows to the byte, with the same positions;
// and they are those of a native fold.
func TestSameRowsInAnySplit(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	loans := loadPlugin(t, engine, "loans", guest.Build(t, "testplugins/loans"), nil)
	events := 3000
	if testing.Short() {
		events = 150
	}
	fold := oracle.New()
	for e := range samples.Loans(events) {
		require.NoError(t, fold.Add(oracle.Event{AggregateType: e.AggregateType, AggregateID: e.AggregateID,
			Type: e.Type, Data: e.Data, OccurredUS: e.OccurredUS}))
	}
	want := fold.Tables()

	var first map[string][]store.StoredRow
	for _, split := range []struct {
		batch, call, page, lanes, cache int
		restartAfter                    []int // events
	}{
		{1, 512, 1000, 2, 32 << 20, []int{events / 5}},
		{7, 3, 50, 3, 0, []int{events / 9, events / 2, events/2 + 1}},
		{256, 100, 333, 1, 1 << 16, []int{events / 3, events * 2 / 3}},
		{0, 512, 1000, 2, 32 << 20, nil},
	} {
		st := openSQLite(t, filepath.Join(t.TempDir(), "p.db"))
		set := func(c *host.Config) {
			c.Batch, c.CallMessages, c.PageMessages, c.Lanes, c.CacheBytes = split.batch, split.call, split.page, split.lanes, split.cache
		}
		last := importAll(t, st, samples.Loans(events))
		for _, at := range append(split.restartAfter, int(last)) {
			runUntil(t, st, []host.Plugin{loans}, set, int64(at))
		}
		got := make(map[string][]store.StoredRow)
		for _, name := range []string{"applications", "resources"} {
			for table, declared := range tablesOf(t, st, name) {
				got[table] = rowsOf(t, st, name, table)
				require.Len(t, got[table], len(want[table]), "%s, batch %d", table, split.batch)
				for i, row := range got[table] {
					w := want[table][i]
					require.Equal(t, w, oracle.Row{Key: row.Key.Key, Child: row.Child, JSON: string(declared.AppendJSON(nil, row.Row))})
				}
			}
		}
		require.Len(t, got, 3)
		if first == nil {
			first = got
		}
		require.Equal(t, first, got, "batch %d", split.batch)
		require.NoError(t, st.Close())
	}
}

// BenchmarkAccounts applies the demo's workload on SQLite with the Go plugin:
// 100,000 events over 10,000 accounts. The metric is events a second.
func BenchmarkAccounts(b *testing.B) {
	wasm := guest.Build(b, "testplugins/accounts")
	engine := newEngine(b)
	const events = 100_000
	for _, lanes := range []int{1, 2} {
		for _, timeout := range []time.Duration{0, plugins.DefaultTimeout} {
			b.Run(fmt.Sprintf("lanes=%d/timeout=%v", lanes, timeout), func(b *testing.B) {
				p := loadPlugin(b, engine, "accounts", wasm, func(s *plugins.Settings) { s.Timeout = timeout })
				for i := range b.N {
					b.StopTimer()
					st := openSQLite(b, filepath.Join(b.TempDir(), fmt.Sprint(i, ".db")))
					last := importAll(b, st, samples.Accounts(events, samples.AccountsDefault))
					b.StartTimer()
					took := runUntil(b, st, []host.Plugin{p}, func(c *host.Config) { c.Lanes = lanes }, last)
					b.StopTimer()
					b.ReportMetric(events/took.Seconds(), "events/s")
					require.NoError(b, st.Close())
				}
			})
		}
	}
}
