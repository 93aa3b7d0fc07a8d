package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/guest"
)

// scripted is a host that answers what it is told to, and remembers what it was
// asked but for reads.
type scripted struct {
	t       *testing.T
	answers map[string]string // by "METHOD path?query"; an answer that starts with a status is an error
	calls   []string
}

// script starts a host with the consumers projection/accounts and saga/transfers.
func script(t *testing.T, p *place, answers map[string]string) *scripted {
	s := &scripted{t: t, answers: map[string]string{
		"GET /healthz": `{"status":"ok","service":"projhost"}`,
		"GET /v1/consumers": `{"items":[{"type":"projection","name":"accounts","state":"running","undelivered":{"FAILED":1,"WAITING":2}},` +
			`{"type":"saga","name":"transfers"},{"type":"projection","name":"twice"},{"type":"saga","name":"twice"}],"next":null}`,
	}}
	for call, answer := range answers {
		s.answers[call] = answer
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	t.Setenv("PROJHOST_URL", srv.URL)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call := r.Method + " " + r.URL.RequestURI()
	if r.Method != http.MethodGet {
		s.calls = append(s.calls, strings.TrimSpace(call+" "+string(body)))
		if got := r.Header.Get(api.ActorHeader); got != osUser() {
			s.t.Errorf("%s: the actor is %q", call, got)
		}
	}
	answer, ok := s.answers[call]
	if !ok {
		answer = `404 {"error":{"code":"not_found","message":"there is nothing at ` + call + `"}}`
	}
	w.Header().Set("Content-Type", "application/json")
	var status int
	if n, _ := fmt.Sscanf(answer, "%d", &status); n == 1 {
		w.WriteHeader(status)
		answer = answer[4:]
	}
	_, _ = w.Write([]byte(answer + "\n"))
}

func (s *scripted) called() []string {
	calls := s.calls
	s.calls = nil
	return calls
}

const decided = `"count":2,"refused":1,"rows":[{"id":4,"topic":"events","position":5,"key":"a","event_type":"T","was":"FAILED"},` +
	`{"id":5,"topic":"events","position":6,"key":"a\u001b[2J","event_type":"T","was":"WAITING","refused":"message 4 is before it"},{"id":6,"topic":"events","position":7,"key":"b","event_type":"T","was":"FAILED"}]}`

const message4 = `{"id":4,"consumer":"projection/accounts","topic":"events","position":5,"partition":3,"key":"a","status":"FAILED","code":100,"class":"trap","reason":"panic: \u001b[31mno\nmain.go:7",` +
	`"attempts":2,"passing":1,"next_retry_at":"2026-01-02T03:04:05.000000Z","digest":"sha256:00","recorded_at":"2026-01-02T03:04:04.000000Z","changed_at":"2026-01-02T03:04:04.500000Z",` +
	`"event_id":"` + id1 + `","event_type":"T","aggregate_type":"account","aggregate_id":"a","head":4,"behind":2,"event":{"position":5,"data":{"n": 1,"s":"x"}}}`

// Each command line is one call, and says what became of it.
func TestOperatorsCommands(t *testing.T) {
	p := newPlace(t)
	const consumer = "/v1/consumers/projection/accounts"
	s := script(t, p, map[string]string{
		"POST " + consumer + "/pause":                                                  `{"type":"projection","name":"accounts","state":"paused"}`,
		"POST " + consumer + "/resume":                                                 `{"type":"projection","name":"accounts","state":"running"}`,
		"POST " + consumer + "/reset":                                                  `{"type":"projection","name":"accounts","topic":"events","position":7}`,
		"POST " + consumer + "/rebuild":                                                `{"type":"projection","name":"accounts","state":"rebuilding","mode":"in-place"}`,
		"DELETE " + consumer:                                                           `{"type":"projection","name":"accounts","dropped":true}`,
		"DELETE /v1/consumers/saga/transfers":                                          `409 {"error":{"code":"in_use","message":"saga/transfers is run by 2 hosts: take it out of the configuration first","instances":["i-1","i-2"]}}`,
		"POST /v1/consumers/saga/transfers/resume":                                     `409 {"error":{"code":"wrong_state","message":"resume cannot be done to saga/transfers: it is running: there is nothing to resume","state":"running"}}`,
		"POST " + consumer + "/undelivered/retry":                                      `{"dry_run":false,` + decided,
		"POST " + consumer + "/undelivered/retry?dry_run=1&out_of_order=1":             `{"dry_run":true,` + decided,
		"POST " + consumer + "/undelivered/delete":                                     `{"dry_run":false,"count":1,"refused":0,"rows":[]}`,
		"POST " + consumer + "/undelivered/delete?dry_run=1":                           `{"dry_run":true,"count":0,"refused":0,"rows":[]}`,
		"POST /v1/consumers/saga/transfers/undelivered/retry":                          `{"dry_run":false,"count":0,"refused":3,"rows":[]}`,
		"POST " + consumer + "/undelivered/4/retry":                                    `{"dry_run":false,"count":1,"refused":0,"rows":[]}`,
		"DELETE " + consumer + "/undelivered/4?dry_run=1":                              `{"dry_run":true,"count":1,"refused":0,"rows":[{"id":4,"topic":"events","position":5,"key":"a","event_type":"T","was":"FAILED"}]}`,
		"GET " + consumer + "/undelivered/4":                                           message4,
		"GET " + consumer + "/undelivered?after=0&limit=1":                             `{"items":[` + message4 + `],"next":"4"}`,
		"GET " + consumer + "/undelivered?after=0&key=a&limit=100&status=FAILED":       `{"items":[` + message4 + `],"next":null}`,
		"GET " + consumer + "/undelivered?after=0&limit=100&topic=events":              `{"items":[` + message4 + `],"next":null}`,
		"GET /v1/consumers/saga/transfers/undelivered?after=0&limit=99&topic=events":   `{"items":[],"next":null}`,
		"GET /v1/consumers/projection/twice/undelivered?after=0&limit=99&topic=events": `{"items":[],"next":null}`,
		"GET /v1/consumers/saga/twice/undelivered?after=0&limit=99&topic=events":       `{"items":[],"next":null}`,
		"GET " + consumer + "/history?after=0&limit=1":                                 `{"items":[{"id":1,"at":"2026-01-02T03:04:05.000000Z","actor":"ops (alice)","action":"skip","build":1,"topic":"events","position":5,"key":"a","detail":{"id":4}}],"next":"1"}`,
		"GET /v1/consumers/saga/gone/history?after=3&limit=100":                        `{"items":[],"next":null}`,
	})
	for _, tc := range []struct {
		line   string // words
		stdin  string
		code   int
		call   string
		stdout string
		stderr string
	}{
		{"consumers pause accounts", "", 0, "POST " + consumer + "/pause", "projection/accounts is paused; to let it go on: projhost consumers resume projection/accounts\n", ""},
		{"consumers pause projection/accounts --json", "", 0, "POST " + consumer + "/pause", `{"type":"projection","name":"accounts","state":"paused"}` + "\n", ""},
		{"consumers pause twice", "", 2, "", "", "projhost: \"twice\" names projection/twice and saga/twice: say which\n"},
		{"consumers resume accounts", "", 0, "POST " + consumer + "/resume {}", "projection/accounts goes on\n", ""},
		{"consumers resume accounts --past-poison 4", "", 0, "POST " + consumer + `/resume {"past_poison":4}`, "undelivered message 4 is passed over\nprojection/accounts goes on\n", ""},
		{"consumers resume transfers", "", 1, "POST /v1/consumers/saga/transfers/resume {}", "", "projhost: resume cannot be done to saga/transfers: it is running: there is nothing to resume (wrong_state)\n"},
		{"consumers reset accounts --from now --yes", "", 0, "POST " + consumer + `/reset {"from":"now"}`, "projection/accounts goes on behind position 7 of events\n", ""},
		{"consumers reset accounts --from 7 --topic events", "projection/accounts\n", 0, "POST " + consumer + `/reset {"from":7,"topic":"events"}`, "projection/accounts goes on behind position 7 of events\n",
			"projection/accounts will go on behind position 7 of its topic; what lies before and is not applied never will be.\nType projection/accounts to go on: "},
		{"consumers rebuild accounts --mode in-place --yes", "", 0, "POST " + consumer + `/rebuild {"mode":"in-place"}`,
			"projection/accounts is being rebuilt; to see how far it is: projhost consumers show projection/accounts\n", ""},
		{"consumers rebuild accounts --mode in-place --json", "projection/accounts\n", 0, "POST " + consumer + `/rebuild {"mode":"in-place"}`,
			`{"type":"projection","name":"accounts","state":"rebuilding","mode":"in-place"}` + "\n",
			"The rows of projection/accounts will be made anew in the tables they are in: until that is done readers see old and new ones side by side, and nothing that comes is applied.\nType projection/accounts to go on: "},
		{"consumers rebuild accounts", "", 2, "", "", "projhost: this version has no rebuild of mode \"shadow\": give \"in-place\"\n"},
		{"consumers drop accounts", "", 2, "", "", "projection/accounts will be removed for good, with its tables and all rows in them.\nType projection/accounts to go on: \nprojhost: nobody answers: say --yes where that is meant\n"},
		{"consumers drop accounts", "yes\n", 1, "", "", "projection/accounts will be removed for good, with its tables and all rows in them.\nType projection/accounts to go on: projhost: not done: that was another name\n"},
		{"consumers drop accounts --yes", "", 0, "DELETE " + consumer, "projection/accounts is dropped\n", ""},
		{"consumers drop transfers --yes", "", 1, "DELETE /v1/consumers/saga/transfers", "", "projhost: saga/transfers is run by 2 hosts: take it out of the configuration first: i-1, i-2 (in_use)\n"},
		{"consumers history accounts --limit 1", "", 0, "", "ID  AT                           ACTION  BY           WHAT\n 1  2026-01-02T03:04:05.000000Z  skip    ops (alice)  events:5, key a, id 4\n", "more follow: --after 1\n"},
		{"consumers history saga/gone --after 3", "", 0, "", "nothing was done to it\n", ""},

		{"undelivered list accounts --limit 1", "", 0, "",
			"ID  STATUS  AT        KEY  EVENT  TRIES  NEXT RETRY                   REASON\n 4  FAILED  events:5  a    T          3  2026-01-02T03:04:05.000000Z  panic:  [31mno main.go:7\n", "more follow: --after 4\n"},
		{"undelivered list accounts --key a --status failed --json", "", 0, "", `{"items":[` + message4[:strings.Index(message4, `,"event":`)] + "}],\"next\":null}\n", ""},
		{"undelivered list --topic events", "", 0, "",
			"ID  CONSUMER             STATUS  AT        KEY  EVENT  TRIES  NEXT RETRY                   REASON\n 4  projection/accounts  FAILED  events:5  a    T          3  2026-01-02T03:04:05.000000Z  panic:  [31mno main.go:7\n", ""},
		{"undelivered list --limit 1", "", 0, "",
			"ID  CONSUMER             STATUS  AT        KEY  EVENT  TRIES  NEXT RETRY                   REASON\n 4  projection/accounts  FAILED  events:5  a    T          3  2026-01-02T03:04:05.000000Z  panic:  [31mno main.go:7\n",
			"more follow: projhost undelivered list projection/accounts --after 4\nmore may follow: name one of the other consumers, such as saga/transfers\n"},
		{"undelivered show 4 --json", "", 0, "", message4 + "\n", ""},
		{"undelivered show 9", "", 1, "", "", "projhost: no consumer has an undelivered message 9: it was applied or deleted\n"},
		{"undelivered retry 4", "", 0, "POST " + consumer + "/undelivered/4/retry", "1 message of projection/accounts is tried again\n", ""},
		{"undelivered retry accounts 4", "", 0, "POST " + consumer + "/undelivered/4/retry", "1 message of projection/accounts is tried again\n", ""},
		{"undelivered delete accounts 4 --dry-run", "", 0, "DELETE " + consumer + "/undelivered/4?dry_run=1",
			"ID  WAS     AT        KEY  EVENT  REFUSED\n 4  FAILED  events:5  a    T\n\n1 message of projection/accounts would be deleted and passed over\n", ""},
		{"undelivered retry accounts --key a --type T", "", 0, "POST " + consumer + `/undelivered/retry {"event_type":"T","key":"a"}`,
			"ID  WAS      AT        KEY    EVENT  REFUSED\n 5  WAITING  events:6  a [2J  T      message 4 is before it\n\n2 messages of projection/accounts are tried again, 1 refused\n", ""},
		{"undelivered retry accounts --status dead_letter --dry-run --out-of-order", "", 0, "POST " + consumer + `/undelivered/retry?dry_run=1&out_of_order=1 {"status":"DEAD_LETTER"}`,
			"ID  WAS      AT        KEY    EVENT  REFUSED\n 4  FAILED   events:5  a      T\n 5  WAITING  events:6  a [2J  T      message 4 is before it\n 6  FAILED   events:7  b      T\n\n2 messages of projection/accounts would be tried again, 1 refused\n", ""},
		{"undelivered delete accounts --all", "", 0, "POST " + consumer + `/undelivered/delete {"all":true}`, "1 message of projection/accounts is deleted and passed over\n", ""},
		{"undelivered delete accounts --topic events --dry-run", "", 0, "POST " + consumer + `/undelivered/delete?dry_run=1 {"topic":"events"}`, "no undelivered message of projection/accounts matches\n", ""},
		{"undelivered retry transfers --all", "", 1, "POST /v1/consumers/saga/transfers/undelivered/retry {\"all\":true}", "0 messages of saga/transfers are tried again, 3 refused\n",
			"projhost: retry undelivered messages of saga/transfers: none was: each is refused\n"},
	} {
		o := p.run(tc.stdin, strings.Fields(tc.line)...)
		require.Equal(t, tc.stdout, o.stdout, "%s: %s", tc.line, o.stderr)
		require.Equal(t, tc.stderr, o.stderr, tc.line)
		require.Equal(t, tc.code, o.code, tc.line)
		var calls []string
		if tc.call != "" {
			calls = []string{tc.call}
		}
		require.Equal(t, calls, s.called(), tc.line)
	}
	golden(t, "undelivered-show", p.run("", "undelivered", "show", "accounts", "4").ok())
}

// What can be done follows from what a message is.
func TestNextSteps(t *testing.T) {
	for _, tc := range []struct {
		m    api.Undelivered
		want []string
	}{
		{api.Undelivered{Status: "FAILED", Head: 7}, []string{"to try it now, with a fresh budget: projhost undelivered retry projection/x 7", "to pass it over for good: projhost undelivered delete projection/x 7"}},
		{api.Undelivered{Status: "HALTED", Head: 7}, []string{"mend the plugin, then try it again: projhost consumers resume projection/x", "to pass it over for good: projhost consumers resume projection/x --past-poison 7"}},
		{api.Undelivered{Status: "DEAD_LETTER_KEY", Head: 7}, []string{"to try it now, with a fresh budget: projhost undelivered retry projection/x 7", "to pass it over for good: projhost undelivered delete projection/x 7"}},
		{api.Undelivered{Status: "DEAD_LETTER_KEY", Head: 3}, []string{"it waits behind message 3: projhost undelivered show projection/x 3", "to pass it over for good: projhost undelivered delete projection/x 7"}},
		{api.Undelivered{Status: "WAITING", Head: 7}, []string{"its turn comes by itself", "to pass it over for good: projhost undelivered delete projection/x 7"}},
		{api.Undelivered{Status: "DEAD_LETTER"}, []string{"later messages of its key may have been applied; to try it all the same: projhost undelivered retry projection/x 7 --out-of-order",
			"to pass it over for good: projhost undelivered delete projection/x 7"}},
	} {
		tc.m.ID = 7
		require.Equal(t, tc.want, nextSteps(target{"projection", "x"}, &tc.m))
	}
}

// A reader is told on standard error that what it gets is not all there is.
func TestOldRowsAreTold(t *testing.T) {
	for _, tc := range []struct{ state, held, key, want string }{
		{"running", "", "a", ""},
		{"paused", "", "", "projection/x is paused; to let it go on: projhost consumers resume projection/x\n"},
		{"running", "1", "it's", "key it's is held: a message of it could not be applied and is not in the row; see: projhost undelivered list projection/x --key 'it'\\''s'\n"},
		{"halted", "1", "", "1 message could not be applied and is not in the rows; see: projhost undelivered list projection/x\n"},
		{"running", "12", "", "12 messages could not be applied, or wait behind one, and are not in the rows; see: projhost undelivered list projection/x\n"},
	} {
		var stderr bytes.Buffer
		h := http.Header{}
		h.Set("Projhost-State", tc.state)
		if tc.held != "" {
			h.Set(api.HeldHeader, tc.held)
		}
		(&cli{stderr: &stderr}).tellOld("x", tc.key, h)
		require.Equal(t, tc.want, stderr.String())
	}
}

func TestStaleTakesItsWord(t *testing.T) {
	for line, want := range map[string]string{
		"query x --stale ok k":    "query x --stale=ok k",
		"query x ok --stale":      "query x ok --stale",
		"query x --stale":         "query x --stale",
		"query x --stale=ok ok":   "query x --stale=ok ok",
		"query x -- --stale ok":   "query x -- --stale ok",
		"query x --stale ok ok":   "query x --stale=ok ok",
		"query x --stale --limit": "query x --stale --limit",
	} {
		require.Equal(t, strings.Fields(want), joinStale(strings.Fields(line)))
	}
	require.NotNil(t, joinStale(nil))
}

// The first messages that hold their keys are shown with the consumer.
func TestConsumerShowsHeldKeys(t *testing.T) {
	p := newPlace(t)
	const consumer = "/v1/consumers/projection/accounts"
	script(t, p, map[string]string{
		"GET " + consumer: `{"type":"projection","name":"accounts","state":"running","undelivered":{"FAILED":1,"WAITING":2000,"DEAD_LETTER_KEY":2}}`,
		"GET " + consumer + "/undelivered?after=0&limit=50&status=FAILED": `{"items":[` + message4 + `],"next":null}`,
		"GET " + consumer + "/undelivered?after=0&limit=50&status=DEAD_LETTER_KEY": `{"items":[{"id":1,"topic":"events","position":2,"key":"b","status":"DEAD_LETTER_KEY","code":2,"attempts":5,"reason":"no","event_type":"U"},` +
			`{"id":2,"topic":"events","position":3,"key":"b","status":"DEAD_LETTER_KEY"}],"next":null}`,
	})
	out := p.run("", "consumers", "show", "accounts").ok()
	require.Contains(t, out, "undelivered   1 FAILED, 2 DEAD_LETTER_KEY, 2,000 WAITING\n")
	require.Contains(t, out, `
messages that could not be applied:
ID  STATUS           AT        KEY  EVENT  TRIES  NEXT RETRY                   REASON
 4  FAILED           events:5  a    T          3  2026-01-02T03:04:05.000000Z  panic:  [31mno main.go:7
 1  DEAD_LETTER_KEY  events:2  b    U          5  -                            no
what can be done about one: projhost undelivered show projection/accounts 4
all of them: projhost undelivered list projection/accounts
`)
}

// What an operator does to a consumer of a running host is done, and on record.
func TestOperatingAConsumer(t *testing.T) {
	poison := guest.Build(t, "testplugins/poison")
	p := newPlace(t)
	p.write("config.toml", hostConfigText+writePlugin(p, "poison", poison))
	h := p.host()
	p.run(`{"type":"T","data":{"n":1}}`+"\n"+`{"type":"T","data":{"n":2}}`, "append", "a", "k").ok()
	require.Contains(t, p.run("", "query", "poison", "k", "--min-position", "2", "--wait", "60s").ok(), `{"n":2}`)

	p.run("", "consumers", "pause", "poison").ok()
	p.run("", "consumers", "pause", "poison").ok() // it is already
	o := p.run("", "query", "poison", "k")
	require.Equal(t, exitOK, o.code)
	require.Contains(t, o.stdout, `{"n":2}`)
	require.Equal(t, "projection/poison is paused; to let it go on: projhost consumers resume projection/poison\n", o.stderr)
	began := time.Now()
	o = p.run("", "query", "poison", "--min-position", "99", "--wait", "60s")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "projection/poison is paused and has not applied events up to 99: it will when it is resumed; --stale ok reads what it has (projection_paused)\n")
	require.Less(t, time.Since(began), 50*time.Second, "nobody waits for it")
	require.Contains(t, p.run("", "query", "poison", "--min-position", "99", "--wait", "60s", "--stale", "ok").stdout, `{"n":2}`)

	p.run("", "consumers", "reset", "poison", "--from", "3", "--yes").fails(exitFailed, "projhost: position 3 of topic events: it can be read from 0 to 2 (bad_request)\n")
	require.Equal(t, "projection/poison goes on behind position 2 of events\n", p.run("", "consumers", "reset", "poison", "--from", "now", "--yes").ok())
	p.run("", "consumers", "resume", "poison", "--past-poison", "7").fails(exitFailed, "projhost: undelivered message 7: it is not there any more: look at what is there now and decide again (changed)\n")
	require.Equal(t, "projection/poison goes on\n", p.run("", "consumers", "resume", "poison").ok())
	p.run("", "consumers", "resume", "poison").fails(exitFailed, "projhost: resume cannot be done to projection/poison: it is running: there is nothing to resume (wrong_state)\n")
	require.Equal(t, "no undelivered messages\n", p.run("", "undelivered", "list").ok())
	p.run("", "undelivered", "show", "7").fails(exitFailed, "projhost: no consumer has an undelivered message 7: it was applied or deleted\n")
	p.run("", "undelivered", "retry", "poison", "7").fails(exitFailed, "projhost: projection/poison has no undelivered message 7: it was applied or deleted, or is another consumer's (not_found)\n")
	require.Equal(t, "no undelivered message of projection/poison matches\n", p.run("", "undelivered", "delete", "poison", "--all").ok())
	require.Regexp(t, `^projhost: projection/poison is run by 1 host: take it out of the configuration first: [0-9a-f-]{36} \(in_use\)\n$`, p.run("", "consumers", "drop", "poison", "--yes").stderr)

	// Nobody runs it any more: it is found all the same, and can be removed.
	h.end()
	p.write("config.toml", hostConfigText)
	h = p.host()
	require.Contains(t, p.run("", "consumers", "list").ok(), "projection/poison  not_running")
	require.Equal(t, "projection/poison is dropped\n", p.run("", "consumers", "drop", "poison", "--yes").ok())
	require.Contains(t, p.run("", "consumers", "list").ok(), "no consumers")
	p.run("", "query", "poison").fails(exitFailed, "projhost: query poison: there is no projection \"poison\" (not_found)\n")
	p.run("", "consumers", "drop", "projection/poison", "--yes").fails(exitFailed, "projhost: there is no consumer projection/poison (not_found)\n")
	history := p.run("", "consumers", "history", "projection/poison").ok()
	for _, action := range []string{"subscribe +host", "pause +http", "reset +http .*events:2", "resume +http", "drop +http"} {
		require.Regexp(t, `(?m)^ *[0-9]+  \S+Z  `+action, history)
	}
	require.Equal(t, 1, strings.Count(history, " pause "), "what is done already is not done again")
	if osUser() != "" {
		require.Contains(t, history, "http ("+osUser()+")")
	}
	h.end()
}

