// Package rawjson reads JSON without changing a byte of it: it checks a text
// strictly (RFC 8259, UTF-8) and hands out members and elements as views of the
// text, so that a payload can be stored exactly as it was written. It builds no
// trees, and tells the byte offset of whatever it refuses.
package rawjson

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
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

// Cursor reads a text from front to back, once: it stands before a value, which
// is passed whole by Value, or member by member or element by element. The text
// is checked as far as the cursor has come.
type Cursor struct {
	b        []byte
	i, depth int
}

// Read gives a cursor before the value of b, whose UTF-8 is checked at once.
func Read(b []byte) (*Cursor, error) {
	c := &Cursor{b: b}
	return c, c.start()
}

func (c *Cursor) start() error {
	c.i = space(c.b, 0)
	return checkUTF8(c.b)
}

// Kind tells what the value ahead is, by its first byte.
func (c *Cursor) Kind() string { return Kind(c.b[c.i:]) }

// Left is the length of the text from the cursor on.
func (c *Cursor) Left() int { return len(c.b) - c.i }

// Value passes the value ahead and returns it as it stands in the text.
func (c *Cursor) Value() ([]byte, error) {
	end, err := value(c.b, c.i, c.depth)
	if err != nil {
		return nil, err
	}
	v := c.b[c.i:end:end]
	c.i = end
	return v, nil
}

// Members passes the object ahead and calls each for every member, in order, with
// its name (unescaped; valid during the call) and the cursor before its value:
// what each does not pass is passed by Members. An error of each ends it.
func (c *Cursor) Members(each func(name []byte) error) error {
	if err := c.expect('{', "an object"); err != nil {
		return err
	}
	i, done, err := open(c.b, c.i, c.depth, '}')
	for c.depth++; err == nil && !done; i, done, err = next(c.b, c.i, '}') {
		var quoted, name []byte
		if quoted, c.i, err = member(c.b, i); err != nil {
			return err
		}
		if name, err = unquote(quoted[1 : len(quoted)-1]); err != nil {
			return &SyntaxError{i, "the name of a member " + err.Error()}
		}
		at := c.i
		if err = each(name); err == nil && c.i == at {
			c.i, err = value(c.b, at, c.depth)
		}
		if err != nil {
			return err
		}
	}
	c.depth--
	c.i = i
	return err
}

// Elements passes the array ahead as [Cursor.Members] does an object.
func (c *Cursor) Elements(each func() error) error {
	if err := c.expect('[', "an array"); err != nil {
		return err
	}
	i, done, err := open(c.b, c.i, c.depth, ']')
	for c.depth++; err == nil && !done; i, done, err = next(c.b, c.i, ']') {
		c.i = i
		if err = each(); err == nil && c.i == i {
			c.i, err = value(c.b, i, c.depth)
		}
		if err != nil {
			return err
		}
	}
	c.depth--
	c.i = i
	return err
}

// End checks that nothing but white space is left after what was passed.
func (c *Cursor) End(what string) error {
	if rest := space(c.b, c.i); rest < len(c.b) {
		return &SyntaxError{rest, fmt.Sprintf("%s after the %s", char(c.b, rest), what)}
	}
	return nil
}

func (c *Cursor) expect(first byte, what string) error {
	if c.i < len(c.b) && c.b[c.i] == first {
		return nil
	}
	if _, err := value(c.b, c.i, c.depth); err != nil {
		return err
	}
	return &SyntaxError{c.i, what + " is expected, found " + c.Kind()}
}

// Members calls each for every member of the object b, in order, with the
// member's name (unescaped; valid during the call) and its value as it stands
// in b. off is the value's offset in b. It checks b like [Check]. An error of
// each ends it.
func Members(b []byte, each func(name, value []byte, off int) error) error {
	c, err := Read(b)
	if err != nil {
		return err
	}
	err = c.Members(func(name []byte) error {
		off := c.i
		v, err := c.Value()
		if err != nil {
			return err
		}
		return each(name, v, off)
	})
	if err != nil {
		return err
	}
	return c.End("object")
}

