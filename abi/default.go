package abi

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// DefaultValue is the declared default of a column as a value of its kind, not
// yet in its canonical form; false if there is none. It shares no memory with
// the manifest.
func (c *Column) DefaultValue() (Value, bool) {
	if c.Default == nil {
		return Value{}, false
	}
	v, reason := c.defaultValue()
	return v, reason == ""
}

// defaultValue reads the default, or tells what is wrong with it.
func (c *Column) defaultValue() (Value, string) {
	s := scanner{b: c.Default}
	if !s.document() {
		return Value{}, "is not JSON"
	}
	s = scanner{b: c.Default}
	first := s.peek()
	if first == 'n' {
		return Value{}, "is null; leave it out instead"
	}
	wrong := "is no value for a column of kind " + c.Kind
	switch c.Kind {
	case ColumnJSON:
		return JSON(append([]byte(nil), c.Default...)), ""
	case ColumnBool:
		if first == 't' || first == 'f' {
			return Bool(first == 't'), ""
		}
	case ColumnInt, ColumnFloat:
		raw, ok := s.number()
		if !ok {
			return Value{}, wrong
		}
		if c.Kind == ColumnInt {
			i, err := strconv.ParseInt(string(raw), 10, 64)
			if err != nil {
				return Value{}, wrong + ": it takes whole numbers of 64 bits"
			}
			return Int(i), ""
		}
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || math.IsInf(f, 0) {
			return Value{}, wrong + ": it is too large"
		}
		return Float(f), ""
	case ColumnDecimal:
		text, ok := scalar(&s, first)
		if !ok || !fitsDecimal(text, c.Precision, c.Scale) {
			return Value{}, wrong + " with " + strconv.Itoa(c.Precision) + " digits, " +
				strconv.Itoa(c.Scale) + " of them after the point"
		}
		return Value{Tag: TagDecimal, B: text}, ""
	default:
		if first != '"' {
			return Value{}, wrong
		}
		raw, _, _ := s.str()
		return c.defaultText(unquote(nil, raw), wrong)
	}
	return Value{}, wrong
}

// scalar reads a string or number as text.
func scalar(s *scanner, first byte) ([]byte, bool) {
	if first == '"' {
		raw, _, _ := s.str()
		return unquote(nil, raw), true
	}
	raw, ok := s.number()
	return append([]byte(nil), raw...), ok
}

// defaultText reads a default of the kinds written as a JSON string.
func (c *Column) defaultText(text []byte, wrong string) (Value, string) {
	switch c.Kind {
	case ColumnText:
		if !ValidText(text) {
			return Value{}, "holds U+0000 or half a surrogate pair"
		}
		if c.Max > 0 && utf16Len(text) > c.Max {
			return Value{}, "is longer than max, " + strconv.Itoa(c.Max)
		}
		return Value{Tag: TagText, B: text}, ""
	case ColumnDate:
		if days, rest, ok := parseDate(text); ok && len(rest) == 0 {
			return Date(int32(days)), ""
		}
		return Value{}, wrong + ", such as \"2006-01-02\""
	case ColumnTime:
		if us, rest, ok := parseClock(text); ok && len(rest) == 0 {
			return Time(us), ""
		}
		return Value{}, wrong + ", such as \"15:04:05.000001\""
	case ColumnTimestamp:
		days, rest, ok := parseDate(text)
		if ok && len(rest) > 0 && rest[0] == 'T' {
			if us, rest, ok := parseClock(rest[1:]); ok && string(rest) == "Z" {
				return Timestamp(days*86400e6 + us), ""
			}
		}
		return Value{}, wrong + ", such as \"2006-01-02T15:04:05.000001Z\""
	case ColumnUUID:
		if id, ok := parseUUID(text); ok {
			return UUID(id), ""
		}
		return Value{}, wrong + ", such as \"6f1c2c9e-2b1d-7c3e-8f00-0123456789ab\""
	case ColumnBytes:
		if b, ok := parseBase64(text); ok {
			return Bytes(b), ""
		}
		return Value{}, wrong + ": it takes padded base64"
	}
	return Value{}, wrong
}

// utf16Len is the length of s in UTF-16 code units, in which max counts.
func utf16Len(s []byte) int {
	n := 0
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		n++
		if r > 0xFFFF {
			n++
		}
		s = s[size:]
	}
	return n
}

