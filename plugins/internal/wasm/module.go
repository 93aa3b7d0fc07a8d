// Package wasm reads the sections of a core WebAssembly module as far as
// admission needs them, and rewrites a few. It is stricter than the engine
// about counts: whatever it accepts cannot make the engine reserve more memory
// than the module's size justifies. It accepts any bytes and never panics.
package wasm

import (
	"bytes"
	"errors"
	"fmt"
)

// What the bytes are, if they are no core module.
var (
	ErrNotWasm   = errors.New("not a WebAssembly module (no \\0asm header)")
	ErrComponent = errors.New("a WebAssembly component, not a core module")
)

// FormatError is a module that breaks the binary format or a limit.
type FormatError struct {
	Offset  int
	Section string
	What    string
}

func (e *FormatError) Error() string {
	if e.Section == "" {
		return fmt.Sprintf("malformed module at byte %d: %s", e.Offset, e.What)
	}
	return fmt.Sprintf("malformed module at byte %d, %s section: %s", e.Offset, e.Section, e.What)
}

// Limits of the format, most as browsers have them. The engine reserves memory
// by some of these numbers before it reads what they count.
const (
	typesMax      = 1_000_000
	functionsMax  = 1_000_000
	importsMax    = 1_000_000
	exportsMax    = 1_000_000
	globalsMax    = 1_000_000
	segmentsMax   = 100_000
	elementsMax   = 10_000_000
	paramsMax     = 1_000
	resultsMax    = 1_000
	localsMax     = 50_000
	bodyMax       = 7_654_321
	tablesMax     = 100
	TableSizeMax  = 1_000_000 // entries of all tables, and what table.grow may reach
	brTargetsMax  = 65_520
	pagesMax      = 65_536
	nameLengthMax = 100_000
)

// ValueType is a type of the format.
type ValueType byte

// The value types of WebAssembly 2.0.
const (
	I32       ValueType = 0x7f
	I64       ValueType = 0x7e
	F32       ValueType = 0x7d
	F64       ValueType = 0x7c
	V128      ValueType = 0x7b
	FuncRef   ValueType = 0x70
	ExternRef ValueType = 0x6f
)

func (v ValueType) String() string {
	switch v {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F32:
		return "f32"
	case F64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	}
	return fmt.Sprintf("type 0x%x", byte(v))
}

// FuncType is a function's type.
type FuncType struct {
	Params, Results []ValueType
}

func (t FuncType) String() string {
	list := func(ts []ValueType) string {
		var b bytes.Buffer
		for i, v := range ts {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(v.String())
		}
		return b.String()
	}
	return "(" + list(t.Params) + ") -> (" + list(t.Results) + ")"
}

// Equal compares two types.
func (t FuncType) Equal(o FuncType) bool {
	return string(valueBytes(t.Params)) == string(valueBytes(o.Params)) &&
		string(valueBytes(t.Results)) == string(valueBytes(o.Results))
}

func valueBytes(ts []ValueType) []byte {
	b := make([]byte, len(ts))
	for i, t := range ts {
		b[i] = byte(t)
	}
	return b
}

// Kind is what an import or export is.
type Kind byte

// The kinds of imports and exports.
const (
	KindFunc   Kind = 0
	KindTable  Kind = 1
	KindMemory Kind = 2
	KindGlobal Kind = 3
	KindTag    Kind = 4
)

