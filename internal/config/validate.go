package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Drivers are those this version is built with.
var Drivers = []string{"sqlite"}

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
	known := slices.Contains([]string{"sqlite", "postgres", "mysql", "sqlserver"}, s.Driver)
	d.check(!known || slices.Contains(Drivers, s.Driver), "store.driver",
		"%q is not built into this version; it has %s", s.Driver, strings.Join(Drivers, ", "))
	d.check(prefixName.MatchString(s.TablePrefix), "store.table_prefix",
		"%q is not usable: 1 to 32 letters, digits and \"_\", not starting with a digit", s.TablePrefix)
	d.check(s.ReadModelPrefix == "" || prefixName.MatchString(s.ReadModelPrefix), "store.read_model_prefix",
		"%q is not usable: up to 32 letters, digits and \"_\", not starting with a digit", s.ReadModelPrefix)
	d.check(s.ReadModelPrefix == "" || !strings.HasPrefix(strings.ToLower(s.ReadModelPrefix), strings.ToLower(s.TablePrefix)), "store.read_model_prefix",
		"%q starts with store.table_prefix, %q, which is kept for the host's own tables", s.ReadModelPrefix, s.TablePrefix)
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
