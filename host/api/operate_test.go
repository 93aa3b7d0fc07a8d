package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// operators is a store whose part for operators says what it is told to: what the
// drivers make of it has its own tests.
type operators struct {
	*sqlite.Store
	consumers []store.Consumer // beside those of the store
	calls     []string
	err       error // of the next action
	rows      []store.UndeliveredMessage
	history   []store.HistoryEntry
	decision  store.Decision
	state     store.ConsumerState // of every view, unless empty
}

func (o *operators) note(format string, args ...any) error {
	o.calls = append(o.calls, fmt.Sprintf(format, args...))
	err := o.err
	o.err = nil
	return err
}

func (o *operators) Consumer(ctx context.Context, id store.ConsumerID) (store.Consumer, error) {
	for _, c := range o.consumers {
		if c.ID == id {
			return c, nil
		}
	}
	return o.Store.Consumer(ctx, id)
}

func (o *operators) Pause(_ context.Context, id store.ConsumerID, actor string) error {
	return o.note("pause %s by %s", id, actor)
}

func (o *operators) Resume(_ context.Context, id store.ConsumerID, pastPoison int64, actor string) error {
	return o.note("resume %s past %d by %s", id, pastPoison, actor)
}

func (o *operators) RebuildInPlace(_ context.Context, id store.ConsumerID, r store.Rebuild) error {
	return o.note("rebuild %s by %s", id, r.Actor)
}

func (o *operators) Reset(_ context.Context, id store.ConsumerID, topic string, position int64, actor string) error {
	return o.note("reset %s of %s to %d by %s", topic, id, position, actor)
}

func (o *operators) Drop(_ context.Context, id store.ConsumerID, actor string) error {
	return o.note("drop %s by %s", id, actor)
}

