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

func (c *cursor) value(v *Value) {
	at := c.off
	*v = Value{Tag: Tag(c.u8())}
	switch v.Tag {
	case TagNull, TagFalse, TagTrue:
	case TagInt, TagTimestamp, TagTime:
		v.I = int64(c.u64())
	case TagFloat:
		v.F = math.Float64frombits(c.u64())
		if math.IsNaN(v.F) || math.IsInf(v.F, 0) {
			c.fail(at, "a float is NaN or infinite")
		}
	case TagDate:
		v.I = int64(int32(c.u32()))
	case TagText, TagBytes, TagDecimal, TagJSON:
		v.B = c.bytes()
	case TagUUID:
		v.B = c.take(16)
	default:
		c.fail(at, "unknown tag of a value")
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
