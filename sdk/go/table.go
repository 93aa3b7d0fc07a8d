package projhost

import (
	"errors"
	"iter"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// table is a declared table without its row's Go type.
type table struct {
	*rowType
	projection *projection
	name       string
	index      uint16
	parent     string
	child      *abi.KeyRule
	free       bool
	scratch
}

// scratch is one row of a table's Go type. Rows go through it on their way to
// and from handlers: a row of the handler's own would have to be allocated for
// each event, and such garbage makes a guest's memory grow.
type scratch struct {
	row      unsafe.Pointer
	before   unsafe.Pointer // the row as it was loaded
	zero     func()         // makes row Go's zero value
	begin    func()         // makes row a new row: zero but for the defaults of the tags
	remember func()         // copies row to before
}

func newScratch[R any](typ *rowType) scratch {
	row, before, start := new(R), new(R), new(R)
	for i := range typ.columns {
		typ.columns[i].begin(unsafe.Pointer(start))
	}
	return scratch{
		row:      unsafe.Pointer(row),
		before:   unsafe.Pointer(before),
		zero:     func() { *row = *new(R) },
		begin:    func() { *row = *start },
		remember: func() { *before = *row },
	}
}

func (t *table) declare() abi.Table {
	d := abi.Table{Name: t.name, Parent: t.parent, Child: t.child, Free: t.free}
	for i := range t.columns {
		d.Columns = append(d.Columns, *t.columns[i].decl)
	}
	return d
}

func (t *table) appendKey(dst []byte, key, child string) []byte {
	if t.free {
		dst = appendStr(dst, key)
	}
	if t.parent != "" {
		dst = appendStr(dst, child)
	}
	return dst
}

// addTable makes a further table of a projection.
func addTable[R any](p *projection, name string) *table {
	what := "projection " + p.name + ": table " + name
	if name == "" {
		mustNot(what, errNoName)
	}
	typ, err := newRowType(reflect.TypeFor[R]())
	mustNot(what, err)
	if len(typ.columns) == 0 {
		mustNot(what, errors.New("it needs a column"))
	}
	t := p.addTable(name, typ)
	t.scratch = newScratch[R](typ)
	return t
}

// Column is a column of a table, for Patch and Add.
type Column struct {
	t     *table
	index uint16
}

func (t *table) column(name string) Column {
	for i := range t.columns {
		if t.columns[i].decl.Name == name {
			return Column{t, uint16(i)}
		}
	}
	panic("projhost: table " + t.name + " has no column " + strconv.Quote(name))
}

// Table is a table with one row for each key of the projection. A handler reads
// and writes the row of its message's key.
type Table[R any] struct{ t *table }

// NewTable adds a table beside the projection's own.
func NewTable[R, S any](p *Projection[S], name string) *Table[R] {
	return &Table[R]{addTable[R](p.p, name)}
}

// Column finds a column by its name, where the plugin is put together.
func (t *Table[R]) Column(name string) Column { return t.t.column(name) }

// Get reads the row, as the handler has written it so far.
func (t *Table[R]) Get(c *Ctx) (row R, ok bool) {
	ok = c.read(t.t, "", "")
	return *(*R)(t.t.row), ok
}

// Put writes the whole row.
func (t *Table[R]) Put(c *Ctx, row R) {
	*(*R)(t.t.row) = row
	c.put(t.t, "", "")
}

// Patch writes some columns of the row and leaves the others; an absent row is
// created with defaults.
func (t *Table[R]) Patch(c *Ctx, row R, columns ...Column) {
	*(*R)(t.t.row) = row
	c.patch(t.t, "", "", columns)
}

// Add adds to a number in the row, without reading it. An absent row starts
// with defaults, a null with 0.
func (t *Table[R]) Add(c *Ctx, column Column, n int64) { c.add(t.t, "", "", column, n) }

// AddDecimal is Add for a decimal column.
func (t *Table[R]) AddDecimal(c *Ctx, column Column, n Decimal) {
	c.addDecimal(t.t, "", "", column, n)
}

// Delete deletes the row with all its children.
func (t *Table[R]) Delete(c *Ctx) { c.delete(t.t, "", "") }

// Children is a child table: any number of rows for each key of the projection,
// each with a child key of its own. A handler reads and writes the children of
// its message's key. Children without a parent row are allowed; deleting the
// parent deletes its children.
type Children[R any] struct{ t *table }

// ChildKey says which child a message will most likely read, so that the host
// loads that row beforehand together with the others of a batch.
type ChildKey struct{ rule *abi.KeyRule }

// ChildByAggregateID loads the child whose key is the message's aggregate id.
func ChildByAggregateID() ChildKey {
	return ChildKey{&abi.KeyRule{Kind: abi.KeyAggregateID}}
}

// ChildByPointer loads the child whose key a JSON pointer finds in the data.
func ChildByPointer(pointer string) ChildKey {
	return ChildKey{&abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{pointer}}}
}

