// Package dbtest gives tests a database server of their own: the one a DSN in
// the environment names, else a private instance that the test process starts
// from installed packages and ends. Without either a test is skipped, or fails
// where PROJHOST_TEST_REQUIRE names the server.
//
// Promise: nothing outlives the test process, however it ends; neither a server
// nor a file. A private server is set up to be awkward where that is allowed (a
// time zone that is not UTC, linguistic collations), so that what works on it
// does not rest on defaults.
package dbtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/microsoft/go-mssqldb" // "sqlserver"
)

// patience bounds everything that is waited for here; it is generous because
// a busy machine is slow, and nothing but a failure ever uses it up.
const patience = 2 * time.Minute

// Postgres gives the DSN of a new empty database, dropped when the test ends.
// PROJHOST_TEST_POSTGRES_DSN names a server; "postgres" requires one.
func Postgres(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("PROJHOST_TEST_POSTGRES_DSN")
	if dsn == "" {
		dsn = sharedPostgres.dsn(t)
	}
	return createPostgres(t, dsn)
}

// MySQL gives the DSN of a new empty database on MariaDB or MySQL.
// PROJHOST_TEST_MYSQL_DSN names a server; "mysql" requires one.
func MySQL(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("PROJHOST_TEST_MYSQL_DSN")
	if dsn == "" {
		dsn = sharedMySQL.dsn(t)
	}
	return createMySQL(t, dsn)
}

// SQLServer gives the DSN of a new empty database on the server that
// PROJHOST_TEST_SQLSERVER_DSN names, or skips; "sqlserver" requires one.
func SQLServer(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("PROJHOST_TEST_SQLSERVER_DSN")
	if dsn == "" {
		absent(t, "sqlserver", "SQL Server: PROJHOST_TEST_SQLSERVER_DSN names none")
	}
	return createSQLServer(t, dsn)
}

// absent skips the test, or fails it where what it needs is required.
func absent(t testing.TB, what, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), what) {
		t.Fatalf("not run though PROJHOST_TEST_REQUIRE names %s: no %s", what, why)
	}
	t.Skipf("not run: no %s", why)
}

// shared is the server of this process that tests without a DSN share. It is
// started by the first who asks.
type shared struct {
	what  string
	start func() (*Server, error)

	once   sync.Once
	server *Server
	err    error
}

func (s *shared) dsn(t testing.TB) string {
	t.Helper()
	s.once.Do(func() { s.server, s.err = s.start() })
	if s.err != nil {
		unavailable(t, s.what, s.err)
	}
	return s.server.admin
}

// unavailable skips where the packages are missing; a server that is installed
// and does not start is a failure.
func unavailable(t testing.TB, what string, err error) {
	t.Helper()
	if missing, ok := err.(missingError); ok {
		absent(t, what, string(missing))
	}
	t.Fatal(err)
}

// missingError says what is not installed and how to get it.
type missingError string

func (e missingError) Error() string { return "no " + string(e) }

func createPostgres(t testing.TB, admin string) string {
	t.Helper()
	name := databaseName()
	execPostgres(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { execPostgres(t, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	dsn, err := postgresDSN(admin, name)
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

func execPostgres(t testing.TB, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal("the PostgreSQL server of the tests: ", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(statement, ": ", err)
	}
}

// postgresDSN is dsn with another database.
func postgresDSN(dsn, database string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + database, nil // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("PROJHOST_TEST_POSTGRES_DSN is not a URL")
	}
	u.Path = "/" + database
	return u.String(), nil
}

func createMySQL(t testing.TB, admin string) string {
	t.Helper()
	c, err := mysql.ParseDSN(admin)
	if err != nil {
		t.Fatal("PROJHOST_TEST_MYSQL_DSN is not of the form user:password@tcp(host:port)/")
	}
	name := databaseName()
	execSQL(t, "mysql", admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		endMySQLSessions(t, admin, name)
		execSQL(t, "mysql", admin, "DROP DATABASE IF EXISTS "+name)
	})
	c.DBName = name
	return c.FormatDSN()
}

// endMySQLSessions ends who is still connected to a database: a transaction
// left open would make DROP wait.
func endMySQLSessions(t testing.TB, admin, database string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sql.Open("mysql", admin)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = ?", database)
	if err != nil {
		t.Fatal("the MySQL server of the tests: ", err)
	}
	var ids []uint64
	for rows.Next() {
		var id uint64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		db.ExecContext(ctx, fmt.Sprint("KILL ", id)) // it may have gone by itself
	}
}

func createSQLServer(t testing.TB, admin string) string {
	t.Helper()
	name := databaseName()
	execSQL(t, "sqlserver", admin, "CREATE DATABASE "+name)
	for setting, column := range map[string]string{"READ_COMMITTED_SNAPSHOT": "is_read_committed_snapshot_on", "ALLOW_SNAPSHOT_ISOLATION": "snapshot_isolation_state"} {
		// Only where it is off: Azure has both on, and Babelfish knows no ALTER DATABASE.
		execSQL(t, "sqlserver", admin, "IF EXISTS (SELECT 1 FROM sys.databases WHERE name = '"+name+"' AND "+column+" = 0) "+
			"EXEC('ALTER DATABASE "+name+" SET "+setting+" ON')")
	}
	t.Cleanup(func() {
		execSQL(t, "sqlserver", admin, "IF DB_ID('"+name+"') IS NOT NULL BEGIN ALTER DATABASE "+name+
			" SET SINGLE_USER WITH ROLLBACK IMMEDIATE; DROP DATABASE "+name+" END")
	})
	if !strings.HasPrefix(admin, "sqlserver://") {
		return admin + ";database=" + name
	}
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal("PROJHOST_TEST_SQLSERVER_DSN is not a URL")
	}
	q := u.Query()
	q.Set("database", name)
	u.RawQuery = q.Encode()
	return u.String()
}

func execSQL(t testing.TB, driver, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal("the ", driver, " server of the tests: ", err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatal(statement, ": ", err)
	}
}

// databaseName is one that nobody else has, also on a server that many use.
func databaseName() string {
	var b [8]byte
	rand.Read(b[:])
	return "ph_test_" + hex.EncodeToString(b[:])
}
