// Package rawjson reads JSON without changing a byte of it: it checks a text
// strictly (RFC 8259, UTF-8) and hands out members and elements as views of the
// text, so that a payload can be stored exactly as it was written. It builds no
// trees, and tells the byte offset of whatever it refuses.
package rawjson

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// DepthMax is how deep arrays and objects may be nested: as deep as every
// database's own JSON functions go or nearly so, and no deeper than a stack
// likes.
const DepthMax = 1000

// SyntaxError is a text that is not JSON.
type SyntaxError struct {
	Offset int // of the byte that cannot be right, from 0
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("malformed JSON at byte %d: %s", e.Offset, e.Reason)
}

// Check reports whether b is one JSON value with nothing but white space
// around it, in valid UTF-8. The error is a [*SyntaxError].
func Check(b []byte) error {
	_, err := Trim(b)
	return err
}

// Trim checks b like [Check] and returns the value without the white space
// around it.
func Trim(b []byte) ([]byte, error) {
	if err := checkUTF8(b); err != nil {
		return nil, err
	}
	start := space(b, 0)
	end, err := value(b, start, 0)
	if err != nil {
		return nil, err
	}
	if rest := space(b, end); rest < len(b) {
		return nil, &SyntaxError{rest, fmt.Sprintf("%s after the value", char(b, rest))}
	}
	return b[start:end], nil
}

func checkUTF8(b []byte) error {
	if utf8.Valid(b) {
		return nil
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return &SyntaxError{i, "not valid UTF-8"}
		}
		i += n
	}
	return nil
}

// Members calls each for every member of the object b, in order, with the
// member's name (unescaped; valid during the call) and its value as it stands
// in b. off is the value's offset in b. It checks b like [Check]. An error of
// each ends it.
func Members(b []byte, each func(name, value []byte, off int) error) error {
	if err := checkUTF8(b); err != nil {
		return err
	}
	i := space(b, 0)
	if i >= len(b) || b[i] != '{' {
		if _, err := Trim(b); err != nil {
			return err
		}
		return &SyntaxError{i, "an object is expected, found " + Kind(b[i:])}
	}
	end, err := object(b, i, 0, each)
	if err != nil {
		return err
	}
	if rest := space(b, end); rest < len(b) {
		return &SyntaxError{rest, fmt.Sprintf("%s after the object", char(b, rest))}
	}
	return nil
}

// Elements calls each for every element of the array b, as [Members] does.
func Elements(b []byte, each func(value []byte, off int) error) error {
	if err := checkUTF8(b); err != nil {
		return err
	}
	i := space(b, 0)
	if i >= len(b) || b[i] != '[' {
		if _, err := Trim(b); err != nil {
			return err
		}
		return &SyntaxError{i, "an array is expected, found " + Kind(b[i:])}
	}
	end, err := array(b, i, 0, each)
	if err != nil {
		return err
	}
	if rest := space(b, end); rest < len(b) {
		return &SyntaxError{rest, fmt.Sprintf("%s after the array", char(b, rest))}
	}
	return nil
}

