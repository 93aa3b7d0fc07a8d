package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// declare is a consumer of one table of accounts.
func declare(t testing.TB, name string) store.Declaration {
	t.Helper()
	tables, err := readmodel.NewTables([]abi.Table{{Name: "accounts", Columns: []abi.Column{
		{Name: "n", Kind: abi.ColumnInt}, {Name: "owner", Kind: abi.ColumnText, Max: 100, Index: true}}}})
	require.NoError(t, err)
	return store.Declaration{ID: store.ConsumerID{Type: "projection", Name: name}, Topics: []string{store.EventsTopic}, Tables: tables,
		Fingerprint: store.Fingerprint{Version: 1, Inputs: "i", Keys: "k", Tables: "t", Logic: "l"}, Plugin: "p", Digest: "sha256:1"}
}

func texts(t testing.TB, c *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := c.Query(context.Background(), sql, args...)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return list
}

// An operator gives a consumer a table that was there before. Its rows stay,
// and so does whoever reads it by its name: users' views and grants.
func TestSubscribeAdoptsTables(t *testing.T) {
	for _, spelled := range []string{"accounts", "Accounts"} {
		t.Run(spelled, func(t *testing.T) {
			dsn := dbtest.Postgres(t)
			c := rawConn(t, dsn)
			table := pgx.Identifier{spelled}.Sanitize()
			role := "reader_of_" + c.Config().Database // roles are the server's, which tests may share
			for _, text := range []string{
				`CREATE TABLE ` + table + ` ("key" varchar(255) COLLATE "C" PRIMARY KEY, n bigint, owner varchar(100) COLLATE "C", ph_position bigint, ph_updated_us bigint, ph_epoch bigint, mine text)`,
				`INSERT INTO ` + table + ` ("key", n, mine) VALUES ('old', 5, 'note'), ('older', 6, 'note')`,
				`CREATE VIEW users_own AS SELECT a."key", a.n + 1 AS more FROM ` + table + ` a`,
				`CREATE VIEW on_top AS SELECT "key" FROM users_own`,
				`CREATE VIEW wants_more AS SELECT mine FROM ` + table,
				`DROP ROLE IF EXISTS "` + role + `"`,
				`CREATE ROLE "` + role + `"`,
				`GRANT SELECT ON ` + table + `, users_own TO "` + role + `"`,
			} {
				_, err := c.Exec(t.Context(), text)
				require.NoError(t, err, text)
			}
			t.Cleanup(func() {
				admin(t, dsn, `DROP OWNED BY "`+role+`"`)
				admin(t, dsn, `DROP ROLE "`+role+`"`)
			})
			s := host(t, dsn)
			d := declare(t, "accounts")
			_, err := s.Subscribe(t.Context(), d)
			var taken *store.NameTakenError
			require.ErrorAs(t, err, &taken)
			d.Adopt = []string{"ACCOUNTS"}
			consumer, err := s.Subscribe(t.Context(), d)
			require.NoError(t, err)
			physical := consumer.Tables[0].Physical

			rows, err := s.LoadRows(t.Context(), consumer.Tables[0], []store.RowKey{{Key: "old"}, {Key: "older"}})
			require.NoError(t, err)
			require.Len(t, rows, 2, "rows that the host did not write are there as they are")
			// What each view reads.
			reads := func(view string) []string {
				return texts(t, c, `SELECT DISTINCT r.relname::text FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid JOIN pg_class r ON r.oid = d.refobjid
					WHERE d.classid = 'pg_rewrite'::regclass AND w.ev_class = $1::regclass AND d.refclassid = 'pg_class'::regclass AND r.oid <> w.ev_class`, view)
			}
			require.Equal(t, []string{physical}, reads("accounts"))
			require.Equal(t, []string{spelled}, reads("users_own"), "a user's view reads the public name, not one build's table")
			require.Equal(t, []string{"users_own"}, reads("on_top"))
			require.Equal(t, []string{physical}, reads("wants_more"), "what the public view does not show is still to be read")
			require.Equal(t, []string{"old", "older"}, texts(t, c, `SELECT "key" FROM on_top ORDER BY 1`))
			_, err = c.Exec(t.Context(), `SET ROLE "`+role+`"`)
			require.NoError(t, err)
			require.Equal(t, []string{"old", "older"}, texts(t, c, `SELECT "key" FROM accounts ORDER BY 1`))
			require.Equal(t, []string{"old", "older"}, texts(t, c, `SELECT "key" FROM users_own ORDER BY 1`))
			_, err = c.Exec(t.Context(), `RESET ROLE`)
			require.NoError(t, err)

			// A later start finds everything as it has to be.
			before := texts(t, c, `SELECT xmin::text FROM pg_rewrite WHERE ev_class = 'accounts'::regclass`)
			again, err := s.Subscribe(t.Context(), d)
			require.NoError(t, err)
			require.Equal(t, consumer, again)
			require.Equal(t, before, texts(t, c, `SELECT xmin::text FROM pg_rewrite WHERE ev_class = 'accounts'::regclass`), "a view that is right is not made anew")
		})
	}
}

