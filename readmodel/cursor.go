package readmodel

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"

	"github.com/projhost/projhost/abi"
)

// A cursor names the last row of a page, in base64 of:
//
//	u8 version, i64 build, u32 hash of table and order, u8 direction,
//	the order column's value (if not by key), str key, str child (child tables)
//
// It is a place in an order, nothing more: a made-up one gives some other page
// of the same query. It is opaque to clients and may change with the version.
const cursorVersion = 1

// cursorMax is longer than any cursor that this package makes.
const cursorMax = 8 << 10

// orderHash tells the orders of all tables apart.
func (q *CompiledQuery) orderHash() uint32 {
	h := fnv.New32a()
	h.Write([]byte(q.table.Name))
	h.Write([]byte{0})
	switch {
	case q.order >= 0:
		c := &q.table.Columns[q.order]
		h.Write([]byte(c.Name))
		h.Write([]byte{byte(c.Kind), byte(c.Precision), byte(c.Scale)})
	case q.order == childField:
		h.Write([]byte(ChildColumn))
	}
	return h.Sum32()
}

func (q *CompiledQuery) direction() byte {
	if q.query.Desc {
		return 1
	}
	return 0
}

func (q *CompiledQuery) cursorAfter(row *StoredRow) (string, error) {
	b := append(make([]byte, 0, 64), cursorVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(q.query.Build))
	b = binary.LittleEndian.AppendUint32(b, q.orderHash())
	b = append(b, q.direction())
	if q.order >= 0 {
		encoded, ok := q.table.column(row.Row, q.order)
		if !ok {
			return "", q.table.errNotRow()
		}
		b = append(b, encoded...)
	}
	b = appendLong(b, abi.TagText, row.Key.Key)
	if q.table.Parent != nil {
		b = appendLong(b, abi.TagText, row.Child)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// column is the encoded value of one column of a row.
func (t *Table) column(row Row, column int) ([]byte, bool) {
	off, ok := t.start(row)
	if !ok {
		return nil, false
	}
	for range column {
		n := valueSize(row[off:])
		if n == 0 {
			return nil, false
		}
		off += n
	}
	n := valueSize(row[off:])
	return row[off : off+n], n > 0
}

// decodeCursor reads a cursor that anybody may have written.
func (q *CompiledQuery) decodeCursor(d *Dialect, text string) (*position, error) {
	malformed := &CursorError{Reason: "it is malformed: give the value of \"next\" as it was received"}
	if len(text) > cursorMax {
		return nil, malformed
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 14 || b[0] != cursorVersion {
		return nil, malformed
	}
	if binary.LittleEndian.Uint32(b[9:]) != q.orderHash() || b[13] != q.direction() {
		return nil, &CursorError{Reason: "it belongs to another table, order or direction: keep the query the same from page to page"}
	}
	if int64(binary.LittleEndian.Uint64(b[1:])) != q.query.Build {
		return nil, &CursorError{Expired: true, Reason: "the read model was rebuilt since: start again from the first page"}
	}
	b = b[14:]
	p := &position{}
	if q.order >= 0 {
		column := &q.table.Columns[q.order]
		encoded, rest, ok := column.canonicalPrefix(b)
		if !ok {
			return nil, malformed
		}
		p.values = append(p.values, d.orderArgument(column, encoded))
		b = rest
	}
	key, b, ok := cursorKey(b)
	child := ""
	if ok && q.table.Parent != nil {
		child, b, ok = cursorKey(b)
	}
	if !ok || len(b) > 0 || q.parent && key != q.query.Parent {
		return nil, malformed
	}
	if !q.parent {
		p.values = append(p.values, key)
	}
	if q.table.Parent != nil {
		p.values = append(p.values, child)
	}
	return p, nil
}

// canonicalPrefix cuts off the value of this column that b begins with.
func (c *Column) canonicalPrefix(b []byte) (encoded, rest []byte, ok bool) {
	v, n, ok := readValue(b)
	if !ok {
		return nil, nil, false
	}
	again, reason := c.appendCanonical(nil, &v)
	if reason != "" || !bytes.Equal(again, b[:n]) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

func cursorKey(b []byte) (key string, rest []byte, ok bool) {
	v, n, ok := readValue(b)
	if !ok || v.Tag != abi.TagText {
		return "", nil, false
	}
	key = string(v.B)
	return key, b[n:], CheckKey(key) == nil
}
