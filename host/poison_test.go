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

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// poisoned are events of seven keys, of which number bad (from 0) says how to
// fail.
func poisoned(n, bad int, how string) iter.Seq[samples.Event] {
	return func(yield func(samples.Event) bool) {
		for i := range n {
			e := samples.Event{
				ID: [16]byte{0: 1, 14: byte(i >> 8), 15: byte(i)}, AggregateType: "account", AggregateID: fmt.Sprint("k", i%7),
				Type: "thing", Data: fmt.Appendf(nil, `{"n":%d}`, i), OccurredUS: int64(i),
			}
			if i == bad {
				e.Data = fmt.Appendf(nil, `{"fail":%q}`, how)
			}
			if !yield(e) {
				return
			}
		}
	}
}

// Promise P5 with a real guest: whatever it does to itself, its consumer halts
// at that message with the class and the guest's own words, everything before
// it is applied, a neighbour notices nothing, and a new start comes to the same.
func TestPoison(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	wasm := guest.Build(t, "testplugins/poison")
	poison := loadPlugin(t, engine, "poison", wasm, nil)
	accounts := loadPlugin(t, engine, "accounts", guest.Build(t, "testplugins/accounts"), nil)
	const events, bad = 300, 150
	for how, want := range map[string]struct {
		code abi.Status
		says string
	}{
		"reject":    {abi.StatusReject, "the message says so"},
		"error":     {abi.StatusReject, "a handler's error"},
		"fatal":     {abi.StatusFatal, "the message says so"},
		"retry":     {abi.StatusRetry, "not now"},
		"panic":     {abi.CodeTrap, "the message says so"},
		"nil":       {abi.CodeTrap, "nil"},
		"index":     {abi.CodeTrap, "index out of range"},
		"scale":     {abi.StatusReject, "amount"},
		"precision": {abi.CodeMalformed, "amount"},
		"nul":       {abi.CodeMalformed, ""},
		"memory":    {0, ""},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			st := openSQLite(t, filepath.Join(t.TempDir(), "p.db"))
			last := importAll(t, st, poisoned(events, bad, how))
			for range 2 {
				h := haltedHost(t, st, poison, accounts)
				require.NoError(t, h.WaitApplied(t.Context(), projection("accounts"), store.EventsTopic, last, host.AllPartitions))
				require.NoError(t, h.stop())
				con, err := st.Consumer(t.Context(), projection("poison"))
				require.NoError(t, err)
				require.NotNil(t, con.Halt)
				require.Equal(t, int64(bad+1), con.Halt.Position)
				require.Equal(t, fmt.Sprint("k", bad%7), con.Halt.Key)
				require.Contains(t, con.Halt.Message, want.says)
				if want.code != 0 {
					require.Equal(t, int(want.code), con.Halt.Code, con.Halt.Message)
				}
				for _, row := range rowsOf(t, st, "poison", "poison") {
					values, err := abi.ReadRow(row.Row, nil)
					require.NoError(t, err)
					if row.Key.Key == con.Halt.Key {
						require.Equal(t, int64(bad/7), values[0].I, "messages of the key before the bad one")
					}
				}
			}
			require.NoError(t, st.Close())
		})
	}
}

// haltedHost runs plugins until the consumer "poison" has halted.
func haltedHost(t *testing.T, st store.Store, ps ...host.Plugin) running {
	t.Helper()
	cfg := host.DefaultConfig()
	cfg.RetryMin, cfg.RetryMax = time.Millisecond, time.Millisecond
	cfg.Delivery.Backoff, cfg.Delivery.MaxTransient = retry.Policy{Min: time.Millisecond, Max: time.Millisecond}, 3
	h, err := host.New(host.Deps{Store: st, Plugins: ps, Log: hclog.NewNullLogger()}, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop := func() error {
		cancel()
		return <-done
	}
	err = h.WaitApplied(t.Context(), projection("poison"), store.EventsTopic, 1<<40, 0)
	var halted *host.HaltedError
	require.ErrorAs(t, err, &halted)
	return running{h, stop}
}

// A guest that loops is stopped by its time limit; doing so alone, on a fresh
// instance, it halts its consumer.
func TestPoisonLoops(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	// Interpreted under the race detector on a busy machine, a guest takes
	// seconds for what it does in milliseconds.
	limit := 2 * time.Second
	if testing.Short() {
		limit = 8 * time.Second
	}
	poison := loadPlugin(t, engine, "poison", guest.Build(t, "testplugins/poison"), func(s *plugins.Settings) {
		s.Timeout = limit
	})
	st := openSQLite(t, filepath.Join(t.TempDir(), "p.db"))
	importAll(t, st, poisoned(100, 60, "loop"))
	require.NoError(t, haltedHost(t, st, poison).stop())
	con, err := st.Consumer(t.Context(), projection("poison"))
	require.NoError(t, err)
	require.Equal(t, int(abi.CodeDeadline), con.Halt.Code, con.Halt.Message)
	require.Equal(t, int64(61), con.Halt.Position)
	require.NoError(t, st.Close())
}
