package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/store"
)

// AllPartitions asks WaitApplied for every partition.
const AllPartitions = -1

// Errors of WaitApplied.
var (
	ErrUnknownConsumer = errors.New("no such consumer")
	ErrNotAnInput      = errors.New("the consumer does not read this topic")
)

// NotCaughtUpError is a wait that ended too early. Lagging are the partitions that
// are known not to be there yet, whoever applies them.
type NotCaughtUpError struct {
	Consumer store.ConsumerID
	Topic    string
	Position int64
	Lagging  []Lagging
}

// Lagging is a partition that is not where somebody waits for it to be, and where
// it is.
type Lagging struct {
	Partition int
	Position  int64
}

func (e *NotCaughtUpError) Error() string {
	return fmt.Sprintf("%s has not applied %s up to %d: %d partitions lag", e.Consumer, e.Topic, e.Position, len(e.Lagging))
}

// HaltedError is a wait for a consumer that halted before it got there.
type HaltedError struct {
	Consumer store.ConsumerID
	Halt     store.Halt
	Lagging  []Lagging
}

func (e *HaltedError) Error() string {
	return fmt.Sprintf("%s is halted at %s:%d: %s", e.Consumer, e.Halt.Topic, e.Halt.Position, e.Halt.Message)
}

// Applied is the position up to which everything of a topic is applied and
// committed in a partition of the consumer, or in AllPartitions; false if this
// host does not have them.
func (h *Host) Applied(id store.ConsumerID, topic string, partition int) (int64, bool) {
	c := h.find(id)
	if c == nil {
		return 0, false
	}
	t := slices.Index(c.topics, topic)
	if t < 0 {
		return 0, false
	}
	lowest, any := int64(math.MaxInt64), false
	for p, s := range c.placed() {
		if partition != AllPartitions && partition != p {
			continue
		}
		if s == nil {
			return 0, false
		}
		lowest, any = min(lowest, s.applied(t, p)), true
	}
	return lowest, any
}

// Halted is why and where the consumer is halted on this host, nil if it is not.
// It is known here a moment before it is recorded in the store.
func (h *Host) Halted(id store.ConsumerID) *store.Halt {
	c := h.find(id)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.halt
}

func (h *Host) find(id store.ConsumerID) *consumer {
	for _, c := range h.consumers {
		if c.id == id {
			return c
		}
	}
	return nil
}

// WaitApplied blocks until everything of topic up to position is applied and
// committed in one partition of the consumer, or in AllPartitions, on whichever
// host. When ctx ends first the error is a *NotCaughtUpError; others are
// *HaltedError, ErrUnknownConsumer where neither this host nor the store knows it,
// ErrNotAnInput and those of the store.
func (h *Host) WaitApplied(ctx context.Context, id store.ConsumerID, topic string, position int64, partition int) error {
	w := &wait{h: h, c: h.find(id), id: id, topic: topic, position: position, partition: partition, began: time.Now()}
	if w.c != nil {
		if w.t = slices.Index(w.c.topics, topic); w.t < 0 {
			return ErrNotAnInput
		}
		w.c.waiters.Add(1)
		defer w.c.waiters.Add(-1)
	}
	defer func() { w.ask(ctx, false) }()
	done, ended := ctx.Done(), false
	var grace <-chan time.Time
	for {
		now, err := w.look(ctx)
		if now.there || err != nil {
			return err
		}
		if ended || ctx.Err() != nil && (now.known || now.looked == nil) {
			return &NotCaughtUpError{Consumer: id, Topic: topic, Position: position, Lagging: now.lagging}
		}
		select {
		case <-now.moved:
		case <-now.looked:
		case <-done:
			// A time that was too short to hear of other hosts is extended until one
			// has; nobody wants to know any more if it is no time that has passed.
			ended = !errors.Is(ctx.Err(), context.DeadlineExceeded)
			done, grace = nil, time.After(lookGrace)
		case <-grace:
			ended = true
		}
	}
}

// lookGrace is how long a wait goes on for its first word of other hosts.
const lookGrace = time.Second

// wait is one reader's.
type wait struct {
	h         *Host
	c         *consumer // nil: none of this host's
	id        store.ConsumerID
	t         int // index of the topic, if it is
	topic     string
	position  int64
	partition int
	began     time.Time
	out       *lookout // while it wants to know of other hosts
}

// moment is what is known of all that a wait is for. The channels are closed when
// there may be more to know.
type moment struct {
	there   bool // all of it is
	known   bool // it is known where all of it is
	lagging []Lagging
	moved   <-chan struct{}
	looked  <-chan struct{}
}

// look puts together what is known here and what the store has told last. Both
// only ever rise: what was applied stays applied.
func (w *wait) look(ctx context.Context) (now moment, err error) {
	var at []*session
	var halt *store.Halt
	out := true
	if c := w.c; c != nil {
		c.mu.Lock()
		at, now.moved, halt, out = slices.Clone(c.at), c.moved, c.halt, c.state == StatePending
		c.mu.Unlock()
	}
	var sight *sight
	if w.out != nil {
		sight, now.looked = w.out.latest()
	}
	if w.c != nil && at == nil {
		return now, nil // the host starts
	}
	elsewhere := w.behind(&now, at, sight)
	now.there = now.known && len(now.lagging) == 0
	if now.there {
		return now, nil
	}
	if w.ask(ctx, elsewhere) { // for the first time: somebody else's may be there
		return w.look(ctx)
	}
	if sight != nil && !sight.began.Before(w.began) {
		switch {
		case errors.Is(sight.err, store.ErrNotFound):
			if w.c == nil {
				return now, ErrUnknownConsumer
			} // else no host has subscribed yet
		case sight.err != nil && !retry.Transient(sight.err):
			return now, sight.err
		case sight.err == nil && w.c == nil && sight.standings[w.topic] == nil:
			return now, ErrNotAnInput
		case out && halt == nil: // where the host runs the consumer it is told of a halt
			halt = sight.halt
		}
	}
	if halt != nil && (now.known || sight != nil) {
		return now, &HaltedError{Consumer: w.id, Halt: *halt, Lagging: now.lagging}
	}
	return now, nil
}

// behind notes the partitions that are not there yet, and tells whether others than
// this host are to be asked for some.
func (w *wait) behind(now *moment, at []*session, sight *sight) (elsewhere bool) {
	n := len(at)
	var told []store.Standing
	if sight != nil {
		told = sight.standings[w.topic]
		n = max(n, len(told))
	}
	now.known = n > 0
	for p := range n {
		if w.partition != AllPartitions && w.partition != p {
			continue
		}
		here := p < len(at) && at[p] != nil
		position := int64(-1)
		if here {
			position = at[p].applied(w.t, p)
		}
		if p < len(told) {
			position = max(position, told[p].Applied)
		}
		switch {
		case position < 0:
			now.known = false
		case position < w.position:
			now.lagging = append(now.lagging, Lagging{p, position})
		default:
			continue
		}
		elsewhere = elsewhere || !here
	}
	return elsewhere || n == 0
}

// ask begins or ends to have looks made; it tells whether it has begun.
func (w *wait) ask(ctx context.Context, elsewhere bool) (begun bool) {
	switch {
	case elsewhere && w.out == nil:
		w.out = w.h.lookouts.join(ctx, w.h.deps.Store, w.id)
		return true
	case !elsewhere && w.out != nil:
		w.h.lookouts.leave(w.out)
		w.out = nil
	}
	return false
}