// Kind tells what a value is, by its first byte.
func Kind(v []byte) string {
	if len(v) == 0 {
		return "nothing"
	}
	switch v[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// IsNull reports whether a value is null.
func IsNull(v []byte) bool { return len(v) > 0 && v[0] == 'n' }

// Errors of String and Int.
var (
	ErrNotString     = errors.New("must be a string")
	ErrLoneSurrogate = errors.New("has half of a surrogate pair, which is no character")
	ErrNotInteger    = errors.New("must be a whole number")
	ErrRange         = errors.New("is out of range")
)

// String decodes a checked string value.
func String(v []byte) (string, error) {
	if len(v) < 2 || v[0] != '"' {
		return "", ErrNotString
	}
	s, _, err := unquote(v[1 : len(v)-1])
	return string(s), err
}

// Int decodes a checked number of at most bits bits that has neither fraction
// nor exponent.
func Int(v []byte, bits int) (int64, error) {
	if len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return 0, ErrNotInteger
	}
	n, err := strconv.ParseInt(string(v), 10, bits)
	if errors.Is(err, strconv.ErrRange) {
		return 0, ErrRange
	}
	if err != nil {
		return 0, ErrNotInteger
	}
	return n, nil
}

// unquote decodes the inside of a checked string; without escapes it is a view.
func unquote(b []byte) (out []byte, escaped bool, err error) {
	i := 0
	for i < len(b) && b[i] != '\\' {
		i++
	}
	if i == len(b) {
		return b, false, nil
	}
	out = append(make([]byte, 0, len(b)), b[:i]...)
	for i < len(b) {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		i++
		switch b[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(b[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(b) > i+6 && b[i+1] == '\\' && b[i+2] == 'u' {
					low = hex4(b[i+3:])
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return nil, true, ErrLoneSurrogate
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default: // " \ /
			out = append(out, b[i])
		}
		i++
	}
	return out, true, nil
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c >= 'a':
			c -= 'a' - 10
		default:
			c -= 'A' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func char(b []byte, i int) string {
	if i >= len(b) {
		return "the end"
	}
	r, _ := utf8.DecodeRune(b[i:])
	return strconv.QuoteRune(r)
}

// value passes the value that starts at i and returns where it ends.
func value(b []byte, i, depth int) (int, error) {
	if i >= len(b) {
		return 0, &SyntaxError{i, "the text ends where a value is expected"}
	}
	switch c := b[i]; c {
	case '{':
		return object(b, i, depth, nil)
	case '[':
		return array(b, i, depth, nil)
	case '"':
		return str(b, i)
	case 't':
		return word(b, i, "true")
	case 'f':
		return word(b, i, "false")
	case 'n':
		return word(b, i, "null")
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return number(b, i)
		}
		return 0, &SyntaxError{i, fmt.Sprintf("%s where a value is expected", char(b, i))}
	}
}

func object(b []byte, i, depth int, each func(name, value []byte, off int) error) (int, error) {
	if depth == DepthMax {
		return 0, &SyntaxError{i, fmt.Sprintf("nested deeper than %d", DepthMax)}
	}
	if i = space(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return 0, &SyntaxError{i, fmt.Sprintf("%s where the name of a member is expected", char(b, i))}
		}
		nameStart := i
		nameEnd, err := str(b, i)
		if err != nil {
			return 0, err
		}
		if i = space(b, nameEnd); i >= len(b) || b[i] != ':' {
			return 0, &SyntaxError{i, fmt.Sprintf("%s where ':' is expected", char(b, i))}
		}
		start := space(b, i+1)
		end, err := value(b, start, depth+1)
		if err != nil {
			return 0, err
		}
		if each != nil {
			name, _, err := unquote(b[nameStart+1 : nameEnd-1])
			if err != nil {
				return 0, &SyntaxError{nameStart, "the name of a member " + err.Error()}
			}
			if err := each(name, b[start:end:end], start); err != nil {
				return 0, err
			}
		}
		i = space(b, end)
		if i < len(b) && b[i] == '}' {
			return i + 1, nil
		}
		if i >= len(b) || b[i] != ',' {
			return 0, &SyntaxError{i, fmt.Sprintf("%s where ',' or '}' is expected", char(b, i))}
		}
		i = space(b, i+1)
	}
}

func array(b []byte, i, depth int, each func(value []byte, off int) error) (int, error) {
	if depth == DepthMax {
		return 0, &SyntaxError{i, fmt.Sprintf("nested deeper than %d", DepthMax)}
	}
	if i = space(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		end, err := value(b, i, depth+1)
		if err != nil {
			return 0, err
		}
		if each != nil {
			if err := each(b[i:end:end], i); err != nil {
				return 0, err
			}
		}
		i = space(b, end)
		if i < len(b) && b[i] == ']' {
			return i + 1, nil
		}
		if i >= len(b) || b[i] != ',' {
			return 0, &SyntaxError{i, fmt.Sprintf("%s where ',' or ']' is expected", char(b, i))}
		}
		i = space(b, i+1)
	}
}

// special marks the bytes of a string that are not simply passed.
var special = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

func str(b []byte, i int) (int, error) {
	start := i
	for i++; i < len(b); i++ {
		if !special[b[i]] {
			continue
		}
		switch b[i] {
		case '"':
			return i + 1, nil
		case '\\':
			i++
			if i >= len(b) {
				break
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for n := 1; n <= 4; n++ {
					if i+n >= len(b) {
						return 0, &SyntaxError{len(b), "the text ends within a string"}
					}
					if c := b[i+n]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
						return 0, &SyntaxError{i + n, `\u is not followed by four hex digits`}
					}
				}
				i += 4
			default:
				return 0, &SyntaxError{i, fmt.Sprintf("%s after a backslash", char(b, i))}
			}
		default:
			return 0, &SyntaxError{i, "a control character in a string (write it as an escape)"}
		}
	}
	return 0, &SyntaxError{len(b), fmt.Sprintf("the text ends within the string that begins at byte %d", start)}
}

func word(b []byte, i int, w string) (int, error) {
	for n := range len(w) {
		if i+n >= len(b) || b[i+n] != w[n] {
			return 0, &SyntaxError{i + n, fmt.Sprintf("%s in what began as %s", char(b, i+n), w)}
		}
	}
	return i + len(w), nil
}

func number(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
	}
	var err error
	if i < len(b) && b[i] == '0' {
		i++
	} else if i, err = digits(b, i); err != nil {
		return 0, err
	}
	if i < len(b) && b[i] == '.' {
		if i, err = digits(b, i+1); err != nil {
			return 0, err
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i, err = digits(b, i); err != nil {
			return 0, err
		}
	}
	return i, nil
}

func digits(b []byte, i int) (int, error) {
	start := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == start {
		return 0, &SyntaxError{i, fmt.Sprintf("%s where a digit is expected", char(b, i))}
	}
	return i, nil
}
