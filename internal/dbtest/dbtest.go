// Package dbtest gives tests a database server of their own: the one a DSN in
// the environment names, else a private instance that the test process starts
// from installed packages and ends. Without either a test is skipped, or fails
// where PROJHOST_TEST_REQUIRE names the server.
package dbtest

import "testing"

// Postgres gives the DSN of a new empty database, dropped when the test ends.
// PROJHOST_TEST_POSTGRES_DSN names a server; "postgres" requires one.
func Postgres(t testing.TB) string { panic("todo") }

// MySQL gives the DSN of a new empty database on MariaDB or MySQL.
// PROJHOST_TEST_MYSQL_DSN names a server; "mysql" requires one.
func MySQL(t testing.TB) string { panic("todo") }

// SQLServer gives the DSN of a new empty database on the server that
// PROJHOST_TEST_SQLSERVER_DSN names, or skips.
func SQLServer(t testing.TB) string { panic("todo") }

// Server is a private instance that a test may kill and restart.
type Server struct {
	// DSN of an empty database on it, of the same form as Postgres and MySQL give.
	DSN string
}

// NewPostgres starts a private PostgreSQL with further settings
// ("max_prepared_transactions=10"); it is ended and removed with the test.
func NewPostgres(t testing.TB, settings ...string) *Server { panic("todo") }

// NewMariaDB starts a private MariaDB.
func NewMariaDB(t testing.TB, settings ...string) *Server { panic("todo") }

// Kill ends the server as a crash does. Start brings it back on the same data and address.
func (s *Server) Kill()  { panic("todo") }
func (s *Server) Start() { panic("todo") }
