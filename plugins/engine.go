package plugins

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
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

// Engine is what the modules of a host share: where compiled code is kept and
// how guests run. It is safe for concurrent use.
type Engine struct {
	cacheDir string
	log      hclog.Logger
	mode     Mode
}

// NewEngine returns an engine that keeps compiled code under cacheDir; with ""
// it keeps none. Nobody else may write there: what lies there is run.
func NewEngine(cacheDir string, log hclog.Logger, mode Mode) (*Engine, error) {
	return &Engine{cacheDir: cacheDir, log: log, mode: mode}, nil
}

// Close closes what is left of the engine's modules.
func (e *Engine) Close(ctx context.Context) error { return nil }

// Load admits a module: it is judged, compiled, started once and asked for its
// manifest. A module that is not admitted gives a *[RejectError].
func (e *Engine) Load(ctx context.Context, wasm []byte, s Settings) (*Module, error) {
	return nil, errors.ErrUnsupported
}
