package lane

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// submit seals the batch in hand and hands it to the committer. Nothing of the
// one before may be in flight.
func (l *Lane) submit() {
	l.seal()
	l.sealed.inFlight = true
	l.commits <- &l.out
}

// seal turns the batch in hand into the store's: at most one write a row, with
// its final value, and the checkpoints of the partitions that had messages; with
// an idle save those of all the lane's partitions. They move to where the lane
// has read through, from where they were.
func (l *Lane) seal() {
	for i := range l.outTables {
		w := &l.outTables[i]
		w.DeleteChildrenOf = w.DeleteChildrenOf[:0]
		clear(w.Writes)
		w.Writes = w.Writes[:0]
		w.PruneKeys = w.PruneKeys[:0]
	}
	l.rows.seal(func(n *row) {
		w := &l.outTables[n.table.ref.Table.Index]
		w.Writes = append(w.Writes, readmodel.Write{
			Key: readmodel.Key{Key: n.key, Child: n.child},
			Row: n.value, Position: n.pos, UpdatedUS: n.us, Exists: n.exists, Before: n.stored,
		})
	}, func(f *family) {
		w := &l.outTables[f.table.ref.Table.Index]
		w.DeleteChildrenOf = append(w.DeleteChildrenOf, f.key)
	}, func(t *table, key string) {
		w := &l.outTables[t.ref.Table.Index]
		w.PruneKeys = append(w.PruneKeys, key)
	})
	b := &l.out
	*b = store.Batch{
		Consumer: l.cfg.Consumer, Build: l.cfg.Build, Epoch: l.cfg.Epoch,
		InstanceID: l.cfg.InstanceID, Incarnation: l.cfg.Incarnation,
		Leases: b.Leases[:0], Tables: b.Tables[:0], Checkpoints: b.Checkpoints[:0],
	}
	for i := range l.outTables {
		w := &l.outTables[i]
		if len(w.Writes) == 0 && len(w.DeleteChildrenOf) == 0 && len(w.PruneKeys) == 0 {
			continue
		}
		slices.Sort(w.DeleteChildrenOf)
		slices.Sort(w.PruneKeys)
		w.PruneKeys = slices.Compact(w.PruneKeys)
		b.Tables = append(b.Tables, *w)
	}
	l.sealOutcomes(b)
	l.moveCheckpoints()

	l.sealed.messages, l.sealed.first, l.sealed.topic = l.batch.messages, l.batch.first, l.batch.topic
	copy(l.sealed.through, l.through)
	l.batch = building{touched: l.batch.touched}
}

// moveCheckpoints fills in the moves and the leases they need.
func (l *Lane) moveCheckpoints() {
	b := &l.out
	idle := l.batch.idle || l.idleDue
	l.idleDue = false
	for t, touched := range l.batch.touched {
		for _, p := range l.cfg.Partitions {
			from, to := l.saved[t][p], l.through[t]
			if !touched[p] && !idle || from >= to {
				continue
			}
			b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: l.cfg.Topics[t], Partition: p, From: from, To: to})
			l.saved[t][p] = to
		}
		clear(touched)
	}
	slices.SortFunc(b.Checkpoints, func(a, b store.CheckpointMove) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for i := range b.Checkpoints {
		b.Leases = append(b.Leases, l.deps.Lease(b.Checkpoints[i].Partition))
	}
	if l.cfg.Fence >= 0 {
		b.Leases = append(b.Leases, l.deps.Lease(l.cfg.Fence))
	}
	slices.SortFunc(b.Leases, func(a, b store.Lease) int { return cmp.Compare(a.Partition, b.Partition) })
	b.Leases = slices.Compact(b.Leases)
	l.sealed.moves = append(l.sealed.moves[:0], b.Checkpoints...)
}

