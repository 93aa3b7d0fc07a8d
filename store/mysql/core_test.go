package mysql

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
	"github.com/projhost/projhost/store/internal/sqlstore/coretest"
)

func TestCore(t *testing.T) {
	coretest.Run(t, func(tb testing.TB) *coretest.Database {
		dsn := dbtest.MySQL(tb)
		cfg, err := parseDSN(dsn)
		require.NoError(tb, err)
		cfg.MultiStatements = true
		admin, err := sql.Open("mysql", cfg.FormatDSN())
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = admin.Close() })
		return &coretest.Database{
			Open: func(opt store.Options) (store.Store, *sqlstore.Core, error) {
				s, err := Open(tb.Context(), Options{DSN: dsn, TablePrefix: opt.TablePrefix, ReadModelPrefix: opt.ReadModelPrefix,
					NeverInitialize: opt.NeverInitialize, Partitions: opt.Partitions, Logf: tb.Logf})
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
