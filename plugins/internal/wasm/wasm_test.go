package wasm

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

const hostileDir = "../../../testplugins/hostile"

func hostile(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(hostileDir, "*.wasm"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		out[strings.TrimSuffix(filepath.Base(f), ".wasm")] = b
	}
	return out
}

// module puts sections behind a header.
func module(sections ...[]byte) []byte {
	return append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Join(sections, nil)...)
}

func sec(id byte, content ...byte) []byte {
	return append([]byte{id, byte(len(content))}, content...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// withBody is a module of one function without parameters and results.
func withBody(code ...byte) []byte {
	body := append([]byte{0}, code...)
	return module(
		sec(secType, 1, 0x60, 0, 0),
		sec(secFunction, 1, 0),
		sec(secCode, append([]byte{1, byte(len(body))}, body...)...))
}

func TestParseWhatIsNoModule(t *testing.T) {
	for name, test := range map[string]struct {
		b    []byte
		want string
	}{
		"empty":                {nil, ErrNotWasm.Error()},
		"text":                 {[]byte("(module)"), ErrNotWasm.Error()},
		"header cut short":     {[]byte("\x00asm\x01\x00"), ErrNotWasm.Error()},
		"component":            {[]byte("\x00asm\x0d\x00\x01\x00rest"), ErrComponent.Error()},
		"later version":        {[]byte("\x00asm\x02\x00\x00\x00"), "version 02000000"},
		"section past end":     {module([]byte{1, 50, 0}), "byte 10: unexpected end"},
		"unknown section":      {module(sec(14)), "unknown section 14"},
		"sections twice":       {module(sec(secType, 0), sec(secType, 0)), "type section: out of order or twice"},
		"sections swapped":     {module(sec(secFunction, 0), sec(secType, 0)), "type section: out of order"},
		"bytes left":           {module(sec(secType, 0, 0)), "longer than its content"},
		"types not there":      {module(sec(secType, 0xff, 0xff, 3)), "more types than bytes"},
		"types beyond limit":   {module(sec(secType, 0xff, 0xff, 0xff, 0xff, 0x0f)), "too many types"},
		"number too long":      {module(sec(secType, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00)), "number too large"},
		"number too large":     {module(sec(secType, 0xff, 0xff, 0xff, 0xff, 0x1f)), "number too large"},
		"no such type":         {module(sec(secType, 0), sec(secFunction, 1, 3)), "no type 3"},
		"no bodies":            {module(sec(secType, 1, 0x60, 0, 0), sec(secFunction, 1, 0)), "1 functions have 0 bodies"},
		"value type":           {module(sec(secType, 1, 0x60, 1, 0x00)), "value type 0x0"},
		"locals":               {module(sec(secType, 1, 0x60, 0, 0), sec(secFunction, 1, 0), sec(secCode, 1, 8, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b)), "more than 50000 locals"},
		"table size":           {module(sec(secTable, 1, 0x70, 0, 0xff, 0xff, 0xff, 0xff, 0x0f)), "more than 1000000 entries"},
		"memory size":          {module(sec(secMemory, 1, 0, 0x81, 0x80, 4)), "more than 65536 pages"},
		"limits the other way": {module(sec(secMemory, 1, 1, 2, 1)), "maximum of 1 below the minimum of 2"},
		"export twice":         {module(sec(secExport, 2, 1, 'a', 0, 0, 1, 'a', 0, 0)), `export "a" twice`},
		"name not UTF-8":       {module(sec(secExport, 1, 1, 0xff, 0, 0)), "not UTF-8"},
		"branch targets":       {withBody(0x0e, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x0b), "too many branch targets"},
		"data count":           {module(sec(secDataCount, 2), sec(secData, 1, 1, 0)), "1 data segments where 2 were announced"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(test.b)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestForbiddenFeatures(t *testing.T) {
	files := hostile(t)
	for name, want := range map[string][]string{
		"threads": {"threads"}, "exceptions": {"exceptions"}, "memory64": {"memory64"}, "multi-memory": {"multi-memory"}, "misuse": nil,
	} {
		m, err := Parse(files[name])
		require.NoError(t, err, name)
		require.Equal(t, want, m.Forbidden, name)
	}
	for name, test := range map[string]struct {
		b    []byte
		want string
	}{
		"struct type":        {module(sec(secType, 1, 0x5f, 0)), "GC types"},
		"recursive types":    {module(sec(secType, 1, 0x4e, 1, 0x60, 0, 0)), "GC types"},
		"anyref":             {module(sec(secType, 1, 0x60, 1, 0x6e, 0)), "GC types"},
		"struct.new":         {withBody(0xfb, 0, 0, 0x0b), "GC types"},
		"exnref":             {module(sec(secType, 1, 0x60, 1, 0x69, 0)), "exceptions"},
		"try_table":          {withBody(0x1f, 0x40, 0, 0x0b, 0x0b), "exceptions"},
		"call_ref":           {withBody(0x14, 0, 0x0b), "typed function references"},
		"relaxed SIMD":       {withBody(0xfd, 0x80, 2, 0x0b), "relaxed SIMD"},
		"atomic.fence":       {withBody(0xfe, 3, 0, 0x0b), "threads"},
		"load of memory 1":   {withBody(0x41, 0, 0x28, 0x42, 1, 0, 0x1a, 0x0b), "multi-memory"},
		"memory.fill of 1":   {withBody(0xfc, 11, 1, 0x0b), "multi-memory"},
		"data into memory 1": {module(sec(secData, 1, 2, 1, 0x41, 0, 0x0b, 0)), "multi-memory"},
		"imported tag":       {module(sec(secType, 1, 0x60, 0, 0), sec(secImport, 1, 1, 'a', 1, 'b', 4, 0, 0)), "exceptions"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Parse(test.b)
			require.NoError(t, err)
			require.Equal(t, []string{test.want}, m.Forbidden)
		})
	}
}

// Code that changes what a restore of memory and globals misses is found, and
// nothing else is taken for it: each instruction stands behind one of every
// kind of immediate, so a walker that lost its place would read nonsense.
func TestWhatCodeCanChange(t *testing.T) {
	preamble := []byte{
		0x02, 0x40, 0x03, 0x7f, 0x04, 0xc0, 0x00, // block, loop i32, if (type 64)
		0x0e, 2, 0, 1, 0, 0x10, 0, 0x11, 0, 0, 0x12, 0, 0x13, 0, 0, // br_table, call, call_indirect, tail calls
		0x1b, 0x1c, 1, 0x7f, 0x20, 0x80, 1, 0x23, 0, 0x24, 0, 0x25, 0, // selects, local, globals, table.get
		0x28, 2, 0x80, 0x26, 0x3e, 0, 0, 0x3f, 0, 0x40, 0, // loads, stores, memory.size and grow
		0x41, 0xa6, 0xff, 0x7f, 0x42, 0xa6, 0xff, 0xff, 0xff, 0x7f, 0x43, 0x26, 0x26, 0x26, 0x26, // constants full of 0x26
		0x44, 0x26, 0x26, 0x26, 0x26, 0x26, 0x26, 0x26, 0x26,
		0xd0, 0x70, 0xd1, 0xd2, 0, 0xc4, 0x45,
		0xfc, 0, 0xfc, 7, 0xfc, 8, 0, 0, 0xfc, 10, 0, 0, 0xfc, 11, 0, 0xfc, 16, 0,
		0xfd, 0, 0, 0x26, 0xfd, 0x0b, 0, 0x26, 0xfd, 0x5c, 0, 0x26, 0xfd, 0x5d, 0, 0x26, // vector loads and store
		0xfd, 0x54, 0, 0, 0x26, 0xfd, 0x5b, 0, 0, 0x26, // lanes of memory
		0xfd, 0x15, 0x26, 0xfd, 0x22, 0x26, 0xfd, 0x0e, 0xfd, 0xff, 1, // lanes, swizzle, the last there is
	}
	preamble = append(preamble, append([]byte{0xfd, 0x0c}, bytes.Repeat([]byte{0x26}, 16)...)...)
	preamble = append(preamble, append([]byte{0xfd, 0x0d}, bytes.Repeat([]byte{0x26}, 16)...)...)
	for name, test := range map[string]struct {
		code          []byte
		tables, drops bool
	}{
		"nothing":    {nil, false, false},
		"table.set":  {[]byte{0x26, 0}, true, false},
		"table.init": {[]byte{0xfc, 12, 0, 0}, true, false},
		"table.copy": {[]byte{0xfc, 14, 0, 0}, true, false},
		"table.grow": {[]byte{0xfc, 15, 0}, true, false},
		"table.fill": {[]byte{0xfc, 17, 0}, true, false},
		"data.drop":  {[]byte{0xfc, 9, 0}, false, true},
		"elem.drop":  {[]byte{0xfc, 13, 0}, false, true},
		"unknown":    {[]byte{0xff}, true, true},
		"unknown fc": {[]byte{0xfc, 18}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			code := join(preamble, test.code, []byte{0x0b})
			body := append([]byte{0}, code...)
			size := []byte{byte(len(body)&0x7f | 0x80), byte(len(body) >> 7)}
			content := join([]byte{1}, size, body)
			m, err := Parse(module(sec(secType, 1, 0x60, 0, 0), sec(secFunction, 1, 0),
				join([]byte{secCode, byte(len(content)&0x7f | 0x80), byte(len(content) >> 7)}, content)))
			require.NoError(t, err)
			require.Empty(t, m.Forbidden)
			require.Equal(t, test.tables, m.WritesTables, "writes tables")
			require.Equal(t, test.drops, m.DropsSegments, "drops segments")
		})
	}
}

func TestRecursiveFunctions(t *testing.T) {
	function := func(calls ...byte) []byte {
		code := []byte{0}
		for _, c := range calls {
			if c == 0xff {
				code = append(code, 0x11, 0, 0)
			} else {
				code = append(code, 0x10, c)
			}
		}
		code = append(code, 0x0b)
		return append([]byte{byte(len(code))}, code...)
	}
	parse := func(elements []byte, functions ...[]byte) []bool {
		content := append([]byte{byte(len(functions))}, join(functions...)...)
		sections := [][]byte{
			sec(secType, 1, 0x60, 0, 0),
			sec(secImport, 1, 1, 'a', 1, 'b', 0, 0), // function 0 is imported
			sec(secFunction, append([]byte{byte(len(functions))}, make([]byte, len(functions))...)...),
			sec(secTable, 1, 0x70, 0, 4),
		}
		if elements != nil {
			sections = append(sections, sec(secElement, elements...))
		}
		m, err := Parse(module(append(sections, sec(secCode, content...))...))
		require.NoError(t, err)
		return m.recursive()
	}
	const indirect = 0xff
	require.Equal(t, []bool{false, false}, parse(nil, function(0, 2), function(0)), "a chain, and an import")
	require.Equal(t, []bool{true, false}, parse(nil, function(1), function(1)), "itself; the other only calls it")
	require.Equal(t, []bool{false, true, true, true, false}, parse(nil, function(2), function(3), function(4, 5), function(2), function()), "a ring of three")
	table := []byte{1, 0, 0x41, 0, 0x0b, 1, 2} // slot 0: function 2
	require.Equal(t, []bool{false, false, false}, parse(table, function(indirect), function(3), function()), "by table, not back")
	require.Equal(t, []bool{true, true, false}, parse(table, function(indirect), function(1), function(1)), "by table and back")
}

// A chain of a million calls would overflow a stack that is not the heap's.
func TestRecursiveFunctionsDeep(t *testing.T) {
	g := callGraph{edges: make([][]int, 1_000_000)}
	for i := range g.edges {
		g.edges[i] = []int{(i + 1) % len(g.edges)}
	}
	require.Len(t, g.groups(), 1)
}

// What Rewrite makes is a module with the same behaviour: the engine takes it,
// it reads back the same, and what the host needs is there.
func TestRewrite(t *testing.T) {
	for name, b := range hostile(t) {
		m, err := Parse(b)
		require.NoError(t, err, name)
		if len(m.Forbidden) > 0 || len(m.Exports) == 0 {
			continue
		}
		for _, stoppable := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				out := m.Rewrite(stoppable)
				again, err := Parse(out)
				require.NoError(t, err)
				require.Equal(t, m.Types, again.Types)
				require.Equal(t, m.Imports, again.Imports)
				require.Equal(t, m.Funcs, again.Funcs)
				require.Equal(t, m.Globals, again.Globals)
				require.Len(t, again.Exports, len(m.Exports)+len(m.MutableGlobals()))
				for i, l := range again.Memories {
					require.False(t, l.HasMax)
					require.Equal(t, m.Memories[i].Min, l.Min)
				}
				for _, l := range again.Tables {
					require.True(t, l.HasMax)
					require.LessOrEqual(t, l.Max, uint64(TableSizeMax))
				}
				for _, g := range m.MutableGlobals() {
					e, ok := again.Export(GlobalExport(g))
					require.True(t, ok)
					require.Equal(t, KindGlobal, e.Kind)
				}
				if !stoppable && !slices.Contains(m.recursive(), true) {
					require.Equal(t, m.Rewrite(true), out, "nothing to stop")
				}
				requireCompiles(t, out)
			})
		}
	}
}

