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
	ErrUnknownConsumer = errors.New("no such consumer on this host")
	ErrNotAnInput      = errors.New("the consumer does not read this topic")
)

// NotCaughtUpError is a wait that ended too early. Lagging are the partitions
// that are not there yet.
type NotCaughtUpError struct {
	Consumer store.ConsumerID
	Topic    string
	Position int64
	Lagging  []int
}

func (e *NotCaughtUpError) Error() string {
	return fmt.Sprintf("%s has not applied %s up to %d: %d partitions lag", e.Consumer, e.Topic, e.Position, len(e.Lagging))
}

// HaltedError is a wait for a consumer that halted before it got there.
type HaltedError struct {
	Consumer store.ConsumerID
	Halt     store.Halt
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
// *HaltedError, ErrUnknownConsumer, ErrNotAnInput and those of the store.
func (h *Host) WaitApplied(ctx context.Context, id store.ConsumerID, topic string, position int64, partition int) error {
	c := h.find(id)
	if c == nil {
		return ErrUnknownConsumer
	}
	t := slices.Index(c.topics, topic)
	if t < 0 {
		return ErrNotAnInput
	}
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	began := time.Now()
	for {
		c.mu.Lock()
		at, moved, halt, out := slices.Clone(c.at), c.moved, c.halt, c.state == StatePending
		c.mu.Unlock()
		if at == nil {
			select {
			case <-moved:
				continue
			case <-ctx.Done():
				return &NotCaughtUpError{Consumer: id, Topic: topic, Position: position}
			}
		}
		lagging, elsewhere := behind(at, t, position, partition)
		var look <-chan time.Time
		if elsewhere {
			there, stored, err := h.look(ctx, id, topic, partition)
			switch {
			case ctx.Err() != nil:
			case errors.Is(err, store.ErrNotFound): // no host has subscribed yet
			case err != nil && !retry.Transient(err):
				return err
			case err == nil && there >= position:
				return nil
			case err == nil && out:
				halt = stored // where the host runs the consumer it is told of a halt
			}
			pause := lookSoon
			if time.Since(began) > lookLong {
				pause = lookLate
			}
			look = time.After(pause)
		}
		switch {
		case len(lagging) == 0:
			return nil
		case halt != nil:
			return &HaltedError{Consumer: id, Halt: *halt}
		}
		select {
		case <-moved:
		case <-look:
		case <-ctx.Done():
			return &NotCaughtUpError{Consumer: id, Topic: topic, Position: position, Lagging: lagging}
		}
	}
}

// lookSoon is the pause between looks at how far another host is, which tells it
// every advanceEvery at most, and lookLate the pause after lookLong.
const (
	lookSoon = 50 * time.Millisecond
	lookLate = 250 * time.Millisecond
	lookLong = time.Second
)

// look asks the store how far a partition is, or all, on whichever host, and
// whether the consumer is halted.
func (h *Host) look(ctx context.Context, id store.ConsumerID, topic string, partition int) (at int64, halt *store.Halt, err error) {
	v, err := h.deps.Store.View(ctx, id)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if con := v.Consumer(); con.State == store.StateHalted {
		halt = con.Halt
	}
	if partition == AllPartitions {
		positions, err := v.Positions()
		return positions[topic], halt, err
	}
	at, err = v.Position(topic, partition)
	return at, halt, err
}

// behind lists the partitions that are not at a position yet as far as is known
// here, and tells whether some are not with this host.
func behind(at []*session, topic int, position int64, partition int) (lagging []int, elsewhere bool) {
	for p, s := range at {
		switch {
		case partition != AllPartitions && partition != p:
		case s == nil:
			lagging, elsewhere = append(lagging, p), true
		case s.applied(topic, p) < position:
			lagging = append(lagging, p)
		}
	}
	return lagging, elsewhere
}
