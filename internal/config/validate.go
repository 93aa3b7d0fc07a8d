package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var (
	pluginName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	prefixName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// check adds a problem of a key that has none yet.
func (d *decoder) check(ok bool, key, format string, args ...any) {
	if !ok && !d.seen[key] {
		d.problem(key, format, args...)
	}
}

// validate finds what single values cannot show.
func (d *decoder) validate(c *Config) {
	d.check(c.DataDir != "", "data_dir", "must not be empty")
	d.check(c.ShutdownTimeout >= 0, "shutdown_timeout", "must not be negative")
	d.validateStore(&c.Store)
	d.validateHTTP(&c.HTTP)
	d.check(c.Cluster.InstanceTTL >= 3*c.Cluster.Heartbeat, "cluster.instance_ttl",
		"%s is less than three heartbeats (cluster.heartbeat is %s): a late heartbeat or two would cost the instance its partitions", c.Cluster.InstanceTTL, c.Cluster.Heartbeat)
	d.check(c.Delivery.MaxBackoff >= c.Delivery.Backoff, "delivery.max_backoff", "%s is less than delivery.backoff, %s", c.Delivery.MaxBackoff, c.Delivery.Backoff)
	names := map[string]int{}
	for i := range c.Plugins {
		d.validatePlugin(&c.Plugins[i], fmt.Sprintf("plugin[%d]", i), i, names)
	}
}

func (d *decoder) validateStore(s *Store) {
	d.check(prefixName.MatchString(s.TablePrefix), "store.table_prefix",
		"%q is not usable: 1 to 32 letters, digits and \"_\", not starting with a digit", s.TablePrefix)
	d.check(s.ReadModelPrefix == "" || prefixName.MatchString(s.ReadModelPrefix), "store.read_model_prefix",
		"%q is not usable: up to 32 letters, digits and \"_\", not starting with a digit", s.ReadModelPrefix)
	d.check(s.ReadModelPrefix == "" || !strings.HasPrefix(strings.ToLower(s.ReadModelPrefix), strings.ToLower(s.TablePrefix)), "store.read_model_prefix",
		"%q starts with store.table_prefix, %q, which is kept for the host's own tables", s.ReadModelPrefix, s.TablePrefix)
	if d.seen["store.driver"] {
		return
	}
	if err := CheckDSN(s.Driver, s.DSN); err != nil && !d.seen["store.dsn_file"] {
		key := "store.dsn"
		if d.lines["store.dsn_file"] > 0 {
			key = "store.dsn_file"
		}
		d.check(false, key, "%v", err)
	}
	if s.DirectDSN != "" {
		d.check(s.Driver == "postgres", "store.direct_dsn", "is for postgres behind a pooler, and store.driver is %q: remove it, or set driver = \"postgres\"", s.Driver)
		if err := CheckDSN(s.Driver, s.DirectDSN); err != nil && s.Driver == "postgres" {
			d.check(false, "store.direct_dsn", "%v", err)
		}
	}
}

// forms of connection strings, and how to tell that one is meant: a string that
// can only be another driver's is a wrong driver, and better told here than by
// a connection that fails.
var dsnForms = map[string]struct {
	example string
	is      func(dsn string) bool
}{
	"sqlite": {"data/projhost.db", func(dsn string) bool { return !strings.Contains(dsn, "://") && !strings.Contains(dsn, "@tcp(") }},
	"postgres": {"postgres://user:password@host:5432/database", func(dsn string) bool {
		scheme, _, isURL := strings.Cut(dsn, "://")
		return isURL && (scheme == "postgres" || scheme == "postgresql") || !isURL && strings.Contains(dsn, "=") && !strings.Contains(dsn, "@tcp(")
	}},
	"mysql": {"user:password@tcp(host:3306)/database", func(dsn string) bool {
		name := dsn[strings.LastIndexByte(dsn, '/')+1:]
		name, _, _ = strings.Cut(name, "?")
		return !strings.Contains(dsn, "://") && strings.Contains(dsn, "/") && name != ""
	}},
	"sqlserver": {"sqlserver://user:password@host:1433?database=name", func(dsn string) bool {
		return strings.HasPrefix(dsn, "sqlserver://") || strings.HasPrefix(dsn, "odbc:") || !strings.Contains(dsn, "://") && strings.Contains(dsn, "=") && !strings.Contains(dsn, "@tcp(")
	}},
}

// CheckDSN tells a connection string that is missing or cannot be the driver's.
// Its error does not show it.
func CheckDSN(driver, dsn string) error {
	form, known := dsnForms[driver]
	switch {
	case !known || dsn == "" && driver == "sqlite":
		return nil
	case dsn == "":
		return fmt.Errorf("is missing: %s needs a connection string, such as %q", driver, form.example)
	case !form.is(dsn):
		return fmt.Errorf("is not of the form that %s has, such as %q (what is given is not shown, as it may hold a password)", driver, form.example)
	}
	return nil
}

func (d *decoder) validateHTTP(h *HTTP) {
	host, port, err := net.SplitHostPort(h.Listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	d.check(err == nil, "http.listen", `%q is not an address: host and port, such as "127.0.0.1:8080"`, h.Listen)
	d.check((h.TLSCert == "") == (h.TLSKey == ""), "http.tls_key", "http.tls_cert and http.tls_key go together: give both or neither")
	if err == nil && len(h.Tokens) == 0 && !Loopback(host) {
		d.check(false, "http.listen", "%q can be reached from other machines, and no [[http.tokens]] are configured: add a token, or listen on 127.0.0.1", h.Listen)
	}
	names, hashes := map[string]bool{}, map[string]bool{}
	for i := range h.Tokens {
		t, key := &h.Tokens[i], fmt.Sprintf("http.tokens[%d]", i)
		t.SHA256 = strings.ToLower(t.SHA256)
		d.check(t.Name != "", key+".name", "is missing: it names the token in the log")
		d.check(t.Name == "" || !names[t.Name], key+".name", "%q is the name of an earlier token", t.Name)
		hash, err := hex.DecodeString(t.SHA256)
		given := t.SHA256 != "" || d.seen[key+".sha256_file"]
		d.check(given, key+".sha256", "is missing: the hex SHA-256 of the token, as printf %%s TOKEN | sha256sum prints it")
		d.check(!given || d.seen[key+".sha256_file"] || err == nil && len(hash) == 32, key+".sha256", "must be 64 hex digits, the SHA-256 of the token, as printf %%s TOKEN | sha256sum prints it")
		d.check(!given || !hashes[t.SHA256], key+".sha256", "is that of an earlier token")
		d.check(len(t.Roles) > 0 || d.seen[key+".roles"], key+".roles", "is missing: some of read, append, operate, admin")
		names[t.Name], hashes[t.SHA256] = true, true
	}
}

// Loopback reports whether a host part of an address is reachable from this
// machine only. "" is every interface.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (d *decoder) validatePlugin(p *Plugin, key string, i int, names map[string]int) {
	d.check(p.Name != "" || d.seen[key+".name"], key+".name", "is missing")
	d.check(p.Name == "" || pluginName.MatchString(p.Name), key+".name", "%q is not usable: 1 to 64 letters, digits, \"-\", \"_\" and \".\", starting with a letter or digit", p.Name)
	if first, ok := names[p.Name]; ok && p.Name != "" {
		d.check(false, key+".name", "%q is the name of plugin[%d] already", p.Name, first)
	}
	names[p.Name] = i
	d.check(p.Path == "" || p.Digest == "", key+".digest", "path and digest are both given: keep one")
	d.check(p.Digest == "" || digestForm.MatchString(p.Digest), key+".digest", `%q is not "sha256:" and 64 hex digits`, p.Digest)
	d.check(p.Digest == "", key+".digest", "modules deployed to the store are not in this version: give path")
	d.check(p.Path != "" || p.Digest != "" || d.seen[key+".path"], key+".path", "is missing: the module's file")
	d.check(len(p.Grants) == 0, key+".grants", "this version has no capabilities to grant: leave it empty")
}
