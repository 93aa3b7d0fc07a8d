package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// consumer runs one consumer of a plugin: session after session, until the host
// stops or a message halts it. What happens to it never reaches another
// consumer (P5).
type consumer struct {
	host        *Host
	plugin      *Plugin
	declared    *abi.Consumer
	index       int // in the manifest
	id          store.ConsumerID
	topics      []string
	tables      []*readmodel.Table
	singleOwner bool
	free        bool // has a free table: one fence for all
	log         hclog.Logger
	guests      *instances

	careful []*lane.Careful // by lane; nil: none

	waiters atomic.Int32

	mu            sync.Mutex
	state         string
	sinceUS       int64
	halt          *store.Halt
	retrying      map[*reporter]error
	retryingSince time.Time // of the first of them
	waiting       string    // for whom, in that state
	stored        store.Consumer
	term          *partition.Term // the latest claim; nil before the first
	session       *session        // the latest; nil before the first
	moved         chan struct{}   // closed when something was applied or the state changed
}

// session is the work of a consumer between a claim and the end of its lanes.
type session struct {
	term    *partition.Term
	orphan  <-chan struct{} // closed when the instance that claimed is no longer
	start   []int64         // by topic: the lowest checkpoint
	initial [][]int64       // by topic, by partition: the checkpoint
	lanes   []*lane.Lane
}

// applied is how far a topic is applied and committed in a partition.
func (s *session) applied(topic, p int) int64 {
	l := s.lanes[p%len(s.lanes)]
	return max(s.initial[topic][p], l.Applied(topic), l.Checkpoint(topic, p))
}

// subscribe records the consumer in the store and clears a halt of an earlier
// run: a start tries the message again.
func (c *consumer) subscribe(ctx context.Context) error {
	stored, err := c.host.deps.Store.Subscribe(ctx, store.Declaration{
		ID: c.id, Topics: c.topics, Tables: c.tables,
		Fingerprint: Fingerprint(c.declared, c.singleOwner, c.plugin.Module.Digest(), c.plugin.Config),
		Plugin:      c.plugin.Name, Digest: c.plugin.Module.Digest(),
		Adopt: c.plugin.Consumers[c.id.Name].Adopt,
	})
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", c.id, err)
	}
	if len(stored.Tables) != len(c.tables) {
		return fmt.Errorf("subscribe %s: the store knows %d tables of %d", c.id, len(stored.Tables), len(c.tables))
	}
	was, err := c.host.deps.Store.ClearHalt(ctx, c.id)
	if err != nil {
		return fmt.Errorf("clear the halt of %s: %w", c.id, err)
	}
	if was {
		c.log.Info("consumer was halted: its message is tried again")
	}
	stored.State, stored.Halt = store.StateRunning, nil
	c.mu.Lock()
	c.stored = stored
	c.mu.Unlock()
	return nil
}

// run works until stop ends, and then for as long as batches in hand take to
// commit, at most until ctx ends.
func (c *consumer) run(ctx, stop context.Context) {
	restarts := c.host.policy().NewLoop(nil)
	report := c.Reporter()
	defer c.ended()
	for {
		progressed, err := c.once(ctx, stop)
		if stop.Err() != nil || ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Cause(ctx)) && !errors.Is(err, context.Cause(stop)) {
				c.log.Warn("consumer stopped with an error; it goes on from its checkpoints", "error", err)
			}
			return
		}
		if progressed {
			restarts.Done()
		}
		var halt *lane.HaltError
		var refused *lane.RefusedError
		var panicked *lane.PanicError
		switch {
		case errors.As(err, &halt):
			if c.halted(stop, halt.Halt) {
				return
			}
			continue
		case errors.As(err, &panicked):
			c.log.Error("panic in the host's own code", "panic", panicked.Value, "stack", string(panicked.Stack))
			if c.halted(stop, store.Halt{Reason: store.HaltApplyError, Message: panicked.Error(), Digest: c.plugin.Module.Digest()}) {
				return
			}
			continue
		case errors.As(err, &refused):
			c.log.Warn("database refuses a batch: looking for the message", "error", err)
			report(err)
			continue
		}
		var taken *partition.TakenError
		if errors.As(err, &taken) {
			waited, failed := c.await(stop, taken)
			switch {
			case stop.Err() != nil:
				return
			case failed != nil:
				err = failed
			case waited:
				restarts.Done()
				continue
			}
		}
		report := report
		if errors.Is(err, errOrphan) {
			report = func(error) {} // the member has told it for all
		}
		if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrCheckpointMoved) || errors.Is(err, store.ErrIncarnation) ||
			errors.Is(err, lane.ErrLost) || errors.Is(err, errOrphan) || errors.As(err, &taken) {
			// Not an error of unknown kind: it may go on for as long as others
			// want the same partitions.
			err = &store.TransientError{Op: "apply " + c.id.String(), Err: err}
		}
		report(err)
		if err := restarts.Again(stop, err); err != nil {
			var exhausted *retry.ExhaustedError
			if errors.As(err, &exhausted) && !c.halted(stop, store.Halt{
				Reason: store.HaltApplyError, Code: int(abi.CodeDatabase), Message: err.Error(), Digest: c.plugin.Module.Digest(),
			}) {
				restarts.Done()
				continue
			}
			return
		}
	}
}

