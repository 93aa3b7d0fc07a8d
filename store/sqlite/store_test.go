package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/storetest"
)

// roles stands in for those of the store's roles that are not built yet.
type roles struct {
	*Store
	store.Consumers
	store.Leases
	store.Batches
	store.ReadModels
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	storetest.Run(t, func(t testing.TB, cfg storetest.Config) store.Store {
		s, err := Open(t.Context(), Options{
			Path: filepath.Join(dir, cfg.Database+".db"), TablePrefix: "ph_", Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent,
		})
		require.NoError(t, err)
		return roles{Store: s}
	})
}
