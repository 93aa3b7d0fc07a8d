package readmodel

import (
	"strings"
	"unsafe"

	"github.com/projhost/projhost/abi"
)

// Statements are the SQL of one physical table in one dialect. Make them once
// for each table and keep them: the same text finds the same prepared
// statement. Identifiers in them come from the checked declaration and are
// quoted; everything else is an argument.
//
// Arguments, in the order of the placeholders:
//
//	Upsert, Insert   RowArgs
//	Update           UpdateArgs
//	Delete           KeyArgs
//	DeleteChildren   the parent's key
//	Prune            the (parent's) key, the epoch
//	Get              KeyArgs, the epoch
//	List             the parent's key, the child key before the first ("" at first), the epoch, the limit
//	SelectKeys       SelectArgs
//	Any              none
//
// A row of a lower epoch than the one asked for is absent.
type Statements struct {
	Dialect  *Dialect
	Table    *Table
	Physical string

	// Upsert writes a row, whether it exists or not, by its key alone. It is
	// empty for a table with a unique column: there the writer first deletes
	// every row it is about to change and then inserts, so that a value may
	// move from one row to another, and a clash is an error and never an
	// overwritten row.
	Upsert string
	Insert string
	// Update changes a row that exists, all but its indexed columns: it is for
	// rows that are as before in those ([Statements.Updates]). An engine that
	// rewrites the index entries of every column it is told to set, changed or
	// not, leaves the indexes alone then. It changes no row if there is none.
	Update         string
	Delete         string
	DeleteChildren string // child tables only
	// Prune deletes what is of a lower epoch: of a child table all such children.
	Prune string
	Get   string
	List  string // child tables only
	Any   string // a row of one column if the table has rows

	columns string // of a row as Scanner wants it
}

// Statements makes the statements of a table.
func (d *Dialect) Statements(physical string, t *Table) *Statements {
	s := &Statements{Dialect: d, Table: t, Physical: physical}
	s.columns = d.quoteAll(t.rowColumns())
	from := "SELECT " + s.columns + " FROM " + d.Quote(physical) + " WHERE "
	byKey := s.byKey(1)
	n := len(t.keyColumns())
	s.Insert = s.insert()
	if !t.Unique {
		s.Upsert = d.upsert(s)
	}
	s.Update = s.update()
	s.Delete = "DELETE FROM " + d.Quote(physical) + " WHERE " + byKey
	s.Prune = "DELETE FROM " + d.Quote(physical) + " WHERE " + d.Quote(KeyColumn) + " = " + d.keyMark(1) + " AND " + d.Quote(EpochColumn) + " < " + d.placeholder(2)
	s.Any = d.limit("SELECT "+d.Quote(KeyColumn)+" FROM "+d.Quote(physical), 1)
	s.Get = from + byKey + " AND " + s.current(n+1)
	if t.Parent != nil {
		key, child := d.Quote(KeyColumn), d.Quote(ChildColumn)
		s.DeleteChildren = "DELETE FROM " + d.Quote(physical) + " WHERE " + key + " = " + d.keyMark(1)
		s.List = d.limitParameter(from+key+" = "+d.keyMark(1)+" AND "+child+" > "+d.keyMark(2)+
			" AND "+s.current(3)+" ORDER BY "+child, 4)
	}
	return s
}

// limitParameter limits a query by its n-th argument.
func (d *Dialect) limitParameter(query string, n int) string {
	if d.limit("SELECT ", 1) == limitBehind("SELECT ", 1) {
		return query + " LIMIT " + d.placeholder(n)
	}
	return query + " OFFSET 0 ROWS FETCH NEXT " + d.placeholder(n) + " ROWS ONLY"
}

// rowColumns are the columns that make up a StoredRow.
func (t *Table) rowColumns() []string {
	return t.viewColumns()
}

// storedColumns are the columns of a written row.
func (s *Statements) storedColumns() []string {
	t := s.Table
	names := t.keyColumns()
	for i := range t.Columns {
		names = append(names, t.Columns[i].Name)
	}
	for i := range t.Columns {
		if c := &t.Columns[i]; s.Dialect.sorted(c) {
			names = append(names, sortPrefix+c.Name)
		}
	}
	return append(names, PositionColumn, UpdatedColumn, EpochColumn)
}

// byKey is the condition on the primary key, its arguments beginning with the
// n-th.
func (s *Statements) byKey(n int) string {
	d := s.Dialect
	if d.hashed(s.Table) {
		return d.Quote(RowColumn) + " = " + d.RowHash(d.keyMark(n), d.keyMark(n+1))
	}
	conditions := make([]string, 0, 2)
	for i, name := range s.Table.keyColumns() {
		conditions = append(conditions, d.Quote(name)+" = "+d.keyMark(n+i))
	}
	return strings.Join(conditions, " AND ")
}

