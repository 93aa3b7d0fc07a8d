package plugins

import (
	"context"
	"errors"
)

// Module is an admitted module with its settings. It is safe for concurrent
// use.
type Module struct {
	digest string
	size   int
}

// Digest names the module's bytes: "sha256:" and 64 hex digits.
func (m *Module) Digest() string { return m.digest }

// Size is that of the module's bytes.
func (m *Module) Size() int { return m.size }

// NewInstance makes an instance in the state the module had after ph_init.
func (m *Module) NewInstance(ctx context.Context) (*Instance, error) {
	return nil, errors.ErrUnsupported
}

// Close ends the module and its instances. No call may be under way.
func (m *Module) Close(ctx context.Context) error { return nil }
