package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store/drivers"
)

var update = flag.Bool("update", false, "write the golden files anew")

// place is a working folder for commands: no configuration but what a test
// writes, and no host but what it starts.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"PROJHOST_CONFIG", "PROJHOST_URL", "PROJHOST_TOKEN"} {
		t.Setenv(name, "")
	}
	p := &place{t: t, dir: dir}
	// A port nobody answers at: commands open the store themselves.
	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n")
	return p
}

func (p *place) write(name, content string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	require.NoError(p.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func (p *place) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	require.NoError(p.t, err)
	return string(b)
}

type outcome struct {
	t      *testing.T
	code   int
	stdout string
	stderr string
}

// run executes a command line, stdin as given.
func (p *place) run(stdin string, args ...string) outcome {
	p.t.Helper()
	return p.runContext(p.t.Context(), strings.NewReader(stdin), args...)
}

func (p *place) runContext(ctx context.Context, stdin io.Reader, args ...string) outcome {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, stdin, &stdout, &stderr)
	return outcome{p.t, code, stdout.String(), stderr.String()}
}

// ok gives the output of a command that must succeed silently.
func (o outcome) ok() string {
	o.t.Helper()
	require.Equal(o.t, exitOK, o.code, "%s%s", o.stdout, o.stderr)
	require.Empty(o.t, o.stderr)
	return o.stdout
}

// fails checks status and the whole of standard error, and that there is no
// output.
func (o outcome) fails(code int, stderr string) {
	o.t.Helper()
	require.Equal(o.t, stderr, o.stderr)
	require.Equal(o.t, code, o.code)
	require.Empty(o.t, o.stdout)
}

// golden compares with a file of testdata; what differs from run to run is
// masked.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join(testdata, name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, name)
}

// testdata is found before tests change the working folder.
var testdata = func() string {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		panic(err)
	}
	return dir
}()

var masks = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`in [0-9.]+m?s \([0-9,]+/s\)`), "in TIME (RATE/s)"},
	{regexp.MustCompile(`"seconds":[0-9.e-]+`), `"seconds":TIME`},
	{regexp.MustCompile(`20[0-9][0-9]-[0-9-]+T[0-9:.]+Z`), "NOW"},
	{regexp.MustCompile(`(?:ok  |warn)  data folder  ([^,\n]+), [0-9.]+ [GMT]iB free(\n +→ free some space before it runs out)?`), "ok    data folder  $1, SPACE free"},
	{regexp.MustCompile(`sqlite 3[0-9.]+`), "sqlite VERSION"},
}

func masked(p *place, s string) string {
	s = strings.ReplaceAll(s, p.dir, "DIR")
	for _, m := range masks {
		s = m.re.ReplaceAllString(s, m.with)
	}
	return s
}