// current is the condition that a row is not of an epoch before the argument's.
// Rows that the host did not write have none, and are there as they are.
func (d *Dialect) current(placeholder string, epoch int64) condition {
	column := d.Quote(EpochColumn)
	return condition{"(" + column + " >= " + placeholder + " OR " + column + " IS NULL)", []any{epoch}}
}

func (s *Statements) current(n int) string {
	return s.Dialect.current(s.Dialect.placeholder(n), 0).sql
}

// keyMark is the n-th placeholder where a key is compared with it.
func (d *Dialect) keyMark(n int) string { return d.compared(nil, d.placeholder(n)) }

func (s *Statements) placeholders(n int) string {
	marks := make([]string, n)
	for i := range marks {
		marks[i] = s.Dialect.placeholder(i + 1)
	}
	return strings.Join(marks, ", ")
}

func (s *Statements) insert() string {
	names := s.storedColumns()
	return "INSERT INTO " + s.Dialect.Quote(s.Physical) + " (" + s.Dialect.quoteAll(names) + ")" +
		" VALUES (" + s.placeholders(len(names)) + ")"
}

// assignments sets every column that is not of the key.
func (s *Statements) assignments(value func(quoted string, n int) string) string {
	names := s.storedColumns()
	var set []string
	for i := len(s.Table.keyColumns()); i < len(names); i++ {
		quoted := s.Dialect.Quote(names[i])
		set = append(set, quoted+" = "+value(quoted, i+1))
	}
	return strings.Join(set, ", ")
}

func (s *Statements) update() string {
	d, t := s.Dialect, s.Table
	var set []string
	add := func(name string) { set = append(set, d.Quote(name)+" = "+d.placeholder(len(set)+1)) }
	for i := range t.Columns {
		if c := &t.Columns[i]; !c.Index {
			add(c.Name)
		}
	}
	for _, name := range []string{PositionColumn, UpdatedColumn, EpochColumn} {
		add(name)
	}
	return "UPDATE " + d.Quote(s.Physical) + " SET " + strings.Join(set, ", ") + " WHERE " + s.byKey(len(set)+1)
}

// Updates tells whether Update is right for a write: the row is there, and the
// write leaves its indexed columns as they are.
func (s *Statements) Updates(w *Write) bool {
	return w.Exists == Present && w.Before != nil && w.Row != nil && s.Table.sameIndexed(w.Before, w.Row)
}

// sameIndexed tells whether two rows are alike in all indexed columns. Canonical
// values are equal if their bytes are.
func (t *Table) sameIndexed(a, b Row) bool {
	i, ok := t.start(a)
	j, also := t.start(b)
	if !ok || !also {
		return false
	}
	for c := range t.Columns {
		n, m := valueSize(a[i:]), valueSize(b[j:])
		if n == 0 || m == 0 || t.Columns[c].Index && string(a[i:i+n]) != string(b[j:j+m]) {
			return false
		}
		i, j = i+n, j+m
	}
	return true
}

// onConflictUpdate upserts by the primary key and no other index.
func onConflictUpdate(s *Statements) string {
	return s.insert() + " ON CONFLICT (" + s.Dialect.quoteAll(s.Table.keyColumns()) + ") DO UPDATE SET " +
		s.assignments(func(quoted string, _ int) string { return "excluded." + quoted })
}

// onDuplicateKeyUpdate would take any unique index for the key, so it is right
// only where the primary key is the only one.
func onDuplicateKeyUpdate(s *Statements) string {
	return s.insert() + " ON DUPLICATE KEY UPDATE " +
		s.assignments(func(quoted string, _ int) string { return "VALUES(" + quoted + ")" })
}

func updateThenInsert(s *Statements) string {
	return "UPDATE " + s.Dialect.Quote(s.Physical) + " SET " +
		s.assignments(func(_ string, n int) string { return s.Dialect.placeholder(n) }) +
		" WHERE " + s.byKey(1) + "; IF @@ROWCOUNT = 0 " + s.insert()
}

// SelectSizes are the lengths of key lists that SelectKeys is meant for,
// largest first: a longer list is cut, a shorter one filled up by SelectArgs,
// so that few statements have to be prepared.
var SelectSizes = [...]int{256, 64, 16, 4, 1}

// SelectSize is the statement size for a list of n keys: take that many, or all
// that are left.
func SelectSize(n int) int {
	size := SelectSizes[0]
	for _, s := range SelectSizes {
		if s >= n {
			size = s
		}
	}
	return size
}

