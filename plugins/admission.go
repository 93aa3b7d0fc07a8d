package plugins

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/plugins/internal/wasm"
)

const (
	moduleMax   = 64 << 20 // bytes of a module: compiling takes many times that
	manifestMax = 1 << 20  // bytes of a manifest
)

var (
	typeNone   = wasm.FuncType{}
	typeMarker = wasm.FuncType{Results: i32s(1)}
	typeDesc   = wasm.FuncType{Results: []wasm.ValueType{wasm.I64}}
	typeAlloc  = toI32(1)
	typeCall   = toI32(2)
)

// guestExports are the functions a guest offers. ph_keys is asked for by its
// manifest.
var guestExports = []struct {
	name     string
	typ      wasm.FuncType
	required bool
}{
	{"_initialize", typeNone, false},
	{"ph_abi_v1", typeMarker, true},
	{"ph_alloc", typeAlloc, true},
	{"ph_describe", typeDesc, true},
	{"ph_init", typeCall, true},
	{"ph_apply", typeCall, true},
	{"ph_keys", typeCall, false},
}

// inspect judges a module by its sections. It gives every reason that can be
// seen without running it.
func inspect(bin []byte, s Settings) (*wasm.Module, []string) {
	if len(bin) > moduleMax {
		return nil, []string{fmt.Sprintf("a module of %d bytes; at most %d are taken", len(bin), moduleMax)}
	}
	m, err := wasm.Parse(bin)
	switch {
	case errors.Is(err, wasm.ErrComponent):
		return nil, []string{"it is a WebAssembly component; build a core module instead (for Rust target wasm32-unknown-unknown or wasm32-wasip1, without componentizing)"}
	case err != nil:
		return nil, []string{err.Error()}
	}
	j := &judge{m: m}
	j.features()
	j.memory(s)
	j.exports()
	j.imports()
	j.state()
	return m, j.reasons
}

type judge struct {
	m       *wasm.Module
	reasons []string
}

func (j *judge) say(format string, args ...any) {
	j.reasons = append(j.reasons, clean(fmt.Appendf(nil, format, args...), 1000))
}

func (j *judge) features() {
	for _, f := range j.m.Forbidden {
		j.say("it uses %s, which this host does not run; build it for WebAssembly 2.0 without that feature", f)
	}
}

func (j *judge) memory(s Settings) {
	e, ok := j.m.Export("memory")
	switch {
	case !ok:
		j.say("it exports no memory named \"memory\"")
	case e.Kind != wasm.KindMemory:
		j.say("its export \"memory\" is a %v, not a memory", e.Kind)
	}
	for _, l := range j.m.Memories {
		if l.Min > s.MemoryLimit/pageSize {
			j.say("its memory starts at %d bytes, over the limit of %d (memory_limit)", l.Min*pageSize, s.MemoryLimit)
		}
	}
}

func (j *judge) exports() {
	_, hasStart := j.m.Export("_start")
	missing := 0
	for _, want := range guestExports {
		e, ok := j.m.Export(want.name)
		if !ok {
			if want.required {
				missing++
				j.missing(want.name)
			}
			continue
		}
		if e.Kind != wasm.KindFunc {
			j.say("its export %s is a %v, not a function", want.name, e.Kind)
			continue
		}
		if have, known := j.m.FuncTypeOf(e.Index); known && !have.Equal(want.typ) {
			j.say("its export %s has the type %v, want %v", want.name, have, want.typ)
		}
	}
	if hasStart && missing > 0 {
		j.say("it exports _start, so it is a command; build a reactor (Go: -buildmode=c-shared, clang: -mexec-model=reactor, Rust: crate-type cdylib)")
	}
	for _, e := range j.m.Exports {
		if strings.HasPrefix(e.Name, wasm.ReservedPrefix) {
			j.say("its export %q: names that start with %s are the host's", e.Name, wasm.ReservedPrefix)
		}
	}
}

