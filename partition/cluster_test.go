package partition_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/projhost/projhost/store"
)

// cluster is a database that knows instances, members and owners, and nothing
// else. Its clock is its own.
type cluster struct {
	store.Leases // a call that is not below has no place here

	n int

	mu        sync.Mutex
	ahead     time.Duration // of the hosts' clock
	instances map[string]*row
	members   map[string][]store.Enlistment
	owners    map[int64][]store.Ownership
	calls     map[string]int
	under     map[string]int // calls under way
	most      map[string]int
	// fault, if set, may hold a call up or have it fail, before it is done or after.
	fault func(ctx context.Context, call string) (after func() error, before error)

	written map[write]any // who wrote
	tenures int64
	// tenureOf is the latest tenure of an instance's memberships, by build.
	tenureOf map[string]map[int64]int64
	moves    int      // of ownership rows
	broken   []string // what must not happen, and did

	// mutant is what the database does wrong, to see that somebody notices.
	mutant string
	spoilt []store.Ownership // rows besides that no build has
}

// write is what a lease allows.
type write struct {
	build      int64
	partition  int
	generation int64
}

// Mutants.
const (
	sameGeneration = "a claim does not raise the generation"
	noFence        = "an apply does not look at the lease"
	keepsRows      = "a claim passes over what its instance owns"
)

type row struct {
	store.Instance
	started, beat, expires time.Time
}

func newCluster(n int, builds ...int64) *cluster {
	c := &cluster{
		n: n, instances: make(map[string]*row), members: make(map[string][]store.Enlistment),
		owners: make(map[int64][]store.Ownership), calls: make(map[string]int), under: make(map[string]int), most: make(map[string]int),
		written: make(map[write]any), tenureOf: make(map[string]map[int64]int64),
	}
	for _, b := range builds {
		c.owners[b] = make([]store.Ownership, n)
		for p := range c.owners[b] {
			c.owners[b][p].Partition = p
		}
	}
	return c
}

func (c *cluster) now() time.Time { return time.Now().Add(c.ahead) }

