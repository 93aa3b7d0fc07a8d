package plugins

import (
	"context"

	"github.com/tetratelabs/wazero/api"

	"github.com/projhost/projhost/plugins/internal/wasm"
)

// hostFunc is one import a guest may use. Arguments come on the stack in 64-bit
// slots whose upper half is garbage for an i32; the result goes to its first.
type hostFunc struct {
	name string
	typ  wasm.FuncType
	fn   api.GoModuleFunc
}

const hostModule = "projhost_v1"

func i32s(n int) []wasm.ValueType {
	ts := make([]wasm.ValueType, n)
	for i := range ts {
		ts[i] = wasm.I32
	}
	return ts
}

func toI64(n int) wasm.FuncType {
	return wasm.FuncType{Params: i32s(n), Results: []wasm.ValueType{wasm.I64}}
}
func toI32(n int) wasm.FuncType { return wasm.FuncType{Params: i32s(n), Results: i32s(1)} }
func toNone(n int) wasm.FuncType {
	return wasm.FuncType{Params: i32s(n)}
}

// u reads an i32 argument.
func u(slot uint64) uint32 { return uint32(slot) }

// hostFuncs are the imports of projhost_v1.
var hostFuncs = []hostFunc{
	{"done", toI32(4), func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(uint32(callOf(ctx).done(u(s[0]), u(s[1]), u(s[2]), u(s[3]))))
	}},
	{"keys", toI32(3), func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(uint32(callOf(ctx).giveKeys(u(s[0]), u(s[1]), u(s[2]))))
	}},
	{"get", toI64(5), func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(callOf(ctx).get(u(s[0]), u(s[1]), u(s[2]), u(s[3]), u(s[4])))
	}},
	{"get_many", toI64(4), func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(callOf(ctx).getMany(u(s[0]), u(s[1]), u(s[2]), u(s[3])))
	}},
	{"list", toI64(8), func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(callOf(ctx).list(u(s[0]), u(s[1]), u(s[2]), u(s[3]), u(s[4]), u(s[5]), u(s[6]), u(s[7])))
	}},
	{"log", toNone(3), func(ctx context.Context, _ api.Module, s []uint64) {
		callOf(ctx).logLine(u(s[0]), u(s[1]), u(s[2]))
	}},
	{"fail", toNone(3), func(ctx context.Context, _ api.Module, s []uint64) {
		callOf(ctx).failReason(u(s[0]), u(s[1]), u(s[2]))
	}},
	{"now_us", wasm.FuncType{Results: []wasm.ValueType{wasm.I64}}, func(ctx context.Context, _ api.Module, s []uint64) {
		s[0] = uint64(callOf(ctx).nowUS())
	}},
	{"random", toNone(2), func(ctx context.Context, _ api.Module, s []uint64) {
		c := callOf(ctx)
		c.fillRandom(c.arg("random", u(s[0]), u(s[1])))
	}},
}

// importable finds what a guest may import.
func importable(module, name string) (hostFunc, bool) {
	var table []hostFunc
	switch module {
	case hostModule:
		table = hostFuncs
	case wasiModule:
		table = wasiFuncs
	}
	for _, f := range table {
		if f.name == name {
			return f, true
		}
	}
	return hostFunc{}, false
}
