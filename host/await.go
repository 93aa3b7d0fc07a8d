package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

const (
	// lookEvery is how often a host that waits looks who runs, and reclaim how
	// long its consumers wait at most before they claim again: somebody who
	// goes on running may have given partitions back.
	lookEvery = time.Second
	reclaim   = 30 * time.Second
)

// others is who shares the database, looked up at most once in lookEvery for all
// consumers that wait.
type others struct {
	leases store.Leases

	mu   sync.Mutex
	at   time.Time
	list []store.InstanceStatus
}

func (o *others) look(ctx context.Context) ([]store.InstanceStatus, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.list != nil && time.Since(o.at) < lookEvery {
		return o.list, nil
	}
	list, err := o.leases.ListInstances(ctx)
	if err != nil {
		return nil, fmt.Errorf("who holds the partitions: %w", err)
	}
	o.at, o.list = time.Now(), list
	return list, nil
}

// await waits for a live instance that has the consumer's partitions, until one
// of those goes: a host that was killed is live until its time is over. It is
// false if nobody live has them, for instance because they change hands just
// now. Waiting is nothing that failed, so it counts and warns for nothing.
func (c *consumer) await(ctx context.Context, taken *partition.TakenError) (waited bool, err error) {
	owners, err := c.host.deps.Store.Owners(ctx, taken.Build)
	if err != nil {
		return false, fmt.Errorf("who holds the partitions of %s: %w", c.id, err)
	}
	held := make(map[string]int)
	for _, o := range owners {
		if slices.Contains(taken.Taken, o.Partition) {
			held[o.InstanceID]++
		}
	}
	before := -1
	for give := time.Now().Add(reclaim); time.Now().Before(give); {
		list, err := c.host.others.look(ctx)
		if err != nil {
			return waited, err
		}
		live := slices.DeleteFunc(slices.Clone(list), func(i store.InstanceStatus) bool { return !i.Live || held[i.ID] == 0 })
		if len(live) == 0 || before >= 0 && len(live) < before {
			return waited, nil
		}
		c.waitFor(live, held)
		before, waited = len(live), true
		select {
		case <-ctx.Done():
			return waited, context.Cause(ctx)
		case <-time.After(lookEvery):
		}
	}
	return waited, nil
}

// waitFor says for whom the consumer waits: in the log once, in its status
// always as things are.
func (c *consumer) waitFor(live []store.InstanceStatus, held map[string]int) {
	var who []string
	for _, i := range live {
		until := "for ever"
		if i.TTL > 0 {
			until = "until " + time.UnixMicro(i.HeartbeatUS).Add(i.TTL).UTC().Format(time.RFC3339)
		}
		who = append(who, fmt.Sprintf("host %q (instance %s) holds %d partitions and counts as running %s", i.HostName, i.ID, held[i.ID], until))
	}
	reason := strings.Join(who, "; ")
	c.mu.Lock()
	first := c.state != StateWaiting || len(c.retrying) > 0 // a claim that failed before is over
	c.mu.Unlock()
	if first {
		c.setState(StateWaiting, nil)
		c.log.Info("waiting for partitions", "reason", reason)
	}
	c.mu.Lock()
	c.waiting = reason
	c.mu.Unlock()
}
