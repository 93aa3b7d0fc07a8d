package readmodel

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonDepthMax is how deep a JSON value may nest. SQL engines read less than
// parsers in programs do, and nothing deeper has been seen to mean anything.
const jsonDepthMax = 512

// jsonText reads JSON in place: it builds no tree and copies nothing.
type jsonText struct {
	b []byte
	i int
}

// validJSON tells whether b is one JSON value (RFC 8259) in UTF-8, white space
// around it allowed.
func validJSON(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	t := jsonText{b: b}
	t.space()
	if !t.value(jsonDepthMax) {
		return false
	}
	t.space()
	return t.i == len(b)
}

func (t *jsonText) space() {
	for t.i < len(t.b) {
		switch t.b[t.i] {
		case ' ', '\n', '\t', '\r':
			t.i++
		default:
			return
		}
	}
}

// value moves past the value that starts here.
func (t *jsonText) value(depth int) bool {
	if t.i == len(t.b) || depth == 0 {
		return false
	}
	switch c := t.b[t.i]; {
	case c == '"':
		return t.text()
	case c == '{':
		return t.list('}', depth)
	case c == '[':
		return t.list(']', depth)
	case c == 't':
		return t.word("true")
	case c == 'f':
		return t.word("false")
	case c == 'n':
		return t.word("null")
	}
	return t.number()
}

// list moves past an object or an array, which ends in end.
func (t *jsonText) list(end byte, depth int) bool {
	t.i++
	t.space()
	if t.i < len(t.b) && t.b[t.i] == end {
		t.i++
		return true
	}
	for {
		if end == '}' && !t.name() || !t.value(depth-1) {
			return false
		}
		t.space()
		if t.i == len(t.b) {
			return false
		}
		c := t.b[t.i]
		t.i++
		if c == end {
			return true
		}
		if c != ',' {
			return false
		}
		t.space()
	}
}

// name moves past a member's name and colon, to where its value starts.
func (t *jsonText) name() bool {
	if t.i == len(t.b) || t.b[t.i] != '"' || !t.text() {
		return false
	}
	t.space()
	if t.i == len(t.b) || t.b[t.i] != ':' {
		return false
	}
	t.i++
	t.space()
	return true
}

func (t *jsonText) word(w string) bool {
	if len(t.b)-t.i < len(w) || string(t.b[t.i:t.i+len(w)]) != w {
		return false
	}
	t.i += len(w)
	return true
}

func (t *jsonText) digits() bool {
	start := t.i
	for t.i < len(t.b) && isDigit(t.b[t.i]) {
		t.i++
	}
	return t.i > start
}

func (t *jsonText) at(c byte) bool { return t.i < len(t.b) && t.b[t.i] == c }

func (t *jsonText) number() bool {
	if t.at('-') {
		t.i++
	}
	if t.at('0') {
		t.i++
	} else if !t.digits() {
		return false
	}
	if t.at('.') {
		t.i++
		if !t.digits() {
			return false
		}
	}
	if t.at('e') || t.at('E') {
		t.i++
		if t.at('+') || t.at('-') {
			t.i++
		}
		return t.digits()
	}
	return true
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks, by their high bit, the bytes of w that end the plain part of
// a JSON string: quote, backslash, control characters. A byte after the first
// marked one may be marked wrongly, so only the first is used.
func special(w uint64) uint64 {
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return ((w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

// text moves past the string that starts here.
func (t *jsonText) text() bool {
	b, i := t.b, t.i+1
	for {
		for len(b)-i >= 8 {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
			i++
		}
		if i == len(b) || b[i] < 0x20 {
			return false
		}
		if b[i] == '"' {
			t.i = i + 1
			return true
		}
		n := escapeLen(b[i:])
		if n == 0 {
			return false
		}
		i += n
	}
}

// escapeLen is the length of the escape sequence b starts with, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unquote appends what a valid JSON string, quotes included, spells. It is
// false for a lone surrogate, which no UTF-8 text can hold.
func unquote(dst, quoted []byte) ([]byte, bool) {
	b := quoted[1 : len(quoted)-1]
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			dst = append(dst, b[i])
			i++
			continue
		}
		c := b[i+1]
		if c != 'u' {
			dst = append(dst, unescape(c))
			i += 2
			continue
		}
		r, _ := hex4(b[i+2:])
		i += 6
		if utf16.IsSurrogate(r) {
			if len(b)-i < 6 || b[i] != '\\' || b[i+1] != 'u' {
				return dst, false
			}
			low, _ := hex4(b[i+2:])
			i += 6
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return dst, false
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// AppendJSONString appends text, valid UTF-8, as a JSON string. Only what has to
// be is escaped.
func AppendJSONString[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}

// pointer is a JSON pointer (RFC 6901), taken apart.
type pointer []string

// parsePointer reads a pointer; "" is the whole document.
func parsePointer(s string) (pointer, bool) {
	if s == "" {
		return nil, true
	}
	if s[0] != '/' {
		return nil, false
	}
	var p pointer
	var token []byte
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '/':
			p = append(p, string(token))
			token = token[:0]
		case '~':
			i++
			switch {
			case i < len(s) && s[i] == '0':
				token = append(token, '~')
			case i < len(s) && s[i] == '1':
				token = append(token, '/')
			default:
				return nil, false
			}
		default:
			token = append(token, c)
		}
	}
	return append(p, string(token)), true
}

// find returns the value the pointer names within a valid document, nil if
// there is none. Of duplicate members the last counts.
func (p pointer) find(doc []byte) []byte {
	t := jsonText{b: doc}
	t.space()
	for _, token := range p {
		var value []byte
		switch {
		case t.at('{'):
			value = t.lastMember(token)
		case t.at('['):
			value = t.element(token)
		}
		if value == nil {
			return nil
		}
		t = jsonText{b: value}
	}
	start := t.i
	if !t.value(jsonDepthMax) {
		return nil
	}
	return t.b[start:t.i]
}

// lastMember returns the value of the last member of that name in the object
// that starts here.
func (t *jsonText) lastMember(name string) []byte {
	var value []byte
	t.i++
	for t.space(); !t.at('}'); t.space() {
		start := t.i
		if !t.text() {
			return nil
		}
		match := equalQuoted(t.b[start:t.i], name)
		t.i = start
		if !t.name() {
			return nil
		}
		start = t.i
		if !t.value(jsonDepthMax) {
			return nil
		}
		if match {
			value = t.b[start:t.i]
		}
		if t.space(); t.at(',') {
			t.i++
		}
	}
	return value
}

// element returns the array's element whose index the token spells.
func (t *jsonText) element(token string) []byte {
	if token == "" || len(token) > 9 || len(token) > 1 && token[0] == '0' {
		return nil
	}
	index := 0
	for _, c := range []byte(token) {
		if !isDigit(c) {
			return nil
		}
		index = index*10 + int(c-'0')
	}
	t.i++
	for t.space(); !t.at(']'); t.space() {
		start := t.i
		if !t.value(jsonDepthMax) {
			return nil
		}
		if index == 0 {
			return t.b[start:t.i]
		}
		index--
		if t.space(); t.at(',') {
			t.i++
		}
	}
	return nil
}

func equalQuoted(quoted []byte, name string) bool {
	inner := quoted[1 : len(quoted)-1]
	for _, c := range inner {
		if c == '\\' {
			decoded, ok := unquote(nil, quoted)
			return ok && string(decoded) == name
		}
	}
	return string(inner) == name
}