// idleLeft tells whether some partition's checkpoint is behind what is applied.
func (l *Lane) idleLeft() bool {
	for t := range l.through {
		for _, p := range l.cfg.Partitions {
			if l.saved[t][p] < l.through[t] {
				return true
			}
		}
	}
	return false
}

// finish notes what became of the batch in flight.
func (l *Lane) finish(r commitResult) error {
	l.sealed.inFlight = false
	if r.err != nil {
		l.failed = true
		return l.refused(r.err)
	}
	l.rows.commit()
	for _, m := range l.sealed.moves {
		l.marks[l.topic(m.Topic)][m.Partition].Store(m.To)
	}
	for t, through := range l.sealed.through {
		l.applied[t].Store(through)
	}
	l.stats.committed(l.sealed.messages, r.took, l)
	l.deps.Observer.Progress()
	l.deps.Observer.Committed(l.sealed.messages, r.took)
	return nil
}

func (l *Lane) topic(name string) int { return slices.Index(l.cfg.Topics, name) }

// refused turns what the committer gave up on into what ends the lane.
func (l *Lane) refused(err error) error {
	var data *store.DataError
	var exhausted *retry.ExhaustedError
	b := &l.sealed
	first := &item{entry: b.first, topic: b.topic}
	switch {
	case errors.As(err, &exhausted):
		return l.haltAt(first, int(abi.CodeDatabase), err.Error())
	case !errors.As(err, &data):
		return err
	}
	reason := "the database refuses what the message writes: " + data.Error()
	switch {
	case len(b.retries) == 1 && b.retries[0].Then == nil:
		r := &b.retries[0]
		return &RefusedError{Err: err, Rows: map[int64]RefusedRow{r.ID: {Attempts: r.Attempts, Passing: r.Passing, Reason: reason}}}
	case len(b.retries) > 1:
		rows := make(map[int64]RefusedRow)
		for i := range b.retries {
			r := &b.retries[i]
			rows[r.ID] = RefusedRow{Attempts: r.Attempts, Passing: r.Passing}
		}
		return &RefusedError{Err: err, Rows: rows}
	case b.messages > 1:
		return &RefusedError{Err: err, Careful: Careful{Messages: b.messages / 2, Through: slices.Clone(b.through)}}
	case b.messages == 1 && l.refusal(b.topic, b.first.Event.Position) == nil:
		return &RefusedError{Err: err, Careful: Careful{Messages: 1, Through: slices.Clone(b.through),
			Refusals: []Refusal{{Topic: b.topic, Position: b.first.Event.Position, Reason: reason}}}}
	}
	// It cannot be recorded either.
	return l.haltAt(first, int(abi.CodeData), reason)
}

// flush commits what is in hand before the lane ends for a message that halts
// the consumer: everything before it is to be in the database. What is in hand
// after a batch that failed was made on top of it and goes with it (P1).
func (l *Lane) flush(ctx context.Context, end error) error {
	var halt *HaltError
	if l.failed || !errors.As(end, &halt) {
		return end
	}
	for {
		if l.sealed.inFlight {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case r := <-l.results:
				if err := l.finish(r); err != nil {
					return err
				}
			}
			continue
		}
		if !l.batch.any {
			l.settleApplied()
			return end
		}
		l.submit()
	}
}

// commitAll is the committer: one batch after the other, while the lane works
// on the next.
func (l *Lane) commitAll(ctx context.Context) {
	loop := l.cfg.Retry.NewLoop(l.deps.Observer.Reporter())
	for b := range l.commits {
		start := time.Now()
		err := l.commit(ctx, b, loop)
		l.results <- commitResult{err: err, took: time.Since(start)}
	}
}

