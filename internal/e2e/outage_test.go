package e2e

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// feed sends lines in chunks, each again until the host acknowledges it, and
// returns when all are or the time has come.
func (h *host) feed(lines [][]byte, chunk int, done <-chan struct{}) (left [][]byte) {
	for len(lines) > 0 {
		n := min(chunk, len(lines))
		if h.try(bytes.Join(lines[:n], nil)) {
			lines = lines[n:]
			continue
		}
		select {
		case <-done:
			return lines
		case <-time.After(20 * time.Millisecond): // until the database is back
		}
	}
	return nil
}

// Promises P1, P4 and P9: the database server is killed in the middle of appends
// and applies, more than once, and comes back. The host lives through it: readyz
// is red while the database is away and green again afterwards, what was
// acknowledged is there once, and the rows are those of the log.
func TestServerIsKilled(t *testing.T) {
	onPrivate(t, func(t *testing.T, v server) {
		srv := v.private(t)
		s := newSiteOn(t, v.driver, srv.DSN, quick+"[apply]\nbatch = 100\n")
		kills := 3
		if testing.Short() {
			kills = 1
		}
		fold, lines := loanSample(t, 2500*kills)
		h := s.start().ready()
		for k := range kills {
			part := lines[len(lines)*k/kills : len(lines)*(k+1)/kills]
			var feeding sync.WaitGroup
			feeding.Go(func() { h.feed(part, 100, nil) })
			time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond) // the moment is the point
			srv.Kill()
			h.wait("readyz is red", func() bool { return !h.isReady() })
			a := h.must("GET", "/readyz", "")
			require.Contains(t, a.body, "store: ")
			require.NotContains(t, a.body, "password")
			a = h.must("POST", "/v1/streams/thing/x", `{"expected_version":0,"events":[{"type":"T","data":1}]}`)
			require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
			srv.Start()
			h.ready()
			feeding.Wait()
		}
		h.caughtUp()
		h.ready()
		h.stop()
		require.Equal(t, len(lines), s.count("ph_events"))
		s.equalsOracle(fold)
		require.Empty(t, h.logLines("consumer halted: the message and everything behind it wait for an operator or a new module"))
	})
}

// Connections are cut at random messages and bytes, in both directions, while
// the host appends and applies: in the middle of a statement, before and after a
// COMMIT, while an answer comes.
func TestConnectionsAreCut(t *testing.T) {
	onPrivate(t, func(t *testing.T, v server) {
		if *seed == 0 {
			*seed = uint64(time.Now().UnixNano())
		}
		t.Logf("-seed %d", *seed)
		random := rand.New(rand.NewPCG(*seed, 4))
		direct := v.dsn(t)
		proxy := dbtest.NewProxy(t, direct)
		s := newSiteOn(t, v.driver, proxy.DSN, quick+"[apply]\nbatch = 40\n")
		cuts := 30
		if testing.Short() {
			cuts = 10
		}
		fold, lines := loanSample(t, 100*cuts)
		h := s.start().ready()
		done := make(chan struct{})
		var cutting sync.WaitGroup
		cutting.Go(func() {
			for proxy.Cuts() < cuts {
				direction := dbtest.Direction(random.IntN(2))
				if random.IntN(3) == 0 {
					proxy.CutAfter(direction, 1+random.IntN(20_000))
				} else {
					proxy.CutAt(direction, 1+random.IntN(60))
				}
				select {
				case <-done:
					return
				case <-time.After(time.Duration(random.IntN(120)) * time.Millisecond): // the moment is the point
				}
			}
		})
		h.feed(lines, 40, nil)
		close(done)
		cutting.Wait()
		proxy.Disarm()
		require.Greater(t, proxy.Cuts(), cuts/4)
		t.Logf("%d cuts", proxy.Cuts())
		h.caughtUp()
		h.ready()
		h.stop()
		s.dsn = direct
		s.write("config.toml", strings.Replace(s.read("config.toml"), quoted(proxy.DSN), quoted(direct), 1))
		require.Equal(t, len(lines), s.count("ph_events"))
		s.equalsOracle(fold)
	})
}
