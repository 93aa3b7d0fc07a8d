package wasm

import "fmt"

// parseCode walks every function body, to learn what the code can do that
// matters to the host.
func (m *Module) parseCode(r *reader) {
	n := r.count(functionsMax, 2, "function bodies")
	m.bodies = make([]body, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		size := r.u32()
		if size > bodyMax {
			r.fail(fmt.Sprintf("function body of %d bytes, at most %d", size, bodyMax))
			return
		}
		start := r.off
		r.skip(int(size))
		if r.err != nil {
			return
		}
		m.bodies = append(m.bodies, body{start: start, end: r.off})
		in := &reader{b: r.b[:r.off], off: start}
		m.walkBody(in, &m.bodies[len(m.bodies)-1])
		if in.err != nil {
			r.err = in.err
			return
		}
	}
}

func (m *Module) walkBody(r *reader, f *body) {
	total := uint64(0)
	for n := r.count(localsMax, 2, "local groups"); n > 0 && r.err == nil; n-- {
		total += uint64(r.u32())
		if total > localsMax && r.err == nil {
			r.fail(fmt.Sprintf("function with more than %d locals", localsMax))
			return
		}
		if _, ok := m.valueType(r); !ok {
			m.unread = true
			return
		}
	}
	f.code = r.off
	for !r.done() {
		if !m.walkInstruction(r, f) {
			m.WritesTables, m.DropsSegments, m.unread = true, true, true
			return
		}
	}
}

// walkInstruction skips one instruction and notes what it can do. It returns
// false where the instruction is not known here: nothing after it can be read.
func (m *Module) walkInstruction(r *reader, f *body) bool {
	switch op := r.byte(); {
	case op <= 0x01, op == 0x05, op == 0x0b, op == 0x0f, op == 0x1a, op == 0x1b,
		op >= 0x45 && op <= 0xc4, op == 0xd1: // no immediate
	case op >= 0x02 && op <= 0x04: // block, loop, if
		r.sleb(33)
	case op >= 0x06 && op <= 0x0a, op == 0x18, op == 0x19, op == 0x1f:
		m.forbid("exceptions")
		return false
	case op == 0x0c, op == 0x0d, op >= 0x20 && op <= 0x25: // br, br_if, locals, globals, table.get
		r.u32()
	case op == 0x10, op == 0x12: // call, return_call
		f.calls = append(f.calls, r.u32())
	case op == 0xd2: // ref.func
		m.reachable[r.u32()] = struct{}{}
	case op == 0x26: // table.set
		r.u32()
		m.WritesTables = true
	case op == 0x0e: // br_table
		for n := r.count(brTargetsMax, 1, "branch targets"); n >= 0 && r.err == nil; n-- {
			r.u32()
		}
	case op == 0x11, op == 0x13: // call_indirect, return_call_indirect
		r.u32()
		r.u32()
		f.indirect = true
	case op == 0x14, op == 0x15, op >= 0xd3 && op <= 0xd6:
		m.forbid("typed function references")
		return false
	case op == 0x1c: // select with a type
		for n := r.count(1, 1, "types of a select"); n > 0 && r.err == nil; n-- {
			if _, ok := m.valueType(r); !ok {
				return false
			}
		}
	case op >= 0x28 && op <= 0x3e: // loads and stores
		m.memarg(r)
	case op == 0x3f, op == 0x40: // memory.size, memory.grow
		m.memoryIndex(r)
	case op == 0x41:
		r.sleb(32)
	case op == 0x42:
		r.sleb(64)
	case op == 0x43:
		r.skip(4)
	case op == 0x44:
		r.skip(8)
	case op == 0xd0: // ref.null
		_, ok := m.valueType(r)
		return ok
	case op == 0xfb:
		m.forbid("GC types")
		return false
	case op == 0xfc:
		return m.walkMisc(r)
	case op == 0xfd:
		return m.walkVector(r)
	case op == 0xfe:
		m.forbid("threads")
		return false
	default:
		return false
	}
	return true
}

func (m *Module) walkMisc(r *reader) bool {
	switch sub := r.u32(); sub {
	case 0, 1, 2, 3, 4, 5, 6, 7: // saturating conversions
	case 8: // memory.init
		r.u32()
		m.memoryIndex(r)
	case 9: // data.drop
		r.u32()
		m.DropsSegments = true
	case 10: // memory.copy
		m.memoryIndex(r)
		m.memoryIndex(r)
	case 11: // memory.fill
		m.memoryIndex(r)
	case 12, 14: // table.init, table.copy
		r.u32()
		r.u32()
		m.WritesTables = true
	case 13: // elem.drop
		r.u32()
		m.DropsSegments = true
	case 15, 17: // table.grow, table.fill
		r.u32()
		m.WritesTables = true
	case 16: // table.size
		r.u32()
	default:
		return false
	}
	return true
}

func (m *Module) walkVector(r *reader) bool {
	switch sub := r.u32(); {
	case sub <= 0x0b, sub == 0x5c, sub == 0x5d: // loads and stores
		m.memarg(r)
	case sub == 0x0c, sub == 0x0d: // v128.const, i8x16.shuffle
		r.skip(16)
	case sub >= 0x15 && sub <= 0x22: // extract and replace lane
		r.skip(1)
	case sub >= 0x54 && sub <= 0x5b: // load and store lane
		m.memarg(r)
		r.skip(1)
	case sub <= 0xff:
	default:
		m.forbid("relaxed SIMD")
		return false
	}
	return true
}

func (m *Module) memarg(r *reader) {
	if align := r.u32(); align&0x40 != 0 {
		m.forbid("multi-memory")
		r.u32()
	}
	r.u64() // 32 bits but for memory64, which is forbidden elsewhere
}

func (m *Module) memoryIndex(r *reader) {
	if r.u32() != 0 {
		m.forbid("multi-memory")
	}
}
