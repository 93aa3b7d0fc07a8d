// Package faultstore is a seam for tests: a [store.Store] around another one
// that fails the k-th call, before or after it was done, as a database does
// that goes away at that moment. A test raises k from 1 until nothing fails any
// more; then every call has failed once, and the outcome must be the same each
// time.
package faultstore

import (
	"context"
	"errors"
	"sync"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Mode says what becomes of the call that fails.
type Mode int

// Modes. A call that only reads has no outcome to be unknown: Lost is then the
// same as Before.
const (
	// Before refuses plainly: nothing was done, and the error says so.
	Before Mode = iota
	// Lost does nothing either, but the caller cannot tell.
	Lost
	// After does the call and loses the answer: the caller cannot tell.
	After
)

func (m Mode) String() string { return [...]string{"before", "lost", "after"}[m] }

// Fault says which calls fail and how.
type Fault struct {
	// At counts from 1 among the calls that Match; Times is how many in a row
	// fail, 0 meaning 1.
	At    int
	Times int
	Mode  Mode
	// Match selects methods by name ("Apply", "View.Get"); nil: all.
	Match func(method string) bool
	// NewIncarnation says that the failure was a lost connection, so that
	// what was read before may no longer be true.
	NewIncarnation bool
}

// ErrInjected is what the errors of this package wrap.
var ErrInjected = errors.New("injected failure")

// Store wraps a store. Wake, Incarnation and Close never fail.
type Store struct {
	inner store.Store

	mu      sync.Mutex
	fault   Fault
	armed   bool
	calls   int
	fired   []string
	losses  uint64
	methods map[string]int
}

var _ store.Store = (*Store)(nil)

// New wraps s and fails nothing until [Store.Inject].
func New(s store.Store) *Store { return &Store{inner: s, methods: map[string]int{}} }

// Inject sets the fault and counts from 0 again.
func (s *Store) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.armed, s.calls, s.fired = f, true, 0, nil
}

// Heal takes the fault away.
func (s *Store) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
}

// Fired returns the methods that failed since the last Inject, in order. When
// it is empty the run had fewer calls than the fault waited for.
func (s *Store) Fired() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.fired...)
}

// Calls returns how often each method was called since New.
func (s *Store) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := make(map[string]int, len(s.methods))
	for m, n := range s.methods {
		calls[m] = n
	}
	return calls
}

// hit counts a call and tells whether and how it fails.
func (s *Store) hit(method string) (Mode, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods[method]++
	if !s.armed || s.fault.Match != nil && !s.fault.Match(method) {
		return 0, false
	}
	s.calls++
	if s.calls < s.fault.At || s.calls >= s.fault.At+max(s.fault.Times, 1) {
		return 0, false
	}
	s.fired = append(s.fired, method)
	if s.fault.NewIncarnation {
		s.losses++
	}
	return s.fault.Mode, true
}

// write runs a call that changes the database.
func (s *Store) write(method string, do func() error) error {
	mode, fails := s.hit(method)
	if !fails {
		return do()
	}
	if mode == After {
		// A call that is refused for a reason of its own is still refused.
		if err := do(); err != nil {
			return err
		}
	}
	return &store.TransientError{Op: method, Hint: "injected by a test", OutcomeUnknown: mode != Before, Err: ErrInjected}
}

// read runs a call that changes nothing.
func (s *Store) read(method string, do func() error) error {
	mode, fails := s.hit(method)
	if !fails {
		return do()
	}
	if mode == After {
		if err := do(); err != nil {
			return err
		}
	}
	return &store.TransientError{Op: method, Hint: "injected by a test", Err: ErrInjected}
}

// written is write for calls with a result; what a failed call gave is dropped.
func written[T any](s *Store, method string, do func() (T, error)) (T, error) {
	return result(s.write, method, do)
}

func readOf[T any](s *Store, method string, do func() (T, error)) (T, error) {
	return result(s.read, method, do)
}

