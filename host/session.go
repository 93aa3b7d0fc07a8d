package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/store"
)

// session is some partitions of a consumer at work under leases that do not
// change: a lane for every few of them, and for every topic a feed that begins
// at their lowest checkpoint. A consumer may have several over different
// partitions; none of them minds the others.
type session struct {
	c           *consumer
	group       int             // of its crew
	partitions  []int           // its own, rising
	leases      []store.Lease   // by partition, all N; those of its own
	instance    string          // that holds them
	orphan      <-chan struct{} // closed when that is no longer
	incarnation uint64          // of the database, when the checkpoints were read
	start       []int64         // by topic: the lowest checkpoint
	initial     [][]int64       // by topic, by partition: the checkpoint
	lane        []int           // by partition, all N: its place in lanes, or reader.NoLane
	lanes       []*lane.Lane
	heads       []store.Head // of its partitions, when it was opened
	replay      replay
	everyKey    []map[int64]struct{} // by topic: messages that are passed over

	reporters []*reporter // guarded by the consumer's lock
	ending    bool        // it was told to end; of the consumer's goroutine
	stop      context.CancelCauseFunc
	abort     context.CancelCauseFunc
	late      *time.Timer
	ended     ending // once it has
}

// open makes a session that begins at the checkpoints of partitions that are
// held.
func (c *consumer) open(ctx context.Context, partitions []int) (*session, error) {
	h := c.host
	instance, orphan := h.member.Instance()
	s := &session{
		c: c, partitions: slices.Sorted(slices.Values(partitions)), instance: instance, orphan: orphan,
		leases: make([]store.Lease, h.partitions), lane: make([]int, h.partitions),
		// Whatever is read from here on is of this incarnation or a later one, and
		// a later one ends the session.
		incarnation: h.deps.Store.Incarnation(),
	}
	for _, p := range s.partitions {
		lease, held := c.share.Lease(p)
		if !held {
			return nil, errOrphan
		}
		s.leases[p] = lease
	}
	s.replay.asked = time.Now()
	// Read under the leases: nobody else moves them any more.
	checkpoints, err := h.deps.Store.Checkpoints(ctx, c.stored.Build)
	if err != nil {
		return nil, fmt.Errorf("read the checkpoints of %s: %w", c.id, err)
	}
	// A row may say anything.
	checkpoints = slices.DeleteFunc(checkpoints, func(ck store.Checkpoint) bool { return ck.Partition < 0 || ck.Partition >= h.partitions })
	stored, err := h.deps.Store.Consumer(ctx, c.id)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.id, err)
	}
	if stored.State != store.StateRunning && stored.State != store.StateRebuilding {
		// A halt that is not recorded yet says more than what is.
		if !c.isStopped() {
			c.knownAt = time.Now()
			c.follow(stored.State, stored.Halt)
		}
		return nil, errHalted
	}
	// A first build begins with empty tables: no row of them has to be read.
	empty := make([]bool, len(c.stored.Tables))
	for i, ref := range c.stored.Tables {
		if empty[i], err = h.deps.Store.Empty(ctx, ref); err != nil {
			return nil, err
		}
	}
	s.startAt(checkpoints)
	if err := s.readReplay(ctx, &stored, checkpoints); err != nil {
		return nil, err
	}
	if s.heads, err = h.deps.Store.Heads(ctx, c.stored.Build, s.partitions); err != nil {
		return nil, fmt.Errorf("read the undelivered messages of %s: %w", c.id, err)
	}
	skips, err := s.readSkips(ctx)
	if err != nil {
		return nil, err
	}
	s.deal(lane.Config{
		Consumer: c.id, Declared: c.declared, Index: c.index,
		Build: c.stored.Build, Epoch: stored.Epoch,
		InstanceID: s.instance, Incarnation: s.incarnation, Digest: c.plugin.Module.Digest(),
		Topics: c.topics, Tables: s.replay.tables, Empty: empty,
		Start: s.start, Checkpoints: s.initial, Fence: -1,
		Batch: h.cfg.Batch, BatchMax: h.cfg.BatchMax, BatchRows: h.cfg.BatchRows, BatchBytes: h.cfg.BatchBytes, BatchAge: h.cfg.BatchAge,
		CallMessages: h.cfg.CallMessages, CallBytes: h.cfg.CallBytes,
		IdleSave: h.cfg.IdleSave, Retry: h.policy(),
		Free: c.free, Delivery: c.delivery, Held: c.held, Skips: skips,
		Until: s.replay.until, KeepOld: s.replay.incomplete, Replayed: s.replay.replayed,
	})
	return s, nil
}

