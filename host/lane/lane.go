package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// Store is what a lane does with the database.
type Store interface {
	store.Batches
	Rows
	Line(ctx context.Context, build int64, partition int, key string, after int64, limit int) ([]store.UndeliveredMessage, error)
}

// Guest is an instance of the consumer's module, this lane's own.
type Guest interface {
	Apply(ctx context.Context, consumer int, entries []abi.Entry, sink plugins.Sink) (done int, fail *plugins.Failure, err error)
	FrameFits(entries []abi.Entry) bool
	Close(ctx context.Context) error
}

// Observer is told what a lane does. Its methods are called from several
// goroutines.
type Observer interface {
	// Reporter gives something that is told of each failure that is tried
	// again, and of nil once that is over.
	Reporter() func(err error)
	// Progress: Applied of some topic has risen.
	Progress()
	// Called is told of a call of the guest.
	Called(entries int, took time.Duration)
	// Committed is told of a batch that is in the database.
	Committed(messages int, took time.Duration)
}

// Deps are what a lane is made of.
type Deps struct {
	Store    Store
	NewGuest func(ctx context.Context) (Guest, error)
	Lease    func(partition int) store.Lease // current for the lane's whole life
	Observer Observer
	Log      hclog.Logger
}

// Config is what a lane needs to know of its consumer. Nothing of it changes.
type Config struct {
	Consumer    store.ConsumerID
	Declared    *abi.Consumer
	Index       int // of the consumer in its manifest
	Build       int64
	Epoch       int64
	InstanceID  string
	Incarnation uint64 // the one the checkpoints were read under
	Digest      string
	Topics      []string
	Tables      []store.TableRef // in the order of the declaration
	Empty       []bool           // by table: it has no rows
	Partitions  []int            // the lane's own
	Start       []int64          // by topic: where its feed begins
	Checkpoints [][]int64        // by topic, by partition (all N)
	// Fence is a partition whose lease every apply locks beside its own, -1 for
	// none. A consumer with a free table has a single fence.
	Fence int

	Batch        int // messages a batch; 0: adaptive
	BatchMax     int // messages of an adaptive batch
	BatchRows    int // rows it changes
	BatchBytes   int
	BatchAge     time.Duration // how long an adaptive batch may grow behind the tail
	CallMessages int
	CallBytes    int
	CacheBytes   int
	QueueBytes   int
	IdleSave     time.Duration
	Retry        retry.Policy

	// Until is where each topic ends for the lane, nil for a lane that goes on for
	// ever. Rows of an older epoch are gone where it has come that far, unless
	// KeepOld; a key that is held keeps its own until it is let go.
	Until    []int64
	KeepOld  bool
	Replayed []reader.Replayed // by topic; nil: nothing is

	// Free: the consumer has a free table, so all keys are one scope.
	Free     bool
	Delivery Delivery
	Heads    []store.Head // of the lane's partitions
	Skips    map[SkipAt]struct{}
	Held     *Held
	Refused  map[int64]RefusedRow // by id of the row

	// Careful, if set, bounds the batches of a stretch in which the database
	// refused some entry's data, to find which.
	Careful *Careful
}

// Careful bounds batches to Messages while any topic is not past Through.
type Careful struct {
	Messages int
	Through  []int64 // by topic
	Refusals []Refusal
}

// Lane applies some partitions of a consumer. Make one with [New], feed its
// Queue, and Run it once.
type Lane struct {
	cfg  Config
	deps Deps

	queue *Queue
	rows  *rows
	sink  sink
	guest Guest
	loop  *retry.Loop // of the lane's own goroutine

	accepted []int64 // by topic: end of the last slice taken
	ends     []int64 // by topic: its end as that slice told it
	through  []int64 // by topic: end of what is applied in memory
	work     []item  // taken and not yet applied
	next     int     // in work
	over     bool    // the queue is closed and empty

	batch    building
	saved    [][]int64 // by topic, by partition: checkpoint after the sealed batch
	callMax  int       // entries of a call: less than configured after a guest ran out of something
	tasks    []task    // what the guest is asked about
	callRows []*reader.Entry
	callABI  []abi.Entry
	missing  []missing // by table

	lines      *lines
	unresolved []store.Head // messages whose keys could not be told
	counted    int64        // what of Config.Held is this lane's
	retried    bool         // the latest batch was one of retries

	childPointers []*abi.Pointers // by table; nil where no child is declared by one
	found         []abi.PointerResult

	out       store.Batch
	outTables []store.TableWrites // by table
	sealed    sealedBatch
	idleDue   bool
	failed    bool // the sealed batch is not in the database and never will be

	commits chan *store.Batch
	results chan commitResult

	applied []atomic.Int64   // by topic: committed
	marks   [][]atomic.Int64 // by topic, by partition: committed checkpoint
	stats   stats
}