func result[T any](run func(string, func() error) error, method string, do func() (T, error)) (T, error) {
	var res, none T
	err := run(method, func() (err error) {
		res, err = do()
		return err
	})
	var transient *store.TransientError
	if errors.As(err, &transient) && errors.Is(err, ErrInjected) {
		return none, err
	}
	return res, err
}

// lost is by how much this store's incarnation is ahead of the inner one's.
func (s *Store) lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.losses
}

// Incarnation implements [store.Topics].
func (s *Store) Incarnation() uint64 { return s.inner.Incarnation() + s.lost() }

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.inner.Wake(topic) }

// Close implements [store.Store].
func (s *Store) Close() error { return s.inner.Close() }

// Info implements [store.Store].
func (s *Store) Info(ctx context.Context) (store.Info, error) {
	return readOf(s, "Info", func() (store.Info, error) { return s.inner.Info(ctx) })
}

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context) error {
	return s.read("Check", func() error { return s.inner.Check(ctx) })
}

// CheckTables implements [store.Store].
func (s *Store) CheckTables(ctx context.Context) error {
	return s.read("CheckTables", func() error { return s.inner.CheckTables(ctx) })
}

// Commit implements [store.EventLog].
func (s *Store) Commit(ctx context.Context, c store.Commit) (store.CommitResult, error) {
	return written(s, "Commit", func() (store.CommitResult, error) { return s.inner.Commit(ctx, c) })
}

// Import implements [store.EventLog].
func (s *Store) Import(ctx context.Context, events []store.ImportEvent) (store.ImportResult, error) {
	return written(s, "Import", func() (store.ImportResult, error) { return s.inner.Import(ctx, events) })
}

// ReadStream implements [store.EventLog].
func (s *Store) ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) ([]store.Event, error) {
	return readOf(s, "ReadStream", func() ([]store.Event, error) { return s.inner.ReadStream(ctx, aggregateType, aggregateID, from, limit) })
}

// StreamVersion implements [store.EventLog].
func (s *Store) StreamVersion(ctx context.Context, aggregateType, aggregateID string) (int64, error) {
	return readOf(s, "StreamVersion", func() (int64, error) { return s.inner.StreamVersion(ctx, aggregateType, aggregateID) })
}

// LoadSnapshot implements [store.EventLog].
func (s *Store) LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (store.Snapshot, error) {
	return readOf(s, "LoadSnapshot", func() (store.Snapshot, error) { return s.inner.LoadSnapshot(ctx, aggregateType, aggregateID) })
}

// SaveSnapshot implements [store.EventLog].
func (s *Store) SaveSnapshot(ctx context.Context, snap store.Snapshot) error {
	return s.write("SaveSnapshot", func() error { return s.inner.SaveSnapshot(ctx, snap) })
}

// ListTopics implements [store.Topics].
func (s *Store) ListTopics(ctx context.Context) ([]store.Topic, error) {
	return readOf(s, "ListTopics", func() ([]store.Topic, error) { return s.inner.ListTopics(ctx) })
}

// Topic implements [store.Topics].
func (s *Store) Topic(ctx context.Context, name string) (store.Topic, error) {
	return readOf(s, "Topic", func() (store.Topic, error) { return s.inner.Topic(ctx, name) })
}

// ReadPage implements [store.Topics]. A page is of the incarnation it was asked
// for in.
func (s *Store) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	lost := s.lost()
	return readOf(s, "ReadPage", func() (store.Page, error) {
		p, err := s.inner.ReadPage(ctx, q)
		p.Incarnation += lost
		return p, err
	})
}

// Subscribe implements [store.Consumers].
func (s *Store) Subscribe(ctx context.Context, d store.Declaration) (store.Consumer, error) {
	return written(s, "Subscribe", func() (store.Consumer, error) { return s.inner.Subscribe(ctx, d) })
}

// ListConsumers implements [store.Consumers].
func (s *Store) ListConsumers(ctx context.Context) ([]store.Consumer, error) {
	return readOf(s, "ListConsumers", func() ([]store.Consumer, error) { return s.inner.ListConsumers(ctx) })
}

