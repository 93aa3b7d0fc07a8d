package readmodel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ActualTable is a table as a database describes it.
type ActualTable struct {
	Columns []ActualColumn
	Indexes []ActualIndex // the primary key's need not be among them
}

// ActualColumn is a column as a database describes it.
type ActualColumn struct {
	Name       string
	Type       string // with its lengths, as the engine spells it: "character varying(255)"
	Nullable   bool
	HasDefault bool   // or is computed by the database
	PrimaryKey int    // 1-based place in the primary key; 0: not in it
	Collation  string // "": not known or the engine's default
}

// ActualIndex is an index as a database describes it. Included columns are
// listed in Columns: a unique index with them does not count as one on its
// first column alone.
type ActualIndex struct {
	Name    string
	Columns []string
	Unique  bool
	Partial bool // has a condition other than that its column is not null
}

// ShapeError is a table that is not what its declaration needs. It is never
// altered: that is for its owner to do.
type ShapeError struct {
	Table    string // as the database names it
	Column   string // "": the table as a whole
	Declared string
	Actual   string
	Remedy   string
}

func (e *ShapeError) Error() string {
	where := fmt.Sprintf("table %q", e.Table)
	if e.Column != "" {
		where += fmt.Sprintf(", column %q", e.Column)
	}
	return fmt.Sprintf("%s: declared is %s, the database has %s; %s", where, e.Declared, e.Actual, e.Remedy)
}

// Check compares a table with the declaration. Wider types, further columns
// that may be left out, and further indexes that are not unique pass. The error
// joins a *ShapeError for each difference.
func (d *Dialect) Check(physical string, t *Table, actual ActualTable) error {
	c := shapeCheck{d: d, physical: physical, t: t, actual: actual}
	known := map[string]bool{}
	hashed := c.keyIsHash()
	known[RowColumn] = d.hashed(t)
	for i, name := range t.keyColumns() {
		place := i + 1
		if hashed {
			place = 0
		}
		c.column(name, d.key, d.types[Text].accepts, KeyMax, true, place)
		known[name] = true
	}
	for i := range t.Columns {
		col := &t.Columns[i]
		c.declared(col)
		known[strings.ToLower(col.Name)] = true
		if d.sorted(col) {
			c.column(sortPrefix+col.Name, d.sortType(col), []actualType{{d.sortType(col), anyWidth}}, 0, false, 0)
			known[strings.ToLower(sortPrefix+col.Name)] = true
		}
	}
	for _, name := range []string{PositionColumn, UpdatedColumn, EpochColumn} {
		c.column(name, d.integer, d.types[Int].accepts, 0, false, 0)
		known[name] = true
	}
	c.hash()
	c.others(known)
	c.unique()
	return errors.Join(c.problems...)
}

// keyIsHash tells whether the primary key is the hash of the row's keys.
func (c *shapeCheck) keyIsHash() bool {
	if !c.d.hashed(c.t) {
		return false
	}
	a := c.find(RowColumn)
	return a != nil && a.PrimaryKey == 1 && a.HasDefault
}

// hash checks the column by which the rows of a child table are found.
func (c *shapeCheck) hash() {
	if !c.d.hashed(c.t) {
		return
	}
	switch a := c.find(RowColumn); {
	case a == nil:
		c.problem(RowColumn, "the hash of the row's keys", "no such column", "add it: ALTER TABLE "+c.d.Quote(c.physical)+" ADD "+c.d.rowColumnDDL()+
			", and an index on it")
	case !a.HasDefault:
		c.problem(RowColumn, "the hash of the row's keys", "a column that the database does not compute", "make it "+c.d.rowColumnDDL())
	}
}

type shapeCheck struct {
	d        *Dialect
	physical string
	t        *Table
	actual   ActualTable
	problems []error
}

func (c *shapeCheck) problem(column, declared, actual, remedy string) {
	c.problems = append(c.problems, &ShapeError{c.physical, column, declared, actual, remedy})
}

