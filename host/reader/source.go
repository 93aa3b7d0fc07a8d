package reader

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/projhost/projhost/store"
)

// eventBytes is what an event costs in memory beside its payload, about.
const eventBytes = 320

// SourceConfig bounds a source. Every field is needed.
type SourceConfig struct {
	PageMessages int           // messages of one read
	PageBytes    int           // payload of one read
	RingBytes    int           // memory of the pages kept
	Poll         time.Duration // at the end of the topic, without a notification
}

// Source reads one topic for everybody who follows it on this host. It keeps
// the most recent pages in a ring: at the tail all followers are served from
// the same page, and one that is far behind misses the ring and has pages read
// for itself. Reads of the same page are done once, and the next page is read
// ahead.
//
// Where all who follow it need the messages of some stored partitions only, it has
// the store pick those: several hosts that share a consumer would otherwise each
// be sent all of the log. A page is given to nobody who needs more than it was
// read for (P4).
//
// It is safe for concurrent use.
type Source struct {
	topics store.Topics
	topic  string
	cfg    SourceConfig

	requests chan *flight
	stopped  chan struct{}

	mu          sync.Mutex
	ring        []kept // oldest first
	ringBytes   int
	followers   map[*follower]bool
	wants       reach // what they need, all together
	flights     map[int64]*flight
	incarnation uint64
	end         int64 // of the topic, as last read
}

// kept is a page with the partitions that it was read for.
type kept struct {
	*store.Page
	of reach
}

// flight is one read under way: the first page after a position, whenever there
// is one. It ends without a page when nobody waits for it any more.
type flight struct {
	after   int64
	waiters int // guarded by Source.mu
	done    chan struct{}
	page    *store.Page
	of      reach // that the page was read for
	err     error
}

var (
	errStopped   = errors.New("the topic's reader has stopped")
	errAbandoned = errors.New("nobody waited for the page")
)

// NewSource makes the source of a topic. It reads nothing until Run.
func NewSource(topics store.Topics, topic string, cfg SourceConfig) *Source {
	return &Source{
		topics:   topics,
		topic:    topic,
		cfg:      cfg,
		requests: make(chan *flight),
		stopped:  make(chan struct{}),
		flights:  make(map[int64]*flight),

		followers: make(map[*follower]bool),
	}
}

// Run does the reads until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	defer close(s.stopped)
	var group errgroup.Group
	unread := time.NewTicker(unreadPoll)
	defer unread.Stop()
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-unread.C:
			s.lookAtEnd(ctx)
		case f := <-s.requests:
			group.Go(func() error {
				s.fly(ctx, f)
				return nil
			})
		}
	}
}

// unreadPoll is how often the end of a topic is looked up that nobody reads any
// more: the lag of a halted consumer goes on growing.
const unreadPoll = time.Second

// lookAtEnd keeps End current while no read does. An error is left to the next
// try: nothing depends on it but what people are shown.
func (s *Source) lookAtEnd(ctx context.Context) {
	s.mu.Lock()
	read := len(s.flights) > 0
	s.mu.Unlock()
	if read {
		return
	}
	if topic, err := s.topics.Topic(ctx, s.topic); err == nil {
		s.mu.Lock()
		s.end = max(s.end, topic.HighWaterMark)
		s.mu.Unlock()
	}
}

// next returns the page that follows a position, and waits at the end of the
// topic until there is one. The page is shared: nobody changes it. Errors are
// those of the read, which is not repeated here, and ctx's.
func (to *follower) next(ctx context.Context, after int64) (*store.Page, error) {
	s := to.source
	for {
		s.mu.Lock()
		if page := s.lookup(after, to.need); page != nil {
			ahead := s.readAhead(page, to.need)
			s.mu.Unlock()
			return page, s.request(ctx, ahead)
		}
		f, isNew := s.join(after)
		s.mu.Unlock()

		var err error
		if isNew {
			err = s.request(ctx, f)
		}
		if err == nil {
			select {
			case <-ctx.Done():
				err = context.Cause(ctx)
			case <-f.done:
				err = f.err
			}
		}

		s.mu.Lock()
		f.waiters--
		var page, ahead = f.page, (*flight)(nil)
		// A read that began before this follower came may be of too few partitions;
		// the next is not.
		current := page != nil && page.Incarnation == s.topics.Incarnation() && f.of.covers(to.need)
		if err == nil && current {
			ahead = s.readAhead(page, to.need)
		}
		s.mu.Unlock()

		switch {
		case errors.Is(err, errAbandoned):
			continue
		case err != nil:
			return nil, err
		case current:
			return page, s.request(ctx, ahead)
		}
	}
}

