package mysql

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

func TestStore(t *testing.T) {
	var mu sync.Mutex
	dsns := map[string]string{}
	storetest.Run(t, func(tb testing.TB, cfg storetest.Config) store.Store {
		mu.Lock()
		dsn := dsns[cfg.Database]
		if dsn == "" {
			dsn = dbtest.MySQL(tb)
			dsns[cfg.Database] = dsn
		}
		mu.Unlock()
		s := open(tb, Options{DSN: dsn, TablePrefix: cfg.TablePrefix, ReadModelPrefix: cfg.ReadModelPrefix,
			Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent})
		return coretest.Lockable(s, s.Core)
	})
}

func open(tb testing.TB, opt Options) *Store {
	tb.Helper()
	opt.TablePrefix = cmp.Or(opt.TablePrefix, "ph_")
	if opt.Logf == nil {
		opt.Logf = tb.Logf
	}
	s, err := Open(tb.Context(), opt)
	require.NoError(tb, err)
	return s
}
