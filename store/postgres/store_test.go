package postgres

import (
	"cmp"
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore/coretest"
	"github.com/projhost/projhost/store/storetest"
)

func TestStore(t *testing.T) {
	dsn := dbtest.Postgres(t)
	storetest.Run(t, func(t testing.TB, cfg storetest.Config) store.Store {
		s, err := Open(t.Context(), Options{
			DSN: inSchema(t, dsn, cfg.Database), TablePrefix: cmp.Or(cfg.TablePrefix, "ph_"), ReadModelPrefix: cfg.ReadModelPrefix,
			Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent, MaxOpenConns: 4, Logf: t.Logf,
		})
		require.NoError(t, err)
		return coretest.Lockable(s, s.Core)
	})
}

// inSchema gives the DSN of a schema of its own, made if it is not there: a
// database each would take seconds.
func inSchema(t testing.TB, dsn, schema string) string {
	t.Helper()
	admin(t, dsn, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{schema}.Sanitize())
	return with(t, dsn, "", map[string]string{"search_path": schema})
}

// admin runs a statement on a connection of its own.
func admin(t testing.TB, dsn, sql string, args ...any) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, args...)
	require.NoError(t, err, sql)
}

// with changes a DSN: its database and parameters.
func with(t testing.TB, dsn, path string, params map[string]string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	if path != "" {
		u.Path = path
	}
	q := u.Query()
	for k, v := range params {
		q.Set(k, v)
	}
	u.RawQuery = q.Encode()
	return u.String()
}