func requireCompiles(t testing.TB, b []byte) {
	t.Helper()
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(
		api.CoreFeaturesV2|experimental.CoreFeaturesTailCall|experimental.CoreFeaturesExtendedConst))
	defer r.Close(t.Context())
	_, err := r.CompileModule(t.Context(), b)
	require.NoError(t, err)
}

// Names come out of a section that may hold anything.
func TestRewriteNames(t *testing.T) {
	names := func(content ...byte) []byte { return sec(secCustom, append([]byte("\x04name"), content...)...) }
	for name, test := range map[string]struct {
		in, out []byte
	}{
		"functions":             {names(1, 4, 1, 0, 1, 'f'), names(1, 4, 1, 0, 1, 'f')},
		"locals are dropped":    {names(1, 4, 1, 0, 1, 'f', 2, 3, 1, 0, 0), names(1, 4, 1, 0, 1, 'f')},
		"more names than bytes": {names(1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f), nil},
		"names out of order":    {names(1, 7, 2, 1, 1, 'f', 0, 1, 'g'), nil},
		"subsection past end":   {names(1, 40, 1, 0, 1, 'f'), nil},
		"another section":       {sec(secCustom, append([]byte("\x0b.debug_info"), 1, 2, 3)...), nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Parse(module(test.in))
			require.NoError(t, err)
			require.Equal(t, module(test.out), m.Rewrite(true))
		})
	}
}

// FuzzParse: any bytes give a module or an error; what is taken can be
// rewritten, and reads back the same.
func FuzzParse(f *testing.F) {
	for _, b := range hostile(f) {
		f.Add(b)
	}
	f.Add(withBody(0x0b))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			require.Nil(t, m)
			return
		}
		if len(m.Forbidden) > 0 {
			return
		}
		again, err := Parse(m.Rewrite(true))
		require.NoError(t, err)
		require.Equal(t, m.Types, again.Types)
		require.Equal(t, len(m.Exports) > 0, len(again.Exports) > 0)
	})
}
