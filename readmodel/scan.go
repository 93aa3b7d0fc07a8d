package readmodel

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/projhost/projhost/abi"
)

// Scanner turns rows of a query of [Statements] or [CompiledQuery] back into
// rows in canonical form, the same bytes that were written (P10). It is made
// once and used for many rows; it is not safe for concurrent use.
//
//	sc := statements.NewScanner()
//	for rows.Next() {
//		if err := rows.Scan(sc.Dest()...); err != nil { … }
//		row, err := sc.Row()
//	}
type Scanner struct {
	table *Table
	cells []cell
	dest  []any
	buf   []byte // the row being made
	out   StoredRow
	err   error
}

// cell is the destination of one column. It is a sql.Scanner, so database/sql
// hands it what the driver read, without reflection and without a copy.
type cell struct {
	s      *Scanner
	column int // of the table; below zero the place in a row beside them
}

// Places of what is not a declared column.
const (
	cellKey = -1 - iota
	cellChild
	cellPosition
	cellUpdated
)

// NewScanner makes a scanner for rows of this table.
func (s *Statements) NewScanner() *Scanner { return s.Table.newScanner() }

func (t *Table) newScanner() *Scanner {
	s := &Scanner{table: t}
	add := func(column int) { s.cells = append(s.cells, cell{s, column}) }
	add(cellKey)
	if t.Parent != nil {
		add(cellChild)
	}
	for i := range t.Columns {
		add(i)
	}
	add(cellPosition)
	add(cellUpdated)
	for i := range s.cells {
		s.dest = append(s.dest, &s.cells[i])
	}
	return s
}

// Dest is what to scan a row into: one sql.Scanner for each column of the
// query. They must be given values in the order of the columns.
func (s *Scanner) Dest() []any { return s.dest }

// Columns is the number of columns of a row.
func (s *Scanner) Columns() int { return len(s.cells) }

// Set gives column i of a row, in order, what a driver read: the way of those
// who do not scan by database/sql.
func (s *Scanner) Set(i int, src any) { s.cells[i].set(src) }

// Row returns the row that was just scanned. Only Row.Row and the keys are
// allocated. A *RowError tells what in it is not as declared.
func (s *Scanner) Row() (StoredRow, error) {
	out, err := s.out, s.err
	s.out, s.err = StoredRow{}, nil
	if err != nil {
		if re, ok := err.(*RowError); ok {
			re.Key = out.Key
		}
		return StoredRow{}, err
	}
	out.Row = append(make(Row, 0, len(s.buf)), s.buf...)
	return out, nil
}

// Scan implements sql.Scanner.
func (c *cell) Scan(src any) error {
	c.set(src)
	return nil
}

func (c *cell) set(src any) {
	s := c.s
	switch c.column {
	case cellKey:
		s.buf = append(s.buf[:0], byte(len(s.table.Columns)), byte(len(s.table.Columns)>>8))
		s.out.Key.Key = c.text(src)
	case cellChild:
		s.out.Key.Child = c.text(src)
	case cellPosition:
		s.out.Position = c.integer(src)
	case cellUpdated:
		s.out.UpdatedUS = c.integer(src)
	default:
		column := &s.table.Columns[c.column]
		var reason string
		if s.buf, reason = column.appendStored(s.buf, src); reason != "" {
			c.fail(column.Name, reason)
		}
	}
}

func (c *cell) fail(column, reason string) {
	if c.s.err == nil {
		c.s.err = &RowError{Table: c.s.table.Name, Column: column, Reason: reason}
	}
}

func (c *cell) text(src any) string {
	switch v := src.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	c.fail(KeyColumn, "the key is not text")
	return ""
}

func (c *cell) integer(src any) int64 {
	switch v := src.(type) {
	case int64:
		return v
	case nil:
		return 0 // not written by the host
	}
	c.fail("", "a system column is not an integer")
	return 0
}

// appendStored appends the canonical value of what a driver read.
func (c *Column) appendStored(dst []byte, src any) ([]byte, string) {
	switch v := src.(type) {
	case nil:
		return c.appendCanonical(dst, &abi.Value{})
	case string:
		return appendStoredText(c, dst, v)
	case []byte:
		if c.Kind == Bytes {
			return appendBytes(dst, abi.TagBytes, v), ""
		}
		return appendStoredText(c, dst, v)
	case int64:
		switch c.Kind {
		case Int:
			return appendInt64(dst, abi.TagInt, v), ""
		case Bool:
			if v == 0 || v == 1 {
				return append(dst, byte(abi.TagFalse)+byte(v)), ""
			}
		case Float:
			return appendIntAsFloat(dst, v)
		case Decimal:
			return c.appendCanonical(dst, &abi.Value{Tag: abi.TagInt, I: v})
		}
	case float64:
		if c.Kind == Float {
			return appendFloat(dst, v)
		}
	case bool:
		if c.Kind == Bool {
			if v {
				return append(dst, byte(abi.TagTrue)), ""
			}
			return append(dst, byte(abi.TagFalse)), ""
		}
	case time.Time:
		return c.appendStoredTime(dst, v)
	}
	return dst, fmt.Sprintf("holds %T, which is no %s", src, c.Kind)
}

// appendStoredText reads the form in which a dialect stores a kind as text.
func appendStoredText[T ~string | ~[]byte](c *Column, dst []byte, v T) ([]byte, string) {
	switch c.Kind {
	case Text:
		return appendLong(dst, abi.TagText, v), ""
	case JSON:
		return appendLong(dst, abi.TagJSON, v), ""
	case Bytes:
		return appendLong(dst, abi.TagBytes, v), ""
	case Date:
		if d, ok := parseDate(v); ok {
			return appendDateValue(dst, d)
		}
	case Time:
		if us, n, ok := parseTime(v); ok && n == len(v) {
			return appendTimeValue(dst, us)
		}
	case Timestamp:
		if us, ok := parseTimestamp(v); ok {
			return appendTimestampValue(dst, us)
		}
	case UUID:
		if u, ok := parseUUID(v); ok {
			return append(append(dst, byte(abi.TagUUID)), u[:]...), ""
		}
	case Int:
		if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return appendInt64(dst, abi.TagInt, i), ""
		}
	case Float:
		if f, err := strconv.ParseFloat(string(v), 64); err == nil {
			return appendFloat(dst, f)
		}
	case Decimal:
		var buf [64]byte
		return c.appendDecimal(dst, append(buf[:0], v...))
	}
	return dst, "holds text that is no " + c.Kind.String()
}

func appendLong[T ~string | ~[]byte](dst []byte, tag abi.Tag, v T) []byte {
	dst = append(dst, byte(tag))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v)))
	return append(dst, v...)
}

func (c *Column) appendStoredTime(dst []byte, v time.Time) ([]byte, string) {
	v = v.UTC()
	us := v.UnixMicro()
	switch c.Kind {
	case Date:
		return appendDateValue(dst, floorDiv(us, microsPerDay))
	case Time:
		return appendTimeValue(dst, us-floorDiv(us, microsPerDay)*microsPerDay)
	case Timestamp:
		return appendTimestampValue(dst, us)
	}
	return dst, "holds a time, which is no " + c.Kind.String()
}
