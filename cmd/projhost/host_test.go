package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/store"
)

// hostRun is a host in this process, started as a user starts one.
type hostRun struct {
	t       *testing.T
	address string
	stop    context.CancelFunc
	code    chan int

	mu  sync.Mutex
	log bytes.Buffer
}

// host starts projhost run with the config.toml of the place and waits until it
// serves and runs its consumers.
func (p *place) host() *hostRun {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &hostRun{t: p.t, stop: cancel, code: make(chan int, 1)}
	r, w := io.Pipe()
	go func() {
		h.code <- run(ctx, []string{"run"}, strings.NewReader(""), io.Discard, w)
		_ = w.Close()
	}()
	address := make(chan string, 1)
	go func() {
		defer close(address)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			h.mu.Lock()
			h.log.WriteString(lines.Text() + "\n")
			h.mu.Unlock()
			var entry map[string]any
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry["@message"] == "ready" {
				address <- entry["address"].(string)
			}
		}
	}()
	var ok bool
	h.address, ok = <-address
	require.True(p.t, ok, "the host did not start:\n%s", h.text())
	p.t.Setenv("PROJHOST_URL", h.address)
	p.t.Cleanup(func() {
		cancel()
		if p.t.Failed() {
			p.t.Log(h.text())
		}
	})
	return h
}

func (h *hostRun) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

// end interrupts the host and checks that it ended well.
func (h *hostRun) end() {
	h.t.Helper()
	h.stop()
	require.Equal(h.t, exitOK, <-h.code, h.text())
	h.t.Setenv("PROJHOST_URL", "")
}

const hostConfigText = `
[http]
listen = "127.0.0.1:0"
[partitions]
count = 16
[cluster]
max_partitions = 1000
[log]
format = "json"
`

func writePlugin(p *place, name string, wasm []byte) string {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, name+".wasm"), wasm, 0o600))
	return fmt.Sprintf("[[plugin]]\nname = %q\npath = %q\n", name, name+".wasm")
}

// sampleLines are 400 events of accounts and 600 of loans in the import format.
func sampleLines() string {
	var lines strings.Builder
	for e := range samples.Accounts(400, 20) {
		fmt.Fprintf(&lines, `{"id":"%s","aggregate_type":"%s","aggregate_id":"%s","type":"%s","data":%s,"occurred_at":"2026-01-02T03:04:05Z"}`+"\n", store.ID(e.ID), e.AggregateType, e.AggregateID, e.Type, e.Data)
	}
	for e := range samples.Loans(600) {
		fmt.Fprintf(&lines, `{"id":"%s","aggregate_type":"%s","aggregate_id":"%s","type":"%s","data":%s,"occurred_at":"2026-01-02T03:04:05Z"}`+"\n", store.ID(e.ID), e.AggregateType, e.AggregateID, e.Type, e.Data)
	}
	return lines.String()
}

