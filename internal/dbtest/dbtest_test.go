package dbtest

import (
	"context"
	"database/sql"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func openMySQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func TestPostgresGivesAnEmptyDatabasePerCallAndDropsIt(t *testing.T) {
	t.Parallel()
	outer := connect(t, Postgres(t))
	var name string
	t.Run("inner", func(t *testing.T) {
		dsn := Postgres(t)
		// Left open on purpose: the drop must not wait for it.
		conn, err := pgx.Connect(context.Background(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn })
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
		_, err = conn.Exec(t.Context(), "BEGIN; CREATE TABLE t (id int)")
		require.NoError(t, err)
		var tables int
		require.NoError(t, outer.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
		require.Zero(t, tables)
	})
	var left int
	require.NoError(t, outer.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", name).Scan(&left))
	require.Zero(t, left)
}

func TestMySQLGivesAnEmptyDatabasePerCallAndDropsIt(t *testing.T) {
	t.Parallel()
	outer := openMySQL(t, MySQL(t))
	var name string
	t.Run("inner", func(t *testing.T) {
		conn, err := openMySQL(t, MySQL(t)).Conn(t.Context())
		require.NoError(t, err)
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT database()").Scan(&name))
		for _, s := range []string{"CREATE TABLE t (id int)", "BEGIN", "INSERT INTO t VALUES (1)"} {
			_, err = conn.ExecContext(t.Context(), s)
			require.NoError(t, err)
		}
		var tables int
		require.NoError(t, outer.QueryRow("SELECT count(*) FROM information_schema.tables WHERE table_schema = database()").Scan(&tables))
		require.Zero(t, tables)
	})
	var left int
	require.NoError(t, outer.QueryRow("SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?", name).Scan(&left))
	require.Zero(t, left)
}

func TestKilledPostgresKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t, "max_prepared_transactions=3")
	folder := s.keep.dir
	conn := connect(t, s.DSN)
	_, err := conn.Exec(t.Context(), "CREATE TABLE t AS SELECT 1 AS id")
	require.NoError(t, err)
	s.Kill()
	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.Error(t, err)
	_, err = pgx.Connect(t.Context(), s.DSN)
	require.Error(t, err)
	s.Start()
	conn = connect(t, s.DSN)
	var setting string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting('max_prepared_transactions') FROM t").Scan(&setting))
	require.Equal(t, "3", setting)
	require.NoError(t, s.keep.close())
	require.NoDirExists(t, folder)
}

func TestKilledMariaDBKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	s := NewMariaDB(t)
	folder := s.keep.dir
	db := openMySQL(t, s.DSN)
	_, err := db.Exec("CREATE TABLE t AS SELECT 1 AS id")
	require.NoError(t, err)
	s.Kill()
	require.Error(t, db.Ping())
	s.Start()
	var id int
	require.NoError(t, db.QueryRow("SELECT id FROM t").Scan(&id))
	require.NoError(t, s.keep.close())
	require.NoDirExists(t, folder)
}

func TestFrozenServerAnswersAfterTheThaw(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t)
	conn := connect(t, s.DSN)
	s.Freeze()
	t.Cleanup(s.Thaw)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT 1")
		answered <- err
	}()
	defer cancel()
	for _, pid := range append(descendants(s.pid), s.pid) {
		require.Eventually(t, func() bool { state, _ := processState(pid); return state == "T" }, patience, time.Millisecond)
	}
	select {
	case <-answered:
		t.Fatal("a frozen server answered")
	default:
	}
	s.Thaw()
	require.NoError(t, <-answered)
}

// The test binary runs itself: the child starts both servers and is killed.
func TestNothingOutlivesAKilledTestProcess(t *testing.T) {
	t.Parallel()
	temp := os.Getenv("PROJHOST_DBTEST_CHILD")
	if temp != "" {
		NewPostgres(t).Kill() // its shared memory is then the keeper's to remove
		NewPostgres(t)
		NewMariaDB(t)
		os.WriteFile(filepath.Join(temp, "ready"), nil, 0o644)
		select {}
	}
	for _, name := range []string{"postgres", "mariadbd"} {
		if program(name, "/usr/lib/postgresql/*/bin", "/usr/sbin") == "" {
			absent(t, "postgres", name)
		}
	}
	temp, err := os.MkdirTemp("", "ph-parent-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(temp) })
	require.NoError(t, os.Chmod(temp, 0o777))
	child := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesAKilledTestProcess$")
	child.Env = append(os.Environ(), "PROJHOST_DBTEST_CHILD="+temp, "TMPDIR="+temp)
	child.Stdout, child.Stderr = t.Output(), t.Output()
	child.WaitDelay = time.Second // the servers must not hold the child's output open
	require.NoError(t, child.Start())
	ready := func() bool { _, err := os.Stat(filepath.Join(temp, "ready")); return err == nil }
	require.Eventually(t, ready, patience, 10*time.Millisecond)
	servers := processesNaming(temp)
	require.NotEmpty(t, servers)
	require.NoError(t, child.Process.Signal(syscall.SIGKILL))
	require.ErrorContains(t, child.Wait(), "killed")

	gone := func() bool {
		left, err := filepath.Glob(filepath.Join(temp, "ph-dbtest-*"))
		return err == nil && len(left) == 0 && len(processesNaming(temp)) == 0
	}
	require.Eventually(t, gone, patience, 20*time.Millisecond)
}

// processesNaming are the processes whose command line holds text, zombies
// aside (they have none).
func processesNaming(text string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), text) {
			found = append(found, file)
		}
	}
	return found
}

