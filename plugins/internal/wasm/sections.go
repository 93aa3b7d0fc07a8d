package wasm

import "fmt"

func (m *Module) parseTypes(r *reader) bool {
	for n := r.count(typesMax, 1, "types"); n > 0 && r.err == nil; n-- {
		if form := r.byte(); form != 0x60 {
			if r.err == nil && (form < 0x4e || form > 0x5f) {
				r.fail(fmt.Sprintf("type form 0x%x", form))
			}
			m.forbid("GC types")
			m.typesKnown = false
			return false
		}
		var t FuncType
		var ok bool
		if t.Params, ok = m.valueTypes(r, paramsMax, "parameters"); !ok {
			m.typesKnown = false
			return false
		}
		if t.Results, ok = m.valueTypes(r, resultsMax, "results"); !ok {
			m.typesKnown = false
			return false
		}
		m.Types = append(m.Types, t)
	}
	return true
}

func (m *Module) valueTypes(r *reader, limit uint32, what string) ([]ValueType, bool) {
	n := r.count(limit, 1, what)
	if n == 0 {
		return nil, r.err == nil
	}
	ts := make([]ValueType, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		t, ok := m.valueType(r)
		if !ok {
			return nil, false
		}
		ts = append(ts, t)
	}
	return ts, true
}

// valueType reads one type; false means it belongs to a forbidden feature.
func (m *Module) valueType(r *reader) (ValueType, bool) {
	switch t := r.byte(); t {
	case byte(I32), byte(I64), byte(F32), byte(F64), byte(V128), byte(FuncRef), byte(ExternRef):
		return ValueType(t), true
	case 0x69, 0x74: // exnref, noexn
		m.forbid("exceptions")
		return 0, false
	case 0x63, 0x64: // ref, ref null
		m.forbid("typed function references")
		return 0, false
	case 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x71, 0x72, 0x73, 0x77, 0x78:
		m.forbid("GC types")
		return 0, false
	default:
		r.off--
		r.fail(fmt.Sprintf("value type 0x%x", t))
		return 0, false
	}
}

func (m *Module) typeIndex(r *reader) uint32 {
	i := r.u32()
	if r.err == nil && m.typesKnown && int64(i) >= int64(len(m.Types)) {
		r.fail(fmt.Sprintf("no type %d", i))
	}
	return i
}

func (m *Module) limits(r *reader, memory bool) Limits {
	var l Limits
	flags := r.byte()
	if flags&2 != 0 {
		m.forbid("threads")
	}
	if flags&4 != 0 {
		m.forbid("memory64")
	}
	if flags&8 != 0 {
		m.forbid("custom page sizes")
	}
	if flags >= 16 {
		r.fail(fmt.Sprintf("limits flags 0x%x", flags))
	}
	bits := uint(32)
	if flags&4 != 0 {
		bits = 64
	}
	l.Min = r.leb(bits)
	if flags&1 != 0 {
		l.HasMax = true
		l.Max = r.leb(bits)
	}
	if flags&8 != 0 {
		r.u32()
	}
	if r.err == nil && l.HasMax && l.Max < l.Min {
		r.fail(fmt.Sprintf("limits with a maximum of %d below the minimum of %d", l.Max, l.Min))
	}
	if memory && flags&12 == 0 && (l.Min > pagesMax || l.HasMax && l.Max > pagesMax) {
		r.fail("a memory of more than 65536 pages")
	}
	return l
}

func (m *Module) parseImports(r *reader) bool {
	for n := r.count(importsMax, 4, "imports"); n > 0 && r.err == nil; n-- {
		i := Import{Module: r.name(), Name: r.name(), Kind: Kind(r.byte())}
		switch i.Kind {
		case KindFunc:
			i.Type = m.typeIndex(r)
			m.importedFuncs++
		case KindTable:
			if _, ok := m.valueType(r); !ok {
				return false
			}
			m.limits(r, false)
			m.importedTables++
		case KindMemory:
			m.limits(r, true)
		case KindGlobal:
			if _, ok := m.valueType(r); !ok {
				return false
			}
			r.byte()
			m.importedGlobals++
		case KindTag:
			m.forbid("exceptions")
			r.byte()
			r.u32()
		default:
			r.fail(fmt.Sprintf("import %q.%q of kind %d", i.Module, i.Name, i.Kind))
		}
		m.Imports = append(m.Imports, i)
	}
	return true
}