// Consumer implements [store.Consumers].
func (s *Store) Consumer(ctx context.Context, id store.ConsumerID) (store.Consumer, error) {
	return readOf(s, "Consumer", func() (store.Consumer, error) { return s.inner.Consumer(ctx, id) })
}

// Checkpoints implements [store.Consumers].
func (s *Store) Checkpoints(ctx context.Context, build int64) ([]store.Checkpoint, error) {
	return readOf(s, "Checkpoints", func() ([]store.Checkpoint, error) { return s.inner.Checkpoints(ctx, build) })
}

// Halt implements [store.Consumers].
func (s *Store) Halt(ctx context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	return s.write("Halt", func() error { return s.inner.Halt(ctx, id, lease, h) })
}

// ClearHalt implements [store.Consumers].
func (s *Store) ClearHalt(ctx context.Context, id store.ConsumerID) (bool, error) {
	return written(s, "ClearHalt", func() (bool, error) { return s.inner.ClearHalt(ctx, id) })
}

// Heartbeat implements [store.Leases].
func (s *Store) Heartbeat(ctx context.Context, instanceID string) error {
	return s.write("Heartbeat", func() error { return s.inner.Heartbeat(ctx, instanceID) })
}

// Join implements [store.Leases].
func (s *Store) Join(ctx context.Context, i store.Instance) error {
	return s.write("Join", func() error { return s.inner.Join(ctx, i) })
}

// Leave implements [store.Leases].
func (s *Store) Leave(ctx context.Context, instanceID string) error {
	return s.write("Leave", func() error { return s.inner.Leave(ctx, instanceID) })
}

// Claim implements [store.Leases].
func (s *Store) Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error) {
	leases, err = written(s, "Claim", func() (got []store.Lease, err error) {
		got, tenure, err = s.inner.Claim(ctx, instanceID, build, partitions)
		return got, err
	})
	if err != nil {
		tenure = 0
	}
	return leases, tenure, err
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, instanceID string, leases []store.Lease) error {
	return s.write("Release", func() error { return s.inner.Release(ctx, instanceID, leases) })
}

// Advance implements [store.Leases].
func (s *Store) Advance(ctx context.Context, instanceID string, list []store.Progress) error {
	return s.write("Advance", func() error { return s.inner.Advance(ctx, instanceID, list) })
}

// ListInstances implements [store.Leases].
func (s *Store) ListInstances(ctx context.Context) ([]store.InstanceStatus, error) {
	return readOf(s, "ListInstances", func() ([]store.InstanceStatus, error) { return s.inner.ListInstances(ctx) })
}

// Reap implements [store.Leases].
func (s *Store) Reap(ctx context.Context) (int, error) {
	return written(s, "Reap", func() (int, error) { return s.inner.Reap(ctx) })
}

// Enlist implements [store.Leases].
func (s *Store) Enlist(ctx context.Context, instanceID string, list []store.Enlistment) error {
	return s.write("Enlist", func() error { return s.inner.Enlist(ctx, instanceID, list) })
}

// Survey implements [store.Leases].
func (s *Store) Survey(ctx context.Context, builds []int64) (store.Survey, error) {
	return readOf(s, "Survey", func() (store.Survey, error) { return s.inner.Survey(ctx, builds) })
}

// Owners implements [store.Leases].
func (s *Store) Owners(ctx context.Context, build int64) ([]store.Ownership, error) {
	return readOf(s, "Owners", func() ([]store.Ownership, error) { return s.inner.Owners(ctx, build) })
}

// Apply implements [store.Batches].
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	b, err := s.inside(b)
	return s.write("Apply", func() error {
		if err != nil {
			return err
		}
		return s.inner.Apply(ctx, b)
	})
}

// Settle implements [store.Batches].
func (s *Store) Settle(ctx context.Context, b *store.Batch) (store.Outcome, error) {
	b, err := s.inside(b)
	return readOf(s, "Settle", func() (store.Outcome, error) {
		if err != nil {
			return store.OutcomeLost, err
		}
		return s.inner.Settle(ctx, b)
	})
}

