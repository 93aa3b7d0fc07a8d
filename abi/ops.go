package abi

import "math"

// OpWriter builds the ops of one entry on the guest's side. It keeps its buffer
// between entries, so it does not allocate once it is warm. The zero value is
// ready.
//
//	w.Reset()
//	w.Begin(abi.OpPatch, 0, shape, "", "")
//	w.Int(2, 41)
//	w.Text(0, "open")
//	done(index, abi.StatusOK, w.Bytes())
type OpWriter struct {
	buf     []byte
	count   uint32
	columns int // offset of the open op's number of columns; 0: it takes none
}

// Reset forgets all ops and keeps the buffer.
func (w *OpWriter) Reset() {
	w.buf = append(w.buf[:0], 0, 0, 0, 0)
	w.count, w.columns = 0, 0
}

// Len is the number of ops written since Reset.
func (w *OpWriter) Len() int { return int(w.count) }

// Bytes is what `done` carries. It is valid until the next call of a method.
func (w *OpWriter) Bytes() []byte {
	if len(w.buf) == 0 {
		w.Reset()
	}
	le.PutUint32(w.buf, w.count)
	return w.buf
}

func (w *OpWriter) open(code OpCode) {
	if len(w.buf) == 0 {
		w.Reset()
	}
	w.buf = append(w.buf, byte(code))
	w.count++
	w.columns = 0
}

// Begin starts an op on a table: upsert, insert, patch, add, delete or
// delete_children. Key is written for free tables only, child for child tables
// only. For the first four, calls of the column methods follow.
func (w *OpWriter) Begin(code OpCode, table uint16, shape TableShape, key, child string) {
	w.open(code)
	w.buf = le.AppendUint16(w.buf, table)
	if shape.Free {
		w.buf = appendStr(w.buf, key)
	}
	if shape.Child && code != OpDeleteChildren {
		w.buf = appendStr(w.buf, child)
	}
	switch code {
	case OpUpsert, OpInsert, OpPatch, OpAdd:
		w.columns = len(w.buf)
		w.buf = append(w.buf, 0, 0)
	}
}

// column adds one column to the open op.
func (w *OpWriter) column(column uint16) {
	if w.columns == 0 {
		panic("abi: a column without an op that takes columns")
	}
	n := le.Uint16(w.buf[w.columns:])
	le.PutUint16(w.buf[w.columns:], n+1)
	w.buf = le.AppendUint16(w.buf, column)
}

// Value sets a column. The other column methods do the same without a Value.
func (w *OpWriter) Value(column uint16, v Value) {
	w.column(column)
	w.buf = AppendValue(w.buf, v)
}

// Null sets a column to null.
func (w *OpWriter) Null(column uint16) {
	w.column(column)
	w.buf = append(w.buf, byte(TagNull))
}

// Bool sets a column to a truth value.
func (w *OpWriter) Bool(column uint16, b bool) { w.Value(column, Bool(b)) }

func (w *OpWriter) fixed64(column uint16, tag Tag, bits uint64) {
	w.column(column)
	w.buf = le.AppendUint64(append(w.buf, byte(tag)), bits)
}

// Int sets a column to an integer.
func (w *OpWriter) Int(column uint16, i int64) { w.fixed64(column, TagInt, uint64(i)) }

// Float sets a column to a float.
func (w *OpWriter) Float(column uint16, f float64) {
	w.fixed64(column, TagFloat, math.Float64bits(f))
}

// Timestamp sets a column to a time in microseconds since 1970, UTC.
func (w *OpWriter) Timestamp(column uint16, us int64) { w.fixed64(column, TagTimestamp, uint64(us)) }

// Time sets a column to a time of day in microseconds since midnight.
func (w *OpWriter) Time(column uint16, us int64) { w.fixed64(column, TagTime, uint64(us)) }

// Date sets a column to a day, in days since 1970-01-01.
func (w *OpWriter) Date(column uint16, days int32) {
	w.column(column)
	w.buf = le.AppendUint32(append(w.buf, byte(TagDate)), uint32(days))
}

// UUID sets a column to a UUID.
func (w *OpWriter) UUID(column uint16, id [16]byte) {
	w.column(column)
	w.buf = append(append(w.buf, byte(TagUUID)), id[:]...)
}

// Text sets a column to a text.
func (w *OpWriter) Text(column uint16, s string) {
	w.column(column)
	w.buf = appendStr(append(w.buf, byte(TagText)), s)
}

// Decimal sets a column to a decimal number given as text.
func (w *OpWriter) Decimal(column uint16, s string) {
	w.column(column)
	w.buf = appendStr(append(w.buf, byte(TagDecimal)), s)
}

// Blob sets a column to a byte string.
func (w *OpWriter) Blob(column uint16, b []byte) {
	w.column(column)
	w.buf = appendStr(append(w.buf, byte(TagBytes)), b)
}

