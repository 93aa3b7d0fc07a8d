package abi

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
	"unsafe"
)

var le = binary.LittleEndian

// cursor reads from b. The first thing that does not fit is kept in reason and
// at; from then on reads answer zero, so a decoder asks once, at its end.
type cursor struct {
	b      []byte
	off    int // ≤ len(b)
	at     int
	reason string // empty: nothing wrong yet
}

func (c *cursor) fail(at int, reason string) {
	if c.reason == "" {
		c.at, c.reason = at, reason
	}
}

func (c *cursor) left() int { return len(c.b) - c.off }

func (c *cursor) err(what string) error {
	if c.reason == "" {
		return nil
	}
	return &MalformedError{What: what, Offset: c.at, Reason: c.reason}
}

// end fails if anything is left.
func (c *cursor) end() {
	if c.off != len(c.b) {
		c.fail(c.off, "bytes after the end")
	}
}

const (
	truncated = "the input ends too early"
	tooLong   = "a length beyond the end of the input"
)

// take gives the next n bytes.
func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b)-c.off || c.reason != "" {
		c.fail(c.off, truncated)
		return nil
	}
	v := c.b[c.off : c.off+n : c.off+n]
	c.off += n
	return v
}

func (c *cursor) u8() uint8 {
	if v := c.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if v := c.take(2); v != nil {
		return le.Uint16(v)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if v := c.take(4); v != nil {
		return le.Uint32(v)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if v := c.take(8); v != nil {
		return le.Uint64(v)
	}
	return 0
}

// bytes reads a length and that many bytes.
func (c *cursor) bytes() []byte {
	at := c.off
	n := c.u32()
	// Compared as uint64: int has 32 bits on some guests.
	if uint64(n) > uint64(c.left()) {
		c.fail(at, tooLong)
		return nil
	}
	return c.take(int(n))
}

// key reads a str that must be storable as a key.
func (c *cursor) key(what string) []byte {
	at := c.off
	k := c.bytes()
	if c.reason == "" {
		if reason := checkKey(k); reason != "" {
			c.fail(at, what+" "+reason)
		}
	}
	return k
}

// text reads a str that must be UTF-8 without NUL.
func (c *cursor) text(what string) []byte {
	at := c.off
	s := c.bytes()
	if !ValidText(s) {
		c.fail(at, what+" is not UTF-8, or holds U+0000")
	}
	return s
}

// ValidText tells whether b is UTF-8 without U+0000, which is what every
// database can hold as text.
func ValidText(b []byte) bool {
	return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b)
}

// CheckKey returns an error if key cannot be stored as an id, a key or a child
// key on every engine: 1 to 255 code points of UTF-8, no U+0000, no trailing
// space.
func CheckKey(key string) error {
	if reason := checkKey(viewBytes(key)); reason != "" {
		return &MalformedError{What: "key", Reason: "the key " + reason}
	}
	return nil
}

// checkKey tells what is wrong with a key, or "".
func checkKey(k []byte) string {
	switch {
	case len(k) == 0:
		return "is empty"
	case !utf8.Valid(k):
		return "is not UTF-8"
	case bytes.IndexByte(k, 0) >= 0:
		return "holds U+0000"
	case k[len(k)-1] == ' ':
		return "ends with a space"
	case len(k) > MaxKeyRunes && utf8.RuneCount(k) > MaxKeyRunes:
		return "is longer than 255 code points"
	}
	return ""
}

func appendStr[T string | []byte](dst []byte, s T) []byte {
	dst = le.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

// viewString gives b as a string without copying it: b must not change while
// the string is used.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// viewBytes gives s as bytes without copying it: they must not be written.
func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
