package testplugins

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
)

// machine is the least that runs a guest: ABI v1 straight on wazero, without the
// host's admission, limits and restoring, so that what is measured is the guest.
type machine struct {
	t        testing.TB
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	module   api.Module
	manifest *abi.Manifest
	tables   [][]*readmodel.Table // by consumer

	region uint32
	apply  api.Function
	stack  [2]uint64

	// Of the call going on.
	consumer int
	entries  []abi.Entry
	done     int
	status   abi.Status
	reason   string
	log      []string
	clock    uint64
	op       abi.Op
	rows     map[tableKey]readmodel.Row

	// Recording keeps what get answered; replaying answers it again and does not
	// look at ops, so that a benchmark times the guest and the calls alone.
	recording, replaying bool
	answers              [][]byte
	answer               int
}

type tableKey struct {
	consumer   int
	table      uint16
	key, child string
}

const regionSize = 5 << 20 / 4 // room for an event of 1 MiB

// compiled keeps modules that several tests use from being compiled again.
var compiled = wazero.NewCompilationCache()

// start compiles and instantiates a module, as a host does.
func start(t testing.TB, wasm []byte) *machine {
	t.Helper()
	ctx := t.Context()
	m := &machine{t: t, rows: map[tableKey]readmodel.Row{},
		runtime: wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCompilationCache(compiled).WithMemoryLimitPages(1024))}
	t.Cleanup(func() { _ = m.runtime.Close(context.Background()) })
	m.hostModules(ctx)
	var err error
	m.compiled, err = m.runtime.CompileModule(ctx, wasm)
	require.NoError(t, err)
	m.instantiate()

	region := m.call("ph_describe")
	ptr, size := abi.UnpackRegion(int64(region))
	b, ok := m.module.Memory().Read(ptr, size)
	require.True(t, ok)
	m.manifest, err = abi.ParseManifest(slices.Clone(b))
	require.NoError(t, err)
	for _, c := range m.manifest.Consumers {
		tables, err := readmodel.NewTables(c.Tables)
		require.NoError(t, err)
		m.tables = append(m.tables, tables)
	}
	return m
}