// item is a step of a lane: an entry, or the end of a stretch without one.
type item struct {
	entry *reader.Entry // nil: nothing to apply
	topic int
	// to is where the topic is read through once the item is done; 0 within a
	// message that goes on.
	to int64
}

// building is the batch in the making.
type building struct {
	messages int
	limit    int // of messages
	bytes    int
	first    *reader.Entry
	topic    int // of first
	began    time.Time
	touched  [][]bool // by topic, by partition
	any      bool     // there is something to commit
	idle     bool     // idle checkpoints go with it
	suspect  bool     // of retries: nothing else goes with what is in it
	outcomes
}

// sealedBatch is the batch that is being committed.
type sealedBatch struct {
	inFlight bool
	messages int
	first    *reader.Entry
	topic    int
	through  []int64
	moves    []store.CheckpointMove
	outcomes
}

type commitResult struct {
	err  error
	took time.Duration
}

// New makes a lane.
func New(cfg Config, deps Deps) *Lane {
	topics := len(cfg.Topics)
	l := &Lane{
		cfg: cfg, deps: deps,
		queue:     NewQueue(cfg.QueueBytes),
		rows:      newRows(cfg.Tables, cfg.Empty, cfg.CacheBytes, cfg.Epoch > 0),
		loop:      cfg.Retry.NewLoop(deps.Observer.Reporter()),
		accepted:  append([]int64(nil), cfg.Start...),
		ends:      make([]int64, topics),
		through:   append([]int64(nil), cfg.Start...),
		callMax:   cfg.CallMessages,
		outTables: make([]store.TableWrites, len(cfg.Tables)),
		commits:   make(chan *store.Batch, 1),
		results:   make(chan commitResult, 1),
		applied:   make([]atomic.Int64, topics),
		missing:   make([]missing, len(cfg.Tables)),
	}
	var heads []store.Head
	for _, h := range cfg.Heads {
		if h.Unresolved {
			l.unresolved = append(l.unresolved, h)
		} else {
			heads = append(heads, h)
		}
	}
	l.lines = newLines(heads, cfg.Free)
	l.sink = sink{rows: l.rows, store: deps.Store, shape: cfg.Declared.Shape}
	l.batch.touched = make([][]bool, topics)
	l.saved = make([][]int64, topics)
	l.marks = make([][]atomic.Int64, topics)
	l.sealed.through = make([]int64, topics)
	for t := range topics {
		n := len(cfg.Checkpoints[t])
		l.batch.touched[t] = make([]bool, n)
		l.saved[t] = append([]int64(nil), cfg.Checkpoints[t]...)
		l.marks[t] = make([]atomic.Int64, n)
		for p, at := range cfg.Checkpoints[t] {
			l.marks[t][p].Store(at)
		}
		l.applied[t].Store(cfg.Start[t])
	}
	l.childPointers = make([]*abi.Pointers, len(cfg.Tables))
	for i, ref := range cfg.Tables {
		l.outTables[i].Table = ref
		if rule := ref.Table.ChildRule; rule != nil && rule.Kind == abi.KeyPointers {
			// Admission has compiled it before: it cannot fail here, and without
			// it the row is read when the guest asks.
			l.childPointers[i], _ = abi.CompilePointers(rule.Pointers...)
		}
	}
	return l
}

// Queue is where the lane's slices go. Closing it ends the lane: with drop
// after the batch in hand, otherwise after everything that was pushed.
func (l *Lane) Queue() *Queue { return l.queue }

// Applied is how far a topic is applied and committed in all partitions of the
// lane.
func (l *Lane) Applied(topic int) int64 { return l.applied[topic].Load() }

// Checkpoint is the stored checkpoint of one of the lane's partitions.
func (l *Lane) Checkpoint(topic, partition int) int64 { return l.marks[topic][partition].Load() }

// Errors that end a lane beside the store's: the caller makes a new one from
// the stored checkpoints.
var (
	ErrLost = errors.New("the outcome of a batch is neither committed nor not: somebody else moved the checkpoints")
	errGap  = errors.New("a slice does not follow the one before it")
)

// HaltError is what stops its consumer: a message, of which everything before is
// committed, or an error that does not go away. Recorded: the database has the
// halt, with the message.
type HaltError struct {
	Halt     store.Halt
	Recorded bool
}

func (e *HaltError) Error() string { return e.Halt.Message }

