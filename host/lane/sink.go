package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Rows is what a lane reads of its tables.
type Rows interface {
	LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) ([]store.StoredRow, error)
	ListChildren(ctx context.Context, t store.TableRef, key, after string, limit int) ([]store.StoredRow, error)
	FindUnique(ctx context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error)
}

// sink folds the ops of one call of the guest onto the rows, and answers the
// guest from them. It implements plugins.Sink.
type sink struct {
	ctx     context.Context // of the call
	rows    *rows
	store   Rows
	shape   func(table uint16) (abi.TableShape, bool)
	entries []*reader.Entry // of the call
	done    int             // entries with a result

	// expected are the rows that preload found, by task and table, so that they
	// need no second look-up; first is the task of the call's first entry.
	expected []*row
	first    int

	op     abi.Op
	keys   []store.RowKey
	listed []*row
	answer []byte

	hits, misses uint64
}

// expect forgets the rows found for earlier work.
func (s *sink) expect() {
	clear(s.expected)
	s.expected = s.expected[:0]
}

// call begins a call of the guest about the entries of tasks, from first on.
func (s *sink) call(ctx context.Context, entries []*reader.Entry, first int) {
	s.ctx, s.entries, s.first, s.done = ctx, entries, first, 0
}

// Done folds an entry's ops onto the rows, all of them or none.
func (s *sink) Done(index int, status abi.Status, ops []byte) error {
	if index != s.done {
		return plugins.HostFault(fmt.Errorf("result of entry %d, expected %d", index, s.done))
	}
	if status == abi.StatusOK {
		s.rows.begin()
		if err := s.fold(s.entries[index], ops); err != nil {
			s.rows.rollback()
			return err
		}
	}
	s.done++
	return nil
}

func (s *sink) fold(e *reader.Entry, ops []byte) error {
	r := abi.ReadOps(ops, s.shape)
	for {
		more, err := r.Next(&s.op)
		if err != nil || !more {
			return err
		}
		if err := s.apply(e, &s.op); err != nil {
			return err
		}
	}
}

var errCapability = errors.New("the op needs a capability that this consumer does not have: a projection writes its tables only")

// apply folds one op.
func (s *sink) apply(e *reader.Entry, op *abi.Op) error {
	switch op.Code {
	case abi.OpSend, abi.OpDeadline, abi.OpCancel, abi.OpComplete:
		return errCapability
	}
	t := s.rows.tables[op.Table]
	key := e.Key
	if t.free {
		key = view(op.Key)
	}
	if op.Code == abi.OpDeleteChildren {
		s.rows.empty(t, key, e.Event.Position, e.Event.OccurredUS)
		return nil
	}
	n := s.row(t, key, view(op.Child))
	if op.Code == abi.OpDelete {
		return s.delete(e, n)
	}
	if !n.known() && op.Code != abi.OpUpsert {
		if err := s.load(n); err != nil {
			return plugins.HostFault(err)
		}
	}
	if op.Code == abi.OpInsert && n.value != nil {
		return fmt.Errorf("insert into table %q: the row exists", t.ref.Table.Name)
	}
	value, err := t.ref.Table.Fold(n.value, op)
	if err != nil {
		return err
	}
	for i := range t.unique {
		if err := s.checkUnique(&t.unique[i], n, value); err != nil {
			return err
		}
	}
	s.rows.change(n, value, e.Event.Position, e.Event.OccurredUS)
	return nil
}

// checkUnique refuses a value that another row has, as things are after the
// entries so far: in memory first, in the database for what is not there. So
// the verdict does not depend on which entries share a batch.
func (s *sink) checkUnique(u *unique, n *row, value readmodel.Row) error {
	v := u.of(n.table, value)
	if v == nil || bytes.Equal(v, u.of(n.table, n.value)) {
		return nil
	}
	t := n.table.ref.Table
	clash := func(key string) error {
		return fmt.Errorf("column %q of table %q is unique, and row %q has this value", t.Columns[u.column].Name, t.Name, key)
	}
	if holder := u.holder[string(v)]; holder != nil {
		if holder == n {
			return nil
		}
		return clash(holder.key)
	}
	found, err := s.store.FindUnique(s.ctx, n.table.ref, u.column, value)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return s.freeUnique(u, n, value)
	case err != nil:
		return plugins.HostFault(err)
	}
	// Whoever is known here has given the value up since.
	other := s.row(n.table, found.Key.Key, found.Child)
	if other == n || other.known() {
		return nil
	}
	s.rows.loaded(other, found.Row, found.Position, found.UpdatedUS)
	return clash(other.key)
}

// freeUnique takes a value from a row of an older epoch: that is absent, and the
// database refuses the value all the same.
func (s *sink) freeUnique(u *unique, n *row, value readmodel.Row) error {
	if !s.rows.rebuilt {
		return nil
	}
	any := n.table.ref
	any.Epoch = 0
	found, err := s.store.FindUnique(s.ctx, any, u.column, value)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return plugins.HostFault(err)
	}
	s.rows.displace(n.table, found.Key.Key)
	return nil
}

// delete deletes a row, and with a parent its children.
func (s *sink) delete(e *reader.Entry, n *row) error {
	if n.value != nil || !n.known() {
		s.rows.change(n, nil, e.Event.Position, e.Event.OccurredUS)
	}
	for _, child := range n.table.children {
		s.rows.empty(child, n.key, e.Event.Position, e.Event.OccurredUS)
	}
	return nil
}

