package host

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/plugins"
)

// ModuleOf lets the host run a module. The caller closes it after the host has
// ended.
func ModuleOf(m *plugins.Module) Module { return module{m} }

type module struct{ *plugins.Module }

func (m module) NewInstance(ctx context.Context, log hclog.Logger) (Instance, error) {
	i, err := m.Module.NewInstance(ctx)
	if err != nil {
		return nil, err
	}
	i.SetLogger(log)
	return i, nil
}
