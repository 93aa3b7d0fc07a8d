package lane

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/projhost/projhost/host/reader"
)

// sliceBytes is what a slice without entries counts, about.
const sliceBytes = 128

// ErrClosed is a push into a queue that takes no more.
var ErrClosed = errors.New("the lane takes no more slices")

// Queue holds the slices in front of a lane, up to a bound in bytes; one slice
// is always let in. A full queue stops whoever pushes, which is the consumer's
// own feed and nobody else.
type Queue struct {
	max int

	mu       sync.Mutex
	slices   []reader.Slice
	bytes    int
	messages int
	closed   bool
	space    chan struct{} // closed when something was taken

	dropped atomic.Bool
	ready   chan struct{} // has a token when there may be something new
}

// NewQueue makes a queue for so many bytes.
func NewQueue(bytesMax int) *Queue {
	return &Queue{max: bytesMax, space: make(chan struct{}), ready: make(chan struct{}, 1)}
}

// Push adds a slice, once there is room.
func (q *Queue) Push(ctx context.Context, s reader.Slice) error {
	for {
		q.mu.Lock()
		switch {
		case q.closed:
			q.mu.Unlock()
			return ErrClosed
		case q.extends(s), q.bytes == 0 || q.bytes+s.Bytes <= q.max:
			q.append(s)
			q.mu.Unlock()
			q.wake()
			return nil
		}
		space := q.space
		q.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// extends tells whether a slice has no entries and joins the one before it: so
// a stretch of a topic in which a lane has nothing costs no memory.
func (q *Queue) extends(s reader.Slice) bool {
	if len(s.Entries) > 0 || len(q.slices) == 0 {
		return false
	}
	last := &q.slices[len(q.slices)-1]
	return last.Topic == s.Topic && last.To == s.From && last.Incarnation == s.Incarnation
}

func (q *Queue) append(s reader.Slice) {
	if q.extends(s) {
		last := &q.slices[len(q.slices)-1]
		last.To, last.End = s.To, s.End
		return
	}
	q.slices = append(q.slices, s)
	q.bytes += s.Bytes + sliceBytes
	q.messages += len(s.Entries)
}

// Close lets nothing more in. With drop it also forgets what it holds.
func (q *Queue) Close(drop bool) {
	q.mu.Lock()
	q.closed = true
	if drop {
		q.dropped.Store(true)
		q.slices, q.bytes, q.messages = nil, 0, 0
	}
	close(q.space)
	q.space = make(chan struct{})
	q.mu.Unlock()
	q.wake()
}

// pop takes the next slice. over says that none will ever come.
func (q *Queue) pop() (s reader.Slice, ok, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.slices) == 0 {
		return s, false, q.closed
	}
	s = q.slices[0]
	q.slices[0] = reader.Slice{}
	q.slices = q.slices[1:]
	q.bytes -= s.Bytes + sliceBytes
	q.messages -= len(s.Entries)
	close(q.space)
	q.space = make(chan struct{})
	return s, true, false
}

// isClosed tells whether nothing more is let in.
func (q *Queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// empty tells whether there is nothing to take.
func (q *Queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.slices) == 0
}

// Load is what the queue holds.
func (q *Queue) Load() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.messages, q.bytes
}

func (q *Queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
