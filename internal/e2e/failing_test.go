package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
)

// Promise: a failure holds its own consumer only, nothing is skipped (P4, P5),
// and whatever a guest does, the host goes on (P6). Each way to fail halts its
// consumer with everything one needs to find the message; a restart changes nothing
// (H5); a mended module goes on with that very message, and in the end the
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
[delivery]
backoff = "1ms"
max_backoff = "5ms"
max_transient = 3
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
				h.until("accounts", "running")

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
			told := h.logLines("consumer halted: the message and everything behind it wait for an operator or a new module")
			require.Len(t, told, 1)
			require.EqualValues(t, position, told[0]["position"])
			require.Equal(t, key, told[0]["key"])
			require.Equal(t, "bad", told[0]["event_type"])
			require.Equal(t, bad, told[0]["event_id"])

			h = s.start() // is no transition
			check(h)
			h.kill()

			s.install("mended.wasm")
			h = s.start()
			h.until("poison", "running") // a host answers before it has told the store of its module
			h.applied("poison", end)
			a := h.must("GET", "/v1/read-models/poison/"+key, "")
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.Contains(t, a.body, `"events":3,"last_data":"{\"n\":3}"`)
			require.Contains(t, h.must("GET", "/v1/read-models/poison/"+other, "").body, `"events":1,"last_data":"{\"n\":4}"`)
			h.until("poison", "running")
			h.stop()
			require.Equal(t, 2+s.count("accounts"), s.count("poison"))
		})
	}
}

// undelivered are the messages of a consumer that could not be applied.
func (h *host) undelivered(name string) (list []undelivered) {
	h.t.Helper()
	var page struct{ Items []undelivered }
	require.NoError(h.t, json.Unmarshal(h.get("/v1/consumers/projection/"+name+"/undelivered"), &page))
	return page.Items
}

type undelivered struct {
	Position int64
	Key      string
	Status   string
	Code     int
	Reason   string
	Passing  int
}

// Promises P3 and P5 with a real guest on every database: a message that fails
// holds its key only, also one that stands still for good; tries are counted over a
// restart and a kill; and another module heals what there is, in order.
func TestFailuresHoldTheirKey(t *testing.T) {
	failing, mended := string(guest.Build(t, "testplugins/poison")), string(guest.Build(t, "testplugins/poison/mended"))
	run := func(t *testing.T, driver, dsn string) {
		config := `
[delivery]
backoff = "20ms"
max_backoff = "100ms"
max_transient = 1000000
[cluster]
heartbeat = "300ms"
instance_ttl = "1s"
rebalance = "300ms"
[[plugin]]
name = "poison"
path = "poison.wasm"
timeout = "0s"
[plugin.consumer.poison]
on_exhausted = "dead_letter_key"
`
		if driver != "" {
			config = fmt.Sprintf("[store]\ndriver = %q\ndsn = %q\n", driver, dsn) + config
		}
		s := emptySite(t, config)
		s.driver, s.dsn = driver, dsn
		s.write("failing.wasm", failing)
		s.write("mended.wasm", mended)
		s.install("failing.wasm")
		h := s.start()
		for _, e := range []struct{ key, data string }{
			{"later", `{"n":1}`}, {"dead", `{"n":2}`}, {"fine", `{"n":3}`},
			{"later", `{"fail":"retry"}`}, {"dead", `{"fail":"panic"}`}, {"fine", `{"n":6}`},
			{"later", `{"n":7}`}, {"dead", `{"n":8}`}, {"fine", `{"n":9}`},
		} {
			a := h.must("POST", "/v1/streams/thing/"+e.key, `{"expected_version":"any","events":[{"type":"t","data":`+e.data+`}]}`)
			require.Equal(t, http.StatusCreated, a.status, a.body)
		}
		rows := func(h *host, want map[string]int) {
			t.Helper()
			for key, n := range want {
				h.wait(key+" has its messages", func() bool {
					a := h.must("GET", "/v1/read-models/poison/"+key, "")
					return a.status == http.StatusOK && strings.Contains(a.body, fmt.Sprintf(`"events":%d,`, n))
				})
			}
		}
		// passing is how often the message has been tried, with all that is held.
		passing := func(h *host) int {
			t.Helper()
			rows(h, map[string]int{"later": 1, "dead": 1, "fine": 3})
			var list []undelivered
			h.wait("four messages are kept", func() bool {
				list = h.undelivered("poison")
				return len(list) == 4
			})
			states := map[string]string{}
			n := 0
			for _, m := range list {
				states[m.Key] += m.Status + " "
				if m.Key == "later" {
					n = max(n, m.Passing)
				}
				if m.Code == int(abi.CodeTrap) {
					require.Contains(t, m.Reason, "the message says so")
				}
			}
			require.Equal(t, map[string]string{"later": "FAILED WAITING ", "dead": "DEAD_LETTER_KEY DEAD_LETTER_KEY "}, states)
			return n
		}
		tried := func(h *host, than int) int {
			t.Helper()
			n := 0
			h.wait("it is tried again", func() bool {
				n = passing(h)
				return n > than
			})
			h.until("poison", "running")
			return n
		}
		n := tried(h, 3)
		h.kill()
		h = s.start()
		require.GreaterOrEqual(t, passing(h), n, "the budget survives a kill")
		tried(h, n)
		h.stop()
		s.install("mended.wasm")
		h = s.start()
		rows(h, map[string]int{"later": 3, "dead": 3, "fine": 3})
		require.Contains(t, h.must("GET", "/v1/read-models/poison/later", "").body, `"last_data":"{\"n\":7}"`)
		require.Contains(t, h.must("GET", "/v1/read-models/poison/dead", "").body, `"last_data":"{\"n\":8}"`)
		require.Empty(t, h.undelivered("poison"))
		h.stop()
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		run(t, "", "")
	})
	onServers(t, func(t *testing.T, v server) { run(t, v.driver, v.dsn(t)) })
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