// do makes one call: it is counted, and fails where it is told to.
func (c *cluster) do(ctx context.Context, call string, f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
	c.under[call]++
	c.most[call] = max(c.most[call], c.under[call])
	defer func() { c.under[call]-- }()
	after, before := func() error { return nil }, ctx.Err()
	if fault := c.fault; fault != nil {
		c.mu.Unlock()
		after, before = fault(ctx, call)
		c.mu.Lock()
	}
	if before != nil {
		return before
	}
	if err := f(); err != nil {
		return err
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return after()
}

func (c *cluster) live(id string) bool {
	i := c.instances[id]
	return i != nil && !i.expires.Before(c.now()) && !i.expires.After(c.now().Add(2*i.TTL))
}

func (c *cluster) isMember(id string, build int64) bool {
	return slices.ContainsFunc(c.members[id], func(e store.Enlistment) bool { return e.Build == build })
}

func (c *cluster) reap() (n int) {
	for id := range c.instances {
		if !c.live(id) {
			c.remove(id)
			n++
		}
	}
	return n
}

func (c *cluster) remove(id string) {
	delete(c.instances, id)
	delete(c.members, id)
}

func (c *cluster) Join(ctx context.Context, i store.Instance) error {
	return c.do(ctx, "join", func() error {
		c.reap()
		c.instances[i.ID] = &row{i, c.now(), c.now(), c.now().Add(i.TTL)}
		return nil
	})
}

func (c *cluster) Heartbeat(ctx context.Context, id string) error {
	return c.do(ctx, "heartbeat", func() error {
		i := c.instances[id]
		if i == nil {
			return fmt.Errorf("heartbeat: %w", store.ErrNotFound)
		}
		i.beat, i.expires = c.now(), c.now().Add(i.TTL)
		return nil
	})
}

func (c *cluster) Leave(ctx context.Context, id string) error {
	return c.do(ctx, "leave", func() error {
		for _, rows := range c.owners {
			for p := range rows {
				if rows[p].InstanceID == id {
					rows[p].InstanceID = ""
					c.moves++
				}
			}
		}
		c.remove(id)
		return nil
	})
}

func (c *cluster) Enlist(ctx context.Context, id string, list []store.Enlistment) error {
	return c.do(ctx, "enlist", func() error {
		if c.instances[id] == nil {
			return fmt.Errorf("enlist: %w", store.ErrNotFound)
		}
		c.members[id] = slices.DeleteFunc(slices.Clone(list), func(e store.Enlistment) bool { return c.owners[e.Build] == nil })
		return nil
	})
}

func (c *cluster) Reap(ctx context.Context) (n int, err error) {
	err = c.do(ctx, "reap", func() error {
		n = c.reap()
		return nil
	})
	return n, err
}

func (c *cluster) Survey(ctx context.Context, builds []int64) (s store.Survey, err error) {
	err = c.do(ctx, "survey", func() error {
		s = store.Survey{Owners: make(map[int64][]store.Ownership)}
		for _, i := range slices.SortedFunc(maps.Values(c.instances), func(a, b *row) int {
			return cmp.Or(a.started.Compare(b.started), cmp.Compare(a.ID, b.ID))
		}) {
			s.Instances = append(s.Instances, store.InstanceStatus{
				Instance: i.Instance, StartedUS: i.started.UnixMicro(), HeartbeatUS: i.beat.UnixMicro(), Live: c.live(i.ID),
			})
		}
		for id, list := range c.members {
			for _, e := range list {
				s.Members = append(s.Members, store.Membership{Enlistment: e, InstanceID: id, Tenure: c.tenureOf[id][e.Build]})
			}
		}
		slices.SortFunc(s.Members, func(a, b store.Membership) int {
			return cmp.Or(cmp.Compare(a.Build, b.Build), cmp.Compare(a.InstanceID, b.InstanceID))
		})
		for _, b := range slices.Sorted(maps.Keys(c.owners)) {
			s.Consumers = append(s.Consumers, store.ConsumerStatus{Build: b, ID: consumerOf(b), State: store.StateRunning})
		}
		for _, b := range builds {
			s.Owners[b] = append(slices.Clone(c.owners[b]), c.spoilt...)
		}
		return nil
	})
	return s, err
}

func (c *cluster) Claim(ctx context.Context, id string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error) {
	err = c.do(ctx, "claim", func() error {
		if !c.live(id) {
			return fmt.Errorf("claim: %w", store.ErrNotFound)
		}
		for _, p := range slices.Sorted(slices.Values(partitions)) {
			r := &c.owners[build][p]
			if owner := r.InstanceID; owner != "" && owner != id && c.live(owner) && c.isMember(owner, build) {
				continue
			}
			if owner := r.InstanceID; owner == id && c.mutant == keepsRows {
				continue
			}
			r.InstanceID = id
			c.moves++
			if c.mutant != sameGeneration || r.Generation == 0 {
				r.Generation++
			}
			leases = append(leases, store.Lease{Build: build, Partition: p, Generation: r.Generation})
		}
		if len(leases) > 0 {
			c.tenures++
			tenure = c.tenures
			if c.tenureOf[id] == nil {
				c.tenureOf[id] = make(map[int64]int64)
			}
			c.tenureOf[id][build] = tenure
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return leases, tenure, nil
}

func (c *cluster) Release(ctx context.Context, id string, leases []store.Lease) error {
	return c.do(ctx, "release", func() error {
		for _, l := range leases {
			r := &c.owners[l.Build][l.Partition]
			if r.InstanceID == id && r.Generation == l.Generation {
				r.InstanceID = ""
				c.moves++
			}
		}
		return nil
	})
}

// apply commits a write under a lease, if that is held. Nobody but the writer may
// have written under it.
func (c *cluster) apply(ctx context.Context, id string, l store.Lease, writer any) error {
	return c.do(ctx, "apply", func() error {
		r := c.owners[l.Build][l.Partition]
		if (r.InstanceID != id || r.Generation != l.Generation) && c.mutant != noFence {
			return fmt.Errorf("apply: %w", store.ErrFenced)
		}
		if r.Generation != l.Generation {
			c.broken = append(c.broken, fmt.Sprintf("partition %d of build %d was written under generation %d, it is %d", l.Partition, l.Build, l.Generation, r.Generation))
		}
		w := write{l.Build, l.Partition, l.Generation}
		if was, ok := c.written[w]; ok && was != writer {
			c.broken = append(c.broken, fmt.Sprintf("generation %d of partition %d of build %d has two writers", w.generation, w.partition, w.build))
		}
		c.written[w] = writer
		return nil
	})
}

func consumerOf(build int64) store.ConsumerID {
	return store.ConsumerID{Type: "projection", Name: fmt.Sprintf("c%d", build)}
}

// set changes the database between calls.
func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// count is how many calls of a kind there were, and atOnce how many at the same
// time.
func (c *cluster) count(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[call]
}

func (c *cluster) atOnce(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most[call]
}

// loads counts the partitions of a build by owner.
func (c *cluster) loads(build int64) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := make(map[string]int)
	for _, r := range c.owners[build] {
		n[r.InstanceID]++
	}
	return n
}
