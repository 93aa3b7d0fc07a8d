package host

import (
	"context"
	"errors"
	"time"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// halt stops the consumer for a message, here and, once it is recorded, on every
// host. If the lease is gone it is somebody else's to decide, and what cannot be
// recorded stops nobody for good, since nobody could clear it: both are tried
// again after a while.
func (w *crew) halt(stop context.Context, h store.Halt) {
	c := w.c
	for _, s := range w.sessions {
		s.end(errHalted)
	}
	lease, held := c.anyLease(h.Partition)
	if !held {
		c.log.Warn("the consumer is not halted: no lease is left to record it under", "reason", h.Reason, "message", h.Message)
		w.rest = time.Now().Add(c.host.cfg.RetryMax)
		return
	}
	if h.AtUS == 0 {
		h.AtUS = time.Now().UnixMicro()
	}
	c.log.Error("consumer halted: the message and everything behind it wait for a restart or a new module",
		"reason", h.Reason, "code", h.Code, "message", h.Message, "topic", h.Topic, "position", h.Position,
		"partition", h.Partition, "key", h.Key, "event_type", h.EventType, "event_id", h.EventID, "digest", h.Digest)
	c.setState(StateHalted, "", &h)
	c.settled = false
	if m := c.host.metrics; m != nil {
		m.Halted(c.id.String(), h.Reason)
	}
	loop := c.host.policy().NewLoop(nil)
	for {
		err := c.host.deps.Store.Halt(context.WithoutCancel(stop), c.id, lease, h)
		switch {
		case err == nil:
			c.settled, c.knownAt = true, time.Now()
			return
		case errors.Is(err, store.ErrFenced):
			c.log.Warn("the halt is not recorded: the lease is gone")
			w.goOn()
			return
		}
		c.log.Warn("the halt is not recorded yet", "error", err)
		if err := loop.Again(stop, err); err != nil {
			if stop.Err() == nil {
				w.report(err)
				w.goOn()
			}
			return
		}
	}
}

// goOn takes back a halt that is not recorded.
func (w *crew) goOn() {
	w.c.setState(StateRunning, "", nil)
	w.rest = time.Now().Add(w.c.host.cfg.RetryMax)
}

// anyLease is a lease of the consumer, that of a partition if it is held here: a
// message whose keys cannot be told has none of its own.
func (c *consumer) anyLease(partition int) (store.Lease, bool) {
	for i := range c.host.partitions {
		if lease, held := c.share.Lease((partition + i) % c.host.partitions); held {
			return lease, true
		}
	}
	return store.Lease{}, false
}

// heed takes over what became of the consumer on other hosts: halted there it
// stops here too, and goes on when somebody has cleared that. What was looked up
// before this host's own latest word says nothing new.
func (c *consumer) heed(o partition.Orders) {
	if !o.At.After(c.knownAt) || o.Consumer.State == "" {
		return
	}
	c.mu.Lock()
	mine := c.halt
	c.mu.Unlock()
	recorded := o.Consumer.Halt
	switch halted := o.Consumer.State == store.StateHalted; {
	case halted && recorded != nil && (mine == nil || *mine != *recorded):
		if mine == nil {
			c.log.Warn("consumer is halted by another host", "reason", recorded.Reason, "message", recorded.Message,
				"topic", recorded.Topic, "position", recorded.Position)
		}
		c.settled = true
		c.setState(StateHalted, "", recorded)
	case !halted && mine != nil && c.settled:
		c.log.Info("the halt was cleared: the message is tried again")
		c.setState(StateStarting, "", nil)
	}
}
