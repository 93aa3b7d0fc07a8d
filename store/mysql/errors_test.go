package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// conns gives n connections as the driver makes them.
func conns(t *testing.T, s *Store, n int) (list []*sql.Conn) {
	t.Helper()
	for range n {
		c, err := s.engine.db.Conn(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		list = append(list, c)
	}
	return list
}

func exec(t *testing.T, c *sql.Conn, text string, args ...any) {
	t.Helper()
	_, err := c.ExecContext(t.Context(), text, args...)
	require.NoError(t, err, text)
}

// patient lets transactions on the connections sit for as long as a slow machine
// takes.
func patient(t *testing.T, s *Store, list ...*sql.Conn) {
	t.Helper()
	for _, c := range list {
		if exec(t, c, "SET SESSION wait_timeout = 1000"); s.server.mariadb {
			exec(t, c, "SET SESSION idle_transaction_timeout = 0, idle_write_transaction_timeout = 0")
		}
	}
}

func requireClass(t *testing.T, want sqlstore.Class, numbers []uint16, err error) {
	t.Helper()
	require.Error(t, err)
	if len(numbers) > 0 {
		require.Contains(t, numbers, number(err), "%v", err)
	}
	class, _ := classOf(err)
	require.Equal(t, want, class, "%v", err)
}

// What the servers answer is provoked where a test can; MySQL and MariaDB may
// differ in the number.
func TestErrorsAreToldByNumber(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := conns(t, s, 1)[0]
	exec(t, c, "CREATE TABLE parents (id int PRIMARY KEY) ENGINE=InnoDB")
	exec(t, c, `CREATE TABLE things (id int PRIMARY KEY, n int NOT NULL, short varchar(3) CHARACTER SET utf8mb4, d date, e enum('a'), b decimal(4,2), parent int,
 CONSTRAINT positive CHECK (n >= 0), CONSTRAINT known FOREIGN KEY (parent) REFERENCES parents (id)) ENGINE=InnoDB`)
	exec(t, c, "INSERT INTO parents VALUES (1)")
	exec(t, c, "INSERT INTO things (id, n, parent) VALUES (1, 1, 1)")
	for text, want := range map[string]struct {
		class   sqlstore.Class
		numbers []uint16
	}{
		"INSERT INTO things (id, n) VALUES (1, 1)":                       {sqlstore.Duplicate, []uint16{1062}},
		"INSERT INTO things (id, n) VALUES (2, NULL)":                    {sqlstore.Data, []uint16{1048}},
		"INSERT INTO things (id) VALUES (2)":                             {sqlstore.Data, []uint16{1364}},
		"INSERT INTO things (id, n) VALUES (2, 99999999999)":             {sqlstore.Data, []uint16{1264}},
		"INSERT INTO things (id, n) VALUES (2, 'x')":                     {sqlstore.Data, []uint16{1366}},
		"INSERT INTO things (id, n) VALUES (2, -1)":                      {sqlstore.Data, []uint16{3819, 4025}},
		"INSERT INTO things (id, n, short) VALUES (2, 1, 'long')":        {sqlstore.Data, []uint16{1406}},
		"INSERT INTO things (id, n, d) VALUES (2, 1, '2026-13-01')":      {sqlstore.Data, []uint16{1292}},
		"INSERT INTO things (id, n, e) VALUES (2, 1, 'b')":               {sqlstore.Data, []uint16{1265}},
		"INSERT INTO things (id, n, b) VALUES (2, 1, 123.4)":             {sqlstore.Data, []uint16{1264}},
		"INSERT INTO things (id, n, parent) VALUES (2, 1, 7)":            {sqlstore.Data, []uint16{1452}},
		"INSERT INTO things (id, n, short) VALUES (2, 1, _binary'\xff')": {sqlstore.Data, []uint16{1366}},
		"DELETE FROM parents":                                            {sqlstore.Data, []uint16{1451}},
		"UPDATE things SET n = 9223372036854775807 + n":                  {sqlstore.Data, []uint16{1690}},
		"INSERT INTO things (id, n) VALUES (2, 1 / 0)":                   {sqlstore.Data, []uint16{1365}},
		"SIGNAL SQLSTATE '45000'":                                        {sqlstore.Data, []uint16{1644}},
		"SELECT * FROM nowhere":                                          {sqlstore.Unavailable, []uint16{1146}},
		"SELECT nothing FROM things":                                     {sqlstore.Unavailable, []uint16{1054}},
		"SELEKT":                                                         {sqlstore.Unlisted, []uint16{1064}},
	} {
		_, err := c.ExecContext(t.Context(), text)
		require.Error(t, err, text)
		requireClass(t, want.class, want.numbers, err)
	}
	exec(t, c, "START TRANSACTION READ ONLY")
	_, err := c.ExecContext(t.Context(), "DELETE FROM things")
	requireClass(t, sqlstore.Unavailable, []uint16{1792}, err)
	exec(t, c, "ROLLBACK")
}

func TestLocksThatAreNotHadAreTriedAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t), Timeout: time.Second})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := conns(t, s, 2)
	patient(t, s, c...)
	exec(t, c[0], "CREATE TABLE things (id int PRIMARY KEY, n int) ENGINE=InnoDB")
	exec(t, c[0], "INSERT INTO things VALUES (1, 0), (2, 0)")

	// A deadlock: one of them is told.
	exec(t, c[0], "START TRANSACTION")
	exec(t, c[1], "START TRANSACTION")
	exec(t, c[0], "UPDATE things SET n = 1 WHERE id = 1")
	exec(t, c[1], "UPDATE things SET n = 1 WHERE id = 2")
	other := make(chan error)
	go func() {
		_, err := c[0].ExecContext(context.Background(), "UPDATE things SET n = 1 WHERE id = 2")
		other <- err
	}()
	_, err := c[1].ExecContext(t.Context(), "UPDATE things SET n = 1 WHERE id = 1")
	requireClass(t, sqlstore.Retry, []uint16{1213}, errors.Join(err, <-other))
	exec(t, c[0], "ROLLBACK")
	exec(t, c[1], "ROLLBACK")

	// A wait that takes too long.
	exec(t, c[0], "START TRANSACTION")
	exec(t, c[0], "UPDATE things SET n = 1 WHERE id = 1")
	_, err = c[1].ExecContext(t.Context(), "UPDATE things SET n = 1 WHERE id = 1")
	requireClass(t, sqlstore.Retry, []uint16{1205}, err)
	_, err = c[1].ExecContext(t.Context(), "SELECT * FROM things WHERE id = 1 FOR UPDATE NOWAIT")
	requireClass(t, sqlstore.Retry, []uint16{1205, 3572}, err)
	_, err = c[1].ExecContext(t.Context(), "ALTER TABLE things ADD x int")
	requireClass(t, sqlstore.Retry, []uint16{1205}, err)
}

