package readmodel

import (
	"encoding/base64"
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/projhost/projhost/abi"
)

// AppendJSON appends the row as a JSON object of its columns: int and float as
// numbers, decimal as a string with its full scale, bytes as base64, json as it
// is, times in the forms of RFC 3339 (a timestamp in UTC with microseconds). A
// value that is null is null.
func (t *Table) AppendJSON(dst []byte, row Row) []byte {
	dst = append(dst, '{')
	off, ok := t.start(row)
	for i := range t.Columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, t.Columns[i].jsonName...)
		var v abi.Value
		if ok {
			var n int
			v, n, ok = readValue(row[off:])
			off += n
		}
		dst = appendJSON(dst, &v)
	}
	return append(dst, '}')
}

// AppendJSONValue appends one canonical value as AppendJSON does.
func AppendJSONValue(dst []byte, v abi.Value) []byte { return appendJSON(dst, &v) }

func appendJSON(dst []byte, v *abi.Value) []byte {
	switch v.Tag {
	case abi.TagNull:
		return append(dst, "null"...)
	case abi.TagText:
		return AppendJSONString(dst, v.B)
	case abi.TagFalse, abi.TagTrue, abi.TagInt, abi.TagFloat, abi.TagJSON:
		return appendTextForm(dst, v)
	}
	dst = append(dst, '"')
	dst = appendTextForm(dst, v)
	return append(dst, '"')
}

// AppendText appends one canonical value in its text form, as it stands in a
// CSV field or a URL: what AppendJSON gives, without quotes. Null is empty.
func AppendText(dst []byte, v abi.Value) []byte { return appendTextForm(dst, &v) }

func appendTextForm(dst []byte, v *abi.Value) []byte {
	switch v.Tag {
	case abi.TagFalse:
		return append(dst, "false"...)
	case abi.TagTrue:
		return append(dst, "true"...)
	case abi.TagInt:
		return strconv.AppendInt(dst, v.I, 10)
	case abi.TagFloat:
		return appendFloatText(dst, v.F)
	case abi.TagText, abi.TagDecimal, abi.TagJSON:
		return append(dst, v.B...)
	case abi.TagDate:
		return appendDate(dst, v.I)
	case abi.TagTime:
		return appendTime(dst, v.I)
	case abi.TagTimestamp:
		return append(appendTimestamp(dst, v.I, 'T'), 'Z')
	case abi.TagUUID:
		return appendUUID(dst, v.B)
	case abi.TagBytes:
		return base64.StdEncoding.AppendEncode(dst, v.B)
	}
	return dst
}

// appendFloatText writes the shortest form that reads back as f, in JSON's
// grammar.
func appendFloatText(dst []byte, f float64) []byte {
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

func appendUUID(dst []byte, u []byte) []byte {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return append(dst, b[:]...)
}

func parseUUID[T ~string | ~[]byte](s T) (u [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, false
	}
	n := 0
	for i := 0; i < 36; i += 2 {
		if s[i] == '-' {
			i++
		}
		hi, ok1 := hexDigit(s[i])
		lo, ok2 := hexDigit(s[i+1])
		if !ok1 || !ok2 {
			return u, false
		}
		u[n] = hi<<4 | lo
		n++
	}
	return u, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case isDigit(c):
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// ParseText reads a value of column i from its text form, as it stands in a
// URL, and gives it in canonical form. What does not fit is a [*ValueError].
func (t *Table) ParseText(i int, text string) (abi.Value, error) {
	c := &t.Columns[i]
	encoded, reason := c.appendParsed(nil, []byte(text))
	if reason != "" {
		return abi.Value{}, t.refuse(c, reason)
	}
	v, _, _ := readValue(encoded)
	return v, nil
}

// appendParsed appends the canonical value that a text spells.
func (c *Column) appendParsed(dst []byte, text []byte) ([]byte, string) {
	switch c.Kind {
	case Text:
		return c.appendText(dst, text)
	case Int:
		i, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || text[0] == '+' {
			return dst, "not a 64-bit integer"
		}
		return appendInt64(dst, abi.TagInt, i), ""
	case Decimal:
		return c.appendDecimal(dst, text)
	case Float:
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil || strings.ContainsAny(string(text), "_xXpPnN") {
			return dst, "not a finite number"
		}
		return appendFloat(dst, f)
	case Bool:
		switch string(text) {
		case "false":
			return append(dst, byte(abi.TagFalse)), ""
		case "true":
			return append(dst, byte(abi.TagTrue)), ""
		}
		return dst, "not true or false"
	case Date:
		if d, ok := parseDate(text); ok {
			return appendDateValue(dst, d)
		}
		return dst, "not a date of the form 2006-01-02 in the years 1000 to 9999"
	case Time:
		if us, n, ok := parseTime(text); ok && n == len(text) {
			return appendTimeValue(dst, us)
		}
		return dst, "not a time of the form 15:04:05.000000"
	case Timestamp:
		if us, ok := parseTimestamp(text); ok {
			return appendTimestampValue(dst, us)
		}
		return dst, "not a timestamp of the form 2006-01-02T15:04:05.000000Z in the years 1000 to 9999"
	case UUID:
		if u, ok := parseUUID(text); ok {
			return append(append(dst, byte(abi.TagUUID)), u[:]...), ""
		}
		return dst, "not a UUID"
	case Bytes:
		b, err := base64.StdEncoding.DecodeString(string(text))
		if err != nil {
			return dst, "not base64"
		}
		return c.appendCanonical(dst, &abi.Value{Tag: abi.TagBytes, B: b})
	}
	return c.appendCanonical(dst, &abi.Value{Tag: abi.TagJSON, B: text})
}

// appendJSONValue appends the canonical value of a valid JSON value, for
// defaults and columns with "from". A string is read as its text form, a number
// as it is spelled; a json column takes the value as it is, but null is null.
func (c *Column) appendJSONValue(dst []byte, raw []byte) ([]byte, string) {
	switch first := raw[0]; {
	case first == 'n':
		return c.appendCanonical(dst, &abi.Value{})
	case c.Kind == JSON:
		return c.appendCanonical(dst, &abi.Value{Tag: abi.TagJSON, B: raw})
	case first == '{', first == '[':
		return dst, "a JSON object or array is no " + c.Kind.String()
	case first == '"':
		text, ok := unquote(nil, raw)
		if !ok {
			return dst, "the JSON string holds half a character (a lone surrogate)"
		}
		if c.Kind == Bool {
			return dst, "a JSON string is no bool"
		}
		return c.appendParsed(dst, text)
	case first == 't', first == 'f':
		if c.Kind != Bool {
			return dst, "a JSON boolean is no " + c.Kind.String()
		}
		return c.appendParsed(dst, raw)
	}
	return c.appendJSONNumber(dst, raw)
}

func (c *Column) appendJSONNumber(dst []byte, raw []byte) ([]byte, string) {
	switch c.Kind {
	case Text, Float:
		return c.appendParsed(dst, raw)
	case Int, Decimal:
		plain, ok := plainNumber(raw)
		if !ok {
			return dst, "the number is too large for " + c.describe()
		}
		if c.Kind == Decimal {
			return c.appendDecimal(dst, plain)
		}
		n, _ := parseNumeral(plain)
		if len(n.fraction) > 0 {
			return dst, "a number with a fraction is no int"
		}
		whole := "0" + string(n.whole)
		if n.negative {
			whole = "-" + whole
		}
		return c.appendParsed(dst, []byte(whole))
	}
	return dst, "a JSON number is no " + c.Kind.String()
}
