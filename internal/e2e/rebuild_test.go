package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
)

// Promises P1, P4 and P9 of a rebuild in place: a module makes wrong rows, and rows
// that are not there at all; its mended successor makes them anew while lines are
// appended and hosts are killed at any moment. In the end every row is that of the
// native fold, and none is left of before.
func TestRebuildInPlace(t *testing.T) {
	const config = "[apply]\nbatch = 30\n"
	s := newSite(t, config)
	rebuilt(t, []*site{s}, 6000, 6, 400*time.Millisecond)
}

// The same with two hosts, on servers.
func TestRebuildInPlaceOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, v server) {
		const config = "rebalance = \"500ms\"\n[apply]\nbatch = 30\n"
		dsn := v.dsn(t)
		sites := []*site{newSiteOn(t, v.driver, dsn, quick+config), newSiteOn(t, v.driver, dsn, quick+config)}
		kills := 6
		if testing.Short() {
			kills = 2
		}
		rebuilt(t, sites, 4000, kills, 1500*time.Millisecond)
	})
}

func rebuilt(t *testing.T, sites []*site, events, kills int, life time.Duration) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 3))
	wrong, right := string(guest.Build(t, "testplugins/loans/buggy")), string(guest.Build(t, "testplugins/loans"))
	fold, lines := loanSample(t, events)
	hosts := make([]*host, len(sites))
	all := func(do func(i int)) {
		for i := range sites {
			do(i)
		}
	}
	const ghosts = `SELECT count(*) FROM "resource_applications" WHERE "child" LIKE 'ghost of %'`

	all(func(i int) { sites[i].write("loans.wasm", wrong) })
	all(func(i int) { hosts[i] = sites[i].start() })
	half := len(lines) / 2
	require.True(t, hosts[0].send(bytes.Join(lines[:half], nil)))
	hosts[0].caughtUp()
	all(func(i int) { hosts[i].stop() })
	before, err := strconv.Atoi(sites[0].rows(ghosts)[0][0])
	require.NoError(t, err)
	require.Positive(t, before)

	all(func(i int) { sites[i].write("loans.wasm", right) })
	all(func(i int) { hosts[i] = sites[i].start().ready() })
	for _, consumer := range []string{"projection/applications", "projection/resources"} {
		sites[0].command("consumers", "rebuild", consumer, "--mode", "in-place", "--yes", "--url", hosts[0].url)
	}
	sent := half
	var mu sync.Mutex // of hosts
	feed := func(upto int) {
		for sent < upto {
			mu.Lock()
			h := hosts[random.IntN(len(hosts))]
			mu.Unlock()
			next := min(sent+100, upto)
			if h.try(bytes.Join(lines[sent:next], nil)) {
				sent = next
			}
		}
	}
	for k := range kills {
		time.Sleep(time.Duration(random.Int64N(int64(life)))) // the moment is the point
		i := random.IntN(len(hosts))
		hosts[i].kill()
		hosts[i] = sites[i].start()
		feed(half + (len(lines)-half)*(k+1)/kills)
	}
	feed(len(lines))
	for _, name := range []string{"applications", "resources"} {
		hosts[0].wait(name+" is rebuilt", func() bool {
			var c struct{ Rebuild *struct{} }
			require.NoError(t, json.Unmarshal(hosts[0].get("/v1/consumers/projection/"+name), &c))
			return c.Rebuild == nil
		})
	}
	// One of them once more, with nobody in its way.
	require.Contains(t, sites[0].command("consumers", "rebuild", "applications", "--mode", "in-place", "--yes", "--watch", "--url", hosts[0].url),
		"projection/applications is rebuilt")
	hosts[0].caughtUp()
	all(func(i int) { hosts[i].stop() })

	sites[0].equalsOracle(fold)
	require.Equal(t, [][]string{{"0"}}, sites[0].rows(ghosts))
	for table, epoch := range map[string]int{"applications": 2, "resources": 1, "resource_applications": 1} {
		build := sites[0].rows(fmt.Sprintf(`SELECT "build" FROM "ph_read_model_tables" WHERE "name" = '%s'`, table))[0][0]
		require.Equal(t, [][]string{{"0"}}, sites[0].rows(fmt.Sprintf(`SELECT count(*) FROM "%s__b%s" WHERE "ph_epoch" <> %d`, table, build, epoch)), "rows of %s that were not made anew", table)
	}
	require.Equal(t, [][]string{{"2", "running"}, {"1", "running"}}, sites[0].rows(`SELECT "epoch", "state" FROM "ph_consumers" ORDER BY "name"`))
	require.Equal(t, [][]string{{"0"}}, sites[0].rows(`SELECT count(*) FROM "ph_checkpoints" WHERE "replay_through" <> 0 OR "pruned_epoch" <> "epoch"`))
	t.Logf("%d ghosts were removed", before)
}
