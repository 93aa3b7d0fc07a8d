package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, doc string, env ...string) (*Config, error) {
	t.Helper()
	return Parse("config.toml", doc, func(name string) (string, bool) {
		for i := 0; i < len(env); i += 2 {
			if env[i] == name {
				return env[i+1], true
			}
		}
		return "", false
	})
}

func TestEmptyFileIsTheDefaults(t *testing.T) {
	c, err := parse(t, "")
	require.NoError(t, err)
	want := Default()
	want.File = "config.toml"
	require.Equal(t, &want, c)
	require.Empty(t, c.Notices())
}

// The commented file of the repository states each default and names each key.
func TestCommentedFileIsTheDefaults(t *testing.T) {
	doc, err := os.ReadFile("../../config.toml")
	require.NoError(t, err)
	c, err := parse(t, string(doc))
	require.NoError(t, err)
	want := Default()
	want.File = "config.toml"
	require.Equal(t, &want, c)

	// With the optional tables switched on, only what has no default is wrong.
	on := regexp.MustCompile(`(?m)^# (\[|[a-z0-9_]+ = )`).ReplaceAllString(string(doc), "$1")
	on = regexp.MustCompile(`(?m)^(dsn_file|direct_dsn_file|sha256_file) = .*$`).ReplaceAllString(on, "")
	on = strings.Replace(on, `sha256 = "…"`, `sha256 = "`+strings.Repeat("ab", 32)+`"`, 1)
	c, err = parse(t, on)
	require.NoError(t, err)
	plugin := DefaultPlugin()
	plugin.Name, plugin.Path = "accounts", "accounts.wasm"
	plugin.Config, plugin.Grants = map[string]any{}, []string{}
	plugin.Consumers = map[string]Consumer{"accounts": {Distribution: "spread", OnExhausted: "halt", OnDeclarationChange: "halt", Adopt: []string{}}}
	require.Equal(t, []Plugin{plugin}, c.Plugins)

	for _, typ := range []reflect.Type{reflect.TypeFor[Config](), reflect.TypeFor[Store](), reflect.TypeFor[HTTP](), reflect.TypeFor[Token](), reflect.TypeFor[Partitions](),
		reflect.TypeFor[Cluster](), reflect.TypeFor[Apply](), reflect.TypeFor[Delivery](), reflect.TypeFor[Log](), reflect.TypeFor[Plugin](), reflect.TypeFor[Consumer]()} {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := f.Tag.Get("toml")
			if name == "-" {
				continue
			}
			require.Regexp(t, `(?m)^(# )?(`+name+` = |\[+([a-z]+\.)?`+name+`\b)`, string(doc), "%s.%s", typ.Name(), f.Name)
			for _, v := range strings.FieldsFunc(f.Tag.Get("allowed"), func(r rune) bool { return r == '|' }) {
				require.Contains(t, string(doc), v, "an allowed value of %s", name)
			}
		}
	}
}

