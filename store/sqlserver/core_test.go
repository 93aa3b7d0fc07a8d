package sqlserver

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
	"github.com/projhost/projhost/store/internal/sqlstore/coretest"
)

// On a server, where PROJHOST_TEST_SQLSERVER_DSN names one.
func TestCore(t *testing.T) {
	dbtest.SQLServer(t) // skips all of it at once
	coretest.Run(t, func(tb testing.TB) *coretest.Database {
		dsn := dbtest.SQLServer(tb)
		admin, err := sql.Open("sqlserver", dsn)
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = admin.Close() })
		return &coretest.Database{
			Open: func(opt store.Options) (store.Store, *sqlstore.Core, error) {
				s, err := Open(tb.Context(), Options{DSN: dsn, TablePrefix: opt.TablePrefix, ReadModelPrefix: opt.ReadModelPrefix,
					NeverInitialize: opt.NeverInitialize, Partitions: opt.Partitions})
				if err != nil {
					return nil, nil, err
				}
				return s, s.Core, nil
			},
			Script: func(text string) error {
				_, err := admin.Exec(text)
				return err
			},
		}
	})
}