func (m *Module) parseTables(r *reader) bool {
	total := uint64(0)
	for n := r.count(tablesMax, 3, "tables"); n > 0 && r.err == nil; n-- {
		t, ok := m.valueType(r)
		if !ok {
			return false
		}
		l := m.limits(r, false)
		total += min(l.Min, TableSizeMax+1)
		if total > TableSizeMax && r.err == nil {
			r.fail(fmt.Sprintf("tables of more than %d entries", TableSizeMax))
		}
		m.Tables = append(m.Tables, l)
		m.tableTypes = append(m.tableTypes, byte(t))
	}
	return true
}

func (m *Module) parseGlobals(r *reader) bool {
	for n := r.count(globalsMax, 3, "globals"); n > 0 && r.err == nil; n-- {
		t, ok := m.valueType(r)
		if !ok {
			return false
		}
		mut := r.byte()
		if mut > 1 {
			r.fail(fmt.Sprintf("global mutability %d", mut))
		}
		if !m.constExpr(r) {
			return false
		}
		m.Globals = append(m.Globals, Global{Type: t, Mutable: mut == 1})
	}
	return true
}

// constExpr skips a constant expression; false means a forbidden feature.
func (m *Module) constExpr(r *reader) bool {
	for r.err == nil {
		switch op := r.byte(); op {
		case 0x0b:
			return true
		case 0x41:
			r.sleb(32)
		case 0x42:
			r.sleb(64)
		case 0x43:
			r.skip(4)
		case 0x44:
			r.skip(8)
		case 0x6a, 0x6b, 0x6c, 0x7c, 0x7d, 0x7e: // extended constants
		case 0x23:
			r.u32()
		case 0xd2:
			m.reachable[r.u32()] = struct{}{}
		case 0xd0:
			if _, ok := m.valueType(r); !ok {
				return false
			}
		case 0xfd:
			if sub := r.u32(); r.err == nil && sub != 12 {
				r.fail(fmt.Sprintf("constant expression with vector instruction %d", sub))
			}
			r.skip(16)
		case 0xfb:
			m.forbid("GC types")
			return false
		default:
			if r.err == nil {
				r.fail(fmt.Sprintf("constant expression with instruction 0x%x", op))
			}
		}
	}
	return true
}

func (m *Module) parseExports(r *reader) {
	n := r.count(exportsMax, 3, "exports")
	seen := make(map[string]struct{}, n)
	for ; n > 0 && r.err == nil; n-- {
		e := Export{Name: r.name(), Kind: Kind(r.byte()), Index: r.u32()}
		if r.err != nil {
			return
		}
		if len(e.Name) > nameLengthMax || e.Kind > KindTag {
			r.fail("bad export")
			return
		}
		if _, dup := seen[e.Name]; dup {
			r.fail(fmt.Sprintf("export %q twice", e.Name))
			return
		}
		seen[e.Name] = struct{}{}
		m.Exports = append(m.Exports, e)
	}
}

func (m *Module) parseElements(r *reader) bool {
	total := 0
	for n := r.count(segmentsMax, 2, "element segments"); n > 0 && r.err == nil; n-- {
		flags := r.u32()
		if flags > 7 {
			r.fail(fmt.Sprintf("element segment flags %d", flags))
			return true
		}
		active, explicit, exprs := flags&1 == 0, flags&2 != 0, flags&4 != 0
		if active {
			if explicit {
				r.u32()
			}
			if !m.constExpr(r) {
				return false
			}
		}
		if !active || explicit {
			if exprs {
				if _, ok := m.valueType(r); !ok {
					return false
				}
			} else if k := r.byte(); r.err == nil && k != 0 {
				r.fail(fmt.Sprintf("element kind %d", k))
			}
		}
		items := r.count(elementsMax, 1, "elements")
		if total += items; total > elementsMax {
			r.fail("too many elements")
		}
		for ; items > 0 && r.err == nil; items-- {
			if exprs {
				if !m.constExpr(r) {
					return false
				}
			} else {
				m.reachable[r.u32()] = struct{}{}
			}
		}
	}
	return true
}

func (m *Module) parseData(r *reader) bool {
	n := r.count(segmentsMax, 2, "data segments")
	if m.dataCount >= 0 && m.dataCount != n && r.err == nil {
		r.fail(fmt.Sprintf("%d data segments where %d were announced", n, m.dataCount))
	}
	for ; n > 0 && r.err == nil; n-- {
		switch flags := r.u32(); flags {
		case 0, 2:
			if flags == 2 && r.u32() != 0 {
				m.forbid("multi-memory")
			}
			if !m.constExpr(r) {
				return false
			}
		case 1:
		default:
			if r.err == nil {
				r.fail(fmt.Sprintf("data segment flags %d", flags))
			}
		}
		r.bytes(r.u32())
	}
	return true
}
