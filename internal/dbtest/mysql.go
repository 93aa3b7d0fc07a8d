package dbtest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var sharedMySQL = shared{what: "mysql", start: func() (*Server, error) {
	return startMySQL("innodb_flush_log_at_trx_commit=2", "innodb_doublewrite=0")
}}

// NewMariaDB starts a private MariaDB, or MySQL where that is what is
// installed, with further settings ("innodb_lock_wait_timeout=5"); it is ended
// and removed with the test. What it acknowledges survives Kill.
func NewMariaDB(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := startMySQL(settings...)
	if err != nil {
		unavailable(t, "mysql", err)
	}
	s.t = t
	t.Cleanup(func() { s.keep.close() })
	execSQL(t, "mysql", s.admin, "CREATE DATABASE test")
	s.DSN = s.admin + "test"
	return s
}

func startMySQL(settings ...string) (*Server, error) {
	mariadb := true
	server := program("mariadbd", "/usr/sbin")
	if server == "" {
		server = program("mysqld", "/usr/sbin")
		version, _ := exec.Command(server, "--version").Output()
		mariadb = strings.Contains(string(version), "MariaDB")
	}
	if server == "" {
		return nil, missingError("MariaDB or MySQL: install it (Debian: mariadb-server), or set PROJHOST_TEST_MYSQL_DSN")
	}
	k, err := newKeeper("mysql")
	if err != nil {
		return nil, err
	}
	s := &Server{keep: k}
	s.serve = func(port int) string {
		words := []string{server, "--no-defaults", "--datadir=" + k.dir + "/data",
			"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port), "--socket=" + k.dir + "/socket",
			"--pid-file=" + k.dir + "/pid", "--init-file=" + k.dir + "/init.sql", "--skip-name-resolve",
			"--innodb-buffer-pool-size=64M", "--max-connections=200", "--default-time-zone=+05:45",
			"--lc-messages=en_US"}
		for _, setting := range settings {
			words = append(words, "--"+setting)
		}
		s.admin = fmt.Sprintf("test@tcp(127.0.0.1:%d)/", port)
		return command(words...)
	}
	s.ready = func(ctx context.Context) error {
		db, err := sql.Open("mysql", s.admin)
		if err != nil {
			return err
		}
		defer db.Close()
		return db.PingContext(ctx)
	}
	if err := initMySQL(k, server, mariadb); err != nil {
		k.close()
		return nil, err
	}
	if err := s.launch(); err != nil {
		k.close()
		return nil, err
	}
	return s, nil
}

func initMySQL(k *keeper, server string, mariadb bool) error {
	// One statement a line; it is run at every start.
	init := "CREATE USER IF NOT EXISTS test@'%';\nGRANT ALL ON *.* TO test@'%' WITH GRANT OPTION;\n"
	file := filepath.Join(k.dir, "init.sql")
	if err := os.WriteFile(file, []byte(init), 0o644); err != nil {
		return err
	}
	if !mariadb {
		return k.do(command(server, "--no-defaults", "--initialize-insecure", "--datadir="+k.dir+"/data"))
	}
	install := program("mariadb-install-db", filepath.Join(filepath.Dir(server), "../bin"), filepath.Join(filepath.Dir(server), "../scripts"))
	if install == "" {
		return missingError("mariadb-install-db: install it (Debian: mariadb-server)")
	}
	return k.do(command(install, "--no-defaults", "--datadir="+k.dir+"/data", "--auth-root-authentication-method=normal",
		"--skip-test-db", "--skip-name-resolve"))
}
