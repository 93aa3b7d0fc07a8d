package main

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/drivers"
	"github.com/projhost/projhost/store/sqlite"
)

// connect finds the running host: the one --url names, else the one that
// answers at the configured address.
func (c *cli) connect(ctx context.Context) (*client, error) {
	cl, err := c.remote(ctx)
	if err != nil {
		return nil, err
	}
	if cl == nil {
		cfg, err := c.load()
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("no host answers at %s: start one with projhost run, or name another with --url", cfg.HTTP.Listen)
	}
	cl.actor = osUser()
	return cl, nil
}

// connectOrRead is connectOrOpen for a command that only reads: where there is
// no database it makes none, since whoever asks is in the wrong folder.
func (c *cli) connectOrRead(ctx context.Context) (*client, error) {
	cl, err := c.remote(ctx)
	if err != nil || cl != nil {
		return cl, err
	}
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	reading := *cfg
	if cfg.Store.Driver != "sqlite" || !exists(cfg.SQLitePath()) {
		reading.Store.InitializeSchema = "never"
	}
	cl, err = c.open(ctx, &reading)
	if _, none := errors.AsType[*noFileError](err); none {
		return nil, fmt.Errorf("no host answers at %s, and there is no database at %s: name the host with --url, or the configuration with --config", cfg.HTTP.Listen, cfg.Database())
	}
	if err != nil && cfg.Store.Driver != "sqlite" {
		return nil, fmt.Errorf("no host answers at %s, and the database cannot be read: %w", cfg.HTTP.Listen, err)
	}
	return cl, err
}

// connectOrOpen finds the running host, and where there is none opens the store
// and serves it to this process alone.
func (c *cli) connectOrOpen(ctx context.Context) (*client, error) {
	cl, err := c.remote(ctx)
	if err != nil || cl != nil {
		return cl, err
	}
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	return c.open(ctx, cfg)
}

// open opens the store and serves it to this process alone.
func (c *cli) open(ctx context.Context, cfg *config.Config) (*client, error) {
	st, err := openStore(ctx, cfg, nil)
	if err != nil {
		if locked, ok := errors.AsType[*sqlite.LockedError](err); ok {
			return nil, fmt.Errorf("another projhost (%s) has the database open, and none answers at %s: "+
				"if it is starting, try again in a moment; if it listens elsewhere, name it with --url (it holds %s)", locked.Holder, cfg.HTTP.Listen, locked.Path)
		}
		return nil, err
	}
	log := hclog.NewNullLogger()
	// No body limit but what a batch of ours can be: an event of max_event as
	// base64, and its line.
	server := api.New(api.Deps{Store: st, Runtime: noRuntime{}, Log: log, Version: version()},
		api.Config{MaxBody: max(64<<20, 2*int64(cfg.Store.MaxEvent))})
	return &client{base: "http://localhost", local: true, close: st.Close,
		http: &http.Client{Transport: inProcess{server.Handler()}}}, nil
}

// remote returns nil where no host answers at the configured address.
func (c *cli) remote(ctx context.Context) (*client, error) {
	token := c.token
	if token == "" {
		token = os.Getenv("PROJHOST_TOKEN")
	}
	address := c.url
	if address == "" {
		address = os.Getenv("PROJHOST_URL")
	}
	if address != "" {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.User != nil {
			return nil, usage("%q is not the address of a host: such as http://127.0.0.1:8080 (--url or PROJHOST_URL)", address)
		}
		cl := &client{base: strings.TrimRight(address, "/"), token: token, http: &http.Client{}, close: noClose}
		if !cl.alive(ctx) {
			// The call itself tells best what is wrong.
			if _, _, err := cl.call(ctx, http.MethodGet, "/healthz", nil, nil); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("what answers at %s is not a projhost", address)
		}
		return cl, nil
	}
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	cl, err := configuredClient(cfg)
	if err != nil || cl == nil {
		return nil, err
	}
	cl.token = token
	if !cl.alive(ctx) {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		return nil, nil
	}
	return cl, nil
}

func noClose() error { return nil }