func TestHostServesTheCommands(t *testing.T) {
	accounts, loans := guest.Build(t, "testplugins/accounts"), guest.Build(t, "testplugins/loans")
	p := newPlace(t)
	p.write("config.toml", hostConfigText+writePlugin(p, "accounts", accounts)+writePlugin(p, "loans", loans))
	h := p.host()

	p.write("events.jsonl", sampleLines())
	require.Contains(t, p.run("", "import", "events.jsonl").ok(), "1,000 events stored in")
	require.Contains(t, p.run("", "import", "events.jsonl").ok(), "0 events stored, 1,000 already there in")

	// Read your writes: every query waits for what was imported.
	fresh := []string{"--min-position", "1000", "--wait", "60s"}
	query := func(args ...string) string {
		t.Helper()
		o := p.run("", append(append([]string{"query"}, args...), fresh...)...)
		require.Equal(t, exitOK, o.code, o.stderr)
		return o.stdout + o.stderr
	}
	golden(t, "query-table", query("accounts", "--limit", "5"))
	golden(t, "query-csv", query("accounts", "--limit", "3", "--format", "csv"))
	golden(t, "query-jsonl", query("accounts", "--limit", "2", "--format", "jsonl"))
	golden(t, "query-json", query("accounts", "--limit", "2", "--json"))
	golden(t, "query-where", query("accounts", "--where", "status=open", "--order", "owner:desc", "--limit", "4"))
	golden(t, "query-key", query("accounts", "account-00003"))
	golden(t, "query-key-json", query("accounts", "account-00003", "--json"))
	golden(t, "query-children", query("resources", "112", "--limit", "3"))
	golden(t, "query-children-table", query("resources", "112", "--table", "resource_applications", "--limit", "3"))
	golden(t, "query-after", query("accounts", "--after", "account-00003", "--limit", "2"))
	golden(t, "query-after-desc", query("accounts", "--order", "key:desc", "--after", "account-00003", "--limit", "2"))
	require.Equal(t, "no rows\n", query("accounts", "--where", "owner=nobody"))

	// Pages follow each other, by hand and by themselves.
	all := strings.Split(strings.TrimSpace(query("resources", "--table", "resource_applications", "--limit", "10000", "--format", "jsonl")), "\n")
	var paged []string
	for after := ""; ; {
		o := p.run("", "query", "resources", "--table", "resource_applications", "--limit", "7", "--format", "jsonl", "--after", after)
		require.Equal(t, exitOK, o.code, o.stderr)
		paged = append(paged, strings.Split(strings.TrimSpace(o.stdout), "\n")...)
		var more bool
		if after, more = strings.CutPrefix(strings.TrimSpace(o.stderr), "more rows follow: --after "); !more {
			break
		}
	}
	require.Equal(t, all, paged)

	p.run("", "query", "nope").fails(exitFailed, "projhost: query nope: there is no projection \"nope\" (not_found)\n")
	p.run("", "query", "accounts", "nobody").fails(exitFailed, "projhost: query accounts nobody: projection/accounts has no row \"nobody\" in table accounts (not_found)\n")
	p.run("", "query", "accounts", "--table", "nope").fails(exitFailed, "projhost: query accounts: projection/accounts has no table \"nope\"; it has accounts (not_found)\n")
	p.run("", "query", "accounts", "--order", "balance").fails(exitFailed, "projhost: query accounts: table \"accounts\" cannot be filtered or ordered by \"balance\": only by key, owner, status (declare \"index\": true for more) (unknown_field)\n")
	p.run("", "query", "accounts", "--min-position", "capture:1").fails(exitFailed, "projhost: query accounts: projection/accounts does not read topic \"capture\"; it reads events (not_an_input)\n")
	p.run("", "query", "accounts", "--min-position", "99999", "--wait", "10ms").fails(exitFailed, "projhost: query accounts: projection/accounts has not applied events up to 99999 within 10ms (not_caught_up)\n")

	status := p.run("", "status").ok()
	require.Regexp(t, `^host [0-9a-f-]{36} \(projhost \S+\), since \S+, ready\nstore sqlite \S+, schema \d+, 16 partitions\n`, status)
	require.Contains(t, status, "events  events      0  1000             1000    0     1,000\n")
	require.Regexp(t, `projection/accounts +running +0 +16 +0 +0 +accounts +[0-9a-f]{12}\n`, status)
	var st map[string]any
	require.NoError(t, json.Unmarshal([]byte(p.run("", "status", "--json").ok()), &st))
	require.Equal(t, true, st["ready"])
	require.Len(t, st["consumers"], 3)
	require.EqualValues(t, 1000, st["instances"].([]any)[0].(map[string]any)["max_partitions"])
	require.Contains(t, p.run("", "consumers", "list").ok(), "projection/resources")
	show := p.run("", "consumers", "show", "accounts").ok()
	require.Contains(t, show, "topic events: end 1000, applied 1000\n")
	require.Equal(t, show, p.run("", "consumers", "show", "projection/accounts").ok())
	require.Contains(t, p.run("", "consumers", "show", "accounts", "--json").ok(), `"read_through":1000`)
	p.run("", "consumers", "show", "nope").fails(exitFailed, "projhost: there is no consumer \"nope\"; there are projection/accounts, projection/applications, projection/resources\n")
	require.Regexp(t, `loans +\S+ +1 +projection/applications, projection/resources +`, p.run("", "plugins", "list").ok())
	require.Contains(t, p.run("", "plugins", "show", "accounts").ok(), "projection/accounts")
	p.run("", "plugins", "show", "nope").fails(exitFailed, "projhost: show plugin nope: there is no plugin \"nope\" (not_found)\n")

	// Another host, and a command that knows no host, find the store locked.
	t.Setenv("PROJHOST_URL", "")
	o := p.run("", "run")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "another projhost (process ")
	p.write("other.toml", "[http]\nlisten = \"127.0.0.1:1\"\n[partitions]\ncount = 16\n")
	o = p.run("", "topics", "list", "--config", "other.toml")
	require.Equal(t, exitFailed, o.code)
	require.Regexp(t, `^projhost: another projhost \(process .*\) has the database open, and none answers at 127.0.0.1:1: if it is starting, try again in a moment; .*--url`, o.stderr)
	t.Setenv("PROJHOST_URL", h.address)

	// Without the host the same store answers the same.
	before := query("accounts", "--limit", "5")
	h.end()
	require.Contains(t, h.text(), `"@message":"stopped"`)
	fresh = nil
	require.Equal(t, before, query("accounts", "--limit", "5"))
	require.Equal(t, 1000, strings.Count(p.run("", "export", "events").ok(), "\n"))
}

