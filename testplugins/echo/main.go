//go:build wasip1

// Command echo is a guest of ABI v1 written without an SDK: it keeps, per key,
// the type and data of the latest message. Tests use it where a plugin's own
// logic does not matter, and it shows the bare contract in one file.
//
// Build: GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w'
package main

import (
	"encoding/binary"
	"unsafe"
)

const manifest = `{"abi":1,"name":"echo","version":"1.0.0","consumers":[{` +
	`"type":"projection","name":"echo",` +
	`"inputs":[{"topic":"events","types":["*"],"key":"aggregate_id"}],` +
	`"tables":[{"name":"echo","columns":[` +
	`{"name":"type","kind":"text","max":255,"index":true},` +
	`{"name":"data","kind":"bytes"}]}]}]}`

// The input region stays reachable from here: the host writes every frame into it.
var region []byte

var ops = make([]byte, 0, 64<<10)

// In a reactor nothing calls main.
func main() {}

//go:wasmimport projhost_v1 done
func done(index, status int32, ops unsafe.Pointer, opsLen int32) int32

//go:wasmexport ph_abi_v1
func abiV1() int32 { return 0 }

//go:wasmexport ph_alloc
func alloc(size int32) int32 {
	region = make([]byte, max(size, 1))
	return int32(uintptr(unsafe.Pointer(&region[0])))
}

//go:wasmexport ph_describe
func describe() int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.StringData(manifest))))<<32 | int64(len(manifest))
}

//go:wasmexport ph_init
func initialise(_, _ int32) int32 { return 0 }

//go:wasmexport ph_apply
func apply(ptr, size int32) int32 {
	start := int(ptr) - int(uintptr(unsafe.Pointer(&region[0])))
	frame := region[start : start+int(size)]
	count := binary.LittleEndian.Uint32(frame[12:])
	rest := frame[16:]
	for i := range count {
		length := binary.LittleEndian.Uint32(rest)
		typ, data := fields(rest[4 : 4+length])
		rest = rest[4+length:]

		ops = binary.LittleEndian.AppendUint32(ops[:0], 1) // one op
		ops = append(ops, 1, 0, 0, 2, 0)                   // upsert, table 0, two columns
		ops = appendColumn(ops, 0, 5, typ)                 // text
		ops = appendColumn(ops, 1, 6, data)                // bytes
		if done(int32(i), 0, unsafe.Pointer(&ops[0]), int32(len(ops))) < 0 {
			return int32(i)
		}
	}
	return int32(count)
}

// fields finds the type and the data behind an entry's fixed part: str key, type,
// aggregate_type, aggregate_id, bytes metadata, data.
func fields(entry []byte) (typ, data []byte) {
	rest := entry[8+8+8+16+2+2+1+1+2+4:]
	var field [6][]byte
	for i := range field {
		n := binary.LittleEndian.Uint32(rest)
		field[i], rest = rest[4:4+n], rest[4+n:]
	}
	return field[1], field[5]
}

func appendColumn(b []byte, column uint16, tag byte, value []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, column)
	b = append(b, tag)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}
