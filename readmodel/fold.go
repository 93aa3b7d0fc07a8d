package readmodel

import (
	"encoding/binary"
	"math"

	"github.com/projhost/projhost/abi"
)

// Ops fold onto whole rows here, and only whole rows are written: the database
// never computes. So a row in the batch equals the row read back later, and how
// messages are cut into batches does not show (P7).

// places tells, for each column, 1 + the place of its value in an op.
type places [ColumnsMax]uint8

// noValue is the reason of a row that lacks a value it needs.
const noValue = "a value is needed: the op gives none and the column has no default"

// locate checks which columns an op names and returns an upper bound of the
// size of their canonical values. With add, values are increments.
func (t *Table) locate(at *places, cols []abi.ColumnValue, add bool) (size int, err error) {
	for i := range cols {
		n := int(cols[i].Column)
		if n >= len(t.Columns) || i >= ColumnsMax {
			return 0, &ValueError{Table: t.Name, Reason: "the op names a column that the table does not have"}
		}
		c := &t.Columns[n]
		switch {
		case at[n] != 0:
			return 0, t.refuse(c, "the op names the column twice")
		case c.source >= 0:
			return 0, t.refuse(c, "copied from column "+c.Of+" by the host: an op cannot set it")
		case add && c.Kind != Int && c.Kind != Decimal && c.Kind != Float:
			return 0, t.refuse(c, "add is for int, decimal and float columns")
		}
		at[n] = uint8(i + 1)
		if c.Kind == Decimal {
			size += 5 + c.Precision + len("-0.")
		} else {
			size += 17 + len(cols[i].Value.B)
		}
	}
	return size, nil
}

func (t *Table) refuse(c *Column, reason string) error {
	return &ValueError{Table: t.Name, Column: c.Name, Reason: reason}
}

// Upsert makes the row that the op describes alone: columns it does not name
// get their default, null, or what "from" copies.
func (t *Table) Upsert(cols []abi.ColumnValue) (Row, error) {
	var at places
	size, err := t.locate(&at, cols, false)
	if err != nil {
		return nil, err
	}
	return t.build(&at, cols, size)
}

func (t *Table) build(at *places, cols []abi.ColumnValue, size int) (Row, error) {
	for i := range t.Columns {
		if c := &t.Columns[i]; c.source < 0 && at[i] == 0 {
			size += len(c.absent)
		} else if c.source >= 0 {
			size += t.followBound(c, at, cols)
		}
	}
	dst := make([]byte, 2, 2+size)
	binary.LittleEndian.PutUint16(dst, uint16(len(t.Columns)))
	for i := range t.Columns {
		c := &t.Columns[i]
		var reason string
		switch {
		case at[i] != 0:
			dst, reason = c.appendCanonical(dst, &cols[at[i]-1].Value)
		case c.source >= 0:
			dst, reason = t.follow(dst, c, at, cols)
		case c.absent == nil:
			reason = noValue
		default:
			dst = append(dst, c.absent...)
		}
		if reason != "" {
			return nil, t.refuse(c, reason)
		}
	}
	return dst, nil
}

// document is the JSON that column c copies from in a row made of cols and
// defaults, nil for none.
func (t *Table) document(c *Column, at *places, cols []abi.ColumnValue) []byte {
	if p := at[c.source]; p != 0 {
		return cols[p-1].Value.B
	}
	if d := t.Columns[c.source].Default; d != nil {
		return d.B
	}
	return nil
}

// followBound is an upper bound of the size of what column c copies. It is
// generous for decimals and long texts, which rarely are copied.
func (t *Table) followBound(c *Column, at *places, cols []abi.ColumnValue) int {
	if c.Kind == Decimal {
		return 5 + c.Precision + len("-0.")
	}
	bound := 64
	if c.Max > 0 {
		bound = 5 + c.Max
	}
	return max(17, min(bound, 5+len(t.document(c, at, cols))))
}

// follow appends what column c copies out of the row's new JSON document.
func (t *Table) follow(dst []byte, c *Column, at *places, cols []abi.ColumnValue) ([]byte, string) {
	doc := t.document(c, at, cols)
	if c.ahead && doc != nil && !validJSON(doc) {
		return dst, "column " + c.Of + " is not valid JSON"
	}
	var raw []byte
	if len(doc) > 0 {
		raw = c.pointer.find(doc)
	}
	if raw == nil {
		return c.appendCanonical(dst, &abi.Value{})
	}
	return c.appendJSONValue(dst, raw)
}

// Patch changes only the named columns of old. An absent row (nil) is created
// from defaults.
func (t *Table) Patch(old Row, cols []abi.ColumnValue) (Row, error) {
	var at places
	size, err := t.locate(&at, cols, false)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return t.build(&at, cols, size)
	}
	for i := range cols {
		if t.Columns[cols[i].Column].followed {
			size += t.followedSize(&at, cols)
			break
		}
	}
	return t.change(old, &at, cols, size, false)
}

func (t *Table) followedSize(at *places, cols []abi.ColumnValue) int {
	n := 0
	for i := range t.Columns {
		if c := &t.Columns[i]; c.source >= 0 && at[c.source] != 0 {
			n += t.followBound(c, at, cols)
		}
	}
	return n
}

