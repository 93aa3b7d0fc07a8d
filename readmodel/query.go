package readmodel

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/projhost/projhost/abi"
)

// Query asks for a page of a table. Only the key, the child key and declared
// columns with an index can be filtered or ordered by.
//
// The order is total and the same on every engine: text by code point, numbers
// and times by value, rows without a value last in both directions, and among
// equal values the key and child key, in the direction of the order.
type Query struct {
	Parent string // of a child table: only the children of this key; "": of all
	Where  []Cond // all must hold
	Order  string // column; "" or "key": by key
	Desc   bool
	Limit  int
	After  string // cursor of the page before; "": the first
	Build  int64  // of the table read; a cursor of another build has expired

	// AfterKey begins behind a key instead of a cursor: for people, where the
	// order is by key and the table is no child table.
	AfterKey string
}

// Cond is equality with a value in its text form (as in a URL). Null asks for
// rows where the column has no value.
type Cond struct {
	Column string
	Text   string
	Null   bool
}

// QueryLimitMax bounds a page, whatever a query asks for.
const QueryLimitMax = 10_000

// CompiledQuery is a query as SQL. Its rows are scanned by NewScanner and given
// to Page. It asks for one row more than the limit, to know whether more follow.
type CompiledQuery struct {
	SQL  string
	Args []any

	table  *Table
	query  Query
	order  int // place of the column, -1: by key
	limit  int
	parent bool
}

// NewScanner makes a scanner for the query's rows.
func (q *CompiledQuery) NewScanner() *Scanner { return q.table.newScanner() }

// Page cuts the rows that were read to the page asked for, and returns the
// cursor of the next page, "" at the end.
func (q *CompiledQuery) Page(rows []StoredRow) ([]StoredRow, string, error) {
	if len(rows) <= q.limit {
		return rows, "", nil
	}
	rows = rows[:q.limit]
	next, err := q.cursorAfter(&rows[q.limit-1])
	return rows, next, err
}

// CompileQuery compiles a query on a build's table, seen at an epoch: rows of a
// lower one are absent. Its errors are *UnknownFieldError, *ValueError (a filter
// value that the column cannot hold) and *CursorError.
func (d *Dialect) CompileQuery(physical string, t *Table, epoch int64, q Query) (*CompiledQuery, error) {
	q = t.scoped(q)
	order, err := t.field(cmp.Or(q.Order, KeyColumn), q.Parent)
	if err != nil {
		return nil, err
	}
	out := &CompiledQuery{table: t, query: q, order: order, limit: min(max(q.Limit, 1), QueryLimitMax)}
	c := compiler{d: d, t: t, physical: physical, epoch: epoch, parent: q.Parent}
	if q.Parent != "" {
		if t.Parent == nil {
			return nil, &ValueError{Table: t.Name, Column: KeyColumn, Reason: "the table has no parent to ask for the children of"}
		}
		if err := CheckKey(q.Parent); err != nil {
			return nil, &ValueError{Table: t.Name, Column: KeyColumn, Reason: err.Error()}
		}
		out.parent = true
		c.equal(KeyColumn, nil, q.Parent)
	}
	for _, w := range q.Where {
		if err := c.where(w); err != nil {
			return nil, err
		}
	}
	c.orderBy(order, q.Desc, out.parent)
	var after *position
	if q.After != "" {
		if after, err = out.decodeCursor(d, q.After); err != nil {
			return nil, err
		}
	}
	if q.AfterKey != "" {
		if q.After != "" || order != keyField || t.Parent != nil {
			return nil, &CursorError{Reason: "a key to begin after goes only with an order by key, without a cursor, and not with a child table"}
		}
		if err := CheckKey(q.AfterKey); err != nil {
			return nil, &ValueError{Table: t.Name, Column: KeyColumn, Reason: err.Error()}
		}
		after = &position{values: []any{q.AfterKey}}
	}
	out.SQL, out.Args = c.compile(after, out.limit+1)
	return out, nil
}

// CompileTwins compiles the query of the rows, seen at an epoch, that have the
// same value in a column as a given row, which is not null there. It is how a
// unique column is checked before anything is written.
func (d *Dialect) CompileTwins(physical string, t *Table, epoch int64, column int, row Row) (*CompiledQuery, error) {
	value, err := t.Encoded(row, column)
	if err != nil {
		return nil, err
	}
	out := &CompiledQuery{table: t, order: keyField, limit: 1}
	c := compiler{d: d, t: t, physical: physical, epoch: epoch}
	c.equal(d.orderBy(&t.Columns[column]), &t.Columns[column], d.orderArgument(&t.Columns[column], value))
	c.orderBy(keyField, false, false)
	out.SQL, out.Args = c.compile(nil, out.limit+1)
	return out, nil
}

