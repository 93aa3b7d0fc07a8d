package readmodel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/projhost/projhost/abi"
)

// Limits of a declaration. They are what the narrowest engine takes: the
// columns of a MySQL row together stay below 65,535 bytes, and an index entry
// below 3,072.
const (
	NameMax        = 48 // of tables and columns
	ColumnsMax     = 100
	ShortTextsMax  = 60  // columns of text with a max of up to IndexedTextMax
	IndexedTextMax = 255 // largest max of an indexed text, in UTF-16 units
	TextMaxMax     = 1 << 20
)

// Table is a declared table, validated and resolved. It is immutable.
type Table struct {
	Name      string // as declared
	Index     uint16 // in the declaration, as ops name it
	Parent    *Table // of a child table
	Children  []*Table
	Free      bool
	ChildRule *abi.KeyRule // of a child table, if declared: the child key an entry will want
	Columns   []Column
	Unique    bool // some column is unique

	decl  abi.Table
	empty []byte // a row of nulls and defaults; nil if some column needs a value
}

// Column is a declared column, validated and resolved.
type Column struct {
	Name      string
	Kind      Kind
	Max       int // of text, in UTF-16 units; 0: no limit
	Precision int // of a decimal
	Scale     int // of a decimal
	Index     bool
	Unique    bool
	Nullable  bool
	Default   *abi.Value // canonical; nil: null
	From      string     // JSON pointer into column Of, whose value this one follows
	Of        string

	source   int     // place of column Of, -1 without From
	ahead    bool    // that place is behind this column's, so it is not checked yet when this one is
	followed bool    // some column's source is this one
	pointer  pointer // From, taken apart
	absent   []byte  // canonical encoding of the default or null; nil: a value is needed
	jsonName []byte  // "name":
}

// NewTables resolves the tables of one consumer's declaration. The error joins
// every problem found.
func NewTables(decl []abi.Table) ([]*Table, error) {
	r := resolver{decl: decl, tables: make([]*Table, len(decl)), byName: make(map[string]*Table, len(decl))}
	for i := range decl {
		r.table(i, &decl[i])
	}
	for i := range decl {
		r.family(r.tables[i], &decl[i])
	}
	if len(r.problems) > 0 {
		return nil, errors.Join(r.problems...)
	}
	return r.tables, nil
}

type resolver struct {
	decl     []abi.Table
	tables   []*Table
	byName   map[string]*Table // by lower-cased name
	problems []error
}

