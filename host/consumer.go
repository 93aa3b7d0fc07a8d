package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// consumer runs one consumer of a plugin: session after session, until the host
// stops or a message halts it. What happens to it never reaches another
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

	careful map[int]lane.Careful // by partition: where the database refused some entry's data

	waiters atomic.Int32

	mu            sync.Mutex
	state         string
	sinceUS       int64
	halt          *store.Halt
	retrying      map[*reporter]error
	retryingSince time.Time // of the first of them
	waiting       string    // for whom, in that state
	stored        store.Consumer
	leases        []store.Lease // of the latest claim; nil before the first
	session       *session      // the latest; nil before the first
	moved         chan struct{} // closed when something was applied or the state changed
}

// subscribe records the consumer in the store and clears a halt of an earlier
// run: a start tries the message again.
func (c *consumer) subscribe(ctx context.Context) error {
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
	was, err := c.host.deps.Store.ClearHalt(ctx, c.id)
	if err != nil {
		return fmt.Errorf("clear the halt of %s: %w", c.id, err)
	}
	if was {
		c.log.Info("consumer was halted: its message is tried again")
	}
	stored.State, stored.Halt = store.StateRunning, nil
	c.mu.Lock()
	c.stored = stored
	c.mu.Unlock()
	return nil
}

// run works until stop ends, and then for as long as batches in hand take to
// commit, at most until ctx ends.
func (c *consumer) run(ctx, stop context.Context) {
	restarts := c.host.policy().NewLoop(nil)
	report := c.Reporter()
	defer c.ended()
	for {
		end, progressed := c.once(ctx, stop)
		if stop.Err() != nil || ctx.Err() != nil {
			if end.err != nil && !errors.Is(end.err, context.Cause(ctx)) && !errors.Is(end.err, context.Cause(stop)) {
				c.log.Warn("consumer stopped with an error; it goes on from its checkpoints", "error", end.err)
			}
			return
		}
		if progressed {
			restarts.Done()
		}
		maps.Copy(c.careful, end.careful)
		switch end.after {
		case halts:
			if c.halted(stop, *end.halt) {
				return
			}
			continue
		case refused:
			c.log.Warn("database refuses a batch: looking for the message", "error", end.err)
			report(end.err)
			continue
		}
		var taken *partition.TakenError
		if errors.As(end.err, &taken) {
			waited, failed := c.await(stop, taken)
			switch {
			case stop.Err() != nil:
				return
			case failed != nil:
				end.err = failed
			case waited:
				restarts.Done()
				continue
			default:
				end.err = &store.TransientError{Op: "apply " + c.id.String(), Err: end.err}
			}
		}
		if !errors.Is(end.err, errOrphan) { // the member has told it for all
			report(end.err)
		}
		if err := restarts.Again(stop, end.err); err != nil {
			var exhausted *retry.ExhaustedError
			if errors.As(err, &exhausted) && !c.halted(stop, store.Halt{
				Reason: store.HaltApplyError, Code: int(abi.CodeDatabase), Message: err.Error(), Digest: c.plugin.Module.Digest(),
			}) {
				restarts.Done()
				continue
			}
			return
		}
	}
}

// once claims the partitions and runs one session over them. It tells whether
// that committed anything.
func (c *consumer) once(ctx, stop context.Context) (end ending, progressed bool) {
	h := c.host
	holder, orphan := h.member.Holder()
	term, err := holder.Claim(ctx, c.stored.Build)
	if errors.Is(err, store.ErrNotFound) {
		h.member.Doubt()
		err = errOrphan
	}
	if err != nil {
		return endingOf(c, err), false
	}
	leases := make([]store.Lease, h.partitions)
	for p := range leases {
		leases[p] = term.Lease(p)
	}
	c.mu.Lock()
	c.leases = leases
	c.mu.Unlock()
	s, err := c.open(ctx, holder.Instance(), leases)
	if err != nil {
		return endingOf(c, err), false
	}
	c.mu.Lock()
	c.session = s
	c.mu.Unlock()
	c.started()
	until, cancel := context.WithCancelCause(stop)
	defer cancel(nil)
	go func() {
		select {
		case <-orphan:
			cancel(errOrphan)
		case <-until.Done():
		}
	}()
	end = s.run(ctx, until)
	if context.Cause(until) == errOrphan {
		end.add(c, errOrphan)
	}
	return end, s.progressed()
}

func (c *consumer) isHalted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == StateHalted
}

func (c *consumer) started() { c.setState(StateRunning, nil) }

func (c *consumer) ended() {
	if !c.isHalted() {
		c.setState(StateStopped, nil)
	}
}

func (c *consumer) setState(state string, halt *store.Halt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != state {
		c.state, c.sinceUS = state, time.Now().UnixMicro()
	}
	c.halt, c.waiting = halt, ""
	clear(c.retrying)
	close(c.moved)
	c.moved = make(chan struct{})
}

// reporter is one place that may be retrying.
type reporter struct{ c *consumer }

// Reporter implements lane.Observer. The first failure of a streak is logged as
// a warning, those after it as details.
func (c *consumer) Reporter() func(error) {
	r := &reporter{c}
	return func(err error) {
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
}

// Progress implements lane.Observer.
func (c *consumer) Progress() {
	if c.waiters.Load() == 0 {
		return
	}
	c.mu.Lock()
	close(c.moved)
	c.moved = make(chan struct{})
	c.mu.Unlock()
}

// Called implements lane.Observer.
func (c *consumer) Called(_ int, took time.Duration) {
	if m := c.host.metrics; m != nil {
		m.Called(c.id.String(), took)
	}
}

// Committed implements lane.Observer.
func (c *consumer) Committed(messages int, took time.Duration) {
	if m := c.host.metrics; m != nil {
		m.Committed(c.id.String(), messages, took)
	}
}
