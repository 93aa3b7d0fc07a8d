package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/projhost/projhost/store"
)

const (
	// lookSoon is the pause between two looks: hosts tell how far they are every
	// advanceEvery at most. lookLate is the pause once nobody has begun to wait for
	// lookLong.
	lookSoon = 50 * time.Millisecond
	lookLate = 250 * time.Millisecond
	lookLong = time.Second
	// lookMax bounds a look. One that takes longer is tried again.
	lookMax = 5 * time.Second
)

// lookouts are those at work, one for each consumer that somebody waits for.
type lookouts struct {
	mu   sync.Mutex
	list map[store.ConsumerID]*lookout
}

// lookout looks in the store how far a consumer is, on whichever host, for all who
// wait for it: one look is for all of them, so it costs the same whether one waits
// or a thousand do.
type lookout struct {
	of      *lookouts
	id      store.ConsumerID
	views   store.ReadModels
	stop    context.CancelFunc
	hurried chan struct{} // somebody has begun to wait

	// The rest is under the lock of lookouts.
	waiting int
	hurry   time.Time     // until then looks are frequent
	sight   *sight        // the latest; nil: none yet
	looked  chan struct{} // closed by the next
}

// sight is what one look has shown. Where there was an error it is what an earlier
// one has shown, which is still true of what is applied, but not of a halt.
type sight struct {
	began     time.Time
	standings map[string][]store.Standing // by topic, by partition
	halt      *store.Halt
	err       error
}

// join has looks made until as many have left as have joined.
func (l *lookouts) join(ctx context.Context, views store.ReadModels, id store.ConsumerID) *lookout {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.list[id]
	if o == nil {
		if l.list == nil {
			l.list = make(map[store.ConsumerID]*lookout)
		}
		o = &lookout{of: l, id: id, views: views, hurried: make(chan struct{}, 1), looked: make(chan struct{})}
		l.list[id] = o
		// It outlives the one who was first.
		ctx, o.stop = context.WithCancel(context.WithoutCancel(ctx))
		go o.run(ctx)
	}
	o.waiting++
	o.hurry = time.Now().Add(lookLong)
	select {
	case o.hurried <- struct{}{}:
	default:
	}
	return o
}

func (l *lookouts) leave(o *lookout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.waiting--; o.waiting == 0 {
		delete(l.list, o.id)
		o.stop()
	}
}

// latest is the latest sight, nil if there is none, and a channel that the next one
// closes.
func (o *lookout) latest() (*sight, <-chan struct{}) {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	return o.sight, o.looked
}

// run looks until ctx ends.
func (o *lookout) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		s := o.look(ctx)
		s.began = began
		o.of.mu.Lock()
		if s.err != nil && o.sight != nil {
			s.standings = o.sight.standings
		}
		o.sight = s
		close(o.looked)
		o.looked = make(chan struct{})
		o.of.mu.Unlock()
		o.rest(ctx, time.Now())
	}
}

// rest waits until it is time for the next look, after one that ended then.
func (o *lookout) rest(ctx context.Context, ended time.Time) {
	for {
		o.of.mu.Lock()
		pause := lookLate
		if time.Now().Before(o.hurry) {
			pause = lookSoon
		}
		o.of.mu.Unlock()
		timer := time.NewTimer(time.Until(ended.Add(pause)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			return
		case <-o.hurried:
			timer.Stop()
		}
	}
}

func (o *lookout) look(ctx context.Context) *sight {
	ctx, cancel := context.WithTimeout(ctx, lookMax)
	defer cancel()
	s := &sight{}
	s.err = s.see(ctx, o.views, o.id)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && s.err != nil {
		s.err = &store.TransientError{Op: "look how far " + o.id.String() + " is", Err: s.err}
	}
	return s
}

func (s *sight) see(ctx context.Context, views store.ReadModels, id store.ConsumerID) (err error) {
	v, err := views.View(ctx, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if con := v.Consumer(); con.State == store.StateHalted {
		s.halt = con.Halt
	}
	s.standings, err = v.Standings()
	return err
}