// once runs one session, and tells whether it committed anything.
func (c *consumer) once(ctx, stop context.Context) (progressed bool, err error) {
	s, incarnation, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	c.session = s
	c.mu.Unlock()
	c.started()
	err = c.work(ctx, stop, s, incarnation)
	for _, l := range s.lanes {
		progressed = progressed || l.Stats().Batches > 0
	}
	return progressed, err
}

// open claims the partitions and makes lanes that begin at the checkpoints.
func (c *consumer) open(ctx context.Context) (*session, uint64, error) {
	h := c.host
	// Whatever is read from here on is of this incarnation or a later one, and
	// a later one ends the session.
	incarnation := h.deps.Store.Incarnation()
	holder, orphan := h.member.Holder()
	term, err := holder.Claim(ctx, c.stored.Build)
	if errors.Is(err, store.ErrNotFound) {
		h.member.Doubt()
		return nil, 0, errOrphan
	}
	if err != nil {
		return nil, 0, err
	}
	c.mu.Lock()
	c.term = term
	c.mu.Unlock()
	// Read under the new generation: nobody else moves them any more.
	checkpoints, err := h.deps.Store.Checkpoints(ctx, c.stored.Build)
	if err != nil {
		return nil, 0, fmt.Errorf("read the checkpoints of %s: %w", c.id, err)
	}
	stored, err := h.deps.Store.Consumer(ctx, c.id)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", c.id, err)
	}
	// A first build begins with empty tables: no row of them has to be read.
	empty := make([]bool, len(c.stored.Tables))
	for i, ref := range c.stored.Tables {
		if empty[i], err = h.deps.Store.Empty(ctx, ref); err != nil {
			return nil, 0, err
		}
	}
	s := &session{term: term, orphan: orphan, start: make([]int64, len(c.topics)), initial: make([][]int64, len(c.topics))}
	for t := range c.topics {
		s.initial[t] = make([]int64, h.partitions)
	}
	for _, ck := range checkpoints {
		if t := slices.Index(c.topics, ck.Topic); t >= 0 {
			s.initial[t][ck.Partition] = ck.Position
		}
	}
	for t := range c.topics {
		s.start[t] = slices.Min(s.initial[t])
	}
	n := h.cfg.lanes()
	if c.singleOwner {
		n = 1
	}
	n = min(n, h.partitions)
	if len(c.careful) != n {
		c.careful = make([]*lane.Careful, n)
	}
	cfg := lane.Config{
		Consumer: c.id, Declared: c.declared, Index: c.index,
		Build: c.stored.Build, Epoch: stored.Epoch,
		InstanceID: holder.Instance(), Incarnation: incarnation, Digest: c.plugin.Module.Digest(),
		Topics: c.topics, Tables: c.stored.Tables, Empty: empty,
		Start: s.start, Checkpoints: s.initial, Fence: -1,
		Batch: h.cfg.Batch, BatchMax: h.cfg.BatchMax, BatchRows: h.cfg.BatchRows, BatchBytes: h.cfg.BatchBytes, BatchAge: h.cfg.BatchAge,
		CallMessages: h.cfg.CallMessages, CallBytes: h.cfg.CallBytes,
		CacheBytes: h.cfg.CacheBytes / n, QueueBytes: h.cfg.QueueBytes / n,
		IdleSave: h.cfg.IdleSave, Retry: h.policy(),
	}
	if c.free {
		cfg.Fence = 0
	}
	for l := range n {
		lc := cfg
		lc.Partitions, lc.Careful = nil, c.careful[l]
		for p := l; p < h.partitions; p += n {
			lc.Partitions = append(lc.Partitions, p)
		}
		log := c.log.With("lane", l)
		s.lanes = append(s.lanes, lane.New(lc, lane.Deps{
			Store: h.deps.Store, Lease: term.Lease, Observer: c, Log: log,
			NewGuest: func(ctx context.Context) (lane.Guest, error) { return c.guests.make(ctx, c.plugin.Module, log) },
		}))
	}
	return s, incarnation, nil
}

