package mark

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/projhost/projhost/store"
)

// Config says where a detector works and whom it tells.
type Config struct {
	// Conn is a direct session connection, not one through a pooler. It is
	// copied.
	Conn *pgx.ConnConfig
	// Topic is the name of the topic's row, Topics and Events the tables, quoted
	// and with their schema where it is not the connection's. Positions are drawn
	// by the column position of Events.
	Topic, Topics, Events string
	// Timeout bounds each statement; a server that is silent for longer counts
	// as lost.
	// Default: 15 s.
	Timeout time.Duration
	// Cycle is the time between looks while transactions are awaited. A known
	// append is looked for at once. Whatever is set, the looks take no more than
	// a third of the time.
	// Default: 10 ms.
	Cycle time.Duration
	// Idle is the time between looks while nothing happens.
	// Default: 250 ms.
	Idle time.Duration
	// OnLoss is called when the connection is lost, or another database answers
	// than the one that was read, before anything is read again: what was
	// read may no longer be true. It must not call the detector.
	OnLoss func(error)
	// OnMark is called whenever a higher mark has been committed, by this
	// detector or another. It must not block.
	OnMark func(mark int64)
	// Explain gives an error, which has come from the connection or says what to
	// mend already, the form that an operator sees.
	// Default: as it is.
	Explain func(error) error
	// Logf gets what an operator should see. It must not hold secrets, and none
	// are given to it.
	Logf func(format string, args ...any)
}

func (c *Config) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Timeout, 15*time.Second)
	def(&c.Cycle, 10*time.Millisecond)
	def(&c.Idle, 250*time.Millisecond)
	if c.OnLoss == nil {
		c.OnLoss = func(error) {}
	}
	if c.OnMark == nil {
		c.OnMark = func(int64) {}
	}
	if c.Explain == nil {
		c.Explain = func(err error) error { return err }
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
}

const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 2 * time.Second
	// checkEvery is how often a topic without traffic is looked at as one with
	// traffic is, so that a wrong setting shows before the next append.
	checkEvery = 10 * time.Second
	// holderAfter is how long something holds the mark before it is named, and
	// how often its name is looked up again.
	holderAfter = time.Second
	gapMin      = 2 * time.Millisecond
	dutyShare   = 3 // looks take at most 1/dutyShare of the time
	// perVersion is how far marks are stored apart for every old version of their
	// row that the server cannot remove yet, because of somebody's old snapshot.
	// Whoever reads the row passes all of them, at some 50 ns each: after an hour
	// they are 60,000 and a page comes 3 ms later, without this 20 ms.
	perVersion = 2 * time.Microsecond
	slowMax    = time.Second
	holdShare  = 8 // a look comes late by at most 1/holdShare of the time that was waited already
)

// State is what a detector knows, for status and metrics.
type State struct {
	Mark   int64             // persisted
	End    int64             // highest position handed out, when it was last looked at
	Holder *store.MarkHolder // what has held the mark longest, if for more than a second
	Err    error             // why the mark stands still; nil while all is well
	Cycles uint64            // looks at the locks so far
	Cost   time.Duration     // of a look, lately
	Losses uint64            // connections lost
}

// Lag is how many positions wait for open transactions.
func (s State) Lag() int64 { return max(0, s.End-s.Mark) }

// Detector moves the mark of one topic until it is closed. Several of them, in
// one process or many, may serve one topic: each is right by itself, and the
// stored mark only rises.
type Detector struct {
	cfg    Config
	signal signal
	cancel context.CancelFunc
	ended  chan struct{}

	// Owned by the loop.
	session *session
	tracker *tracker
	stored  int64         // the mark that is committed, as far as this detector knows
	since   time.Time     // when the mark last moved, or had no reason to
	named   time.Time     // when the holder was last looked up
	checked time.Time     // when the locks were last looked at
	heard   time.Time     // when another detector last told of a mark
	cost    time.Duration // of a look at the locks, lately
	slow    time.Duration // how far apart marks are stored
	counted time.Time     // when the versions of the row were last counted
	between func()        // tests act between the two reads of a cycle

	mark  atomic.Int64
	mu    sync.Mutex
	state State
}

// Open connects, proves that the server shows what the detector depends on, and
// starts. Its errors say what an operator can do. A sequence that is behind what
// is stored has been moved when it returns, so appends begin after it.
func Open(ctx context.Context, cfg Config) (*Detector, error) {
	d := newDetector(cfg)
	if err := d.connect(ctx); err != nil {
		return nil, fmt.Errorf("high-water mark of topic %s: %w", cfg.Topic, d.cfg.Explain(err))
	}
	ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go d.run(ctx)
	return d, nil
}

