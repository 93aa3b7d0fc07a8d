package wasm

import (
	"encoding/binary"
	"fmt"
)

// ReservedPrefix begins the names of exports the rewriter adds. A module with
// such an export of its own is not admitted.
const ReservedPrefix = "projhost:"

// GlobalExport is the name under which Rewrite exports an own global.
func GlobalExport(i int) string { return fmt.Sprintf("%sglobal:%d", ReservedPrefix, i) }

// MutableGlobals lists the indices of the module's own mutable globals.
func (m *Module) MutableGlobals() []int {
	var is []int
	for i, g := range m.Globals {
		if g.Mutable {
			is = append(is, i)
		}
	}
	return is
}

// Rewrite returns the module with its mutable globals exported, so that the
// host can put them back; with its memory's maximum taken away, because the
// host's own allocator enforces it and learns of refusals that way; with its
// tables bounded; and with no custom section but the names of functions, which
// are safe to read.
//
// With stoppable, every function that can call itself, by whatever detour, gets
// an empty loop to begin with: the engine looks whether a call was ended at
// loops only, and code can run for ever without any.
func (m *Module) Rewrite(stoppable bool) []byte {
	out := make([]byte, 0, len(m.bin)+64+24*len(m.Globals))
	out = append(out, m.bin[:8]...)
	for _, s := range m.sections {
		content := m.bin[s.start:s.end]
		switch {
		case s.id == secExport:
			content = m.exportsRewritten(content)
		case s.id == secMemory:
			content = m.memoriesRewritten()
		case s.id == secTable:
			content = m.tablesRewritten()
		case s.id == secCode && stoppable:
			content = m.codeRewritten()
		case s.id == secCustom:
			var ok bool
			if content, ok = namesRewritten(s.name, content); !ok {
				continue
			}
		}
		out = append(out, s.id)
		out = binary.AppendUvarint(out, uint64(len(content)))
		out = append(out, content...)
	}
	return out
}

func (m *Module) exportsRewritten(content []byte) []byte {
	globals := m.MutableGlobals()
	r := &reader{b: content}
	r.u32()
	out := binary.AppendUvarint(nil, uint64(len(m.Exports)+len(globals)))
	out = append(out, content[r.off:]...)
	for _, g := range globals {
		out = appendName(out, GlobalExport(g))
		out = append(out, byte(KindGlobal))
		out = binary.AppendUvarint(out, uint64(m.importedGlobals+g))
	}
	return out
}

func (m *Module) memoriesRewritten() []byte {
	out := binary.AppendUvarint(nil, uint64(len(m.Memories)))
	for _, l := range m.Memories {
		out = append(out, 0)
		out = binary.AppendUvarint(out, l.Min)
	}
	return out
}

// tablesRewritten bounds every table: what table.grow takes is the host's
// memory and outside the limit of the guest's.
func (m *Module) tablesRewritten() []byte {
	out := binary.AppendUvarint(nil, uint64(len(m.Tables)))
	for i, l := range m.Tables {
		top := uint64(TableSizeMax)
		if l.HasMax {
			top = min(top, l.Max)
		}
		out = append(out, m.tableTypes[i], 1)
		out = binary.AppendUvarint(out, l.Min)
		out = binary.AppendUvarint(out, top)
	}
	return out
}

// emptyLoop is `loop end`.
var emptyLoop = []byte{0x03, 0x40, 0x0b}

func (m *Module) codeRewritten() []byte {
	recursive := m.recursive()
	out := binary.AppendUvarint(nil, uint64(len(m.bodies)))
	for i, f := range m.bodies {
		if !recursive[i] {
			out = binary.AppendUvarint(out, uint64(f.end-f.start))
			out = append(out, m.bin[f.start:f.end]...)
			continue
		}
		out = binary.AppendUvarint(out, uint64(f.end-f.start+len(emptyLoop)))
		out = append(out, m.bin[f.start:f.code]...)
		out = append(out, emptyLoop...)
		out = append(out, m.bin[f.code:f.end]...)
	}
	return out
}

// namesRewritten keeps the module's and the functions' names, which traps are
// told with, and drops the rest. False: the section is not well-formed, and a
// trap has to do without.
func namesRewritten(section string, content []byte) ([]byte, bool) {
	if section != "name" {
		return nil, false
	}
	r := &reader{b: content}
	r.name() // "name"
	out := append([]byte(nil), content[:r.off]...)
	last := -1
	for !r.done() {
		id := r.byte()
		body := r.bytes(r.u32())
		if r.err != nil || int(id) <= last {
			return nil, false
		}
		last = int(id)
		if id > 1 {
			continue
		}
		n := &reader{b: body}
		if id == 0 {
			n.name()
		} else {
			next := uint64(0)
			for k := n.count(functionsMax, 2, "names"); k > 0 && n.err == nil; k-- {
				index := uint64(n.u32())
				if index < next {
					return nil, false
				}
				next = index + 1
				n.name()
			}
		}
		if n.err != nil || n.left() > 0 {
			return nil, false
		}
		out = append(out, id)
		out = binary.AppendUvarint(out, uint64(len(body)))
		out = append(out, body...)
	}
	return out, r.err == nil
}

func appendName(out []byte, name string) []byte {
	out = binary.AppendUvarint(out, uint64(len(name)))
	return append(out, name...)
}
