//go:build !wasm && !amd64 && !arm64

package fast

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

func load64(p unsafe.Pointer) uint64 {
	return binary.LittleEndian.Uint64(unsafe.Slice((*byte)(p), 8))
}

func load32(p unsafe.Pointer) uint32 {
	return binary.LittleEndian.Uint32(unsafe.Slice((*byte)(p), 4))
}

func firstByte(marks uint64) int { return bits.TrailingZeros64(marks) >> 3 }

func Load16(p unsafe.Pointer) uint16 {
	return binary.LittleEndian.Uint16(unsafe.Slice((*byte)(p), 2))
}

func Load32(p unsafe.Pointer) uint32 { return load32(p) }

func Load64(p unsafe.Pointer) uint64 { return load64(p) }
