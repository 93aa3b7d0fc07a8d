package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// A rebuild in place is the store's to begin: epoch and generations rise, so the
// sessions there are are over. Those that follow are bounded: they read no further
// than the rebuild goes. Once all that a host has is that far, it prunes it, and the
// host that is done last ends the rebuild; bounded sessions make room for others
// then. Nothing of it is kept in memory only: whoever comes next goes on from the
// checkpoints (P9).

// replay is what a session knows of its consumer's rebuilds.
type replay struct {
	epoch    int64
	tables   []store.TableRef
	until    []int64 // by topic: where it ends; nil: nowhere
	pruned   []bool  // by partition, of a rebuild that is under way
	replayed []reader.Replayed
	// incomplete: history was missing, so rows of before the rebuild stay.
	incomplete bool
	asked      time.Time // what is known of the consumer is no older
}

// readReplay reads it.
func (s *session) readReplay(ctx context.Context, stored *store.Consumer, checkpoints []store.Checkpoint) error {
	c := s.c
	r := &s.replay
	r.epoch, r.tables, r.pruned = stored.Epoch, slices.Clone(c.stored.Tables), make([]bool, len(s.leases))
	for i := range r.tables {
		r.tables[i].Epoch = stored.Epoch
	}
	until := make([]int64, len(c.topics))
	if stored.Epoch > 0 {
		r.replayed = make([]reader.Replayed, len(c.topics))
		for t := range r.replayed {
			r.replayed[t].Through = make([]int64, len(s.leases))
		}
	}
	for i := range r.pruned {
		r.pruned[i] = true
	}
	for i := range checkpoints {
		ck := &checkpoints[i]
		t := slices.Index(c.topics, ck.Topic)
		if t < 0 {
			continue
		}
		until[t] = max(until[t], ck.ReplayThrough)
		r.pruned[ck.Partition] = r.pruned[ck.Partition] && !ck.Rebuilding()
		r.incomplete = r.incomplete || ck.IncompleteThrough > 0
		if r.replayed != nil {
			r.replayed[t].Through[ck.Partition] = ck.EffectsBefore
		}
	}
	if stored.State == store.StateRebuilding {
		r.until = until
	}
	for t := range r.replayed {
		owed, err := c.host.deps.Store.EffectsOwed(ctx, c.stored.Build, c.topics[t], 0)
		if err != nil {
			return fmt.Errorf("read the owed effects of %s: %w", c.id, err)
		}
		r.replayed[t].Owed = make(map[reader.Owed]struct{}, len(owed))
		for _, o := range owed {
			r.replayed[t].Owed[reader.Owed(o)] = struct{}{}
		}
	}
	c.renew(stored.Epoch)
	return nil
}

// renew forgets what is known of messages when they are applied anew.
func (c *consumer) renew(epoch int64) {
	if c.epoch == epoch {
		return
	}
	c.epoch = epoch
	clear(c.careful)
	clear(c.refused)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored.Epoch = epoch
}

// replayedUntil tells whether everything of a partition that is to be replayed is,
// and saved.
func (s *session) replayedUntil(p int) bool {
	for t, until := range s.replay.until {
		if max(s.initial[t][p], s.lanes[s.lane[p]].Checkpoint(t, p)) < until {
			return false
		}
	}
	return true
}

// topicEnd is where a topic ends for the session.
func (s *session) topicEnd(t int) int64 {
	end := s.c.host.sources[s.c.topics[t]].End()
	if s.replay.until != nil {
		end = min(end, s.replay.until[t])
	}
	return end
}

// pruning is a prune under way, in a goroutine of its own.
type pruning struct {
	session *session // of the crew's, whose facts it goes by
	leases  []store.Lease
	stop    context.CancelFunc
	done    chan struct{}
	ended   bool // the rebuild
	held    bool // messages hold all there is: it has to be tried again
	err     error
}

// rebuild does what is to be done for a rebuild as things are.
func (w *crew) rebuild(stop context.Context, orders partition.Orders) {
	c := w.c
	for _, s := range w.sessions {
		r := &s.replay
		if r.until != nil && orders.At.After(r.asked) && orders.At.After(c.knownAt) && orders.Consumer.State == store.StateRunning {
			s.end(errRebuilt)
		}
	}
	if w.pruning != nil || len(w.sessions) == 0 || len(w.idle) > 0 || time.Until(w.prune) > 0 {
		return
	}
	p := &pruning{session: w.sessions[0], done: make(chan struct{})}
	for _, s := range w.sessions {
		if s.replay.until == nil || s.ending || s.replay.epoch != p.session.replay.epoch {
			return
		}
		for _, at := range s.partitions {
			if !s.replayedUntil(at) {
				return
			}
			if !s.replay.pruned[at] {
				p.leases = append(p.leases, s.leases[at])
			}
		}
	}
	slices.SortFunc(p.leases, func(a, b store.Lease) int { return a.Partition - b.Partition })
	ctx, cancel := context.WithCancel(stop)
	p.stop = cancel
	w.pruning = p
	go func() {
		defer close(p.done)
		defer lane.Recover(&p.err)
		p.run(ctx)
	}()
}

