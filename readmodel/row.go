package readmodel

import (
	"encoding/binary"
	"math"

	"github.com/projhost/projhost/abi"
)

// Row is a whole row in its canonical form: the encoding of ABI v1 (u16 n, then
// n values in column order), exactly what a guest's `get` returns. Rows are
// immutable once made: a fold makes a new one. nil means an absent row.
type Row []byte

// Key names a row of one table. Child is used by child tables only. For a row
// of a free table Key is the key given with the op.
type Key struct {
	Key   string
	Child string
}

// Less orders keys by code point, as every engine does.
func (k Key) Less(o Key) bool {
	return k.Key < o.Key || k.Key == o.Key && k.Child < o.Child
}

// Write is the outcome of a batch for one row: absolute values, never an
// increment. A nil Row deletes it (and, for a parent table, its children).
type Write struct {
	Key
	Row       Row
	Position  int64     // of the last message that changed the row
	UpdatedUS int64     // recorded time of that message, microseconds UTC
	Exists    Existence // what the writer knows of the row in the database
	// Before is the row in the database, nil if there is none or the writer does
	// not know. Like Exists it may only choose between statements that are all
	// right.
	Before Row
}

// Existence is what the lane knows of a row before its write. Drivers may use
// it to choose a statement; it is never needed for correctness.
type Existence uint8

// What may be known of a row.
const (
	Unknown Existence = iota
	Present
	Absent
)

// StoredRow is a row as the database holds it, with its system columns.
type StoredRow struct {
	Key
	Row       Row
	Position  int64
	UpdatedUS int64
}

// fixedSize is the encoded size of a value by its tag, 0 for one with a length.
var fixedSize = [...]uint8{
	abi.TagNull: 1, abi.TagFalse: 1, abi.TagTrue: 1,
	abi.TagInt: 9, abi.TagFloat: 9, abi.TagTimestamp: 9, abi.TagTime: 9,
	abi.TagDate: 5, abi.TagUUID: 17, abi.TagJSON: 0,
}

// valueSize is the size of the encoded value that b starts with, 0 if b is cut
// off or starts with no value.
func valueSize(b []byte) int {
	if len(b) == 0 || int(b[0]) >= len(fixedSize) {
		return 0
	}
	n := int(fixedSize[b[0]])
	if n == 0 {
		if len(b) < 5 {
			return 0
		}
		n = 5 + int(binary.LittleEndian.Uint32(b[1:]))
	}
	if n > len(b) {
		return 0
	}
	return n
}

// readValue decodes the value that b starts with. Its B is a view.
func readValue(b []byte) (v abi.Value, size int, ok bool) {
	size = valueSize(b)
	if size == 0 {
		return v, 0, false
	}
	v.Tag = abi.Tag(b[0])
	switch v.Tag {
	case abi.TagNull, abi.TagFalse, abi.TagTrue:
	case abi.TagInt, abi.TagTimestamp, abi.TagTime:
		v.I = int64(binary.LittleEndian.Uint64(b[1:]))
	case abi.TagFloat:
		v.F = math.Float64frombits(binary.LittleEndian.Uint64(b[1:]))
	case abi.TagDate:
		v.I = int64(int32(binary.LittleEndian.Uint32(b[1:])))
	case abi.TagUUID:
		v.B = b[1:17:17]
	default:
		v.B = b[5:size:size]
	}
	return v, size, true
}

func appendInt64(dst []byte, tag abi.Tag, i int64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, byte(tag)), uint64(i))
}

func appendBytes(dst []byte, tag abi.Tag, b []byte) []byte {
	dst = append(dst, byte(tag))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b)))
	return append(dst, b...)
}

// errNotRow is a row that was not made for the table.
func (t *Table) errNotRow() error {
	return &ValueError{Table: t.Name, Reason: "the row does not have the columns of the declaration"}
}

// start checks a row's header and returns where its values begin.
func (t *Table) start(row Row) (int, bool) {
	return 2, len(row) >= 2 && int(binary.LittleEndian.Uint16(row)) == len(t.Columns)
}

// Values appends the row's values in column order to dst[:0]. Their bytes are
// views of the row.
func (t *Table) Values(row Row, dst []abi.Value) ([]abi.Value, error) {
	dst = dst[:0]
	off, ok := t.start(row)
	if !ok {
		return dst, t.errNotRow()
	}
	for range t.Columns {
		v, n, ok := readValue(row[off:])
		if !ok {
			return dst, t.errNotRow()
		}
		dst = append(dst, v)
		off += n
	}
	if off != len(row) {
		return dst, t.errNotRow()
	}
	return dst, nil
}