// A message that cannot be applied holds its key, is seen wherever one looks, and
// goes when an operator decides.
func TestHeldKeyIsOperated(t *testing.T) {
	poison := guest.Build(t, "testplugins/poison")
	p := newPlace(t)
	p.write("config.toml", hostConfigText+writePlugin(p, "poison", poison)+"[plugin.consumer.poison]\non_exhausted = \"dead_letter_key\"\n")
	h := p.host()
	fresh := []string{"--wait", "60s", "--min-position"}
	query := func(args ...string) outcome { return p.run("", append([]string{"query", "poison"}, args...)...) }
	p.run(`{"type":"T","data":{"n":1}}`+"\n"+`{"id":"`+id2+`","type":"bad","data":{"fail":"reject"}}`+"\n"+`{"type":"T","data":{"n":3}}`, "append", "a", "k").ok()
	p.run(`{"type":"T","data":{"n":4}}`, "append", "a", "other").ok()

	require.Contains(t, query(append([]string{"other"}, append(fresh, "4")...)...).ok(), `{"n":4}`)
	require.Contains(t, query(append([]string{"k"}, append(fresh, "1")...)...).stdout, `{"n":1}`, "what was asked for is there")
	o := query(append([]string{"k"}, append(fresh, "3")...)...)
	require.Equal(t, exitFailed, o.code)
	require.Empty(t, o.stdout)
	require.Contains(t, o.stderr, `message 2 of events is not applied to key "k" and holds it (undelivered message 1, DEAD_LETTER_KEY): reject: code 2: the message says so; --stale ok reads the row without it (key_held)`)
	require.Contains(t, o.stderr, "see: projhost undelivered list projection/poison --key k\n")
	o = query(append([]string{"k", "--stale", "ok"}, append(fresh, "3")...)...)
	require.Equal(t, exitOK, o.code, o.stderr)
	require.Contains(t, o.stdout, `{"n":1}`)
	o = query()
	require.Equal(t, exitOK, o.code)
	require.Equal(t, "2 messages could not be applied, or wait behind one, and are not in the rows; see: projhost undelivered list projection/poison\n", o.stderr)

	require.Regexp(t, `projection/poison +running +0 +16 +2 +0 +poison`, p.run("", "status").ok())
	show := p.run("", "consumers", "show", "poison").ok()
	require.Contains(t, show, "undelivered   2 DEAD_LETTER_KEY\n")
	require.Regexp(t, `(?m)^ 1  DEAD_LETTER_KEY  events:2  k    bad        1  -           reject: code 2: the message says so$`, show)
	require.Contains(t, show, "what can be done about one: projhost undelivered show projection/poison 1\n")
	one := p.run("", "undelivered", "show", "1").ok()
	require.Contains(t, one, "behind it   1\n")
	require.Contains(t, one, `"data":{"fail":"reject"}`)
	require.Contains(t, p.run("", "undelivered", "show", "poison", "2").ok(), "it waits behind message 1: projhost undelivered show projection/poison 1\n")
	p.run("", "undelivered", "retry", "2").fails(exitFailed, "projhost: undelivered message 2 of projection/poison is refused: an earlier message of its key is before it (refused)\n")

	// A dry run does nothing; the real one has the message tried, and it fails again.
	require.Contains(t, p.run("", "undelivered", "retry", "poison", "--type", "bad", "--dry-run").ok(), "1 message of projection/poison would be tried again\n")
	require.NotContains(t, p.run("", "consumers", "history", "poison").ok(), "retry")
	require.Equal(t, "1 message of projection/poison is tried again\n", p.run("", "undelivered", "retry", "poison", "--type", "bad").ok())
	require.Regexp(t, `retry +http .*events:2, key k, rows 1, ids \[1\], event_type bad\n`, p.run("", "consumers", "history", "poison").ok())

	// Passed over, the rest of the key follows.
	require.Equal(t, "1 message of projection/poison is deleted and passed over\n", p.run("", "undelivered", "delete", "1").ok())
	deadline := time.Now().Add(time.Minute)
	for query("k", "--min-position", "3").code != exitOK {
		require.Less(t, time.Now(), deadline)
		time.Sleep(20 * time.Millisecond) // the host's own time: it is another process to us
	}
	require.Contains(t, query("k").ok(), `{"n":3}`)
	require.Equal(t, "no undelivered messages\n", p.run("", "undelivered", "list").ok())
	require.Regexp(t, `(?m)^ *[0-9]+  \S+  skip +http \(?.*events:2, key k`, p.run("", "consumers", "history", "poison").ok())

	// While it is paused nothing is applied; when it goes on, what came is.
	p.run("", "consumers", "pause", "poison").ok()
	p.run(`{"type":"T","data":{"n":5}}`, "append", "a", "k").ok()
	require.Contains(t, query(append([]string{"k"}, append(fresh, "5")...)...).stderr, "(projection_paused)")
	require.Contains(t, query("k").stdout, `{"n":3}`)
	p.run("", "consumers", "resume", "poison").ok()
	require.Contains(t, query(append([]string{"k"}, append(fresh, "5")...)...).ok(), `{"n":5}`)
	h.end()
}