func (c *shapeCheck) find(name string) *ActualColumn {
	for i := range c.actual.Columns {
		if strings.EqualFold(c.actual.Columns[i].Name, name) {
			return &c.actual.Columns[i]
		}
	}
	return nil
}

// alter is the remedy for a column that has to change.
func (c *shapeCheck) alter(name, typ string) string {
	return fmt.Sprintf("change it to %s %s, or rename the table so that projhost makes its own", c.d.Quote(name), typ)
}

func (c *shapeCheck) declared(col *Column) {
	typ := c.d.ColumnType(col)
	a := c.find(col.Name)
	if a == nil {
		c.problem(col.Name, typ, "no such column", c.add(col.Name, typ))
		return
	}
	if !c.d.holds(c.d.types[col.Kind].accepts, col, a.Type) {
		c.problem(col.Name, typ, a.Type, c.alter(col.Name, typ))
	}
	if col.Nullable && !a.Nullable {
		c.problem(col.Name, typ+" NULL", a.Type+" NOT NULL", c.alter(col.Name, typ+" NULL"))
	}
	if a.PrimaryKey != 0 {
		c.problem(col.Name, "no part of the primary key", "a part of it", "make the primary key ("+c.d.quoteAll(c.t.keyColumns())+")")
	}
	c.collation(col.Name, typ, col.Kind == Text, a)
}

func (c *shapeCheck) add(name, typ string) string {
	return fmt.Sprintf("add it: ALTER TABLE %s ADD %s %s", c.d.Quote(c.physical), c.d.Quote(name), typ)
}

// column checks a column that every table has. Keys need their place in the
// primary key.
func (c *shapeCheck) column(name, typ string, accepts []actualType, size int, key bool, place int) {
	a := c.find(name)
	if a == nil {
		c.problem(name, typ, "no such column", c.add(name, typ))
		return
	}
	want := Column{Kind: Text, Max: size}
	if key && c.d.key == SQLServer.key {
		want.Max = 340 // 1,020 bytes: 255 code points of four
	}
	if !c.d.holds(accepts, &want, a.Type) {
		c.problem(name, typ, a.Type, c.alter(name, typ))
	}
	if !key && !a.Nullable {
		c.problem(name, typ+" NULL", a.Type+" NOT NULL", c.alter(name, typ+" NULL"))
	}
	if a.PrimaryKey != place {
		c.problem(name, "primary key ("+c.d.quoteAll(c.t.keyColumns())+")", placeInKey(a.PrimaryKey),
			"make the primary key ("+c.d.quoteAll(c.t.keyColumns())+")")
	}
	c.collation(name, typ, key, a)
}

func placeInKey(n int) string {
	if n == 0 {
		return "a column outside the primary key"
	}
	return "column " + strconv.Itoa(n) + " of the primary key"
}

// collation checks that text is compared by code point, if the database tells.
func (c *shapeCheck) collation(name, typ string, text bool, a *ActualColumn) {
	if text && a.Collation != "" && !slices.Contains(c.d.collations, strings.ToLower(a.Collation)) {
		c.problem(name, typ, a.Type+" COLLATE "+a.Collation, c.alter(name, typ))
	}
}

// others checks columns that are not declared: an insert leaves them out.
func (c *shapeCheck) others(known map[string]bool) {
	for _, a := range c.actual.Columns {
		if known[strings.ToLower(a.Name)] {
			continue
		}
		if !a.Nullable && !a.HasDefault {
			c.problem(a.Name, "no such column", a.Type+" NOT NULL without a default",
				"let it be null or give it a default, so that rows can be inserted without it")
		}
		if a.PrimaryKey != 0 {
			c.problem(a.Name, "no such column", "a part of the primary key", "make the primary key ("+c.d.quoteAll(c.t.keyColumns())+")")
		}
	}
}

