//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowTTL leaves the heartbeats some time: the guests take all that the machine has.
const slowTTL = 3 * clusterTTL

// Guests that take longer for each batch than a host may be silent, on all of its
// lanes at once, cost no host a lease: what keeps it is a heartbeat of its own.
func TestSlowGuestsKeepTheirLeases(t *testing.T) {
	long(t)
	spin := turnsOf(t, slowTTL*5/4)
	onPrivate(t, func(t *testing.T, v server) {
		spin, slow := spin, time.Duration(0)
		for range 4 { // the machine may have been slower while it was measured
			if slow = slowly(t, v, spin); slow > slowTTL {
				return
			}
			spin *= 2
		}
		require.Greater(t, slow, slowTTL, "the guests are not slow enough to tell anything")
	})
}

// slowly has two hosts apply some lines in batches of one, and checks that no
// lease changes hands. It returns how long a call of a guest takes.
func slowly(t *testing.T, v server, spin int) time.Duration {
	t.Helper()
	config := strings.NewReplacer("batch = 40", "batch = 1",
		fmt.Sprintf("instance_ttl = %q", clusterTTL.String()), fmt.Sprintf("instance_ttl = %q", slowTTL.String())).Replace(clusterConfig)
	c := newCluster(t, v, v.dsn(t), plan{places: 2, ledgers: true, spin: spin, config: config})
	c.start(c.members...)
	c.settled(c.members...)
	owners := `SELECT "build", "partition", "instance_id", "generation" FROM "ph_ownership" ORDER BY "build", "partition"`
	before := c.db.rows(owners)
	feed := newFeeder(c, rand.New(rand.NewPCG(1, 61)), loanLines(t))
	require.True(t, feed.feed(2))
	c.caughtUp()
	calls, seconds := 0.0, 0.0
	for _, m := range c.members {
		n, s := m.serves().guestCalls()
		calls, seconds = calls+n, seconds+s
	}
	t.Logf("%.0f calls of guests, of %.1f s", calls, seconds/calls)
	require.Equal(t, before, c.db.rows(owners))
	c.stop()
	c.equalsTheLog(feed)
	return time.Duration(seconds / calls * float64(time.Second))
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
