package postgres

import (
	"context"
	"fmt"
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
			Open: func(opt store.Options) (store.Store, *sqlstore.Core, error) {
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

// What has a number in its text is another statement for each number.
func TestKeptStatementsAreBounded(t *testing.T) {
	s, err := Open(t.Context(), Options{DSN: dbtest.Postgres(t), TablePrefix: "ph_"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.engine.Read(t.Context(), "many", func(c sqlstore.Conn) error {
		ask := func(text string) (n int64) {
			r, err := c.Query(t.Context(), text)
			require.NoError(t, err)
			require.True(t, r.Next())
			require.NoError(t, r.Scan(&n))
			require.NoError(t, r.Close())
			return n
		}
		for n := range int64(2 * keptMax) {
			require.Equal(t, n, ask(fmt.Sprintf("SELECT %d::bigint", n)))
		}
		require.LessOrEqual(t, ask("SELECT count(*) FROM pg_prepared_statements"), int64(keptMax))
		return nil
	}))
}