// unique checks that exactly the declared columns are unique. An undeclared
// unique index would refuse rows that the declaration allows; one that contains
// the whole key cannot.
func (c *shapeCheck) unique() {
	for i := range c.t.Columns {
		col := &c.t.Columns[i]
		if !col.Unique {
			continue
		}
		if !slices.ContainsFunc(c.actual.Indexes, func(ix ActualIndex) bool {
			return ix.Unique && !ix.Partial && len(ix.Columns) == 1 && c.isColumn(ix.Columns[0], col)
		}) {
			c.problem(col.Name, "unique", "no unique index on this column alone",
				"add one: CREATE UNIQUE INDEX ON "+c.d.Quote(c.physical)+" ("+c.d.Quote(c.d.orderBy(col))+")")
		}
	}
	for _, ix := range c.actual.Indexes {
		if ix.Unique && !c.containsKey(ix) && !c.declaredUnique(ix) {
			c.problem("", "no unique index but the primary key's and those of unique columns",
				fmt.Sprintf("the unique index %q on (%s)", ix.Name, strings.Join(ix.Columns, ", ")),
				"drop the index, or declare the column \"unique\"")
		}
	}
}

func (c *shapeCheck) isColumn(name string, col *Column) bool {
	return strings.EqualFold(name, col.Name) || strings.EqualFold(name, c.d.orderBy(col))
}

func (c *shapeCheck) containsKey(ix ActualIndex) bool {
	if c.d.hashed(c.t) && slices.ContainsFunc(ix.Columns, func(name string) bool { return strings.EqualFold(name, RowColumn) }) {
		return true
	}
	for _, key := range c.t.keyColumns() {
		if !slices.ContainsFunc(ix.Columns, func(name string) bool { return strings.EqualFold(name, key) }) {
			return false
		}
	}
	return true
}

func (c *shapeCheck) declaredUnique(ix ActualIndex) bool {
	if len(ix.Columns) == 0 {
		return false // on an expression
	}
	for i := range c.t.Columns {
		// With further columns the index allows more than the declaration.
		if col := &c.t.Columns[i]; col.Unique && slices.ContainsFunc(ix.Columns, func(n string) bool { return c.isColumn(n, col) }) {
			return true
		}
	}
	return false
}

// holds tells whether a type holds all values of a column.
func (d *Dialect) holds(accepts []actualType, c *Column, actual string) bool {
	if d.affinity != nil {
		actual = d.affinity(actual)
	}
	base, figures := parseType(actual)
	for _, t := range accepts {
		if strings.EqualFold(t.base, base) && t.width.holds(c, figures) {
			return true
		}
	}
	return false
}

func (w width) holds(c *Column, figures []int) bool {
	n := -1
	if len(figures) > 0 {
		n = figures[0]
	}
	switch w {
	case charsWidth:
		return n < 0 || c.Max > 0 && n >= c.Max
	case bytesWidth:
		return n < 0 || c.Max > 0 && n >= utf8Bytes(c.Max)
	case decimalWidth:
		scale := 0
		if len(figures) > 1 {
			scale = figures[1]
		}
		return n < 0 || scale >= c.Scale && n-scale >= c.Precision-c.Scale
	case microsWidth:
		return n < 0 || n >= 6
	case micros6Width:
		return n >= 6
	case uuidWidth:
		return n >= 36
	}
	return true
}

// parseType takes "character varying(255)" apart; "(max)" is no figure. The
// place of the figures within the words does not matter:
// "time(6) without time zone".
func parseType(s string) (base string, figures []int) {
	s = strings.ToLower(strings.TrimSpace(s))
	open := strings.IndexByte(s, '(')
	if open < 0 {
		return strings.Join(strings.Fields(s), " "), nil
	}
	inner, after, _ := strings.Cut(s[open+1:], ")")
	for _, f := range strings.Split(inner, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(f)); err == nil {
			figures = append(figures, n)
		}
	}
	return strings.Join(strings.Fields(s[:open]+" "+after), " "), figures
}
