package e2e

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// tiny is a plugin of a few hundred bytes, made by hand: it has every export,
// wants messages of a type that there is not. What is wrong with a module can be said
// exactly, without a tool chain.
type tiny struct {
	name          string // of the consumer; "": tiny
	table, column string
	manifest      string    // instead of the one made of table and column
	without       []string  // exports to leave out
	imports       [2]string // module and name of a function
}

func (m tiny) bytes() []byte {
	manifest := m.manifest
	if manifest == "" {
		manifest = fmt.Sprintf(`{"abi":1,"name":"tiny","version":"1","consumers":[{"type":"projection","name":%q,`+
			`"inputs":[{"topic":"events","types":["never"],"key":"aggregate_id"}],`+
			`"tables":[{"name":%q,"columns":[{"name":%q,"kind":"int"}]}]}]}`, cmp.Or(m.name, "tiny"), m.table, m.column)
	}
	const at, region = 1024, 65536
	functions := []struct {
		name string
		typ  byte
		body []byte
	}{
		{"ph_abi_v1", 0, []byte{0x41, 0}},
		{"ph_describe", 1, sleb([]byte{0x42}, at<<32|int64(len(manifest)))},
		{"ph_alloc", 2, sleb([]byte{0x41}, region)},
		{"ph_init", 3, []byte{0x41, 0}},
		{"ph_apply", 3, []byte{0x41, 0}},
	}
	var imports, funcs, exports, codes []string
	if m.imports[0] != "" {
		imports = append(imports, text(m.imports[0])+text(m.imports[1])+"\x00\x04")
	}
	for i, f := range functions {
		funcs = append(funcs, string(f.typ))
		body := "\x00" + string(f.body) + "\x0b"
		codes = append(codes, text(body))
		if !slices.Contains(m.without, f.name) {
			exports = append(exports, text(f.name)+"\x00"+string(uleb(nil, uint64(len(imports)+i))))
		}
	}
	if !slices.Contains(m.without, "memory") {
		exports = append(exports, text("memory")+"\x02\x00")
	}
	out := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, items ...string) {
		body := uleb(nil, uint64(len(items)))
		for _, item := range items {
			body = append(body, item...)
		}
		out = append(uleb(append(out, id), uint64(len(body))), body...)
	}
	section(1, "\x60\x00\x01\x7f", "\x60\x00\x01\x7e", "\x60\x01\x7f\x01\x7f", "\x60\x02\x7f\x7f\x01\x7f", "\x60\x00\x00")
	if len(imports) > 0 {
		section(2, imports...)
	}
	section(3, funcs...)
	section(5, "\x00"+string(uleb(nil, 200))) // pages
	section(7, exports...)
	section(10, codes...)
	section(11, "\x00\x41"+string(sleb(nil, at))+"\x0b"+text(manifest))
	return out
}

// text is a string with its length before it.
func text(s string) string { return string(uleb(nil, uint64(len(s)))) + s }

func uleb(dst []byte, n uint64) []byte { return binary.AppendUvarint(dst, n) }

func sleb(dst []byte, n int64) []byte {
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return append(dst, b)
		}
		dst = append(dst, b|0x80)
	}
}
