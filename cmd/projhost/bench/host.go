package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// The plugins under test make the same read model, so they have one name for
// it. hostTable is its first build.
const (
	projection = "accounts"
	hostTable  = "accounts__b1"
)

var consumer = store.ConsumerID{Type: abi.Projection, Name: projection}

// Plugin tells what making a plugin ready cost; none of it is in the figures of
// the runs.
type Plugin struct {
	Name         string  `json:"name"`
	Bytes        int     `json:"bytes"`
	BuildSeconds float64 `json:"build_seconds,omitempty"` // from source, or from the cache of such builds
	LoadSeconds  float64 `json:"load_seconds"`            // admitted and compiled, without a time limit
}

// source is where a plugin's module comes from.
type source struct {
	name string
	get  func(ctx context.Context) ([]byte, error)
}

var sources = []source{
	{"c", func(context.Context) ([]byte, error) { return guest.Committed("testplugins/accounts-c/accounts.wasm") }},
	{"go", func(ctx context.Context) ([]byte, error) { return guest.Compile(ctx, "testplugins/accounts") }},
}

// loader makes plugins ready, each once for each time limit.
type loader struct {
	dir     string // modules and their cache
	engine  *plugins.Engine
	modules map[string][]byte
	loaded  map[string]host.Plugin
	reports map[string]*Plugin
}

func newLoader(dir string) (*loader, error) {
	engine, err := plugins.NewEngine(filepath.Join(dir, "modules"), hclog.NewNullLogger(), plugins.Compile)
	if err != nil {
		return nil, err
	}
	return &loader{dir: dir, engine: engine, modules: map[string][]byte{}, loaded: map[string]host.Plugin{}, reports: map[string]*Plugin{}}, nil
}

func (l *loader) close() error { return l.engine.Close(context.Background()) }

func (l *loader) load(ctx context.Context, src source, limit time.Duration) (host.Plugin, error) {
	key := fmt.Sprint(src.name, limit)
	if p, ok := l.loaded[key]; ok {
		return p, nil
	}
	report := l.reports[src.name]
	if report == nil {
		start := time.Now()
		wasm, err := src.get(ctx)
		if err != nil {
			return host.Plugin{}, err
		}
		report = &Plugin{Name: src.name, Bytes: len(wasm), BuildSeconds: time.Since(start).Seconds()}
		l.modules[src.name], l.reports[src.name] = wasm, report
	}
	settings := plugins.DefaultSettings(projection)
	settings.Timeout = limit
	start := time.Now()
	m, err := l.engine.Load(ctx, l.modules[src.name], settings)
	if err != nil {
		return host.Plugin{}, err
	}
	if limit == 0 {
		report.LoadSeconds = time.Since(start).Seconds()
	}
	l.loaded[key] = host.Plugin{Name: projection, Module: host.ModuleOf(m), Config: settings.Config}
	return l.loaded[key], nil
}

// running is a host at work on a database.
type running struct {
	store store.Store
	host  *host.Host
	stop  context.CancelFunc
	done  chan error
}

// startHost opens the store and runs a host on it; started is called between
// the two.
func startHost(ctx context.Context, db engine, dsn string, p host.Plugin, started func()) (*running, error) {
	st, err := db.open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	h, err := host.New(host.Deps{Store: st, Plugins: []host.Plugin{p}}, host.DefaultConfig())
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	started()
	ctx, stop := context.WithCancel(ctx)
	r := &running{store: st, host: h, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- h.Run(ctx) }()
	return r, nil
}

// applied waits until everything up to a position is applied, or the host has
// ended.
func (r *running) applied(ctx context.Context, position int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := make(chan error, 1)
	go func() { wait <- r.host.WaitApplied(ctx, consumer, store.EventsTopic, position, host.AllPartitions) }()
	select {
	case err := <-wait:
		return err
	case err := <-r.done:
		r.done <- err
		return errors.Join(errors.New("the host has ended"), err)
	}
}

func (r *running) close() error {
	r.stop()
	return errors.Join(<-r.done, r.store.Close())
}

// catchUp runs a host until everything is applied.
func catchUp(ctx context.Context, db engine, dsn string, p host.Plugin, last int64, m *meter) (err error) {
	r, err := startHost(ctx, db, dsn, p, m.start)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	err = r.applied(ctx, last)
	m.stop()
	return err
}
