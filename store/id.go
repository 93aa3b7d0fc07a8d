package store

import "encoding/hex"

// String gives the UUID's usual form.
func (id ID) String() string {
	var b [36]byte
	return string(id.Append(b[:0]))
}

// Append appends the UUID's usual form.
func (id ID) Append(b []byte) []byte {
	b = append(hex.AppendEncode(b, id[0:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:16])
}