func (o *operators) RetryUndelivered(_ context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (store.Decision, error) {
	return o.decision, o.note("retry %s %+v %+v", id, sel, a)
}

func (o *operators) DeleteUndelivered(_ context.Context, id store.ConsumerID, sel store.Selection, a store.Action) (store.Decision, error) {
	return o.decision, o.note("delete %s %+v %+v", id, sel, a)
}

func (o *operators) CountUndelivered(context.Context) (map[store.ConsumerID]map[store.UndeliveredStatus]int64, error) {
	counts := map[store.UndeliveredStatus]int64{}
	for i := range o.rows {
		counts[o.rows[i].Status]++
	}
	return map[store.ConsumerID]map[store.UndeliveredStatus]int64{things: counts}, nil
}

func (o *operators) ListUndelivered(_ context.Context, q store.UndeliveredQuery) (list []store.UndeliveredMessage, err error) {
	for _, m := range o.rows {
		s := q.Selection
		if q.Consumer == things && m.ID > q.After && len(list) < q.Limit && (s.Key == "" || s.Key == m.Key) && (s.Status == "" || s.Status == m.Status) &&
			(s.EventType == "" || s.EventType == m.Event.Type) && (s.Topic == "" || s.Topic == m.Topic) {
			m.Event.Data, m.Event.Metadata = nil, nil
			list = append(list, m)
		}
	}
	return list, nil
}

func (o *operators) UndeliveredMessage(_ context.Context, id store.ConsumerID, row int64) (store.UndeliveredMessage, error) {
	for _, m := range o.rows {
		if id == things && m.ID == row {
			return m, nil
		}
	}
	return store.UndeliveredMessage{}, store.ErrNotFound
}

func (o *operators) History(_ context.Context, id store.ConsumerID, after int64, limit int) (list []store.HistoryEntry, err error) {
	for _, e := range o.history {
		if id == things && e.ID > after && len(list) < limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (o *operators) View(ctx context.Context, id store.ConsumerID) (store.ReadView, error) {
	v, err := o.Store.View(ctx, id)
	return &heldView{v, o}, err
}

// heldView holds the keys that have a row.
type heldView struct {
	store.ReadView
	o *operators
}

func (v *heldView) Consumer() store.Consumer {
	c := v.ReadView.Consumer()
	if v.o.state != "" {
		c.State = v.o.state
	}
	return c
}

func (v *heldView) Held(partition int, key string) (*store.UndeliveredMessage, error) {
	for _, m := range v.o.rows {
		if m.Key == key && m.Partition == partition && m.Status != store.StatusDeadLetter {
			return &m, nil
		}
	}
	return nil, nil
}

func (v *heldView) CountHeld() (n int64, err error) {
	for i := range v.o.rows {
		if v.o.rows[i].Status != store.StatusDeadLetter {
			n++
		}
	}
	return n, nil
}

func tokenOf(secret, name string, roles ...string) Token {
	return Token{Name: name, SHA256: sha256.Sum256([]byte(secret)), Roles: roles}
}

var things = store.ConsumerID{Type: "projection", Name: "things"}

// newOperated is a host with the projection things, which reads two topics.
func newOperated(t testing.TB, cfg Config) *rig {
	r := newRig(t, cfg)
	r.ops.consumers = []store.Consumer{{ID: things, State: store.StateRunning, Topics: []string{"events"}},
		{ID: store.ConsumerID{Type: "saga", Name: "two"}, Topics: []string{"events", "capture"}}}
	return r
}

// called gives the actions since it was asked last.
func (r *rig) called() []string {
	calls := r.ops.calls
	r.ops.calls = nil
	return calls
}

const thingsPath = "/v1/consumers/projection/things"

func TestActionsOnConsumers(t *testing.T) {
	r := newOperated(t, Config{})
	for range 3 {
		require.Equal(t, 201, r.do("POST", "/v1/streams/t/1", `{"expected_version":"any","events":[{"type":"T","data":1}]}`).status)
	}
	for _, tc := range []struct{ method, path, body, call, answer string }{
		{"POST", thingsPath + "/pause", ``, "pause projection/things by http", `{"type":"projection","name":"things","state":"paused"}`},
		{"POST", thingsPath + "/pause", `{}`, "pause projection/things by http", `{"type":"projection","name":"things","state":"paused"}`},
		{"POST", thingsPath + "/resume", ``, "resume projection/things past 0 by http", `{"type":"projection","name":"things","state":"running"}`},
		{"POST", thingsPath + "/resume", `{}`, "resume projection/things past 0 by http", `{"type":"projection","name":"things","state":"running"}`},
		{"POST", thingsPath + "/resume", `{"past_poison":7}`, "resume projection/things past 7 by http", `{"type":"projection","name":"things","state":"running"}`},
		{"POST", thingsPath + "/rebuild", `{"mode":"in-place"}`, "rebuild projection/things by http", `{"type":"projection","name":"things","state":"rebuilding","mode":"in-place"}`},
		{"POST", thingsPath + "/reset", `{"from":2}`, "reset events of projection/things to 2 by http", `{"type":"projection","name":"things","topic":"events","position":2}`},
		{"POST", thingsPath + "/reset", `{"topic":"events","from":"now"}`, "reset events of projection/things to 3 by http", `{"type":"projection","name":"things","topic":"events","position":3}`},
		{"POST", "/v1/consumers/saga/two/reset", `{"topic":"capture","from":0}`, "reset capture of saga/two to 0 by http", `{"type":"saga","name":"two","topic":"capture","position":0}`},
		{"DELETE", thingsPath, ``, "drop projection/things by http", `{"type":"projection","name":"things","dropped":true}`},
	} {
		a := r.do(tc.method, tc.path, tc.body)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, tc.answer, a.body)
		require.Equal(t, []string{tc.call}, r.called())
	}
	r.runtime.mu.Lock()
	defer r.runtime.mu.Unlock()
	require.Equal(t, 10, r.runtime.looks, "the host is told to look at what was done")
}

// A consumer whose rebuild was interrupted goes on with that, and the answer says so.
func TestResumeOfARebuild(t *testing.T) {
	r := newOperated(t, Config{})
	r.ops.consumers[0].State = store.StateRebuilding
	a := r.do("POST", thingsPath+"/resume", "")
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, `{"type":"projection","name":"things","state":"rebuilding"}`, a.body)
}

// What is not asked for by name is refused, and nothing is done.
func TestActionsAreStrict(t *testing.T) {
	r := newOperated(t, Config{})
	for _, tc := range []struct{ method, path, body, want string }{
		{"POST", thingsPath + "/pause", `{"reason":"x"}`, `unknown member "reason"; there are none`},
		{"POST", thingsPath + "/pause?force=1", ``, `unknown parameter "force"`},
		{"DELETE", thingsPath, `{"x":1}`, `unknown member "x"; there are none`},
		{"DELETE", thingsPath, `[]`, `malformed JSON at byte 0: an object is expected, found an array`},
		{"POST", thingsPath + "/resume", `{"past_poisson":7}`, `unknown member "past_poisson"; the only member is past_poison`},
		{"POST", thingsPath + "/resume", `{"past_poison":0}`, `member "past_poison" must be the id of the undelivered message to pass over`},
		{"POST", thingsPath + "/resume", `{"past_poison":"7"}`, `member "past_poison" must be a whole number`},
		{"POST", thingsPath + "/resume", `{"past_poison":1,"past_poison":2}`, `member "past_poison" is given twice`},
		{"POST", thingsPath + "/resume", `{"past_poison":7}]`, `malformed JSON at byte 17`},
		{"POST", thingsPath + "/rebuild", ``, `this version has no rebuild of mode "shadow": give "in-place"`},
		{"POST", thingsPath + "/rebuild", `{"mode":"quick"}`, `this version has no rebuild of mode "quick": give "in-place"`},
		{"POST", thingsPath + "/rebuild", `{"from":0}`, `unknown member "from"; the only member is mode`},
		{"POST", thingsPath + "/rebuild?mode=in-place", ``, `unknown parameter "mode"`},
		{"POST", thingsPath + "/reset", ``, `malformed JSON at byte 0`},
		{"POST", thingsPath + "/reset", `{}`, `member "from" is missing`},
		{"POST", thingsPath + "/reset", `{"from":"end"}`, `member "from" must be the position behind which to go on, or "now"`},
		{"POST", thingsPath + "/reset", `{"from":-1}`, `member "from" must be the position behind which to go on, or "now"`},
		{"POST", thingsPath + "/reset", `{"from":1,"topic":""}`, `member "topic" is empty`},
		{"POST", thingsPath + "/reset", `{"from":1,"partition":2}`, `unknown member "partition"; the members are topic, from`},
		{"POST", "/v1/consumers/saga/two/reset", `{"from":1}`, `member "topic" is missing: saga/two reads events, capture`},
		{"POST", thingsPath + "/undelivered/retry", ``, `malformed JSON at byte 0`},
		{"POST", thingsPath + "/undelivered/retry", `{}`, `the selection is empty: give key, event_type, status or topic, or "all":true for every message of the consumer`},
		{"POST", thingsPath + "/undelivered/delete", `{"all":false}`, `the selection is empty`},
		{"POST", thingsPath + "/undelivered/delete", `{"all":"true"}`, `member "all" must be true or false`},
		{"POST", thingsPath + "/undelivered/delete", `{"key":""}`, `member "key" is empty`},
		{"POST", thingsPath + "/undelivered/delete", `{"key":null}`, `member "key" must be a string`},
		{"POST", thingsPath + "/undelivered/delete", `{"key":"a\u0000"}`, `member "key" holds the character U+0000`},
		{"POST", thingsPath + "/undelivered/delete", `{"id":1}`, `unknown member "id"; the members are key, event_type, status, topic, all`},
		{"POST", thingsPath + "/undelivered/delete", `{"status":"failed"}`, `member "status" must be one of HALTED, FAILED, DEAD_LETTER_KEY, DEAD_LETTER, WAITING`},
		{"POST", thingsPath + "/undelivered/delete?dry-run=1", `{"all":true}`, `unknown parameter "dry-run"; the parameters are dry_run`},
		{"POST", thingsPath + "/undelivered/delete?dry_run=yes", `{"all":true}`, `parameter "dry_run" must be 1 or 0, it is "yes"`},
		{"POST", thingsPath + "/undelivered/delete?dry_run=", `{"all":true}`, `parameter "dry_run" must be 1 or 0, it is ""`},
		{"POST", thingsPath + "/undelivered/delete?out_of_order=1", `{"all":true}`, `unknown parameter "out_of_order"`},
		{"POST", thingsPath + "/undelivered/x/retry", ``, `"x" is not the id of an undelivered message`},
		{"POST", thingsPath + "/undelivered/7/retry", `{"all":true}`, `unknown member "all"; there are none`},
		{"DELETE", thingsPath + "/undelivered/-1", ``, `"-1" is not the id`},
		{"GET", thingsPath + "/undelivered/0", ``, `"0" is not the id`},
		{"GET", thingsPath + "/undelivered?key=", ``, `parameter "key" is empty`},
		{"GET", thingsPath + "/undelivered?status=dead", ``, `parameter "status" must be one of HALTED,`},
		{"GET", thingsPath + "/undelivered?limit=1001", ``, `from 1 to 1000`},
		{"GET", thingsPath + "/undelivered?type=T", ``, `unknown parameter "type"; the parameters are key, event_type, topic, status, after, limit`},
		{"GET", thingsPath + "/history?key=a", ``, `unknown parameter "key"; the parameters are after, limit`},
	} {
		r.do(tc.method, tc.path, tc.body).want(t, 400, CodeBadRequest, tc.want)
		require.Empty(t, r.called(), tc.path)
	}
	e := r.do("POST", thingsPath+"/reset", `{"from":1,"topic":"capture"}`).want(t, 400, CodeNotAnInput, `projection/things does not read topic "capture"; it reads events`)
	require.Equal(t, []any{"events"}, e["inputs"])
	for _, path := range []string{"/v1/consumers/projection/nope", "/v1/consumers/table/things", "/v1/consumers/projection/a%00b", "/v1/consumers/projection/%FF"} {
		r.ops.err = store.ErrNotFound
		r.do("DELETE", path, "").want(t, 404, CodeNotFound, "there is no consumer ")
		r.do("GET", path+"/undelivered", "").want(t, 404, CodeNotFound, "there is no consumer ")
		r.do("GET", path+"/history", "").want(t, 404, CodeNotFound, "there is no consumer ")
	}
	require.Equal(t, []string{"drop projection/nope by http"}, r.called())
}

// What the store refuses is told by its code, with what is there instead.
func TestRefusedActions(t *testing.T) {
	r := newOperated(t, Config{})
	for _, tc := range []struct {
		err          error
		status       int
		code, want   string
		member, kind any
	}{
		{&store.StateError{Consumer: things, Action: "reset", State: store.StateRunning}, 409, CodeWrongState, "reset cannot be done to projection/things: it is running: pause it first", "state", "running"},
		{&store.StateError{Consumer: things, Action: "resume", State: store.StateRunning}, 409, CodeWrongState, "it is running: there is nothing to resume", "action", "resume"},
		{&store.StateError{Consumer: things, Action: "reset", State: store.StateHalted}, 409, CodeWrongState, "it is halted: see its halt, mend that and resume it first", "state", "halted"},
		{&store.StateError{Consumer: things, Action: "pause", State: store.StateHalted}, 409, CodeWrongState, "it is halted: it stands still already", "state", "halted"},
		{&store.StateError{Consumer: things, Action: "rebuild", State: store.StatePaused}, 409, CodeWrongState, "it is paused: resume it first", "state", "paused"},
		{&store.StateError{Consumer: things, Action: "pause", State: store.StateRebuilding}, 409, CodeWrongState, "it is rebuilding: wait until it is rebuilt", "state", "rebuilding"},
		{&store.ChangedError{ID: 7, Why: "it is FAILED by now"}, 409, CodeChanged, "undelivered message 7: it is FAILED by now: look at what is there now and decide again", "id", 7.0},
		{&store.InUseError{Consumer: things, Instances: []string{"i-1", "i-2"}}, 409, CodeInUse, "projection/things is run by 2 hosts: take it out of the configuration first", "instances", []any{"i-1", "i-2"}},
		{&store.InvalidError{Code: CodeBadRequest, Index: -1, Reason: "position 9 is above the end of topic events, 3"}, 400, CodeBadRequest, "position 9 is above the end", nil, nil},
		{store.ErrNotFound, 404, CodeNotFound, "there is no consumer projection/things", nil, nil},
		{&store.TransientError{Op: "resume", OutcomeUnknown: true, Err: errors.New("secret")}, 503, CodeOutcomeUnknown, "resume: it is not known whether this was done: the history of projection/things tells", nil, nil},
		{&store.TransientError{Op: "resume", Hint: "free some space", Err: errors.New("secret")}, 503, CodeUnavailable, "free some space", nil, nil},
		{errors.New("secret"), 500, CodeInternal, "internal error", nil, nil},
	} {
		r.ops.err = fmt.Errorf("while at it: %w", tc.err)
		e := r.do("POST", thingsPath+"/resume", ``).want(t, tc.status, tc.code, tc.want)
		require.NotContains(t, e["message"], "secret")
		if tc.member != nil {
			require.Equal(t, tc.kind, e[tc.member.(string)])
		}
	}
}

// The role decides, and the token's name is on record, with who its holder says
// is at work.
func TestActors(t *testing.T) {
	r := newOperated(t, Config{Tokens: []Token{tokenOf("r", "viewer", "read", "append", "admin"), tokenOf("o", "ops", "operate"), tokenOf("l", strings.Repeat("ö", 200), "operate")}})
	for _, path := range []string{"/pause", "/resume", "/rebuild", "/reset", "/undelivered/retry", "/undelivered/delete", "/undelivered/1/retry"} {
		r.token = ""
		r.do("POST", thingsPath+path, `{}`).want(t, 401, CodeUnauthorized, "token")
		r.token = "r"
		r.do("POST", thingsPath+path, `{}`).want(t, 403, CodeForbidden, `token "viewer" lacks the role "operate"`)
	}
	r.do("DELETE", thingsPath, ``).want(t, 403, CodeForbidden, "operate")
	r.do("DELETE", thingsPath+"/undelivered/1", ``).want(t, 403, CodeForbidden, "operate")
	require.Equal(t, 200, r.do("GET", thingsPath+"/undelivered", "").status)
	require.Equal(t, 200, r.do("GET", thingsPath+"/history", "").status)
	require.Empty(t, r.called())

	r.token = "o"
	r.do("GET", thingsPath+"/undelivered", "").want(t, 403, CodeForbidden, "read")
	require.Equal(t, 200, r.do("POST", thingsPath+"/pause", "").status)
	for _, claim := range []string{"alice", `CORP\alice`, "alice@example.org", "jürgen", "a.b-c_d+e", strings.Repeat("x", 64)} {
		require.Equal(t, 200, r.do("POST", thingsPath+"/pause", "", ActorHeader, claim).status, claim)
		require.True(t, PlainActor(claim))
		require.Contains(t, r.ops.calls, "pause projection/things by ops ("+claim+")")
	}
	require.Equal(t, "pause projection/things by ops", r.called()[0])
	for _, claim := range []string{"", "a b", "a)", "root (x", `"`, "a/b", "a\u202eb", "\xff", strings.Repeat("x", 65)} {
		r.do("POST", thingsPath+"/pause", "", ActorHeader, claim).want(t, 400, CodeBadRequest, "header Projhost-Actor must be given once: 1 to 64 letters")
		require.False(t, PlainActor(claim))
	}
	require.Empty(t, r.called())
	r.token = "l"
	require.Equal(t, 200, r.do("POST", thingsPath+"/pause", "", ActorHeader, "bob").status)
	require.Equal(t, []string{"pause projection/things by " + strings.Repeat("ö", 128) + " (bob)"}, r.called())
}

// lines are three messages of key a, one of key b, and one whose keys nobody can
// tell.
func lines() []store.UndeliveredMessage {
	event := func(position int64, typ string) store.Event {
		return store.Event{Position: position, ID: store.ID{15: byte(position)}, AggregateType: "t", AggregateID: "1", Sequence: position, Type: typ, Codec: "json", CodecVersion: 1,
			Data: []byte(`{"n": 1,  "x":"<é>"}`), OccurredUS: 1_700_000_000_000_000}
	}
	a, b := store.PartitionOf("a", 16), store.PartitionOf("b", 16)
	return []store.UndeliveredMessage{
		{ID: 3, Topic: "events", Partition: a, Key: "a", Status: store.StatusDeadLetter, Code: 100, Reason: "trap", Attempts: 5, FirstUS: 1, LastUS: 2, Event: event(2, "Old")},
		{ID: 4, Topic: "events", Partition: a, Key: "a", Status: store.StatusFailed, Code: 4, Reason: "later", Attempts: 2, Passing: 1, Digest: "sha256:00",
			FirstUS: 1_700_000_000_000_001, LastUS: 1_700_000_000_000_002, RetryUS: 1_700_000_000_000_003, Event: event(5, "T")},
		{ID: 5, Topic: "events", Partition: a, Key: "a", Status: store.StatusWaiting, FirstUS: 1, LastUS: 2, Event: event(6, "T")},
		{ID: 6, Topic: "events", Partition: a, Key: "a", Status: store.StatusWaiting, FirstUS: 1, LastUS: 2, Event: event(7, "U")},
		{ID: 8, Topic: "events", Partition: b, Key: "b", Status: store.StatusFailed, Code: 2, Reason: "no", Attempts: 1, FirstUS: 1, LastUS: 2, Event: event(8, "T")},
		{ID: 9, Topic: "events", Partition: 0, Unresolved: true, Status: store.StatusHalted, Code: 103, Reason: "no key", Attempts: 1, FirstUS: 1, LastUS: 2, Event: event(9, "T")},
	}
}

func TestUndeliveredLists(t *testing.T) {
	r := newOperated(t, Config{})
	require.Equal(t, `{"items":[],"next":null}`, r.do("GET", thingsPath+"/undelivered", "").body)
	r.ops.rows = lines()
	ids := func(query string) (ids []int64, next string) {
		t.Helper()
		var page Page[Undelivered]
		a := r.do("GET", thingsPath+"/undelivered"+query, "")
		require.Equal(t, 200, a.status, a.body)
		require.NoError(t, json.Unmarshal([]byte(a.body), &page))
		for _, m := range page.Items {
			ids = append(ids, m.ID)
		}
		if page.Next != nil {
			next = *page.Next
		}
		return ids, next
	}
	for query, want := range map[string][]int64{
		"":                         {3, 4, 5, 6, 8, 9},
		"?key=a":                   {3, 4, 5, 6},
		"?key=a&event_type=T":      {4, 5},
		"?status=FAILED":           {4, 8},
		"?topic=capture":           nil,
		"?after=5":                 {6, 8, 9},
		"?limit=6":                 {3, 4, 5, 6, 8, 9},
		"?key=a&after=3&limit=100": {4, 5, 6},
	} {
		got, next := ids(query)
		require.Equal(t, want, got, query)
		require.Empty(t, next, query)
	}
	var got []int64
	for after := "0"; after != ""; {
		page, next := ids("?limit=2&after=" + after)
		got, after = append(got, page...), next
	}
	require.Equal(t, []int64{3, 4, 5, 6, 8, 9}, got)
	require.Equal(t, `{"items":[{"id":4,"consumer":"projection/things","topic":"events","position":5,"partition":`+partitionOf("a")+`,"key":"a","status":"FAILED","code":4,`+
		`"class":"the plugin asks to be tried later","reason":"later","attempts":2,"passing":1,"next_retry_at":"2023-11-14T22:13:20.000003Z","digest":"sha256:00",`+
		`"recorded_at":"2023-11-14T22:13:20.000001Z","changed_at":"2023-11-14T22:13:20.000002Z","event_id":"00000000-0000-0000-0000-000000000005","event_type":"T","aggregate_type":"t","aggregate_id":"1"}],"next":"4"}`,
		r.do("GET", thingsPath+"/undelivered?after=3&limit=1", "").body)
}

func TestOneUndelivered(t *testing.T) {
	r := newOperated(t, Config{})
	r.ops.rows = lines()
	one := func(id int) (m struct {
		Undelivered
		Event json.RawMessage
	}) {
		t.Helper()
		a := r.do("GET", fmt.Sprint(thingsPath, "/undelivered/", id), "")
		require.Equal(t, 200, a.status, a.body)
		require.NoError(t, rawjson.Check([]byte(a.body)))
		require.NoError(t, json.Unmarshal([]byte(a.body), &m))
		return m
	}
	m := one(4)
	require.Equal(t, int64(4), m.Head)
	require.Equal(t, int64(2), *m.Behind)
	// The payload is given byte for byte.
	require.Contains(t, r.do("GET", thingsPath+"/undelivered/4", "").body,
		`"behind":2,"event":{"position":5,"id":"00000000-0000-0000-0000-000000000005","aggregate_type":"t","aggregate_id":"1","sequence":5,"type":"T","revision":0,"data":{"n": 1,  "x":"<é>"},`)
	m = one(5)
	require.Equal(t, int64(4), m.Head)
	require.Equal(t, int64(1), *m.Behind)
	require.Nil(t, m.NextRetryAt)
	m = one(3) // a dead letter holds nothing up
	require.Zero(t, m.Head)
	require.Nil(t, m.Behind)
	m = one(8) // due as soon as it was recorded
	require.Equal(t, m.ChangedAt, *m.NextRetryAt)
	m = one(9)
	require.True(t, m.Unresolved)
	require.Nil(t, m.Event)
	r.do("GET", thingsPath+"/undelivered/7", "").want(t, 404, CodeNotFound, "projection/things has no undelivered message 7: it was applied or deleted")
	r.do("GET", "/v1/consumers/saga/two/undelivered/4", "").want(t, 404, CodeNotFound, "saga/two has no undelivered message 4")

	for i := range 3 * BehindMax {
		next := r.ops.rows[3]
		next.ID = int64(100 + i)
		r.ops.rows = append(r.ops.rows, next)
	}
	m = one(4)
	require.Equal(t, int64(4), m.Head)
	require.Equal(t, int64(BehindMax), *m.Behind, "it is not counted further")
	require.Equal(t, int64(BehindMax), *one(100 + BehindMax).Behind)
	require.Equal(t, int64(9), *one(3090).Behind)
}

func TestDecisions(t *testing.T) {
	r := newOperated(t, Config{})
	r.ops.decision = store.Decision{Count: 1, Refused: 1, Rows: []store.DecidedRow{
		{ID: 4, Topic: "events", Position: 5, Key: "a", EventType: "T", Was: store.StatusFailed},
		{ID: 5, Topic: "events", Position: 6, Key: "a", EventType: "T", Was: store.StatusWaiting, Refused: "message 4 is before it"}}}
	const rows = `"count":1,"refused":1,"rows":[{"id":4,"topic":"events","position":5,"key":"a","event_type":"T","was":"FAILED"},` +
		`{"id":5,"topic":"events","position":6,"key":"a","event_type":"T","was":"WAITING","refused":"message 4 is before it"}]}`
	for _, tc := range []struct{ path, body, call, answer string }{
		{"/undelivered/retry", `{"key":"a"}`, "retry projection/things {ID:0 Key:a EventType: Status: Topic:} {Actor:http DryRun:false OutOfOrder:false}", `{"dry_run":false,`},
		{"/undelivered/retry?dry_run=1&out_of_order=1", `{"event_type":"T","topic":"events","status":"DEAD_LETTER"}`,
			"retry projection/things {ID:0 Key: EventType:T Status:DEAD_LETTER Topic:events} {Actor:http DryRun:true OutOfOrder:true}", `{"dry_run":true,`},
		{"/undelivered/delete?dry_run=true", `{"all":true}`, "delete projection/things {ID:0 Key: EventType: Status: Topic:} {Actor:http DryRun:true OutOfOrder:false}", `{"dry_run":true,`},
		{"/undelivered/delete?dry_run=0", `{"all":true,"key":"a"}`, "delete projection/things {ID:0 Key:a EventType: Status: Topic:} {Actor:http DryRun:false OutOfOrder:false}", `{"dry_run":false,`},
	} {
		a := r.do("POST", thingsPath+tc.path, tc.body)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, tc.answer+rows, a.body)
		require.Equal(t, []string{tc.call}, r.called())
	}

	// Of one message, what is passed over is an error, unless it is only tried.
	r.ops.decision = store.Decision{Refused: 1, Rows: r.ops.decision.Rows[1:]}
	e := r.do("POST", thingsPath+"/undelivered/5/retry", "").want(t, 409, CodeRefused, "undelivered message 5 of projection/things is refused: message 4 is before it")
	require.Equal(t, "WAITING", e["status"])
	require.Equal(t, []string{"retry projection/things {ID:5 Key: EventType: Status: Topic:} {Actor:http DryRun:false OutOfOrder:false}"}, r.called())
	a := r.do("DELETE", thingsPath+"/undelivered/5?dry_run=1", "")
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `{"dry_run":true,"count":0,"refused":1,"rows":[{"id":5,`)
	require.Equal(t, []string{"delete projection/things {ID:5 Key: EventType: Status: Topic:} {Actor:http DryRun:true OutOfOrder:false}"}, r.called())
	r.ops.decision = store.Decision{}
	r.ops.err = fmt.Errorf("undelivered message 7: %w", store.ErrNotFound)
	r.do("POST", thingsPath+"/undelivered/7/retry?dry_run=1", "").want(t, 404, CodeNotFound, "projection/things has no undelivered message 7")
	require.Equal(t, `{"dry_run":false,"count":0,"refused":0,"rows":[]}`, r.do("POST", thingsPath+"/undelivered/retry", `{"key":"nobody"}`).body)
}