// readSkips reads what is passed over behind the checkpoints: what is skipped for
// every key is the feeds' concern.
func (s *session) readSkips(ctx context.Context) (map[lane.SkipAt]struct{}, error) {
	skips := make(map[lane.SkipAt]struct{})
	s.everyKey = make([]map[int64]struct{}, len(s.c.topics))
	for t, topic := range s.c.topics {
		list, err := s.c.host.deps.Store.Skips(ctx, s.c.stored.Build, topic, s.start[t])
		if err != nil {
			return nil, fmt.Errorf("read the skips of %s: %w", s.c.id, err)
		}
		s.everyKey[t] = make(map[int64]struct{})
		for _, k := range list {
			if k.EveryKey {
				s.everyKey[t][k.Position] = struct{}{}
			} else {
				skips[lane.SkipAt{Topic: t, Position: k.Position, Key: k.Key}] = struct{}{}
			}
		}
	}
	return skips, nil
}

// startAt takes over the checkpoints.
func (s *session) startAt(checkpoints []store.Checkpoint) {
	topics := s.c.topics
	s.start, s.initial = make([]int64, len(topics)), make([][]int64, len(topics))
	for t := range topics {
		s.initial[t] = make([]int64, len(s.leases))
	}
	for _, ck := range checkpoints {
		if t := slices.Index(topics, ck.Topic); t >= 0 {
			s.initial[t][ck.Partition] = ck.Position
		}
	}
	for t := range topics {
		s.start[t] = s.initial[t][s.partitions[0]]
		for _, p := range s.partitions {
			s.start[t] = min(s.start[t], s.initial[t][p])
		}
	}
}

// deal makes the lanes and deals them the partitions, one after the other.
func (s *session) deal(cfg lane.Config) {
	c, h := s.c, s.c.host
	n := h.cfg.lanes()
	if c.together() {
		n = 1
	}
	n = min(n, len(s.partitions))
	if c.free {
		cfg.Fence = 0
	}
	cfg.CacheBytes, cfg.QueueBytes = h.cfg.CacheBytes/n, h.cfg.QueueBytes/n
	for p := range s.lane {
		s.lane[p] = reader.NoLane
	}
	own := make([][]int, n)
	for i, p := range s.partitions {
		own[i%n], s.lane[p] = append(own[i%n], p), i%n
	}
	for l := range n {
		cfg.Partitions, cfg.Careful, cfg.Refused = own[l], c.carefulWith(own[l], s.start), maps.Clone(c.refused)
		cfg.Heads = nil
		for _, head := range s.heads {
			if s.lane[head.Partition] == l {
				cfg.Heads = append(cfg.Heads, head)
			}
		}
		log := c.log.With("lane", l)
		s.lanes = append(s.lanes, lane.New(cfg, lane.Deps{
			Store: h.deps.Store, Lease: func(p int) store.Lease { return s.leases[p] }, Observer: s, Log: log,
			NewGuest: func(ctx context.Context) (lane.Guest, error) { return c.guests.make(ctx, c.plugin.Module, log) },
		}))
	}
}

// applied is how far a topic is applied and committed in a partition of the
// session.
func (s *session) applied(topic, p int) int64 {
	l := s.lanes[s.lane[p]]
	return max(s.initial[topic][p], l.Applied(topic), l.Checkpoint(topic, p))
}

// lowest is how far a topic is applied and committed in all its partitions.
func (s *session) lowest(topic int) int64 {
	at := s.applied(topic, s.partitions[0])
	for _, p := range s.partitions {
		at = min(at, s.applied(topic, p))
	}
	return at
}

// progressed tells whether it has committed anything.
func (s *session) progressed() bool {
	return slices.ContainsFunc(s.lanes, func(l *lane.Lane) bool { return l.Stats().Batches > 0 })
}

// has tells whether a partition is one of its own.
func (s *session) has(p int) bool { return s.lane[p] != reader.NoLane }

// near tells whether another session is about as far: one of both would have
// little to read again.
func (s *session) near(other *session) bool {
	if s.ending || other.ending {
		return false
	}
	for t := range s.c.topics {
		apart := s.lowest(t) - other.lowest(t)
		if max(apart, -apart) > int64(s.c.host.cfg.PageMessages) {
			return false
		}
	}
	return true
}

// begin runs the session, and hands it over when it has ended.
func (s *session) begin(ctx, stop context.Context, ends chan<- *session) {
	ctx, s.abort = context.WithCancelCause(ctx)
	stop, s.stop = context.WithCancelCause(stop)
	go func() {
		s.ended = s.run(ctx, stop)
		s.stop(nil)
		s.abort(nil)
		ends <- s
	}()
}

// end has the session end with the batches in hand, which have as long as they
// have when the host stops.
func (s *session) end(cause error) {
	if s.ending {
		return
	}
	s.ending = true
	s.stop(cause)
	s.late = time.AfterFunc(s.c.host.cfg.ShutdownTimeout, func() { s.abort(errTooLong) })
}

