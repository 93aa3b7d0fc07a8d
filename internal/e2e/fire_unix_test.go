//go:build unix

package e2e

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/projhost/projhost/internal/dbtest"
)

var fireFor = flag.Duration("fire", 20*time.Second, "how long hosts are under fire on each kind of database")

// Promises P1, P2, P4 and P9 with many hosts: while lines are appended through
// all of them, hosts are killed, stopped for longer than they count as running,
// restarted, added and removed, the network cuts and holds their connections, and
// the database is killed and suspended. Afterwards every read model is that of
// the log, every checkpoint at its end, and the ledgers show that each message
// was applied once for each of its keys, in order. At no time has a generation of
// a partition had two owners, and in the end partitions are spread as before.
func TestManyHostsUnderFire(t *testing.T) {
	onPrivate(t, func(t *testing.T, v server) {
		if *seed == 0 {
			*seed = uint64(time.Now().UnixNano())
		}
		t.Logf("-seed %d", *seed)
		length := *fireFor
		if testing.Short() {
			length = min(length, 10*time.Second)
		}
		const hosts, places = 4, 6
		srv := v.private(t)
		c := newCluster(t, v, srv.DSN, plan{places: places, config: clusterConfig})
		c.start(c.members[:hosts]...)
		c.settled(c.members[:hosts]...)
		watching := watchOwners(c)

		feed := newFeeder(c, rand.New(rand.NewPCG(*seed, 11)), loanLines(t))
		stopFeeding := feed.meanwhile()
		f := &fire{c: c, srv: srv, random: rand.New(rand.NewPCG(*seed, 12)), hosts: hosts, did: map[string]int{}}
		began := time.Now()
		f.burn(length)
		burnt := time.Since(began)
		stopFeeding()
		c.start(c.members[:hosts]...)
		c.caughtUp()
		c.settled(c.members[:hosts]...)
		watching.stop()
		t.Logf("%d lines, %d attempts to append; %s; %d changes of owners; %v under fire, %v to catch up",
			feed.lines, feed.attempts, f, watching.changes, burnt.Round(time.Second), (time.Since(began) - burnt).Round(time.Second))
		c.stop()
		c.equalsTheLog(feed)
	})
}

// fire is what happens to a cluster.
type fire struct {
	c      *cluster
	srv    *dbtest.Server
	random *rand.Rand
	hosts  int // that shall run when it is over
	did    map[string]int
	later  sync.WaitGroup // what ends by itself
}

func (f *fire) String() string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(f.did)) {
		list = append(list, fmt.Sprint(what, " ", f.did[what]))
	}
	return strings.Join(list, ", ")
}

// burn does all there is to do, in an order that is shuffled anew each time
// round, and then puts everything right that did not end by itself.
func (f *fire) burn(length time.Duration) {
	type deed struct {
		what string
		do   func()
	}
	var deck []deed
	for _, d := range []struct {
		deed
		times int
	}{
		{deed{"killed", f.kill}, 4},
		{deed{"frozen", f.freeze}, 4},
		{deed{"frozen in a moment of many", f.hiccup}, 1},
		{deed{"removed", f.remove}, 2},
		{deed{"added", f.add}, 2},
		{deed{"cut", f.cut}, 3},
		{deed{"cut off", f.hold}, 2},
		{deed{"database killed", f.killDatabase}, 1},
		{deed{"database frozen", f.freezeDatabase}, 1},
	} {
		for range d.times {
			deck = append(deck, d.deed)
		}
	}
	began := time.Now()
	for time.Since(began) < length {
		f.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, d := range deck {
			if time.Since(began) > length || f.c.t.Failed() {
				break
			}
			f.did[d.what]++
			d.do()
			f.sleep(0, clusterTTL/2)
		}
	}
	f.later.Wait()
	for i, m := range f.c.members {
		m.proxy.Disarm()
		if i >= f.hosts {
			m.leave()
		}
	}
}

// sleep waits for a random time: the moments are the point.
func (f *fire) sleep(least, most time.Duration) {
	time.Sleep(least + time.Duration(f.random.Int64N(int64(most-least))))
}

