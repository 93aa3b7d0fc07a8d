// Package config reads projhost's TOML file into plain values.
//
// It promises that a file is taken whole or not at all: an unknown key, a value
// of the wrong type or out of range, and a combination that cannot work are all
// reported, together, each with file, line, key and what is allowed; and that
// no message of it shows a secret (see [RedactDSN]). An empty file is valid.
//
// It opens nothing but the file and the files that …_file keys name, and knows
// neither the host nor the store.
package config

import (
	"path/filepath"
	"time"
)

// Config is the whole file. Every field's last comment line is its default.
type Config struct {
	// Folder of the embedded database, the compile cache and the lock.
	// data
	DataDir string `toml:"data_dir"`
	// How long a stopping host lets batches in flight commit.
	// 10s
	ShutdownTimeout time.Duration `toml:"shutdown_timeout"`

	Store      Store      `toml:"store"`
	HTTP       HTTP       `toml:"http"`
	Partitions Partitions `toml:"partitions"`
	Cluster    Cluster    `toml:"cluster"`
	Apply      Apply      `toml:"apply"`
	Delivery   Delivery   `toml:"delivery"`
	Log        Log        `toml:"log"`
	Plugins    []Plugin   `toml:"plugin"`

	// File is where the values came from, "" for the defaults alone. Relative
	// paths in the file are relative to its folder.
	File string `toml:"-"`
}

// Store says which database keeps everything.
type Store struct {
	// sqlite | postgres | mysql (MySQL and MariaDB) | sqlserver.
	// sqlite
	Driver string `toml:"driver" allowed:"sqlite|postgres|mysql|sqlserver"`
	// sqlite: path of the file; "" is <data_dir>/projhost.db. Else the
	// connection string of the database, which has to be given.
	// ""
	DSN     string `toml:"dsn" secret:"file"`
	DSNFile string `toml:"dsn_file"`
	// Prefix of the host's tables; plugins cannot use it.
	// ph_
	TablePrefix string `toml:"table_prefix"`
	// Prefix of the tables of read models.
	// ""
	ReadModelPrefix string `toml:"read_model_prefix"`
	// always: create and migrate the host's tables at start; never: a missing
	// table stops the start.
	// always
	InitializeSchema string `toml:"initialize_schema" allowed:"always|never"`
	// Connections. 0: the driver's default.
	// 0
	MaxOpenConns int `toml:"max_open_conns" min:"0" max:"10000"`
	// postgres, where dsn is a pooler: the server itself, for LISTEN, the
	// detector and locks, which need a session of their own.
	// ""
	DirectDSN     string `toml:"direct_dsn" secret:"file"`
	DirectDSNFile string `toml:"direct_dsn_file"`
	// Largest data plus metadata of one event.
	// 1MiB
	MaxEvent Size `toml:"max_event" min:"1KiB" max:"64MiB"`
}

// HTTP is the listener.
type HTTP struct {
	// Address. One that is not a loopback address needs tokens.
	// 127.0.0.1:8080
	Listen string `toml:"listen"`
	// Certificate and key files (PEM). Both or neither.
	// ""
	TLSCert string `toml:"tls_cert"`
	TLSKey  string `toml:"tls_key"`
	// Largest request body.
	// 8MiB
	MaxBody Size    `toml:"max_body" min:"1KiB" max:"1GiB"`
	Tokens  []Token `toml:"tokens"`
}

// Token is a bearer token, known by its hash.
type Token struct {
	Name string `toml:"name"`
	// Hex SHA-256 of the token.
	SHA256     string   `toml:"sha256" secret:"file"`
	SHA256File string   `toml:"sha256_file"`
	Roles      []string `toml:"roles" allowed:"read|append|operate|admin"`
}

// Partitions is frozen by the first start.
type Partitions struct {
	// 256
	Count int `toml:"count" min:"1" max:"32767"`
}