// instantiate makes a new instance up to where a host takes its snapshot.
func (m *machine) instantiate() {
	m.t.Helper()
	ctx := m.t.Context()
	if m.module != nil {
		require.NoError(m.t, m.module.Close(ctx))
	}
	var err error
	m.module, err = m.runtime.InstantiateModule(ctx, m.compiled,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
	require.NoError(m.t, err)
	if m.module.ExportedFunction("_initialize") != nil {
		m.call("_initialize")
	}
	m.call("ph_abi_v1")
	config := uint32(m.call("ph_alloc", 2))
	require.True(m.t, m.module.Memory().WriteString(config, "{}"))
	require.Zero(m.t, m.call("ph_init", uint64(config), 2))
	m.region = uint32(m.call("ph_alloc", regionSize))
	require.NotZero(m.t, m.region)
	m.apply = m.module.ExportedFunction("ph_apply")
}

func (m *machine) call(name string, args ...uint64) uint64 {
	m.t.Helper()
	results, err := m.module.ExportedFunction(name).Call(m.t.Context(), args...)
	require.NoError(m.t, err, "%s: %s", name, m.reason)
	if len(results) == 0 {
		return 0
	}
	return results[0]
}

// batch gives entries to a consumer and returns how many were done.
func (m *machine) batch(consumer int, entries []abi.Entry) (int, error) {
	m.consumer, m.entries, m.done, m.status, m.reason = consumer, entries, 0, 0, ""
	size := abi.FrameSize(entries)
	region, ok := m.module.Memory().Read(m.region, regionSize)
	if !ok || size > regionSize {
		return 0, fmt.Errorf("a frame of %d bytes", size)
	}
	abi.AppendFrame(region[:0], uint16(consumer), entries)
	m.stack = [2]uint64{uint64(m.region), uint64(size)}
	err := m.apply.CallWithStack(m.t.Context(), m.stack[:])
	return m.done, err
}

// hostModules makes the imports.
func (m *machine) hostModules(ctx context.Context) {
	const i32, i64 = api.ValueTypeI32, api.ValueTypeI64
	type imports map[string]struct {
		params, results []api.ValueType
		f               func(mod api.Module, s []uint64)
	}
	build := func(name string, functions imports) {
		b := m.runtime.NewHostModuleBuilder(name)
		for name, fn := range functions {
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(
				func(_ context.Context, mod api.Module, s []uint64) { fn.f(mod, s) }),
				fn.params, fn.results).Export(name)
		}
		_, err := b.Instantiate(ctx)
		require.NoError(m.t, err)
	}
	v := func(types ...api.ValueType) []api.ValueType { return types }
	build(abi.ImportModule, imports{
		"done":     {v(i32, i32, i32, i32), v(i32), m.importDone},
		"get":      {v(i32, i32, i32, i32, i32), v(i64), m.importGet},
		"get_many": {v(i32, i32, i32, i32), v(i64), nil},
		"list":     {v(i32, i32, i32, i32, i32, i32, i32, i32), v(i64), m.importList},
		"keys":     {v(i32, i32, i32), v(i32), func(_ api.Module, s []uint64) { s[0] = 0 }},
		"log":      {v(i32, i32, i32), nil, func(mod api.Module, s []uint64) { m.log = append(m.log, string(read(mod, s[1], s[2]))) }},
		"fail":     {v(i32, i32, i32), nil, func(mod api.Module, s []uint64) { m.reason = string(read(mod, s[1], s[2])) }},
		"now_us":   {nil, v(i64), func(_ api.Module, s []uint64) { s[0] = uint64(m.entries[m.done].TimeUS) }},
		"random":   {v(i32, i32), nil, func(mod api.Module, s []uint64) { fill(read(mod, s[0], s[1])) }},
	})
	errno := func(n uint64) func(api.Module, []uint64) { return func(_ api.Module, s []uint64) { s[0] = n } }
	build("wasi_snapshot_preview1", imports{
		"sched_yield": {nil, v(i32), errno(0)}, "proc_exit": {v(i32), nil, func(_ api.Module, s []uint64) { panic(fmt.Sprintf("proc_exit %d", uint32(s[0]))) }},
		"args_sizes_get":    {v(i32, i32), v(i32), m.zeroes},
		"environ_sizes_get": {v(i32, i32), v(i32), m.zeroes},
		"args_get":          {v(i32, i32), v(i32), errno(0)},
		"environ_get":       {v(i32, i32), v(i32), errno(0)},
		"clock_time_get": {v(i32, i64, i32), v(i32), func(mod api.Module, s []uint64) {
			m.clock += 1000 // Go does not start on a clock that stands at zero
			mod.Memory().WriteUint64Le(uint32(s[2]), m.clock)
			s[0] = 0
		}},
		"random_get": {v(i32, i32), v(i32), func(mod api.Module, s []uint64) { fill(read(mod, s[0], s[1])); s[0] = 0 }},
		"fd_write": {v(i32, i32, i32, i32), v(i32), func(mod api.Module, s []uint64) {
			at, n := uint32(s[1]), uint32(s[2])
			var total uint32
			for i := range n {
				ptr, _ := mod.Memory().ReadUint32Le(at + 8*i)
				size, _ := mod.Memory().ReadUint32Le(at + 8*i + 4)
				m.log = append(m.log, string(read(mod, uint64(ptr), uint64(size))))
				total += size
			}
			mod.Memory().WriteUint32Le(uint32(s[3]), total)
			s[0] = 0
		}},
		"fd_prestat_get":      {v(i32, i32), v(i32), errno(8)},
		"fd_prestat_dir_name": {v(i32, i32, i32), v(i32), errno(8)},
		"fd_fdstat_get":       {v(i32, i32), v(i32), errno(8)},
		"fd_fdstat_set_flags": {v(i32, i32), v(i32), errno(52)},
		"fd_close":            {v(i32), v(i32), errno(52)},
		"fd_read":             {v(i32, i32, i32, i32), v(i32), errno(52)},
		"poll_oneoff":         {v(i32, i32, i32, i32), v(i32), errno(0)},
	})
}

func (m *machine) zeroes(mod api.Module, s []uint64) {
	mod.Memory().WriteUint32Le(uint32(s[0]), 0)
	mod.Memory().WriteUint32Le(uint32(s[1]), 0)
	s[0] = 0
}

func read(mod api.Module, ptr, size uint64) []byte {
	b, ok := mod.Memory().Read(uint32(ptr), uint32(size))
	if !ok {
		panic("a pointer outside memory")
	}
	return b
}

func fill(b []byte) {
	sum := sha256.Sum256(nil)
	for len(b) > 0 {
		b = b[copy(b, sum[:]):]
	}
}