// End is where the topic ends, as far as known from its pages.
func (s *Source) End() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// request hands a new flight to Run.
func (s *Source) request(ctx context.Context, f *flight) error {
	if f == nil {
		return nil
	}
	select {
	case s.requests <- f:
		return nil
	case <-ctx.Done():
		s.land(f, nil, errAbandoned)
		return context.Cause(ctx)
	case <-s.stopped:
		s.land(f, nil, errStopped)
		return errStopped
	}
}

// join returns the flight for a position with one more waiter, and whether it
// has just been made. s.mu is held.
func (s *Source) join(after int64) (*flight, bool) {
	f, ok := s.flights[after]
	if !ok {
		f = &flight{after: after, done: make(chan struct{})}
		s.flights[after] = f
	}
	f.waiters++
	return f, !ok
}

// readAhead returns a flight for what follows a page, if there is more and
// nobody reads it yet. s.mu is held.
func (s *Source) readAhead(page *store.Page, need reach) *flight {
	if page.To >= page.End || s.flights[page.To] != nil || s.lookup(page.To, need) != nil {
		return nil
	}
	f := &flight{after: page.To, done: make(chan struct{})}
	s.flights[page.To] = f
	return f
}

// lookup returns what the ring has after a position for somebody with a need, nil
// if nothing. s.mu is held.
func (s *Source) lookup(after int64, need reach) *store.Page {
	if now := s.topics.Incarnation(); now != s.incarnation {
		// What was read of the database may no longer be true.
		s.ring, s.ringBytes, s.incarnation = nil, 0, now
	}
	for i := len(s.ring) - 1; i >= 0; i-- {
		if p := s.ring[i]; p.From <= after && after < p.To && p.of.covers(need) {
			return cut(p.Page, after)
		}
	}
	return nil
}

// cut returns the part of a page after a position inside it.
func cut(p *store.Page, after int64) *store.Page {
	if p.From == after {
		return p
	}
	i := sort.Search(len(p.Events), func(i int) bool { return p.Events[i].Position > after })
	part := *p
	part.From, part.Events = after, p.Events[i:]
	return &part
}

// fly reads until there is a page, an error, or nobody who waits.
func (s *Source) fly(ctx context.Context, f *flight) {
	timer := time.NewTimer(s.cfg.Poll)
	defer timer.Stop()
	for {
		// The channel is taken before the read, so that an append between the
		// two is not slept through.
		wake := s.topics.Wake(s.topic)
		s.mu.Lock()
		f.of = s.wants // nobody changes it
		s.mu.Unlock()
		page, err := s.topics.ReadPage(ctx, store.PageQuery{
			Topic: s.topic, After: f.after, Limit: s.cfg.PageMessages, MaxBytes: s.cfg.PageBytes, Partitions: f.of.list(),
		})
		if err != nil {
			s.land(f, nil, err)
			return
		}
		if page.To > page.From {
			s.land(f, &page, nil)
			return
		}
		if !s.wanted(f) {
			return
		}
		timer.Reset(s.cfg.Poll)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			s.land(f, nil, context.Cause(ctx))
			return
		}
		if !s.wanted(f) {
			return
		}
	}
}

// wanted ends a flight that nobody waits for.
func (s *Source) wanted(f *flight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiters > 0 {
		return true
	}
	s.landLocked(f, nil, errAbandoned)
	return false
}

func (s *Source) land(f *flight, page *store.Page, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.landLocked(f, page, err)
}

func (s *Source) landLocked(f *flight, page *store.Page, err error) {
	f.page, f.err = page, err
	delete(s.flights, f.after)
	if page != nil && page.Incarnation == s.topics.Incarnation() {
		s.keep(kept{page, f.of})
	}
	close(f.done)
}

// keep puts a page into the ring and drops the oldest over the bound; the
// newest always stays.
func (s *Source) keep(page kept) {
	if s.incarnation != page.Incarnation {
		s.ring, s.ringBytes, s.incarnation = nil, 0, page.Incarnation
	}
	s.end = page.End
	s.ring = append(s.ring, page)
	s.ringBytes += pageBytes(page.Page)
	drop := 0
	for s.ringBytes > s.cfg.RingBytes && drop < len(s.ring)-1 {
		s.ringBytes -= pageBytes(s.ring[drop].Page)
		drop++
	}
	if drop > 0 {
		n := copy(s.ring, s.ring[drop:])
		clear(s.ring[n:])
		s.ring = s.ring[:n]
	}
}

func pageBytes(p *store.Page) int {
	n := 0
	for i := range p.Events {
		n += messageBytes(&p.Events[i])
	}
	return n
}

func messageBytes(e *store.Event) int {
	return eventBytes + len(e.Data) + len(e.Metadata)
}