// A user's view that reads what the new build does not have keeps the public name
// where it was; hosts start all the same, and go on once it has gone. Where the columns stay
// the same grants survive.
func TestSwitchLeavesUsersWhatTheyBuilt(t *testing.T) {
	ctx := t.Context()
	dsn := dbtest.Postgres(t)
	s, err := Open(ctx, Options{DSN: dsn, TablePrefix: "ph_", Partitions: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	admin, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	decl := func(digest string, columns ...abi.Column) store.Declaration {
		tables, err := readmodel.NewTables([]abi.Table{{Name: "accounts", Columns: columns}})
		require.NoError(t, err)
		return store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "p"}, Topics: []string{store.EventsTopic}, Tables: tables,
			Fingerprint: store.Fingerprint{Version: 1, Inputs: "i", Keys: "k", Tables: digest, Logic: "l"}, Plugin: "p", Digest: digest}
	}
	n, note := abi.Column{Name: "n", Kind: abi.ColumnInt}, abi.Column{Name: "note", Kind: abi.ColumnText}
	switchTo := func(d store.Declaration) (before, now store.Build) {
		t.Helper()
		list, err := s.ListBuilds(ctx, d.ID)
		require.NoError(t, err)
		b, err := s.StartShadow(ctx, d, "ops")
		require.NoError(t, err)
		require.NoError(t, s.Switch(ctx, store.Switch{Consumer: d.ID, Build: b.ID, Actor: "ops"}))
		return list[0], b
	}
	granted := func() (n int) {
		t.Helper()
		require.NoError(t, admin.QueryRow(ctx, `SELECT count(*) FROM information_schema.role_table_grants WHERE table_name = 'accounts' AND grantee = 'PUBLIC'`).Scan(&n))
		return n
	}
	_, err = s.Subscribe(ctx, decl("1", n, note))
	require.NoError(t, err)
	_, err = admin.Exec(ctx, `GRANT SELECT ON accounts TO PUBLIC; CREATE VIEW mine AS SELECT "key", note FROM accounts`)
	require.NoError(t, err)

	old, _ := switchTo(decl("2", n, note))
	require.NoError(t, s.ShowLive(ctx, old.Consumer))
	require.Equal(t, 1, granted())
	require.NoError(t, s.DropBuild(ctx, old.Consumer, old.ID, "ops"))

	old, now := switchTo(decl("3", n))
	var stuck *store.ViewError
	require.ErrorAs(t, s.ShowLive(ctx, old.Consumer), &stuck)
	require.Equal(t, "accounts", stuck.Name)
	c, err := s.Subscribe(ctx, decl("3", n))
	require.NoError(t, err)
	require.Equal(t, now.ID, c.Build)
	require.ErrorAs(t, s.DropBuild(ctx, old.Consumer, old.ID, "ops"), &stuck, "it is shown still")
	require.Equal(t, 1, granted())
	_, err = admin.Exec(ctx, `DROP VIEW mine`)
	require.NoError(t, err)
	c, err = s.Subscribe(ctx, decl("3", n))
	require.NoError(t, err)
	require.Equal(t, now.ID, c.Build)
	list, err := s.ListBuilds(ctx, c.ID)
	require.NoError(t, err)
	require.Len(t, list, 1, "what was given up is finished by the next start")
	require.NoError(t, s.ShowLive(ctx, c.ID))
}