// change copies old, with new values for the columns that at names and for
// those that follow one of them. Unchanged neighbours are copied together.
func (t *Table) change(old Row, at *places, cols []abi.ColumnValue, size int, add bool) (Row, error) {
	off, ok := t.start(old)
	if !ok {
		return nil, t.errNotRow()
	}
	dst := make([]byte, 0, t.kept(old, at)+size)
	from := 0 // old[from:off] is still to be copied
	for i := range t.Columns {
		n := valueSize(old[off:])
		if n == 0 {
			return nil, t.errNotRow()
		}
		c := &t.Columns[i]
		var reason string
		switch {
		case at[i] != 0:
			dst = append(dst, old[from:off]...)
			from = off + n
			if v := &cols[at[i]-1].Value; add {
				dst, reason = c.appendSum(dst, old[off:off+n], v)
			} else {
				dst, reason = c.appendCanonical(dst, v)
			}
		case c.source >= 0 && at[c.source] != 0:
			dst = append(dst, old[from:off]...)
			from = off + n
			dst, reason = t.follow(dst, c, at, cols)
		}
		if reason != "" {
			return nil, t.refuse(c, reason)
		}
		off += n
	}
	if off != len(old) {
		return nil, t.errNotRow()
	}
	return append(dst, old[from:]...), nil
}

// kept is the size of what a change leaves of a row.
func (t *Table) kept(old Row, at *places) int {
	kept, off := len(old), 2
	for i := range t.Columns {
		n := valueSize(old[off:])
		if at[i] != 0 {
			kept -= n
		}
		off += n
	}
	return kept
}

// Add increments the named columns of old. Null counts as zero. An absent row
// (nil) is created from defaults first, so an increment adds to a default.
func (t *Table) Add(old Row, cols []abi.ColumnValue) (Row, error) {
	var at places
	size, err := t.locate(&at, cols, true)
	if err != nil {
		return nil, err
	}
	if old == nil {
		if old, err = t.addBase(&at); err != nil {
			return nil, err
		}
	}
	return t.change(old, &at, cols, size, true)
}

// addBase is the row of defaults that an add starts from. A column it names
// needs no default: it starts as null, which counts as zero.
func (t *Table) addBase(at *places) (Row, error) {
	if t.empty != nil {
		return t.empty, nil
	}
	dst := []byte{byte(len(t.Columns)), byte(len(t.Columns) >> 8)}
	var none places
	for i := range t.Columns {
		c := &t.Columns[i]
		var reason string
		switch {
		case c.source >= 0:
			dst, reason = t.follow(dst, c, &none, nil)
		case c.absent != nil:
			dst = append(dst, c.absent...)
		case at[i] != 0:
			dst = append(dst, byte(abi.TagNull))
		default:
			reason = noValue
		}
		if reason != "" {
			return nil, t.refuse(c, reason)
		}
	}
	return dst, nil
}

// appendSum appends old + v.
func (c *Column) appendSum(dst []byte, old []byte, v *abi.Value) ([]byte, string) {
	null := old[0] == byte(abi.TagNull)
	switch c.Kind {
	case Int:
		if v.Tag != abi.TagInt {
			break
		}
		var base int64
		if !null {
			base = int64(binary.LittleEndian.Uint64(old[1:]))
		}
		sum := base + v.I
		if (base^sum)&(v.I^sum) < 0 {
			return dst, "the sum is beyond the range of int"
		}
		return appendInt64(dst, abi.TagInt, sum), ""
	case Decimal:
		return c.appendDecimalSum(dst, old, v)
	case Float:
		var base float64
		if !null {
			base = math.Float64frombits(binary.LittleEndian.Uint64(old[1:]))
		}
		switch {
		case v.Tag == abi.TagFloat:
			return appendFloat(dst, base+v.F)
		case v.Tag == abi.TagInt && v.I <= exactFloat && v.I >= -exactFloat:
			return appendFloat(dst, base+float64(v.I))
		}
	}
	return dst, "add needs " + kinds[c.Kind].accepts + ", got " + tagName(v.Tag)
}

func (c *Column) appendDecimalSum(dst []byte, old []byte, v *abi.Value) ([]byte, string) {
	if v.Tag == abi.TagNull {
		return dst, "add needs decimal, int, got null"
	}
	// The increment in canonical form: the same checks, the same scale.
	var buf [64]byte
	inc, reason := c.appendCanonical(buf[:0], v)
	if reason != "" {
		return dst, reason
	}
	if old[0] == byte(abi.TagNull) {
		return append(dst, inc...), ""
	}
	a, _ := parseNumeral(old[5:])
	b, _ := parseNumeral(inc[5:])
	return c.appendFixed(dst, parseFixed(a, c.Scale).add(parseFixed(b, c.Scale)))
}

// Fold applies one op to the row it names; nil is an absent row. Whether an
// insert finds a row is the caller's to check, as is what deletes children.
func (t *Table) Fold(old Row, op *abi.Op) (Row, error) {
	switch op.Code {
	case abi.OpUpsert, abi.OpInsert:
		return t.Upsert(op.Columns)
	case abi.OpPatch:
		return t.Patch(old, op.Columns)
	case abi.OpAdd:
		return t.Add(old, op.Columns)
	case abi.OpDelete:
		return nil, nil
	}
	return nil, &ValueError{Table: t.Name, Reason: "not an op on a row"}
}