// commit brings a batch into the database. A failure of a moment is answered by
// the very same batch: its checkpoints move from where they were or not at all,
// so it cannot be applied twice (P1). Whether it committed is known before
// anything else is done.
func (l *Lane) commit(ctx context.Context, b *store.Batch, loop *retry.Loop) (err error) {
	defer Recover(&err)
	for {
		err := l.deps.Store.Apply(ctx, b)
		var transient *store.TransientError
		switch {
		case err == nil:
			loop.Done()
			return nil
		case errors.As(err, &transient) && transient.OutcomeUnknown:
			outcome, err := l.settle(ctx, b, loop)
			switch {
			case err != nil:
				return err
			case outcome == store.OutcomeCommitted:
				loop.Done()
				return nil
			case outcome != store.OutcomeNotCommitted:
				return ErrLost
			}
		case lasting(err):
			return err
		}
		if err := loop.Again(ctx, err); err != nil {
			return err
		}
		l.stats.retries.Add(1)
	}
}

func (l *Lane) settle(ctx context.Context, b *store.Batch, loop *retry.Loop) (store.Outcome, error) {
	for {
		outcome, err := l.deps.Store.Settle(ctx, b)
		if err == nil {
			return outcome, nil
		}
		if lasting(err) {
			return outcome, err
		}
		if err := loop.Again(ctx, err); err != nil {
			return outcome, err
		}
		l.stats.retries.Add(1)
	}
}

// lasting tells the errors that the same batch would meet again.
func lasting(err error) bool {
	var data *store.DataError
	return errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrCheckpointMoved) || errors.Is(err, store.ErrRetryMoved) ||
		errors.Is(err, store.ErrIncarnation) || errors.As(err, &data)
}

// stats is what a lane has done and holds, for others to read at any time.
type stats struct {
	calls, batches, messages, retries, steps atomic.Uint64
	guestNS, commitNS                        atomic.Int64
	lastBatch                                atomic.Int64
	cacheRows, cacheBytes                    atomic.Int64
	hits, misses                             atomic.Uint64
	held, due                                atomic.Int64
	blocked                                  atomic.Bool
}

func (s *stats) called(took time.Duration) {
	s.calls.Add(1)
	s.guestNS.Add(int64(took))
}

func (s *stats) committed(messages int, took time.Duration, l *Lane) {
	s.batches.Add(1)
	s.messages.Add(uint64(messages))
	s.commitNS.Add(int64(took))
	s.lastBatch.Store(int64(messages))
	s.cacheRows.Store(int64(l.rows.count))
	s.cacheBytes.Store(int64(l.rows.bytes))
	s.hits.Store(l.sink.hits)
	s.misses.Store(l.sink.misses)
}

// Stats is what a lane has done so far and holds now.
type Stats struct {
	Calls, Batches, Messages, Retries uint64
	Steps                             uint64 // stretches of messages done, committed or not yet
	GuestTime, CommitTime             time.Duration
	LastBatch                         int
	CacheRows                         int
	CacheBytes                        int64
	CacheHits, CacheMisses            uint64
	QueueMessages, QueueBytes         int
	Held                              int64 // undelivered messages of its partitions
	DueUS                             int64 // when the next of them is tried again; 0: never
	Blocked                           bool  // it takes no messages before that has succeeded
}

// Stats may be called at any time.
func (l *Lane) Stats() Stats {
	s := Stats{
		Calls: l.stats.calls.Load(), Batches: l.stats.batches.Load(), Messages: l.stats.messages.Load(),
		Retries: l.stats.retries.Load(), Steps: l.stats.steps.Load(),
		GuestTime: time.Duration(l.stats.guestNS.Load()), CommitTime: time.Duration(l.stats.commitNS.Load()),
		LastBatch: int(l.stats.lastBatch.Load()), CacheRows: int(l.stats.cacheRows.Load()),
		CacheBytes: l.stats.cacheBytes.Load(), CacheHits: l.stats.hits.Load(), CacheMisses: l.stats.misses.Load(),
	}
	s.Held, s.DueUS, s.Blocked = l.stats.held.Load(), l.stats.due.Load(), l.stats.blocked.Load()
	s.QueueMessages, s.QueueBytes = l.queue.Load()
	return s
}
