package e2e

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const endItsTransaction = "another process holds the database's write lock: end its transaction"

// lock takes the database's write lock as an SQL client would, and returns what
// gives it back.
func (s *site) lock() (unlock func()) {
	s.t.Helper()
	db := s.open()
	conn, err := db.Conn(context.Background())
	require.NoError(s.t, err)
	_, err = conn.ExecContext(context.Background(), "PRAGMA busy_timeout = 60000")
	require.NoError(s.t, err)
	_, err = conn.ExecContext(context.Background(), "BEGIN IMMEDIATE")
	require.NoError(s.t, err)
	return func() {
		s.t.Helper()
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		require.NoError(s.t, err)
		require.NoError(s.t, conn.Close())
		require.NoError(s.t, db.Close())
	}
}

// Somebody else holds the write lock: appends wait a while and are refused with
// what to do, the host is not ready and says why, reads go on; with the lock
// gone everything goes on by itself.
func TestDatabaseIsLocked(t *testing.T) {
	s := newSite(t, "")
	fold, lines := loanSample(t, 3000)
	h := s.start().ready()
	require.True(t, h.send(bytes.Join(lines[:1000], nil)))
	h.caughtUp()
	unlock := s.lock()

	answers := make(chan answer, 2)
	go func() {
		a, _ := h.call("POST", "/v1/import", string(bytes.Join(lines[1000:2000], nil)))
		answers <- a
	}()
	go func() {
		a, _ := h.call("GET", "/readyz", "")
		answers <- a
	}()
	require.Equal(t, http.StatusOK, h.must("GET", "/v1/read-models/applications?limit=3", "").status)
	for range 2 {
		a := <-answers
		require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
		require.Contains(t, a.body, endItsTransaction)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	o := s.run(`{"type":"T","data":1}`, "append", "other", "O-1", "--url", h.url)
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stderr, "projhost: append to other/O-1: append: the database cannot be used right now: another process holds the database's write lock: end its transaction (an SQL client, a backup)")

	unlock()
	require.True(t, h.send(bytes.Join(lines, nil)))
	h.caughtUp()
	h.ready()
	h.stop()
	s.equalsOracle(fold)
}

// A start at a locked database ends with the reason.
func TestStartAtALockedDatabase(t *testing.T) {
	s := newSite(t, "")
	s.start().ready().stop()
	unlock := s.lock()
	for _, command := range [][]string{{"run"}, {"append", "other", "O-1"}} {
		o := s.run(`{"type":"T","data":1}`, command...)
		require.Equal(t, 1, o.code)
		require.Contains(t, o.stderr, endItsTransaction)
		require.NotContains(t, o.stderr, "it is tried again", "it is not")
	}
	unlock()
	s.run(`{"type":"T","data":1}`, "append", "other", "O-1").ok()
	s.start().ready().stop()
}

// The lock comes in the middle of applying: the host retries the very batch. It
// stops in time all the same, and the next start goes on (P1).
func TestLockedWhileApplying(t *testing.T) {
	s := newSite(t, "[apply]\nbatch = 20\n")
	fold, lines := loanSample(t, 20_000)
	h := s.start().ready()
	require.True(t, h.send(bytes.Join(lines, nil)))
	unlock := s.lock()
	c := h.stuck()
	require.Contains(t, c.Reason, endItsTransaction)
	require.Positive(t, c.Lag)
	require.Equal(t, http.StatusOK, h.must("GET", "/v1/read-models/applications?limit=3", "").status)
	began := time.Now()
	h.stop()
	t.Logf("stopped within %v", time.Since(began))
	require.Less(t, time.Since(began), 25*time.Second)
	unlock()

	h = s.start().ready()
	unlock = s.lock()
	h.stuck()
	unlock()
	h.caughtUp()
	h.stop()
	s.equalsOracle(fold)
}
