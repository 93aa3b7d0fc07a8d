//go:build unix

package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A host that is told to stop hands its partitions over when the batches in hand
// are committed, and others have all of them within one rebalance interval: no
// time is lost on waiting for it to lapse.
func TestStoppingHostHandsOver(t *testing.T) {
	long(t)
	onPrivate(t, func(t *testing.T, v server) {
		c := newCluster(t, v, v.dsn(t), plan{places: 3, config: clusterConfig})
		c.start(c.members...)
		c.settled(c.members...)
		feed := newFeeder(c, rand.New(rand.NewPCG(1, 51)), loanLines(t))
		stopFeeding := feed.meanwhile()
		for _, m := range c.members {
			time.Sleep(time.Duration(rand.Int64N(int64(time.Second)))) // the moment is the point
			id := m.instance()
			if c.owned(id) == 0 {
				continue
			}
			m.leave()
			told := time.Now()
			c.wait("it has handed over", func() string {
				if n := c.owned(id); n > 0 {
					return fmt.Sprintf("%d partitions are still its own", n)
				}
				return ""
			})
			released := time.Now()
			c.wait("others own everything", func() string {
				if n := c.db.count("ph_ownership WHERE instance_id IS NULL"); n > 0 {
					return fmt.Sprintf("%d partitions belong to nobody", n)
				}
				return ""
			})
			gap := time.Since(released)
			t.Logf("handed over within %v, owned by others %v later", released.Sub(told).Round(time.Millisecond), gap.Round(time.Millisecond))
			require.Less(t, gap, clusterRebalance+slack)
			m.gone()
			c.start(m)
			c.settled(c.members...)
		}
		stopFeeding()
		c.caughtUp()
		c.stop()
		c.equalsTheLog(feed)
	})
}
