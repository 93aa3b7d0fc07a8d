package plugins

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
)

// Module is an admitted module with its settings. It is safe for concurrent
// use.
type Module struct {
	engine      *Engine
	log         hclog.Logger
	digest      string
	size        int
	settings    Settings
	manifest    *abi.Manifest
	compiled    *compiled
	globals     []string          // exports of the mutable globals
	exports     map[uint32]string // of functions, for the text of a trap
	memoryLimit uint64            // of one guest, in whole pages
	disposable  bool              // a guest serves one batch and is thrown away
	image       *image            // what every batch starts from

	mu        sync.Mutex
	spare     *guest // started and not used yet
	instances map[*Instance]struct{}
	closed    bool
}

var errModuleClosed = errors.New("the plugin's module is closed")

// Manifest is what the module says about itself. It must not be changed.
func (m *Module) Manifest() *abi.Manifest { return m.manifest }

// Digest names the module's bytes: "sha256:" and 64 hex digits.
func (m *Module) Digest() string { return m.digest }

// Size is that of the module's bytes.
func (m *Module) Size() int { return m.size }

// Settings are those the module was loaded with.
func (m *Module) Settings() Settings { return m.settings }

// NewInstance makes an instance in the state the module had after ph_init.
func (m *Module) NewInstance(ctx context.Context) (*Instance, error) {
	i := &Instance{module: m, log: newGuestLog(m.log, &m.settings)}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errModuleClosed
	}
	i.guest, m.spare = m.spare, nil
	m.instances[i] = struct{}{}
	m.mu.Unlock()
	if i.guest == nil {
		if err := i.renew(ctx); err != nil {
			m.forget(i)
			return nil, err
		}
	}
	i.guest.call.log = i.log
	i.fresh = true
	return i, nil
}

// newGuest makes a guest that is ready for a batch.
func (m *Module) newGuest(ctx context.Context) (*guest, error) {
	if !m.disposable {
		g, err := m.fork(ctx)
		if err != nil {
			return nil, fmt.Errorf("instantiate plugin %s: %w", m.settings.Name, err)
		}
		return g, nil
	}
	g, reasons, err := m.start(ctx, false)
	if err == nil && len(reasons) > 0 {
		err = errors.New(strings.Join(reasons, "; "))
	}
	if err != nil {
		return nil, fmt.Errorf("start plugin %s again: %w", m.settings.Name, err)
	}
	return g, nil
}

func (m *Module) forget(i *Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.instances, i)
}

// Close ends the module and its instances. It waits for calls under way.
func (m *Module) Close(ctx context.Context) error {
	m.engine.remove(m)
	return m.close(ctx)
}

func (m *Module) close(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	spare, instances := m.spare, m.instances
	m.spare, m.instances = nil, map[*Instance]struct{}{}
	m.mu.Unlock()

	var errs []error
	if spare != nil {
		errs = append(errs, spare.close(ctx))
	}
	for i := range instances {
		errs = append(errs, i.close(ctx))
	}
	errs = append(errs, m.compiled.close(context.WithoutCancel(ctx)))
	if m.image != nil {
		m.image.free()
	}
	return errors.Join(errs...)
}