func TestHistory(t *testing.T) {
	r := newOperated(t, Config{})
	require.Equal(t, `{"items":[],"next":null}`, r.do("GET", thingsPath+"/history", "").body)
	r.ops.history = []store.HistoryEntry{
		{ID: 1, Build: 2, AtUS: 1_700_000_000_000_000, Actor: "host", Action: store.ActionSubscribe, Partition: -1, Detail: `{"digest": "sha256:00"}`},
		{ID: 3, Build: 2, AtUS: 1_700_000_000_000_001, Actor: "ops (alice)", Action: store.ActionSkip, Topic: "events", Partition: 0, Position: 9, Key: "a", Detail: "no JSON"},
	}
	require.Equal(t, `{"items":[{"id":1,"at":"2023-11-14T22:13:20.000000Z","actor":"host","action":"subscribe","build":2,"detail":{"digest":"sha256:00"}},`+
		`{"id":3,"at":"2023-11-14T22:13:20.000001Z","actor":"ops (alice)","action":"skip","build":2,"topic":"events","partition":0,"position":9,"key":"a","detail":"no JSON"}],"next":null}`,
		r.do("GET", thingsPath+"/history", "").body)
	require.Contains(t, r.do("GET", thingsPath+"/history?limit=1", "").body, `"action":"subscribe","build":2,"detail":{"digest":"sha256:00"}}],"next":"1"}`)
	require.Contains(t, r.do("GET", thingsPath+"/history?limit=1&after=1", "").body, `{"items":[{"id":3,`)
	// A dropped consumer's history is kept.
	r.ops.consumers = nil
	require.Equal(t, 200, r.do("GET", thingsPath+"/history", "").status)
}

