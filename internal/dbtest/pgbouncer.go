package dbtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PgBouncer starts a pooler in transaction mode before the server of a DSN that
// Postgres or NewPostgres gave, and gives the DSN that goes through it. Session
// state does not survive a transaction there, and parameters at connect other
// than the usual are refused, as pgbouncer does by default. "pgbouncer" requires it.
func PgBouncer(t testing.TB, dsn string) string {
	t.Helper()
	bouncer := program("pgbouncer", "/usr/sbin")
	if bouncer == "" {
		absent(t, "pgbouncer", "pgbouncer: install it (Debian: pgbouncer)")
	}
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKeeper("postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.close() })
	s := &Server{keep: k, t: t}
	config := filepath.Join(k.dir, "pgbouncer.ini")
	users := filepath.Join(k.dir, "users")
	if err := os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", c.User, c.Password), 0o644); err != nil {
		t.Fatal(err)
	}
	s.serve = func(port int) string {
		text := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
`, c.Host, c.Port, port, users)
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		u := url.URL{Scheme: "postgres", User: url.User(c.User), Host: fmt.Sprint("127.0.0.1:", port),
			Path: "/" + c.Database, RawQuery: "sslmode=disable"}
		s.DSN = u.String()
		return command(bouncer, config)
	}
	s.ready = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.DSN)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	return s.DSN
}
