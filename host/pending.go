package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// stayOut keeps out of a consumer whose stored declaration is not this host's,
// until it is; false if stop ended first. Hosts that run the stored one go on.
// Where there is none the consumer halts, so that everybody can see that nobody
// applies it. Two looks have to say so, and no host may just have joined: one that
// starts is no member yet (H37).
func (c *consumer) stayOut(stop context.Context) bool {
	h := c.host
	ticker := time.NewTicker(h.cfg.Rebalance)
	defer ticker.Stop()
	c.log.Warn("consumer is not run here: its declaration differs from the stored one", "difference", c.differs)
	alone := 0
	for {
		select {
		case <-stop.Done():
			return false
		case <-ticker.C:
		}
		err := c.subscribe(stop)
		switch {
		case err == nil:
			c.log.Info("the stored declaration is this host's now")
			c.differs = nil
			c.setState(StateStarting, "", nil)
			c.follow(c.stored.State, c.stored.Halt)
			c.enlist()
			return true
		case !errors.As(err, &c.differs):
			c.log.Debug("subscribe", "error", err)
			continue
		}
		stored, err := h.deps.Store.Consumer(stop, c.id)
		if err != nil {
			c.log.Debug("read the stored declaration", "error", err)
			continue
		}
		view := h.balancer.View()
		if time.Since(view.At) > 2*h.cfg.Rebalance {
			continue // who lives is not known
		}
		switch {
		case len(view.Members[stored.Build]) > 0:
			alone = 0
			c.setState(StatePending, c.differs.Error(), nil)
			continue
		case stored.State == store.StateHalted:
			// Whoever is to run it once it is resumed has as long to become a member.
			alone = 0
			c.setState(StateHalted, "", stored.Halt)
			continue
		case h.othersStart(view):
			alone = 0
			continue
		}
		if alone++; alone < 2 {
			continue
		}
		halt := store.Halt{
			Reason: store.HaltDeclarationChanged, Digest: c.plugin.Module.Digest(),
			Message: c.differs.Error() + ": run the earlier module and resume the consumer, or give it another name",
		}
		if err := c.haltAbandoned(stop, stored.Build, halt); err != nil {
			c.log.Debug("the halt is not recorded", "error", err)
			continue
		}
		c.log.Error("consumer halted: no host runs the stored declaration", "reason", halt.Reason, "message", halt.Message)
		if h.metrics != nil {
			h.metrics.Halted(c.id.String(), halt.Reason)
		}
		halt.AtUS = time.Now().UnixMicro()
		c.setState(StateHalted, "", &halt)
		alone = 0
	}
}

// othersStart tells whether another host has joined less than its TTL ago: what it
// runs is not known yet. Both times are the database's.
func (h *Host) othersStart(v partition.View) bool {
	return slices.ContainsFunc(v.Instances, func(i store.InstanceStatus) bool {
		return i.Live && i.ID != v.InstanceID && i.HeartbeatUS-i.StartedUS < min(i.TTL, h.cfg.InstanceTTL).Microseconds()
	})
}

// haltAbandoned records a halt of a build that nobody runs. The lease it takes for
// that says that nobody does.
func (c *consumer) haltAbandoned(ctx context.Context, build int64, halt store.Halt) error {
	instance, _ := c.host.member.Instance()
	survey, err := c.host.deps.Store.Survey(ctx, nil)
	if err != nil {
		return err
	}
	live := make(map[string]bool)
	for _, i := range survey.Instances {
		live[i.ID] = i.Live
	}
	for _, m := range survey.Members {
		if m.Build == build && live[m.InstanceID] {
			return fmt.Errorf("%s runs build %d by now", m.InstanceID, build)
		}
	}
	leases, _, err := c.host.deps.Store.Claim(ctx, instance, build, []int{0})
	if err != nil {
		return err
	}
	if len(leases) == 0 {
		return fmt.Errorf("partition 0 of build %d has an owner", build)
	}
	return errors.Join(
		c.host.deps.Store.Halt(ctx, c.id, leases[0], halt),
		c.host.deps.Store.Release(ctx, instance, leases))
}
