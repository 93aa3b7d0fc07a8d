package host_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// Effects of a message that was undelivered when a rebuild began are owed: it is told
// as new. One that fails while it is replayed had them before, and its retry is told
// so, also after the rebuild.
func TestReplayIsToldByEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(50)
		events[10].AggregateID, events[20].AggregateID = "owed", "late"
		st.Append(events[:40]...)
		var m mending
		m.set(11, abi.StatusReject)
		h := start(t, st, exhausted("dead_letter_key"), m.counter("c"))
		time.Sleep(30 * time.Second)
		m.mend()
		m.set(11, 0)
		m.set(21, abi.StatusReject)
		rebuild(t, st, "c")
		h.Look()
		time.Sleep(20 * time.Second)
		st.Append(events[40:]...)
		m.set(21, 0)
		_, err := st.RetryUndelivered(t.Context(), projection("c"), store.Selection{Key: "late"}, me())
		require.NoError(t, err)
		h.Look()
		time.Sleep(20 * time.Second)
		require.Equal(t, want(events), seen(st, "c"))
		yes, no := m.flags()
		for i := range events {
			position := uint64(i + 1)
			replayed := position <= 40 && position != 11
			require.Equal(t, replayed, yes[position], "%d", position)
			require.Equal(t, !replayed, no[position], "%d", position)
		}
		// What was owed has been had: it is not again.
		m.mend()
		rebuild(t, st, "c")
		h.Look()
		time.Sleep(20 * time.Second)
		yes, no = m.flags()
		require.Len(t, yes, 50)
		require.Empty(t, no)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// A consumer that ignores what is replayed is not given it, and has no rows of it.
func TestIgnoreOnReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(50)
		st.Append(events[:40]...)
		var m mending
		mod := m.counter("c")
		mod.manifest.Consumers[0].IgnoreOnReplay = true
		h := start(t, st, nil, mod)
		time.Sleep(30 * time.Second)
		require.Equal(t, want(events[:40]), seen(st, "c"))
		m.mend()
		rebuild(t, st, "c")
		h.Look()
		time.Sleep(20 * time.Second)
		require.Empty(t, seen(st, "c"))
		st.Append(events[40:]...)
		time.Sleep(10 * time.Second)
		yes, no := m.flags()
		require.Empty(t, yes)
		require.Len(t, no, 10)
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// Rows of a free table are of no message's key, so nothing is pruned before no message
// holds the whole table.
func TestRebuildOfAFreeTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := fake.NewStore(partitions)
		events := someEvents(40)
		st.Append(events...)
		var mended atomic.Bool
		var f faults
		mod := f.counter("c")
		mod.manifest.Consumers[0].Distribution = abi.SingleOwner
		mod.manifest.Consumers[0].Tables[0].Free = true
		mod.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
			f.mu.Lock()
			status := f.bad[e.Position]
			f.mu.Unlock()
			if status != 0 {
				return status, nil
			}
			key := fmt.Sprint("row", e.Position%7)
			if !mended.Load() {
				key = fmt.Sprint("row", e.Position%11)
			}
			c.Begin(abi.OpUpsert, 0, key, "")
			c.Ops.Int(0, int64(e.Position))
			return abi.StatusOK, nil
		}
		h := start(t, st, exhausted("dead_letter_key"), mod)
		time.Sleep(30 * time.Second)
		require.Len(t, st.Rows(projection("c"), 0), 11)
		mended.Store(true)
		f.set(40, abi.StatusRetry)
		rebuild(t, st, "c")
		h.Look()
		time.Sleep(30 * time.Second)
		require.Equal(t, host.StateRebuilding, status(t, h, "c").State)
		require.Len(t, st.Rows(projection("c"), 0), 11)
		f.set(40, 0)
		time.Sleep(time.Minute)
		require.Equal(t, host.StateRunning, status(t, h, "c").State)
		require.Len(t, st.Rows(projection("c"), 0), 7)
		require.Empty(t, st.Stale(projection("c")))
		require.NoError(t, h.stop())
		require.Empty(t, st.Problems())
	})
}

// A value of a unique column that a row of before the rebuild has is another's now: on
// a real database, which minds.
func TestRebuildMovesUniqueValues(t *testing.T) {
	t.Parallel()
	st, err := sqlite.Open(t.Context(), sqlite.Options{DSN: filepath.Join(t.TempDir(), "p.db"), Partitions: 4})
	require.NoError(t, err)
	defer st.Close()
	const keys = 9
	for i := range keys {
		_, err := st.Import(t.Context(), []store.ImportEvent{{AggregateType: "a", AggregateID: fmt.Sprint("k", i),
			NewEvent: store.NewEvent{ID: store.ID{0: 1, 15: byte(i)}, HasID: true, Type: "T", Data: fmt.Append(nil, i)}}})
		require.NoError(t, err)
	}
	var mended atomic.Bool
	mod := counter("c")
	mod.manifest.Consumers[0].Distribution = abi.SingleOwner
	mod.manifest.Consumers[0].Tables[0].Columns = []abi.Column{{Name: "mail", Kind: abi.ColumnText, Max: 20, Unique: true}}
	mod.handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		n := int(e.Data[0] - '0')
		if !mended.Load() {
			n = (n + 1) % keys // another's
		}
		c.Begin(abi.OpUpsert, 0, "", "")
		c.Ops.Text(0, fmt.Sprint("mail", n))
		return abi.StatusOK, nil
	}
	cfg := host.DefaultConfig()
	cfg.Batch, cfg.Poll = 2, 10*time.Millisecond
	h, err := host.New(host.Deps{Store: st, Plugins: []host.Plugin{{Name: "c", Module: mod}}, Log: hclog.NewNullLogger()}, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	require.NoError(t, h.WaitApplied(ctx, projection("c"), store.EventsTopic, keys, host.AllPartitions))
	mended.Store(true)
	require.NoError(t, st.RebuildInPlace(ctx, projection("c"), store.Rebuild{Actor: "me"}))
	h.Look()
	require.Eventually(t, func() bool {
		con, err := st.Consumer(ctx, projection("c"))
		return err == nil && con.State == store.StateRunning
	}, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	got := map[string]string{}
	for _, row := range rowsOf(t, st, "c", "c") {
		values, err := abi.ReadRow(row.Row, nil)
		require.NoError(t, err)
		got[row.Key.Key] = string(values[0].B)
	}
	want := map[string]string{}
	for i := range keys {
		want[fmt.Sprint("k", i)] = fmt.Sprint("mail", i)
	}
	require.Equal(t, want, got)
	undelivered, err := st.ListUndelivered(t.Context(), store.UndeliveredQuery{})
	require.NoError(t, err)
	require.Empty(t, undelivered)
}
