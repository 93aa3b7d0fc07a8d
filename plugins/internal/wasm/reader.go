package wasm

import "unicode/utf8"

// reader walks a slice. After the first error it stays where it is and every
// further read gives zero, so callers check err once per item.
type reader struct {
	b   []byte
	off int // of the next byte in b
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = &FormatError{Offset: r.off, What: what}
	}
}

func (r *reader) left() int { return len(r.b) - r.off }
func (r *reader) done() bool {
	return r.err != nil || r.off >= len(r.b)
}

func (r *reader) byte() byte {
	if r.err != nil || r.off >= len(r.b) {
		r.fail("unexpected end")
		return 0
	}
	c := r.b[r.off]
	r.off++
	return c
}

func (r *reader) skip(n int) {
	if r.err != nil {
		return
	}
	if n < 0 || n > r.left() {
		r.fail("unexpected end")
		return
	}
	r.off += n
}

func (r *reader) bytes(n uint32) []byte {
	if r.err != nil {
		return nil
	}
	if uint64(n) > uint64(r.left()) {
		r.fail("unexpected end")
		return nil
	}
	s := r.b[r.off : r.off+int(n) : r.off+int(n)]
	r.off += int(n)
	return s
}

func (r *reader) u32() uint32 { return uint32(r.leb(32)) }
func (r *reader) u64() uint64 { return r.leb(64) }

// leb reads an unsigned LEB128 number of at most bits bits, as strictly as the
// format asks: no longer than it may be and no stray bits in its last byte.
func (r *reader) leb(bits uint) uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if shift+7 > bits && c>>(bits-shift) != 0 {
			r.fail("number too large")
			return 0
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
}

// sleb skips a signed LEB128 number of at most bits bits.
func (r *reader) sleb(bits uint) {
	for n := uint(0); n < (bits+6)/7; n++ {
		if c := r.byte(); c < 0x80 {
			return
		}
	}
	r.fail("number too large")
}

// name reads a length and that many bytes of UTF-8.
func (r *reader) name() string {
	b := r.bytes(r.u32())
	if r.err == nil && !utf8.Valid(b) {
		r.fail("name is not UTF-8")
	}
	return string(b)
}

// count reads the length of a vector whose items take at least min bytes: a
// length that cannot be there is an error, before anybody makes room for it.
func (r *reader) count(limit uint32, min int, what string) int {
	n := r.u32()
	if r.err != nil {
		return 0
	}
	if n > limit {
		r.fail("too many " + what)
		return 0
	}
	if uint64(n)*uint64(min) > uint64(r.left()) {
		r.fail("more " + what + " than bytes")
		return 0
	}
	return int(n)
}
