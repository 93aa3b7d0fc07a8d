package mysql

import (
	"context"
	"sync"
	"testing"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/storetest"
)

// BenchmarkStore syncs each commit where the server of PROJHOST_TEST_MYSQL_DSN
// does; the private server of the tests does not.
func BenchmarkStore(b *testing.B) {
	var mu sync.Mutex
	dsns := map[string]string{}
	storetest.Bench(b, func(tb testing.TB, cfg storetest.Config) store.Store {
		mu.Lock()
		defer mu.Unlock()
		if dsns[cfg.Database] == "" {
			dsns[cfg.Database] = dbtest.MySQL(tb)
		}
		return open(tb, Options{DSN: dsns[cfg.Database]})
	})
}

// BenchmarkLeaseCheck tells what checking the leases costs of an apply, in percent.
func BenchmarkLeaseCheck(b *testing.B) {
	storetest.LeaseCheck(b, func(tb testing.TB, _ storetest.Config) store.Store {
		return open(tb, Options{DSN: dbtest.MySQL(tb)})
	}, func(ctx context.Context, st store.Store, batch *store.Batch) error {
		s := st.(*Store)
		return s.engine.write(ctx, "apply", func(se *session) error {
			if err := s.writeRows(ctx, se, batch.Tables); err != nil {
				return err
			}
			return s.moveCheckpoints(ctx, se, batch)
		})
	})
}