func newDetector(cfg Config) *Detector {
	cfg.fill()
	return &Detector{cfg: cfg, ended: make(chan struct{})}
}

// Close ends the detector and waits for it. The stored mark stays.
func (d *Detector) Close() {
	d.cancel()
	<-d.ended
}

// Wake says that something was committed to the topic. It costs next to nothing
// and any number of calls are one.
func (d *Detector) Wake() { d.signal.set() }

// Mark is the highest mark that this detector knows to be committed.
func (d *Detector) Mark() int64 { return d.mark.Load() }

// State tells what the detector knows.
func (d *Detector) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	s.Mark = d.Mark()
	s.End = max(s.End, s.Mark)
	if s.Holder != nil {
		h := *s.Holder
		s.Holder = &h
	}
	return s
}

func (d *Detector) run(ctx context.Context) {
	defer close(d.ended)
	for ctx.Err() == nil {
		err := d.follow(ctx)
		d.session.close()
		if ctx.Err() != nil {
			return
		}
		d.lost(err)
		for delay := reconnectMin; ; delay = min(2*delay, reconnectMax) {
			err := d.connect(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			d.fail(err)
			d.rest(ctx, delay, err)
		}
	}
}

// rest waits between two attempts to connect. Whoever has committed something
// meanwhile knows that the server is there.
func (d *Detector) rest(ctx context.Context, delay time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	if d.signal.take(); !errors.As(err, new(*settingsError)) && sleep(ctx, reconnectMin) {
		defer d.signal.onSet(cancel)()
	}
	<-ctx.Done()
}

// connect begins anew: the mark is what is stored, and nothing is known of who
// is open.
func (d *Detector) connect(ctx context.Context) error {
	before := ""
	if d.session != nil {
		before = d.session.cluster
	}
	s, mark, err := openSession(ctx, &d.cfg)
	if err != nil {
		return err
	}
	if before != "" && before != s.cluster {
		d.cfg.Logf("topic %s: the database has moved to another cluster (system identifier %s, was %s)", d.cfg.Topic, s.cluster, before)
	}
	d.session, d.tracker = s, newTracker(mark)
	d.since, d.named, d.checked, d.heard = time.Now(), time.Time{}, time.Time{}, time.Time{}
	d.stored = mark
	d.mu.Lock()
	d.state.Holder = nil
	d.mu.Unlock()
	d.mark.Store(mark)
	d.cfg.OnMark(mark)
	d.fail(nil)
	return nil
}

// lost drops all that was known. A server that crashed may hand out positions
// again that were seen before.
func (d *Detector) lost(err error) {
	d.tracker, d.stored = nil, 0
	d.mu.Lock()
	d.state.Losses++
	d.mu.Unlock()
	d.cfg.OnLoss(err)
	d.fail(fmt.Errorf("connection lost: %w", err))
}

// fail records why the mark stands still, nil when it no longer does.
func (d *Detector) fail(err error) {
	if err != nil {
		err = d.cfg.Explain(err)
	}
	d.mu.Lock()
	was := d.state.Err
	d.state.Err = err
	d.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		d.cfg.Logf("high-water mark of topic %s stands still: %v", d.cfg.Topic, err)
	case err == nil && was != nil:
		d.cfg.Logf("high-water mark of topic %s moves on", d.cfg.Topic)
	}
}

// follow looks again and again until the connection is lost or ctx ends.
func (d *Detector) follow(ctx context.Context) error {
	delay, heard := d.cfg.Cycle, false
	for {
		busy, err := d.cycle(ctx, d.signal.take(), heard)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case d.session.conn.IsClosed(), errors.Is(err, errRecreated), errors.Is(err, errWentBack):
			return err
		}
		d.fail(err)
		now := time.Now()
		var gap time.Duration
		gap, delay = d.pace(now, delay, busy, err != nil)
		if heard, err = d.wait(ctx, now.Add(gap), now.Add(delay)); err != nil {
			return err
		}
	}
}

// pace tells when to look again: after gap if somebody calls Wake, after delay
// in any case.
func (d *Detector) pace(now time.Time, before time.Duration, busy, failed bool) (gap, delay time.Duration) {
	gap = max(gapMin, (dutyShare-1)*d.cost, d.slow)
	switch {
	case failed:
		gap, delay = d.cfg.Idle, d.cfg.Idle // whoever calls Wake does not mend it
	case !busy:
		delay = min(2*before, d.cfg.Idle)
	case now.Sub(d.heard) < d.cfg.Idle:
		delay = d.cfg.Idle // another detector is at work
	default:
		delay = min(max(d.cfg.Cycle, now.Sub(d.since)/holdShare), d.cfg.Idle)
	}
	return gap, max(delay, gap)
}

