package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/projhost/projhost/plugins/internal/wasm"
)

// Mode says how guests run.
type Mode uint8

const (
	// Compile makes machine code where the platform has a compiler and
	// interprets elsewhere.
	Compile Mode = iota
	// Interpret never compiles: quick to load, slow to run.
	Interpret
)

// features are WebAssembly 2.0 with tail calls and extended constants. The
// compiler has a known fault with exceptions; threads and memory64 make no
// sense for a pure guest.
const features = api.CoreFeaturesV2 | experimental.CoreFeaturesTailCall | experimental.CoreFeaturesExtendedConst

// Engine is what the modules of a host share: where compiled code is kept and
// how guests run. It is safe for concurrent use.
type Engine struct {
	cacheDir string
	log      hclog.Logger
	mode     Mode

	mu      sync.Mutex
	modules map[*Module]struct{} // nil once closed
}

var errEngineClosed = errors.New("the plugin engine is closed")

// NewEngine returns an engine that keeps compiled code under cacheDir; with ""
// it keeps none. Nobody else may write there: what lies there is run.
func NewEngine(cacheDir string, log hclog.Logger, mode Mode) (*Engine, error) {
	if mode > Interpret {
		return nil, fmt.Errorf("plugin engine: unknown mode %d", mode)
	}
	return &Engine{cacheDir: cacheDir, log: log.Named("plugins"), mode: mode, modules: map[*Module]struct{}{}}, nil
}

// Close closes the engine's modules. It waits for calls under way.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	modules := e.modules
	e.modules = nil
	e.mu.Unlock()
	var errs []error
	for m := range modules {
		errs = append(errs, m.close(ctx))
	}
	return errors.Join(errs...)
}

func (e *Engine) add(m *Module) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.modules == nil {
		return errEngineClosed
	}
	e.modules[m] = struct{}{}
	return nil
}

func (e *Engine) remove(m *Module) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.modules, m)
}

// Load admits a module: it is judged, compiled, started once and asked for its
// manifest. A module that is not admitted gives a *[RejectError].
func (e *Engine) Load(ctx context.Context, bin []byte, s Settings) (*Module, error) {
	sum := sha256.Sum256(bin)
	m := &Module{
		engine:    e,
		log:       e.log.With("plugin", s.Name),
		digest:    "sha256:" + hex.EncodeToString(sum[:]),
		size:      len(bin),
		settings:  s,
		instances: map[*Instance]struct{}{},
	}
	if len(m.settings.Config) == 0 {
		m.settings.Config = []byte("{}")
	}
	reject := func(reasons ...string) (*Module, error) {
		return nil, &RejectError{Name: s.Name, Digest: m.digest, Reasons: reasons}
	}
	if problems := s.validate(); len(problems) > 0 {
		return reject(problems...)
	}
	parsed, reasons := inspect(bin, s)
	if len(reasons) > 0 {
		return reject(reasons...)
	}
	m.takeShape(parsed)
	var err error
	if m.compiled, err = e.compile(ctx, parsed, m); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return reject("it does not validate or compile: " + clean([]byte(err.Error()), 500))
	}
	if reasons, err := m.admit(ctx); err != nil || len(reasons) > 0 {
		closeErr := m.close(ctx)
		if err != nil {
			return nil, errors.Join(err, closeErr)
		}
		return reject(reasons...)
	}
	if err := e.add(m); err != nil {
		return nil, errors.Join(err, m.close(ctx))
	}
	return m, nil
}

// compile makes code of the rewritten module. A cache that cannot be used costs
// time and a warning, nothing else.
func (e *Engine) compile(ctx context.Context, parsed *wasm.Module, m *Module) (*compiled, error) {
	bin := parsed.Rewrite(m.settings.Timeout > 0)
	if e.cacheDir == "" || e.mode == Interpret {
		return e.compileWith(ctx, bin, parsed, m, wazero.NewCompilationCache())
	}
	kept, cache, cacheErr := openCompileCache(e.cacheDir, m.digest)
	if cacheErr == nil {
		c, err := e.compileWith(ctx, bin, parsed, m, cache)
		if err == nil {
			if err := kept.seal(); err != nil {
				m.log.Warn("compiled code cannot be kept", "dir", kept.dir, "error", err)
			}
			return c, nil
		}
		cacheErr = err
	}
	c, err := e.compileWith(ctx, bin, parsed, m, wazero.NewCompilationCache())
	if err == nil {
		m.log.Warn("compile cache cannot be used", "dir", e.cacheDir, "error", cacheErr)
	} else if kept != nil {
		kept.removeIfEmpty()
	}
	return c, err
}

func (e *Engine) compileWith(ctx context.Context, bin []byte, parsed *wasm.Module, m *Module, cache wazero.CompilationCache) (c *compiled, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = recovered(p)
		}
		if err != nil && c != nil {
			err = errors.Join(err, c.close(ctx))
			c = nil
		}
	}()
	config := wazero.NewRuntimeConfig()
	if e.mode == Interpret {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	config = timeLimit(m.settings.Timeout).configure(config).
		WithCoreFeatures(features).
		WithDebugInfoEnabled(false).
		WithCompilationCache(cache)
	c = &compiled{cache: cache, runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if err := provideImports(ctx, c.runtime, parsed); err != nil {
		return c, err
	}
	// One worker: with more, a panic in the compiler is on a goroutine nobody
	// can recover, and the host dies of a module (P6).
	c.module, err = c.runtime.CompileModule(ctx, bin)
	return c, err
}

// provideImports makes the host's modules with just the functions the guest
// asks for.
func provideImports(ctx context.Context, r wazero.Runtime, parsed *wasm.Module) error {
	builders := map[string]wazero.HostModuleBuilder{}
	done := map[[2]string]bool{}
	for _, i := range parsed.Imports {
		f, ok := importable(i.Module, i.Name)
		if key := [2]string{i.Module, i.Name}; !ok || done[key] {
			continue
		} else {
			done[key] = true
		}
		b := builders[i.Module]
		if b == nil {
			b = r.NewHostModuleBuilder(i.Module)
			builders[i.Module] = b
		}
		b.NewFunctionBuilder().WithGoModuleFunction(f.fn, apiTypes(f.typ.Params), apiTypes(f.typ.Results)).Export(f.name)
	}
	for _, b := range builders {
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return nil
}

func apiTypes(ts []wasm.ValueType) []api.ValueType {
	out := make([]api.ValueType, len(ts))
	for i, t := range ts {
		out[i] = api.ValueType(t)
	}
	return out
}