func TestHostFollowsTopics(t *testing.T) {
	p := newPlace(t)
	p.write("config.toml", hostConfigText)
	h := p.host()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"topics", "tail", "events", "--follow"}, strings.NewReader(""), w, io.Discard)
		_ = w.Close()
	}()
	p.run(`{"type":"T","data":1}`, "append", "a", "1").ok()
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "a/1#1  T  1")
	p.run(`{"type":"T","data":2}`, "append", "a", "1").ok()
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "a/1#2  T  2")
	cancel()
	require.Equal(t, exitOK, <-code)
	h.end()
}

func TestHaltIsShownEverywhere(t *testing.T) {
	poison := guest.Build(t, "testplugins/poison")
	p := newPlace(t)
	p.write("config.toml", hostConfigText+writePlugin(p, "poison", poison))
	h := p.host()
	p.run(`{"id":"`+id1+`","type":"T","data":{"n":1}}`+"\n"+`{"id":"`+id2+`","type":"T","data":{"fail":"reject"}}`+"\n"+`{"type":"T","data":{"n":3}}`, "append", "a", "k").ok()
	o := p.run("", "query", "poison", "k", "--min-position", "3", "--wait", "60s")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "projection/poison is halted (APPLY_ERROR)")
	require.Contains(t, o.stderr, "; --stale ok reads what it has (projection_halted)")

	o = p.run("", "query", "poison", "k", "--stale")
	require.Equal(t, exitOK, o.code, o.stderr)
	stale := o.stdout
	require.Contains(t, stale, `{"n":1}`)
	require.NotContains(t, stale, `{"n":3}`)
	status := p.run("", "status").ok()
	require.Contains(t, status, "projection/poison is halted: APPLY_ERROR (code 2)\n  reject: code 2: the message says so\n")
	require.Contains(t, status, "  at events:2, event T "+id2+", key k, partition ")
	var st struct {
		Error struct {
			Code, HaltReason string
			Halt             map[string]any
		}
	}
	resp, err := http.Get(h.address + "/v1/read-models/poison/k")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "halted", resp.Header.Get("Projhost-State"))
	require.Equal(t, 503, resp.StatusCode)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&st))
	require.Equal(t, "projection_halted", st.Error.Code)
	require.EqualValues(t, 2, st.Error.Halt["position"])
	require.NotContains(t, st.Error.Halt, "at_us")
	_, err = time.Parse(time.RFC3339Nano, st.Error.Halt["at"].(string)) // as all times of the API
	require.NoError(t, err)
	o = p.run("", "doctor")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "fail  consumers    projection/poison is halted: reject: code 2: the message says so\n")
	h.end()
}

func TestRunRefusesBadPlugins(t *testing.T) {
	p := newPlace(t)
	p.write("hello.wasm", "hello")
	p.write("config.toml", hostConfigText+"[[plugin]]\nname = \"a\"\npath = \"hello.wasm\"\n[[plugin]]\nname = \"b\"\npath = \"nope.wasm\"\n")
	o := p.run("", "run")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "not a WebAssembly module")
	require.Contains(t, o.stderr, "projhost: plugin b: open nope.wasm: no such file or directory (path in the configuration)\n")
	// The store is free again.
	require.Contains(t, p.run("", "topics", "list").ok(), "events")
}

