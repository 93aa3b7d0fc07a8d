//go:build wasm || amd64 || arm64

package fast

import (
	"math/bits"
	"unsafe"
)

// These machines load words from any address, the lowest byte first.

func load64(p unsafe.Pointer) uint64 { return *(*uint64)(p) }

func load32(p unsafe.Pointer) uint32 { return *(*uint32)(p) }

// firstByte is the index of the first byte marked in its high bit.
func firstByte(marks uint64) int { return bits.TrailingZeros64(marks) >> 3 }

// Load16, Load32 and Load64 read a word of the wire. The caller has compared
// the bounds.

func Load16(p unsafe.Pointer) uint16 { return *(*uint16)(p) }

func Load32(p unsafe.Pointer) uint32 { return *(*uint32)(p) }

func Load64(p unsafe.Pointer) uint64 { return *(*uint64)(p) }
