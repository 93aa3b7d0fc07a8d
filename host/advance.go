package host

import (
	"context"
	"time"

	"github.com/projhost/projhost/store"
)

const (
	// advanceEvery is how often at most a host tells how far it has applied.
	advanceEvery = 250 * time.Millisecond
	// advanceMax bounds how long it tries to.
	advanceMax = 5 * time.Second
)

// advance tells the readers of other hosts, for as long as anything moves, how far
// this one has applied what it owns: checkpoints of partitions without messages are
// saved far less often. It does not ask whether there are others: one that has just
// come, and that nobody here has seen yet, is to answer its readers too. It is one
// statement for all consumers, and never within an apply.
func (h *Host) advance(ctx context.Context) {
	ticker := time.NewTicker(advanceEvery)
	defer ticker.Stop()
	told := make(map[progressOf]store.Progress)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		instance, _ := h.member.Instance()
		var list []store.Progress
		for _, c := range h.consumers {
			for _, p := range c.progresses() {
				if before := told[progressOf{p.Build, p.Topic}]; before.Tenure != p.Tenure || before.Incarnation != p.Incarnation || before.ReadThrough < p.ReadThrough {
					list = append(list, p)
				}
			}
		}
		if len(list) == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, advanceMax)
		err := h.deps.Store.Advance(call, instance, list)
		cancel()
		if err != nil {
			h.log.Debug("other hosts are not told how far this one is", "error", err)
			continue
		}
		for _, p := range list {
			told[progressOf{p.Build, p.Topic}] = p
		}
	}
}

type progressOf struct {
	build int64
	topic string
}

// progresses is how far the consumer is in all that this host owns of it, nothing
// where that cannot be said. The tenure is taken before anything else: whatever is
// taken from then on begins another, under which this is not heard any more. What
// was applied to another incarnation of the database may be lost.
func (c *consumer) progresses() []store.Progress {
	c.mu.Lock()
	share, build := c.share, c.stored.Build
	c.mu.Unlock()
	if share == nil {
		return nil
	}
	tenure, held := share.Tenure()
	if len(held) == 0 {
		return nil
	}
	placed, incarnation := c.placed(), c.host.deps.Store.Incarnation()
	list := make([]store.Progress, len(c.topics))
	for t, topic := range c.topics {
		list[t] = store.Progress{Build: build, Incarnation: incarnation, Tenure: tenure, Topic: topic}
		for i, l := range held {
			s := placed[l.Partition]
			if s == nil || s.leases[l.Partition] != l || s.incarnation != incarnation {
				return nil // it is not at work yet, or not any more
			}
			if at := s.applied(t, l.Partition); i == 0 || at < list[t].ReadThrough {
				list[t].ReadThrough = at
			}
		}
	}
	return list
}