func TestConsumersCarryCounts(t *testing.T) {
	r := newOperated(t, Config{})
	r.ops.rows = lines()
	r.runtime.status.Consumers = []Consumer{{Type: "projection", Name: "things"}, {Type: "saga", Name: "two"}}
	const counts = `"undelivered":{"DEAD_LETTER":1,"DEAD_LETTER_KEY":0,"FAILED":2,"HALTED":1,"WAITING":2}`
	const none = `"undelivered":{"DEAD_LETTER":0,"DEAD_LETTER_KEY":0,"FAILED":0,"HALTED":0,"WAITING":0}`
	for _, path := range []string{"/v1/consumers", "/v1/status"} {
		body := r.do("GET", path, "").body
		require.Contains(t, body, counts)
		require.Contains(t, body, none)
	}
	require.Contains(t, r.do("GET", thingsPath, "").body, counts)
	require.Contains(t, r.do("GET", "/v1/consumers/saga/two", "").body, none)
}

// A checkpoint passes a message that holds its key, so having reached a position
// is not having applied what the reader wrote.
func TestHeldKeys(t *testing.T) {
	p := newThings(t)
	get := func(path string) answer { t.Helper(); return p.do("GET", "/v1/read-models/things"+path, "") }
	require.Empty(t, get("/a?min_position=7").header.Get(HeldHeader))
	require.Empty(t, get("").header.Get(HeldHeader))
	p.ops.rows = lines() // a is held from position 5, b from 8, and 9 is of no key

	for _, path := range []string{"/a", "/a?min_position=4", "/a?min_position=7&stale=ok", "/a?table=parts"} {
		a := get(path)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "1", a.header.Get(HeldHeader), path)
	}
	a := get("/a?min_position=5")
	e := a.want(t, 503, CodeKeyHeld, `message 5 of events is not applied to key "a" and holds it (undelivered message 4, FAILED): later; stale=ok reads the row without it`)
	require.Equal(t, "1", a.header.Get(HeldHeader))
	require.Equal(t, "8", a.header.Get("Projhost-Position"))
	require.Equal(t, "a", e["key"])
	held := e["undelivered"].(map[string]any)
	require.Equal(t, "later", held["reason"])
	require.Equal(t, 4.0, held["id"])
	require.Equal(t, "2023-11-14T22:13:20.000003Z", held["next_retry_at"])

	// One that only waits for its turn, and one of a topic whose positions say nothing.
	p.ops.rows = slices.Delete(lines(), 0, 2)
	get("/a?min_position=7").want(t, 503, CodeKeyHeld, "(undelivered message 5, WAITING): its turn has not come;")
	p.ops.rows[0].Topic, p.ops.rows[0].Event.Position = "capture", 1_000_000
	get("/a?min_position=1").want(t, 503, CodeKeyHeld, "message 1000000 of capture is not applied")
	require.Equal(t, 404, get("/nobody?min_position=7").status)

	p.ops.rows = lines()
	for _, path := range []string{"", "?min_position=7", "?table=parts"} {
		a := get(path)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "5", a.header.Get(HeldHeader), path)
	}
}

