package mysql

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
)

func TestConnectionStringsAreRefusedWithoutTheirPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                                "no connection string",
		"user:s3cret@tcp(localhost:3306)/":                "names no database",
		"user:s3cret@tcp(localhost:3306)":                 "cannot be read",
		"user:s3cret@tcp(localhost:3306/db":               "cannot be read",
		"user:s3cret@udp9(localhost)s3cret(/db":           "cannot be read",
		"mysql://user:s3cret@localhost:3306/db":           "cannot be read",
		"user:s3@cret(s3cret@s3cret(host:1)/db":           "network",
		"user:s3cret@tcp(localhost:3306)/db?loc=Mars":     "parameters",
		"user:s3cret@tcp(localhost:3306)/db?timeout=soon": "parameters",
	} {
		_, err := Open(t.Context(), Options{DSN: dsn})
		require.ErrorContains(t, err, want, dsn)
		require.NotContains(t, err.Error(), "s3cret")
		require.ErrorContains(t, err, "mysql")
	}
}

// Whatever the connection string and the server's defaults say.
func TestSessionsAreSetAlike(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	s := open(t, Options{Timeout: 7 * time.Second, DSN: dsn + sep + "sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27&TIME_ZONE=%27%2B03:00%27&multiStatements=true" +
		"&parseTime=true&loc=Local&charset=latin1&interpolateParams=false&clientFoundRows=false&autocommit=0&unique_checks=0"})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := conns(t, s, 1)[0]
	value := func(expression string) (v string) {
		require.NoError(t, c.QueryRowContext(t.Context(), "SELECT "+expression).Scan(&v))
		return v
	}
	isolation, idle, rest := "@@transaction_isolation", "@@wait_timeout", "@@net_read_timeout"
	if s.server.mariadb {
		isolation, idle, rest = "@@tx_isolation", "@@idle_transaction_timeout", "@@idle_write_transaction_timeout"
	}
	for expression, want := range map[string]string{
		"@@autocommit": "1", "@@time_zone": "+00:00", "@@innodb_lock_wait_timeout": "7", "@@lock_wait_timeout": "7", "@@unique_checks": "1",
		"@@collation_connection": s.server.collation(), "@@character_set_client": "utf8mb4", "@@character_set_results": "utf8mb4",
		isolation: "READ-COMMITTED", idle: "7", rest: "7", `"text"`: "text",
	} {
		require.Equal(t, want, value(expression), expression)
	}
	mode := value("@@sql_mode")
	for _, want := range []string{"STRICT_ALL_TABLES", "NO_ZERO_DATE"} {
		require.Contains(t, mode, want)
	}
	_, err := c.ExecContext(t.Context(), "SELECT 1; SELECT 2")
	require.EqualValues(t, 1064, number(err), "several statements in one are refused")
	text := "\\ ' \" \x00 \n \x1a 😀 ä"
	var got string
	require.NoError(t, c.QueryRowContext(t.Context(), "SELECT ?", text).Scan(&got))
	require.Equal(t, text, got)
}

func TestServersThatDoNotFitAreRefusedWithARemedy(t *testing.T) {
	fit := server{version: "10.11.19-MariaDB", mariadb: true, major: [3]int{10, 11, 19}, database: "db", packetMax: 16 << 20,
		format: "MIXED", page: 16 << 10, flush: "1", sync: "1", innodb: true, collated: true}
	require.NoError(t, fit.check(store.DefaultMaxEvent))
	require.Empty(t, fit.warnings())
	for want, change := range map[string]func(s *server){
		"MySQL 8.0.17 or MariaDB 10.6":     func(s *server) { s.major = [3]int{10, 5, 30} },
		"name one in [store] dsn":          func(s *server) { s.database = "" },
		"no InnoDB":                        func(s *server) { s.innodb = false },
		"no collation utf8mb4_nopad_bin":   func(s *server) { s.collated = false },
		"SET GLOBAL binlog_format = ROW":   func(s *server) { s.binlog = true },
		"SET GLOBAL max_allowed_packet":    func(s *server) { s.packetMax = 1 << 20 },
		"innodb_page_size is 8192":         func(s *server) { s.page = 8 << 10 },
		"Point [store] dsn at the primary": func(s *server) { s.readOnly = true },
	} {
		s := fit
		change(&s)
		require.ErrorContains(t, s.check(store.DefaultMaxEvent), want)
	}
	fit.flush, fit.binlog, fit.sync, fit.format = "2", true, "0", "ROW"
	require.NoError(t, fit.check(store.DefaultMaxEvent))
	require.Len(t, fit.warnings(), 2)
}

