// Package fake stands in for a database and for guests in the tests of package
// host and those below it. [Store] keeps everything in memory and holds callers
// to the contract of package store more strictly than a database does; [Guest]
// runs a Go function. Both can be made to fail at any call, and to block in
// virtual time.
package fake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Store is a store in memory, with the one topic "events".
type Store struct {
	store.Store // what is not used here: a call of it panics

	// N is the number of partitions.
	N int

	mu          sync.Mutex
	fault       func(call string, n int) (before, after error)
	calls       int
	events      []store.Event
	end         int64
	mark        int64
	holder      *store.MarkHolder // nil: the mark is the end
	start       int64
	incarnation uint64
	wake        chan struct{}
	consumers   map[store.ConsumerID]*consumer
	builds      map[int64]*build
	instances   map[string]*store.InstanceStatus
	members     map[string]map[int64]*member // by instance, build
	tenures     int64
	rowIDs      int64
	applies     int
	problems    []string
}

type consumer struct {
	store.Consumer
	history []store.HistoryEntry
}

type member struct {
	store.Membership
	tenure int64
}

type build struct {
	id          int64
	checkpoints map[string][]int64
	owners      []store.Ownership
	tables      []map[store.RowKey]store.StoredRow // by table index
	undelivered
	rebuilds
}

// NewStore makes an empty store with n partitions.
func NewStore(n int) *Store {
	return &Store{
		N: n, wake: make(chan struct{}),
		consumers: make(map[store.ConsumerID]*consumer),
		builds:    make(map[int64]*build),
		instances: make(map[string]*store.InstanceStatus),
		members:   make(map[string]map[int64]*member),
	}
}

func (s *Store) call(name string) (after error, err error) {
	s.mu.Lock()
	s.calls++
	n, fault := s.calls, s.fault
	s.mu.Unlock()
	if fault == nil {
		return nil, nil
	}
	before, after := fault(name, n)
	return after, before
}

// SetFault has f asked at each call, with its name and number (from 1, of all
// calls). After an error of "before" the call is not made; an error of "after"
// hides its success. It is called from many goroutines and may block.
func (s *Store) SetFault(f func(call string, n int) (before, after error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Calls is how many calls there were.
func (s *Store) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Applies is how many batches were committed.
func (s *Store) Applies() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applies
}

// Problems are breaches of the contract by whoever used the store.
func (s *Store) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

func (s *Store) breach(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// Append adds events at the next positions and wakes readers, where nothing
// holds the mark.
func (s *Store) Append(events ...store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.end++
		e.Position = s.end
		s.events = append(s.events, e)
	}
	s.raise()
}

// Hole is n positions that were drawn by appends which were rolled back.
func (s *Store) Hole(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end += n
	s.raise()
}

// Hold is a transaction that holds the mark where it is; nil ends it.
func (s *Store) Hold(h *store.MarkHolder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = h
	s.raise()
}

func (s *Store) raise() {
	if s.holder != nil {
		return
	}
	s.mark = s.end
	close(s.wake)
	s.wake = make(chan struct{})
}

// Truncate is a retention that deletes everything up to a position.
func (s *Store) Truncate(start int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = start
}

// Crash raises the incarnation.
func (s *Store) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incarnation++
}

// Steal takes all leases of a build away from their owners.
func (s *Store) Steal(build int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.builds[build].owners {
		s.builds[build].owners[p].Generation++
		s.builds[build].owners[p].InstanceID = ""
	}
}

// StealOne takes the lease of one partition away from its owner.
func (s *Store) StealOne(build int64, partition int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.builds[build].owners[partition]
	o.Generation, o.InstanceID = o.Generation+1, ""
}

// Rows returns the rows of a table of a consumer's live build.
func (s *Store) Rows(id store.ConsumerID, table int) map[store.RowKey]store.StoredRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.builds[s.consumers[id].Build].tables[table])
}

// Lowest is the lowest checkpoint of a consumer in a topic.
func (s *Store) Lowest(id store.ConsumerID, topic string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Min(s.builds[s.consumers[id].Build].checkpoints[topic])
}

// Info implements store.Store.
func (s *Store) Info(context.Context) (store.Info, error) {
	return store.Info{Driver: "fake", Partitions: s.N, Hash: store.PartitionHash, PositionMode: "counter"}, nil
}

// Check implements store.Store.
func (s *Store) Check(context.Context) error {
	after, err := s.call("Check")
	return errors.Join(err, after)
}

