package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

func (c *cli) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the host with the configuration",
		Long: `run opens the store, loads the plugins of the configuration, applies events to them and answers HTTP,
until it is interrupted. A stop lets batches and requests in hand finish.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			log := c.logger(cfg.Log)
			for _, n := range cfg.Notices() {
				log.Warn(n)
			}
			n, err := openNode(cmd.Context(), cfg, log, nil, nil)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, n.close()) }()
			log.Info("serving", "address", n.address(), "version", version(), "plugins", len(cfg.Plugins), "database", cfg.Database())
			if err := n.run(cmd.Context()); err != nil {
				return err
			}
			log.Info("stopped")
			return nil
		},
	}
}

// node is a host with its store, plugins and API.
type node struct {
	cfg      *config.Config
	log      hclog.Logger
	store    store.Store
	engine   *plugins.Engine
	host     *host.Host
	api      *api.Server
	listener net.Listener
}

// openNode opens and loads everything and listens, without beginning to work.
// modules are the bytes of plugins that are not read from their path; l is a
// listener to use instead of http.listen, or nil. Both pass to the node.
func openNode(ctx context.Context, cfg *config.Config, log hclog.Logger, modules map[string][]byte, l net.Listener) (_ *node, err error) {
	n := &node{cfg: cfg, log: log, listener: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	warn := log.Named("store").Warn
	if n.store, err = openStore(ctx, cfg, func(format string, args ...any) { warn(fmt.Sprintf(format, args...)) }); err != nil {
		return nil, err
	}
	if n.engine, err = plugins.NewEngine(filepath.Join(cfg.DataPath(), "modules"), log, plugins.Compile); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	deps := host.Deps{Store: n.store, Log: log, Metrics: registry}
	if deps.Plugins, err = n.load(ctx, modules); err != nil {
		return nil, err
	}
	if n.host, err = host.New(deps, hostConfig(cfg)); err != nil {
		return nil, err
	}
	apiCfg, err := apiConfig(cfg)
	if err != nil {
		return nil, err
	}
	n.api = api.New(api.Deps{Store: n.store, Runtime: hostRuntime{n.host}, Log: log.Named("http"), Registry: registry, Version: version()}, apiCfg)
	if n.listener == nil {
		if n.listener, err = listen(cfg.HTTP.Listen); err != nil {
			return nil, fmt.Errorf("http.listen: %w", err)
		}
	}
	return n, nil
}

// listen says what to do about a port that is taken.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use by another process: stop that, or choose another port", address)
	}
	return l, err
}

// load reads and admits the configured plugins; all that are refused are named.
func (n *node) load(ctx context.Context, modules map[string][]byte) ([]host.Plugin, error) {
	var loaded []host.Plugin
	var errs []error
	for i := range n.cfg.Plugins {
		p := &n.cfg.Plugins[i]
		wasm, ok := modules[p.Name]
		if !ok {
			var err error
			if wasm, err = readPlugin(n.cfg, p); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		settings, err := settingsOf(n.cfg, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.log.Info("loading", "plugin", p.Name) // the first time it is compiled, which takes a while
		m, err := n.engine.Load(ctx, wasm, settings)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		hp := host.Plugin{Name: p.Name, Module: host.ModuleOf(m), Config: settings.Config, Consumers: map[string]host.ConsumerConfig{}}
		for name, cc := range p.Consumers {
			hp.Consumers[name] = host.ConsumerConfig{
				SingleOwner: cc.Distribution == "single-owner", Adopt: cc.Adopt, OnExhausted: lane.Exhausted(cc.OnExhausted),
			}
		}
		loaded = append(loaded, hp)
	}
	return loaded, errors.Join(errs...)
}

func hostConfig(cfg *config.Config) host.Config {
	h := host.DefaultConfig()
	h.HostName, _ = os.Hostname()
	h.Lanes = cfg.Apply.Lanes
	h.Batch = cfg.Apply.Batch
	h.Poll = cfg.Apply.Poll
	h.Heartbeat, h.InstanceTTL, h.Rebalance = cfg.Cluster.Heartbeat, cfg.Cluster.InstanceTTL, cfg.Cluster.Rebalance
	h.MaxPartitions = cfg.Cluster.MaxPartitions
	h.ShutdownTimeout = cfg.ShutdownTimeout
	d := &cfg.Delivery
	h.Delivery = lane.Delivery{
		MaxAttempts: d.MaxAttempts, Backoff: retry.Policy{Min: d.Backoff, Max: d.MaxBackoff},
		MaxTransient: d.MaxTransient, MaxTransientAge: d.MaxTransientAge, OnExhausted: lane.Exhausted(d.OnExhausted),
	}
	h.MaxUndelivered = d.MaxUndelivered
	return h
}

func apiConfig(cfg *config.Config) (api.Config, error) {
	out := api.Config{MaxBody: int64(cfg.HTTP.MaxBody), ShutdownTimeout: cfg.ShutdownTimeout}
	for _, t := range cfg.HTTP.Tokens {
		token, err := api.ParseToken(t.Name, t.SHA256, t.Roles)
		if err != nil {
			return out, err
		}
		out.Tokens = append(out.Tokens, token)
	}
	if cfg.HTTP.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.Resolve(cfg.HTTP.TLSCert), cfg.Resolve(cfg.HTTP.TLSKey))
		if err != nil {
			return out, fmt.Errorf("http.tls_cert: %w", err)
		}
		out.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}
	return out, nil
}

// address is where the node answers.
func (n *node) address() string {
	if n.cfg.HTTP.TLSCert != "" {
		return "https://" + n.listener.Addr().String()
	}
	return "http://" + n.listener.Addr().String()
}

// run works until ctx ends or host or listener fail, then stops both.
func (n *node) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.host.Run(ctx) })
	g.Go(func() error { return n.api.Serve(ctx, n.listener) })
	g.Go(func() error { n.announce(ctx); return nil })
	return g.Wait()
}

// readyPoll is how often a starting host is looked at.
const readyPoll = 20 * time.Millisecond

// announce logs when every consumer runs.
func (n *node) announce(ctx context.Context) {
	for {
		if ready, _ := n.host.Ready(); ready {
			n.log.Info("ready", "address", n.address())
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(readyPoll):
		}
	}
}

// close gives everything back, the store last.
func (n *node) close() error {
	var errs []error
	if n.listener != nil {
		_ = n.listener.Close() // the server has closed it, if it served
	}
	if n.engine != nil {
		errs = append(errs, n.engine.Close(context.Background()))
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(errs...)
}
