package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/projhost/projhost/store"
)

// rebuilds is what a build keeps of rebuilds, its only topic being "events".
type rebuilds struct {
	epoch          int64
	effectsThrough []int64 // by partition
	effectsBefore  []int64
	pruned         []int64 // by partition: an epoch
	replayThrough  int64
	incomplete     int64
	owed           map[store.Owed]bool
	epochs         []map[store.RowKey]int64 // of rows, by table index
}

func newRebuilds(n, tables int) rebuilds {
	r := rebuilds{effectsThrough: make([]int64, n), effectsBefore: make([]int64, n), pruned: make([]int64, n), owed: make(map[store.Owed]bool)}
	for range tables {
		r.epochs = append(r.epochs, make(map[store.RowKey]int64))
	}
	return r
}

// rebuilding tells whether a rebuild has not ended.
func (b *build) rebuilding() bool {
	return b.replayThrough > 0 || slices.ContainsFunc(b.pruned, func(e int64) bool { return e < b.epoch })
}

// goesOn is the state of a consumer that nothing stops.
func (b *build) goesOn() store.ConsumerState {
	if b.rebuilding() {
		return store.StateRebuilding
	}
	return store.StateRunning
}

// current is a row of a table as one sees it who works under an epoch.
func (b *build) current(table uint16, k store.RowKey, epoch int64) (store.StoredRow, bool) {
	row, there := b.tables[table][k]
	if !there || b.epochs[table][k] < epoch {
		return store.StoredRow{}, false
	}
	return row, true
}

// Stale lists the rows of a consumer's live build that are of a lower epoch than it, as
// "key" or "key/child".
func (s *Store) Stale(id store.ConsumerID) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[s.consumers[id].Build]
	for table := range b.tables {
		for k := range b.tables[table] {
			if b.epochs[table][k] < b.epoch {
				list = append(list, strings.TrimSuffix(k.Key+"/"+k.Child, "/"))
			}
		}
	}
	slices.Sort(list)
	return list
}

// RebuildInPlace implements store.Rebuilds.
func (s *Store) RebuildInPlace(_ context.Context, id store.ConsumerID, r store.Rebuild) error {
	return s.act("RebuildInPlace", id, func(c *consumer, b *build) error {
		if c.State == store.StatePaused {
			return &store.StateError{Consumer: id, Action: store.ActionRebuild, State: c.State}
		}
		if r.Declared != nil && r.Declared.Tables != c.Fingerprint.Tables {
			return &store.DeclarationError{Consumer: id, Changed: []string{"tables"}}
		}
		b.settleOwed()
		for _, m := range b.rows {
			if !m.Unresolved && m.Event.Position > b.effectsBefore[m.Partition] {
				b.owed[store.Owed{Position: m.Event.Position, Partition: m.Partition, Key: m.Key}] = true
			}
		}
		b.rows = nil
		clear(b.skips)
		b.epoch++
		for p := range b.owners {
			b.checkpoints[store.EventsTopic][p] = 0
			b.effectsBefore[p] = b.effectsThrough[p]
		}
		b.replayThrough, b.incomplete = s.mark, 0
		for _, builds := range s.members {
			if m := builds[b.id]; m != nil {
				m.tenure = 0
				clear(m.ReadThrough)
			}
		}
		b.raise(nil)
		c.State, c.Consumer.Halt, c.Epoch = store.StateRebuilding, nil, b.epoch
		for i := range c.Tables {
			c.Tables[i].Epoch = b.epoch
		}
		c.tell(store.HistoryEntry{Actor: r.Actor, Action: store.ActionRebuild, Partition: -1})
		return nil
	})
}

// settleOwed forgets what was had meanwhile.
func (b *build) settleOwed() {
	maps.DeleteFunc(b.owed, func(o store.Owed, _ bool) bool {
		return b.checkpoints[store.EventsTopic][o.Partition] >= o.Position && !slices.ContainsFunc(b.rows, func(m store.UndeliveredMessage) bool {
			return m.Event.Position == o.Position && m.Partition == o.Partition && m.Key == o.Key
		})
	})
}

