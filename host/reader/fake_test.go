package reader

import (
	"context"
	"slices"
	"sync"

	"github.com/projhost/projhost/store"
)

// log is an in-memory topic.
type log struct {
	store.Topics // what a source does not use

	mu          sync.Mutex
	events      []store.Event
	end         int64
	start       int64
	incarnation uint64
	wake        chan struct{}
	reads       []int64 // After of every read
	partitions  [][]int // and of which partitions
	fail        error
	gate        chan struct{} // if set, a read waits for it
}

func newLog() *log { return &log{wake: make(chan struct{})} }

// append adds events at the next positions.
func (l *log) append(events ...store.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.end++
		e.Position = l.end
		l.events = append(l.events, e)
	}
	close(l.wake)
	l.wake = make(chan struct{})
}

func (l *log) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *log) readCount() int { return len(l.after()) }

// after is where the reads so far began.
func (l *log) after() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.reads)
}

// asked is which partitions the reads so far were of.
func (l *log) asked() [][]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.partitions)
}

func (l *log) Topic(context.Context, string) (store.Topic, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return store.Topic{End: l.end, HighWaterMark: l.end}, nil
}

func (l *log) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	l.mu.Lock()
	l.reads, l.partitions = append(l.reads, q.After), append(l.partitions, q.Partitions)
	gate := l.gate
	l.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return store.Page{}, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return store.Page{}, l.fail
	}
	p := store.Page{Topic: q.Topic, From: q.After, To: max(q.After, l.end), End: l.end, Start: l.start, Incarnation: l.incarnation}
	for _, e := range l.events {
		if e.Position <= q.After || q.Partitions != nil && !slices.Contains(q.Partitions, e.Partition) {
			continue
		}
		if len(p.Events) == q.Limit {
			p.To = p.Events[q.Limit-1].Position
			break
		}
		p.Events = append(p.Events, e)
	}
	return p, nil
}

func (l *log) Wake(string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wake
}

func (l *log) Incarnation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.incarnation
}
