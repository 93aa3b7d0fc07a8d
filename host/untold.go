package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/store"
)

// untold decides about a message whose keys cannot be told. What is before it is
// applied, and no checkpoint passes it. By policy it is skipped for every key, and
// a new session passes over it; otherwise it is recorded once, without a copy,
// and the consumer halts: nobody knows what would have to wait for it (H38).
func (w *crew) untold(stop context.Context, s *session, e *reader.UnresolvedError) {
	c := w.c
	skip := c.delivery.OnExhausted == lane.ExhaustedSkip
	halt := *s.ended.halt
	halt.AtUS, halt.Partition = time.Now().UnixMicro(), s.nearest(e.Event.Partition)
	b := s.untoldBatch(e, skip, &halt)
	loop := c.host.policy().NewLoop(nil)
	for {
		err := c.host.deps.Store.Apply(context.WithoutCancel(stop), b)
		var transient *store.TransientError
		switch {
		case err == nil && skip:
			c.log.Warn("message is skipped for every key: its keys cannot be told", "topic", e.Topic, "position", e.Event.Position,
				"event_type", e.Event.Type, "event_id", e.Event.ID.String(), "reason", e.Reason)
			return
		case err == nil:
			w.halted(halt)
			return
		case errors.As(err, &transient) && !transient.OutcomeUnknown:
			if err := loop.Again(stop, err); err == nil {
				continue
			}
		}
		// The next session comes to the same message, or finds what became of it.
		s.ended.kept = false
		w.retry(stop, endingOf(c, fmt.Errorf("record message %d of %s: %w", e.Event.Position, e.Topic, err)))
		return
	}
}

// nearest is the partition itself if the session has it, else another of its own.
func (s *session) nearest(p int) int {
	if slices.Contains(s.partitions, p) {
		return p
	}
	return s.partitions[0]
}

// untoldBatch is what is committed of such a message. One that was recorded before
// and let go by an operator halts the consumer once more.
func (s *session) untoldBatch(e *reader.UnresolvedError, skip bool, halt *store.Halt) *store.Batch {
	p := halt.Partition
	b := &store.Batch{
		Consumer: s.c.id, Build: s.c.stored.Build, Epoch: s.replay.epoch, InstanceID: s.instance, Incarnation: s.incarnation,
		Leases: []store.Lease{s.leases[p]},
	}
	record := store.Record{
		Topic: e.Topic, Partition: p, Unresolved: true, Status: store.StatusHalted, Code: int(abi.CodeMalformed), Reason: lane.Reason(e.Error()),
		Attempts: 1, Digest: s.c.plugin.Module.Digest(),
		Event: &store.Event{
			Position: e.Event.Position, ID: e.Event.ID, Type: e.Event.Type, AggregateType: e.Event.AggregateType, AggregateID: e.Event.AggregateID,
			Sequence: e.Event.Sequence, Revision: e.Event.Revision, OccurredUS: e.Event.OccurredUS, Partition: e.Event.Partition,
		},
	}
	at := slices.IndexFunc(s.heads, func(h store.Head) bool {
		return h.Unresolved && h.Topic == e.Topic && h.Event.Position == e.Event.Position
	})
	var row *store.Head
	if at >= 0 {
		row = &s.heads[at]
		b.Leases[0] = s.leases[row.Partition]
		record.Partition, halt.Partition = row.Partition, row.Partition
	}
	switch {
	case skip:
		b.Skips = []store.Skip{{Topic: e.Topic, Partition: record.Partition, Position: e.Event.Position, EveryKey: true}}
		if row != nil {
			b.Retries = []store.Retry{{ID: row.ID, Partition: row.Partition, Status: row.Status, Attempts: row.Attempts, Passing: row.Passing}}
		}
		return b
	case row == nil:
		b.Records = []store.Record{record}
	case row.Status != store.StatusHalted:
		b.Retries = []store.Retry{{ID: row.ID, Partition: row.Partition, Status: row.Status, Attempts: row.Attempts, Passing: row.Passing, Then: &record}}
	}
	b.Halt = halt
	return b
}

// sweepEvery is how often skip records are removed that nobody can meet any more.
const sweepEvery = time.Minute

// sweepSkips removes them, for each consumer on the host that has its partition 0.
func (h *Host) sweepSkips(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, c := range h.consumers {
			c.mu.Lock()
			share, build := c.share, c.stored.Build
			c.mu.Unlock()
			if share == nil {
				continue
			}
			if _, held := share.Lease(0); !held {
				continue
			}
			call, cancel := context.WithTimeout(ctx, advanceMax)
			n, err := h.deps.Store.SweepSkips(call, build)
			cancel()
			switch {
			case err != nil:
				c.log.Debug("skip records are not swept", "error", err)
			case n > 0:
				c.log.Debug("skip records nobody can meet any more are removed", "count", n)
			}
		}
	}
}
