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

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/store"
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
	if _, err := os.Stat(cfg.SQLitePath()); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no host answers at %s, and there is no database at %s: name the host with --url, or the configuration with --config", cfg.HTTP.Listen, cfg.SQLitePath())
	}
	return c.open(ctx, cfg)
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
	st, err := openStore(ctx, cfg)
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

// openStore opens the configured database and makes the data folder.
func openStore(ctx context.Context, cfg *config.Config) (store.Store, error) {
	if err := os.MkdirAll(cfg.DataPath(), 0o750); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	if _, err := os.Stat(cfg.SQLitePath()); errors.Is(err, fs.ErrNotExist) && cfg.Store.InitializeSchema == "never" {
		return nil, fmt.Errorf("there is no database at %s, and initialize_schema is \"never\": make it with the script of projhost schema print", cfg.SQLitePath())
	}
	st, err := sqlite.Open(ctx, sqliteOptions(cfg))
	if err != nil {
		return nil, err
	}
	return st, nil
}

func sqliteOptions(cfg *config.Config) sqlite.Options {
	return sqlite.Options{
		Path:            cfg.SQLitePath(),
		TablePrefix:     cfg.Store.TablePrefix,
		ReadModelPrefix: cfg.Store.ReadModelPrefix,
		NeverInitialize: cfg.Store.InitializeSchema == "never",
		Partitions:      cfg.Partitions.Count,
		MaxEvent:        int(cfg.Store.MaxEvent),
		Readers:         cfg.Store.MaxOpenConns,
	}
}

// noRuntime stands in where no host runs: nothing is applied here.
type noRuntime struct{}

func (noRuntime) Status(context.Context) (api.Status, error)          { return api.Status{}, nil }
func (noRuntime) Ready() (bool, []string)                             { return true, nil }
func (noRuntime) Applied(store.ConsumerID, string, int) (int64, bool) { return 0, false }
func (noRuntime) Halted(store.ConsumerID) *store.Halt                 { return nil }
func (noRuntime) WaitApplied(context.Context, store.ConsumerID, string, int64, int) error {
	return api.ErrNotRun
}
