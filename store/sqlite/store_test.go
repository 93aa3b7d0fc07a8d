package sqlite

import (
	"cmp"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/storetest"
)

func TestStore(t *testing.T)      { storetest.Run(t, openIn(t.TempDir())) }
func BenchmarkStore(b *testing.B) { storetest.Bench(b, openIn(b.TempDir())) }

func openIn(dir string) storetest.Open {
	return func(t testing.TB, cfg storetest.Config) store.Store {
		s, err := Open(t.Context(), Options{
			DSN: filepath.Join(dir, cfg.Database+".db"), TablePrefix: cmp.Or(cfg.TablePrefix, "ph_"), ReadModelPrefix: cfg.ReadModelPrefix,
			Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent,
		})
		require.NoError(t, err)
		return s
	}
}
