package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

var sharedPostgres = shared{what: "postgres", start: func() (*Server, error) {
	return startPostgres("fsync=off", "full_page_writes=off", "max_prepared_transactions=20")
}}

// NewPostgres starts a private PostgreSQL with further settings
// ("max_prepared_transactions=10"); it is ended and removed with the test. What
// it acknowledges survives Kill.
func NewPostgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := startPostgres(settings...)
	if err != nil {
		unavailable(t, "postgres", err)
	}
	s.t = t
	t.Cleanup(func() { s.keep.close() })
	execPostgres(t, s.admin, "CREATE DATABASE test")
	if s.DSN, err = postgresDSN(s.admin, "test"); err != nil {
		t.Fatal(err)
	}
	return s
}

// PostgresProgram finds a program that comes with the server, such as pg_dump.
// Builds without client programs exist, and another version's may not do: then
// the test is skipped, unless the program is required by its name.
func PostgresProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := postgresProgram(name)
	if err != nil {
		absent(t, name, name+" ("+err.Error()+")")
	}
	return path
}

func postgresProgram(name string) (string, error) {
	if folder := os.Getenv("PROJHOST_TEST_POSTGRES_BIN"); folder != "" {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err != nil {
			return "", missingError("PostgreSQL in PROJHOST_TEST_POSTGRES_BIN: " + err.Error())
		}
		return path, nil
	}
	path := program(name, "/usr/lib/postgresql/*/bin")
	if path == "" {
		return "", missingError("PostgreSQL: install it (Debian: postgresql), or set PROJHOST_TEST_POSTGRES_BIN or PROJHOST_TEST_POSTGRES_DSN")
	}
	return path, nil
}

func startPostgres(settings ...string) (*Server, error) {
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	postgres, err := postgresProgram("postgres")
	if err != nil {
		return nil, err
	}
	k, err := newKeeper("postgres")
	if err != nil {
		return nil, err
	}
	s := &Server{keep: k}
	s.serve = func(port int) string {
		all := append([]string{
			"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=" + k.dir,
			"max_connections=200", "shared_buffers=32MB", "dynamic_shared_memory_type=mmap",
			"timezone=Asia/Kathmandu", "log_min_messages=log", "max_wal_size=256MB",
		}, settings...)
		words := []string{postgres, "-D", k.dir + "/data"}
		for _, setting := range all {
			words = append(words, "-c", setting)
		}
		s.admin = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
		return command(words...)
	}
	s.ready = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.admin)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	if err := initPostgres(k, initdb); err != nil {
		k.close()
		return nil, err
	}
	if err := s.launch(); err != nil {
		k.close()
		return nil, err
	}
	return s, nil
}

// initPostgres makes the data folder, with the collation of a language where
// the build has ICU: names and ids must not rest on the order of bytes.
func initPostgres(k *keeper, initdb string) error {
	words := []string{initdb, "-D", k.dir + "/data", "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"}
	if major(initdb) >= 15 {
		if k.do(command(append(words, "--locale-provider=icu", "--icu-locale=en-US")...)) == nil {
			return trustAll(k)
		}
	}
	if err := k.do(command(words...)); err != nil {
		return err
	}
	return trustAll(k)
}

// trustAll lets in whoever reaches it, which is this machine, unless a test has
// it listen elsewhere.
func trustAll(k *keeper) error {
	f, err := os.OpenFile(filepath.Join(k.dir, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("host all all all trust\n")
	return errors.Join(err, f.Close())
}

// major is the first number a program tells of its version, 0 if it tells none.
func major(path string) int {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return 0
	}
	for word := range strings.FieldsSeq(string(out)) {
		number, _, _ := strings.Cut(word, ".")
		if n, err := strconv.Atoi(number); err == nil {
			return n
		}
	}
	return 0
}