func TestEveryKeyIsTaken(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "dsn")
	require.NoError(t, os.WriteFile(secret, []byte("some/path.db\n"), 0o600))
	c, err := parse(t, `
data_dir = "${HOME_DIR}/ph"
shutdown_timeout = "3s"
[store]
dsn_file = "`+secret+`"
table_prefix = "app_"
read_model_prefix = "rm_"
initialize_schema = "never"
max_open_conns = 7
max_event = "2MiB"
[http]
listen = "0.0.0.0:${PORT:-9090}"
max_body = "16MB"
[[http.tokens]]
name = "ops"
sha256 = "`+strings.Repeat("AB", 32)+`"
roles = ["read", "operate"]
[[http.tokens]]
name = "app"
sha256 = "`+strings.Repeat("cd", 32)+`"
roles = ["append"]
[partitions]
count = 16
[cluster]
heartbeat = "1s"
instance_ttl = "4s"
rebalance = "2s"
[apply]
lanes = 3
batch = 500
poll = "1s"
[delivery]
max_attempts = 1
backoff = "1s"
max_backoff = "2s"
max_transient = 7
max_transient_age = "1h"
max_undelivered = 1000
on_exhausted = "skip"
[log]
level = "debug"
format = "json"
[[plugin]]
name = "a"
path = "a.wasm"
timeout = "0s"
[[plugin]]
name = "b"
path = "b.wasm"
memory_limit = "1GiB"
fuel = 5
isolate = "lane"
config = { currency = "${CUR}", list = ["$${x}", 1], deep = { x = 1.5 } }
[plugin.consumer.accounts]
distribution = "single-owner"
adopt = ["accounts"]
on_exhausted = "dead_letter_key"
on_declaration_change = "accept"
`, "HOME_DIR", "/srv", "CUR", "EUR", "PORT", "")
	require.NoError(t, err)
	require.Equal(t, "/srv/ph", c.DataPath())
	require.Equal(t, "some/path.db", c.Store.DSN)
	require.Equal(t, "0.0.0.0:9090", c.HTTP.Listen)
	require.Equal(t, Size(16_000_000), c.HTTP.MaxBody)
	require.Equal(t, strings.Repeat("ab", 32), c.HTTP.Tokens[0].SHA256)
	require.Equal(t, []string{"append"}, c.HTTP.Tokens[1].Roles)
	require.Equal(t, 16, c.Partitions.Count)
	require.Equal(t, Apply{Lanes: 3, Batch: 500, Poll: time.Second}, c.Apply)
	require.Equal(t, Delivery{MaxAttempts: 1, Backoff: time.Second, MaxBackoff: 2 * time.Second, MaxTransient: 7,
		MaxTransientAge: time.Hour, OnExhausted: "skip", MaxUndelivered: 1000}, c.Delivery)
	require.Equal(t, time.Duration(0), c.Plugins[0].Timeout)
	require.Equal(t, 5*time.Second, c.Plugins[1].Timeout)
	require.Equal(t, Size(1<<30), c.Plugins[1].MemoryLimit)
	require.Equal(t, map[string]any{"currency": "EUR", "list": []any{"${x}", int64(1)}, "deep": map[string]any{"x": 1.5}}, c.Plugins[1].Config)
	require.Equal(t, Consumer{"single-owner", "dead_letter_key", "accept", []string{"accounts"}}, c.Plugins[1].Consumers["accounts"])
	require.Len(t, c.Notices(), 2)
}

