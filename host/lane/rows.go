package lane

import (
	"slices"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// rowBytes is what a cached row costs in memory beside key and value, about:
// the row itself, its place in a map, and its allocations.
const rowBytes = 240

// familyBytes is the same for the children of a key together.
const familyBytes = 320

// rows is what a lane knows of its tables: the state after every entry applied
// so far, committed or not. Reads fall through to the database only for rows
// that are not known here.
//
// Rows changed by a batch stay until the batch's commit is known, whatever the
// bound says: the database does not have them yet, so reading one of them back
// would give an older state. An absent row that is known to be absent is a row
// like any other.
type rows struct {
	tables   []*table
	bytes    int
	bytesMax int
	count    int

	building  uint64 // number of the batch being built, from 1
	committed uint64 // number of the last batch known to be committed

	dirty   []*row    // changed in the batch being built; see row.listed
	cleared []*family // emptied in it; see family.listed
	sealed  []*row    // changed in the batch that is being committed
	emptied []*family // emptied in it

	undo []undo // of the entry being applied

	// rebuilt: there may be rows of an older epoch, which nobody sees here. Those of
	// stale are to be removed in the batch being built.
	rebuilt bool
	stale   []staleKey
	staleAt int // what was there when the entry began

	recent row // ring of the rows that may be dropped, latest first
}

// staleKey is a key whose rows of an older epoch in a table are to be removed.
type staleKey struct {
	table *table
	key   string
}

// table is one declared table of the consumer. Rows of a child table are kept
// in families by parent key.
type table struct {
	ref      store.TableRef
	children []*table
	isChild  bool
	free     bool
	own      map[string]*row
	families map[string]*family
	unique   []unique
	// complete: the database has no row that is not known here. It was empty
	// when the lane began, and nothing of it has been dropped.
	complete bool
}

// unique is a unique column of a table, and who has its values among the rows
// that are known.
type unique struct {
	column int
	holder map[string]*row // by encoded value
}

// family is what is known of the children of one key.
type family struct {
	table    *table
	key      string
	children map[string]*row
	// emptiedIn is the batch that deletes all children the database has: until
	// it is committed, what is not in children does not exist. 0: none.
	emptiedIn uint64
	listed    bool
}

// row is one row and what is known of it.
type row struct {
	table  *table
	family *family // of child tables
	key    string
	child  string

	value readmodel.Row // nil: absent
	pos   int64         // of the last message that changed it
	us    int64         // recorded time of that message
	// exists tells what the database has, once the sealed batch is committed.
	exists readmodel.Existence
	stored readmodel.Row // that row, nil if it is absent or not known
	// changedIn is the last batch that changed it; it is pinned until that one
	// is committed.
	changedIn uint64
	listed    bool // in rows.dirty, and to be written
	loading   bool // asked for, not yet answered
	gone      bool // dropped; another row may have its name

	prev, next *row // in rows.recent, nil if pinned
}

// undo is how a row or a family was before an op of the entry being applied.
type undo struct {
	row    *row
	family *family

	value     readmodel.Row
	pos, us   int64
	changedIn uint64 // emptiedIn of a family
	listed    bool
	added     bool // the row was not there at all
}

// known tells whether the row is as it says: read from the database, or given a
// value here.
func (n *row) known() bool { return n.exists != readmodel.Unknown || n.changedIn > 0 }

// newRows makes the cache of some tables. empty tells which of them have no
// rows; it may be nil.
func newRows(refs []store.TableRef, empty []bool, bytesMax int, rebuilt bool) *rows {
	r := &rows{bytesMax: bytesMax, building: 1, rebuilt: rebuilt}
	r.recent.prev, r.recent.next = &r.recent, &r.recent
	for i, ref := range refs {
		t := &table{ref: ref, complete: i < len(empty) && empty[i], isChild: ref.Table.Parent != nil, free: ref.Table.Free}
		if t.isChild {
			t.families = make(map[string]*family)
		} else {
			t.own = make(map[string]*row)
		}
		for i := range ref.Table.Columns {
			if ref.Table.Columns[i].Unique {
				t.unique = append(t.unique, unique{column: i, holder: make(map[string]*row)})
			}
		}
		r.tables = append(r.tables, t)
	}
	for _, t := range r.tables {
		for _, child := range t.ref.Table.Children {
			t.children = append(t.children, r.tables[child.Index])
		}
	}
	return r
}

// find returns what is known of a row, nil if nothing.
func (r *rows) find(t *table, key, child string) *row {
	var found *row
	if !t.isChild {
		found = t.own[key]
	} else if f := t.families[key]; f != nil {
		found = f.children[child]
		if found == nil && f.emptiedIn > r.committed {
			// If the emptying is taken back, this knowledge goes with it.
			found = r.add(t, key, child)
			found.exists = readmodel.Absent
			r.undo = append(r.undo, undo{row: found, added: true})
		}
	}
	if found != nil {
		r.touch(found)
	}
	return found
}

// add makes a row of which nothing is known yet but what the table as a whole
// tells, absent so far.
func (r *rows) add(t *table, key, child string) *row {
	// Keys share memory with the page of their message: keep copies.
	n := &row{table: t, key: strings.Clone(key), child: strings.Clone(child)}
	if t.complete {
		n.exists = readmodel.Absent
	}
	if t.isChild {
		f := r.family(t, n.key)
		n.family = f
		f.children[n.child] = n
	} else {
		t.own[n.key] = n
	}
	r.bytes += rowBytes + len(n.key) + len(n.child)
	r.count++
	r.push(n)
	return n
}

func (r *rows) family(t *table, key string) *family {
	f := t.families[key]
	if f == nil {
		f = &family{table: t, key: strings.Clone(key), children: make(map[string]*row)}
		t.families[f.key] = f
		r.bytes += familyBytes + len(f.key)
	}
	return f
}

// loaded tells what the database has for a row that was not known.
func (r *rows) loaded(n *row, value readmodel.Row, pos, us int64) {
	n.loading = false
	n.exists = readmodel.Absent
	if value != nil {
		n.exists = readmodel.Present
	}
	n.stored = value
	r.setValue(n, value)
	n.pos, n.us = pos, us
}

func (r *rows) setValue(n *row, value readmodel.Row) {
	r.bytes += len(value) - len(n.value)
	for i := range n.table.unique {
		u := &n.table.unique[i]
		if old := u.of(n.table, n.value); old != nil && u.holder[string(old)] == n {
			delete(u.holder, string(old))
		}
		if v := u.of(n.table, value); v != nil {
			u.holder[string(v)] = n
		}
	}
	n.value = value
}

// of is the encoded value of the column in a row, nil if there is none.
func (u *unique) of(t *table, value readmodel.Row) []byte {
	if value == nil {
		return nil
	}
	v, err := t.ref.Table.Encoded(value, u.column)
	if err != nil || v[0] == byte(abi.TagNull) {
		return nil
	}
	return v
}

// change gives a row its new value, nil to delete it, as of a message.
func (r *rows) change(n *row, value readmodel.Row, pos, us int64) {
	r.undo = append(r.undo, undo{row: n, value: n.value, pos: n.pos, us: n.us, changedIn: n.changedIn, listed: n.listed})
	r.setValue(n, value)
	n.pos, n.us = pos, us
	n.changedIn = r.building
	r.unlink(n)
	if !n.listed {
		n.listed = true
		r.dirty = append(r.dirty, n)
	}
}

// empty deletes all children of a key in a child table, known or not, as of a
// message.
func (r *rows) empty(t *table, key string, pos, us int64) {
	f := r.family(t, key)
	for _, n := range f.children {
		if n.value != nil || n.exists != readmodel.Absent {
			r.change(n, nil, pos, us)
		}
	}
	r.undo = append(r.undo, undo{family: f, changedIn: f.emptiedIn, listed: f.listed})
	f.emptiedIn = r.building
	if !f.listed {
		f.listed = true
		r.cleared = append(r.cleared, f)
	}
}

// begin starts an entry: what it changes can be taken back until the next one
// begins.
func (r *rows) begin() {
	clear(r.undo)
	r.undo = r.undo[:0]
	r.staleAt = len(r.stale)
}

// displace has the rows of an older epoch that a key has in a table removed before
// the batch in hand is written.
func (r *rows) displace(t *table, key string) {
	r.stale = append(r.stale, staleKey{t, strings.Clone(key)})
}

// letGo has all rows of an older epoch removed that a key has, which nothing makes
// anew any more.
func (r *rows) letGo(key string) {
	for _, t := range r.tables {
		if !t.free {
			r.displace(t, key)
		}
	}
}

// rollback takes back everything since begin.
func (r *rows) rollback() {
	r.stale = r.stale[:r.staleAt]
	for i := len(r.undo) - 1; i >= 0; i-- {
		u := &r.undo[i]
		if u.family != nil {
			u.family.emptiedIn, u.family.listed = u.changedIn, u.listed
			continue
		}
		n := u.row
		if u.added {
			r.drop(n)
			continue
		}
		r.setValue(n, u.value)
		n.pos, n.us, n.changedIn, n.listed = u.pos, u.us, u.changedIn, u.listed
		if !n.listed && n.changedIn <= r.committed {
			r.push(n)
		}
	}
	r.begin()
}

// pinned tells whether the database may not have the row as it is.
func (r *rows) pinned(n *row) bool { return n.listed || n.changedIn > r.committed }

// seal ends the batch being built: write is called for every row it changed, in
// the order of key and child within a table, emptied for every key whose
// children it deleted, stale for every key whose older rows are to go, and from here on all of it counts as handed to the
// database; commit says when it is there.
func (r *rows) seal(write func(n *row), emptied func(f *family), stale func(t *table, key string)) {
	for _, s := range r.stale {
		stale(s.table, s.key)
	}
	clear(r.stale)
	r.stale = r.stale[:0]
	r.begin()
	r.sealed, r.dirty = r.dirty, r.sealed[:0]
	r.emptied, r.cleared = r.cleared, r.emptied[:0]
	for _, f := range r.emptied {
		if f.listed {
			f.listed = false
			emptied(f)
		}
	}
	// Pointers are sorted, not the writes made of them: those are large.
	slices.SortFunc(r.sealed, func(a, b *row) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		return strings.Compare(a.child, b.child)
	})
	for _, n := range r.sealed {
		if !n.listed {
			continue // taken back, or listed twice
		}
		n.listed = false
		if n.family != nil && n.family.emptiedIn == r.building {
			n.exists, n.stored = readmodel.Absent, nil // its children are deleted first
		}
		if n.value != nil || n.exists != readmodel.Absent {
			write(n)
		}
		n.exists = readmodel.Absent
		if n.value != nil {
			n.exists = readmodel.Present
		}
		n.stored = n.value
	}
	r.building++
}

