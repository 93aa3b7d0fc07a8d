package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// network is a network namespace with a cable to this one.
type network struct {
	t           *testing.T
	name        string
	inner       string // the device in there
	outer       string // the device here
	here, there string // addresses
}

// ip runs the program of that name.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// newNetwork makes one, or skips the test where that is not to be had.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not run: hosts in network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("not run: hosts in network namespaces need ip (Debian: iproute2)")
	}
	n := rand.IntN(1 << 14) // of a range that is for tests of networks
	w := &network{t: t, name: fmt.Sprint("ph-test-", n), inner: fmt.Sprint("ph-in-", n), outer: fmt.Sprint("ph-out-", n)}
	w.here, w.there = fmt.Sprintf("198.18.%d.%d", n>>6, n&63<<2+1), fmt.Sprintf("198.18.%d.%d", n>>6, n&63<<2+2)
	if err := ip("netns", "add", w.name); err != nil {
		t.Skip("not run: there are no network namespaces here: ", err)
	}
	t.Cleanup(func() {
		_ = ip("link", "del", w.outer) // it may have gone with the namespace
		require.NoError(t, ip("netns", "del", w.name))
	})
	for _, args := range []string{
		"link add " + w.outer + " type veth peer name " + w.inner + " netns " + w.name,
		"addr add " + w.here + "/30 dev " + w.outer,
		"link set " + w.outer + " up",
		"-n " + w.name + " addr add " + w.there + "/30 dev " + w.inner,
		"-n " + w.name + " link set " + w.inner + " up",
		"-n " + w.name + " link set lo up",
	} {
		require.NoError(t, ip(strings.Fields(args)...))
	}
	return w
}

// cut loses every packet in both directions: each side sends to an address that
// the other does not have. No connection ends by it.
func (w *network) cut() {
	w.t.Helper()
	const nobody = "02:00:00:00:00:01"
	require.NoError(w.t, ip("neigh", "replace", w.there, "lladdr", nobody, "dev", w.outer, "nud", "permanent"))
	require.NoError(w.t, ip("-n", w.name, "neigh", "replace", w.here, "lladdr", nobody, "dev", w.inner, "nud", "permanent"))
}

// heal ends a cut.
func (w *network) heal() {
	w.t.Helper()
	require.NoError(w.t, ip("neigh", "del", w.there, "dev", w.outer))
	require.NoError(w.t, ip("-n", w.name, "neigh", "del", w.here, "dev", w.inner))
}

// A host whose packets to and from the database are lost counts as running until
// its time is over, and others have its partitions soon after. It believes in its
// connections for longer than that. When the network is well again, nothing of
// what it had in hand is stored, and it joins as another instance (P2, P4).
func TestHostIsPartitionedFromTheDatabase(t *testing.T) {
	long(t)
	onPrivate(t, func(t *testing.T, v server) {
		networks := []*network{newNetwork(t), newNetwork(t)}
		listen := "127.0.0.1," + networks[0].here + "," + networks[1].here
		setting := "listen_addresses=" + listen
		if v.driver == "mysql" {
			setting = "bind-address=" + listen
		}
		srv := v.private(t, setting)
		p := plan{config: clusterConfig}
		c := newCluster(t, v, srv.DSN, p)
		for _, w := range networks {
			m := &member{hidden: true, proxy: dbtest.NewProxy(t, srv.DSN)}
			m.site = p.site(t, v.driver, strings.Replace(srv.DSN, "127.0.0.1", w.here, 1))
			m.wrapper = []string{"ip", "netns", "exec", w.name}
			c.members = append(c.members, m)
		}
		m := &member{proxy: dbtest.NewProxy(t, srv.DSN)}
		m.site = p.site(t, v.driver, m.proxy.DSN)
		c.members = append(c.members, m)
		for _, m := range c.members {
			require.NoError(t, os.CopyFS(filepath.Join(m.dir, "data", "modules"), os.DirFS(filepath.Join(c.db.dir, "data", "modules"))))
		}

		c.members[0].run()
		id := c.newcomer(nil)
		c.wait("it owns partitions", func() string {
			if c.owned(id) == 0 {
				return "it owns none"
			}
			return ""
		})
		c.members[1].run()
		other := c.newcomer([]string{id})
		c.start(c.members[2])
		third := c.members[2].instance()

		feed := newFeeder(c, rand.New(rand.NewPCG(1, 41)), loanLines(t))
		stopFeeding := feed.meanwhile()
		time.Sleep(time.Duration(rand.Int64N(int64(time.Second)))) // the moment is the point
		networks[0].cut()
		began := time.Now()
		c.wait("others have taken over", func() string {
			if n := c.owned(id); n > 0 {
				return fmt.Sprintf("%d partitions are still its own", n)
			}
			return ""
		})
		taken := time.Since(began)
		require.Less(t, taken, clusterTTL+clusterRebalance+slack)
		time.Sleep(clusterTTL) // others apply what it had in hand
		networks[0].heal()
		back := c.newcomer([]string{id, other, third})
		t.Logf("taken over after %v, back after %v", taken.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		time.Sleep(clusterTTL) // in which it does what it can
		stopFeeding()
		c.caughtUp()
		require.NotEqual(t, id, back)
		c.stop()
		c.equalsTheLog(feed)
	})
}

// newcomer waits for an instance that is none of some, and returns its id.
func (c *cluster) newcomer(known []string) (id string) {
	c.t.Helper()
	c.wait("another instance joins", func() string {
		for _, row := range c.db.rows(`SELECT "id" FROM "ph_instances"`) {
			if !strings.Contains(strings.Join(known, " "), row[0]) {
				id = row[0]
				return ""
			}
		}
		return "there is none"
	})
	return id
}