func TestUsage(t *testing.T) {
	p := newPlace(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"frobnicate"}, `unknown command "frobnicate"; see: projhost --help`},
		{[]string{"--frobnicate"}, `unknown flag: --frobnicate; see: projhost --help`},
		{[]string{"consumers"}, `projhost consumers needs one of drop, history, list, pause, rebuild, reset, resume, show`},
		{[]string{"consumers", "stop", "x"}, `unknown command "stop"; projhost consumers has drop, history, list, pause, rebuild, reset, resume, show`},
		{[]string{"consumers", "pause"}, `projhost consumers pause needs NAME; see: projhost consumers pause --help`},
		{[]string{"consumers", "resume", "x", "--past-poison", "0"}, `--past-poison is the id of an undelivered message, not 0`},
		{[]string{"consumers", "reset", "x"}, `--from is missing: a position, behind which to go on, or "now"`},
		{[]string{"consumers", "reset", "x", "--from", "end"}, `--from is a position, behind which to go on, or "now", not "end"`},
		{[]string{"consumers", "history", "x", "--limit", "0"}, `--limit must be at least 1, and --after not negative`},
		{[]string{"plugins", "deploy"}, `unknown command "deploy"; projhost plugins has check, list, show`},
		{[]string{"undelivered"}, `projhost undelivered needs one of delete, list, retry, show`},
		{[]string{"undelivered", "list", "x", "y"}, `projhost undelivered list takes no "y"; see: projhost undelivered list --help`},
		{[]string{"undelivered", "list", "--after", "4"}, `--after goes on with one consumer: name it`},
		{[]string{"undelivered", "list", "--key", ""}, `--key is empty`},
		{[]string{"undelivered", "list", "--status", "dead"}, `--status is one of HALTED, FAILED, DEAD_LETTER_KEY, DEAD_LETTER, WAITING, not "dead"`},
		{[]string{"undelivered", "show"}, `projhost undelivered show needs ID; see: projhost undelivered show --help`},
		{[]string{"undelivered", "show", "x"}, `"x" is not the id of an undelivered message: see projhost undelivered list`},
		{[]string{"undelivered", "show", "x", "1", "2"}, `projhost undelivered show takes no "2"; see: projhost undelivered show --help`},
		{[]string{"undelivered", "retry"}, `projhost undelivered retry needs an ID, or a NAME with --key, --type, --status, --topic or --all; see: projhost undelivered retry --help`},
		{[]string{"undelivered", "retry", "--all"}, `projhost undelivered retry needs the NAME of a consumer; see: projhost undelivered retry --help`},
		{[]string{"undelivered", "delete", "x"}, `which messages of x: give an ID, --key, --type, --status, --topic or --all; see: projhost undelivered delete --help`},
		{[]string{"undelivered", "delete", "x", "4", "--key", "a"}, `ID 4 names one message: leave the flags that select out`},
		{[]string{"undelivered", "delete", "x", "--key", "a", "--type", ""}, `--type is empty`},
		{[]string{"undelivered", "delete", "4", "--out-of-order"}, `unknown flag: --out-of-order; see: projhost undelivered delete --help`},
		{[]string{"query", "x", "--stale=no"}, `invalid argument "no" for "--stale" flag: it can only be ok; see: projhost query --help`},
		{[]string{"export"}, `projhost export needs TOPIC; see: projhost export --help`},
		{[]string{"append", "account"}, `projhost append needs ID; see: projhost append --help`},
		{[]string{"append"}, `projhost append needs TYPE ID; see: projhost append --help`},
		{[]string{"version", "x"}, `projhost version takes no "x"; see: projhost version --help`},
		{[]string{"import"}, `projhost import needs a FILE; see: projhost import --help`},
		{[]string{"import", "-"}, `standard input needs --as NAME, which names the import for the ids of lines without one`},
		{[]string{"append", "a", "b", "--expected-version", "x"}, `--expected-version is the number of events the stream has, "new" or "any", not "x"`},
		{[]string{"query", "x", "--format", "xml"}, `--format is one of table, json, jsonl, csv, not "xml"`},
		{[]string{"query", "x", "--format", "csv", "--json"}, `--json and --format csv contradict each other`},
		{[]string{"query", "x", "--where", "y"}, `--where is FIELD=VALUE, not "y"`},
		{[]string{"query"}, `projhost query needs PROJECTION; see: projhost query --help`},
		{[]string{"query", "x", "y", "z"}, `projhost query takes no "z"; see: projhost query --help`},
		{[]string{"query", "x", "--limit", "many"}, `invalid argument "many" for "--limit" flag: strconv.ParseInt: parsing "many": invalid syntax; see: projhost query --help`},
		{[]string{"status", "--url", "localhost"}, `"localhost" is not the address of a host: such as http://127.0.0.1:8080 (--url or PROJHOST_URL)`},
		{[]string{"export", "events", "--after", "-1"}, `--after and --limit must not be negative`},
		{[]string{"demo", "--listen", "0.0.0.0:1"}, `--listen "0.0.0.0:1" must be a loopback address with a port, such as 127.0.0.1:8080: the demo has no tokens`},
		{[]string{"demo", "--driver", "oracle"}, `--driver is one of ` + strings.Join(drivers.Names(), ", ") + `, not "oracle"`},
		{[]string{"demo", "--driver", "postgres"}, `--dsn is missing: postgres needs a connection string, such as "postgres://user:password@host:5432/database"`},
		{[]string{"demo", "--driver", "postgres", "--dsn", "hunter2"}, `--dsn is not of the form that postgres has, such as "postgres://user:password@host:5432/database" (what is given is not shown, as it may hold a password)`},
		{[]string{"demo", "--dsn", "postgres://h/db"}, `--dsn needs a --driver other than sqlite; --data-dir says where SQLite's file goes`},
		{[]string{"schema", "print", "--driver", "oracle"}, `--driver is one of ` + strings.Join(drivers.Schemas(), ", ") + `, not "oracle"`},
	} {
		p.run("", tc.args...).fails(exitUsage, "projhost: "+tc.want+"\n")
	}
	require.Contains(t, p.run("").ok(), "projhost demo")
	for _, cmd := range []string{"demo", "run", "import", "export", "append", "query", "status", "consumers", "undelivered", "plugins", "topics", "schema", "doctor", "version", "completion"} {
		require.Contains(t, p.run("", cmd, "--help").ok(), "Usage:", cmd)
	}
}

func TestVersion(t *testing.T) {
	p := newPlace(t)
	require.Regexp(t, `^projhost \S+\ngo       1\.\S+ \S+/\S+\nabi      1\.0\ndrivers  sqlite, [a-z, ]+\n$`, p.run("", "version").ok())
	require.Regexp(t, `^{"version":"[^"]+","go":"go1[^"]+","os":"[^"]+","abi":\["1.0"\],"drivers":\["sqlite",[^]]+\]}\n$`, p.run("", "version", "--json").ok())
}

func TestConfigProblemsExitWithTwo(t *testing.T) {
	p := newPlace(t)
	p.write("config.toml", "[http]\nlissten = \"x\"\n[stoer]\n")
	want := "projhost: config.toml:2: http.lissten: unknown key (did you mean \"listen\"?); the keys of [http] are listen, max_body, tls_cert, tls_key, tokens\n" +
		"projhost: config.toml:3: stoer: unknown key (did you mean \"store\"?); the keys of the top level are apply, cluster, data_dir, delivery, http, log, partitions, plugin, shutdown_timeout, store\n"
	for _, args := range [][]string{{"run"}, {"topics", "list"}, {"status"}, {"plugins", "check", "x.wasm"}, {"schema", "print"}, {"import", "x"}} {
		p.run("", args...).fails(exitUsage, want)
	}
	p.run("", "run", "--config", "nope.toml").fails(exitUsage, "projhost: nope.toml: there is no such file (create it, or name another with --config or PROJHOST_CONFIG)\n")
}

func TestNoHost(t *testing.T) {
	p := newPlace(t)
	for _, args := range [][]string{{"status"}, {"consumers", "list"}, {"plugins", "show", "x"}} {
		p.run("", args...).fails(exitFailed, "projhost: no host answers at 127.0.0.1:1: start one with projhost run, or name another with --url\n")
	}
	o := p.run("", "status", "--url", "http://127.0.0.1:1")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "projhost: call the host at http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused\n", o.stderr)
	require.NoDirExists(t, filepath.Join(p.dir, "data"), "a command that needs a host makes nothing")
}
