// Package fast has the few loops over bytes that an event's cost in a guest
// consists of. In WebAssembly code made by Go a turn of a loop costs two
// nanoseconds or more, whatever it does, so bytes are taken eight at a time.
// (Copying is left to the runtime: append becomes memory.copy.)
//
// Words are loaded within the bounds of the arguments only.
package fast

import "unsafe"

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080

	quotes      = '"' * ones
	backslashes = '\\' * ones
)

// Equal is a == b.
func Equal(a, b string) bool {
	n := len(a)
	if n != len(b) {
		return false
	}
	p, q := unsafe.Pointer(unsafe.StringData(a)), unsafe.Pointer(unsafe.StringData(b))
	if p == q {
		return true
	}
	if n >= 8 {
		for i := 0; i < n-8; i += 8 {
			if load64(unsafe.Add(p, i)) != load64(unsafe.Add(q, i)) {
				return false
			}
		}
		return load64(unsafe.Add(p, n-8)) == load64(unsafe.Add(q, n-8))
	}
	if n >= 4 {
		return load32(p) == load32(q) && load32(unsafe.Add(p, n-4)) == load32(unsafe.Add(q, n-4))
	}
	// One byte is all three of these, two are two of them.
	return n == 0 || at(p, 0) == at(q, 0) && at(p, n-1) == at(q, n-1) && at(p, n/2) == at(q, n/2)
}

// StringEnd returns the index of the first quote or backslash of s from i on,
// len(s) if there is none.
func StringEnd(s string, i int) int {
	n := len(s)
	p := unsafe.Pointer(unsafe.StringData(s))
	for ; i <= n-8; i += 8 {
		w := load64(unsafe.Add(p, i))
		if hit := zeroes(w^quotes) | zeroes(w^backslashes); hit != 0 {
			return i + firstByte(hit)
		}
	}
	if i < n && n >= 8 {
		// The last word again, without the bytes before i.
		w := load64(unsafe.Add(p, n-8)) >> (8 * (8 - (n - i)))
		if hit := zeroes(w^quotes) | zeroes(w^backslashes); hit != 0 {
			return i + firstByte(hit)
		}
		return n
	}
	for ; i < n; i++ {
		if c := at(p, i); c == '"' || c == '\\' {
			return i
		}
	}
	return n
}

// Plain reports whether s stands in a JSON string as it is: ASCII without
// control characters, quotes and backslashes.
func Plain(s string) bool {
	n := len(s)
	p := unsafe.Pointer(unsafe.StringData(s))
	if n >= 8 {
		for i := 0; i < n-8; i += 8 {
			if special(load64(unsafe.Add(p, i))) != 0 {
				return false
			}
		}
		return special(load64(unsafe.Add(p, n-8))) == 0
	}
	// Shorter ones are put together to one word, with bytes that are plain.
	w := uint64('0' * ones)
	switch {
	case n >= 4:
		w = uint64(load32(p))<<32 | uint64(load32(unsafe.Add(p, n-4)))
	case n > 0:
		w ^= uint64(at(p, 0)^'0') | uint64(at(p, n/2)^'0')<<8 | uint64(at(p, n-1)^'0')<<16
	}
	return special(w) == 0
}

// special is not zero if one of the bytes of w must be escaped or looked at
// closer. Borrows can mark a byte behind such a one too, which changes nothing.
func special(w uint64) uint64 {
	return w&highs | (w-' '*ones)&^w&highs | zeroes(w^quotes) | zeroes(w^backslashes)
}

// StringMarks marks the quotes and backslashes among the 8 bytes at p: the lowest
// mark is one, others may be none. It is for loops that cannot afford the call of
// StringEnd; FirstByte tells the place of the lowest.
func StringMarks(p unsafe.Pointer) uint64 {
	w := load64(p)
	return zeroes(w^quotes) | zeroes(w^backslashes)
}

// FirstByte is the index of the lowest byte marked.
func FirstByte(marks uint64) int { return firstByte(marks) }

// zeroes marks the lowest byte of w that is zero, and perhaps some above it.
func zeroes(w uint64) uint64 { return (w - ones) &^ w & highs }

func at(p unsafe.Pointer, i int) byte { return *(*byte)(unsafe.Add(p, i)) }