// RefusedError is a batch the database refuses for some entry's data. To find
// which, the stretch is applied again in batches half as large; or the retries
// in it, each in a batch of its own. What was alone is told by Careful.Refusals
// or Rows with a reason.
type RefusedError struct {
	Err     error
	Careful Careful
	Rows    map[int64]RefusedRow // of a batch of retries
}

func (e *RefusedError) Error() string {
	switch {
	case len(e.Rows) > 0:
		return fmt.Sprintf("the database refuses %d retries: %v", len(e.Rows), e.Err)
	case len(e.Careful.Refusals) > 0:
		return fmt.Sprintf("the database refuses what a message writes: %v", e.Err)
	}
	return fmt.Sprintf("the database refuses a batch: %v; it is applied again in batches of %d", e.Err, e.Careful.Messages)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// PanicError is a panic of the host's own code in a lane.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic in the host: %v", e.Value) }

// Run applies what comes through the queue until the queue is closed, then
// commits what is in hand and saves the checkpoints of all partitions. Errors
// end it at once, without another commit: those of the store's guards,
// *HaltError, *RefusedError, *PanicError, and ctx's cause.
func (l *Lane) Run(ctx context.Context) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.commitAll(ctx)
	}()
	defer func() { <-done }()
	defer close(l.commits)
	l.counted = l.lines.count() + int64(len(l.unresolved))
	l.cfg.Held.n.Add(l.counted)
	l.sealHeld()
	defer func() { l.cfg.Held.n.Add(-l.counted) }()
	defer Recover(&err)
	defer func() {
		if l.guest != nil {
			// The instance is freed also when ctx has ended.
			err = errors.Join(err, l.guest.Close(context.WithoutCancel(ctx)))
		}
	}()
	return l.run(ctx)
}

// Recover turns a panic into a *PanicError. It is deferred.
func Recover(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

func (l *Lane) run(ctx context.Context) error {
	idle := time.NewTicker(l.cfg.IdleSave)
	defer idle.Stop()
	age := time.NewTimer(l.cfg.BatchAge)
	defer age.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		if err := l.fill(ctx); err != nil {
			return l.flush(ctx, err)
		}
		if !l.sealed.inFlight {
			if !l.batch.any && l.retryDue() {
				if err := l.retry(ctx); err != nil {
					return l.flush(ctx, err)
				}
				if l.batch.halt != nil {
					return l.flush(ctx, &HaltError{Halt: *l.batch.halt, Recorded: true})
				}
				l.submit()
				continue
			}
			if l.over && !l.batch.any && !l.idleLeft() {
				l.settleApplied()
				return nil
			}
			if l.over {
				l.batch.idle = true
			}
			if l.replayed() && l.idleLeft() {
				l.idleDue = true // who waits for it looks at the checkpoints
			}
			if l.ripe(true) || l.idleDue && l.idleLeft() || l.batch.idle {
				l.submit()
				continue
			}
			l.idleDue = false
			if !l.batch.any {
				l.settleApplied()
			}
		}
		ready := l.queue.ready
		if l.full() || l.over {
			ready = nil
		}
		var ripens <-chan time.Time
		if !l.sealed.inFlight && l.batch.any {
			age.Reset(l.cfg.BatchAge - time.Since(l.batch.began))
			ripens = age.C
		}
		var retry <-chan time.Time
		if at, ever := l.nextRetry(); ever && !l.sealed.inFlight && !l.over {
			due.Reset(time.Until(at))
			retry = due.C
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-l.results:
			if err := l.finish(r); err != nil {
				return err
			}
		case <-ready:
		case <-ripens:
		case <-retry:
		case <-idle.C:
			l.idleDue = true
		}
	}
}

// fill applies what is there to the batch in hand, until the batch is full or
// may as well be committed.
func (l *Lane) fill(ctx context.Context) error {
	for !l.full() && !l.retryDue() {
		if l.blocked() {
			if l.queue.isClosed() {
				// What the lane has taken waits for the next one.
				clear(l.work)
				l.work, l.next, l.over = nil, 0, true
			}
			return nil
		}
		if more, err := l.take(); err != nil || !more {
			return err
		}
		if err := l.step(ctx); err != nil {
			return err
		}
		if l.batch.halt != nil {
			return &HaltError{Halt: *l.batch.halt, Recorded: true}
		}
		select {
		case r := <-l.results:
			if err := l.finish(r); err != nil {
				return err
			}
		default:
		}
		if !l.sealed.inFlight && l.ripe(false) {
			return nil
		}
	}
	return nil
}

