package abi

import "math"

// Constructors of values. What a Value holds as bytes is a view of the
// argument.

// Null is the value of a column without one.
func Null() Value { return Value{} }

// Bool makes a truth value.
func Bool(b bool) Value {
	if b {
		return Value{Tag: TagTrue}
	}
	return Value{Tag: TagFalse}
}

// Int makes a 64-bit integer.
func Int(i int64) Value { return Value{Tag: TagInt, I: i} }

// Float makes a 64-bit float; hosts refuse NaN and infinities.
func Float(f float64) Value { return Value{Tag: TagFloat, F: f} }

// Text makes a text, which must be UTF-8 without U+0000.
func Text(s string) Value { return Value{Tag: TagText, B: viewBytes(s)} }

// Bytes makes a byte string.
func Bytes(b []byte) Value { return Value{Tag: TagBytes, B: b} }

// Decimal makes a decimal number from its text, such as "-12.50".
func Decimal(s string) Value { return Value{Tag: TagDecimal, B: viewBytes(s)} }

// Timestamp makes a time from microseconds since 1970, UTC.
func Timestamp(us int64) Value { return Value{Tag: TagTimestamp, I: us} }

// Date makes a day from days since 1970-01-01.
func Date(days int32) Value { return Value{Tag: TagDate, I: int64(days)} }

// Time makes a time of day from microseconds since midnight.
func Time(us int64) Value { return Value{Tag: TagTime, I: us} }

// UUID makes a UUID from its 16 bytes.
func UUID(b []byte) Value { return Value{Tag: TagUUID, B: b} }

// JSON makes a JSON text, which is kept byte for byte.
func JSON(b []byte) Value { return Value{Tag: TagJSON, B: b} }

// IsNull tells whether there is no value.
func (v Value) IsNull() bool { return v.Tag == TagNull }

// Bool is the truth value of a TagTrue or TagFalse.
func (v Value) Bool() bool { return v.Tag == TagTrue }

// AppendValue appends a tagged value. It panics on a tag ABI v1 does not have
// and on a UUID that is not 16 bytes long: both are mistakes of a program.
func AppendValue(dst []byte, v Value) []byte {
	switch v.Tag {
	case TagNull, TagFalse, TagTrue:
		return append(dst, byte(v.Tag))
	case TagInt, TagTimestamp, TagTime:
		return le.AppendUint64(append(dst, byte(v.Tag)), uint64(v.I))
	case TagFloat:
		return le.AppendUint64(append(dst, byte(v.Tag)), math.Float64bits(v.F))
	case TagDate:
		return le.AppendUint32(append(dst, byte(v.Tag)), uint32(int32(v.I)))
	case TagText, TagBytes, TagDecimal, TagJSON:
		return appendStr(append(dst, byte(v.Tag)), v.B)
	case TagUUID:
		if len(v.B) != 16 {
			panic("abi: a UUID is 16 bytes")
		}
		return append(append(dst, byte(v.Tag)), v.B...)
	}
	panic("abi: a value has a tag that ABI v1 does not know")
}

// ReadValue reads one tagged value from the start of b and returns what
// follows it. NaN and infinities are malformed. Whether text is UTF-8 is not
// looked at (see [ValidText]): values of ops are checked by [OpReader], those of
// rows were when they were written.
func ReadValue(b []byte) (v Value, rest []byte, err error) {
	c := cursor{b: b}
	c.value(&v)
	if err := c.err("value"); err != nil {
		return Value{}, nil, err
	}
	return v, b[c.off:], nil
}

// value reads in one piece, without the other methods of the cursor: in a guest
// calls are what costs.
func (c *cursor) value(v *Value) {
	at := c.off
	b := c.b[at:]
	v.Tag, v.I, v.F, v.B = TagNull, 0, 0, nil
	if len(b) == 0 || c.reason != "" {
		c.fail(at, truncated)
		return
	}
	v.Tag = Tag(b[0])
	b = b[1:]
	size := 0
	switch v.Tag {
	case TagNull, TagFalse, TagTrue:
	case TagInt, TagTimestamp, TagTime, TagFloat:
		size = 8
	case TagDate:
		size = 4
	case TagUUID:
		size = 16
	case TagText, TagBytes, TagDecimal, TagJSON:
		if len(b) < 4 {
			c.fail(at+1, truncated)
			return
		}
		n := le.Uint32(b)
		// Compared as uint64: int has 32 bits on some guests.
		if uint64(n) > uint64(len(b)-4) {
			c.fail(at+1, tooLong)
			return
		}
		size = int(n) + 4
		v.B = b[4:size:size]
	default:
		c.fail(at, "unknown tag of a value")
		return
	}
	if len(b) < size {
		c.fail(at+1, truncated)
		return
	}
	c.off = at + 1 + size
	switch v.Tag {
	case TagInt, TagTimestamp, TagTime:
		v.I = int64(le.Uint64(b))
	case TagDate:
		v.I = int64(int32(le.Uint32(b)))
	case TagUUID:
		v.B = b[:16:16]
	case TagFloat:
		v.F = math.Float64frombits(le.Uint64(b))
		if math.IsNaN(v.F) || math.IsInf(v.F, 0) {
			c.fail(at, "a float is NaN or infinite")
		}
	}
}

// checkedValue is value for bytes nobody has looked at yet.
func (c *cursor) checkedValue(v *Value) {
	at := c.off
	c.value(v)
	switch v.Tag {
	case TagText, TagDecimal, TagJSON:
		if !ValidText(v.B) {
			c.fail(at, "text is not UTF-8, or holds U+0000")
		}
	}
}
