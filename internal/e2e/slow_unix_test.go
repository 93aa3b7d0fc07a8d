//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guests that take longer for each batch than a host may be silent, on all of its
// lanes at once, cost no host a lease: what keeps it is a heartbeat of its own.
func TestSlowGuestsKeepTheirLeases(t *testing.T) {
	long(t)
	const ttl = clusterTTL
	spin := turnsOf(t, ttl*11/10)
	onPrivate(t, func(t *testing.T, v server) {
		config := strings.Replace(clusterConfig, "batch = 40", "batch = 1", 1)
		c := newCluster(t, v, v.dsn(t), plan{places: 2, ledgers: true, spin: spin, config: config})
		c.start(c.members...)
		c.settled(c.members...)
		owners := `SELECT "build", "partition", "instance_id", "generation" FROM "ph_ownership" ORDER BY "build", "partition"`
		before := c.db.rows(owners)
		feed := newFeeder(c, rand.New(rand.NewPCG(1, 61)), loanLines(t))
		require.True(t, feed.feed(5))
		c.caughtUp()
		calls, seconds := 0.0, 0.0
		for _, m := range c.members {
			n, s := m.serves().guestCalls()
			calls, seconds = calls+n, seconds+s
		}
		t.Logf("%.0f calls of guests, of %.1f s", calls, seconds/calls)
		require.Greater(t, seconds/calls, ttl.Seconds(), "the guests are not slow enough to tell anything")
		require.Equal(t, before, c.db.rows(owners))
		c.stop()
		c.equalsTheLog(feed)
	})
}

// turnsOf measures how often the ledger's loop turns in a time.
func turnsOf(t *testing.T, d time.Duration) int {
	t.Helper()
	const turns = 500_000
	s := plan{ledgers: true, spin: turns}.site(t, "", "")
	h := s.start().ready()
	_, lines := loanSample(t, 3)
	require.True(t, h.send(bytes.Join(lines, nil)))
	for _, l := range ledgers {
		h.applied(l, int64(len(lines)))
	}
	calls, seconds := h.guestCalls()
	h.stop()
	messages := float64(len(ledgers) * len(lines))
	t.Logf("a turn takes %.0f ns (%.0f calls)", seconds/messages/turns*1e9, calls)
	return int(d.Seconds() / (seconds / messages / turns))
}

// guestCalls are how many calls of guests a host has made, and the seconds they
// took.
func (h *host) guestCalls() (n, seconds float64) {
	h.t.Helper()
	for lines := bufio.NewScanner(strings.NewReader(string(h.get("/metrics")))); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		f, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "projhost_guest_call_seconds_count"):
			n += f
		case strings.HasPrefix(name, "projhost_guest_call_seconds_sum"):
			seconds += f
		}
	}
	return n, seconds
}
