package readmodel

import (
	"strconv"
	"strings"
)

// Columns that every read-model table has besides the declared ones. The last
// three are the system columns; they are null in rows that the host did not
// write, which it leaves alone.
const (
	KeyColumn      = "key"
	ChildColumn    = "child" // child tables only
	PositionColumn = "ph_position"
	UpdatedColumn  = "ph_updated_us"
	EpochColumn    = "ph_epoch"

	// RowColumn is the primary key of child tables on an engine whose index
	// entries do not hold the two keys of a row: their hash, which the database
	// computes ([Dialect.RowHash]).
	RowColumn = "ph_row"

	// sortPrefix and a decimal column's name is a hidden column by which the
	// decimal is ordered, on an engine without an exact decimal type.
	sortPrefix = "ph_n_"
)

// Dialect is how one engine spells the tables and statements of read models.
// There is one value for each engine; they are immutable.
type Dialect struct {
	Name string // "sqlite", "postgres", "mysql", "mariadb", "sqlserver"

	quoteOpen, quoteClose string
	placeholder           func(n int) string // n counts from 1
	create                string             // "CREATE TABLE" and what else
	tableOptions          func(t *Table) string
	key                   string // type of key and child
	integer               string // type of the system columns
	sortKey               [2]string
	types                 [JSON + 1]columnType
	upsert                func(s *Statements) string
	view                  func(d *Dialect, public, query string) []string
	dropTable, dropView   string // statement up to the name
	nonclustered          bool   // primary keys: a clustered one is too short for a key
	rowHash               string // of {key} and {child}, where both do not fit into an index entry
	indexBytes            int    // that fit into an index entry; 0: enough
	uniqueNulls           bool   // a unique index needs WHERE to allow many nulls
	limit                 func(query string, n int) string
	cast                  func(c *Column, mark string) string // an argument to compare with column c (nil: the key); nil: as it is
	padsText              bool                                // equality ignores trailing spaces
	affinity              func(declared string) string        // reduces a declared type before comparing
	collations            []string                            // that compare by code point, lower-cased; more than ours
	booleans              bool                                // a bool argument is a bool, not 0 or 1
}

// columnType says how an engine holds a kind. In ddl and long, {max}, {bytes}
// (the same length in UTF-8), {precision} and {scale} stand for the column's
// figures. long is for text without max or with one above shortMax.
type columnType struct {
	ddl      string
	long     string
	shortMax int
	accepts  []actualType
}

// actualType is a type of a table's column that holds the kind, if its figures
// are wide enough.
type actualType struct {
	base  string
	width width
}

// width says which figures a type needs.
type width uint8

const (
	anyWidth     width = iota
	charsWidth         // at least the max
	bytesWidth         // at least the max in UTF-8
	decimalWidth       // at least the scale, and the digits before the point
	microsWidth        // 6 digits of seconds, or none stated
	micros6Width       // 6 digits of seconds, stated
	uuidWidth          // at least 36 characters
)

// Dialects returns all of them.
func Dialects() []*Dialect { return []*Dialect{SQLite, Postgres, MySQL, MariaDB, SQLServer} }

// Quote quotes an identifier.
func (d *Dialect) Quote(name string) string {
	return d.quoteOpen + strings.ReplaceAll(name, d.quoteClose, d.quoteClose+d.quoteClose) + d.quoteClose
}

// Placeholder is the n-th parameter of a statement, counted from 1.
func (d *Dialect) Placeholder(n int) string { return d.placeholder(n) }

// KeyPlaceholder is the n-th parameter where a text key is compared with it.
func (d *Dialect) KeyPlaceholder(n int) string { return d.keyMark(n) }

// Limit is a query that begins with SELECT, of at most n rows.
func (d *Dialect) Limit(query string, n int) string { return d.limit(query, n) }

// ColumnType is the type of a declared column in DDL.
func (d *Dialect) ColumnType(c *Column) string {
	t := d.types[c.Kind]
	form := t.ddl
	if t.long != "" && (c.Max == 0 || c.Max > t.shortMax) {
		form = t.long
	}
	return strings.NewReplacer(
		"{max}", strconv.Itoa(c.Max),
		"{bytes}", strconv.Itoa(utf8Bytes(c.Max)),
		"{precision}", strconv.Itoa(c.Precision),
		"{scale}", strconv.Itoa(c.Scale),
	).Replace(form)
}

// RowHash is the expression of [RowColumn] over those of a row's two keys, "" for
// an engine that has no such column.
func (d *Dialect) RowHash(key, child string) string {
	return strings.NewReplacer("{key}", key, "{child}", child).Replace(d.rowHash)
}

// hashed tells whether the rows of a table are found by the hash of their keys.
func (d *Dialect) hashed(t *Table) bool { return d.rowHash != "" && t.Parent != nil }

// utf8Bytes is the most bytes that a text of so many UTF-16 units takes: three
// for a unit, and four for two.
func utf8Bytes(units int) int { return 3 * units }

// sorted tells whether the column is ordered by a hidden column beside it.
func (d *Dialect) sorted(c *Column) bool {
	return d.sortKey[0] != "" && c.Kind == Decimal && c.Index
}

// sortType is the type of that hidden column.
func (d *Dialect) sortType(c *Column) string {
	if c.Precision <= narrowPrecision {
		return d.sortKey[0]
	}
	return d.sortKey[1]
}

// orderBy is the name of the column by which c is ordered, filtered and
// indexed.
func (d *Dialect) orderBy(c *Column) string {
	if d.sorted(c) {
		return sortPrefix + c.Name
	}
	return c.Name
}

// compared is a placeholder in the type of what it is compared with: column c,
// or the key if c is nil.
func (d *Dialect) compared(c *Column, mark string) string {
	if d.cast == nil {
		return mark
	}
	return d.cast(c, mark)
}

func questionMark(int) string { return "?" }

func limitBehind(query string, n int) string { return query + " LIMIT " + strconv.Itoa(n) }

func createOrReplaceView(d *Dialect, public, query string) []string {
	return []string{"CREATE OR REPLACE VIEW " + d.Quote(public) + " AS\n" + query}
}