// run lets feeds and lanes work until all have ended. The first that ends ends
// the others in order: feeds at once, lanes with the batch they have in hand, so
// that one lane's failure costs the others nothing. An end of stop is such an
// end; an end of ctx leaves the batches in hand where they are, and so does a
// lost lease: whatever they would commit is refused.
func (s *session) run(ctx, stop context.Context) ending {
	feeding, stopFeeds := context.WithCancelCause(stop)
	defer stopFeeds(nil)
	closing := false
	end := func(drop bool) {
		// Whoever ends first decides; a lane that failed makes the rest vain.
		if !closing || drop {
			for _, l := range s.lanes {
				l.Queue().Close(drop)
			}
		}
		closing = true
		stopFeeds(errEnding)
	}

	feeds := make(chan error, len(s.c.topics))
	for t := range s.c.topics {
		go func() { feeds <- s.feed(feeding, t) }()
	}
	type laneEnd struct {
		lane int
		err  error
	}
	lanes := make(chan laneEnd, len(s.lanes))
	for i, l := range s.lanes {
		go func() { lanes <- laneEnd{i, l.Run(ctx)} }()
	}

	ended, orphan := ending{kept: true}, s.orphan
	for running, feeding := len(s.lanes), len(s.c.topics); running > 0 || feeding > 0; {
		select {
		case <-orphan:
			orphan = nil
			ended.add(s.c, errOrphan)
			s.abort(errOrphan)
		case err := <-feeds:
			feeding--
			if stop.Err() == nil {
				ended.add(s.c, err)
			}
			var unresolved *reader.UnresolvedError
			switch {
			case errors.As(err, &unresolved):
				// The lanes have everything before the message: that is applied
				// before the consumer halts.
				end(false)
			case !closing:
				end(true)
			}
		case l := <-lanes:
			running--
			if l.err == nil {
				continue // its queue was closed
			}
			ended.addLane(s.c, l.err, s.partitionsOf(l.lane))
			if errors.Is(l.err, store.ErrFenced) {
				s.abort(errLeaseLost)
			}
			end(true)
		}
	}
	ended.settle(s)
	return ended
}

// partitionsOf lists those of a lane.
func (s *session) partitionsOf(lane int) []int {
	var out []int
	for i := lane; i < len(s.partitions); i += len(s.lanes) {
		out = append(out, s.partitions[i])
	}
	return out
}

// feed follows one topic.
func (s *session) feed(ctx context.Context, t int) (err error) {
	defer lane.Recover(&err)
	c := s.c
	cfg := reader.FeedConfig{
		Topic: t, Consumer: c.declared, Lanes: len(s.lanes), Lane: s.lane,
		Start: s.initial[t], Skips: s.everyKey[t], Incarnation: s.incarnation,
	}
	if s.replay.replayed != nil {
		cfg.Replayed = s.replay.replayed[t]
	}
	if s.replay.until != nil {
		cfg.Bounded, cfg.Until = true, s.replay.until[t]
	}
	if slices.ContainsFunc(c.declared.Inputs, func(in abi.Input) bool {
		return in.Topic == c.topics[t] && in.Key.Kind == abi.KeyFunction
	}) {
		k := &teller{index: c.index, make: func(ctx context.Context) (*instance, error) {
			return c.guests.make(ctx, c.plugin.Module, c.log.With("feed", c.topics[t]))
		}}
		defer func() { err = errors.Join(err, k.close(context.WithoutCancel(ctx))) }()
		cfg.Teller = k
	}
	again := c.host.policy().NewLoop(s.Reporter())
	feed, err := reader.NewFeed(c.host.sources[c.topics[t]], cfg,
		func(ctx context.Context, l int, sl reader.Slice) error {
			again.Done()
			return s.lanes[l].Queue().Push(ctx, sl)
		}, again.Again)
	if err != nil {
		return err
	}
	return feed.Run(ctx, s.start[t])
}

// Reporter implements lane.Observer.
func (s *session) Reporter() func(error) {
	r := s.c.reporter()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.reporters = append(s.reporters, r)
	return r.report
}

// Progress implements lane.Observer.
func (s *session) Progress() { s.c.progress() }

// Called implements lane.Observer.
func (s *session) Called(_ int, took time.Duration) {
	if m := s.c.host.metrics; m != nil {
		m.Called(s.c.id.String(), took)
	}
}

// Committed implements lane.Observer.
func (s *session) Committed(messages int, took time.Duration) {
	if m := s.c.host.metrics; m != nil {
		m.Committed(s.c.id.String(), messages, took)
	}
}