// SelectKeys is the query of the rows that exist among size keys.
func (s *Statements) SelectKeys(size int) string {
	d := s.Dialect
	var b strings.Builder
	b.WriteString("SELECT " + s.columns + " FROM " + d.Quote(s.Physical) + " WHERE " + s.current(1) + " AND ")
	n := 2
	if s.Table.Parent == nil {
		b.WriteString(d.Quote(KeyColumn) + " IN (")
		for i := range size {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(d.keyMark(n))
			n++
		}
		b.WriteString(")")
		return b.String()
	}
	b.WriteString("(")
	for i := range size {
		if i > 0 {
			b.WriteString(" OR ")
		}
		b.WriteString(s.byKey(n))
		n += 2
	}
	b.WriteString(")")
	return b.String()
}

// SelectArgs appends the arguments of SelectKeys for 1 to size keys. Missing
// keys are filled up with the last.
func (s *Statements) SelectArgs(dst []any, keys []Key, size int, epoch int64) []any {
	dst = append(dst, epoch)
	for i := range size {
		dst = s.KeyArgs(dst, keys[min(i, len(keys)-1)])
	}
	return dst
}

// KeyArgs appends the arguments that name a row.
func (s *Statements) KeyArgs(dst []any, k Key) []any {
	dst = append(dst, k.Key)
	if s.Table.Parent != nil {
		dst = append(dst, k.Child)
	}
	return dst
}

// RowArgs appends the arguments of Upsert and Insert. Texts are views of the
// row, which is immutable.
func (s *Statements) RowArgs(dst []any, w *Write, epoch int64) ([]any, error) {
	t := s.Table
	dst = s.KeyArgs(dst, w.Key)
	off, ok := t.start(w.Row)
	if !ok {
		return dst, t.errNotRow()
	}
	sortKeys := false
	for i := range t.Columns {
		n := valueSize(w.Row[off:])
		if n == 0 {
			return dst, t.errNotRow()
		}
		dst = append(dst, s.Dialect.argument(w.Row[off:off+n]))
		sortKeys = sortKeys || s.Dialect.sorted(&t.Columns[i])
		off += n
	}
	if sortKeys {
		dst = s.sortArgs(dst, w.Row)
	}
	return append(dst, w.Position, w.UpdatedUS, epoch), nil
}

// UpdateArgs appends the arguments of Update.
func (s *Statements) UpdateArgs(dst []any, w *Write, epoch int64) ([]any, error) {
	t := s.Table
	off, ok := t.start(w.Row)
	if !ok {
		return dst, t.errNotRow()
	}
	for i := range t.Columns {
		n := valueSize(w.Row[off:])
		if n == 0 {
			return dst, t.errNotRow()
		}
		if !t.Columns[i].Index {
			dst = append(dst, s.Dialect.argument(w.Row[off:off+n]))
		}
		off += n
	}
	return s.KeyArgs(append(dst, w.Position, w.UpdatedUS, epoch), w.Key), nil
}

func (s *Statements) sortArgs(dst []any, row Row) []any {
	off := 2
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		n := valueSize(row[off:])
		if s.Dialect.sorted(c) {
			if row[off] == byte(abi.TagNull) {
				dst = append(dst, nil)
			} else {
				dst = append(dst, c.sortKey(row[off+5:off+n]))
			}
		}
		off += n
	}
	return dst
}

// view gives bytes as a string without copying them: they never change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// argument turns an encoded canonical value into an argument for database/sql.
// Times, decimals and UUIDs are text: every engine reads it, and no time zone
// of a driver or session gets in the way.
func (d *Dialect) argument(encoded []byte) any {
	v, _, _ := readValue(encoded)
	var buf [40]byte
	switch v.Tag {
	case abi.TagFalse, abi.TagTrue:
		if d.booleans {
			return v.Tag == abi.TagTrue
		}
		return int64(v.Tag - abi.TagFalse)
	case abi.TagInt:
		return v.I
	case abi.TagFloat:
		return v.F
	case abi.TagText, abi.TagDecimal, abi.TagJSON:
		return view(v.B)
	case abi.TagBytes:
		return v.B
	case abi.TagDate:
		return string(appendDate(buf[:0], v.I))
	case abi.TagTime:
		return string(appendTime(buf[:0], v.I))
	case abi.TagTimestamp:
		return string(appendTimestamp(buf[:0], v.I, ' '))
	case abi.TagUUID:
		return string(appendUUID(buf[:0], v.B))
	}
	return nil
}
