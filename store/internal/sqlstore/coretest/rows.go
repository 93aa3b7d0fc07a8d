package coretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// A consumer whose halt somebody has spoilt stays halted and says so. Nobody else
// notices.
func spoiltHalt(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	for _, name := range []string{"p", "q"} {
		_, err := h.Store.Subscribe(d.ctx(), declare(t, name, "t"+name))
		require.NoError(t, err)
	}
	require.NoError(t, h.Engine.Write(d.ctx(), "spoil", func(conn sqlstore.Conn) error {
		_, err := conn.Exec(d.ctx(), h.SQL(`UPDATE {{consumers}} SET state = {{?}}, state_since_us = 7, halt = {{?}} WHERE name = {{?}}`), "halted", `{"reason`, "p")
		return err
	}))
	survey, err := h.Store.Survey(d.ctx(), nil)
	require.NoError(t, err)
	require.Len(t, survey.Consumers, 2)
	list, err := h.Store.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, halt := range []*store.Halt{survey.Consumers[0].Halt, list[0].Halt} {
		require.Equal(t, store.HaltUnknown, halt.Reason)
		require.Contains(t, halt.Message, "does not read")
		require.EqualValues(t, 7, halt.AtUS)
	}
	require.Equal(t, store.StateRunning, survey.Consumers[1].State)
	require.NoError(t, h.Store.Resume(d.ctx(), list[0].ID, 0, "me"))
}
