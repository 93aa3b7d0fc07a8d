package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
// host does not run the consumer or cannot tell yet.
func (h *Host) Applied(id store.ConsumerID, topic string, partition int) (int64, bool) {
	c := h.find(id)
	if c == nil {
		return 0, false
	}
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	t := slices.Index(c.topics, topic)
	if s == nil || t < 0 {
		return 0, false
	}
	if partition != AllPartitions {
		return s.applied(t, partition), true
	}
	return s.lowest(t), true
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
// committed in one partition of the consumer, or in AllPartitions. When ctx
// ends first the error is a *NotCaughtUpError; others are *HaltedError,
// ErrUnknownConsumer and ErrNotAnInput.
func (h *Host) WaitApplied(ctx context.Context, consumer store.ConsumerID, topic string, position int64, partition int) error {
	c := h.find(consumer)
	if c == nil {
		return ErrUnknownConsumer
	}
	t := slices.Index(c.topics, topic)
	if t < 0 {
		return ErrNotAnInput
	}
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	for {
		c.mu.Lock()
		s, moved, halt := c.session, c.moved, c.halt
		c.mu.Unlock()
		var lagging []int
		if s != nil {
			if lagging = s.lagging(t, position, partition); len(lagging) == 0 {
				return nil
			}
		}
		if halt != nil {
			return &HaltedError{Consumer: consumer, Halt: *halt}
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return &NotCaughtUpError{Consumer: consumer, Topic: topic, Position: position, Lagging: lagging}
		}
	}
}

// lagging lists the partitions that are not at a position yet.
func (s *session) lagging(topic int, position int64, partition int) []int {
	var out []int
	for _, p := range s.partitions {
		if (partition == AllPartitions || partition == p) && s.applied(topic, p) < position {
			out = append(out, p)
		}
	}
	return out
}