// take makes sure that there is work, and more of it while a call has room.
func (l *Lane) take() (bool, error) {
	if l.queue.dropped.Load() {
		l.work, l.next, l.over = nil, 0, true
		return false, nil
	}
	if l.next == len(l.work) {
		clear(l.work)
		l.work, l.next = l.work[:0], 0
	}
	for len(l.work)-l.next < l.callMax {
		s, ok, over := l.queue.pop()
		if !ok {
			l.over = over
			break
		}
		if err := l.accept(s); err != nil {
			return false, err
		}
	}
	return l.next < len(l.work), nil
}

// accept turns a slice into work. It must join the one before it, and be read
// from the database the checkpoints are of: nothing else keeps a message from
// being passed by (P4).
func (l *Lane) accept(s reader.Slice) error {
	if s.Incarnation != l.cfg.Incarnation {
		return store.ErrIncarnation
	}
	if s.From != l.accepted[s.Topic] {
		return fmt.Errorf("%w: topic %s, from %d after %d", errGap, l.cfg.Topics[s.Topic], s.From, l.accepted[s.Topic])
	}
	l.accepted[s.Topic], l.ends[s.Topic] = s.To, s.End
	n := len(s.Entries)
	if n == 0 {
		l.work = append(l.work, item{topic: s.Topic, to: s.To})
		return nil
	}
	// What lies between two messages is of no concern to the lane, so it is
	// read through with the first of them.
	if before := s.Entries[0].Event.Position - 1; before > s.From {
		l.work = append(l.work, item{topic: s.Topic, to: before})
	}
	for i := range n {
		it := item{entry: &s.Entries[i], topic: s.Topic}
		if i == n-1 {
			it.to = s.To
		} else if next := s.Entries[i+1].Event; next != it.entry.Event {
			it.to = next.Position - 1
		}
		l.work = append(l.work, it)
	}
	return nil
}

// limit is how many messages the batch in hand may have: what holds when it
// begins.
func (l *Lane) limit() int {
	if l.batch.messages > 0 {
		return l.batch.limit
	}
	if c := l.cfg.Careful; c != nil {
		for t := range l.through {
			if l.through[t] < c.Through[t] {
				return max(1, c.Messages)
			}
		}
	}
	if l.cfg.Batch > 0 {
		return l.cfg.Batch
	}
	return l.cfg.BatchMax
}

// full tells that nothing more goes into the batch in hand. The rows it changes
// are what its transaction costs.
func (l *Lane) full() bool {
	return l.batch.messages >= l.limit() || l.batch.bytes >= l.cfg.BatchBytes ||
		l.cfg.Batch == 0 && len(l.rows.dirty) >= l.cfg.BatchRows
}

// worthwhile is how many messages make a commit of its own worth while at the
// tail of a topic, when more are waiting.
const worthwhile = 1000

// ripe tells whether the batch in hand is to be committed when nothing else is
// in flight. At the tail that is as soon as nothing more is waiting: latency
// counts. Behind, rows that are written often enough are written once, so the
// batch may grow, for some time.
func (l *Lane) ripe(waiting bool) bool {
	switch {
	case !l.batch.any:
		return false
	case l.full() || l.over || l.blocked() || l.retryDue():
		return true
	case l.behind():
		return time.Since(l.batch.began) >= l.cfg.BatchAge
	}
	return waiting || l.batch.messages >= worthwhile
}

// replayed tells whether a lane that is not to go on for ever is at its end.
func (l *Lane) replayed() bool {
	if l.cfg.Until == nil {
		return false
	}
	for t, until := range l.cfg.Until {
		if l.through[t] < until {
			return false
		}
	}
	return true
}

// behind tells whether the topic had more than what was handed out so far.
func (l *Lane) behind() bool {
	for t := range l.accepted {
		if l.accepted[t] < l.ends[t] {
			return true
		}
	}
	return false
}

// done moves over items that are applied.
func (l *Lane) done(to int) {
	if to > l.next {
		l.stats.steps.Add(1)
	}
	for ; l.next < to; l.next++ {
		it := &l.work[l.next]
		if e := it.entry; e != nil {
			b := &l.batch
			if b.first == nil {
				b.first, b.topic, b.began, b.limit = e, it.topic, time.Now(), l.limit()
			}
			b.any = true
			b.bytes += len(e.Event.Data) + len(e.Event.Metadata)
			b.touched[it.topic][e.Partition] = true
			if it.to > 0 {
				b.messages++
			}
		}
		if it.to > 0 {
			l.through[it.topic] = it.to
		}
	}
}

// settleApplied makes what is applied count as committed, when nothing of it
// has anything to commit.
func (l *Lane) settleApplied() {
	changed := false
	for t := range l.through {
		if l.applied[t].Load() != l.through[t] {
			l.applied[t].Store(l.through[t])
			changed = true
		}
	}
	if changed {
		l.deps.Observer.Progress()
	}
}
