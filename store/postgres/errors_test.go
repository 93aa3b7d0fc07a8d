package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Every code means one thing, told by the code alone: the texts here are all
// the same.
func TestErrorsAreToldByCode(t *testing.T) {
	t.Parallel()
	c := rawConn(t, dbtest.Postgres(t))
	for code, want := range map[string]sqlstore.Class{
		"40001": sqlstore.Retry, "40P01": sqlstore.Retry, "55P03": sqlstore.Retry, "0A000": sqlstore.Retry, "26000": sqlstore.Retry,
		"23505": sqlstore.Duplicate, "23P01": sqlstore.Duplicate,
		"22001": sqlstore.Data, "22003": sqlstore.Data, "22012": sqlstore.Data, "22P05": sqlstore.Data, "22021": sqlstore.Data,
		"23502": sqlstore.Data, "23514": sqlstore.Data, "23503": sqlstore.Data, "54000": sqlstore.Data, "54001": sqlstore.Data,
		"08000": sqlstore.Lost, "08006": sqlstore.Lost, "57P01": sqlstore.Lost, "57P02": sqlstore.Lost, "57P04": sqlstore.Lost, "25P03": sqlstore.Lost,
		"57P03": sqlstore.Unavailable, "57014": sqlstore.Unavailable, "25006": sqlstore.Unavailable, "42501": sqlstore.Unavailable,
		"53000": sqlstore.Unavailable, "53100": sqlstore.Unavailable, "53200": sqlstore.Unavailable, "53300": sqlstore.Unavailable,
		"28000": sqlstore.Unavailable, "28P01": sqlstore.Unavailable, "3D000": sqlstore.Unavailable, "58030": sqlstore.Unavailable, "XX001": sqlstore.Unavailable,
		"42703": sqlstore.Unavailable, "42P01": sqlstore.Unavailable, "57000": sqlstore.Unavailable,
		"P0001": sqlstore.Data, "44000": sqlstore.Data,
		// What is not listed is tried a few times and then ends the consumer (H33).
		"ZZ999": sqlstore.Unlisted, "42883": sqlstore.Unlisted, "25001": sqlstore.Unlisted,
	} {
		_, err := c.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '%s'; END $$`, code))
		require.Equal(t, code, codeOf(err))
		class, hint := classOf(fmt.Errorf("wrapped: %w", err))
		require.Equal(t, want, class, code)
		if want == sqlstore.Unavailable {
			require.NotEmpty(t, hint, code)
		}
		if code == "42703" {
			require.Contains(t, hint, "a column is missing")
		}
	}
}

func TestErrorsWithoutACode(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, context.Canceled, store.ErrFenced, errClosed} {
		class, _ := classOf(err)
		require.Equal(t, sqlstore.Unknown, class)
	}
	_, err := pgx.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/x?connect_timeout=2")
	class, hint := classOf(err)
	require.Equal(t, sqlstore.Unavailable, class, "nothing was under way on a connection that never was")
	require.NotEmpty(t, hint)
	told := explain(fmt.Errorf("look again: %w", err)).Error()
	require.Contains(t, told, hint)
	require.NotContains(t, told, "\n", "pgx gives a line for each attempt")
	class, _ = classOf(&lostError{err: errors.New("broken pipe")})
	require.Equal(t, sqlstore.Lost, class)
	class, _ = classOf(&lostError{err: errors.New("broken pipe"), safe: true})
	require.Equal(t, sqlstore.Unavailable, class)
}

// What an operator is told when the database cannot be used, and never the
// password.
func TestOpenTellsWhatToMend(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	latin := rawConn(t, dsn).Config().Database + "_latin" // tests of others may share the server
	admin(t, dsn, `CREATE DATABASE `+latin+` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	t.Cleanup(func() { admin(t, dsn, `DROP DATABASE `+latin+` WITH (FORCE)`) })
	for name, c := range map[string]struct {
		opt   Options
		tells string
	}{
		"not a connection string":  {Options{DSN: "postgres://u:s3cret@h:port/x"}, "[store] dsn is not a connection string"},
		"empty":                    {Options{}, "[store] dsn is not a connection string"},
		"direct_dsn":               {Options{DSN: dsn, DirectDSN: "host=h password=s3cret port=x"}, "[store] direct_dsn is not a connection string"},
		"nobody there":             {Options{DSN: "postgres://u:s3cret@127.0.0.1:1/x?sslmode=disable"}, "is it running"},
		"encoding":                 {Options{DSN: with(t, dsn, "/"+latin, nil)}, "has the encoding LATIN1"},
		"schema":                   {Options{DSN: with(t, dsn, "", map[string]string{"search_path": "nowhere"})}, "no schema of the search_path exists"},
		"too many connections":     {Options{DSN: dsn, MaxOpenConns: 10_000}, "10003 in all, but the server takes"},
		"another server":           {Options{DSN: dsn, DirectDSN: with(t, dsn, "/postgres", nil)}, "direct_dsn reaches another server, database or schema"},
		"database that is missing": {Options{DSN: with(t, dsn, "/nowhere_to_be_found", nil)}, "the database does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			c.opt.TablePrefix = "ph_"
			_, err := Open(t.Context(), c.opt)
			require.ErrorContains(t, err, c.tells)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}