// Cluster paces the instances that share a database.
type Cluster struct {
	// How often a host tells the database that it runs.
	// 3s
	Heartbeat time.Duration `toml:"heartbeat" min:"100ms" max:"10m"`
	// How long after its last heartbeat a host counts as running: so long do its
	// partitions stand still when it is killed. At least three heartbeats.
	// 15s
	InstanceTTL time.Duration `toml:"instance_ttl" min:"1s" max:"1h"`
	// How often a host looks at who owns what.
	// 5s
	Rebalance time.Duration `toml:"rebalance" min:"100ms" max:"1h"`
	// How many partitions this host takes at most, over all consumers that are
	// not single-owner. What no host may take stands still. 0: no limit.
	// 0
	MaxPartitions int `toml:"max_partitions" min:"0" max:"1000000000"`
}

// Apply paces the application of messages.
type Apply struct {
	// Parallel lanes per consumer on this host. 0: from the cores.
	// 0
	Lanes int `toml:"lanes" min:"0" max:"1024"`
	// Messages an apply transaction. 0: adaptive.
	// 0
	Batch int `toml:"batch" min:"0" max:"100000"`
	// How often a topic is looked at when no notification arrives.
	// 250ms
	Poll time.Duration `toml:"poll" min:"1ms" max:"1h"`
}

// Delivery says what becomes of messages that cannot be applied.
type Delivery struct {
	// Tries after the first of a message whose data the database refuses. What
	// fails in the plugin fails again, and is not tried at all.
	// 5
	MaxAttempts int `toml:"max_attempts" min:"0" max:"1000000"`
	// Pause before a message is tried again, doubling up to max_backoff, each up to
	// a fifth shorter or longer.
	// 200ms
	Backoff time.Duration `toml:"backoff" min:"1ms" max:"24h"`
	// 30s
	MaxBackoff time.Duration `toml:"max_backoff" min:"1ms" max:"168h"`
	// Tries of a message for which the plugin asks for a later retry, and
	// how long it is tried.
	// 100
	MaxTransient int `toml:"max_transient" min:"1" max:"1000000000"`
	// 24h
	MaxTransientAge time.Duration `toml:"max_transient_age" min:"1s" max:"8760h"`
	// What follows. halt: the consumer halts; dead_letter_key: the key stands
	// still until an operator decides; dead_letter: the message is put aside and
	// its key goes on; skip: it is passed over, and that is recorded.
	// halt
	OnExhausted string `toml:"on_exhausted" allowed:"halt|dead_letter_key|dead_letter|skip"`
	// Undelivered messages that this host keeps for a consumer at most, those that
	// wait behind others included: each is a copy. Then the consumer halts.
	// 100000
	MaxUndelivered int `toml:"max_undelivered" min:"1" max:"1000000000"`
}

// Log is the host's own log, on standard error.
type Log struct {
	// info
	Level string `toml:"level" allowed:"trace|debug|info|warn|error|off"`
	// auto: text on a terminal, else json.
	// auto
	Format string `toml:"format" allowed:"auto|text|json"`
}

// Plugin is a module and its limits.
type Plugin struct {
	// The deployment's name: letters, digits, '-', '_' and '.'.
	Name string `toml:"name"`
	// The module's file.
	Path string `toml:"path"`
	// sha256:… of a module deployed to the store. Not in this version.
	Digest string `toml:"digest"`
	// Memory of one instance.
	// 64MiB
	MemoryLimit Size `toml:"memory_limit" min:"1MiB" max:"4GiB"`
	// Wall clock for one batch. 0: no limit, and the switch that enforces one
	// is off.
	// 5s
	Timeout time.Duration `toml:"timeout" min:"0s" max:"1h"`
	// Units for one entry. No effect yet.
	// 50000000
	Fuel int64 `toml:"fuel" min:"0" max:"9000000000000000000"`
	// batch | lane: when the guest's memory starts afresh.
	// batch
	Isolate string `toml:"isolate" allowed:"batch|lane"`
	// Given to the plugin when it starts.
	// {}
	Config map[string]any `toml:"config"`
	// Capabilities beyond the pure ones. This version has none to give.
	// []
	Grants    []string            `toml:"grants"`
	Consumers map[string]Consumer `toml:"consumer"`
}