// work runs the feeds and lanes of a session until all have ended. The first
// that ends ends the others in order: feeds at once, lanes with the batch they
// have in hand, so that one lane's failure costs the others nothing.
func (c *consumer) work(ctx, stop context.Context, s *session, incarnation uint64) error {
	feeding, stopFeeds := context.WithCancelCause(stop)
	defer stopFeeds(nil)
	ending := false
	end := func(drop bool) {
		// Whoever ends first decides; a lane that failed makes the rest vain.
		if !ending || drop {
			for _, l := range s.lanes {
				l.Queue().Close(drop)
			}
		}
		ending = true
		stopFeeds(errEnding)
	}

	feeds := make(chan error, len(c.topics))
	for t := range c.topics {
		go func() { feeds <- c.feed(feeding, s, t, incarnation) }()
	}
	lanes := make(chan laneEnd, len(s.lanes))
	for i, l := range s.lanes {
		go func() { lanes <- laneEnd{i, l.Run(ctx)} }()
	}

	var ends []error
	orphan := s.orphan
	for running, feeding := len(s.lanes), len(c.topics); running > 0 || feeding > 0; {
		select {
		case <-orphan:
			orphan = nil
			ends = append(ends, errOrphan)
			end(true)
		case err := <-feeds:
			feeding--
			if stop.Err() == nil {
				ends = append(ends, err)
			}
			var unresolved *reader.UnresolvedError
			switch {
			case errors.As(err, &unresolved):
				// The lanes have everything before the message: that is applied
				// before the consumer halts.
				end(false)
			case !ending:
				end(true)
			}
		case l := <-lanes:
			running--
			if l.err == nil {
				continue // its queue was closed
			}
			ends = append(ends, l.err)
			c.note(l)
			end(true)
		}
	}
	return c.verdict(s, ends)
}

type laneEnd struct {
	lane int
	err  error
}

// note keeps what a refused batch tells about where the culprit is.
func (c *consumer) note(end laneEnd) {
	var refused *lane.RefusedError
	if errors.As(end.err, &refused) {
		c.careful[end.lane] = &refused.Careful
	}
}

// Reasons for the end of work, told by contexts.
var (
	errShutdown = errors.New("the host is stopping")
	errEnding   = errors.New("the consumer's session ends")
	errOrphan   = errors.New("the host's instance was removed: its partitions are claimed anew")
	errTooLong  = errors.New("the host was told to stop and its batches took too long to commit")
)

// verdict picks what a session ended for: a message that halts the consumer
// before anything that is only tried again. A feed is ahead of the lanes, so a
// message whose keys cannot be told counts last.
func (c *consumer) verdict(s *session, ends []error) error {
	var other error
	var unresolved *reader.UnresolvedError // of any topic
	for _, err := range ends {
		var halt *lane.HaltError
		var panicked *lane.PanicError
		var missing *reader.MissingHistoryError
		switch {
		case errors.As(err, &halt), errors.As(err, &panicked):
			return err
		case errors.As(err, &unresolved):
		case errors.As(err, &missing):
			return &lane.HaltError{Halt: store.Halt{
				Reason: store.HaltMissingHistory, Message: missing.Error(),
				Topic: missing.Topic, Position: missing.After, Digest: c.plugin.Module.Digest(), AtUS: time.Now().UnixMicro(),
			}}
		case errors.Is(err, errEnding), errors.Is(err, lane.ErrClosed):
		case other == nil:
			other = err
		}
	}
	if other != nil || unresolved == nil {
		return other
	}
	return c.unresolved(s, unresolved)
}