func (k Kind) String() string {
	switch k {
	case KindFunc:
		return "function"
	case KindTable:
		return "table"
	case KindMemory:
		return "memory"
	case KindGlobal:
		return "global"
	case KindTag:
		return "tag"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// Import is what a module wants from outside. Type counts for functions.
type Import struct {
	Module, Name string
	Kind         Kind
	Type         uint32
}

// Export is what a module offers.
type Export struct {
	Name  string
	Kind  Kind
	Index uint32
}

// Limits are those of a memory or table.
type Limits struct {
	Min, Max uint64
	HasMax   bool
}

// Global is a global of the module's own.
type Global struct {
	Type    ValueType
	Mutable bool
}

// Module is what admission needs to know of a module.
type Module struct {
	Types    []FuncType
	Imports  []Import
	Funcs    []uint32 // types of the module's own functions
	Tables   []Limits
	Memories []Limits
	Globals  []Global
	Exports  []Export
	Start    bool

	// Forbidden names the features the module uses and this host does not run,
	// each once, in the order they were met.
	Forbidden []string
	// WritesTables and DropsSegments tell whether the code can change what a
	// restore of memory and globals does not cover. Both are true if the code
	// holds an instruction that is not known here.
	WritesTables  bool
	DropsSegments bool

	importedFuncs, importedGlobals int
	importedTables                 int

	// What is needed to find the functions that can call themselves.
	bodies    []body
	reachable map[uint32]struct{} // functions an indirect call can reach
	unread    bool                // some body could not be walked to its end

	bin        []byte
	sections   []section
	typesKnown bool // every type is a function type
	tableTypes []byte
	dataCount  int // -1: no such section
}

// body is an own function's code.
type body struct {
	start, code, end int      // of the locals, of the instructions, behind them
	calls            []uint32 // functions it calls by index
	indirect         bool     // it calls others by table
}

type section struct {
	id         byte
	start, end int // of the content
	head       int // of the id byte
	name       string
}

const (
	secCustom, secType, secImport, secFunction, secTable, secMemory, secGlobal = 0, 1, 2, 3, 4, 5, 6
	secExport, secStart, secElement, secCode, secData, secDataCount, secTag    = 7, 8, 9, 10, 11, 12, 13
)

var sectionNames = [...]string{"custom", "type", "import", "function", "table", "memory", "global",
	"export", "start", "element", "code", "data", "data count", "tag"}

// order gives the place of each section; custom ones may be anywhere.
var sectionOrder = [...]int{0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 11, 6}

// Parse reads a module. The result refers to b.
func Parse(b []byte) (*Module, error) {
	if len(b) < 8 || !bytes.Equal(b[:4], []byte("\x00asm")) {
		return nil, ErrNotWasm
	}
	switch {
	case bytes.Equal(b[4:8], []byte{1, 0, 0, 0}):
	case b[6] == 1 && b[7] == 0:
		return nil, ErrComponent
	default:
		return nil, &FormatError{Offset: 4, What: fmt.Sprintf("version %x, want 01000000", b[4:8])}
	}
	m := &Module{bin: b, typesKnown: true, dataCount: -1, reachable: map[uint32]struct{}{}}
	if err := m.split(); err != nil {
		return nil, err
	}
	for _, s := range m.sections {
		r := &reader{b: b[:s.end], off: s.start}
		whole := m.parse(s.id, r)
		if r.err == nil && whole && r.off != s.end {
			r.fail("section is longer than its content")
		}
		if r.err != nil {
			var fe *FormatError
			if errors.As(r.err, &fe) {
				fe.Section = sectionNames[s.id]
			}
			return nil, r.err
		}
	}
	if err := m.crossCheck(); err != nil {
		return nil, err
	}
	return m, nil
}

// split finds the sections and checks their order.
func (m *Module) split() error {
	r := &reader{b: m.bin, off: 8}
	last := 0
	for !r.done() {
		s := section{head: r.off, id: r.byte()}
		size := r.u32()
		s.start = r.off
		r.skip(int(size))
		s.end = r.off
		if r.err != nil {
			return r.err
		}
		if int(s.id) >= len(sectionNames) {
			return &FormatError{Offset: s.head, What: fmt.Sprintf("unknown section %d", s.id)}
		}
		if s.id == secCustom {
			n := &reader{b: m.bin[:s.end], off: s.start}
			s.name = n.name()
			if n.err != nil {
				return n.err
			}
		} else {
			if sectionOrder[s.id] <= last {
				return &FormatError{Offset: s.head, Section: sectionNames[s.id], What: "out of order or twice"}
			}
			last = sectionOrder[s.id]
		}
		m.sections = append(m.sections, s)
	}
	return r.err
}

// parse reads one section. It returns false where it stopped before the end
// because of a forbidden feature.
func (m *Module) parse(id byte, r *reader) bool {
	switch id {
	case secType:
		return m.parseTypes(r)
	case secImport:
		return m.parseImports(r)
	case secFunction:
		for n := r.count(functionsMax, 1, "functions"); n > 0 && r.err == nil; n-- {
			m.Funcs = append(m.Funcs, m.typeIndex(r))
		}
	case secTable:
		return m.parseTables(r)
	case secMemory:
		for n := r.count(100, 2, "memories"); n > 0 && r.err == nil; n-- {
			m.Memories = append(m.Memories, m.limits(r, true))
		}
	case secTag:
		m.forbid("exceptions")
		return false
	case secGlobal:
		return m.parseGlobals(r)
	case secExport:
		m.parseExports(r)
	case secStart:
		m.Start = true
		r.u32()
	case secElement:
		return m.parseElements(r)
	case secDataCount:
		m.dataCount = int(r.u32())
	case secCode:
		m.parseCode(r)
	case secData:
		return m.parseData(r)
	case secCustom:
		return false
	}
	return true
}

func (m *Module) crossCheck() error {
	if len(m.Funcs) != len(m.bodies) {
		return &FormatError{Offset: len(m.bin), What: fmt.Sprintf("%d functions have %d bodies", len(m.Funcs), len(m.bodies))}
	}
	if len(m.Memories) > 1 {
		m.forbid("multi-memory")
	}
	return nil
}

func (m *Module) forbid(feature string) {
	for _, f := range m.Forbidden {
		if f == feature {
			return
		}
	}
	m.Forbidden = append(m.Forbidden, feature)
}

// FuncTypeOf returns the type of a function by its index, imports first.
func (m *Module) FuncTypeOf(index uint32) (FuncType, bool) {
	t := uint64(1 << 40)
	if int64(index) < int64(m.importedFuncs) {
		for _, i := range m.Imports {
			if i.Kind != KindFunc {
				continue
			}
			if index == 0 {
				t = uint64(i.Type)
				break
			}
			index--
		}
	} else if own := int64(index) - int64(m.importedFuncs); own < int64(len(m.Funcs)) {
		t = uint64(m.Funcs[own])
	}
	if t >= uint64(len(m.Types)) {
		return FuncType{}, false
	}
	return m.Types[t], true
}

// ImportType returns the type of an imported function.
func (m *Module) ImportType(i Import) (FuncType, bool) {
	if int64(i.Type) >= int64(len(m.Types)) {
		return FuncType{}, false
	}
	return m.Types[i.Type], true
}

// Export finds an export by its name.
func (m *Module) Export(name string) (Export, bool) {
	for _, e := range m.Exports {
		if e.Name == name {
			return e, true
		}
	}
	return Export{}, false
}

// TypesKnown reports whether the module's types could all be read.
func (m *Module) TypesKnown() bool { return m.typesKnown }
