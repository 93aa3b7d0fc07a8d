package json

import (
	"errors"
	"strconv"
	"strings"
)

// Pointer is a compiled JSON pointer (RFC 6901).
type Pointer struct {
	text   string
	tokens []string
	index  []int // the token as an array index, or -1
}

// NewPointer compiles a pointer such as "/case/AMOUNT_REQ". The empty pointer is
// the whole document. Compile pointers once, where the plugin is put together.
func NewPointer(text string) (Pointer, error) {
	p := Pointer{text: text}
	if text == "" {
		return p, nil
	}
	if text[0] != '/' {
		return p, errors.New("JSON pointer " + strconv.Quote(text) + ": it must start with /")
	}
	for token := range strings.SplitSeq(text[1:], "/") {
		for rest := token; ; {
			i := strings.IndexByte(rest, '~')
			if i < 0 {
				break
			}
			if i+1 >= len(rest) || rest[i+1] != '0' && rest[i+1] != '1' {
				return p, errors.New("JSON pointer " + strconv.Quote(text) + ": ~ must be followed by 0 or 1")
			}
			rest = rest[i+2:]
		}
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		p.tokens = append(p.tokens, token)
		p.index = append(p.index, arrayIndex(token))
	}
	return p, nil
}

// MustPointer is [NewPointer] for constants: it panics on a bad pointer.
func MustPointer(text string) Pointer {
	p, err := NewPointer(text)
	if err != nil {
		panic(err)
	}
	return p
}

// String returns the pointer's text.
func (p Pointer) String() string { return p.text }

// Find follows a pointer and returns the value there, or an absent one.
func (v Value) Find(p Pointer) Value {
	for i, token := range p.tokens {
		switch v.Kind() {
		case Object:
			v = v.Get(token)
		case Array:
			v = v.At(p.index[i])
		default:
			return Value{}
		}
	}
	return v
}

// arrayIndex reads a token as an index without sign or leading zeros; -1 if it
// is none.
func arrayIndex(token string) int {
	if token == "" || len(token) > 9 || len(token) > 1 && token[0] == '0' || skipDigits(token, 0) != len(token) {
		return -1
	}
	n, _ := strconv.Atoi(token)
	return n
}