// configuredClient calls http.listen; nil if no client can know its port.
func configuredClient(cfg *config.Config) (*client, error) {
	host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
	if err != nil || port == "0" {
		return nil, nil
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	address := net.JoinHostPort(host, port)
	if cfg.HTTP.TLSCert == "" {
		return &client{base: "http://" + address, http: &http.Client{}, close: noClose}, nil
	}
	// The certificate is for the name other machines use, and this one calls by
	// its own address: so the certificate itself is what is compared.
	own, err := leafOf(cfg.Resolve(cfg.HTTP.TLSCert))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection compares instead
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 || string(cs.PeerCertificates[0].Raw) != string(own) {
				return errors.New("the certificate is not the one http.tls_cert names")
			}
			return nil
		},
	}}
	return &client{base: "https://" + address, http: &http.Client{Transport: transport}, close: noClose}, nil
}

func leafOf(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("http.tls_cert: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("http.tls_cert: %s holds no certificate in PEM form", path)
	}
	return block.Bytes, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// noFileError is a database file that is not there.
type noFileError struct{ path string }

func (e *noFileError) Error() string {
	return fmt.Sprintf("there is no database at %s, and initialize_schema is \"never\": make it with the script of projhost schema print", e.path)
}

// missing reports whether a database that was to be left as it is has none of
// the host's tables, or is not there as a file.
func missing(err error) bool {
	if _, ok := errors.AsType[*noFileError](err); ok {
		return true
	}
	e, ok := errors.AsType[*store.SchemaError](err)
	return ok && e.New
}

// timeoutMin is the least that a server is given before it is taken for gone, or
// a transaction for one of a host that stands still. Beyond that it is the time
// an instance has: locks of one that has lapsed are in the way of its successor.
const timeoutMin = 5 * time.Second

// openStore opens the configured database; the folder of one in a file is made.
// logf gets what the driver has to tell; nil: nobody.
func openStore(ctx context.Context, cfg *config.Config, logf func(string, ...any)) (store.Store, error) {
	never := cfg.Store.InitializeSchema == "never"
	if cfg.Store.Driver == "sqlite" {
		if never && !exists(cfg.SQLitePath()) {
			return nil, &noFileError{cfg.SQLitePath()}
		}
		if err := os.MkdirAll(cfg.DataPath(), 0o750); err != nil {
			return nil, fmt.Errorf("data_dir: %w", err)
		}
	}
	var timeout time.Duration // an embedded store has nobody to wait for
	if cfg.Store.Driver != "sqlite" {
		timeout = max(cfg.Cluster.InstanceTTL, timeoutMin)
	}
	return drivers.Open(ctx, cfg.Store.Driver, store.Options{
		Timeout:         timeout,
		DSN:             cfg.StoreDSN(),
		DirectDSN:       cfg.Store.DirectDSN,
		TablePrefix:     cfg.Store.TablePrefix,
		ReadModelPrefix: cfg.Store.ReadModelPrefix,
		NeverInitialize: never,
		Partitions:      cfg.Partitions.Count,
		MaxEvent:        int(cfg.Store.MaxEvent),
		MaxOpenConns:    cfg.Store.MaxOpenConns,
		Logf:            logf,
	})
}

// openAsItIs opens the configured database without making anything.
func openAsItIs(ctx context.Context, cfg *config.Config) (store.Store, error) {
	never := *cfg
	never.Store.InitializeSchema = "never"
	return openStore(ctx, &never, nil)
}

// noRuntime stands in where no host runs: nothing is applied here.
type noRuntime struct{}

func (noRuntime) Status(context.Context) (api.Status, error)          { return api.Status{}, nil }
func (noRuntime) Ready() (bool, []string)                             { return true, nil }
func (noRuntime) Applied(store.ConsumerID, string, int) (int64, bool) { return 0, false }
func (noRuntime) Halted(store.ConsumerID) *store.Halt                 { return nil }
func (noRuntime) Look()                                               {}
func (noRuntime) WaitApplied(context.Context, store.ConsumerID, string, int64, int) error {
	return api.ErrNotRun
}
