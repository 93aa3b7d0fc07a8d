//go:build unix

package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// A host is frozen in the middle of a transaction, an append or an apply, with its
// connections open and its locks held (H35). Others can append at the latest when
// the server has ended that, which is after instance_ttl, and have all of its
// partitions within instance_ttl and rebalance. When it wakes, nothing it had in
// hand is stored, and it takes its share again.
func TestFrozenInsideATransaction(t *testing.T) {
	long(t)
	onPrivate(t, func(t *testing.T, v server) {
		srv := v.private(t)
		c := newCluster(t, v, srv.DSN, plan{places: 3, config: clusterConfig})
		c.start(c.members...)
		feed := newFeeder(c, rand.New(rand.NewPCG(1, 31)), loanLines(t))
		require.True(t, feed.feed(200))
		for _, inside := range []string{"an append", "an apply"} {
			m, id, chunk := c.freezeInside(feed, inside)
			began := time.Now()
			require.True(t, feed.push(chunk, m))
			appended := time.Since(began)
			require.Lessf(t, appended, clusterTTL+slack, "frozen inside %s, appends go on", inside)
			c.wait("others have taken over", func() string {
				if n := c.owned(id); n > 0 {
					return fmt.Sprintf("%d partitions are still its own", n)
				}
				return ""
			})
			taken := time.Since(began)
			require.Lessf(t, taken, clusterTTL+clusterRebalance+slack, "frozen inside %s, others take over", inside)
			c.caughtUp(m)
			t.Logf("frozen inside %s: appends went on after %v, its partitions were taken after %v, and all was applied after %v",
				inside, appended.Round(time.Millisecond), taken.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			m.proxy.Release()
			m.signal(syscall.SIGCONT)
			c.start(c.members...) // it is ready again
		}
		require.True(t, feed.feed(40))
		c.caughtUp()
		c.stop()
		c.equalsTheLog(feed)
	})
}

// freezeInside freezes a host that is in the middle of a transaction: what it
// sends is held back from some message on, until one is inside. The lines that
// are returned were appended by way of it, or by nobody yet.
func (c *cluster) freezeInside(feed *feeder, what string) (*member, string, chunk) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		m := c.members[rand.IntN(len(c.members))]
		id := m.instance()
		if what == "an apply" && c.owned(id) == 0 {
			continue
		}
		lines := feed.take(40)
		var sending sync.WaitGroup
		m.proxy.HoldAt(dbtest.ToServer, 1+rand.IntN(40))
		if what == "an append" {
			h := m.serves()
			sending.Go(func() { feed.send(h, lines.text) })
		} else {
			require.True(c.t, feed.push(lines, m))
			lines = feed.take(40)
		}
		inside := false
		for range 20 {
			if inside = m.proxy.Held() && c.inside(what); inside {
				break
			}
			time.Sleep(10 * time.Millisecond) // nothing tells how far it is
		}
		if inside {
			m.signal(syscall.SIGSTOP)
			inside = c.inside(what) // not just ending
		}
		sending.Wait()
		if inside {
			return m, id, lines
		}
		m.proxy.Disarm()
		m.proxy.Release()
		m.signal(syscall.SIGCONT)
		require.True(c.t, feed.push(lines))
	}
	require.FailNow(c.t, "no host was inside "+what)
	return nil, "", chunk{}
}

// inside tells whether a transaction that appends, or one that applies, holds
// what others need.
func (c *cluster) inside(what string) bool {
	c.t.Helper()
	db := c.db.open()
	defer db.Close()
	tx, err := db.BeginTx(c.t.Context(), nil)
	require.NoError(c.t, err)
	defer func() { _ = tx.Rollback() }()
	ask := func(query string) (n int) {
		rows, err := tx.Query(query)
		require.NoError(c.t, err, query)
		defer rows.Close()
		for rows.Next() {
			n++
		}
		require.NoError(c.t, rows.Err())
		return n
	}
	switch {
	case what == "an apply":
		return ask("SELECT build FROM ph_ownership FOR UPDATE SKIP LOCKED") < ask("SELECT build FROM ph_ownership")
	case c.db.driver == "postgres":
		return ask("SELECT 1 FROM pg_locks WHERE relation = 'ph_events'::regclass AND mode = 'RowExclusiveLock'") > 0
	}
	return ask("SELECT name FROM ph_topics WHERE name = 'events' FOR UPDATE SKIP LOCKED") == 0
}