func (m *machine) importDone(mod api.Module, s []uint64) {
	status := abi.Status(int32(s[1]))
	if int(uint32(s[0])) != m.done || m.done >= len(m.entries) {
		panic("done out of order")
	}
	if status.Failed() {
		m.status = status
		s[0] = ^uint64(2)
		return
	}
	if !m.replaying && status == abi.StatusOK {
		if err := m.fold(read(mod, s[2], s[3])); err != nil {
			m.status, m.reason = abi.CodeMalformed, err.Error()
			s[0] = ^uint64(2)
			return
		}
	}
	m.done++
	s[0] = 0
}

func (m *machine) importGet(mod api.Module, s []uint64) {
	var row []byte
	if m.replaying {
		row = m.answers[m.answer]
		m.answer++
	} else {
		table := uint16(s[0])
		shape, _ := m.manifest.Consumers[m.consumer].Shape(table)
		key, child, err := abi.ReadRowKey(read(mod, s[1], s[2]), shape)
		if err != nil {
			panic(err)
		}
		row = m.rows[m.at(table, shape, key, child)]
		if m.recording && int(uint32(s[4])) >= len(row) {
			m.answers = append(m.answers, row)
		}
	}
	switch {
	case row == nil:
		s[0] = ^uint64(0)
		return
	case len(row) <= int(uint32(s[4])):
		mod.Memory().Write(uint32(s[3]), row)
	}
	s[0] = uint64(len(row))
}

func (m *machine) at(table uint16, shape abi.TableShape, key, child []byte) tableKey {
	k := tableKey{m.consumer, table, string(key), string(child)}
	if !shape.Free {
		k.key = m.entries[m.done].Key
	}
	return k
}

func (m *machine) importList(mod api.Module, s []uint64) {
	table := uint16(s[0])
	after, limit := string(read(mod, s[3], s[4])), int(uint32(s[5]))
	key := m.entries[m.done].Key
	var children []string
	for at := range m.rows {
		if at.consumer == m.consumer && at.table == table && at.key == key && at.child > after {
			children = append(children, at.child)
		}
	}
	slices.Sort(children)
	children = children[:min(limit, len(children))]
	b := abi.AppendCount(nil, len(children))
	for _, child := range children {
		b = abi.AppendChild(b, child, m.rows[tableKey{m.consumer, table, key, child}])
	}
	if len(b) <= int(uint32(s[7])) {
		mod.Memory().Write(uint32(s[6]), b)
	}
	s[0] = uint64(len(b))
}

// fold applies the ops of an entry by the host's own rules.
func (m *machine) fold(ops []byte) error {
	consumer := &m.manifest.Consumers[m.consumer]
	r := abi.ReadOps(ops, consumer.Shape)
	for {
		more, err := r.Next(&m.op)
		if err != nil || !more {
			return err
		}
		op := &m.op
		table := m.tables[m.consumer][op.Table]
		shape, _ := consumer.Shape(op.Table)
		at := m.at(op.Table, shape, op.Key, op.Child)
		var row readmodel.Row
		switch op.Code {
		case abi.OpUpsert:
			row, err = table.Upsert(op.Columns)
		case abi.OpPatch:
			row, err = table.Patch(m.rows[at], op.Columns)
		case abi.OpAdd:
			row, err = table.Add(m.rows[at], op.Columns)
		case abi.OpDelete, abi.OpDeleteChildren:
			m.delete(at, op.Code == abi.OpDelete && at.child != "")
			continue
		default:
			return fmt.Errorf("op %d", op.Code)
		}
		if err != nil {
			return err
		}
		m.rows[at] = row
	}
}

// delete removes a row with its children, or one child.
func (m *machine) delete(at tableKey, one bool) {
	tables := m.tables[at.consumer]
	maps.DeleteFunc(m.rows, func(k tableKey, _ readmodel.Row) bool {
		if k.consumer != at.consumer || k.key != at.key {
			return false
		}
		if k.table == at.table {
			return !one || k.child == at.child
		}
		parent := tables[k.table].Parent
		return !one && parent != nil && parent.Index == at.table
	})
}

// dump spells all rows, for comparing.
func (m *machine) dump() string {
	keys := slices.SortedFunc(maps.Keys(m.rows), func(a, b tableKey) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s %q %q %x\n", m.tables[k.consumer][k.table].Name, k.key, k.child, m.rows[k])
	}
	return b.String()
}
