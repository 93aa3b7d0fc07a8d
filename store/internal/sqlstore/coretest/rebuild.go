package coretest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// A host dies anywhere while it begins a rebuild, says what is pruned, or ends it:
// each has happened whole or not at all, and another host goes on from there.
func rebuildDies(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	m := &mortal{Engine: h.Engine}
	c, err := sqlstore.New(m, h.Dialect, h.Opt)
	require.NoError(t, err)
	m.dieAt(1 << 30)
	require.NoError(t, c.Initialize(d.ctx(), "1"))
	con, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "t"))
	require.NoError(t, err)
	require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "i"}))
	e := store.Event{Position: 1, AggregateType: "a", AggregateID: "b", Sequence: 1, Type: "E", Codec: store.DefaultCodec, CodecVersion: 1, Data: []byte(`{}`)}
	all := []int{0, 1, 2, 3}
	for n, began, ended := rand.N(stride), 0, 0; ; n += stride {
		state := func() (c store.Consumer, undelivered int) {
			c, err := h.Store.Consumer(d.ctx(), con.ID)
			require.NoError(t, err)
			points, err := h.Store.Checkpoints(d.ctx(), con.Build)
			require.NoError(t, err)
			require.Len(t, points, len(all))
			for _, p := range points {
				require.Equal(t, c.Epoch, p.Epoch, "after %d steps", n)
				if c.State == store.StateRunning {
					require.False(t, p.Rebuilding(), "after %d steps", n)
				}
			}
			list, err := h.Store.ListUndelivered(d.ctx(), store.UndeliveredQuery{Consumer: con.ID})
			require.NoError(t, err)
			return c, len(list)
		}
		done := func(leases []store.Lease, epoch int64) store.Pruned {
			return store.Pruned{Consumer: con.ID, Build: con.Build, Epoch: epoch, InstanceID: "i", Leases: leases}
		}
		before, _ := state()
		require.Equal(t, store.StateRunning, before.State)
		leases, _, err := h.Store.Claim(d.ctx(), "i", con.Build, all)
		require.NoError(t, err)
		require.NoError(t, h.Store.Apply(d.ctx(), &store.Batch{Consumer: con.ID, Build: con.Build, Epoch: before.Epoch, InstanceID: "i",
			Incarnation: h.Store.Incarnation(), Leases: leases[1:2],
			Records: []store.Record{{Topic: store.EventsTopic, Partition: 1, Key: "k", Status: store.StatusFailed, Event: &e}}}))

		m.dieAt(n)
		_ = c.RebuildInPlace(d.ctx(), con.ID, store.Rebuild{Actor: "ops"})
		now, undelivered := state()
		if now.Epoch == before.Epoch {
			require.Equal(t, []any{store.StateRunning, 1}, []any{now.State, undelivered}, "after %d steps", n)
			require.NoError(t, h.Store.RebuildInPlace(d.ctx(), con.ID, store.Rebuild{Actor: "ops"}))
			now, undelivered = state()
		} else {
			began++
		}
		require.Equal(t, []any{before.Epoch + 1, store.StateRebuilding, 0}, []any{now.Epoch, now.State, undelivered}, "after %d steps", n)
		leases, _, err = h.Store.Claim(d.ctx(), "i", con.Build, all)
		require.NoError(t, err)
		replayed := &store.Batch{Consumer: con.ID, Build: con.Build, Epoch: now.Epoch, InstanceID: "i", Incarnation: h.Store.Incarnation(), Leases: leases}
		for _, p := range all { // as far as any engine's mark is
			replayed.Checkpoints = append(replayed.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, To: 10})
		}
		require.NoError(t, h.Store.Apply(d.ctx(), replayed))
		_, _ = c.Pruned(d.ctx(), done(leases[:2], now.Epoch))
		_, _ = c.Pruned(d.ctx(), done(leases[2:], now.Epoch))
		died := m.died()
		if after, _ := state(); after.State == store.StateRunning {
			ended++
		} else {
			ended, err := h.Store.Pruned(d.ctx(), done(leases, now.Epoch))
			require.NoError(t, err)
			require.True(t, ended, "after %d steps", n)
		}
		// What is undelivered of the next round is another row.
		_, err = h.Store.DeleteUndelivered(d.ctx(), con.ID, store.Selection{}, store.Action{Actor: "ops"})
		require.NoError(t, err)
		if !died {
			require.Greater(t, n, 20, "the host died at many places")
			require.Positive(t, began)
			require.Positive(t, ended)
			return
		}
	}
}