// ListTopics implements store.Topics.
func (s *Store) ListTopics(context.Context) ([]store.Topic, error) {
	after, err := s.call("ListTopics")
	if err != nil {
		return nil, err
	}
	t, err := s.topic(store.EventsTopic)
	return []store.Topic{t}, errors.Join(err, after)
}

// Topic implements store.Topics.
func (s *Store) Topic(_ context.Context, name string) (store.Topic, error) {
	after, err := s.call("Topic")
	if err != nil {
		return store.Topic{}, err
	}
	t, err := s.topic(name)
	return t, errors.Join(err, after)
}

func (s *Store) topic(name string) (store.Topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != store.EventsTopic {
		return store.Topic{}, store.ErrNotFound
	}
	return store.Topic{Name: name, Kind: "events", Start: s.start, End: s.end, HighWaterMark: s.mark, Messages: -1, Holder: s.holder}, nil
}

// Wake implements store.Topics.
func (s *Store) Wake(string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wake
}

// Incarnation implements store.Topics.
func (s *Store) Incarnation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation
}

// ReadPage implements store.Topics.
func (s *Store) ReadPage(_ context.Context, q store.PageQuery) (store.Page, error) {
	after, err := s.call("ReadPage")
	if err != nil {
		return store.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := store.Page{Topic: q.Topic, From: q.After, To: max(q.After, s.mark), End: s.mark, Start: s.start, Incarnation: s.incarnation}
	bytes := 0
	next, _ := slices.BinarySearchFunc(s.events, q.After+1, func(e store.Event, at int64) int { return cmp.Compare(e.Position, at) })
	for _, e := range s.events[next:] {
		if e.Position > s.mark {
			break
		}
		if q.Partitions != nil && !slices.Contains(q.Partitions, store.PartitionOf(e.AggregateID, s.N)) {
			continue
		}
		bytes += len(e.Data)
		if len(p.Events) == q.Limit || len(p.Events) > 0 && q.MaxBytes > 0 && bytes > q.MaxBytes {
			p.To = p.Events[len(p.Events)-1].Position
			break
		}
		p.Events = append(p.Events, e)
	}
	return p, after
}

// Subscribe implements store.Consumers.
func (s *Store) Subscribe(_ context.Context, d store.Declaration) (store.Consumer, error) {
	after, err := s.call("Subscribe")
	if err != nil {
		return store.Consumer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[d.ID]
	if c == nil {
		b := &build{id: int64(len(s.builds) + 1), checkpoints: make(map[string][]int64), rebuilds: newRebuilds(s.N, len(d.Tables))}
		b.skips = make(map[store.Skip]bool)
		for _, topic := range d.Topics {
			b.checkpoints[topic] = make([]int64, s.N)
		}
		for p := range s.N {
			b.owners = append(b.owners, store.Ownership{Partition: p})
		}
		for range d.Tables {
			b.tables = append(b.tables, make(map[store.RowKey]store.StoredRow))
		}
		s.builds[b.id] = b
		c = &consumer{Consumer: store.Consumer{ID: d.ID, State: store.StateRunning, Build: b.id, Topics: d.Topics, Fingerprint: d.Fingerprint, Digest: d.Digest}}
		s.consumers[d.ID] = c
	}
	if c.Fingerprint.Tables != d.Fingerprint.Tables {
		return store.Consumer{}, &store.DeclarationError{Consumer: d.ID, Changed: []string{"tables"}}
	}
	if c.Digest != d.Digest {
		s.deployed(c, s.builds[c.Build])
	}
	c.Plugin, c.Digest, c.Fingerprint = d.Plugin, d.Digest, d.Fingerprint
	c.Tables = nil
	for _, t := range d.Tables {
		c.Tables = append(c.Tables, store.TableRef{Table: t, Physical: t.Name, Build: c.Build, Epoch: c.Epoch})
	}
	return c.Consumer, after
}

// ListConsumers implements store.Consumers.
func (s *Store) ListConsumers(context.Context) ([]store.Consumer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.Consumer
	for _, c := range s.consumers {
		out = append(out, c.Consumer)
	}
	slices.SortFunc(out, func(a, b store.Consumer) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return out, nil
}

// Consumer implements store.Consumers.
func (s *Store) Consumer(_ context.Context, id store.ConsumerID) (store.Consumer, error) {
	after, err := s.call("Consumer")
	if err != nil {
		return store.Consumer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[id]
	if c == nil {
		return store.Consumer{}, store.ErrNotFound
	}
	return c.Consumer, after
}

// Checkpoints implements store.Consumers.
func (s *Store) Checkpoints(_ context.Context, id int64) ([]store.Checkpoint, error) {
	after, err := s.call("Checkpoints")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[id]
	var out []store.Checkpoint
	for _, topic := range slices.Sorted(maps.Keys(b.checkpoints)) {
		for p, at := range b.checkpoints[topic] {
			out = append(out, store.Checkpoint{
				Topic: topic, Partition: p, Position: at, Epoch: b.epoch, EffectsThrough: b.effectsThrough[p], EffectsBefore: b.effectsBefore[p],
				ReplayThrough: b.replayThrough, PrunedEpoch: b.pruned[p], IncompleteThrough: b.incomplete,
			})
		}
	}
	return out, after
}

// Halt implements store.Consumers.
func (s *Store) Halt(_ context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	after, err := s.call("Halt")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[id]
	if s.builds[lease.Build].owners[lease.Partition].Generation != lease.Generation {
		return store.ErrFenced
	}
	if c.State == store.StateRunning || c.State == store.StateRebuilding {
		c.State, c.Consumer.Halt = store.StateHalted, &h
	}
	return after
}

// ClearHalt implements store.Consumers.
func (s *Store) ClearHalt(_ context.Context, id store.ConsumerID) (bool, error) {
	after, err := s.call("ClearHalt")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[id]
	if c == nil {
		return false, store.ErrNotFound
	}
	was := c.State == store.StateHalted
	if was {
		c.State, c.Consumer.Halt = s.builds[c.Build].goesOn(), nil
	}
	return was, after
}

// Apply implements store.Batches.
func (s *Store) Apply(_ context.Context, batch *store.Batch) error {
	after, err := s.call("Apply")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.apply(batch); err != nil {
		return err
	}
	return after
}

func (s *Store) apply(batch *store.Batch) error {
	b := s.builds[batch.Build]
	if batch.Incarnation != s.incarnation {
		return store.ErrIncarnation
	}
	leased := make(map[int]bool)
	for i, l := range batch.Leases {
		if i > 0 && batch.Leases[i-1].Partition >= l.Partition {
			s.breach("leases are not sorted: %v", batch.Leases)
		}
		leased[l.Partition] = true
		if o := b.owners[l.Partition]; o.InstanceID != batch.InstanceID || o.Generation != l.Generation {
			return store.ErrFenced
		}
	}
	if len(batch.Leases) == 0 {
		s.breach("a batch without a lease")
	}
	for i, m := range batch.Checkpoints {
		if i > 0 && batch.Checkpoints[i-1].Topic == m.Topic && batch.Checkpoints[i-1].Partition >= m.Partition {
			s.breach("checkpoints are not sorted: %v", batch.Checkpoints)
		}
		if !leased[m.Partition] {
			s.breach("checkpoint of partition %d without its lease", m.Partition)
		}
		if m.To <= m.From {
			s.breach("checkpoint of partition %d does not rise: %d to %d", m.Partition, m.From, m.To)
		}
		if b.epoch != batch.Epoch || b.checkpoints[m.Topic][m.Partition] != m.From {
			return store.ErrCheckpointMoved
		}
		if b.rebuilding() && m.To > max(m.From, b.replayThrough) {
			s.breach("checkpoint of partition %d goes to %d before the rebuild up to %d has ended", m.Partition, m.To, b.replayThrough)
		}
	}
	if err := s.checkOutcomes(b, batch, leased); err != nil {
		return err
	}
	moved := make(map[int]bool)
	for _, m := range batch.Checkpoints {
		moved[m.Partition] = true
	}
	for _, r := range batch.Retries {
		moved[r.Partition] = true
	}
	for _, w := range batch.Tables {
		if w.Table.Table.Free && !leased[0] {
			s.breach("free table %s is written without the lease of partition 0, its fence", w.Table.Physical)
		}
		if err := s.check(b, w, moved); err != nil {
			return err
		}
	}
	for _, w := range batch.Tables {
		s.write(b, w)
	}
	for _, m := range batch.Checkpoints {
		b.checkpoints[m.Topic][m.Partition] = m.To
		b.effectsThrough[m.Partition] = max(b.effectsThrough[m.Partition], m.To)
	}
	s.writeOutcomes(b, s.consumers[batch.Consumer], batch)
	s.applies++
	return nil
}

// Poison is a text no row may hold: the store refuses it as a database would
// refuse some value.
const Poison = "\x7fpoison"

func (s *Store) check(b *build, w store.TableWrites, moved map[int]bool) error {
	if !slices.IsSorted(w.DeleteChildrenOf) || !slices.IsSorted(w.PruneKeys) {
		s.breach("delete_children or prune_keys are not sorted: %v, %v", w.DeleteChildrenOf, w.PruneKeys)
	}
	for i, write := range w.Writes {
		if i > 0 && !w.Writes[i-1].Key.Less(write.Key) {
			s.breach("writes of %s are not sorted or not unique at %v", w.Table.Physical, write.Key)
		}
		if strings.Contains(string(write.Row), Poison) {
			return &store.DataError{Table: w.Table.Physical, Err: errors.New("value out of range")}
		}
		if !w.Table.Table.Free && !moved[partition.Of(write.Key.Key, s.N)] {
			s.breach("row %v of a partition whose checkpoint does not move", write.Key)
		}
		before, there := b.current(w.Table.Table.Index, write.Key, w.Table.Epoch)
		if w.Table.Table.Parent != nil && slices.Contains(w.DeleteChildrenOf, write.Key.Key) {
			before, there = store.StoredRow{}, false
		}
		if write.Before != nil && !bytes.Equal(write.Before, before.Row) {
			s.breach("row %v of %s is said to be %x before, it is %x", write.Key, w.Table.Physical, write.Before, before.Row)
		}
		if write.Exists == readmodel.Present && !there || write.Exists == readmodel.Absent && there {
			s.breach("row %v of %s is said to be %d, there: %v", write.Key, w.Table.Physical, write.Exists, there)
		}
	}
	return nil
}

func (s *Store) write(b *build, w store.TableWrites) {
	rows, epochs := b.tables[w.Table.Table.Index], b.epochs[w.Table.Table.Index]
	for _, key := range w.DeleteChildrenOf {
		maps.DeleteFunc(rows, func(k store.RowKey, _ store.StoredRow) bool { return k.Key == key })
	}
	for _, key := range w.PruneKeys {
		maps.DeleteFunc(rows, func(k store.RowKey, _ store.StoredRow) bool { return k.Key == key && epochs[k] < w.Table.Epoch })
	}
	defer func() {
		for table := range b.tables {
			maps.DeleteFunc(b.epochs[table], func(k store.RowKey, _ int64) bool {
				_, there := b.tables[table][k]
				return !there
			})
		}
	}()
	for _, write := range w.Writes {
		if write.Row != nil {
			epochs[write.Key] = w.Table.Epoch
			rows[write.Key] = store.StoredRow{Key: write.Key, Row: slices.Clone(write.Row), Position: write.Position, UpdatedUS: write.UpdatedUS}
			continue
		}
		delete(rows, write.Key)
		for _, child := range w.Table.Table.Children {
			maps.DeleteFunc(b.tables[child.Index], func(k store.RowKey, _ store.StoredRow) bool { return k.Key == write.Key.Key })
		}
	}
}

// Settle implements store.Batches.
func (s *Store) Settle(_ context.Context, batch *store.Batch) (store.Outcome, error) {
	after, err := s.call("Settle")
	if err != nil {
		return store.OutcomeLost, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[batch.Build]
	for _, l := range batch.Leases {
		if o := b.owners[l.Partition]; o.InstanceID != batch.InstanceID || o.Generation != l.Generation {
			return store.OutcomeLost, after
		}
	}
	from, to := 0, 0
	for _, m := range batch.Checkpoints {
		switch b.checkpoints[m.Topic][m.Partition] {
		case m.From:
			from++
		case m.To:
			to++
		}
	}
	if len(batch.Checkpoints) == 0 {
		for _, r := range batch.Retries {
			at := b.row(r.ID)
			is := func(status store.UndeliveredStatus, attempts, passing int) bool {
				return at >= 0 && b.rows[at].Status == status && b.rows[at].Attempts == attempts && b.rows[at].Passing == passing
			}
			switch {
			case is(r.Status, r.Attempts, r.Passing):
				from++
			case r.Then == nil && at < 0, r.Then != nil && is(r.Then.Status, r.Then.Attempts, r.Then.Passing):
				to++
			}
		}
	}
	switch n := len(batch.Checkpoints) + len(batch.Retries); {
	case n == 0, len(batch.Checkpoints) > 0 && len(batch.Retries) > 0:
		return store.OutcomeLost, after
	case n == from:
		return store.OutcomeNotCommitted, after
	case n == to:
		return store.OutcomeCommitted, after
	}
	return store.OutcomeLost, after
}

// LoadRows implements store.ReadModels.
func (s *Store) LoadRows(_ context.Context, t store.TableRef, keys []store.RowKey) ([]store.StoredRow, error) {
	after, err := s.call("LoadRows")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[store.RowKey]bool)
	var out []store.StoredRow
	for _, k := range keys {
		if seen[k] {
			s.breach("row %v is asked for twice", k)
		}
		seen[k] = true
		if row, ok := s.builds[t.Build].current(t.Table.Index, k, t.Epoch); ok {
			out = append(out, row)
		}
	}
	slices.Reverse(out)
	return out, after
}

// ListChildren implements store.ReadModels.
func (s *Store) ListChildren(_ context.Context, t store.TableRef, key, after string, limit int) ([]store.StoredRow, error) {
	hidden, err := s.call("ListChildren")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.StoredRow
	for k, row := range s.builds[t.Build].tables[t.Table.Index] {
		if _, ok := s.builds[t.Build].current(t.Table.Index, k, t.Epoch); ok && k.Key == key && k.Child > after {
			out = append(out, row)
		}
	}
	slices.SortFunc(out, func(a, b store.StoredRow) int { return strings.Compare(a.Child, b.Child) })
	return out[:min(limit, len(out))], hidden
}

// Empty implements store.ReadModels.
func (s *Store) Empty(_ context.Context, t store.TableRef) (bool, error) {
	after, err := s.call("Empty")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.builds[t.Build].tables[t.Table.Index]) == 0, after
}

// FindUnique implements store.ReadModels.
func (s *Store) FindUnique(_ context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error) {
	after, err := s.call("FindUnique")
	if err != nil {
		return store.StoredRow{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want, err := t.Table.Encoded(row, column)
	if err != nil {
		return store.StoredRow{}, err
	}
	for k, there := range s.builds[t.Build].tables[t.Table.Index] {
		if _, ok := s.builds[t.Build].current(t.Table.Index, k, t.Epoch); !ok {
			continue
		}
		if v, err := t.Table.Encoded(there.Row, column); err == nil && string(v) == string(want) {
			return there, after
		}
	}
	return store.StoredRow{}, errors.Join(store.ErrNotFound, after)
}

// View implements store.ReadModels. Rows are not asked of it.
func (s *Store) View(_ context.Context, id store.ConsumerID) (store.ReadView, error) {
	after, err := s.call("View")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	con := s.consumers[id]
	if con == nil {
		return nil, store.ErrNotFound
	}
	v := &view{con: con.Consumer, at: make(map[string][]store.Standing)}
	b := s.builds[con.Build]
	for topic, at := range b.checkpoints {
		for p, o := range b.owners {
			now := store.Standing{Partition: p, Checkpoint: at[p], Applied: at[p], Owner: o.InstanceID, Generation: o.Generation,
				ReplayThrough: b.replayThrough, IncompleteThrough: b.incomplete, Rebuilding: b.pruned[p] < b.epoch}
			if m := s.members[o.InstanceID][con.Build]; m != nil {
				now.Applied = max(at[p], m.ReadThrough[topic])
			}
			v.at[topic] = append(v.at[topic], now)
		}
	}
	return v, after
}

type view struct {
	store.ReadView
	con store.Consumer
	at  map[string][]store.Standing
}

func (v *view) Consumer() store.Consumer { return v.con }

func (v *view) Positions() (map[string]int64, error) {
	out := make(map[string]int64)
	for topic, at := range v.at {
		out[topic] = slices.MinFunc(at, func(a, b store.Standing) int { return cmp.Compare(a.Applied, b.Applied) }).Applied
	}
	return out, nil
}

func (v *view) Position(topic string, partition int) (int64, error) {
	return v.at[topic][partition].Applied, nil
}

func (v *view) Standings() (map[string][]store.Standing, error) { return v.at, nil }

func (v *view) Close() error { return nil }

// Close implements store.Store.
func (s *Store) Close() error { return nil }
