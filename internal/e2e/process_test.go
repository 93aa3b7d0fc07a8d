package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
)

// patience bounds every wait for another process. Nothing depends on it but how
// long a broken program is waited for.
const patience = 2 * time.Minute

var program string // path of the built binary

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "projhost-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "projhost")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	build := exec.Command("go", "build", "-o", program, "github.com/projhost/projhost/cmd/projhost")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// site is a folder with a config, a plugin and the data of one host.
type site struct {
	t      *testing.T
	dir    string
	driver string // of its database; "": sqlite, in the folder
	dsn    string
	prefix string // of its read models
	binary string // that its hosts run; "": the program
	// wrapper is a command that runs its hosts, which must not fork.
	wrapper []string
}

// newSite makes a folder whose config runs the loans plugin; more is TOML put
// before the plugin's table.
func newSite(t *testing.T, more string) *site { return newSiteOn(t, "", "", more) }

// newSiteOn is newSite with its database on a server.
func newSiteOn(t *testing.T, driver, dsn, more string) *site {
	s := &site{t: t, dir: t.TempDir(), driver: driver, dsn: dsn}
	if driver != "" {
		more = fmt.Sprintf("[store]\ndriver = %q\ndsn = %q\n", driver, dsn) + more
	}
	s.configure(more)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "loans.wasm"), guest.Build(t, "testplugins/loans"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(s.dir, "data"), 0o700))
	return s
}

func (s *site) configure(more string) {
	config := `
[http]
listen = "127.0.0.1:0"
max_body = "64MiB"
[log]
level = "info"
format = "json"
` + more + `
[[plugin]]
name = "loans"
path = "loans.wasm"
timeout = "0s"
`
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, "config.toml"), []byte(config), 0o600))
}

// append adds TOML behind the plugin's table.
func (s *site) append(more string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "config.toml")
	config, err := os.ReadFile(file)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(file, append(config, more...), 0o600))
}

func (s *site) database() string { return filepath.Join(s.dir, "data", "projhost.db") }

// command runs the program to its end and returns what it wrote to standard
// output.
func (s *site) command(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = s.dir
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	require.NoErrorf(s.t, c.Run(), "projhost %s: %s", strings.Join(args, " "), errs.String())
	return out.String()
}

// host is a running `projhost run`.
type host struct {
	t       *testing.T
	cmd     *exec.Cmd
	url     string
	serving chan string // its address, once it serves
	ended   chan error
	log     bytes.Buffer // valid once ended
}

// start runs a host and waits until it serves.
func (s *site) start(args ...string) *host {
	s.t.Helper()
	h := s.launch(args...)
	select {
	case h.url = <-h.serving:
	case err := <-h.ended:
		require.FailNowf(s.t, "the host ended", "%v\n%s", err, h.log.String())
	case <-time.After(patience):
		require.FailNow(s.t, "the host does not serve")
	}
	return h
}

// launch runs a host without waiting for it.
func (s *site) launch(args ...string) *host {
	s.t.Helper()
	command := slices.Concat(s.wrapper, []string{cmp.Or(s.binary, program), "run"}, args)
	h := &host{t: s.t, cmd: exec.Command(command[0], command[1:]...), serving: make(chan string, 1), ended: make(chan error, 1)}
	h.cmd.Dir = s.dir
	out, in, err := os.Pipe()
	require.NoError(s.t, err)
	h.cmd.Stdout, h.cmd.Stderr = in, in
	require.NoError(s.t, h.cmd.Start())
	require.NoError(s.t, in.Close())
	s.t.Cleanup(func() { _ = h.cmd.Process.Kill() })

	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			h.log.Write(lines.Bytes())
			h.log.WriteByte('\n')
			var line struct {
				Message string `json:"@message"`
				Address string `json:"address"`
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "serving" {
				h.serving <- line.Address
			}
		}
		_ = out.Close()
		h.ended <- h.cmd.Wait()
	}()
	return h
}

// kill ends the host at whatever instruction it is.
func (h *host) kill() {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Process.Kill())
	<-h.ended
}

// stop ends the host in good order.
func (h *host) stop() {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-h.ended:
		require.NoErrorf(h.t, err, "%s", h.log.String())
	case <-time.After(patience):
		require.FailNow(h.t, "the host does not stop")
	}
}

// send imports lines and reports whether the host acknowledged them. A host that
// is killed meanwhile does not.
func (h *host) send(lines []byte) bool {
	resp, err := http.Post(h.url+"/v1/import", "application/x-ndjson", bytes.NewReader(lines))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return false
	}
	require.Equalf(h.t, http.StatusOK, resp.StatusCode, "%s", body)
	return true
}

func (h *host) get(path string) []byte {
	h.t.Helper()
	resp, err := http.Get(h.url + path)
	require.NoError(h.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(h.t, err)
	require.Equalf(h.t, http.StatusOK, resp.StatusCode, "%s: %s", path, body)
	return body
}

// caughtUp waits until every consumer has applied everything that was appended.
// The last of it may not be readable yet, and what was drawn and rolled back
// never is: both are passed once nobody is about to append.
func (h *host) caughtUp() {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		end := h.end()
		behind := ""
		for _, projection := range []string{"applications", "resources"} {
			resp, err := http.Get(fmt.Sprintf("%s/v1/read-models/%s?limit=1&min_position=%d&wait=5s", h.url, projection, end))
			require.NoError(h.t, err)
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusOK:
			case http.StatusGatewayTimeout:
				behind = string(body)
			case http.StatusServiceUnavailable: // a first start that has not got to it yet
				require.Contains(h.t, string(body), "not_ready")
				behind = string(body)
			default:
				require.FailNowf(h.t, "read model", "%d %s", resp.StatusCode, body)
			}
		}
		if behind == "" {
			return
		}
		require.Truef(h.t, time.Now().Before(deadline), "not caught up: %s", behind)
	}
}

// peakMemory is the most resident memory the host has had, in bytes, and false
// where the system does not tell.
func (h *host) peakMemory() (int64, bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}