func TestProblemsNameFileLineKeyAndAllowed(t *testing.T) {
	for name, tc := range map[string]struct{ doc, want string }{
		"typo":               {"[http]\nlissten = \"x\"", `config.toml:2: http.lissten: unknown key (did you mean "listen"?); the keys of [http] are listen, max_body, tls_cert, tls_key, tokens`},
		"unknown table":      {"\n[stoer]\ndriver = \"sqlite\"", `config.toml:2: stoer: unknown key (did you mean "store"?); the keys of the top level are apply, cluster, data_dir, delivery, http, log, partitions, plugin, shutdown_timeout, store`},
		"wrong type":         {"[partitions]\ncount = \"many\"", `config.toml:2: partitions.count: is a string; it must be a whole number`},
		"number for size":    {"[http]\nmax_body = 8", `config.toml:2: http.max_body: is the number 8; it must be a size such as "64MiB"`},
		"unit":               {"[http]\nmax_body = \"8 megs\"", `config.toml:2: http.max_body: "8 megs": a size is a whole number and a unit of B, KB, MB, GB, KiB, MiB or GiB, such as "64MiB"`},
		"duration":           {"[apply]\npoll = \"fast\"", `config.toml:2: apply.poll: "fast": a duration is numbers with a unit of ms, s, m or h, such as "250ms" or "1m30s"`},
		"duration range":     {"[apply]\npoll = \"0s\"", `config.toml:2: apply.poll: 0s is out of range: 1ms to 1h`},
		"range":              {"[partitions]\ncount = 0", `config.toml:2: partitions.count: 0 is out of range: 1 to 32767`},
		"value":              {"[log]\nlevel = \"inof\"", `config.toml:2: log.level: "inof" is not allowed (did you mean "info"?); the values are trace, debug, info, warn, error, off`},
		"no dsn":             {"[store]\ndriver = \"postgres\"", `config.toml:1: store.dsn: is missing: postgres needs a connection string, such as "postgres://user:password@host:5432/database"`},
		"no dsn in mysql":    {"[store]\ndriver = \"mysql\"\ndsn = \"me:hunter2@tcp(h)/\"", `config.toml:3: store.dsn: is not of the form that mysql has, such as "user:password@tcp(host:3306)/database" (what is given is not shown, as it may hold a password)`},
		"url for sqlserver":  {"[store]\ndriver = \"sqlserver\"\ndsn = \"mssql://me:hunter2@h\"", `config.toml:3: store.dsn: is not of the form that sqlserver has, such as "sqlserver://user:password@host:1433?database=name" (what is given is not shown, as it may hold a password)`},
		"another's dsn":      {"[store]\ndriver = \"postgres\"\ndsn = \"me:hunter2@tcp(h)/db\"", `config.toml:3: store.dsn: is not of the form that postgres has, such as "postgres://user:password@host:5432/database" (what is given is not shown, as it may hold a password)`},
		"server for a file":  {"[store]\ndsn = \"postgres://me:hunter2@h/db\"", `config.toml:2: store.dsn: is not of the form that sqlite has, such as "data/projhost.db" (what is given is not shown, as it may hold a password)`},
		"past no pooler":     {"[store]\ndirect_dsn = \"postgres://me:hunter2@h/db\"", `config.toml:2: store.direct_dsn: is for postgres behind a pooler, and store.driver is "sqlite": remove it, or set driver = "postgres"`},
		"direct of no form":  {"[store]\ndriver = \"postgres\"\ndsn = \"postgres://h/db\"\ndirect_dsn = \"hunter2\"", `config.toml:4: store.direct_dsn: is not of the form that postgres has, such as "postgres://user:password@host:5432/database" (what is given is not shown, as it may hold a password)`},
		"driver unknown":     {"[store]\ndriver = \"oracle\"", `config.toml:2: store.driver: "oracle" is not allowed; the values are sqlite, postgres, mysql, sqlserver`},
		"open to the world":  {"[http]\nlisten = \":8080\"", `config.toml:2: http.listen: ":8080" can be reached from other machines, and no [[http.tokens]] are configured: add a token, or listen on 127.0.0.1`},
		"address":            {"[http]\nlisten = \"8080\"", `config.toml:2: http.listen: "8080" is not an address: host and port, such as "127.0.0.1:8080"`},
		"half tls":           {"[http]\ntls_cert = \"a.pem\"", `config.toml:1: http.tls_key: http.tls_cert and http.tls_key go together: give both or neither`},
		"variable":           {"data_dir = \"${NOPE}\"", `config.toml:1: data_dir: the environment variable NOPE is not set (set it, or give a default: "${NOPE:-…}")`},
		"open variable":      {"data_dir = \"${NOPE\"", `config.toml:1: data_dir: "${" is not closed by "}" (write "$${" for a literal "${")`},
		"second plugin":      {"[[plugin]]\nname = \"a\"\npath = \"a\"\n[[plugin]]\nname = \"a\"\npath = \"b\"", `config.toml:5: plugin[1].name: "a" is the name of plugin[0] already`},
		"plugin key":         {"[[plugin]]\nname = \"a\"\npath = \"a\"\n[[plugin]]\nname = \"b\"\npath = \"b\"\ntimeuot = \"1s\"", `config.toml:7: plugin[1].timeuot: unknown key (did you mean "timeout"?); the keys of [plugin[1]] are config, consumer, digest, fuel, grants, isolate, memory_limit, name, path, timeout`},
		"plugin without":     {"[[plugin]]", "config.toml:1: plugin[0].name: is missing\nconfig.toml:1: plugin[0].path: is missing: the module's file"},
		"consumer":           {"[[plugin]]\nname = \"a\"\npath = \"a\"\n[plugin.consumer.x]\non_exhausted = \"no\"", `config.toml:5: plugin[0].consumer.x.on_exhausted: "no" is not allowed; the values are halt, dead_letter_key, dead_letter, skip`},
		"digest":             {"[[plugin]]\nname = \"a\"\ndigest = \"md5:1\"", `config.toml:3: plugin[0].digest: "md5:1" is not "sha256:" and 64 hex digits`},
		"grants":             {"[[plugin]]\nname = \"a\"\npath = \"a\"\ngrants = [\"http\"]", `config.toml:4: plugin[0].grants: this version has no capabilities to grant: leave it empty`},
		"plugin is no array": {"[plugin]\nname = \"a\"", `config.toml:1: plugin: is a table; it must be an array of tables: [[plugin]]`},
		"role":               {"[[http.tokens]]\nname = \"a\"\nsha256 = \"" + strings.Repeat("00", 32) + "\"\nroles = [\"raed\"]", `config.toml:4: http.tokens[0].roles[0]: "raed" is not allowed (did you mean "read"?); the values are read, append, operate, admin`},
		"token":              {"[[http.tokens]]\nname = \"a\"\nsha256 = \"hunter2\"\nroles = [\"read\"]", `config.toml:3: http.tokens[0].sha256: must be 64 hex digits, the SHA-256 of the token, as printf %s TOKEN | sha256sum prints it`},
		"secret twice":       {"[store]\ndsn = \"a\"\ndsn_file = \"b\"", `config.toml:3: store.dsn_file: dsn and dsn_file are both given: keep one`},
		"prefix":             {"[store]\nread_model_prefix = \"PH_x\"", `config.toml:2: store.read_model_prefix: "PH_x" starts with store.table_prefix, "ph_", which is kept for the host's own tables`},
		"ttl":                {"[cluster]\ninstance_ttl = \"4s\"", `config.toml:2: cluster.instance_ttl: 4s is less than three heartbeats (cluster.heartbeat is 3s): a late heartbeat or two would cost the instance its partitions`},
		"syntax":             {"a = 1\nb = ", `config.toml:2: not valid TOML: unexpected EOF; expected value`},
		"twice":              {"data_dir = \"a\"\ndata_dir = \"b\"", `config.toml:2: not valid TOML: Key 'data_dir' has already been defined.`},
		"all of them":        {"[log]\nlevel = 1\n[http]\nx = 1\nmax_body = \"1B\"", "config.toml:2: log.level: is the number 1; it must be a string\nconfig.toml:4: http.x: unknown key; the keys of [http] are listen, max_body, tls_cert, tls_key, tokens\nconfig.toml:5: http.max_body: 1B is out of range: 1KiB to 1GiB"},
		"after a long value": {"data_dir = '''\na\n[x]\n'''\n[log] # c\n\n  level = \"x\"", `config.toml:7: log.level: "x" is not allowed; the values are trace, debug, info, warn, error, off`},
		"inline":             {"log = { format = \"text\", level = \"x\" }", `config.toml:1: log.level: "x" is not allowed; the values are trace, debug, info, warn, error, off`},
		"dotted":             {"\nlog.level = \"x\"", `config.toml:2: log.level: "x" is not allowed; the values are trace, debug, info, warn, error, off`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tc.doc)
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	c, err := Load(path, true)
	require.NoError(t, err)
	require.Equal(t, "data", c.DataPath())
	_, err = Load(path, false)
	require.EqualError(t, err, path+": there is no such file (create it, or name another with --config or PROJHOST_CONFIG)")
	require.NoError(t, os.WriteFile(path, []byte("[store]\ndsn = \"x.db\""), 0o600))
	c, err = Load(path, true)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "data"), c.DataPath())
	require.Equal(t, filepath.Join(dir, "x.db"), c.SQLitePath())
	_, err = Load(dir, true)
	require.ErrorContains(t, err, "cannot be read: is a directory")
}

