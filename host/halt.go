package host

import (
	"context"
	"errors"
	"time"

	"github.com/projhost/projhost/store"
)

// halted records that a message stopped the consumer. It is false if the lease
// is gone: then it is somebody else's to decide.
func (c *consumer) halted(stop context.Context, h store.Halt) bool {
	if h.AtUS == 0 {
		h.AtUS = time.Now().UnixMicro()
	}
	c.log.Error("consumer halted: the message and everything behind it wait for a restart or a new module",
		"reason", h.Reason, "code", h.Code, "message", h.Message, "topic", h.Topic, "position", h.Position,
		"partition", h.Partition, "key", h.Key, "event_type", h.EventType, "event_id", h.EventID, "digest", h.Digest)
	c.setState(StateHalted, &h)
	if m := c.host.metrics; m != nil {
		m.Halted(c.id.String(), h.Reason)
	}
	c.mu.Lock()
	leases := c.leases
	c.mu.Unlock()
	if leases == nil {
		return true
	}
	loop := c.host.policy().NewLoop(nil)
	for {
		err := c.host.deps.Store.Halt(context.WithoutCancel(stop), c.id, leases[h.Partition], h)
		switch {
		case err == nil:
			return true
		case errors.Is(err, store.ErrFenced):
			c.log.Warn("the halt is not recorded: the lease is gone")
			c.setState(StateRunning, nil)
			return false
		}
		c.log.Warn("the halt is not recorded yet", "error", err)
		if err := loop.Again(stop, err); err != nil {
			return true
		}
	}
}
