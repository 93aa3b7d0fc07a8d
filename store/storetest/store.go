package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var storeCases = []testCase{
	{"InfoTellsWhatIsFrozen", storeInfo},
	{"PartitionsAreFrozen", storePartitions},
	{"CheckOfASoundDatabase", storeCheck},
	{"ClosedStoreRefuses", storeClosed},
}

func storeInfo(t *testing.T, d *db) {
	info, err := d.Info(d.ctx())
	require.NoError(t, err)
	require.NotEmpty(t, info.Driver)
	require.NotEmpty(t, info.ServerVersion)
	require.Positive(t, info.SchemaVersion)
	require.Equal(t, 256, info.Partitions)
	require.Equal(t, store.PartitionHash, info.Hash)
	require.Contains(t, []string{"counter", "sequence", "xid"}, info.PositionMode)
}

func storePartitions(t *testing.T, d *db) {
	few := d.fresh(Config{Partitions: 5})
	few.append("account", "A-1", store.NewStream, event("Opened"))
	few.cfg.Partitions = 0 // whatever it has
	few.reopen()
	info, err := few.Info(few.ctx())
	require.NoError(t, err)
	require.Equal(t, 5, info.Partitions)
	few.append("account", "A-1", 1, event("Closed"))
	require.Equal(t, store.PartitionOf("A-1", 5), few.stream("account", "A-1")[1].Partition)
}

func storeCheck(t *testing.T, d *db) {
	require.NoError(t, d.Check(d.ctx()))
	d.append("account", "A-1", store.NewStream, event("Opened"))
	d.reopen()
	require.NoError(t, d.Check(d.ctx()))
	require.NoError(t, d.CheckTables(d.ctx()), "there are none")
}

func storeClosed(t *testing.T, d *db) {
	require.NoError(t, d.Close())
	_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, event("Opened")))
	require.Error(t, err)
	_, err = d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, Limit: 1})
	require.Error(t, err)
	require.Error(t, d.Check(d.ctx()))
	require.NoError(t, d.Close(), "closing twice is closing once")
}