// unresolved halts for a message whose keys cannot be told, once everything
// before it is applied; if that did not succeed the session is tried again.
func (c *consumer) unresolved(s *session, u *reader.UnresolvedError) error {
	t := slices.Index(c.topics, u.Topic)
	for p := range s.initial[t] {
		if s.applied(t, p) < u.Event.Position-1 {
			return &store.TransientError{Op: "apply " + c.id.String(), Err: errors.New("what comes before an unreadable message is not applied yet")}
		}
	}
	return &lane.HaltError{Halt: store.Halt{
		Reason: store.HaltApplyError, Code: int(abi.CodeMalformed), Message: u.Error(),
		Topic: u.Topic, Position: u.Event.Position,
		EventType: u.Event.Type, EventID: u.Event.ID.String(),
		Digest: c.plugin.Module.Digest(), AtUS: time.Now().UnixMicro(),
	}}
}

// feed follows one topic for the session.
func (c *consumer) feed(ctx context.Context, s *session, t int, incarnation uint64) (err error) {
	defer lane.Recover(&err)
	cfg := reader.FeedConfig{
		Topic: t, Consumer: c.declared, Partitions: c.host.partitions, Lanes: len(s.lanes),
		Start: s.initial[t], Incarnation: incarnation,
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
	again := c.host.policy().NewLoop(c.Reporter())
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
	term := c.term
	c.mu.Unlock()
	if term == nil {
		return true
	}
	loop := c.host.policy().NewLoop(nil)
	for {
		err := c.host.deps.Store.Halt(context.WithoutCancel(stop), c.id, term.Lease(h.Partition), h)
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

func (c *consumer) isHalted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == StateHalted
}

func (c *consumer) started() { c.setState(StateRunning, nil) }

func (c *consumer) ended() {
	if !c.isHalted() {
		c.setState(StateStopped, nil)
	}
}

func (c *consumer) setState(state string, halt *store.Halt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != state {
		c.state, c.sinceUS = state, time.Now().UnixMicro()
	}
	c.halt, c.waiting = halt, ""
	clear(c.retrying)
	close(c.moved)
	c.moved = make(chan struct{})
}

// reporter is one place that may be retrying.
type reporter struct{ c *consumer }

// Reporter implements lane.Observer. The first failure of a streak is logged as
// a warning, those after it as details.
func (c *consumer) Reporter() func(error) {
	r := &reporter{c}
	return func(err error) {
		c.mu.Lock()
		_, known := c.retrying[r]
		if err == nil {
			delete(c.retrying, r)
		} else {
			if len(c.retrying) == 0 {
				c.retryingSince = time.Now()
			}
			c.retrying[r] = err
		}
		left := len(c.retrying)
		c.mu.Unlock()
		switch {
		case err == nil:
			if known && left == 0 {
				c.log.Info("goes on after retrying")
			}
		case !known && left == 1:
			c.log.Warn("retrying", "error", err)
		default:
			c.log.Debug("retrying", "error", err)
		}
		if m := c.host.metrics; m != nil && err != nil {
			m.Retried(c.id.String())
		}
	}
}

// Progress implements lane.Observer.
func (c *consumer) Progress() {
	if c.waiters.Load() == 0 {
		return
	}
	c.mu.Lock()
	close(c.moved)
	c.moved = make(chan struct{})
	c.mu.Unlock()
}

// Called implements lane.Observer.
func (c *consumer) Called(_ int, took time.Duration) {
	if m := c.host.metrics; m != nil {
		m.Called(c.id.String(), took)
	}
}

// Committed implements lane.Observer.
func (c *consumer) Committed(messages int, took time.Duration) {
	if m := c.host.metrics; m != nil {
		m.Committed(c.id.String(), messages, took)
	}
}
