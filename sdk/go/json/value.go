// Package json reads and writes JSON inside a plugin, where encoding/json costs
// more than all the rest of applying an event.
//
// A [Value] is a view of a document's bytes: looking a member up scans the
// object once, builds no tree and copies nothing. Strings are views too, unless
// they hold escapes. A view lives as long as the bytes it looks at: for a
// message's data that is until the handler returns; strings.Clone keeps one.
//
// On every valid document the results are those of encoding/json: of members
// with the same name the last one counts, names and strings are unescaped, and
// numbers keep all their digits. The document is not validated first: on bytes
// that are no JSON a call answers "absent" or an error, or finds what still can
// be told apart; it never panics and always ends. [Valid] checks a whole
// document.
package json

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/projhost/projhost/sdk/go/internal/fast"
)

// Kind is the type of a [Value].
type Kind uint8

// The kinds of values.
const (
	Absent Kind = iota // no such member or element, or no JSON
	Null
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"absent", "null", "a boolean", "a number", "a string", "an array", "an object"}

// String names the kind with its article, as errors need it.
func (k Kind) String() string { return kindNames[k] }

// Value is a view of one JSON value. The zero Value is absent.
type Value struct {
	raw string // the value's bytes without surrounding space; "" is absent
}

// Parse returns the value in b, without copying or validating it. The bytes must
// not change while the Value or anything got from it is in use.
func Parse(b []byte) Value {
	return ParseString(unsafe.String(unsafe.SliceData(b), len(b)))
}

// ParseString is [Parse] for a string.
func ParseString(s string) Value {
	i, j := skipSpace(s, 0), len(s)
	for j > i && isSpace(s[j-1]) {
		j--
	}
	return Value{s[i:j]}
}

// Raw returns the value as it is spelled in the document.
func (v Value) Raw() string { return v.raw }

// Exists reports whether there is a value; null is one.
func (v Value) Exists() bool { return v.raw != "" }

// IsNull reports whether the value is null. An absent value is not.
func (v Value) IsNull() bool { return v.raw == "null" }

// Kind tells the value's type by its first byte.
func (v Value) Kind() Kind {
	if v.raw == "" {
		return Absent
	}
	switch c := v.raw[0]; {
	case c == '"':
		return String
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == '-' || c-'0' <= 9:
		return Number
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	}
	return Absent
}

// Get returns the member of an object by its name; of several members with that
// name, the last. It is absent where v is no object or has no such member.
//
// This is most of what reading an event costs, so what is usual (names and
// values that are strings, no spaces) is done in the loop itself, the rest by
// calls.
func (v Value) Get(name string) Value {
	s := v.raw
	if len(s) < 2 || s[0] != '{' {
		return Value{}
	}
	var found Value
	base, words, pairs := unsafe.Pointer(unsafe.StringData(s)), len(s)-8, len(s)-2
	i := skipSpace(s, 1)
	if i >= len(s) || s[i] != '"' {
		return Value{}
	}
	for {
		i++ // behind the quote of a name
		start := i
		for i <= words {
			if marks := fast.StringMarks(unsafe.Add(base, i)); marks != 0 {
				i += fast.FirstByte(marks)
				break
			}
			i += 8
		}
		if i >= len(s) {
			return found
		}
		var is bool
		if s[i] == '"' {
			is = i-start == len(name) && fast.Equal(s[start:i], name)
			i++
		} else if i, is = skipName(s, start, name); i < 0 {
			return found
		}
		from := i + 1
		if i <= pairs && fast.Load16(unsafe.Add(base, i)) == colonQuote {
			i += 2
			for i <= words {
				if marks := fast.StringMarks(unsafe.Add(base, i)); marks != 0 {
					i += fast.FirstByte(marks)
					break
				}
				i += 8
			}
			if i >= len(s) || s[i] != '"' {
				if i = skipValue(s, from) - 1; i < 0 {
					return found
				}
			}
			i++
		} else {
			if i = skipSpace(s, i); i >= len(s) || s[i] != ':' {
				return found
			}
			from = skipSpace(s, i+1)
			if i = skipValue(s, from); i < 0 {
				return found
			}
		}
		if is {
			found = Value{s[from:i]}
		}
		if i <= pairs && fast.Load16(unsafe.Add(base, i)) == commaQuote {
			i++
			continue
		}
		if i = skipSpace(s, i); i >= len(s) || s[i] != ',' {
			return found // the end, or no JSON
		}
		if i = skipSpace(s, i+1); i >= len(s) || s[i] != '"' {
			return found
		}
	}
}