// Encoded is the canonical encoding of one column's value in a row, a view of
// it. Equal values have equal encodings.
func (t *Table) Encoded(row Row, column int) ([]byte, error) {
	off, ok := t.start(row)
	for i := 0; ok; i++ {
		n := valueSize(row[off:])
		if n == 0 {
			break
		}
		if i == column {
			return row[off : off+n], nil
		}
		off += n
	}
	return nil, t.errNotRow()
}

// Fields that are not declared columns.
const (
	keyField   = -1
	childField = -2
)

// scoped makes a filter of a child table by its parent's key what it means: a
// query of that parent's children.
func (t *Table) scoped(q Query) Query {
	if t.Parent == nil || q.Parent != "" {
		return q
	}
	for i, w := range q.Where {
		if strings.EqualFold(w.Column, KeyColumn) && !w.Null {
			q.Parent = w.Text
			q.Where = slices.Delete(slices.Clone(q.Where), i, i+1)
			break
		}
	}
	return q
}

// field finds what may be filtered or ordered by. The child key is in reach of
// an index only among the children of one parent.
func (t *Table) field(name, parent string) (int, error) {
	switch {
	case strings.EqualFold(name, KeyColumn):
		return keyField, nil
	case strings.EqualFold(name, ChildColumn) && parent != "":
		return childField, nil
	}
	if i, ok := t.ColumnByName(name); ok && t.Columns[i].Index {
		return i, nil
	}
	allowed := t.Fields()
	if parent == "" {
		allowed = slices.DeleteFunc(allowed, func(f string) bool { return f == ChildColumn })
	}
	return 0, &UnknownFieldError{Table: t.Name, Field: name, Allowed: allowed}
}

// Fields lists what the table can be filtered and ordered by; the child key
// only among the children of one parent.
func (t *Table) Fields() []string {
	fields := t.keyColumns()
	for i := range t.Columns {
		if t.Columns[i].Index {
			fields = append(fields, t.Columns[i].Name)
		}
	}
	return fields
}

// compiler gathers a query's parts. Placeholders are numbered only when the
// text is put together, because a condition stands in several places of it.
type compiler struct {
	d          *Dialect
	t          *Table
	physical   string
	epoch      int64
	parent     string
	conditions []condition
	terms      []term
	args       []any // so far
}

// condition is a piece of SQL with ?-marks where its arguments go.
type condition struct {
	sql  string
	args []any
}

// term is one column of the order.
type term struct {
	name     string
	column   *Column // nil: key or child
	nullable bool
	desc     bool
}

// position is where a page begins: behind the row with these values, one for
// each term, nil for null.
type position struct{ values []any }

const mark = "?"

func (c *compiler) equal(name string, column *Column, value any) {
	quoted := c.d.Quote(name)
	switch {
	case value == nil:
		c.conditions = append(c.conditions, condition{sql: quoted + " IS NULL"})
	case column != nil && column.Kind == Text && c.d.padsText:
		m := c.d.compared(column, mark)
		c.conditions = append(c.conditions, condition{
			sql: quoted + " = " + m + " AND DATALENGTH(" + quoted + ") = DATALENGTH(" + m + ")", args: []any{value, value}})
	default:
		c.conditions = append(c.conditions, condition{sql: quoted + " = " + c.d.compared(column, mark), args: []any{value}})
	}
}

func (c *compiler) where(w Cond) error {
	i, err := c.t.field(w.Column, c.parent)
	if err != nil {
		return err
	}
	if i < 0 {
		name := KeyColumn
		if i == childField {
			name = ChildColumn
		}
		if w.Null {
			return &ValueError{Table: c.t.Name, Column: name, Reason: "a key is never null"}
		}
		if err := CheckKey(w.Text); err != nil {
			return &ValueError{Table: c.t.Name, Column: name, Reason: err.Error()}
		}
		c.equal(name, nil, w.Text)
		return nil
	}
	column := &c.t.Columns[i]
	if w.Null {
		c.equal(column.Name, column, nil)
		return nil
	}
	encoded, reason := column.appendParsed(nil, []byte(w.Text))
	if reason != "" {
		return c.t.refuse(column, reason)
	}
	c.equal(c.d.orderBy(column), column, c.d.orderArgument(column, encoded))
	return nil
}

// orderArgument is the argument to compare a canonical value of c with.
func (d *Dialect) orderArgument(c *Column, encoded []byte) any {
	if encoded[0] != byte(abi.TagNull) && d.sorted(c) {
		return c.sortKey(encoded[5:])
	}
	return d.argument(encoded)
}