// row returns a row, known or not.
func (s *sink) row(t *table, key, child string) *row {
	if at := (s.first+s.done)*len(s.rows.tables) + int(t.ref.Table.Index); at < len(s.expected) {
		if n := s.expected[at]; n != nil && !n.gone && n.key == key && n.child == child {
			return n
		}
	}
	if n := s.rows.find(t, key, child); n != nil {
		return n
	}
	return s.rows.add(t, key, child)
}

// load reads a row that is not known.
func (s *sink) load(n *row) error {
	s.misses++
	s.keys = append(s.keys[:0], store.RowKey{Key: n.key, Child: n.child})
	found, err := s.store.LoadRows(s.ctx, n.table.ref, s.keys)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		s.rows.loaded(n, nil, 0, 0)
		return nil
	}
	s.rows.loaded(n, found[0].Row, found[0].Position, found[0].UpdatedUS)
	return nil
}

// entry is the one the guest works on.
func (s *sink) entry() *reader.Entry { return s.entries[s.done] }

// Get answers with the row as it is after all entries so far.
func (s *sink) Get(index uint16, key []byte) ([]byte, bool, error) {
	t, err := s.table(index)
	if err != nil {
		return nil, false, err
	}
	rowKey, child, err := abi.ReadRowKey(key, t.ref.Table.Shape())
	if err != nil {
		return nil, false, err
	}
	k := s.entry().Key
	if t.free {
		k = view(rowKey)
	}
	n := s.row(t, k, view(child))
	if !n.known() {
		if err := s.load(n); err != nil {
			return nil, false, plugins.HostFault(err)
		}
	} else {
		s.hits++
	}
	return n.value, n.value != nil, nil
}

func (s *sink) table(index uint16) (*table, error) {
	if int(index) >= len(s.rows.tables) {
		return nil, fmt.Errorf("table %d is not declared", index)
	}
	return s.rows.tables[index], nil
}

// listMax bounds one answer of List. A guest may ask for as many: one that gets
// fewer than it asked for takes it that there are no more.
const listMax = 10_000

// List merges what the database has with what it does not have yet. It reads a
// page, never all children.
func (s *sink) List(index uint16, key, after []byte, limit int) ([]byte, error) {
	t, err := s.table(index)
	if err != nil {
		return nil, err
	}
	if !t.isChild {
		return nil, fmt.Errorf("table %q has no children to list", t.ref.Table.Name)
	}
	parent, err := abi.ReadListKey(key, t.ref.Table.Shape())
	if err != nil {
		return nil, err
	}
	k := s.entry().Key
	if t.free {
		k = view(parent)
	}
	limit = min(max(limit, 0), listMax)
	count, from := 0, view(after)
	s.answer = abi.AppendCount(s.answer[:0], 0)
	add := func(child string, value readmodel.Row) {
		s.answer = abi.AppendChild(s.answer, child, value)
		count++
	}
	changed := s.rows.uncommitted(t, k, from, s.listed[:0])
	s.listed = changed
	for more := !s.rows.noneStored(t, k); more && count < limit; {
		page, err := s.store.ListChildren(s.ctx, t.ref, k, from, limit-count)
		if err != nil {
			return nil, plugins.HostFault(err)
		}
		more = len(page) == limit-count
		for i := range page {
			for len(changed) > 0 && changed[0].child < page[i].Child && count < limit {
				if changed[0].value != nil {
					add(changed[0].child, changed[0].value)
				}
				changed = changed[1:]
			}
			if count == limit {
				break
			}
			if len(changed) > 0 && changed[0].child == page[i].Child {
				if changed[0].value != nil {
					add(changed[0].child, changed[0].value)
				}
				changed = changed[1:]
				continue
			}
			add(page[i].Child, page[i].Row)
		}
		if len(page) > 0 {
			from = page[len(page)-1].Child
		}
	}
	for _, n := range changed {
		if count == limit {
			break
		}
		if n.value != nil {
			add(n.child, n.value)
		}
	}
	abi.PutCount(s.answer, count)
	return s.answer, nil
}

// uncommitted appends the children of a key behind a child key that the
// database may not have as they are, in order.
func (r *rows) uncommitted(t *table, key, after string, dst []*row) []*row {
	f := t.families[key]
	if f == nil {
		return dst
	}
	take := func(n *row) {
		if n.family == f && n.child > after && r.pinned(n) {
			dst = append(dst, n)
		}
	}
	if len(f.children) <= len(r.dirty)+len(r.sealed) {
		for _, n := range f.children {
			take(n)
		}
	} else {
		for _, n := range r.dirty {
			take(n)
		}
		for _, n := range r.sealed {
			take(n)
		}
	}
	slices.SortFunc(dst, func(a, b *row) int { return strings.Compare(a.child, b.child) })
	return slices.Compact(dst)
}

// noneStored tells whether the database has no child of a key that counts.
func (r *rows) noneStored(t *table, key string) bool {
	f := t.families[key]
	return f != nil && f.emptiedIn > r.committed
}

// view gives bytes as a string for the time they do not change: guest memory
// during a call. What is kept is cloned.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