// inside gives the batch the inner store's incarnation, as of before the call:
// a failing call raises ours. One that was read before a loss keeps an older.
func (s *Store) inside(b *store.Batch) (*store.Batch, error) {
	lost, inner := s.lost(), *b
	if b.Incarnation < lost {
		return nil, store.ErrIncarnation
	}
	inner.Incarnation -= lost
	return &inner, nil
}

// Heads implements [store.Undelivered].
func (s *Store) Heads(ctx context.Context, build int64, partitions []int) ([]store.Head, error) {
	return readOf(s, "Heads", func() ([]store.Head, error) { return s.inner.Heads(ctx, build, partitions) })
}

// Line implements [store.Undelivered].
func (s *Store) Line(ctx context.Context, build int64, partition int, key string, after int64, limit int) ([]store.UndeliveredMessage, error) {
	return readOf(s, "Line", func() ([]store.UndeliveredMessage, error) {
		return s.inner.Line(ctx, build, partition, key, after, limit)
	})
}

// Skips implements [store.Undelivered].
func (s *Store) Skips(ctx context.Context, build int64, topic string, after int64) ([]store.Skip, error) {
	return readOf(s, "Skips", func() ([]store.Skip, error) { return s.inner.Skips(ctx, build, topic, after) })
}

// SweepSkips implements [store.Undelivered].
func (s *Store) SweepSkips(ctx context.Context, build int64) (int, error) {
	return written(s, "SweepSkips", func() (int, error) { return s.inner.SweepSkips(ctx, build) })
}

// CountUndelivered implements [store.Undelivered].
func (s *Store) CountUndelivered(ctx context.Context) (map[store.ConsumerID]map[store.UndeliveredStatus]int64, error) {
	return readOf(s, "CountUndelivered", func() (map[store.ConsumerID]map[store.UndeliveredStatus]int64, error) {
		return s.inner.CountUndelivered(ctx)
	})
}

// ListUndelivered implements [store.Undelivered].
func (s *Store) ListUndelivered(ctx context.Context, q store.UndeliveredQuery) ([]store.UndeliveredMessage, error) {
	return readOf(s, "ListUndelivered", func() ([]store.UndeliveredMessage, error) { return s.inner.ListUndelivered(ctx, q) })
}

// UndeliveredMessage implements [store.Undelivered].
func (s *Store) UndeliveredMessage(ctx context.Context, id store.ConsumerID, row int64) (store.UndeliveredMessage, error) {
	return readOf(s, "UndeliveredMessage", func() (store.UndeliveredMessage, error) { return s.inner.UndeliveredMessage(ctx, id, row) })
}

// History implements [store.Undelivered].
func (s *Store) History(ctx context.Context, id store.ConsumerID, after int64, limit int) ([]store.HistoryEntry, error) {
	return readOf(s, "History", func() ([]store.HistoryEntry, error) { return s.inner.History(ctx, id, after, limit) })
}

// Pause implements [store.Operations].
func (s *Store) Pause(ctx context.Context, id store.ConsumerID, actor string) error {
	return s.write("Pause", func() error { return s.inner.Pause(ctx, id, actor) })
}

// Resume implements [store.Operations].
func (s *Store) Resume(ctx context.Context, id store.ConsumerID, pastPoison int64, actor string) error {
	return s.write("Resume", func() error { return s.inner.Resume(ctx, id, pastPoison, actor) })
}

// Reset implements [store.Operations].
func (s *Store) Reset(ctx context.Context, id store.ConsumerID, topic string, position int64, actor string) error {
	return s.write("Reset", func() error { return s.inner.Reset(ctx, id, topic, position, actor) })
}

// Drop implements [store.Operations].
func (s *Store) Drop(ctx context.Context, id store.ConsumerID, actor string) error {
	return s.write("Drop", func() error { return s.inner.Drop(ctx, id, actor) })
}