// What stands between the strings of most documents, as words of two bytes.
const (
	colonQuote = ':' | '"'<<8
	commaQuote = ',' | '"'<<8
)

// skipName returns the index behind the closing quote of the name that starts
// at i, or -1, and whether it is the one wanted.
func skipName(s string, i int, name string) (end int, is bool) {
	end = fast.StringEnd(s, i)
	if end >= len(s) {
		return -1, false
	}
	if s[end] == '"' {
		return end + 1, end-i == len(name) && fast.Equal(s[i:end], name)
	}
	if end, _ = skipString(s, end); end < 0 {
		return -1, false
	}
	return end, unescape(s[i:end-1]) == name
}

// At returns an array's element by its index, absent where there is none.
func (v Value) At(index int) Value {
	for e := v.Elements(); index >= 0 && e.Next(); index-- {
		if index == 0 {
			return e.Value()
		}
	}
	return Value{}
}

func (v Value) isString() bool {
	return len(v.raw) >= 2 && v.raw[0] == '"' && v.raw[len(v.raw)-1] == '"'
}

// Text returns a string, unescaped. It is a view of the document unless the
// string holds escapes.
func (v Value) Text() (string, error) {
	if !v.isString() {
		return "", v.not(String)
	}
	inner := v.raw[1 : len(v.raw)-1]
	if fast.StringEnd(inner, 0) == len(inner) {
		return inner, nil
	}
	return unescape(inner), nil
}

// Str is [Value.Text] for members that may be missing: whatever is no string
// reads as "".
func (v Value) Str() string {
	if !v.isString() {
		return "" // without making an error
	}
	s, _ := v.Text()
	return s
}

// AppendText appends a string, unescaped, to dst: like [Value.Text], without an
// allocation even where there are escapes.
func (v Value) AppendText(dst []byte) ([]byte, error) {
	if !v.isString() {
		return dst, v.not(String)
	}
	return appendUnescaped(dst, v.raw[1:len(v.raw)-1]), nil
}

// Number returns a number as it is spelled, digit by digit.
func (v Value) Number() (string, error) {
	if end := skipNumber(v.raw, 0); end < 0 || end != len(v.raw) {
		return "", v.not(Number)
	}
	return v.raw, nil
}

// Int returns an integer. A number with a fraction or an exponent, or one that
// does not fit 64 bits, is an error.
func (v Value) Int() (int64, error) {
	s := v.raw
	digits := s
	if s != "" && s[0] == '-' {
		digits = s[1:]
	}
	if digits == "" || len(digits) > 1 && digits[0] == '0' {
		return 0, v.notInt()
	}
	var n uint64
	for i := 0; i < len(digits); i++ {
		c := digits[i] - '0'
		// 922337203685477580 × 10 + 9 still fits the unsigned 64 bits.
		if c > 9 || n > (1<<63)/10 {
			return 0, v.notInt()
		}
		n = n*10 + uint64(c)
	}
	if len(digits) != len(s) {
		if n > 1<<63 {
			return 0, v.notInt()
		}
		return -int64(n), nil
	}
	if n > 1<<63-1 {
		return 0, v.notInt()
	}
	return int64(n), nil
}

// Float returns a number as a float64, rounded where it has more digits.
func (v Value) Float() (float64, error) {
	s, err := v.Number()
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, &Error{Want: "a number in the range of float64", Have: v.have()}
	}
	return f, nil
}

// Bool returns a boolean.
func (v Value) Bool() (bool, error) {
	switch v.raw {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, v.not(Bool)
}

// Error says that a value is not what was asked for.
type Error struct {
	Want string // "a string"
	Have string // "absent", "a number: 12.5"
}

func (e *Error) Error() string { return "want " + e.Want + ", have " + e.Have }

func (v Value) not(want Kind) error { return &Error{Want: want.String(), Have: v.have()} }

func (v Value) notInt() error { return &Error{Want: "an integer of 64 bits", Have: v.have()} }

// have describes the value for an error, its spelling cut to what a log can bear.
func (v Value) have() string {
	k := v.Kind()
	switch {
	case v.raw == "" || k == Null:
		return k.String()
	case k == Absent:
		return "no JSON"
	case len(v.raw) <= 40:
		return k.String() + ": " + v.raw
	}
	return k.String() + ": " + strings.ToValidUTF8(v.raw[:40], "") + "…"
}