func TestLostConnectionsAreTold(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	connectionID := func(c *sql.Conn) (id int64) {
		require.NoError(t, c.QueryRowContext(t.Context(), "SELECT connection_id()").Scan(&id))
		return id
	}
	c := conns(t, s, 3)
	exec(t, c[0], "CREATE TABLE things (id int PRIMARY KEY, n int) ENGINE=InnoDB")
	exec(t, c[0], "INSERT INTO things VALUES (1, 0)")
	exec(t, c[0], "START TRANSACTION")
	exec(t, c[0], "UPDATE things SET n = 1")

	// Killed while it waits, and while it is idle.
	for _, kill := range []string{"KILL QUERY", "KILL"} {
		c := append(conns(t, s, 1), c[2])
		id := connectionID(c[0])
		other := make(chan error)
		go func() {
			_, err := c[0].ExecContext(context.Background(), "UPDATE things SET n = 2")
			other <- err
		}()
		require.Eventually(t, func() bool {
			var n int
			require.NoError(t, c[1].QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND INFO LIKE 'UPDATE%'", id).Scan(&n))
			return n == 1
		}, 10*time.Second, 5*time.Millisecond)
		exec(t, c[1], fmt.Sprint(kill, " ", id))
		requireClass(t, sqlstore.Lost, nil, <-other)
	}
	exec(t, c[2], fmt.Sprint("KILL ", connectionID(c[1])))
	_, err := c[1].ExecContext(t.Context(), "SELECT 1")
	requireClass(t, sqlstore.Lost, nil, err)
}

func TestRefusedConnectionsAreTold(t *testing.T) {
	t.Parallel()
	dsn := dbtest.MySQL(t)
	s := open(t, Options{DSN: dsn})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	admin := conns(t, s, 1)[0]
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	user := fmt.Sprint("u", time.Now().UnixNano())
	exec(t, admin, "CREATE USER "+user+" IDENTIFIED BY 'right' WITH MAX_USER_CONNECTIONS 1")
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP USER "+user) })
	exec(t, admin, "CREATE TABLE things (id int)")

	opened := func(change func(*mysql.Config)) error {
		cfg := cfg.Clone()
		change(cfg)
		_, err := Open(t.Context(), Options{DSN: cfg.FormatDSN(), TablePrefix: "ph_"})
		var transient *store.TransientError
		require.ErrorAs(t, err, &transient)
		require.NotEmpty(t, transient.Hint)
		require.NotContains(t, err.Error(), "secret")
		return err
	}
	requireClass(t, sqlstore.Unavailable, []uint16{1045, 1698}, opened(func(c *mysql.Config) { c.User, c.Passwd = user, "secret" }))
	requireClass(t, sqlstore.Unavailable, []uint16{1044}, opened(func(c *mysql.Config) { c.User, c.Passwd = user, "right" }))
	requireClass(t, sqlstore.Unavailable, []uint16{1049}, opened(func(c *mysql.Config) { c.DBName = "nowhere_" + user }))
	requireClass(t, sqlstore.Unavailable, nil, opened(func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }))
	requireClass(t, sqlstore.Unavailable, nil, opened(func(c *mysql.Config) { c.Addr = "no-such-host.invalid:3306" }))

	exec(t, admin, fmt.Sprintf("GRANT SELECT ON %s.ph_topics TO %s", cfg.DBName, user))
	cfg.User, cfg.Passwd = user, "right"
	db, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	defer db.Close()
	one, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = one.ExecContext(t.Context(), "SELECT * FROM things")
	requireClass(t, sqlstore.Unavailable, []uint16{1142}, err)
	_, err = db.Conn(t.Context())
	requireClass(t, sqlstore.Unavailable, []uint16{1203, 1226}, err)
}

