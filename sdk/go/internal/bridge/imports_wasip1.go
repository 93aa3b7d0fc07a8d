package bridge

import "unsafe"

// The compiler passes pointers as 32-bit offsets. None of them is kept by the
// host beyond the call, so none escapes.

//go:wasmimport projhost_v1 done
//go:noescape
func done(index, status int32, ops unsafe.Pointer, opsLen int32) int32

//go:wasmimport projhost_v1 keys
//go:noescape
func keys(index int32, keys unsafe.Pointer, keysLen int32) int32

//go:wasmimport projhost_v1 get
//go:noescape
func get(table int32, key unsafe.Pointer, keyLen int32, out unsafe.Pointer, outCap int32) int64

//go:wasmimport projhost_v1 list
//go:noescape
func list(table int32, key unsafe.Pointer, keyLen int32, after unsafe.Pointer, afterLen, limit int32, out unsafe.Pointer, outCap int32) int64

//go:wasmimport projhost_v1 log
//go:noescape
func log(level int32, message unsafe.Pointer, messageLen int32)

//go:wasmimport projhost_v1 fail
//go:noescape
func fail(code int32, reason unsafe.Pointer, reasonLen int32)

//go:wasmimport projhost_v1 random
//go:noescape
func random(b unsafe.Pointer, n int32)

//go:wasmimport wasi_snapshot_preview1 proc_exit
func procExit(code int32)

// Done gives the host the result of an entry; negative: return at once.
func Done(index, status int32, ops []byte) int32 {
	return done(index, status, unsafe.Pointer(unsafe.SliceData(ops)), int32(len(ops)))
}

// Keys gives the host the keys of a message.
func Keys(index int32, b []byte) int32 {
	return keys(index, unsafe.Pointer(unsafe.SliceData(b)), int32(len(b)))
}

// Get asks for a row. It is in out[:n] if n ≤ len(out).
func Get(table int32, key, out []byte) (n int64) {
	return get(table, unsafe.Pointer(unsafe.SliceData(key)), int32(len(key)),
		unsafe.Pointer(unsafe.SliceData(out)), int32(len(out)))
}

// List asks for children in the order of their keys.
func List(table int32, key, after []byte, limit int32, out []byte) (n int64) {
	return list(table, unsafe.Pointer(unsafe.SliceData(key)), int32(len(key)),
		unsafe.Pointer(unsafe.SliceData(after)), int32(len(after)), limit,
		unsafe.Pointer(unsafe.SliceData(out)), int32(len(out)))
}

// Log writes to the host's log.
func Log(level int32, message string) {
	log(level, unsafe.Pointer(unsafe.StringData(message)), int32(len(message)))
}

// Fail tells the host why the current entry fails.
func Fail(code int32, reason string) {
	fail(code, unsafe.Pointer(unsafe.StringData(reason)), int32(len(reason)))
}

// Random fills b with the entry's seeded bytes.
func Random(b []byte) { random(unsafe.Pointer(unsafe.SliceData(b)), int32(len(b))) }

// Trap ends the call: the host restores the instance.
func Trap(any) {
	procExit(2)
	panic("unreachable")
}