func (r *resolver) problem(t *Table, c *Column, format string, args ...any) {
	where := fmt.Sprintf("tables[%d] %q", t.Index, cut(t.Name))
	if c != nil {
		where += fmt.Sprintf(", column %q", cut(c.Name))
	}
	r.problems = append(r.problems, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
}

func (r *resolver) table(i int, d *abi.Table) {
	t := &Table{Name: d.Name, Index: uint16(i), Free: d.Free, decl: *d}
	r.tables[i] = t
	if reason := checkTableName(d.Name); reason != "" {
		r.problem(t, nil, "%s", reason)
	}
	lower := strings.ToLower(d.Name)
	if other := r.byName[lower]; other != nil {
		r.problem(t, nil, "tables[%d] has this name too (names are compared without case)", other.Index)
	} else {
		r.byName[lower] = t
	}
	if len(d.Columns) == 0 {
		r.problem(t, nil, "a table needs at least one column")
	}
	if len(d.Columns) > ColumnsMax {
		r.problem(t, nil, "%d columns: a table has at most %d; keep what is not filtered by in a json column", len(d.Columns), ColumnsMax)
		return
	}
	r.columns(t, d.Columns)
}

func (r *resolver) columns(t *Table, decl []abi.Column) {
	t.Columns = make([]Column, len(decl))
	seen := make(map[string]bool, len(decl))
	short := 0
	for i := range decl {
		c := &t.Columns[i]
		r.column(t, c, &decl[i])
		lower := strings.ToLower(c.Name)
		if seen[lower] {
			r.problem(t, c, "declared twice (names are compared without case)")
		}
		seen[lower] = true
		t.Unique = t.Unique || c.Unique
		if c.Kind == Text && c.Max > 0 && c.Max <= IndexedTextMax {
			short++
		}
	}
	if short > ShortTextsMax {
		r.problem(t, nil, "%d text columns with a max up to %d: at most %d fit one row on every engine; leave max out where no index needs it",
			short, IndexedTextMax, ShortTextsMax)
	}
	for i := range decl {
		r.source(t, &t.Columns[i], i)
	}
	t.resolveEmpty()
}

func (r *resolver) column(t *Table, c *Column, d *abi.Column) {
	*c = Column{Name: d.Name, Max: d.Max, Precision: d.Precision, Scale: d.Scale,
		Index: d.Index || d.Unique, Unique: d.Unique, Nullable: d.Nullable(),
		From: d.From, Of: d.Of, source: -1, jsonName: []byte(`"` + d.Name + `":`)}
	if reason := checkColumnName(d.Name); reason != "" {
		r.problem(t, c, "%s", reason)
	}
	kind, ok := ParseKind(d.Kind)
	if !ok {
		r.problem(t, c, "unknown kind %q: it is one of %s", cut(d.Kind), kindNames())
		return
	}
	c.Kind = kind
	problems := len(r.problems)
	r.size(t, c)
	if len(r.problems) == problems {
		r.defaultValue(t, c, d)
	}
}

// size checks what limits a column: max, precision and scale, and whether it
// can have an index.
func (r *resolver) size(t *Table, c *Column) {
	switch {
	case c.Max != 0 && c.Kind != Text:
		r.problem(t, c, "max is for text, not for %s", c.Kind)
	case c.Max < 0 || c.Max > TextMaxMax:
		r.problem(t, c, "max is 1 to %d, or left out", TextMaxMax)
	}
	switch {
	case c.Kind != Decimal && (c.Precision != 0 || c.Scale != 0):
		r.problem(t, c, "precision and scale are for decimal, not for %s", c.Kind)
	case c.Kind == Decimal && (c.Precision < 1 || c.Precision > PrecisionMax):
		r.problem(t, c, "a decimal needs a precision of 1 to %d", PrecisionMax)
	case c.Kind == Decimal && (c.Scale < 0 || c.Scale > min(c.Precision, ScaleMax)):
		r.problem(t, c, "the scale of a decimal is 0 to its precision, and at most %d", ScaleMax)
	}
	switch {
	case c.Index && !c.Kind.indexable():
		r.problem(t, c, "a %s column cannot have an index: copy what is looked up into a column of its own (\"from\" does it)", c.Kind)
	case c.Index && c.Kind == Text && (c.Max == 0 || c.Max > IndexedTextMax):
		r.problem(t, c, "a text with an index needs a max of at most %d", IndexedTextMax)
	}
}

func (r *resolver) defaultValue(t *Table, c *Column, d *abi.Column) {
	raw := d.Default
	if len(raw) > 0 && c.From != "" {
		r.problem(t, c, "a column with \"from\" has no default")
		return
	}
	if len(raw) == 0 {
		if c.Nullable {
			c.absent = []byte{byte(abi.TagNull)}
		}
		return
	}
	v, ok := d.DefaultValue()
	if !ok {
		r.problem(t, c, "the default is no value of the column: leave it out, or give one that fits %s", c.describe())
		return
	}
	value, reason := c.appendCanonical(nil, &v)
	if reason != "" {
		r.problem(t, c, "default: %s", reason)
		return
	}
	c.absent = value
	v, _, _ = readValue(value)
	c.Default = &v
}

// source resolves the column that column i follows.
func (r *resolver) source(t *Table, c *Column, i int) {
	switch {
	case c.From == "" && c.Of == "":
		return
	case c.Of == "":
		r.problem(t, c, "\"from\" needs \"of\", the json column it points into")
		return
	}
	var ok bool
	if c.pointer, ok = parsePointer(c.From); !ok || c.From == "" {
		r.problem(t, c, "\"from\" is a JSON pointer such as \"/customer/name\"")
	}
	s, ok := t.ColumnByName(c.Of)
	if !ok || t.Columns[s].Kind != JSON || s == i || t.Columns[s].From != "" {
		r.problem(t, c, "\"of\" names a json column of this table that is itself without \"from\"")
		return
	}
	c.source, c.ahead = s, s > i
	t.Columns[s].followed = true
}

// family resolves parents, children and child keys.
func (r *resolver) family(t *Table, d *abi.Table) {
	if d.Parent == "" {
		if d.Child != nil {
			r.problem(t, nil, "\"child\" is for child tables: name the \"parent\" too")
		}
		return
	}
	p := r.byName[strings.ToLower(d.Parent)]
	switch {
	case p == nil:
		r.problem(t, nil, "parent %q is not a table of this consumer", cut(d.Parent))
		return
	case p == t:
		r.problem(t, nil, "a table cannot be its own parent")
		return
	case r.decl[p.Index].Parent != "":
		r.problem(t, nil, "parent %q is a child table itself: there is one level of children", cut(d.Parent))
		return
	case p.Free != t.Free:
		r.problem(t, nil, "a child table is \"free\" exactly if its parent is")
	}
	t.Parent = p
	p.Children = append(p.Children, t)
	if d.Child == nil {
		return
	}
	switch rule := *d.Child; {
	case rule.Kind == abi.KeyAggregateID:
	case rule.Kind == abi.KeyPointers && len(rule.Pointers) == 1:
		if _, ok := parsePointer(rule.Pointers[0]); !ok {
			r.problem(t, nil, "\"child\": %q is not a JSON pointer", cut(rule.Pointers[0]))
		}
	default:
		r.problem(t, nil, "\"child\" is \"aggregate_id\" or one JSON pointer")
	}
	t.ChildRule = d.Child
}

// resolveEmpty makes the row that defaults alone make.
func (t *Table) resolveEmpty() {
	row := []byte{byte(len(t.Columns)), byte(len(t.Columns) >> 8)}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.source >= 0 && len(t.Columns[c.source].absent) > 1 {
			// The source's default has to be looked into: only a fold does it.
			return
		}
		if c.absent == nil {
			return
		}
		row = append(row, c.absent...)
	}
	t.empty = row
}

// Shape tells which key parts the ops of this table carry.
func (t *Table) Shape() abi.TableShape {
	return abi.TableShape{Child: t.Parent != nil, Free: t.Free}
}

// ColumnByName finds a column, comparing without case.
func (t *Table) ColumnByName(name string) (int, bool) {
	for i := range t.Columns {
		if strings.EqualFold(t.Columns[i].Name, name) {
			return i, true
		}
	}
	return 0, false
}

// describe names the column's type as a declaration would.
func (c *Column) describe() string {
	switch {
	case c.Kind == Decimal:
		return fmt.Sprintf("decimal(%d,%d)", c.Precision, c.Scale)
	case c.Max > 0:
		return fmt.Sprintf("%s(%d)", c.Kind, c.Max)
	}
	return c.Kind.String()
}