// after does something a random time from now, beside what else is done.
func (f *fire) after(least, most time.Duration, do func()) {
	wait := least + time.Duration(f.random.Int64N(int64(most-least)))
	f.later.Go(func() {
		time.Sleep(wait) // the time is the point
		do()
	})
}

func (f *fire) any() *member { return f.c.members[f.random.IntN(len(f.c.members))] }

// running is a member whose host serves; any, if there is none.
func (f *fire) running() *member {
	for range 10 {
		if m := f.any(); m.serves() != nil {
			return m
		}
	}
	return f.any()
}

func (f *fire) kill() { f.running().signal(syscall.SIGKILL) }

// freeze stops a host for longer than it counts as running.
func (f *fire) freeze() {
	m := f.running()
	m.signal(syscall.SIGSTOP)
	f.after(clusterTTL, 2*clusterTTL, func() { m.signal(syscall.SIGCONT) })
}

// hiccup stops all hosts for less than that.
func (f *fire) hiccup() {
	for _, m := range f.c.members {
		m.signal(syscall.SIGSTOP)
	}
	f.sleep(0, clusterTTL/2)
	for _, m := range f.c.members {
		m.signal(syscall.SIGCONT)
	}
}

func (f *fire) remove() { f.running().leave() }

func (f *fire) add() {
	for range 10 {
		m := f.any()
		if m.serves() == nil {
			m.run()
			return
		}
	}
}

func (f *fire) cut() {
	m := f.running()
	switch f.random.IntN(3) {
	case 0:
		m.proxy.Cut()
	case 1:
		m.proxy.CutAt(dbtest.Direction(f.random.IntN(2)), 1+f.random.IntN(100))
	default:
		m.proxy.CutAfter(dbtest.Direction(f.random.IntN(2)), 1+f.random.IntN(20_000))
	}
}

// hold keeps everything between a host and the database back for about as long
// as the host counts as running, and then lets it through.
func (f *fire) hold() {
	m := f.running()
	m.proxy.Hold()
	f.after(clusterTTL/2, 2*clusterTTL, m.proxy.Release)
}

func (f *fire) killDatabase() {
	f.srv.Kill()
	f.sleep(0, clusterTTL/2)
	f.srv.Start()
}

func (f *fire) freezeDatabase() {
	f.srv.Freeze()
	f.sleep(0, clusterTTL)
	f.srv.Thaw()
}

// watch sees who owns what, from time to time.
type watch struct {
	changes int
	cancel  context.CancelFunc
	ended   chan struct{}
}

// watchOwners checks until it is stopped that generations only rise and that
// none has two owners.
func watchOwners(c *cluster) *watch {
	type place struct{ build, partition int64 }
	type owned struct {
		generation int64
		owner      string
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	w := &watch{cancel: cancel, ended: make(chan struct{})}
	db := c.db.open()
	look := func(seen map[place]owned) {
		rows, err := db.QueryContext(ctx, strings.NewReplacer(`"`, c.db.quote()).Replace(
			`SELECT build, "partition", generation, instance_id FROM ph_ownership`))
		if err != nil {
			return // the database is away
		}
		defer rows.Close()
		for rows.Next() {
			var p place
			var generation int64
			var owner sql.NullString
			if rows.Scan(&p.build, &p.partition, &generation, &owner) != nil {
				return
			}
			was := seen[p]
			switch {
			case generation < was.generation:
				c.t.Errorf("partition %d of build %d was at generation %d and is at %d", p.partition, p.build, was.generation, generation)
			case generation == was.generation && owner.Valid && was.owner != "" && owner.String != was.owner:
				c.t.Errorf("generation %d of partition %d of build %d belonged to %s and belongs to %s", generation, p.partition, p.build, was.owner, owner.String)
			}
			if owner.Valid && owner.String != was.owner {
				w.changes++
			}
			if generation > was.generation || owner.Valid {
				seen[p] = owned{generation, owner.String}
			}
		}
	}
	go func() {
		defer close(w.ended)
		defer db.Close()
		seen := map[place]owned{}
		for ctx.Err() == nil {
			look(seen)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond): // nothing tells when they change
			}
		}
	}()
	return w
}

func (w *watch) stop() {
	w.cancel()
	<-w.ended
}

func (s *site) quote() string {
	if s.driver == "mysql" {
		return "`"
	}
	return `"`
}
