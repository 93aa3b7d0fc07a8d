package plugins

import (
	"context"
	"errors"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// guest is one WebAssembly instance.
type guest struct {
	m       *Module
	mod     api.Module
	mem     *memory
	globals []api.MutableGlobal
	region  uint32
	call    *call

	apply, keys api.Function
}

// instantiate makes a guest as the module's sections say, nothing of it run.
func (m *Module) instantiate(ctx context.Context) (g *guest, err error) {
	mem := &memory{limit: m.memoryLimit, space: newSpace(m.memoryLimit)}
	defer func() {
		if p := recover(); p != nil {
			err = recovered(p)
		}
		if err != nil {
			mem.Free()
			g = nil
		}
	}()
	ctx = experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(
		func(_, _ uint64) experimental.LinearMemory { return mem }))
	mod, err := m.compiled.runtime.InstantiateModule(ctx, m.compiled.module,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return nil, err
	}
	g = &guest{m: m, mod: mod, mem: mem}
	g.call = &call{module: m, mem: mem, log: newGuestLog(m.log, &m.settings)}
	for _, name := range m.globals {
		global, ok := mod.ExportedGlobal(name).(api.MutableGlobal)
		if !ok {
			return g, errors.Join(errors.New("a global was not exported"), mod.Close(ctx))
		}
		g.globals = append(g.globals, global)
	}
	g.findFunctions()
	return g, nil
}

// findFunctions looks the exports up. What an api.Function has grown for a
// deep recursion stays with it, so a guest that overflowed gets new ones.
func (g *guest) findFunctions() {
	g.apply = g.mod.ExportedFunction("ph_apply")
	g.keys = g.mod.ExportedFunction("ph_keys")
}

// fork makes a guest in the state every batch starts from, without running its
// start-up again.
func (m *Module) fork(ctx context.Context) (*guest, error) {
	g, err := m.instantiate(ctx)
	if err != nil {
		return nil, err
	}
	if have := uint64(len(g.mem.buf)); have < m.image.size {
		if _, ok := g.mod.Memory().Grow(uint32((m.image.size - have) / pageSize)); !ok {
			return nil, errors.Join(errors.New("no room for a guest's memory"), g.close(ctx))
		}
	}
	g.region = m.image.region
	g.restore(m.image)
	return g, nil
}

func (g *guest) readGlobals() []uint64 {
	vs := make([]uint64, len(g.globals))
	for i, global := range g.globals {
		vs[i] = global.Get()
	}
	return vs
}

// restorable tells whether restore makes the guest as good as new.
func (g *guest) restorable(img *image) bool {
	return !g.mod.IsClosed() && uint64(len(g.mem.buf)) == img.size
}

// restore puts memory and globals back (P7).
func (g *guest) restore(img *image) {
	g.mem.space.restore(g.mem.buf, img)
	for i, global := range g.globals {
		global.Set(img.globals[i])
	}
}

// run calls a function within the time limit and judges how it ended. The call
// must have begun. On return the guest may be closed.
func (g *guest) run(ctx context.Context, fn api.Function, stack []uint64) (fail *Failure, err error) {
	clock := timeLimit(g.m.settings.Timeout).begin(ctx)
	g.call.clock = clock
	err = g.invoke(&callContext{Context: clock.ctx, call: g.call}, fn, stack)
	fail, err = g.call.finish(err, int32(stack[0]))
	if clock.stop() {
		// The engine may close the module a moment after a call that ended in
		// time: such a guest is not used again, or its next call would die of
		// this one's deadline.
		_ = g.close(ctx)
	}
	if (fail != nil || err != nil) && !g.mod.IsClosed() {
		g.findFunctions()
	}
	return fail, err
}

// invoke keeps a panic of the engine from going further.
func (g *guest) invoke(ctx context.Context, fn api.Function, stack []uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = recovered(p)
		}
	}()
	return fn.CallWithStack(ctx, stack)
}

// close ends the guest. The engine does not free the memory of a module that a
// deadline closed between two calls.
func (g *guest) close(ctx context.Context) error {
	err := g.mod.Close(context.WithoutCancel(ctx))
	g.mem.Free()
	return err
}