// NewChildren adds a child table of the projection's own table. The zero
// ChildKey leaves the loading to the first read.
func NewChildren[R, S any](p *Projection[S], name string, load ChildKey) *Children[R] {
	if p.p.own == nil {
		panic("projhost: projection " + p.p.name + ": child table " + name + " needs a parent, and there is no table of its own")
	}
	t := addTable[R](p.p, name)
	t.parent, t.child = p.p.own.name, load.rule
	return &Children[R]{t}
}

// Column finds a column by its name, where the plugin is put together.
func (t *Children[R]) Column(name string) Column { return t.t.column(name) }

// Get reads a child, as the handler has written it so far.
func (t *Children[R]) Get(c *Ctx, child string) (row R, ok bool) {
	ok = c.read(t.t, "", child)
	return *(*R)(t.t.row), ok
}

// Put writes a whole child.
func (t *Children[R]) Put(c *Ctx, child string, row R) {
	*(*R)(t.t.row) = row
	c.put(t.t, "", child)
}

// Patch writes some columns of a child; see [Table.Patch].
func (t *Children[R]) Patch(c *Ctx, child string, row R, columns ...Column) {
	*(*R)(t.t.row) = row
	c.patch(t.t, "", child, columns)
}

// Add adds to a number in a child; see [Table.Add].
func (t *Children[R]) Add(c *Ctx, child string, column Column, n int64) {
	c.add(t.t, "", child, column, n)
}

// AddDecimal is Add for a decimal column.
func (t *Children[R]) AddDecimal(c *Ctx, child string, column Column, n Decimal) {
	c.addDecimal(t.t, "", child, column, n)
}

// Delete deletes a child.
func (t *Children[R]) Delete(c *Ctx, child string) { c.delete(t.t, "", child) }

// DeleteAll deletes all children of the message's key.
func (t *Children[R]) DeleteAll(c *Ctx) {
	c.count++
	c.ops = append(c.ops, byte(abi.OpDeleteChildren), byte(t.t.index), byte(t.t.index>>8))
	c.note(abi.OpDeleteChildren, t.t, "", "", 0)
}

// List walks the children in the order of their keys, from behind after ("" is
// the start), at most limit of them (0 is all), reading them from the host in
// pages. It shows them as they were before this message: without what the
// handler itself has written.
func (t *Children[R]) List(c *Ctx, after string, limit int) iter.Seq2[string, R] {
	return func(yield func(string, R) bool) {
		c.list(t.t, after, limit, func(child string, b []byte) bool {
			t.t.readRow(t.t.row, b)
			return yield(child, *(*R)(t.t.row))
		})
	}
}

// FreeTable is a table whose rows have any key. Its projection must be
// SingleOwner: its messages are applied in their total order.
type FreeTable[R any] struct{ t *table }

// NewFreeTable adds a free table to a projection.
func NewFreeTable[R, S any](p *Projection[S], name string) *FreeTable[R] {
	t := addTable[R](p.p, name)
	t.free = true
	return &FreeTable[R]{t}
}

// Column finds a column by its name, where the plugin is put together.
func (t *FreeTable[R]) Column(name string) Column { return t.t.column(name) }

// Get reads a row, as the handler has written it so far.
func (t *FreeTable[R]) Get(c *Ctx, key string) (row R, ok bool) {
	ok = c.read(t.t, key, "")
	return *(*R)(t.t.row), ok
}

// Put writes a whole row.
func (t *FreeTable[R]) Put(c *Ctx, key string, row R) {
	*(*R)(t.t.row) = row
	c.put(t.t, key, "")
}

// Patch writes some columns of a row; see [Table.Patch].
func (t *FreeTable[R]) Patch(c *Ctx, key string, row R, columns ...Column) {
	*(*R)(t.t.row) = row
	c.patch(t.t, key, "", columns)
}

// Add adds to a number in a row; see [Table.Add].
func (t *FreeTable[R]) Add(c *Ctx, key string, column Column, n int64) {
	c.add(t.t, key, "", column, n)
}

// AddDecimal is Add for a decimal column.
func (t *FreeTable[R]) AddDecimal(c *Ctx, key string, column Column, n Decimal) {
	c.addDecimal(t.t, key, "", column, n)
}

// Delete deletes a row.
func (t *FreeTable[R]) Delete(c *Ctx, key string) { c.delete(t.t, key, "") }

// pending is an op of the entry, kept for reads that come after it.
type pending struct {
	code       abi.OpCode
	table      uint16
	key, child string
	columns    int32 // where in the ops the number of columns stands
}

func (c *Ctx) note(code abi.OpCode, t *table, key, child string, columns int) {
	c.pending = append(c.pending, pending{code, t.index, key, child, int32(columns)})
}

// check keeps a table to the handlers of its own projection.
func (c *Ctx) check(t *table) {
	if t.projection != c.projection {
		panic("projhost: table " + t.name + " belongs to projection " + t.projection.name +
			", the handler to " + c.projection.name)
	}
}

// put writes the row in the table's scratch.
func (c *Ctx) put(t *table, key, child string) {
	c.check(t)
	c.open(abi.OpUpsert, t, key, child)
	c.note(abi.OpUpsert, t, key, child, len(c.ops))
	c.appendRow(t, t.row)
}

