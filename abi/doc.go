// Package abi is the contract between the host and a guest: the bytes of ABI
// version 1. It holds request frames (host to guest), ops and rows (guest to
// host and back), the manifest and the error codes, and knows neither SQL nor
// WebAssembly engines.
//
// It uses the standard library only and builds for wasip1 and TinyGo, so a
// guest written in Go shares it with the host. Encoding appends to a caller's
// buffer and decoding returns views into the input: neither allocates on the
// hot path. Decoders accept any bytes: they return [ErrMalformed], and never
// panic or read outside their input.
//
// All integers are little-endian. A str or bytes field is a u32 length and
// that many bytes.
package abi
