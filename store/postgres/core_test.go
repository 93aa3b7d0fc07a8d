package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
	"github.com/projhost/projhost/store/internal/sqlstore/coretest"
)

func TestCore(t *testing.T) {
	coretest.Run(t, func(tb testing.TB) *coretest.Database {
		dsn := dbtest.Postgres(tb)
		ctx := context.Background()
		admin, err := pgx.Connect(ctx, dsn)
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = admin.Close(ctx) })
		return &coretest.Database{
			Open: func(opt sqlstore.Options) (store.Store, *sqlstore.Core, error) {
				s, err := Open(tb.Context(), Options{DSN: dsn, TablePrefix: opt.TablePrefix, ReadModelPrefix: opt.ReadModelPrefix,
					NeverInitialize: opt.NeverInitialize, Partitions: opt.Partitions, MaxOpenConns: 4})
				if err != nil {
					return nil, nil, err
				}
				return s, s.Core, nil
			},
			Script: func(text string) error {
				_, err := admin.PgConn().Exec(ctx, text).ReadAll()
				return err
			},
		}
	})
}
