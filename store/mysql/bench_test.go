package mysql

import (
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
