package partition_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// Rows of partitions that do not exist, which somebody has added or spoilt, change
// nothing for those that do.
func TestSpoiltRowsArePassedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(4, 1)
		for _, p := range []int{-1, 4, 1 << 40} {
			c.spoilt = append(c.spoilt, store.Ownership{Partition: p, InstanceID: "x", Generation: 3})
		}
		a, b := startHost(t, c, nil, 1), startHost(t, c, nil, 1)
		pass(4 * rebalance)
		loads := c.loads(1)
		require.Equal(t, 4, loads[a.id()]+loads[b.id()])
		require.LessOrEqual(t, max(loads[a.id()], loads[b.id()]), 3)
		a.end()
		b.end()
	})
}