// RetryUndelivered implements [store.Operations].
func (s *Store) RetryUndelivered(ctx context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (store.Decision, error) {
	return written(s, "RetryUndelivered", func() (store.Decision, error) { return s.inner.RetryUndelivered(ctx, id, sel, a) })
}

// DeleteUndelivered implements [store.Operations].
func (s *Store) DeleteUndelivered(ctx context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (store.Decision, error) {
	return written(s, "DeleteUndelivered", func() (store.Decision, error) { return s.inner.DeleteUndelivered(ctx, id, sel, a) })
}

// LoadRows implements [store.ReadModels].
func (s *Store) LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) ([]store.StoredRow, error) {
	return readOf(s, "LoadRows", func() ([]store.StoredRow, error) { return s.inner.LoadRows(ctx, t, keys) })
}

// ListChildren implements [store.ReadModels].
func (s *Store) ListChildren(ctx context.Context, t store.TableRef, key, after string, limit int) ([]store.StoredRow, error) {
	return readOf(s, "ListChildren", func() ([]store.StoredRow, error) { return s.inner.ListChildren(ctx, t, key, after, limit) })
}

// FindUnique implements [store.ReadModels].
func (s *Store) FindUnique(ctx context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error) {
	return readOf(s, "FindUnique", func() (store.StoredRow, error) { return s.inner.FindUnique(ctx, t, column, row) })
}

// Empty implements [store.ReadModels].
func (s *Store) Empty(ctx context.Context, t store.TableRef) (bool, error) {
	return readOf(s, "Empty", func() (bool, error) { return s.inner.Empty(ctx, t) })
}

// View implements [store.ReadModels]; the view's calls fail as well.
func (s *Store) View(ctx context.Context, id store.ConsumerID) (store.ReadView, error) {
	var opened store.ReadView
	v, err := readOf(s, "View", func() (v store.ReadView, err error) {
		v, err = s.inner.View(ctx, id)
		opened = v
		return v, err
	})
	if err != nil {
		if opened != nil {
			_ = opened.Close() // the caller was told that there is none
		}
		return nil, err
	}
	return &view{ReadView: v, s: s}, nil
}

type view struct {
	store.ReadView
	s *Store
}

func (v *view) Position(topic string, partition int) (int64, error) {
	return readOf(v.s, "View.Position", func() (int64, error) { return v.ReadView.Position(topic, partition) })
}

func (v *view) Positions() (map[string]int64, error) {
	return readOf(v.s, "View.Positions", func() (map[string]int64, error) { return v.ReadView.Positions() })
}

func (v *view) Standings() (map[string][]store.Standing, error) {
	return readOf(v.s, "View.Standings", func() (map[string][]store.Standing, error) { return v.ReadView.Standings() })
}

func (v *view) Get(ctx context.Context, table string, key store.RowKey) (store.StoredRow, error) {
	return readOf(v.s, "View.Get", func() (store.StoredRow, error) { return v.ReadView.Get(ctx, table, key) })
}

func (v *view) Children(ctx context.Context, table, key, after string, limit int) ([]store.StoredRow, error) {
	return readOf(v.s, "View.Children", func() ([]store.StoredRow, error) { return v.ReadView.Children(ctx, table, key, after, limit) })
}

func (v *view) Held(partition int, key string) (*store.UndeliveredMessage, error) {
	return readOf(v.s, "View.Held", func() (*store.UndeliveredMessage, error) { return v.ReadView.Held(partition, key) })
}

func (v *view) CountHeld() (int64, error) {
	return readOf(v.s, "View.CountHeld", func() (int64, error) { return v.ReadView.CountHeld() })
}

func (v *view) Query(ctx context.Context, table string, q store.Query) (rows []store.StoredRow, next string, err error) {
	rows, err = readOf(v.s, "View.Query", func() (rows []store.StoredRow, err error) {
		rows, next, err = v.ReadView.Query(ctx, table, q)
		return rows, err
	})
	if err != nil {
		next = ""
	}
	return rows, next, err
}
