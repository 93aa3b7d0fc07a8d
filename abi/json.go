package abi

import (
	"math/bits"
	"unicode/utf8"
)

// jsonDepth is how deeply JSON may nest, the same as in encoding/json.
const jsonDepth = 10000

// scanner walks over JSON text without building anything. It accepts exactly
// what encoding/json does. The package reads JSON with it, and not with
// encoding/json, so that guests do not carry that package and its reflection.
type scanner struct {
	b     []byte
	off   int // on failure, where it stopped
	depth int
}

// peek skips white space and gives the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.off < len(s.b) {
		switch c := s.b[s.off]; c {
		case ' ', '\n', '\t', '\r':
			s.off++
		default:
			return c
		}
	}
	return 0
}

// next consumes c, after white space, if it is next.
func (s *scanner) next(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.off++
	return true
}

// document skips one value and demands that nothing follows it.
func (s *scanner) document() bool {
	return s.skip() && s.end()
}

func (s *scanner) end() bool { return s.peek() == 0 && s.off == len(s.b) }

// skip goes past one value, checking all of it.
func (s *scanner) skip() bool {
	switch s.peek() {
	case '"':
		_, _, ok := s.str()
		return ok
	case '{':
		for first := true; ; first = false {
			more, ok := s.member(first)
			if !more || !ok {
				return ok
			}
			if _, _, ok := s.name(); !ok || !s.skip() {
				return false
			}
		}
	case '[':
		for first := true; ; first = false {
			more, ok := s.element(first)
			if !more || !ok {
				return ok
			}
			if !s.skip() {
				return false
			}
		}
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	_, ok := s.number()
	return ok
}

// member moves to the next member of an object: at first to its opening brace
// and past it, else past a comma. More is false once the closing brace has been
// passed.
func (s *scanner) member(first bool) (more, ok bool) { return s.item(first, '{', '}') }

// element is member for arrays.
func (s *scanner) element(first bool) (more, ok bool) { return s.item(first, '[', ']') }

func (s *scanner) item(first bool, open, shut byte) (more, ok bool) {
	if first {
		if s.depth == jsonDepth || !s.next(open) {
			return false, false
		}
		s.depth++
		if s.next(shut) {
			s.depth--
			return false, true
		}
		return true, true
	}
	switch s.peek() {
	case ',':
		s.off++
		return true, true
	case shut:
		s.off++
		s.depth--
		return false, true
	}
	return false, false
}

// name reads the name of a member and the colon.
func (s *scanner) name() (raw []byte, escaped, ok bool) {
	if s.peek() != '"' {
		return nil, false, false
	}
	raw, escaped, ok = s.str()
	return raw, escaped, ok && s.next(':')
}

func (s *scanner) literal(word string) bool {
	if len(s.b)-s.off < len(word) || string(s.b[s.off:s.off+len(word)]) != word {
		return false
	}
	s.off += len(word)
	return true
}

// str reads a string that starts here and gives what is between the quotes.
func (s *scanner) str() (raw []byte, escaped, ok bool) {
	b := s.b
	i := s.off + 1
	start := i
	for i < len(b) {
		if i += plain(b[i:]); i == len(b) {
			break
		}
		c := b[i]
		if c == '"' {
			s.off = i + 1
			return b[start:i:i], escaped, true
		}
		if c < 0x20 {
			break
		}
		escaped = true
		n := escapeLen(b[i:])
		if n == 0 {
			break
		}
		i += n
	}
	s.off = i
	return nil, escaped, false
}

// plain is the number of bytes before the first that means something in a
// string: a quote, a backslash or a control character.
func plain(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		// Eight bytes at a time: a byte's high bit is set if it is what we
		// look for. Borrows may set bits above the first hit, never below.
		x := le.Uint64(b[i:])
		quote, slash := x^'"'*ones, x^'\\'*ones
		hit := ((x-0x20*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & high
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// escapeLen is the length of the escape b starts with, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if hex4(b[2:]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 is the value of four hex digits, -1 if b does not start with them.
func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var v rune
	for _, c := range b[:4] {
		d := hexDigit(c)
		if d < 0 {
			return -1
		}
		v = v<<4 | rune(d)
	}
	return v
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// number reads a number that starts here and gives its spelling.
func (s *scanner) number() (raw []byte, ok bool) {
	b, i := s.b, s.off
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i, ok = digits(b, i); !ok {
		s.off = i
		return nil, false
	}
	if i < len(b) && b[i] == '.' {
		if i, ok = digits(b, i+1); !ok {
			s.off = i
			return nil, false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i, ok = digits(b, i); !ok {
			s.off = i
			return nil, false
		}
	}
	raw = b[s.off:i:i]
	s.off = i
	return raw, true
}

// digits goes past one or more digits.
func digits(b []byte, i int) (end int, ok bool) {
	start := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i, i > start
}

// unquote appends what the raw inside of a valid JSON string means. A lone
// surrogate, which no UTF-8 can spell, becomes the three bytes its code point
// would have (WTF-8): so different strings stay different.
func unquote(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch c = raw[i+1]; c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			var n int
			dst, n = unquoteU(dst, raw[i:])
			i += n
			continue
		}
		dst = append(dst, c)
		i += 2
	}
	return dst
}

// unquoteU appends the code point of the \u escape (or the pair of them) that
// raw starts with and tells its length.
func unquoteU(dst, raw []byte) ([]byte, int) {
	r := hex4(raw[2:])
	if 0xD800 <= r && r < 0xDC00 && len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if low := hex4(raw[8:]); 0xDC00 <= low && low < 0xE000 {
			return utf8.AppendRune(dst, (r-0xD800)<<10|(low-0xDC00)+0x10000), 12
		}
	}
	if 0xD800 <= r && r < 0xE000 {
		return append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), 6
	}
	return utf8.AppendRune(dst, r), 6
}

// appendQuoted appends s, which is UTF-8, as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
