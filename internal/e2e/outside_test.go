package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// emptySite makes a folder with a config and nothing else. Its host listens on
// a port that nobody can know, so commands without --url open the store.
func emptySite(t *testing.T, config string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	s.write("config.toml", "[http]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"info\"\nformat = \"json\"\n"+config)
	return s
}

func (s *site) write(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// outcome is what a command that ended has left.
type outcome struct {
	t      *testing.T
	code   int
	stdout string
	stderr string // with the site's folder as DIR
}

// run runs the program to its end, whatever that is.
func (s *site) run(stdin string, args ...string) outcome {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = s.dir
	c.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoErrorf(s.t, err, "projhost %s", strings.Join(args, " "))
	}
	var told strings.Builder
	for line := range strings.Lines(errs.String()) {
		if !strings.HasPrefix(line, `{"@level":"info"`) { // a start's progress
			told.WriteString(line)
		}
	}
	return outcome{s.t, c.ProcessState.ExitCode(), out.String(), strings.ReplaceAll(told.String(), s.dir, "DIR")}
}

// ok is the standard output of a command that must succeed silently.
func (o outcome) ok() string {
	o.t.Helper()
	require.Zerof(o.t, o.code, "%s%s", o.stdout, o.stderr)
	require.Empty(o.t, o.stderr)
	return o.stdout
}

// fails checks that a command fails with these lines and nothing else.
func (o outcome) fails(code int, lines ...string) {
	o.t.Helper()
	require.Equal(o.t, "projhost: "+strings.Join(lines, "\nprojhost: ")+"\n", o.stderr)
	require.Equal(o.t, code, o.code)
	require.Empty(o.t, o.stdout)
}

// answer is what the API said.
type answer struct {
	status int
	header http.Header
	body   string
	Error  struct {
		Code    string
		Message string
	}
}

// call sends a request and takes any answer; false if there is none.
func (h *host) call(method, path, body string) (a answer, ok bool) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, strings.NewReader(body))
	require.NoError(h.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, false
	}
	_ = json.Unmarshal(text, &a)
	a.status, a.header, a.body = resp.StatusCode, resp.Header, string(text)
	return a, true
}

func (h *host) must(method, path, body string) answer {
	h.t.Helper()
	a, ok := h.call(method, path, body)
	require.Truef(h.t, ok, "%s %s: no answer", method, path)
	return a
}

// consumer is a consumer item as the API tells it.
type consumer struct {
	State      string
	Reason     string
	Partitions int
	Lag        int64
	Digest     string
	Halt       *struct {
		Reason    string
		Code      int
		Message   string
		Topic     string
		Position  int64
		Partition int
		Key       string
		EventType string `json:"event_type"`
		EventID   string `json:"event_id"`
		Digest    string
	}
}

func (h *host) consumer(name string) (c consumer) {
	h.t.Helper()
	require.NoError(h.t, json.Unmarshal(h.get("/v1/consumers/projection/"+name), &c))
	return c
}

// ready waits until every consumer runs or is halted.
func (h *host) ready() *host {
	h.t.Helper()
	h.wait("ready", func() bool { return h.must("GET", "/readyz", "").status == http.StatusOK })
	return h
}

// until waits until the consumer is in a state.
func (h *host) until(name, state string) consumer {
	h.t.Helper()
	var c consumer
	h.wait(name+" is "+state, func() bool {
		c = h.consumer(name)
		return c.State == state
	})
	return c
}

// stuck waits until a consumer is retrying.
func (h *host) stuck() (c consumer) {
	h.t.Helper()
	h.wait("a consumer is retrying", func() bool {
		var page struct{ Items []consumer }
		require.NoError(h.t, json.Unmarshal(h.get("/v1/consumers"), &page))
		for _, c = range page.Items {
			if c.State == "retrying" {
				return true
			}
		}
		return false
	})
	return c
}

// wait polls another process, which has no other way to tell.
func (h *host) wait(what string, done func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		require.Truef(h.t, time.Now().Before(deadline), "%s: not within %s", what, patience)
	}
}

// applied waits until a projection has applied everything up to a position.
func (h *host) applied(name string, position int64) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		a := h.must("GET", fmt.Sprintf("/v1/read-models/%s?limit=1&min_position=%d&wait=5s", name, position), "")
		if a.status == http.StatusOK {
			return
		}
		require.Equalf(h.t, http.StatusGatewayTimeout, a.status, "%s", a.body)
		require.Truef(h.t, time.Now().Before(deadline), "not caught up: %s", a.body)
	}
}

// logLines are the messages of an ended host's log that have all members.
func (h *host) logLines(message string) (lines []map[string]any) {
	h.t.Helper()
	for line := range strings.Lines(h.log.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["@message"] == message {
			lines = append(lines, m)
		}
	}
	return lines
}
