package sqlserver

import (
	"cmp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore/coretest"
	"github.com/projhost/projhost/store/storetest"
)

// The contract on a server, where PROJHOST_TEST_SQLSERVER_DSN names one.
func TestStore(t *testing.T) {
	dbtest.SQLServer(t) // skips all of it at once
	var mu sync.Mutex
	dsns := map[string]string{}
	storetest.Run(t, func(tb testing.TB, cfg storetest.Config) store.Store {
		mu.Lock()
		dsn, ok := dsns[cfg.Database]
		if !ok {
			dsn = dbtest.SQLServer(t)
			dsns[cfg.Database] = dsn
		}
		mu.Unlock()
		s, err := Open(tb.Context(), Options{DSN: dsn, TablePrefix: cmp.Or(cfg.TablePrefix, "ph_"), ReadModelPrefix: cfg.ReadModelPrefix,
			Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent})
		require.NoError(tb, err)
		return coretest.Lockable(s, s.Core)
	})
}
