package readmodel

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/projhost/projhost/abi"
)

// appendCanonical appends the one form in which the column holds v. Otherwise
// it returns why the column cannot hold it. Every engine gives this form back
// byte for byte (P10), and a value in this form stays as it is.
//
// A number of another type is taken where nothing is lost: an int for a
// decimal or a float. Nothing else is converted: a text is no decimal, and an
// int is no timestamp.
func (c *Column) appendCanonical(dst []byte, v *abi.Value) ([]byte, string) {
	if v.Tag == abi.TagNull {
		if !c.Nullable {
			return dst, "a value is needed (\"null\": false)"
		}
		return append(dst, byte(abi.TagNull)), ""
	}
	switch c.Kind {
	case Text:
		if v.Tag == abi.TagText {
			return c.appendText(dst, v.B)
		}
	case Int:
		if v.Tag == abi.TagInt {
			return appendInt64(dst, abi.TagInt, v.I), ""
		}
	case Decimal:
		switch v.Tag {
		case abi.TagDecimal:
			return c.appendDecimal(dst, v.B)
		case abi.TagInt:
			var buf [20]byte
			return c.appendDecimal(dst, strconv.AppendInt(buf[:0], v.I, 10))
		}
	case Float:
		switch v.Tag {
		case abi.TagFloat:
			return appendFloat(dst, v.F)
		case abi.TagInt:
			return appendIntAsFloat(dst, v.I)
		}
	case Bool:
		if v.Tag == abi.TagFalse || v.Tag == abi.TagTrue {
			return append(dst, byte(v.Tag)), ""
		}
	case Date:
		if v.Tag == abi.TagDate {
			return appendDateValue(dst, v.I)
		}
	case Time:
		if v.Tag == abi.TagTime {
			return appendTimeValue(dst, v.I)
		}
	case Timestamp:
		if v.Tag == abi.TagTimestamp {
			return appendTimestampValue(dst, v.I)
		}
	case UUID:
		if v.Tag == abi.TagUUID && len(v.B) == 16 {
			return append(append(dst, byte(abi.TagUUID)), v.B...), ""
		}
	case Bytes:
		if v.Tag == abi.TagBytes {
			return appendBytes(dst, abi.TagBytes, v.B), ""
		}
	case JSON:
		if v.Tag == abi.TagJSON {
			if !validJSON(v.B) {
				return dst, "not one valid JSON value in UTF-8, at most 512 levels deep"
			}
			return appendBytes(dst, abi.TagJSON, v.B), ""
		}
	}
	return dst, "needs " + kinds[c.Kind].accepts + ", got " + tagName(v.Tag)
}

func (c *Column) appendText(dst []byte, b []byte) ([]byte, string) {
	units := len(b)
	if !plainASCII(b) {
		if !utf8.Valid(b) {
			return dst, "text is not valid UTF-8"
		}
		units = 0
		for _, x := range b {
			switch {
			case x == 0:
				return dst, "text cannot contain the character U+0000"
			case x >= 0xF0:
				units += 2
			case x&0xC0 != 0x80:
				units++
			}
		}
	}
	if c.Max > 0 && units > c.Max {
		return dst, "text of " + strconv.Itoa(units) + " UTF-16 units is longer than " + c.describe() + " allows"
	}
	return appendBytes(dst, abi.TagText, b), ""
}

// plainASCII tells whether b has only bytes from 1 to 127.
func plainASCII(b []byte) bool {
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		if (w|(w-ones))&highs != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c == 0 || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// smallestNormal is the smallest positive float that is not subnormal. SQL
// Server does not hold smaller ones.
const smallestNormal = 0x1p-1022

func appendFloat(dst []byte, f float64) ([]byte, string) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return dst, "a float that is not finite cannot be stored"
	}
	if math.Abs(f) < smallestNormal {
		f = 0
	}
	return binary.LittleEndian.AppendUint64(append(dst, byte(abi.TagFloat)), math.Float64bits(f)), ""
}

// exactFloat bounds the integers that all have a float of their own.
const exactFloat = 1 << 53

func appendIntAsFloat(dst []byte, i int64) ([]byte, string) {
	if i > exactFloat || i < -exactFloat {
		return dst, "an int beyond ±2^53 is not exact as a float"
	}
	return appendFloat(dst, float64(i))
}

func appendDateValue(dst []byte, d int64) ([]byte, string) {
	if d < dateMin || d > dateMax {
		return dst, "a date is within the years 1000 to 9999"
	}
	return binary.LittleEndian.AppendUint32(append(dst, byte(abi.TagDate)), uint32(int32(d))), ""
}

func appendTimeValue(dst []byte, us int64) ([]byte, string) {
	if us < 0 || us >= microsPerDay {
		return dst, "a time is from 00:00:00 to 23:59:59.999999"
	}
	return appendInt64(dst, abi.TagTime, us), ""
}

func appendTimestampValue(dst []byte, us int64) ([]byte, string) {
	if us < timestampMin || us > timestampMax {
		return dst, "a timestamp is within the years 1000 to 9999"
	}
	return appendInt64(dst, abi.TagTimestamp, us), ""
}

func tagName(t abi.Tag) string {
	switch t {
	case abi.TagNull:
		return "null"
	case abi.TagFalse, abi.TagTrue:
		return "bool"
	}
	for k := Text; k <= JSON; k++ {
		if kinds[k].tag == t {
			return k.String()
		}
	}
	return "a value of an unknown type"
}