// What no test can have a server say.
func TestClassesOfOtherErrors(t *testing.T) {
	for n, want := range map[uint16]sqlstore.Class{
		1020: sqlstore.Retry, 1412: sqlstore.Retry, 3101: sqlstore.Retry, 3572: sqlstore.Retry,
		1586: sqlstore.Duplicate, 1859: sqlstore.Duplicate,
		1118: sqlstore.Data, 1153: sqlstore.Data, 3140: sqlstore.Data,
		1053: sqlstore.Lost, 1180: sqlstore.Lost, 1927: sqlstore.Lost, 2006: sqlstore.Lost, 2013: sqlstore.Lost, 4031: sqlstore.Lost,
		1040: sqlstore.Unavailable, 1021: sqlstore.Unavailable, 1114: sqlstore.Unavailable, 1290: sqlstore.Unavailable, 1836: sqlstore.Unavailable,
		1047: sqlstore.Unavailable, 1969: sqlstore.Unavailable, 3024: sqlstore.Unavailable,
		9999: sqlstore.Unlisted,
	} {
		class, hint := classOf(fmt.Errorf("append: %w", &mysql.MySQLError{Number: n, Message: "Duplicate entry, deadlock, timeout"}))
		require.Equal(t, want, class, "error %d", n)
		if want == sqlstore.Unavailable {
			require.NotEmpty(t, hint, "error %d", n)
		}
	}
	for _, err := range []error{driver.ErrBadConn, mysql.ErrInvalidConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, sql.ErrConnDone,
		&net.OpError{Op: "read", Err: errors.New("reset")}, errors.Join(driver.ErrBadConn, context.DeadlineExceeded)} {
		class, _ := classOf(fmt.Errorf("append: %w", err))
		require.Equal(t, sqlstore.Lost, class, "%v", err)
	}
	for _, err := range []error{nil, context.Canceled, context.DeadlineExceeded, errRaced, errors.New("deadlock"), store.ErrFenced} {
		class, _ := classOf(err)
		require.Equal(t, sqlstore.Unknown, class, "%v", err)
	}
	class, hint := classOf(mysql.ErrPktTooLarge)
	require.Equal(t, sqlstore.Data, class)
	require.NotEmpty(t, hint)
}