// orderBy sets the terms of the order: the column, then the key and child key
// as tie-break.
func (c *compiler) orderBy(order int, desc, parent bool) {
	if order >= 0 {
		column := &c.t.Columns[order]
		c.terms = append(c.terms, term{c.d.orderBy(column), column, column.Nullable, desc})
	}
	if !parent {
		c.terms = append(c.terms, term{KeyColumn, nil, false, desc})
	}
	if c.t.Parent != nil {
		c.terms = append(c.terms, term{ChildColumn, nil, false, desc})
	}
}

// sections are disjoint ranges of the order that together hold the rows after a
// position, in order. Each is a single range of one index, so that a page costs
// the same wherever it begins, and NULLs are spelled out: compared, they would
// make the rest of the table vanish.
//
// After (a, b) that is: equal a, b greater; a greater; a null.
func (c *compiler) sections(after *position) [][]condition {
	var sections [][]condition
	if after != nil {
		for i := len(c.terms) - 1; i >= 0; i-- {
			if after.values[i] == nil {
				continue // nothing is greater than null, which is last
			}
			var section []condition
			for j := range i {
				section = append(section, c.same(&c.terms[j], after.values[j]))
			}
			sections = append(sections, append(section, c.greater(&c.terms[i], after.values[i])))
		}
	} else if c.terms[0].nullable {
		sections = append(sections, []condition{{sql: c.d.Quote(c.terms[0].name) + " IS NOT NULL"}})
	} else {
		sections = append(sections, nil)
	}
	if c.terms[0].nullable && (after == nil || after.values[0] != nil) {
		sections = append(sections, []condition{{sql: c.d.Quote(c.terms[0].name) + " IS NULL"}})
	}
	return sections
}

func (c *compiler) same(t *term, value any) condition {
	if value == nil {
		return condition{sql: c.d.Quote(t.name) + " IS NULL"}
	}
	return condition{c.d.Quote(t.name) + " = " + c.d.compared(t.column, mark), []any{value}}
}

func (c *compiler) greater(t *term, value any) condition {
	sign := " > "
	if t.desc {
		sign = " < "
	}
	return condition{c.d.Quote(t.name) + sign + c.d.compared(t.column, mark), []any{value}}
}

// compile puts the query together: one SELECT if one section is all, else the
// first rows of each section, of which the first by section are the page.
func (c *compiler) compile(after *position, limit int) (string, []any) {
	columns := c.d.quoteAll(c.t.rowColumns())
	sections := c.sections(after)
	if len(sections) == 1 {
		sql := c.selectSection(columns, sections[0], limit)
		return sql, c.args
	}
	hidden := ""
	if t := &c.terms[0]; t.column != nil && t.name != t.column.Name {
		hidden = ", " + c.d.Quote(t.name)
	}
	var parts []string
	for i, section := range sections {
		n := strconv.Itoa(i)
		parts = append(parts, "SELECT * FROM ("+
			c.selectSection(n+" AS ph_section, "+columns+hidden, section, limit)+") AS s"+n)
	}
	return c.d.limit("SELECT "+columns+" FROM ("+strings.Join(parts, " UNION ALL ")+") AS p ORDER BY ph_section, "+c.order(), limit), c.args
}

func (c *compiler) selectSection(columns string, section []condition, limit int) string {
	var b strings.Builder
	b.WriteString("SELECT " + columns + " FROM " + c.d.Quote(c.physical) + " WHERE ")
	for i, cond := range slices.Concat([]condition{c.d.current(mark, c.epoch)}, c.conditions, section) {
		if i > 0 {
			b.WriteString(" AND ")
		}
		c.number(&b, cond)
	}
	b.WriteString(" ORDER BY " + c.order())
	return c.d.limit(b.String(), limit)
}

// number writes a condition with its marks made the dialect's placeholders.
func (c *compiler) number(b *strings.Builder, cond condition) {
	sql, args := cond.sql, cond.args
	for {
		before, rest, found := strings.Cut(sql, mark)
		b.WriteString(before)
		if !found {
			return
		}
		c.args = append(c.args, args[0])
		b.WriteString(c.d.placeholder(len(c.args)))
		sql, args = rest, args[1:]
	}
}

func (c *compiler) order() string {
	var list []string
	for _, t := range c.terms {
		item := c.d.Quote(t.name)
		if t.desc {
			item += " DESC"
		}
		list = append(list, item)
	}
	return strings.Join(list, ", ")
}