// EffectsOwed implements store.Rebuilds.
func (s *Store) EffectsOwed(_ context.Context, build int64, topic string, after int64) (list []store.Owed, err error) {
	hidden, err := s.call("EffectsOwed")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.builds[build].owed {
		if o.Position > after && topic == store.EventsTopic {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b store.Owed) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Partition, b.Partition), strings.Compare(a.Key, b.Key))
	})
	return list, hidden
}

// StaleKeys implements store.Rebuilds.
func (s *Store) StaleKeys(_ context.Context, t store.TableRef, after string, limit int) (keys []string, err error) {
	hidden, err := s.call("StaleKeys")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, epoch := range s.builds[t.Build].epochs[t.Table.Index] {
		if epoch < t.Epoch && k.Key > after {
			keys = append(keys, k.Key)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return keys[:min(limit, len(keys))], hidden
}

// Pruned implements store.Rebuilds.
func (s *Store) Pruned(_ context.Context, p store.Pruned) (ended bool, err error) {
	return ended, s.act("Pruned", p.Consumer, func(c *consumer, b *build) error {
		for _, l := range p.Leases {
			if o := b.owners[l.Partition]; o.InstanceID != p.InstanceID || o.Generation != l.Generation {
				return store.ErrFenced
			}
			if b.epoch != p.Epoch || b.checkpoints[store.EventsTopic][l.Partition] < b.replayThrough {
				return store.ErrCheckpointMoved
			}
		}
		for _, l := range p.Leases {
			b.pruned[l.Partition] = p.Epoch
			s.checkPruned(b, l.Partition)
		}
		if c.State != store.StateRebuilding || b.epoch != p.Epoch || slices.ContainsFunc(b.pruned, func(e int64) bool { return e < b.epoch }) {
			return nil
		}
		b.settleOwed()
		b.replayThrough = 0
		c.State = store.StateRunning
		ended = true
		c.tell(store.HistoryEntry{Actor: "host", Action: store.ActionRebuilt, Partition: -1})
		return nil
	})
}

// closed removes what is stale of keys that nothing holds any more, where a prune has
// been or is to be.
func (b *build) closed(n int) {
	for table := range b.tables {
		for k := range b.tables[table] {
			p := store.PartitionOf(k.Key, n)
			if b.epochs[table][k] < b.epoch && b.incomplete == 0 && b.checkpoints[store.EventsTopic][p] >= b.replayThrough && b.head(lineOf{p, k.Key}) < 0 {
				delete(b.tables[table], k)
				delete(b.epochs[table], k)
			}
		}
	}
}

// checkPruned notes rows that a partition has though it is said to be pruned.
func (s *Store) checkPruned(b *build, partition int) {
	if b.incomplete > 0 {
		return
	}
	for table := range b.tables {
		for k := range b.tables[table] {
			if b.epochs[table][k] < b.epoch && store.PartitionOf(k.Key, s.N) == partition && b.head(lineOf{partition, k.Key}) < 0 {
				s.breach("partition %d is said to be pruned and has row %v of epoch %d", partition, k, b.epochs[table][k])
			}
		}
	}
}

// Reset implements store.Operations.
func (s *Store) Reset(_ context.Context, id store.ConsumerID, topic string, position int64, actor string) error {
	return s.act("Reset", id, func(c *consumer, b *build) error {
		if c.State == store.StateRebuilding {
			return &store.StateError{Consumer: id, Action: store.ActionReset, State: c.State}
		}
		for p, at := range b.checkpoints[topic] {
			if at < position {
				b.checkpoints[topic][p], b.incomplete = position, max(b.incomplete, position)
			}
		}
		b.raise(nil)
		c.tell(store.HistoryEntry{Actor: actor, Action: store.ActionReset, Topic: topic, Position: position, Partition: -1})
		return nil
	})
}