// pruneEnded draws the consequences of a prune.
func (w *crew) pruneEnded() {
	c, p := w.c, w.pruning
	w.pruning = nil
	p.stop()
	w.prune = time.Now().Add(pruneAgain)
	switch {
	case p.err != nil:
		// Whatever it is, it is tried again, and what was lost is seen elsewhere.
		c.log.Debug("stale rows are not pruned yet", "error", p.err)
	case p.held:
	case p.ended:
		c.log.Info("consumer is rebuilt", "epoch", p.session.replay.epoch)
		c.knownAt, w.prune = time.Now(), time.Time{}
		for _, s := range w.sessions {
			s.end(errRebuilt)
		}
	default:
		for _, s := range w.sessions {
			for _, l := range p.leases {
				if s.has(l.Partition) && s.leases[l.Partition] == l {
					s.replay.pruned[l.Partition] = true
				}
			}
		}
	}
}

// pruneAgain is the time before a host that is done with a rebuild looks whether
// others are, or tries again what failed.
const pruneAgain = time.Second

// pruneKeys is how many keys one transaction of a prune names.
const pruneKeys = 500

// run removes the stale rows of the leased partitions, and says that it did.
func (p *pruning) run(ctx context.Context) {
	s := p.session
	h := s.c.host
	loop := h.policy().NewLoop(nil)
	for {
		p.err = p.try(ctx)
		if p.err == nil || !transientOnly(p.err) {
			return
		}
		if loop.Again(ctx, p.err) != nil {
			return
		}
	}
}

func transientOnly(err error) bool {
	var transient *store.TransientError
	return errors.As(err, &transient)
}

func (p *pruning) try(ctx context.Context) error {
	s := p.session
	st := s.c.host.deps.Store
	lease := make(map[int]store.Lease, len(p.leases))
	partitions := make([]int, len(p.leases))
	for i, l := range p.leases {
		lease[l.Partition], partitions[i] = l, l.Partition
	}
	// No line begins any more: all that is to be replayed is, so what is held now
	// is all that can be. A line that ends takes its key's rows along itself.
	heads, err := st.Heads(ctx, s.c.stored.Build, partitions)
	if err != nil {
		return err
	}
	held := make(map[string]bool, len(heads))
	for i := range heads {
		held[heads[i].Key] = true
	}
	if p.held = s.c.free && len(heads) > 0; p.held {
		return nil
	}
	removed := 0
	for _, ref := range s.replay.tables {
		for after, more := "", len(p.leases) > 0 && !s.replay.incomplete; more; {
			keys, err := st.StaleKeys(ctx, ref, after, pruneKeys)
			if err != nil {
				return err
			}
			more = len(keys) == pruneKeys
			if more {
				after = keys[len(keys)-1]
			}
			b := s.pruneBatch(ref, lease, held, keys)
			if b == nil {
				continue
			}
			if err := st.Apply(ctx, b); err != nil {
				return err
			}
			removed += len(b.Tables[0].PruneKeys)
		}
	}
	p.ended, err = st.Pruned(ctx, store.Pruned{
		Consumer: s.c.id, Build: s.c.stored.Build, Epoch: s.replay.epoch, InstanceID: s.instance, Leases: p.leases,
	})
	if err == nil && len(p.leases) > 0 {
		s.c.log.Info("rows of before the rebuild are pruned", "partitions", len(p.leases), "keys", removed, "history_missing", s.replay.incomplete)
	}
	return err
}

// pruneBatch removes the stale rows of those keys that are in leased partitions and
// not held; nil if there are none.
func (s *session) pruneBatch(ref store.TableRef, lease map[int]store.Lease, held map[string]bool, keys []string) *store.Batch {
	b := &store.Batch{
		Consumer: s.c.id, Build: s.c.stored.Build, Epoch: s.replay.epoch, InstanceID: s.instance, Incarnation: s.incarnation,
	}
	w := store.TableWrites{Table: ref}
	for _, key := range keys {
		p := 0 // all are one scope
		if !ref.Table.Free {
			p = partition.Of(key, len(s.leases))
		}
		l, mine := lease[p]
		if !mine || held[key] {
			continue
		}
		w.PruneKeys = append(w.PruneKeys, key)
		b.Leases = append(b.Leases, l)
	}
	if len(w.PruneKeys) == 0 {
		return nil
	}
	slices.SortFunc(b.Leases, func(x, y store.Lease) int { return x.Partition - y.Partition })
	b.Leases = slices.Compact(b.Leases)
	slices.Sort(w.PruneKeys)
	b.Tables = []store.TableWrites{w}
	return b
}