func TestVersionsAreToldApart(t *testing.T) {
	for version, want := range map[string]struct {
		major   [3]int
		mariadb bool
	}{
		"10.11.19-MariaDB-0+deb12u1": {[3]int{10, 11, 19}, true},
		"5.5.5-10.6.4-MariaDB-log":   {[3]int{10, 6, 4}, true},
		"11.4.2-MariaDB-ubu2404":     {[3]int{11, 4, 2}, true},
		"8.0.36":                     {[3]int{8, 0, 36}, false},
		"8.4.0-0ubuntu0.24.04.1":     {[3]int{8, 4, 0}, false},
		"5.5.5-something else":       {[3]int{5, 5, 5}, false},
		"none":                       {},
	} {
		major, mariadb := parseVersion(version)
		require.Equal(t, want.major, major, version)
		require.Equal(t, want.mariadb, mariadb, version)
	}
	require.True(t, less([3]int{8, 0, 16}, oldestMySQL))
	require.False(t, less([3]int{8, 0, 17}, oldestMySQL))
	require.False(t, less([3]int{9, 0, 0}, oldestMySQL))
	require.True(t, less([3]int{10, 5, 99}, oldestMariaDB))
}

// A replica that was made read-only, and one that lies about durability.
func TestCheckSeesWhatChanged(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run: -short (starts a server)")
	}
	server := dbtest.NewMariaDB(t)
	var told []string
	s := open(t, Options{DSN: server.DSN, Logf: func(format string, args ...any) { told = append(told, format) }})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Check(t.Context()))
	require.Empty(t, told)
	c := conns(t, s, 1)[0]
	exec(t, c, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
	for range 3 {
		require.NoError(t, s.Check(t.Context()))
	}
	require.Len(t, told, 1, "told once")
	exec(t, c, "SET GLOBAL read_only = 1")
	require.ErrorContains(t, s.Check(t.Context()), "Point [store] dsn at the primary")
	exec(t, c, "SET GLOBAL read_only = 0")
	exec(t, c, "ALTER TABLE ph_topics MODIFY topic_start int NOT NULL DEFAULT 0")
	s.Raise() // the schema is asked of a server once a minute and incarnation
	var schema *store.SchemaError
	require.ErrorAs(t, s.Check(t.Context()), &schema)
	require.Equal(t, "ph_topics", schema.Table)
}

// The printed script, run by hand, is what the host makes.
func TestPrintedSchemaIsTheHosts(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	own := open(t, Options{DSN: dsn, TablePrefix: "own_"})
	require.NoError(t, own.Close())
	script, err := SchemaSQL(own.server.kind(), "printed_", 0)
	require.NoError(t, err)

	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	cfg.MultiStatements = true // as SQL clients read it
	db, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), script)
	require.NoError(t, err)
	printed := open(t, Options{DSN: dsn, TablePrefix: "printed_", NeverInitialize: true})
	t.Cleanup(func() { require.NoError(t, printed.Close()) })
	_, err = printed.Commit(t.Context(), appendTo("A-1", 0, event("1")))
	require.NoError(t, err)

	catalogue := func(prefix string) (list []string) {
		rows, err := db.QueryContext(t.Context(), `SELECT concat_ws(' ', substr(TABLE_NAME, ?), COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLLATION_NAME, EXTRA)
 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = database() AND TABLE_NAME LIKE ? UNION ALL
 SELECT concat_ws(' ', substr(TABLE_NAME, ?), substr(INDEX_NAME, IF(INDEX_NAME = 'PRIMARY', 1, ?)), SEQ_IN_INDEX, COLUMN_NAME, NON_UNIQUE)
 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = database() AND TABLE_NAME LIKE ? ORDER BY 1`,
			len(prefix)+1, prefix+"%", len(prefix)+1, len(prefix)+1, prefix+"%")
		require.NoError(t, err)
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			list = append(list, line)
		}
		require.NoError(t, rows.Close())
		return list
	}
	require.NotEmpty(t, catalogue("own_"))
	require.Equal(t, catalogue("own_"), catalogue("printed_"))
}

func TestLockKeepsOthersOut(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	a, b := open(t, Options{DSN: dsn}), open(t, Options{DSN: dsn, TablePrefix: "other_"})
	t.Cleanup(func() { require.NoError(t, a.Close()); require.NoError(t, b.Close()) })
	release, err := a.engine.Lock(t.Context(), "x")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.engine.Lock(ctx, "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	other, err := b.engine.Lock(t.Context(), "y")
	require.NoError(t, err)
	require.NoError(t, other())
	got := make(chan error)
	go func() {
		release, err := b.engine.Lock(t.Context(), "x")
		if err == nil {
			err = release()
		}
		got <- err
	}()
	require.NoError(t, release())
	require.NoError(t, <-got)

	// A lock that went with its connection is told.
	release, err = a.engine.Lock(t.Context(), "x")
	require.NoError(t, err)
	c := conns(t, a, 1)[0]
	exec(t, c, "SELECT 1")
	var holder int64
	require.NoError(t, c.QueryRowContext(t.Context(), "SELECT is_used_lock(?)", a.engine.lockName("x")).Scan(&holder))
	exec(t, c, "KILL ?", holder)
	require.Error(t, release())
}

// A server that started at another time is another one, or the same after a
// crash.
func TestRestartIsTold(t *testing.T) {
	c := &connector{}
	start := time.Now().Add(-time.Hour)
	require.False(t, c.changed(start), "the first one seen")
	require.False(t, c.changed(start.Add(time.Second)))
	require.False(t, c.changed(start.Add(-time.Second)))
	require.True(t, c.changed(start.Add(time.Minute)))
	require.False(t, c.changed(start.Add(time.Minute)))
	require.True(t, c.changed(start), "another server stands there")
}