// Nobody waits for a projection that is paused.
func TestPausedProjection(t *testing.T) {
	p := newThings(t)
	p.ops.state = store.StatePaused
	a := p.do("GET", "/v1/read-models/things/a", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, "paused", a.header.Get("Projhost-State"))
	check := func() {
		t.Helper()
		for _, path := range []string{"/a", ""} {
			require.Equal(t, 200, p.do("GET", "/v1/read-models/things"+path+"?min_position=8&wait=1m", "").status)
			a := p.do("GET", "/v1/read-models/things"+path+"?min_position=9&wait=1m", "")
			e := a.want(t, 503, CodeProjectionPaused, "projection/things is paused and has not applied events up to 9: it will when it is resumed; stale=ok reads what it has")
			require.Equal(t, "paused", a.header.Get("Projhost-State"))
			require.Equal(t, 9.0, e["position"])
			a = p.do("GET", "/v1/read-models/things"+path+"?min_position=9&wait=1m&stale=ok", "")
			require.Equal(t, 200, a.status, a.body)
			require.Equal(t, "8", a.header.Get("Projhost-Position"), "what was asked for is not reached")
		}
	}
	check() // where only the store knows it
	// And where this host runs it, whose wait knows of no pause.
	p.runtime.wait = func(ctx context.Context, position int64, _ int) error {
		if position <= 8 {
			return nil
		}
		<-ctx.Done()
		return &NotCaughtUpError{}
	}
	check()
}

// Whatever is sent as a selection is refused, or says what it selects.
func FuzzSelection(f *testing.F) {
	f.Add([]byte(`{"key":"a","event_type":"T","status":"FAILED","topic":"events","all":true}`))
	f.Add([]byte(`{"all":false}`))
	f.Add([]byte(`{"key":"","all":tru}`))
	f.Add([]byte(`{"key":"\ud800"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		sel, err := selected(body)
		if err != nil {
			if asAPI(err).code != CodeBadRequest {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		var want struct {
			Key, Topic, Status string
			EventType          string `json:"event_type"`
			All                bool
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("%q is no JSON: %v", body, err)
		}
		if sel == (store.Selection{}) != (want.Key+want.Topic+want.Status+want.EventType == "") || sel == (store.Selection{}) && !want.All || sel.ID != 0 {
			t.Fatalf("%q selects %+v", body, sel)
		}
	})
}
