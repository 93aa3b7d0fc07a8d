package e2e

import (
	"bytes"
	"net/http"
	"strconv"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/internal/dbtest"
)

// server is a kind of database server that sites can be on.
type server struct {
	driver string
	dsn    func(testing.TB) string // of a new empty database
	// private starts a server that a test may kill; nil where there is none.
	private func(testing.TB, ...string) *dbtest.Server
}

var servers = []server{
	{"postgres", dbtest.Postgres, dbtest.NewPostgres},
	{"mysql", dbtest.MySQL, dbtest.NewMariaDB},
	{"sqlserver", dbtest.SQLServer, nil},
}

// onServers runs a test on each kind of server there is.
func onServers(t *testing.T, f func(t *testing.T, v server)) {
	for _, v := range servers {
		t.Run(v.driver, func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// long leaves a test out of short runs, under the race detector for one: the
// program that it runs is built without that.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: -short")
	}
}

// onPrivate is onServers for tests that kill, count, or look below the store.
func onPrivate(t *testing.T, f func(t *testing.T, v server)) {
	onServers(t, func(t *testing.T, v server) {
		if v.private == nil {
			t.Skip("not run: there is no private server of ", v.driver)
		}
		f(t, v)
	})
}

// quick is a TTL that a test can wait for.
const quick = "[cluster]\nheartbeat = \"300ms\"\ninstance_ttl = \"1s\"\n"

// try imports lines as send does, but takes a database that is away for an
// answer as well.
func (h *host) try(lines []byte) bool {
	resp, err := http.Post(h.url+"/v1/import", "application/x-ndjson", bytes.NewReader(lines))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return true
	case http.StatusServiceUnavailable:
		return false
	}
	h.t.Errorf("import: %s", resp.Status)
	return false
}

// isReady tells what readyz says.
func (h *host) isReady() bool { return h.must("GET", "/readyz", "").status == http.StatusOK }

// quoted is a text as TOML has it.
func quoted(s string) string { return strconv.Quote(s) }
