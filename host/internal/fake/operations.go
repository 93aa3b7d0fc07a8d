package fake

import (
	"context"
	"slices"
	"time"

	"github.com/projhost/projhost/store"
)

// raise raises the generations of some partitions, nil for all, and keeps their
// owners: what these do next is refused.
func (b *build) raise(partitions map[int]bool) {
	for p := range b.owners {
		if partitions == nil || partitions[p] {
			b.owners[p].Generation++
		}
	}
}

// act runs an operator's action on a consumer.
func (s *Store) act(name string, id store.ConsumerID, do func(c *consumer, b *build) error) error {
	after, err := s.call(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[id]
	if c == nil {
		return store.ErrNotFound
	}
	if err := do(c, s.builds[c.Build]); err != nil {
		return err
	}
	return after
}

// Pause implements store.Operations.
func (s *Store) Pause(_ context.Context, id store.ConsumerID, actor string) error {
	return s.act("Pause", id, func(c *consumer, b *build) error {
		switch c.State {
		case store.StatePaused:
			return nil
		case store.StateRunning, store.StateRebuilding:
		default:
			return &store.StateError{Consumer: id, Action: store.ActionPause, State: c.State}
		}
		c.State = store.StatePaused
		b.raise(nil)
		c.tell(store.HistoryEntry{Actor: actor, Action: store.ActionPause, Partition: -1})
		return nil
	})
}

// fresh makes a row due now, with a fresh budget.
func fresh(m *store.UndeliveredMessage) {
	m.Status, m.Attempts, m.Passing, m.RetryUS, m.LastUS = store.StatusFailed, 0, 0, 0, time.Now().UnixMicro()
}

// Resume implements store.Operations.
func (s *Store) Resume(_ context.Context, id store.ConsumerID, pastPoison int64, actor string) error {
	return s.act("Resume", id, func(c *consumer, b *build) error {
		if c.State != store.StatePaused && c.State != store.StateHalted {
			return &store.StateError{Consumer: id, Action: "resume", State: c.State}
		}
		if pastPoison != 0 {
			at := b.row(pastPoison)
			if at < 0 || b.rows[at].Status != store.StatusHalted {
				return &store.ChangedError{ID: pastPoison, Why: "it is not halted"}
			}
			s.skip(c, b, at, actor)
			b.closed(s.N)
		}
		for i := range b.rows {
			if b.rows[i].Status == store.StatusHalted {
				fresh(&b.rows[i])
			}
		}
		c.State, c.Consumer.Halt = b.goesOn(), nil
		b.raise(nil)
		c.tell(store.HistoryEntry{Actor: actor, Action: store.ActionResume, Partition: -1})
		return nil
	})
}

// skip removes a row and records that it is skipped.
func (s *Store) skip(c *consumer, b *build, at int, actor string) {
	m := b.rows[at]
	if b.head(lineOf{m.Partition, m.Key}) == at {
		b.setLine(lineOf{m.Partition, m.Key}, m.ID, store.StatusWaiting)
	}
	b.rows = slices.Delete(b.rows, at, at+1)
	k := store.Skip{Topic: m.Topic, Partition: m.Partition, Position: m.Event.Position, Key: m.Key, EveryKey: m.Unresolved}
	b.skips[k] = true
	c.tell(store.HistoryEntry{Actor: actor, Action: store.ActionSkip, Topic: k.Topic, Partition: k.Partition, Position: k.Position, Key: k.Key})
}

// RetryUndelivered implements store.Operations.
func (s *Store) RetryUndelivered(_ context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (d store.Decision, err error) {
	return d, s.act("RetryUndelivered", id, func(c *consumer, b *build) error {
		raised := make(map[int]bool)
		for i := range b.rows {
			m := &b.rows[i]
			if !selected(sel, m) {
				continue
			}
			line := lineOf{m.Partition, m.Key}
			row := store.DecidedRow{ID: m.ID, Topic: m.Topic, Position: m.Event.Position, Key: m.Key, EventType: m.Event.Type, Was: m.Status}
			switch {
			case m.Status == store.StatusDeadLetter && !a.OutOfOrder:
				row.Refused = "it may have been overtaken"
			case m.Status != store.StatusDeadLetter && b.head(line) != i:
				row.Refused = "it is not the head of its line"
			case m.Status == store.StatusHalted, m.Status == store.StatusWaiting:
				row.Refused = "resume the consumer, or wait"
			}
			d.Rows = append(d.Rows, row)
			if row.Refused != "" {
				d.Refused++
				continue
			}
			d.Count++
			if a.DryRun {
				continue
			}
			if m.Status == store.StatusDeadLetterKey {
				b.setLine(line, m.ID, store.StatusWaiting)
			}
			fresh(m)
			raised[m.Partition] = true
		}
		b.raise(raised)
		c.tell(store.HistoryEntry{Actor: a.Actor, Action: store.ActionRetry, Partition: -1})
		return nil
	})
}

// DeleteUndelivered implements store.Operations.
func (s *Store) DeleteUndelivered(_ context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (d store.Decision, err error) {
	return d, s.act("DeleteUndelivered", id, func(c *consumer, b *build) error {
		raised := make(map[int]bool)
		for i := len(b.rows) - 1; i >= 0; i-- {
			if m := &b.rows[i]; selected(sel, m) {
				d.Count++
				if a.DryRun {
					continue
				}
				raised[m.Partition] = true
				s.skip(c, b, i, a.Actor)
			}
		}
		b.closed(s.N)
		b.raise(raised)
		c.tell(store.HistoryEntry{Actor: a.Actor, Action: store.ActionDelete, Partition: -1})
		return nil
	})
}

// deployed lets what another module may heal be tried again.
func (s *Store) deployed(c *consumer, b *build) {
	raised := make(map[int]bool)
	for i := range b.rows {
		m := &b.rows[i]
		switch line := (lineOf{m.Partition, m.Key}); {
		case m.Status == store.StatusDeadLetterKey && b.head(line) == i:
			b.setLine(line, m.ID, store.StatusWaiting)
		case m.Status != store.StatusHalted:
			continue
		}
		fresh(m)
		raised[m.Partition] = true
	}
	if c.State == store.StateHalted && c.Consumer.Halt != nil && c.Consumer.Halt.Reason == store.HaltApplyError {
		c.State, c.Consumer.Halt = b.goesOn(), nil
	}
	b.raise(raised)
	c.tell(store.HistoryEntry{Actor: "host", Action: store.ActionRevision, Partition: -1})
}
