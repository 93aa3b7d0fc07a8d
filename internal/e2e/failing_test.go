package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
)

// Promise: a failure holds its own consumer only, nothing is skipped (P4, P5),
// and whatever a guest does, the host goes on (P6). Each way to fail halts its
// consumer with everything one needs to find the message; a restart tries it
// again; a mended module goes on with that very message, and in the end the
// rows are what they were had it never failed.
func TestFailingMessage(t *testing.T) {
	modules := map[string]string{
		"failing.wasm":  string(guest.Build(t, "testplugins/poison")),
		"mended.wasm":   string(guest.Build(t, "testplugins/poison/mended")),
		"accounts.wasm": string(guest.Build(t, "testplugins/accounts")),
	}
	var compiled string // the first site's cache: compiling takes longer than the test
	newSite := func(t *testing.T) *site {
		s := emptySite(t, `
[[plugin]]
name = "poison"
path = "poison.wasm"
timeout = "1s"
[[plugin]]
name = "accounts"
path = "accounts.wasm"
`)
		for name, module := range modules {
			s.write(name, module)
		}
		if compiled == "" {
			compiled = filepath.Join(t.TempDir(), "modules")
			for _, module := range []string{"mended.wasm", "failing.wasm"} {
				s.install(module)
				s.start().stop()
			}
			require.NoError(t, os.CopyFS(compiled, os.DirFS(filepath.Join(s.dir, "data", "modules"))))
			require.NoError(t, os.RemoveAll(filepath.Join(s.dir, "data")))
		}
		require.NoError(t, os.CopyFS(filepath.Join(s.dir, "data", "modules"), os.DirFS(compiled)))
		s.install("failing.wasm")
		return s
	}

	tests := []struct {
		how     string
		code    abi.Status // 0: any
		message string     // contained
	}{
		{"reject", abi.StatusReject, "the message says so"},
		{"retry", abi.StatusRetry, "not now"},
		{"panic", abi.CodeTrap, "the message says so"},
		{"precision", abi.CodeMalformed, "amount"},
		{"nul", abi.CodeMalformed, "U+0000"},
		{"stack", 0, ""}, // the stack or the time ends first
		{"memory", abi.CodeMemory, "memory"},
		{"loop", abi.CodeDeadline, "longer than 1s"},
	}
	const (
		key, other = "A-1", "A-2"
		bad        = "00000000-0000-4000-8000-000000000001"
		position   = int64(2) // of the bad event
		accounts   = 20       // events of another consumer
		end        = int64(4 + accounts)
	)
	newSite(t) // outside of the first test, whose folder goes with it
	for i, test := range tests {
		t.Run(test.how, func(t *testing.T) {
			s := newSite(t)
			h := s.start()
			for _, e := range []struct{ key, event string }{
				{key, `{"type":"opened","data":{"n":1}}`},
				{key, fmt.Sprintf(`{"type":"bad","id":%q,"data":{"fail":%q}}`, bad, test.how)},
				{key, `{"type":"closed","data":{"n":3}}`},
				{other, `{"type":"opened","data":{"n":4}}`},
			} {
				a := h.must("POST", "/v1/streams/thing/"+e.key, `{"expected_version":"any","events":[`+e.event+`]}`)
				require.Equal(t, http.StatusCreated, a.status, a.body)
			}
			var lines []byte
			for e := range samples.Accounts(accounts, samples.AccountsDefault) {
				lines = e.AppendLine(lines)
			}
			require.True(t, h.send(lines))

			check := func(h *host) {
				t.Helper()
				c := h.until("poison", "halted")
				require.Equal(t, "APPLY_ERROR", c.Halt.Reason)
				if test.code != 0 {
					require.Equal(t, int(test.code), c.Halt.Code, c.Halt.Message)
				}
				require.Contains(t, c.Halt.Message, test.message)
				require.Equal(t, "events", c.Halt.Topic)
				require.Equal(t, position, c.Halt.Position)
				require.Equal(t, key, c.Halt.Key)
				require.Equal(t, "bad", c.Halt.EventType)
				require.Equal(t, bad, c.Halt.EventID)
				require.Equal(t, c.Digest, c.Halt.Digest)

				h.applied("accounts", end)
				require.Equal(t, "running", h.consumer("accounts").State)

				// What is recorded is there a moment later than what is told.
				row := "/v1/read-models/poison/" + key
				h.wait("the halt is recorded", func() bool { return h.must("GET", row, "").status == http.StatusServiceUnavailable })
				a := h.must("GET", row, "")
				require.Equal(t, "projection_halted", a.Error.Code)
				require.Equal(t, "halted", a.header.Get("Projhost-State"))
				require.Contains(t, a.Error.Message, test.message)
				var halt struct {
					Error struct {
						HaltReason string `json:"halt_reason"`
						Halt       struct {
							Position int64
							Key      string
						}
					}
				}
				require.NoError(t, json.Unmarshal([]byte(a.body), &halt))
				require.Equal(t, "APPLY_ERROR", halt.Error.HaltReason)
				require.Equal(t, position, halt.Error.Halt.Position)
				require.Equal(t, key, halt.Error.Halt.Key)
				require.Equal(t, "projection_halted", h.must("GET", fmt.Sprintf("%s?min_position=%d&wait=10s", row, end), "").Error.Code)

				a = h.must("GET", row+"?stale=ok", "")
				require.Equal(t, http.StatusOK, a.status, a.body)
				require.Contains(t, a.body, `"events":1,"last_data":"{\"n\":1}"`, "what came before it and nothing of it")

				out := s.command("status", "--url", h.url)
				for _, part := range []string{"APPLY_ERROR", test.message, fmt.Sprint("events:", position), key, "bad"} {
					require.Contains(t, out, part)
				}
			}
			check(h)
			if i%2 == 0 {
				h.stop()
			} else {
				h.kill()
			}
			told := h.logLines("consumer halted: the message and everything behind it wait for a restart or a new module")
			require.Len(t, told, 1)
			require.EqualValues(t, position, told[0]["position"])
			require.Equal(t, key, told[0]["key"])
			require.Equal(t, "bad", told[0]["event_type"])
			require.Equal(t, bad, told[0]["event_id"])

			h = s.start() // tries again
			check(h)
			h.kill()

			s.install("mended.wasm")
			h = s.start()
			h.applied("poison", end)
			a := h.must("GET", "/v1/read-models/poison/"+key, "")
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.Contains(t, a.body, `"events":3,"last_data":"{\"n\":3}"`)
			require.Contains(t, h.must("GET", "/v1/read-models/poison/"+other, "").body, `"events":1,"last_data":"{\"n\":4}"`)
			require.Equal(t, "running", h.consumer("poison").State)
			h.stop()
			require.Equal(t, 2+s.count("accounts"), s.count("poison"))
		})
	}
}

// install makes a module the plugin's.
func (s *site) install(module string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "poison.wasm")
	if err := os.Remove(path); err != nil {
		require.ErrorIs(s.t, err, os.ErrNotExist)
	}
	require.NoError(s.t, os.Link(filepath.Join(s.dir, module), path))
}