func TestSize(t *testing.T) {
	for s, want := range map[string]Size{"0B": 0, "1KiB": 1024, "64MiB": 64 << 20, "3GiB": 3 << 30, "2KB": 2000, "5 MB": 5e6, "7GB": 7e9} {
		n, err := ParseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
		back, err := ParseSize(n.String())
		require.NoError(t, err)
		require.Equal(t, n, back)
	}
	for _, s := range []string{"", "1", "B", "-1B", "1.5MiB", "1mib", "99999999999999999999B", "9999999999GiB", "0x1B"} {
		_, err := ParseSize(s)
		require.Error(t, err, s)
	}
}

func TestRedactDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                     "",
		"data/projhost.db":                     "data/projhost.db",
		`C:\data\x.db`:                         `C:\data\x.db`,
		"postgres://u:secret@h:5432/db":        "postgres://***@h:5432/db",
		"postgres://u:se/c@r:et@h/db?x=y":      "postgres://***@h/db?***",
		"postgres://h/db?password=secret":      "postgres://h/db?***",
		"postgres://h/db?password=se@cret":     "postgres://***",
		"u:secret@tcp(h:3306)/db?parseTime=1":  "***@tcp(h:3306)/db?***",
		"u:secret@tcp(h)/db?x=a@b":             "***",
		"host=h port=5432 password=secret":     "host=h port=5432 ***",
		"server=h;user id=sa;password=secret;": "server=h;***",
		"password='a b' host=h":                "***",
		"password=a b host=h":                  "***",
		"host=h dbname=d":                      "host=h dbname=d",
		"file:x.db?key=secret":                 "***",
	} {
		require.Equal(t, want, RedactDSN(dsn), dsn)
	}
}

