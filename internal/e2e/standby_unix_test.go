//go:build unix

package e2e

import (
	"bytes"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Promise P2 with two hosts on one database: the first is stopped where it
// stands, in an append, an apply or in between, for longer than it counts as
// running. The second waits for its partitions, takes them when the time is
// over whatever locks the first one left, and applies the rest. The first wakes up
// in the belief that all is as it was: nothing it had in hand is stored, and it
// gets its share of the partitions again, and all when the second stops.
func TestPausedHostIsReplaced(t *testing.T) {
	onServers(t, func(t *testing.T, v server) {
		dsn := v.dsn(t)
		config := quick + "[apply]\nbatch = 30\n"
		first, second := newSiteOn(t, v.driver, dsn, config), newSiteOn(t, v.driver, dsn, config)
		rounds := 3
		if testing.Short() {
			rounds = 1
		}
		fold, lines := loanSample(t, 2400*rounds)
		a := first.start().ready()
		for r := range rounds {
			part := lines[len(lines)*r/rounds : len(lines)*(r+1)/rounds]
			half := len(part) / 2
			require.True(t, a.send(bytes.Join(part[:half], nil)))
			time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // somewhere in applying them
			require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
			if r%2 == 1 {
				time.Sleep(1500 * time.Millisecond) // the second host finds it lapsed, and removes it
			}
			b := second.start()
			b.feed(part[half:], 100, nil)
			b.caughtUp()
			require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
			for _, name := range []string{"applications", "resources"} {
				a.wait("both have partitions", func() bool {
					mine, other := a.consumer(name).Partitions, b.consumer(name).Partitions
					return mine > 0 && other > 0
				})
			}
			b.stop()
			a.until("applications", "running")
			a.until("resources", "running")
			a.caughtUp()
		}
		a.ready().stop()
		require.Equal(t, len(lines), first.count("ph_events"))
		first.equalsOracle(fold)
	})
}
