package host

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// consumer runs one consumer of a plugin: as many of its partitions as are due to
// this host, until the host stops or a message halts it. What happens to it never reaches another
// consumer (P5).
type consumer struct {
	host        *Host
	plugin      *Plugin
	declared    *abi.Consumer
	index       int // in the manifest
	id          store.ConsumerID
	topics      []string
	tables      []*readmodel.Table
	singleOwner bool
	free        bool // has a free table: one fence for all
	log         hclog.Logger
	guests      *instances
	share       *partition.Share // what of it is this host's; set once it is enlisted, under mu for others

	delivery lane.Delivery
	held     *lane.Held                // undelivered messages of its partitions here
	careful  map[int]lane.Careful      // by partition: where the database refused some entry's data
	refused  map[int64]lane.RefusedRow // by id: undelivered messages whose retry it refused

	differs *store.DeclarationError // from the stored one; nil: it does not

	// Of the consumer's own goroutine: a halt is recorded, and since when what it
	// knows of its state is true.
	settled bool
	knownAt time.Time
	epoch   int64 // of the latest session

	waiters atomic.Int32

	mu            sync.Mutex
	state         string
	why           string
	sinceUS       int64
	halt          *store.Halt
	retrying      map[*reporter]error
	retryingSince time.Time // of the first of them
	stored        store.Consumer
	stuck         []int         // partitions that do not move though messages wait
	pulse         pulse         // of a rebuild
	fenced        uint64        // times a lease was found lost
	at            []*session    // by partition: the latest session of one that is held
	moved         chan struct{} // closed when something was applied or the state changed
}

// subscribe records the consumer in the store. A start is no transition: what is
// halted or paused stays so, unless the store has taken a new module for a reason
// to try again (H5).
func (c *consumer) subscribe(ctx context.Context) error {
	asked := time.Now()
	stored, err := c.host.deps.Store.Subscribe(ctx, store.Declaration{
		ID: c.id, Topics: c.topics, Tables: c.tables,
		Fingerprint: Fingerprint(c.declared, c.singleOwner, c.plugin.Module.Digest(), c.plugin.Config),
		Plugin:      c.plugin.Name, Digest: c.plugin.Module.Digest(),
		Adopt: c.plugin.Consumers[c.id.Name].Adopt,
	})
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", c.id, err)
	}
	if len(stored.Tables) != len(c.tables) {
		return fmt.Errorf("subscribe %s: the store knows %d tables of %d", c.id, len(stored.Tables), len(c.tables))
	}
	c.knownAt = asked
	c.mu.Lock()
	c.stored = stored
	c.mu.Unlock()
	c.follow(stored.State, stored.Halt)
	return nil
}

// enlist makes the host a member of those that run the consumer.
func (c *consumer) enlist() {
	share := c.host.balancer.Enlist(partition.ShareConfig{Build: c.stored.Build, Consumer: c.id, SingleOwner: c.together()})
	c.mu.Lock()
	c.share = share
	c.mu.Unlock()
}

// isStopped tells whether nothing is applied until the stored state changes.
func (c *consumer) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == StateHalted || c.state == StatePaused
}

// together tells whether the partitions are of no use one by one.
func (c *consumer) together() bool { return c.singleOwner || c.free }

// place notes which session has partitions from now on; nil: they are not held
// any more.
func (c *consumer) place(s *session, partitions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range partitions {
		c.at[p] = s
	}
	close(c.moved)
	c.moved = make(chan struct{})
}

// placed is the session that has or had each partition that is held, nil for
// the others.
func (c *consumer) placed() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at)
}

// setState says what the consumer is doing, and why where that is no halt.
func (c *consumer) setState(state, why string, halt *store.Halt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = why
	if c.state == state && c.halt == halt {
		return
	}
	if c.state != state {
		c.state, c.sinceUS = state, time.Now().UnixMicro()
	}
	c.halt = halt
	close(c.moved)
	c.moved = make(chan struct{})
}

// reporter is one place that may be retrying.
type reporter struct{ c *consumer }

func (c *consumer) reporter() *reporter { return &reporter{c} }

// report is told of every failure, and of nil when it is over. The first failure
// of a streak is logged as a warning, those after it as details.
func (r *reporter) report(err error) {
	c := r.c
	c.mu.Lock()
	_, known := c.retrying[r]
	if err == nil {
		delete(c.retrying, r)
	} else {
		if len(c.retrying) == 0 {
			c.retryingSince = time.Now()
		}
		c.retrying[r] = err
	}
	left := len(c.retrying)
	c.mu.Unlock()
	switch {
	case err == nil:
		if known && left == 0 {
			c.log.Info("goes on after retrying")
		}
	case !known && left == 1:
		c.log.Warn("retrying", "error", err)
	default:
		c.log.Debug("retrying", "error", err)
	}
	if m := c.host.metrics; m != nil && err != nil {
		m.Retried(c.id.String())
	}
}

// forget drops what a session was retrying when it ended.
func (c *consumer) forget(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range s.reporters {
		delete(c.retrying, r)
	}
}

// progress wakes those who wait for something to be applied.
func (c *consumer) progress() {
	if c.waiters.Load() == 0 {
		return
	}
	c.mu.Lock()
	close(c.moved)
	c.moved = make(chan struct{})
	c.mu.Unlock()
}