func (c *Ctx) patch(t *table, key, child string, columns []Column) {
	c.check(t)
	c.open(abi.OpPatch, t, key, child)
	c.note(abi.OpPatch, t, key, child, len(c.ops))
	c.ops = le.AppendUint16(c.ops, uint16(len(columns)))
	for _, column := range columns {
		if column.t != t {
			panic("projhost: patch of table " + t.name + " with a column of another table")
		}
		c.ops = le.AppendUint16(c.ops, column.index)
		c.ops = t.columns[column.index].append(c.ops, t.row)
	}
}

func (c *Ctx) openAdd(t *table, key, child string, column Column, kind string) {
	c.check(t)
	if column.t != t || t.columns[column.index].decl.Kind != kind {
		panic("projhost: add of " + kind + " to a column of another table or kind")
	}
	c.open(abi.OpAdd, t, key, child)
	c.note(abi.OpAdd, t, key, child, len(c.ops))
	c.ops = le.AppendUint16(append(c.ops, 1, 0), column.index)
}

func (c *Ctx) add(t *table, key, child string, column Column, n int64) {
	c.openAdd(t, key, child, column, abi.ColumnInt)
	c.ops = append64(c.ops, abi.TagInt, uint64(n))
}

func (c *Ctx) addDecimal(t *table, key, child string, column Column, n Decimal) {
	c.openAdd(t, key, child, column, abi.ColumnDecimal)
	c.ops = t.columns[column.index].appendDecimal(c.ops, n)
}

// read reads a row into the table's scratch with the entry's own ops applied:
// the host does not know them before the entry is done.
func (c *Ctx) read(t *table, key, child string) bool {
	c.check(t)
	b := c.get(t, key, child)
	if b != nil {
		t.readRow(t.row, b)
	} else {
		t.zero()
	}
	if len(c.pending) == 0 {
		return b != nil
	}
	return c.readPending(t, key, child, b != nil)
}

// readPending applies the entry's ops so far to a row.
func (c *Ctx) readPending(t *table, key, child string, exists bool) bool {
	for i := range c.pending {
		op := &c.pending[i]
		if !op.concerns(t, key, child) {
			continue
		}
		if op.code == abi.OpDelete || op.code == abi.OpDeleteChildren {
			t.zero()
			exists = false
			continue
		}
		if !exists {
			t.begin()
			exists = true
		}
		c.replay(t, op, t.row)
	}
	return exists
}

func (op *pending) concerns(t *table, key, child string) bool {
	if op.code == abi.OpDelete && t.parent != "" && t.projection.tables[op.table].name == t.parent {
		return op.key == key // the parent is deleted
	}
	if op.table != t.index || op.key != key {
		return false
	}
	return op.code == abi.OpDeleteChildren || op.child == child
}

// replay applies the columns of one op.
func (c *Ctx) replay(t *table, op *pending, row unsafe.Pointer) {
	b := c.ops[op.columns:]
	n := le.Uint16(b)
	b = b[2:]
	for range n {
		column := &t.columns[le.Uint16(b)]
		b = b[2:]
		if op.code != abi.OpAdd {
			b = b[column.read(row, b):]
			continue
		}
		p := unsafe.Add(row, column.offset)
		if column.store == storeDecimal {
			old := *(*Decimal)(p)
			b = b[column.read(row, b):]
			*(*Decimal)(p) = old.Add(*(*Decimal)(p))
			continue
		}
		old := column.int(p)
		b = b[column.read(row, b):]
		column.setInt(p, old+column.int(p))
	}
}

// listPage is how many children are asked for at once.
const listPage = 100

func (c *Ctx) list(t *table, after string, limit int, each func(child string, row []byte) bool) {
	c.check(t)
	for read := 0; limit <= 0 || read < limit; {
		page := listPage
		if limit > 0 {
			page = min(page, limit-read)
		}
		b := c.listPage(t, after, page)
		n := int(le.Uint32(b))
		b = b[4:]
		for range n {
			size := int(le.Uint32(b))
			after = unsafe.String(unsafe.SliceData(b[4:]), size)
			b = b[4+size:]
			rowSize := t.rowSize(b)
			if !each(after, b[:rowSize]) {
				return
			}
			b = b[rowSize:]
		}
		read += n
		if n < page {
			return
		}
	}
}

// listPage reads one page into the arena.
func (c *Ctx) listPage(t *table, after string, limit int) []byte {
	for {
		free := c.arena[c.used:]
		n := bridge.List(int32(t.index), nil, unsafe.Slice(unsafe.StringData(after), len(after)), int32(limit), free)
		switch {
		case n < 0:
			panic("the host refuses to list table " + t.name)
		case n <= int64(len(free)):
			c.used += int(n)
			return free[:n:n]
		}
		c.arena, c.used = make([]byte, max(2*len(c.arena), int(n), 4096)), 0
	}
}

// rowSize is the length of the encoded row at the start of b.
func (r *rowType) rowSize(b []byte) int {
	at := 2
	for range le.Uint16(b) {
		_, rest, err := abi.ReadValue(b[at:])
		if err != nil {
			panic("list: " + err.Error())
		}
		at = len(b) - len(rest)
	}
	return at
}