// JSON sets a column to a JSON text.
func (w *OpWriter) JSON(column uint16, b []byte) {
	w.column(column)
	w.buf = appendStr(append(w.buf, byte(TagJSON)), b)
}

// Send adds an outbox message.
func (w *OpWriter) Send(destination, key string, headers, payload []byte) {
	w.open(OpSend)
	w.buf = appendStr(w.buf, destination)
	w.buf = appendStr(w.buf, key)
	w.buf = appendStr(w.buf, headers)
	w.buf = appendStr(w.buf, payload)
}

// Deadline sets the saga's deadline of that name.
func (w *OpWriter) Deadline(name string, dueUS int64, payload []byte) {
	w.open(OpDeadline)
	w.buf = appendStr(w.buf, name)
	w.buf = le.AppendUint64(w.buf, uint64(dueUS))
	w.buf = appendStr(w.buf, payload)
}

// Cancel removes the saga's deadline of that name.
func (w *OpWriter) Cancel(name string) {
	w.open(OpCancel)
	w.buf = appendStr(w.buf, name)
}

// Complete ends the saga.
func (w *OpWriter) Complete() { w.open(OpComplete) }

// OpReader reads ops on the host's side.
type OpReader struct {
	c     cursor
	shape func(table uint16) (TableShape, bool)
	count int
	next  int
}

// ReadOps starts reading what `done` carried. Shape answers for the tables of
// the consumer and false for an index that is not declared. No bytes at all are
// an empty list.
func ReadOps(b []byte, shape func(table uint16) (TableShape, bool)) OpReader {
	r := OpReader{c: cursor{b: b}, shape: shape}
	if len(b) == 0 {
		return r
	}
	count := r.c.u32()
	if uint64(count) > uint64(r.c.left()) {
		r.c.fail(0, "more ops are announced than fit")
		return r
	}
	r.count = int(count)
	return r
}

// Len is the number of ops announced, 0 if the bytes are malformed from the
// start.
func (r *OpReader) Len() int { return r.count }

// Next reads the next op into op, reusing op.Columns, and tells whether there
// was one. Everything that can be told without the declared columns is checked:
// an error means that the entry has failed with [CodeMalformed].
func (r *OpReader) Next(op *Op) (bool, error) {
	c := &r.c
	if r.next == r.count {
		if c.reason == "" {
			c.end()
		}
		return false, c.err("ops")
	}
	r.next++
	at := c.off
	*op = Op{Code: OpCode(c.u8()), Columns: op.Columns[:0]}
	switch op.Code {
	case OpUpsert, OpInsert, OpPatch, OpAdd, OpDelete, OpDeleteChildren:
		r.table(op)
	case OpSend:
		op.Name = c.key("the destination of a send")
		op.Key = c.key("the key of a send")
		op.Headers = c.text("the headers of a send")
		op.Payload = c.bytes()
	case OpDeadline:
		op.Name = c.key("the name of a deadline")
		op.DueUS = int64(c.u64())
		op.Payload = c.bytes()
	case OpCancel:
		op.Name = c.key("the name of a deadline")
	case OpComplete:
	default:
		c.fail(at, "unknown op")
	}
	if c.reason != "" {
		return false, c.err("ops")
	}
	return true, nil
}

// table reads the rest of an op on a table.
func (r *OpReader) table(op *Op) {
	c := &r.c
	at := c.off
	op.Table = c.u16()
	shape, ok := r.shape(op.Table)
	if !ok {
		c.fail(at, "the table is not declared")
		return
	}
	if shape.Free {
		op.Key = c.key("the key of a row")
	}
	switch {
	case op.Code == OpDeleteChildren:
		if !shape.Child {
			c.fail(at, "delete_children of a table that is no child table")
		}
		return
	case shape.Child:
		op.Child = c.key("the child key of a row")
	}
	if op.Code != OpDelete {
		r.columns(op)
	}
}

func (r *OpReader) columns(op *Op) {
	c := &r.c
	var seen [MaxColumns / 64]uint64
	n := int(c.u16())
	for i := 0; i < n && c.reason == ""; i++ {
		at := c.off
		op.Columns = append(op.Columns, ColumnValue{})
		cv := &op.Columns[len(op.Columns)-1]
		cv.Column = c.u16()
		c.checkedValue(&cv.Value)
		if cv.Column >= MaxColumns {
			c.fail(at, "the column is not declared")
			return
		}
		bit := uint64(1) << (cv.Column % 64)
		if seen[cv.Column/64]&bit != 0 {
			c.fail(at, "a column is named twice")
			return
		}
		seen[cv.Column/64] |= bit
		if op.Code == OpAdd && cv.Value.Tag != TagInt && cv.Value.Tag != TagDecimal {
			c.fail(at, "add takes integers and decimals only")
			return
		}
	}
}