// cycle looks once. While every position handed out may be read, looking at the
// end of the sequence is enough, and so it is when another detector was heard to
// move the mark: it will again. busy says that there was something to do, or
// something is awaited.
func (d *Detector) cycle(ctx context.Context, look, heard bool) (busy bool, err error) {
	s, t := d.session, d.tracker
	look = look || t.fresh || time.Since(d.checked) >= checkEvery
	o, err := d.observe(ctx, look)
	if err == nil && !o.looked && !heard && o.end != max(t.mark, o.persisted) {
		o, err = d.observe(ctx, true)
	}
	if err != nil {
		return false, err
	}
	d.publish(o.persisted)
	t.raise(o.persisted)
	if o.looked {
		d.checked = time.Now()
		t.observe(o.end, o.holders)
	}
	d.mu.Lock()
	d.state.End = o.end
	if o.looked {
		d.state.Cycles++
		d.state.Cost = d.cost
	}
	d.mu.Unlock()
	moved := t.mark > d.stored
	if moved {
		if err := s.persist(ctx, t.mark); err != nil {
			return true, err
		}
		d.publish(t.mark)
		if err := d.spare(ctx); err != nil {
			return true, err
		}
	}
	if t.mark >= o.end {
		d.since = time.Now()
	}
	return moved || t.mark < o.end, d.name(ctx)
}

// observe looks, and forgets the looks before if the sequence was not as it has
// to be: what was drawn then says nothing.
func (d *Detector) observe(ctx context.Context, look bool) (observation, error) {
	began := time.Now()
	o, err := d.session.observe(ctx, look, d.between)
	if err == nil {
		err = d.judge(o)
	}
	var wrong *settingsError
	if errors.As(err, &wrong) {
		d.tracker.forget()
	}
	if look {
		d.cost += (time.Since(began) - d.cost) / 4
	}
	return o, err
}

// judge compares an observation with what cannot have happened by itself.
func (d *Detector) judge(o observation) error {
	if o.persisted < d.stored {
		return errWentBack
	}
	if o.end < max(d.tracker.mark, o.persisted) {
		return refuse("sequence %s stands at %d, behind the mark %d: it was set back, and what is appended now would never be read; SELECT setval('%s', %d) and append again what was appended since",
			d.session.sequence, o.end, max(d.tracker.mark, o.persisted), d.session.sequence, max(d.tracker.mark, o.persisted))
	}
	return nil
}

// spare counts the old versions of the mark's row, now and then.
func (d *Detector) spare(ctx context.Context) error {
	if time.Since(d.counted) < checkEvery {
		return nil
	}
	d.counted = time.Now()
	n, err := d.session.versions(ctx)
	d.slow = min(time.Duration(n)*perVersion, slowMax)
	return err
}

// publish tells of a mark that is committed.
func (d *Detector) publish(mark int64) {
	if mark <= d.stored {
		return
	}
	d.stored, d.since = mark, time.Now()
	d.mark.Store(mark)
	d.cfg.OnMark(mark)
}

// name looks up who holds the mark, if it is held for long.
func (d *Detector) name(ctx context.Context) error {
	holders := d.tracker.holding()
	var h *store.MarkHolder
	var err error
	switch {
	case len(holders) == 0 || time.Since(d.since) < holderAfter:
		d.named = time.Time{}
	case time.Since(d.named) < holderAfter:
		return nil
	default:
		d.named = time.Now()
		h, err = d.session.holder(ctx, holders)
	}
	d.mu.Lock()
	d.state.Holder = h
	d.mu.Unlock()
	return err
}

// wait returns at until, or from before on as soon as somebody has called Wake or
// another detector is heard. Its error is a connection that is lost.
func (d *Detector) wait(ctx context.Context, before, until time.Time) (heard bool, err error) {
	if !sleep(ctx, time.Until(before)) {
		return false, nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	defer d.signal.onSet(cancel)()
	switch err := d.session.listen(ctx); {
	case err == nil:
		d.heard = time.Now()
		return true, nil
	case d.session.conn.IsClosed():
		return false, err
	}
	return false, nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// signal is a flag that ends a wait.
type signal struct {
	mu   sync.Mutex
	on   bool
	call func()
}

func (s *signal) set() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		s.on = true
		if s.call != nil {
			s.call()
		}
	}
}

// take tells whether it was set, and resets it.
func (s *signal) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	on := s.on
	s.on = false
	return on
}

// onSet has f called when the signal is set, or is already, until stop.
func (s *signal) onSet(f func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call = f
	if s.on {
		f()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.call = nil
	}
}
