package readmodel

import (
	"fmt"
	"strings"
)

// ValueError is a value that its column cannot hold, or an op that does not
// fit its table: a bad op, which fails in the same way every time. It never
// carries the value itself.
type ValueError struct {
	Table  string
	Column string // "": the op as a whole
	Reason string
}

func (e *ValueError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("table %q: %s", e.Table, e.Reason)
	}
	return fmt.Sprintf("table %q, column %q: %s", e.Table, e.Column, e.Reason)
}

// RowError is a stored row that does not decode as its table declares. Only
// somebody else's writing makes one: the host never stores such a row.
type RowError struct {
	Table  string
	Column string // "": the row as a whole
	Key    Key
	Reason string
}

func (e *RowError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %q, row %q", e.Table, cut(e.Key.Key))
	if e.Key.Child != "" {
		fmt.Fprintf(&b, "/%q", cut(e.Key.Child))
	}
	if e.Column != "" {
		fmt.Fprintf(&b, ", column %q", e.Column)
	}
	fmt.Fprintf(&b, ": %s; rows of this table are written by projhost alone: correct or delete the row while the consumer is paused", e.Reason)
	return b.String()
}

// UnknownFieldError is a field that a query may not filter or order by.
type UnknownFieldError struct {
	Table   string
	Field   string
	Allowed []string
}

func (e *UnknownFieldError) Error() string {
	return fmt.Sprintf("table %q cannot be filtered or ordered by %q: only by %s (declare \"index\": true for more)",
		e.Table, cut(e.Field), strings.Join(e.Allowed, ", "))
}

// CursorError is a cursor that does not continue the query it came with.
// Expired tells a cursor of another build (start again from the first page)
// from one that is malformed or belongs to another query.
type CursorError struct {
	Expired bool
	Reason  string
}

func (e *CursorError) Error() string { return "cursor: " + e.Reason }

// cut shortens a text for an error message.
func cut(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && s[end]&0xC0 == 0x80 {
		end--
	}
	return s[:end] + "…"
}