// Elements calls each for every element of the array b, as [Members] does.
func Elements(b []byte, each func(value []byte, off int) error) error {
	c, err := Read(b)
	if err != nil {
		return err
	}
	err = c.Elements(func() error {
		off := c.i
		v, err := c.Value()
		if err != nil {
			return err
		}
		return each(v, off)
	})
	if err != nil {
		return err
	}
	return c.End("array")
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
	s, err := Text(v)
	return string(s), err
}

// Text is String without a copy: a view of v where it has no escapes.
func Text(v []byte) ([]byte, error) {
	if len(v) < 2 || v[0] != '"' {
		return nil, ErrNotString
	}
	return unquote(v[1 : len(v)-1])
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
func unquote(b []byte) (out []byte, err error) {
	i := 0
	for i < len(b) && b[i] != '\\' {
		i++
	}
	if i == len(b) {
		return b, nil
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
					return nil, ErrLoneSurrogate
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default: // " \ /
			out = append(out, b[i])
		}
		i++
	}
	return out, nil
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
		return object(b, i, depth)
	case '[':
		return array(b, i, depth)
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

func object(b []byte, i, depth int) (int, error) {
	i, done, err := open(b, i, depth, '}')
	for ; err == nil && !done; i, done, err = next(b, i, '}') {
		if _, i, err = member(b, i); err == nil {
			i, err = value(b, i, depth+1)
		}
		if err != nil {
			return 0, err
		}
	}
	return i, err
}

func array(b []byte, i, depth int) (int, error) {
	i, done, err := open(b, i, depth, ']')
	for ; err == nil && !done; i, done, err = next(b, i, ']') {
		if i, err = value(b, i, depth+1); err != nil {
			return 0, err
		}
	}
	return i, err
}

// open passes the bracket at i and returns where the first value or name is; done
// says that there is none.
func open(b []byte, i, depth int, end byte) (at int, done bool, err error) {
	if depth == DepthMax {
		return 0, false, &SyntaxError{i, fmt.Sprintf("nested deeper than %d", DepthMax)}
	}
	if i = space(b, i+1); i < len(b) && b[i] == end {
		return i + 1, true, nil
	}
	return i, false, nil
}

// next passes what comes after a value in an array or object.
func next(b []byte, i int, end byte) (at int, done bool, err error) {
	i = space(b, i)
	switch {
	case i < len(b) && b[i] == ',':
		return space(b, i+1), false, nil
	case i < len(b) && b[i] == end:
		return i + 1, true, nil
	}
	return 0, false, &SyntaxError{i, fmt.Sprintf("%s where ',' or '%c' is expected", char(b, i), end)}
}

// member passes the name of a member and returns it, in its quotes, and where the
// value begins.
func member(b []byte, i int) (name []byte, at int, err error) {
	if i >= len(b) || b[i] != '"' {
		return nil, 0, &SyntaxError{i, fmt.Sprintf("%s where the name of a member is expected", char(b, i))}
	}
	end, err := str(b, i)
	if err != nil {
		return nil, 0, err
	}
	name = b[i:end]
	if i = space(b, end); i >= len(b) || b[i] != ':' {
		return nil, 0, &SyntaxError{i, fmt.Sprintf("%s where ':' is expected", char(b, i))}
	}
	return name, space(b, i+1), nil
}

// plain passes the bytes of a string up to the first that ends it, is escaped or
// may not be there: eight at a time, as strings are most of what is read.
func plain(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, backslash := x^ones*'"', x^ones*'\\'
		// The high bit of a byte is set where a subtraction borrowed from it: where
		// it was zero, or below a space. A borrow can only spoil bytes after that.
		found := (quote-ones)&^quote | (backslash-ones)&^backslash | (x-ones*' ')&^x
		if found &= highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

func str(b []byte, i int) (int, error) {
	start := i
	for i = plain(b, i+1); i < len(b); i = plain(b, i+1) {
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