// A message that halted its consumer is passed over by the id that was seen.
func TestPoisonIsPassedOver(t *testing.T) {
	poison := guest.Build(t, "testplugins/poison")
	p := newPlace(t)
	p.write("config.toml", hostConfigText+writePlugin(p, "poison", poison))
	h := p.host()
	p.run(`{"type":"T","data":{"n":1}}`+"\n"+`{"type":"T","data":{"fail":"reject"}}`+"\n"+`{"type":"T","data":{"n":3}}`, "append", "a", "k").ok()
	o := p.run("", "query", "poison", "k", "--min-position", "3", "--wait", "60s")
	require.Contains(t, o.stderr, "(projection_halted)")
	show := p.run("", "undelivered", "show", "1").ok()
	require.Contains(t, show, "projhost consumers resume projection/poison --past-poison 1\n")
	p.run("", "undelivered", "retry", "1").fails(exitFailed, "projhost: undelivered message 1 of projection/poison is refused: it has halted its consumer: resume that (refused)\n")
	require.Contains(t, p.run("", "consumers", "resume", "poison", "--past-poison", "7").stderr, "(changed)")
	require.Equal(t, "undelivered message 1 is passed over\nprojection/poison goes on\n", p.run("", "consumers", "resume", "poison", "--past-poison", "1").ok())
	deadline := time.Now().Add(time.Minute)
	for p.run("", "query", "poison", "k", "--min-position", "3").code != exitOK {
		require.Less(t, time.Now(), deadline)
		time.Sleep(20 * time.Millisecond) // the host's own time: it is another process to us
	}
	require.Contains(t, p.run("", "query", "poison", "k").ok(), `{"n":3}`)
	h.end()
}