func (j *judge) missing(name string) {
	if name == "ph_abi_v1" {
		for _, e := range j.m.Exports {
			if v, ok := strings.CutPrefix(e.Name, "ph_abi_v"); ok {
				j.say("it is made for ABI v%s; this host speaks v1", v)
				return
			}
		}
	}
	j.say("it does not export %s", name)
}

func (j *judge) imports() {
	var unknown []string
	for _, i := range j.m.Imports {
		name := i.Module + "." + i.Name
		f, ok := importable(i.Module, i.Name)
		if i.Kind != wasm.KindFunc {
			unknown = append(unknown, fmt.Sprintf("%s (%v)", name, i.Kind))
		} else if !ok {
			unknown = append(unknown, name)
		} else if have, known := j.m.ImportType(i); known && !have.Equal(f.typ) {
			j.say("its import %s has the type %v; the host's is %v", name, have, f.typ)
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		const shown = 40
		more := ""
		if len(unknown) > shown {
			more = fmt.Sprintf(" and %d more", len(unknown)-shown)
			unknown = unknown[:shown]
		}
		j.say("it imports what this host does not have: %s%s; there are %s and %s, functions only",
			strings.Join(unknown, ", "), more, hostModule, wasiModule)
	}
}

// state refuses what the host could not put back between two batches (P7).
func (j *judge) state() {
	if j.m.Start {
		j.say("it has a start section, which runs before the host is ready; use an exported _initialize")
	}
	for _, g := range j.m.MutableGlobals() {
		switch t := j.m.Globals[g].Type; t {
		case wasm.V128, wasm.FuncRef, wasm.ExternRef:
			j.say("its mutable global %d is a %v, which cannot be put back between batches; keep it in memory", g, t)
		}
	}
}

// takeShape keeps what later steps need of the parsed module.
func (m *Module) takeShape(p *wasm.Module) {
	for _, g := range p.MutableGlobals() {
		m.globals = append(m.globals, wasm.GlobalExport(g))
	}
	m.exports = map[uint32]string{}
	for _, e := range p.Exports {
		if e.Kind == wasm.KindFunc {
			m.exports[e.Index] = e.Name
		}
	}
	m.memoryLimit = m.settings.MemoryLimit / pageSize * pageSize
	for _, l := range p.Memories {
		if l.HasMax {
			m.memoryLimit = min(m.memoryLimit, l.Max*pageSize)
		}
	}
	// What such code changes is not in memory or globals: a restore would leave
	// it, so every batch gets a new guest.
	m.disposable = p.WritesTables || p.DropsSegments
}

// admit starts the module once and keeps the state it is in then. Reasons are
// the module's fault, an error is not.
func (m *Module) admit(ctx context.Context) (reasons []string, err error) {
	g, reasons, err := m.start(ctx, true)
	if err != nil || len(reasons) > 0 {
		return reasons, err
	}
	m.image = newImage(g.mem.buf, g.readGlobals(), g.region)
	m.spare = g
	return nil, nil
}

// start makes a guest and takes it through its life up to the first batch. The
// manifest is asked for only the first time.
func (m *Module) start(ctx context.Context, first bool) (*guest, []string, error) {
	g, err := m.instantiate(ctx)
	if err != nil {
		return nil, []string{"it cannot be instantiated: " + clean([]byte(err.Error()), 500)}, nil
	}
	st := &starter{m: m, g: g, ctx: ctx}
	st.run(first)
	if st.err != nil || len(st.reasons) > 0 {
		return nil, st.reasons, errors.Join(st.err, g.close(ctx))
	}
	return g, nil, nil
}

// starter walks a new guest from _initialize to its input region.
type starter struct {
	m       *Module
	g       *guest
	ctx     context.Context
	reasons []string
	err     error
	dead    bool // it trapped: nothing more can be asked of it
}

func (s *starter) say(format string, args ...any) {
	s.reasons = append(s.reasons, fmt.Sprintf(format, args...))
}

// call runs an export; false: there is no result.
func (s *starter) call(name string, args ...uint64) (uint64, bool) {
	if s.dead || s.err != nil {
		return 0, false
	}
	fn := s.g.mod.ExportedFunction(name)
	if fn == nil {
		return 0, false
	}
	s.g.call.begin(s.ctx, phaseStart, nil, nil)
	stack := make([]uint64, max(len(args), 1))
	copy(stack, args)
	fail, err := s.g.run(s.ctx, fn, stack)
	if err != nil {
		s.err = err
		return 0, false
	}
	if fail != nil {
		s.dead = true
		text := codeText(fail.Code)
		if fail.Message != "" {
			text += ": " + fail.Message
		}
		if fail.Trap != "" && fail.Trap != fail.Message {
			text += " (" + fail.Trap + ")"
		}
		s.say("%s fails: %s", name, text)
		return 0, false
	}
	return stack[0], true
}

func (s *starter) run(first bool) {
	s.call("_initialize")
	if first {
		if minor, ok := s.call("ph_abi_v1"); ok && uint32(minor) > uint32(abi.Minor) {
			s.say("it is made for ABI v1.%d; this host speaks v1.%d: update the host or build with an older SDK", int32(minor), abi.Minor)
		}
		s.describe()
	}
	config := s.m.settings.Config
	if ptr, ok := s.alloc(len(config), "the configuration"); ok {
		view, _ := s.g.mem.view(ptr, uint32(len(config)))
		copy(view, config)
		if code, ok := s.call("ph_init", uint64(ptr), uint64(len(config))); ok && uint32(code) != 0 {
			reason := s.g.call.reason
			if reason == "" {
				reason = "no reason given"
			}
			s.say("ph_init refuses the configuration with code %d: %s", int32(code), reason)
		}
	}
	// The region is part of the state every batch starts from: never again is
	// the guest asked for one, or its allocator would know nothing of it.
	if ptr, ok := s.alloc(s.m.settings.FrameMax, "frames (frame_max)"); ok {
		s.g.region = ptr
	}
}

func (s *starter) alloc(size int, what string) (uint32, bool) {
	p, ok := s.call("ph_alloc", uint64(uint32(size)))
	if !ok {
		return 0, false
	}
	ptr := uint32(p)
	if ptr == 0 {
		s.say("ph_alloc(%d) for %s returned 0: no room in a memory of at most %d bytes (memory_limit)", size, what, s.m.memoryLimit)
		return 0, false
	}
	if _, ok := s.g.mem.view(ptr, uint32(size)); !ok {
		s.say("ph_alloc(%d) for %s returned 0x%x: that region is not inside the memory of %d bytes", size, what, ptr, len(s.g.mem.buf))
		return 0, false
	}
	return ptr, true
}

func (s *starter) describe() {
	packed, ok := s.call("ph_describe")
	if !ok {
		return
	}
	ptr, n := uint32(packed>>32), uint32(packed)
	if n > manifestMax {
		s.say("its manifest has %d bytes; at most %d are taken", n, manifestMax)
		return
	}
	text, ok := s.g.mem.view(ptr, n)
	if !ok {
		s.say("ph_describe: %d bytes at 0x%x are outside of the memory", n, ptr)
		return
	}
	manifest, err := abi.ParseManifest(append([]byte(nil), text...))
	var bad *abi.ManifestError
	switch {
	case errors.As(err, &bad):
		for _, p := range bad.Problems {
			s.say("manifest: %s", clean([]byte(p), 500))
		}
		return
	case err != nil:
		s.say("manifest: %s", clean([]byte(err.Error()), 500))
		return
	}
	s.m.manifest = manifest
	if s.g.mod.ExportedFunction("ph_keys") == nil {
		for _, c := range manifest.Consumers {
			for i := range c.Inputs {
				if c.Inputs[i].Key.Kind == abi.KeyFunction {
					s.say("manifest: consumer %s, input %d has the key \"function\", but the module does not export ph_keys", c.Name, i)
				}
			}
		}
	}
}