func TestPluginsCheck(t *testing.T) {
	accounts := guest.Build(t, "testplugins/accounts")
	p := newPlace(t)
	writePlugin(p, "accounts", accounts)
	p.write("hello.wasm", "hello")
	// A component has the same magic and layer 1.
	p.write("component.wasm", "\x00asm\x0d\x00\x01\x00")
	p.write("empty.wasm", "\x00asm\x01\x00\x00\x00")
	o := p.run("", "plugins", "check", "accounts.wasm")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Contains(t, o.stdout, "accounts.wasm: ok\n  plugin   accounts 1.0.0\n  digest   sha256:")
	require.Contains(t, o.stdout, "  consumer projection/accounts\n    reads events: opened, deposited, withdrawn, closed\n")
	require.Contains(t, o.stdout, "    table accounts (owner text, status text, balance decimal, events int, updated_at timestamp)\n")

	o = p.run("", "plugins", "check", "accounts.wasm", "hello.wasm", "component.wasm", "empty.wasm")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "projhost: 3 modules of 4 would not be admitted\n", o.stderr)
	golden(t, "plugins-check", o.stdout[strings.Index(o.stdout, "hello.wasm"):])
	o = p.run("", "plugins", "check", "--json", "hello.wasm")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, `{"file":"hello.wasm","ok":false,`)
	p.run("", "plugins", "check", "nope.wasm").fails(exitFailed, "projhost: open nope.wasm: no such file or directory\n")
}

func TestDemo(t *testing.T) {
	guest.Build(t, "testplugins/accounts") // so that the test is not about the compiler
	p := newPlace(t)
	o := p.run("", "demo", "--once", "--events", "3000", "--data-dir", "d", "--listen", "127.0.0.1:0")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Empty(t, o.stderr)
	require.Contains(t, o.stdout, "appended 3,000 events in ")
	require.Contains(t, o.stdout, "the read model has caught up: 3,000 events appended and applied in ")
	require.NotContains(t, o.stdout, "serving at") // it does not any more
	golden(t, "demo-rows", strings.TrimSuffix(o.stdout[strings.Index(o.stdout, "KEY"):], "\n"))

	// A second start goes on where the first stopped.
	o = p.run("", "demo", "--once", "--events", "4000", "--data-dir", "d", "--listen", "127.0.0.1:0")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Contains(t, o.stdout, "3,000 events are there from before\nappended 1,000 events in ")
	o = p.run("", "demo", "--once", "--events", "4000", "--data-dir", "d", "--listen", "127.0.0.1:0")
	require.Contains(t, o.stdout, "4,000 events are there from before\nthe read model has caught up\n\n")
	o = p.run("", "demo", "--once", "--events", "4000", "--data-dir", "d", "--listen", "127.0.0.1:0", "--json")
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Contains(t, o.stdout, `{"events":4000,"appended":0,`)
	require.Equal(t, 1, strings.Count(o.stdout, "\n"))
}

func TestDemoNeedsGo(t *testing.T) {
	p := newPlace(t)
	t.Setenv("PATH", p.dir)
	o := p.run("", "demo", "--once")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "projhost: demo: build testplugins/accounts: the Go toolchain is not on the PATH: install it from https://go.dev/dl/ (any release from 1.26) and try again\n", o.stderr)
	p.run("", "demo", "--events", "-1").fails(exitUsage, "projhost: --events must not be negative\n")
}

// An interrupt ends a demo that serves, well and without leaving a folder.
func TestDemoIsInterrupted(t *testing.T) {
	guest.Build(t, "testplugins/accounts")
	newPlace(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"demo", "--events", "100", "--listen", "127.0.0.1:0"}, strings.NewReader(""), w, io.Discard)
		_ = w.Close()
	}()
	var out strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		if lines.Text() == "Ctrl-C ends it." {
			cancel()
		}
	}
	require.Equal(t, exitOK, <-code, out.String())
	require.Contains(t, out.String(), "query accounts account-00042 --url http://127.0.0.1:")
	left, err := filepath.Glob(filepath.Join(tmp, "projhost-demo-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
