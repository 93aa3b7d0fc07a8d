package json

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/projhost/projhost/sdk/go/internal/fast"
)

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// skipSpace returns the index of the first byte from i on that is no space.
// Most documents have none; the loop is kept out of the way of inlining.
func skipSpace(s string, i int) int {
	if i < len(s) && s[i] > ' ' {
		return i
	}
	return skipSpaces(s, i)
}

func skipSpaces(s string, i int) int {
	for i < len(s) && s[i] <= ' ' && isSpace(s[i]) {
		i++
	}
	return i
}

// skipString returns the index behind the closing quote of the string whose
// first character is at i, and whether it holds escapes; -1 if it does not end.
func skipString(s string, i int) (end int, escaped bool) {
	for {
		i = fast.StringEnd(s, i)
		switch {
		case i >= len(s):
			return -1, escaped
		case s[i] == '"':
			return i + 1, escaped
		}
		escaped = true
		i += 2
	}
}

// skipValue returns the index behind the value that starts at i, or -1. Within
// arrays and objects it counts brackets and steps over strings, no more.
func skipValue(s string, i int) int {
	if i >= len(s) {
		return -1
	}
	switch s[i] {
	case '"':
		if i = fast.StringEnd(s, i+1); i < len(s) && s[i] == '"' {
			return i + 1
		}
		end, _ := skipString(s, i)
		return end
	case '{', '[':
		return skipContainer(s, i)
	}
	start := i
	for i < len(s) && !endsScalar(s[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func endsScalar(c byte) bool {
	return c == ',' || c == '}' || c == ']' || c <= ' ' || c == '"' || c == ':' || c == '{' || c == '['
}

func skipContainer(s string, i int) int {
	base, words := unsafe.Pointer(unsafe.StringData(s)), len(s)-8
	for depth := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			start := i + 1
			for i = start; i <= words; i += 8 {
				if marks := fast.StringMarks(unsafe.Add(base, i)); marks != 0 {
					i += fast.FirstByte(marks)
					break
				}
			}
			if i >= len(s) || s[i] != '"' {
				if i, _ = skipString(s, start); i < 0 {
					return -1
				}
				i--
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// skipNumber returns the index behind the number that starts at i, by JSON's
// grammar, or -1.
func skipNumber(s string, i int) int {
	if i < len(s) && s[i] == '-' {
		i++
	}
	switch {
	case i < len(s) && s[i] == '0':
		i++
	case i < len(s) && s[i]-'1' <= 8:
		i = skipDigits(s, i)
	default:
		return -1
	}
	if i < len(s) && s[i] == '.' {
		from := i + 1
		if i = skipDigits(s, from); i == from {
			return -1
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		i++
		if i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		from := i
		if i = skipDigits(s, from); i == from {
			return -1
		}
	}
	return i
}

func skipDigits(s string, i int) int {
	for i < len(s) && s[i]-'0' <= 9 {
		i++
	}
	return i
}

func unescape(s string) string {
	return string(appendUnescaped(make([]byte, 0, len(s)), s))
}

// appendUnescaped appends the inside of a string. A lone surrogate becomes
// U+FFFD, as in encoding/json; an escape that is none stays as it is spelled.
func appendUnescaped(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		c := s[i+1]
		if c == 'u' {
			r, size := escapedRune(s[i:])
			dst = utf8.AppendRune(dst, r)
			s = s[i+size:]
			continue
		}
		switch c {
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
		case '"', '\\', '/':
		default:
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
		s = s[i+2:]
	}
}

// escapedRune reads the \u escape at the start of s, with the second half of a
// surrogate pair, and tells how many bytes it takes (all of s if it is cut short).
func escapedRune(s string) (rune, int) {
	r := hex4(s)
	if r < 0 {
		return utf8.RuneError, min(len(s), 6)
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if full := utf16.DecodeRune(r, hex4(s[6:])); full != utf8.RuneError {
		return full, 12
	}
	return utf8.RuneError, 6
}

// hex4 returns the code unit of the escape \uXXXX at the start of s, or -1.
func hex4(s string) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
