package host

import (
	"context"
	"errors"
	"time"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// halted stops the consumer here: why is recorded, or about to be.
func (w *crew) halted(h store.Halt) {
	c := w.c
	for _, s := range w.sessions {
		s.end(errHalted)
	}
	c.log.Error("consumer halted: the message and everything behind it wait for an operator or a new module",
		"reason", h.Reason, "code", h.Code, "message", h.Message, "topic", h.Topic, "position", h.Position,
		"partition", h.Partition, "key", h.Key, "event_type", h.EventType, "event_id", h.EventID, "digest", h.Digest)
	c.setState(StateHalted, "", &h)
	c.settled, c.knownAt = true, time.Now()
	if m := c.host.metrics; m != nil {
		m.Halted(c.id.String(), h.Reason)
	}
}

// halt stops the consumer for something that no undelivered message tells of,
// here and, once it is recorded, on every host. If the lease is gone it is
// somebody else's to decide, and what cannot be recorded stops nobody for good,
// since nobody could clear it: both are tried again after a while.
func (w *crew) halt(stop context.Context, h store.Halt) {
	c := w.c
	lease, held := c.anyLease(h.Partition)
	if !held {
		for _, s := range w.sessions {
			s.end(errHalted)
		}
		c.log.Warn("the consumer is not halted: no lease is left to record it under", "reason", h.Reason, "message", h.Message)
		w.rest = time.Now().Add(c.host.cfg.RetryMax)
		return
	}
	if h.AtUS == 0 {
		h.AtUS = time.Now().UnixMicro()
	}
	w.halted(h)
	c.settled = false
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

// heed takes over what became of the consumer on other hosts, or by an operator.
// What was looked up before this host's own latest word says nothing new.
func (c *consumer) heed(o partition.Orders) {
	if o.At.After(c.knownAt) && o.Consumer.State != "" {
		c.follow(o.Consumer.State, o.Consumer.Halt)
	}
}

// follow has this host do as the stored state says: what is halted or paused
// stops here too, and goes on when that is over.
func (c *consumer) follow(state store.ConsumerState, recorded *store.Halt) {
	c.mu.Lock()
	mine, paused := c.halt, c.state == StatePaused
	c.mu.Unlock()
	switch {
	case state == store.StateHalted && recorded != nil:
		if mine != nil && *mine == *recorded {
			return
		}
		if mine == nil {
			c.log.Warn("consumer is halted", "reason", recorded.Reason, "message", recorded.Message,
				"topic", recorded.Topic, "position", recorded.Position)
		}
		c.settled = true
		c.setState(StateHalted, "", recorded)
	case state == store.StatePaused:
		if !paused {
			c.log.Info("consumer is paused")
			c.setState(StatePaused, "", nil)
		}
	case mine != nil && c.settled, paused:
		c.log.Info("consumer goes on")
		c.setState(StateStarting, "", nil)
	}
}