func TestPgBouncerPoolsByTransaction(t *testing.T) {
	t.Parallel()
	dsn := PgBouncer(t, Postgres(t))
	c, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	var conns [2]*pgx.Conn
	var pids [2]int
	for i := range conns {
		conns[i], err = pgx.ConnectConfig(t.Context(), c)
		require.NoError(t, err)
		defer conns[i].Close(t.Context())
		require.NoError(t, conns[i].QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pids[i]))
	}
	require.Equal(t, pids[0], pids[1], "one session of the server serves both")
}

func TestProxyCutsAtAnyMessage(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		dsn := Postgres(t)
		direct := connect(t, dsn)
		_, err := direct.Exec(t.Context(), "CREATE TABLE t (id int)")
		require.NoError(t, err)
		proxy := NewProxy(t, dsn)
		insert := func() error {
			conn := connect(t, proxy.DSN)
			proxy.CutAt(ToServer, 1)
			defer proxy.Disarm()
			_, err := conn.Exec(t.Context(), "INSERT INTO t VALUES (1)")
			return err
		}
		require.Error(t, insert())
		require.Equal(t, 1, proxy.Cuts())
		requireCount(t, direct, 0)

		// The statement is executed, its answer is lost.
		conn := connect(t, proxy.DSN)
		proxy.CutAt(ToClient, 1)
		_, err = conn.Exec(t.Context(), "INSERT INTO t VALUES (1)")
		require.Error(t, err)
		requireCount(t, direct, 1)

		// From the first message to none that is left: each fails until one is whole.
		n := 1
		for ; ; n++ {
			conn, cuts := connect(t, proxy.DSN), proxy.Cuts()
			proxy.CutAt(ToServer, n)
			_, err := conn.Exec(t.Context(), "SELECT $1::text", "x")
			proxy.Disarm()
			if proxy.Cuts() == cuts {
				require.NoError(t, err)
				break
			}
			require.Error(t, err)
		}
		require.Equal(t, 1+3+3, n, "Parse, Describe, Sync; Bind, Execute, Sync")
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		dsn := MySQL(t)
		direct := openMySQL(t, dsn)
		_, err := direct.Exec("CREATE TABLE t (id int)")
		require.NoError(t, err)
		proxy := NewProxy(t, dsn)
		for _, d := range []Direction{ToServer, ToClient} {
			conn, err := openMySQL(t, proxy.DSN).Conn(t.Context())
			require.NoError(t, err)
			proxy.CutAt(d, 1)
			_, err = conn.ExecContext(t.Context(), "INSERT INTO t VALUES (1)")
			require.Error(t, err)
			conn.Close()
		}
		require.Equal(t, 2, proxy.Cuts())
		var n int
		require.NoError(t, direct.QueryRow("SELECT count(*) FROM t").Scan(&n))
		require.Equal(t, 1, n)
	})
}

func requireCount(t *testing.T, conn *pgx.Conn, want int) {
	t.Helper()
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n))
	require.Equal(t, want, n)
}

func TestProxyCutsAfterBytesOnCommandAndHolds(t *testing.T) {
	t.Parallel()
	server := echo(t)
	proxy := NewProxy(t, "test@tcp("+server+")/test")
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(proxy.DSN, "test@tcp("), ")/test"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	message := []byte{3, 0, 0, 0, 'a', 'b', 'c'}
	answer := make([]byte, len(message))

	conn := dial()
	_, err := conn.Write(message)
	require.NoError(t, err)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, message, answer)

	proxy.CutAfter(ToClient, 5)
	conn.Write(message)
	n, err := io.ReadFull(conn, answer)
	require.Error(t, err)
	require.Equal(t, 5, n)

	conn = dial()
	proxy.Hold()
	conn.Write(message)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = conn.Read(answer)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	proxy.Release()
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)

	proxy.HoldAt(ToServer, 2)
	conn.Write(message)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.False(t, proxy.Held())
	conn.Write(message)
	require.Eventually(t, proxy.Held, patience, time.Millisecond)
	proxy.Release()
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)

	proxy.Cut()
	_, err = conn.Read(answer)
	require.Error(t, err)

	proxy.Refuse(true)
	conn = dial()
	_, err = conn.Read(answer)
	require.Error(t, err)
	proxy.Refuse(false)
	conn = dial()
	conn.Write(message)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
}

// echo is a server that gives back what it gets.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(conn, conn); conn.Close() }()
		}
	}()
	return l.Addr().String()
}

func TestFramesFindsMessagesHoweverTheyArrive(t *testing.T) {
	t.Parallel()
	stream := []byte{0, 0, 0, 8, 0, 3, 0, 0, 'Q', 0, 0, 0, 4, 'X', 0, 0, 0, 6, 'h', 'i', 'Q', 0, 0, 0, 5, 0}
	for size := 1; size <= len(stream); size++ {
		f := frames{framing: postgresFraming, untyped: true}
		var starts []int
		for at := 0; at < len(stream); {
			rest := stream[at:min(at+size, len(stream))]
			for len(rest) > 0 {
				piece, begins := f.next(rest)
				if begins {
					starts = append(starts, at)
				}
				at, rest = at+len(piece), rest[len(piece):]
			}
		}
		require.Equal(t, []int{0, 8, 13, 20}, starts, "pieces of %d", size)
	}
}
