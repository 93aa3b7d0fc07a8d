package host_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
	"github.com/projhost/projhost/store/storetest/faultstore"
)

// Promise P1 on a real database: whichever call fails, before it was done,
// unknown to the caller, or after, with or without the loss of what was read,
// every message is applied exactly once and in order. A start that fails is
// made again.
func TestEveryCallFailsOnSQLite(t *testing.T) {
	t.Parallel()
	st, err := sqlite.Open(t.Context(), sqlite.Options{DSN: filepath.Join(t.TempDir(), "p.db"), Partitions: 4})
	require.NoError(t, err)
	defer st.Close()
	events := someEvents(36)
	for i := range events {
		events[i].ID = store.ID{0: 1, 15: byte(i)}
		_, err := st.Import(t.Context(), []store.ImportEvent{{
			AggregateType: events[i].AggregateType, AggregateID: events[i].AggregateID,
			NewEvent: store.NewEvent{ID: events[i].ID, HasID: true, Type: events[i].Type, Data: events[i].Data},
		}})
		require.NoError(t, err)
	}
	for _, mode := range []faultstore.Mode{faultstore.Before, faultstore.Lost, faultstore.After} {
		for _, loss := range []bool{false, true} {
			if testing.Short() && (loss || mode == faultstore.Lost) {
				continue
			}
			for k := 1; ; k++ {
				name := fmt.Sprintf("c_%s_%v_%d", mode, loss, k)
				faulty := faultstore.New(st)
				faulty.Inject(faultstore.Fault{At: k, Mode: mode, NewIncarnation: loss})
				for !applied(t, faulty, name, int64(len(events))) {
				}
				got := make(map[string]string)
				for _, row := range rowsOf(t, st, name, name) {
					values, err := abi.ReadRow(row.Row, nil)
					require.NoError(t, err)
					got[row.Key.Key] = string(values[1].B)
				}
				require.Equal(t, want(events), got, "%s, call %d: %v", mode, k, faulty.Fired())
				if len(faulty.Fired()) == 0 {
					require.Greater(t, k, 15)
					break
				}
			}
		}
	}
}

// applied runs a host until all is applied; false if it did not start.
func applied(t *testing.T, st store.Store, name string, last int64) bool {
	t.Helper()
	cfg := host.DefaultConfig()
	cfg.Batch, cfg.PageMessages, cfg.Lanes, cfg.CacheBytes = 5, 9, 2, 0
	cfg.RetryMin, cfg.RetryMax, cfg.Poll = time.Millisecond, 2*time.Millisecond, 10*time.Millisecond
	h, err := host.New(host.Deps{Store: st, Plugins: []host.Plugin{{Name: name, Module: counter(name)}}, Log: hclog.NewNullLogger()}, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waiting, giveUp := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := h.Run(ctx)
		giveUp()
		done <- err
	}()
	err = h.WaitApplied(waiting, projection(name), store.EventsTopic, last, host.AllPartitions)
	cancel()
	if run := <-done; run != nil {
		require.ErrorIs(t, run, faultstore.ErrInjected)
		return false
	}
	require.NoError(t, err)
	return true
}