// Consumer is what one consumer of a plugin has otherwise than the rest.
type Consumer struct {
	// spread | single-owner. "": as the plugin declares; it can be tightened
	// to single-owner, never loosened.
	// ""
	Distribution string `toml:"distribution" allowed:"spread|single-owner"`
	// As delivery.on_exhausted. "": as that says.
	// ""
	OnExhausted string `toml:"on_exhausted" allowed:"halt|dead_letter_key|dead_letter|skip"`
	// halt | rebuild | accept. "": halt. This version always halts.
	// ""
	OnDeclarationChange string `toml:"on_declaration_change" allowed:"halt|rebuild|accept"`
	// Tables of the declared shape that exist already and become the
	// consumer's, with their rows.
	// []
	Adopt []string `toml:"adopt"`
}

// Default returns the values of an empty file.
func Default() Config {
	return Config{
		DataDir:         "data",
		ShutdownTimeout: 10 * time.Second,
		Store: Store{
			Driver:           "sqlite",
			TablePrefix:      "ph_",
			InitializeSchema: "always",
			MaxEvent:         1 << 20,
		},
		HTTP:       HTTP{Listen: "127.0.0.1:8080", MaxBody: 8 << 20},
		Partitions: Partitions{Count: 256},
		Cluster:    Cluster{Heartbeat: 3 * time.Second, InstanceTTL: 15 * time.Second, Rebalance: 5 * time.Second},
		Apply:      Apply{Poll: 250 * time.Millisecond},
		Delivery: Delivery{
			MaxAttempts: 5, Backoff: 200 * time.Millisecond, MaxBackoff: 30 * time.Second,
			MaxTransient: 100, MaxTransientAge: 24 * time.Hour, OnExhausted: "halt", MaxUndelivered: 100_000,
		},
		Log: Log{Level: "info", Format: "auto"},
	}
}

// DefaultPlugin returns the values of a [[plugin]] table without keys.
func DefaultPlugin() Plugin {
	return Plugin{MemoryLimit: 64 << 20, Timeout: 5 * time.Second, Fuel: 50_000_000, Isolate: "batch"}
}

// Resolve gives a path of the file its place: relative to the file's folder, or
// to the working directory where there is no file.
func (c *Config) Resolve(path string) string {
	if path == "" || filepath.IsAbs(path) || c.File == "" {
		return path
	}
	return filepath.Join(filepath.Dir(c.File), path)
}

// DataPath is the data folder's place.
func (c *Config) DataPath() string { return c.Resolve(c.DataDir) }

// SQLitePath is the embedded database's place.
func (c *Config) SQLitePath() string {
	if c.Store.DSN != "" {
		return c.Resolve(c.Store.DSN)
	}
	return filepath.Join(c.DataPath(), "projhost.db")
}

// StoreDSN is what the driver opens: the path of the file for sqlite, else the
// connection string. It may hold a password.
func (c *Config) StoreDSN() string {
	if c.Store.Driver == "sqlite" {
		return c.SQLitePath()
	}
	return c.Store.DSN
}

// Database says in messages where the database is, without its secrets.
func (c *Config) Database() string {
	if c.Store.Driver == "sqlite" {
		return c.SQLitePath()
	}
	return c.Store.Driver + " at " + RedactDSN(c.Store.DSN)
}

// Notices lists settings that differ from their default and have no effect in
// this version, each as one sentence.
func (c *Config) Notices() []string {
	var out []string
	for i := range c.Plugins {
		p := &c.Plugins[i]
		key := "plugin " + p.Name
		if p.Fuel != DefaultPlugin().Fuel {
			out = append(out, key+": fuel has no effect in this version: timeout limits a call")
		}
		for _, name := range sortedKeys(p.Consumers) {
			cc := p.Consumers[name]
			if cc.OnDeclarationChange != "" && cc.OnDeclarationChange != "halt" {
				out = append(out, key+": consumer."+name+".on_declaration_change has no effect in this version: a changed declaration halts its consumer")
			}
		}
	}
	return out
}