// commit notes that the sealed batch is in the database, and drops the rows
// used least recently over the bound.
func (r *rows) commit() {
	r.committed = r.building - 1
	for _, n := range r.sealed {
		if !n.gone && !r.pinned(n) {
			r.push(n)
		}
	}
	clear(r.sealed)
	r.sealed = r.sealed[:0]
	for _, f := range r.emptied {
		r.forgetFamily(f)
	}
	clear(r.emptied)
	r.emptied = r.emptied[:0]
	r.evict()
}

// evict drops rows over the bound. Pinned rows are not in the ring.
func (r *rows) evict() {
	for r.bytes > r.bytesMax {
		n := r.recent.prev
		if n == &r.recent {
			return
		}
		if n.value != nil {
			n.table.complete = false
		}
		r.drop(n)
	}
}

func (r *rows) drop(n *row) {
	r.unlink(n)
	r.setValue(n, nil)
	n.gone = true
	r.bytes -= rowBytes + len(n.key) + len(n.child)
	r.count--
	if n.family == nil {
		delete(n.table.own, n.key)
		return
	}
	delete(n.family.children, n.child)
	r.forgetFamily(n.family)
}

// forgetFamily drops a family that says nothing the database does not.
func (r *rows) forgetFamily(f *family) {
	if len(f.children) == 0 && f.emptiedIn <= r.committed && !f.listed && f.table.families[f.key] == f {
		delete(f.table.families, f.key)
		r.bytes -= familyBytes + len(f.key)
	}
}

func (r *rows) touch(n *row) {
	if n.prev != nil && r.recent.next != n {
		r.unlink(n)
		r.push(n)
	}
}

func (r *rows) push(n *row) {
	if n.prev != nil {
		return
	}
	n.prev, n.next = &r.recent, r.recent.next
	n.next.prev, r.recent.next = n, n
}

func (r *rows) unlink(n *row) {
	if n.prev == nil {
		return
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}