// fitsDecimal tells whether s is [-]digits[.digits] of the given size.
func fitsDecimal(s []byte, precision, scale int) bool {
	if len(s) > 0 && s[0] == '-' {
		s = s[1:]
	}
	whole, ok := digits(s, 0)
	if !ok {
		return false
	}
	leading := 0
	for leading < whole && s[leading] == '0' {
		leading++
	}
	fraction := 0
	if whole < len(s) {
		end, ok := digits(s, whole+1)
		if s[whole] != '.' || !ok || end != len(s) {
			return false
		}
		fraction = end - whole - 1
	}
	return whole-leading <= precision-scale && fraction <= scale
}

// parseDate reads YYYY-MM-DD, years 0001 to 9999, as days since 1970.
func parseDate(s []byte) (days int64, rest []byte, ok bool) {
	if len(s) < 10 || s[4] != '-' || s[7] != '-' {
		return 0, nil, false
	}
	y, okY := number(s[0:4])
	m, okM := number(s[5:7])
	d, okD := number(s[8:10])
	if !okY || !okM || !okD || y < 1 || m < 1 || m > 12 || d < 1 || d > monthDays(y, m) {
		return 0, nil, false
	}
	// Days from a calendar whose year begins in March.
	if m <= 2 {
		y, m = y-1, m+12
	}
	return y*365 + y/4 - y/100 + y/400 + (153*(m-3)+2)/5 + d - 1 - 719468, s[10:], true
}

func monthDays(y, m int64) int64 {
	switch {
	case m == 2 && y%4 == 0 && (y%100 != 0 || y%400 == 0):
		return 29
	case m == 2:
		return 28
	case m == 4 || m == 6 || m == 9 || m == 11:
		return 30
	}
	return 31
}

// parseClock reads HH:MM:SS with up to six decimals, in microseconds.
func parseClock(s []byte) (us int64, rest []byte, ok bool) {
	if len(s) < 8 || s[2] != ':' || s[5] != ':' {
		return 0, nil, false
	}
	h, okH := number(s[0:2])
	m, okM := number(s[3:5])
	sec, okS := number(s[6:8])
	if !okH || !okM || !okS || h > 23 || m > 59 || sec > 59 {
		return 0, nil, false
	}
	us = ((h*60+m)*60 + sec) * 1e6
	s = s[8:]
	if len(s) == 0 || s[0] != '.' {
		return us, s, true
	}
	end, ok := digits(s, 1)
	if !ok || end > 7 {
		return 0, nil, false
	}
	unit := int64(1e5)
	for _, c := range s[1:end] {
		us += int64(c-'0') * unit
		unit /= 10
	}
	return us, s[end:], true
}

// number reads digits only.
func number(s []byte) (n int64, ok bool) {
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// parseUUID reads the usual form of a UUID, in either case.
func parseUUID(s []byte) ([]byte, bool) {
	if len(s) != 36 {
		return nil, false
	}
	id := make([]byte, 0, 16)
	for i := 0; i < len(s); {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return nil, false
			}
			i++
			continue
		}
		high, low := hexDigit(s[i]), hexDigit(s[i+1])
		if high < 0 || low < 0 {
			return nil, false
		}
		id = append(id, byte(high<<4|low))
		i += 2
	}
	return id, true
}

// parseBase64 reads padded base64 in its one canonical spelling.
func parseBase64(s []byte) ([]byte, bool) {
	if len(s)%4 != 0 {
		return nil, false
	}
	out := make([]byte, 0, len(s)/4*3)
	for len(s) > 0 {
		var bits uint32
		pad := 0
		for i, c := range s[:4] {
			v := base64Digit(c)
			if c == '=' && len(s) == 4 && i >= 2 {
				pad++
				v = 0
			} else if v < 0 || pad > 0 {
				return nil, false
			}
			bits = bits<<6 | uint32(v)
		}
		if bits&(1<<(8*pad)-1) != 0 {
			return nil, false
		}
		out = append(out, byte(bits>>16), byte(bits>>8), byte(bits))
		out = out[:len(out)-pad]
		s = s[4:]
	}
	return out, true
}

func base64Digit(c byte) int {
	switch {
	case 'A' <= c && c <= 'Z':
		return int(c - 'A')
	case 'a' <= c && c <= 'z':
		return int(c-'a') + 26
	case '0' <= c && c <= '9':
		return int(c-'0') + 52
	case c == '+':
		return 62
	case c == '/':
		return 63
	}
	return -1
}