// Whatever the password and wherever it stands, it is not shown.
func FuzzRedactDSN(f *testing.F) {
	for _, s := range []string{"secret", "p@ss:w/rd", "a=b;c", "x y", "?#&", "'q'", "h=1 host=2", "@@", "://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, password string) {
		const mark = "S3CR3T"
		secret := mark + password + mark
		for _, dsn := range []string{
			"postgres://user:" + secret + "@host:5432/db?sslmode=require",
			"postgres://host/db?user=u&password=" + secret,
			"sqlserver://sa:" + secret + "@host?database=x",
			"user:" + secret + "@tcp(host:3306)/db?parseTime=true",
			"host=h password=" + secret + " dbname=db",
			"server=h;password=" + secret + ";database=db",
			"file:x.db?_key=" + secret,
		} {
			if strings.Contains(RedactDSN(dsn), mark) {
				t.Fatalf("%q is shown as %q", dsn, RedactDSN(dsn))
			}
		}
	})
}

// Any document gives a config or problems, never a panic; and a problem's line is in it.
func FuzzParse(f *testing.F) {
	doc, _ := os.ReadFile("../../config.toml")
	f.Add(string(doc), "x")
	f.Add("a = [{b = 1}, {c = '''\n'''}]\n[[plugin]]\n[plugin.config.\"x\"]\n", "${A}")
	f.Add("[[plugin]]\nconfig = {a = [1, [2]], \"b\\\"\" = \"${V:-$${}\"}", "")
	f.Fuzz(func(t *testing.T, doc, env string) {
		c, err := Parse("f", doc, func(string) (string, bool) { return env, env != "" })
		if err == nil {
			c.Notices()
			return
		}
		e, ok := err.(*Error)
		if !ok {
			t.Fatalf("%T", err)
		}
		for _, p := range e.Problems {
			if p.Line < 0 || p.Line > strings.Count(doc, "\n")+1 {
				t.Fatalf("line %d of %q", p.Line, doc)
			}
		}
	})
}

func FuzzExpand(f *testing.F) {
	f.Add("a${X}b${Y:-c}$${Z}", "v")
	f.Fuzz(func(t *testing.T, s, v string) {
		out, err := expand(s, func(string) (string, bool) { return v, true })
		if err == nil && !strings.Contains(s, "${") && out != s {
			t.Fatalf("%q became %q", s, out)
		}
	})
}
