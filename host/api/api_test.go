package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// runtime is a host for tests: it says what it is told to.
type runtime struct {
	mu      sync.Mutex
	status  Status
	reasons []string
	applied map[int]int64 // by partition
	looks   int
	halt    *store.Halt
	wait    func(ctx context.Context, position int64, partition int) error
}

func (r *runtime) Status(context.Context) (Status, error) { return r.status, nil }
func (r *runtime) Ready() (bool, []string)                { return len(r.reasons) == 0, r.reasons }

func (r *runtime) Applied(_ store.ConsumerID, _ string, partition int) (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.applied[partition]
	return p, ok
}

func (r *runtime) Halted(store.ConsumerID) *store.Halt { return r.halt }

func (r *runtime) Look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
}

func (r *runtime) WaitApplied(ctx context.Context, _ store.ConsumerID, _ string, position int64, partition int) error {
	if r.wait != nil {
		return r.wait(ctx, position, partition)
	}
	return ErrNotRun
}

type rig struct {
	t       testing.TB
	handler http.Handler
	store   *sqlite.Store
	ops     *operators
	runtime *runtime
	url     string
	token   string
}

func openStore(t testing.TB) *sqlite.Store {
	t.Helper()
	st, err := sqlite.Open(t.Context(), sqlite.Options{DSN: filepath.Join(t.TempDir(), "projhost.db"), TablePrefix: "ph_", Partitions: 16, MaxEvent: 64 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return st
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, store: openStore(t), runtime: &runtime{}}
	r.ops = &operators{Store: r.store}
	s := New(Deps{Store: r.ops, Runtime: r.runtime, Log: testLog(t), Version: "v0.0.0-test"}, cfg)
	r.handler = s.Handler()
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func testLog(t testing.TB) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: t.Output()})
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (r *rig) do(method, path, body string, headers ...string) answer {
	r.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, reader)
	require.NoError(r.t, err)
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return answer{resp.StatusCode, resp.Header, strings.TrimSuffix(string(b), "\n")}
}

// want checks status and code of an error, and that its text has a part.
func (a answer) want(t testing.TB, status int, code, part string) map[string]any {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	var envelope struct{ Error map[string]any }
	require.NoError(t, json.Unmarshal([]byte(a.body), &envelope), a.body)
	require.Equal(t, code, envelope.Error["code"], a.body)
	require.Contains(t, envelope.Error["message"], part)
	return envelope.Error
}

const (
	id1 = "00000000-0000-4000-8000-000000000001"
	id2 = "00000000-0000-4000-8000-000000000002"
	id3 = "00000000-0000-4000-8000-000000000003"
)

func TestAppendAndRead(t *testing.T) {
	r := newRig(t, Config{})
	body := `{"expected_version":"new","events":[
		{"id":"` + id1 + `","type":"opened","data": {"b":1,  "a":"\u00e4<&>"} ,"metadata":{"by":"x"},"occurred_at":"2026-01-02T03:04:05.678901+01:00"},
		{"id":"` + id2 + `","type":"deposited","revision":2,"data":[1.50]}]}`
	a := r.do("POST", "/v1/streams/account/A-1", body)
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, `{"version":2,"first_position":1,"last_position":2,"ids":["`+id1+`","`+id2+`"]}`, a.body)

	// The same again is the same answer, whatever version is expected.
	a = r.do("POST", "/v1/streams/account/A-1", body)
	require.Equal(t, 200, a.status)
	require.Equal(t, `{"version":2,"first_position":1,"last_position":2,"ids":["`+id1+`","`+id2+`"],"replayed":true}`, a.body)

	a = r.do("GET", "/v1/streams/account/A-1?limit=1", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, `{"items":[{"position":1,"id":"`+id1+`","aggregate_type":"account","aggregate_id":"A-1","sequence":1,"type":"opened","revision":0,`+
		`"data":{"b":1,  "a":"\u00e4<&>"},"metadata":{"by":"x"},"occurred_at":"2026-01-02T02:04:05.678901Z","partition":`+partitionOf("A-1")+`}],"next":2,"version":2}`, a.body)
	a = r.do("GET", "/v1/streams/account/A-1?from=2&limit=1", "")
	require.Contains(t, a.body, `"data":[1.50]`)
	require.Contains(t, a.body, `"next":null,"version":2}`)
	a = r.do("GET", "/v1/streams/account/nobody", "")
	require.Equal(t, `{"items":[],"next":null,"version":0}`, a.body)

	a = r.do("GET", "/v1/topics/events/messages?after=1", "")
	require.Contains(t, a.body, `{"items":[{"position":2,`)
	require.Contains(t, a.body, `"next":null}`)
	a = r.do("GET", "/v1/topics/events/messages?limit=1", "")
	require.Contains(t, a.body, `"next":1}`)
	a = r.do("GET", "/v1/topics", "")
	require.Equal(t, `{"items":[{"name":"events","kind":"events","start":0,"end":2,"high_water_mark":2,"lag":0,"messages":2}],"next":null}`, a.body)
	require.Equal(t, `{"name":"events","kind":"events","start":0,"end":2,"high_water_mark":2,"lag":0,"messages":2}`, r.do("GET", "/v1/topics/events", "").body)
}

func partitionOf(id string) string { return fmt.Sprint(store.PartitionOf(id, 16)) }

// Names with any character reach the stream they name.
func TestStreamNamesAreEscaped(t *testing.T) {
	r := newRig(t, Config{})
	for _, name := range []string{"a/b", "..", ".", "ä ö", "a%2Fb", "?x=1#y", "a+b", "+"} {
		escaped := strings.NewReplacer("%", "%25", "/", "%2F", " ", "%20", "?", "%3F", "#", "%23", "ä", "%C3%A4", "ö", "%C3%B6", ".", "%2E").Replace(name)
		a := r.do("POST", "/v1/streams/t/"+escaped, `{"expected_version":"new","events":[{"type":"T","data":1}]}`)
		require.Equal(t, 201, a.status, "%s: %s", name, a.body)
		v, err := r.store.StreamVersion(t.Context(), "t", name)
		require.NoError(t, err)
		require.Equal(t, int64(1), v, name)
	}
}

func TestAppendErrors(t *testing.T) {
	r := newRig(t, Config{MaxBody: 4096})
	const one = `{"expected_version":"any","events":[{"id":"` + id1 + `","type":"T","data":1}]}`
	require.Equal(t, 201, r.do("POST", "/v1/streams/t/1", one).status)

	for body, want := range map[string]string{
		``:                           `malformed JSON at byte 0: the text ends where a value is expected`,
		`[]`:                         `malformed JSON at byte 0: an object is expected, found an array`,
		`{"events":[{"type":"T",}]}`: `malformed JSON at byte 23: '}' where the name of a member is expected`,
		`{"expected_version":"any","events":[{"type":"T","data":1}]} x`: `malformed JSON at byte 60: 'x' after the object`,
		`{}`:                                               `members "expected_version", "events" are missing`,
		`{"expected_version":1}`:                           `member "events" is missing`,
		`{"expected_version":"any","events":[]}`:           `member "events" is empty`,
		`{"expected_version":"any","events":{}}`:           `member "events" must be an array, it is an object`,
		`{"expected_version":"any","events":[7]}`:          `events[0]: an object is expected, found a number`,
		`{"expected_version":"some","events":[]}`:          `member "expected_version" must be the number of events you believe the stream has, "new" or "any"`,
		`{"expected_version":-1,"events":[]}`:              `member "expected_version" must be`,
		`{"expected_version":1.5,"events":[]}`:             `member "expected_version" must be`,
		`{"version":1}`:                                    `unknown member "version"; the members are expected_version, events`,
		`{"expected_version":1,"expected_version":1}`:      `member "expected_version" is given twice`,
		`{"expected_version":"any","events":[{"data":1}]}`: `events[0]: member "type" is missing`,
		`{"expected_version":"any","events":[{"type":"T","data":1},{"type":"T","data":1,"sequence":1}]}`: `events[1]: unknown member "sequence"; the members are id, type,`,
		`{"expected_version":"any","events":[{"type":"T","data":1,"x\ud800":1}]}`:                        `events[0]: the name of a member has half of a surrogate pair`,
		`{"expected_version":"any","events":[{"type":"","data":1}]}`:                                     `type`,
		// What is not JSON is told so before all else that is wrong.
		`{"version":1,"events":[{"type":1,"type":2},{"x":01}]}`: `malformed JSON at byte 49: '1' where ',' or '}' is expected`,
		`{"expected_version":1.5}]`:                             `malformed JSON at byte 24: ']' after the value`,
		`{"expected_version":`:                                  `malformed JSON at byte 20: the text ends where a value is expected`,
		`{"events":`:                                            `malformed JSON at byte 10: the text ends where a value is expected`,
		`{"events":[{"type":"T","data":[1,}]}`:                  `malformed JSON at byte 33: '}' where a value is expected`,
		`{"x\ud800":1}`:                                         `malformed JSON at byte 1: the name of a member has half of a surrogate pair`,
		`{"events":[{"type":"T","data":` + strings.Repeat("[", 998) + strings.Repeat("]", 998) + `}],"expected_version":1}`: `malformed JSON at byte 1027: nested deeper than 1000`,
	} {
		e := r.do("POST", "/v1/streams/t/2", body).want(t, 400, CodeBadRequest, want)
		if strings.HasPrefix(want, "malformed JSON") {
			require.Contains(t, e, "offset", body)
		}
	}
	e := r.do("POST", "/v1/streams/t/1", `{"expected_version":"new","events":[{"type":"T","data":1}]}`).want(t, 409, CodeConcurrentWrite, "expected version 0, it is 1")
	require.Equal(t, "t", e["aggregate_type"])
	require.Equal(t, "1", e["aggregate_id"])
	require.Equal(t, 0.0, e["expected"])
	require.Equal(t, 1.0, e["actual"])

	e = r.do("POST", "/v1/streams/t/2", one).want(t, 409, CodeDuplicateEvent, id1)
	require.Equal(t, id1, e["id"])
	require.Equal(t, "1", e["aggregate_id"])
	require.Equal(t, 1.0, e["position"])
	r.do("POST", "/v1/streams/t/1", strings.Replace(one, `"data":1`, `"data":2`, 1)).want(t, 409, CodeDuplicateEvent, "differs")
	r.do("POST", "/v1/streams/t/3", `{"expected_version":"any","events":[{"id":"`+id2+`","type":"T","data":1},{"id":"`+id2+`","type":"T","data":1}]}`).
		want(t, 409, CodeDuplicateEvent, "given twice")

	big := `{"expected_version":"any","events":[{"type":"T","data":"` + strings.Repeat("x", 5000) + `"}]}`
	e = r.do("POST", "/v1/streams/t/2", big).want(t, 413, CodeTooLarge, "larger than max_body, 4096 bytes")
	require.Equal(t, 4096.0, e["max_body"])
	// Without a length in advance, too.
	req, err := http.NewRequest("POST", r.url+"/v1/streams/t/2", io.MultiReader(strings.NewReader(big)))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 413, resp.StatusCode)
	r.do("POST", "/v1/streams/t/2", one, "Content-Encoding", "gzip").want(t, 415, CodeUnsupportedMedia, "gzip")
	r.do("POST", "/v1/streams/t/2?force=1", one).want(t, 400, CodeBadRequest, `unknown parameter "force"; the parameters are none`)
	r.do("GET", "/v1/streams/t/2?limit=0", "").want(t, 400, CodeBadRequest, `parameter "limit" must be a whole number from 1 to 1000, it is "0"`)
	r.do("GET", "/v1/streams/t/2?limit=1&limit=2", "").want(t, 400, CodeBadRequest, `parameter "limit" is given more than once`)
	r.do("GET", "/v1/streams/t/2?from=x", "").want(t, 400, CodeBadRequest, `parameter "from" must be a whole number of at least 1, it is "x"`)
	r.do("GET", "/v1/streams/t/2?%zz", "").want(t, 400, CodeBadRequest, "malformed")
	r.do("POST", "/v1/streams/t/"+strings.Repeat("x", 256), one).want(t, 400, CodeBadRequest, "256 characters")

	big = `{"expected_version":"any","events":[{"type":"T","data":"` + strings.Repeat("x", 70_000) + `"}]}`
	newRig(t, Config{}).do("POST", "/v1/streams/t/2", big).want(t, 413, CodeTooLarge, "")
}

// Whatever body is taken is JSON, its payloads are views of it, and the same
// members say the same in a commit of several streams. Whatever is not JSON is
// told so, and where.
func FuzzDecodeBody(f *testing.F) {
	f.Add([]byte(` {"expected_version":"any", "events":[{"id":"` + id1 + `","type":"T","data":{"a" : [1, "x\u00e4"]},"metadata":{ }} ,{"type":"T","data_base64":"e30="}]} `))
	f.Add([]byte(`{"events":[{"type":"T","data":1},{"type":"T","type":"T"}],"expected_version":3}`))
	f.Add([]byte(`{"events":[{"type":"T","data":1},{"type":"T",}],"expected_version":3}`))
	f.Add([]byte(`{"events":[[[]]],"expected_version":"new","x\ud800":1}]`))
	f.Add([]byte(`{"events":[{"type":"T","data":null,"occurred_at":"2026-01-02T03:04:05+01:00","revision":1}],"expected_version":"\u006eew"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a store.StreamAppend
		err := decode(body, func(d *bodyDecoder) error { return d.stream(&a, false) })
		if asAPI(err).code == CodeInternal && err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if malformed := rawjson.Check(body); malformed != nil {
			if _, ok := err.(*rawjson.SyntaxError); !ok {
				t.Fatalf("%q: %v, but %v", body, err, malformed)
			}
			return
		}
		if err == nil {
			var want struct {
				Events []struct {
					Type string
					Data json.RawMessage
				}
			}
			if err := json.Unmarshal(body, &want); err != nil || len(want.Events) != len(a.Events) {
				t.Fatalf("%q: %d events, the library says %d: %v", body, len(a.Events), len(want.Events), err)
			}
			for i, e := range a.Events {
				if w := &want.Events[i]; e.Type != w.Type || w.Data != nil && !bytes.Equal(e.Data, w.Data) {
					t.Fatalf("%q: event %d is %q %q", body, i, e.Type, e.Data)
				}
			}
		}
		var c store.Commit
		inner := append(append([]byte(`{"streams":[`), body...), "]}"...)
		again := decode(inner, func(d *bodyDecoder) error { return d.commit(&c) })
		if err == nil && rawjson.Check(inner) == nil && (!strings.Contains(again.Error(), `"aggregate_type", "aggregate_id" are missing`) || !equalAppends(&c.Streams[0], &a)) {
			t.Fatalf("%q in a commit: %v", body, again)
		}
	})
}

func equalAppends(a, b *store.StreamAppend) bool {
	return a.ExpectedVersion == b.ExpectedVersion && fmt.Sprint(a.Events) == fmt.Sprint(b.Events)
}

func TestCommits(t *testing.T) {
	r := newRig(t, Config{})
	body := `{"streams":[
		{"aggregate_type":"a","aggregate_id":"1","expected_version":"new","events":[{"id":"` + id1 + `","type":"T","data":1}]},
		{"aggregate_type":"a","aggregate_id":"2","expected_version":0,"events":[{"id":"` + id2 + `","type":"T","data":1},{"id":"` + id3 + `","type":"T","data":2}]}],
		"snapshots":[{"aggregate_type":"a","aggregate_id":"2","sequence":2,"version":3,"data":{"n": 2}}]}`
	a := r.do("POST", "/v1/commits", body)
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, `{"streams":[{"aggregate_type":"a","aggregate_id":"1","version":1,"first_position":1,"last_position":1,"ids":["`+id1+`"]},`+
		`{"aggregate_type":"a","aggregate_id":"2","version":2,"first_position":2,"last_position":3,"ids":["`+id2+`","`+id3+`"]}]}`, a.body)
	require.Equal(t, 200, r.do("POST", "/v1/commits", body).status)
	require.Contains(t, r.do("GET", "/v1/streams/a/2/snapshot", "").body, `{"aggregate_type":"a","aggregate_id":"2","sequence":2,"version":3,"data":{"n": 2},"created_at":"20`)

	// All or none: the second stream is refused, so the first gets nothing.
	r.do("POST", "/v1/commits", `{"streams":[{"aggregate_type":"a","aggregate_id":"3","expected_version":"new","events":[{"type":"T","data":1}]},
		{"aggregate_type":"a","aggregate_id":"1","expected_version":"new","events":[{"type":"T","data":1}]}]}`).want(t, 409, CodeConcurrentWrite, "a/1")
	v, err := r.store.StreamVersion(t.Context(), "a", "3")
	require.NoError(t, err)
	require.Zero(t, v)

	twice := `{"aggregate_type":"a","aggregate_id":"4","expected_version":"any","events":[{"type":"T","data":1}]}`
	r.do("POST", "/v1/commits", `{"streams":[`+twice+`,`+twice+`]}`).want(t, 400, CodeDuplicateStream, "a/4")
	for body, want := range map[string]string{
		`{}`:              "the commit is empty",
		`{"outbox":[]}`:   "this version has no outbox",
		`{"strems":[]}`:   `unknown member "strems"; the members are streams, snapshots`,
		`{"streams":[1]}`: `streams[0]: must be an object, it is a number`,
		`{"streams":{}}`:  `member "streams" must be an array, it is an object`,
		`{"snapshots":[{"aggregate_type":"a","aggregate_type":"a"}]}`:                                            `snapshots[0]: member "aggregate_type" is given twice`,
		`{"streams":[{"aggregate_id":"1","aggregate_type":"\ud800"}]}`:                                           `streams[0]: member "aggregate_type" has half of a surrogate pair`,
		`{"streams":[{"x\ud800":1}]}`:                                                                            `streams[0]: the name of a member has half of a surrogate pair`,
		`{"streams":[{"events":[{}]}],"snapshots":[}`:                                                            `malformed JSON at byte 42: '}' where a value is expected`,
		`{"streams":[{"aggregate_type":"a","aggregate_id":1}]}`:                                                  `streams[0]: member "aggregate_id" must be a string`,
		`{"streams":[{"aggregate_type":"a","expected_version":"any","events":[{"type":"T","data":1}]}]}`:         `streams[0]: member "aggregate_id" is missing`,
		`{"streams":[{"aggregate_type":"a","aggregate_id":"1","expected_version":"any","events":[{"type":7}]}]}`: `streams[0]: events[0]: member "type" must be a string`,
		`{"snapshots":[{"aggregate_type":"a","aggregate_id":"1","sequence":0,"data":1}]}`:                        `snapshots[0]: member "sequence" must be at least 1`,
	} {
		r.do("POST", "/v1/commits", body).want(t, 400, CodeBadRequest, want)
	}
}

func TestSnapshots(t *testing.T) {
	r := newRig(t, Config{})
	r.do("GET", "/v1/streams/a/1/snapshot", "").want(t, 404, CodeNoSnapshot, "no snapshot")
	a := r.do("PUT", "/v1/streams/a/1/snapshot", `{"sequence":1,"data_base64":"AQID","codec":"cbor","codec_version":2}`)
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, `{"sequence":1,"version":1}`, a.body)
	r.do("GET", "/v1/streams/a/1/snapshot", "").want(t, 404, CodeNoSnapshot, "ahead")
	require.Equal(t, 201, r.do("POST", "/v1/streams/a/1", `{"expected_version":"new","events":[{"type":"T","data":1}]}`).status)
	require.Contains(t, r.do("GET", "/v1/streams/a/1/snapshot", "").body, `"sequence":1,"version":1,"codec":"cbor","codec_version":2,"data_base64":"AQID","created_at":`)
	r.do("PUT", "/v1/streams/a/1/snapshot", `{"sequence":1,"data":1,"data_base64":""}`).want(t, 400, CodeBadRequest, `both given`)
	r.do("PUT", "/v1/streams/a/1/snapshot", `{"sequence":1,"data":1,"x":1}`).want(t, 400, CodeBadRequest, `unknown member "x"; the members are sequence,`)
	r.do("PUT", "/v1/streams/a/1/snapshot", `{"sequence":1}`).want(t, 400, CodeBadRequest, `member "data" is missing`)
}

func TestImportLines(t *testing.T) {
	r := newRig(t, Config{})
	line := func(id, stream, data string) string {
		return `{"id":"` + id + `","aggregate_type":"a","aggregate_id":"` + stream + `","type":"T","data":` + data + "}\n"
	}
	a := r.do("POST", "/v1/import", line(id1, "1", "1")+"\n"+line(id2, "2", "{ }"))
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, `{"stored":2,"already_there":0,"last_position":2}`, a.body)
	a = r.do("POST", "/v1/import", line(id3, "1", "3")+line(id2, "2", "{ }"))
	require.Contains(t, a.body, `{"stored":1,"already_there":1,`)
	e := r.do("POST", "/v1/import", line("00000000-0000-4000-8000-000000000009", "1", "3")+line(id2, "2", "{}")).want(t, 409, CodeDuplicateEvent, "data")
	require.Equal(t, 1.0, e["index"])
	topic, err := r.store.Topic(t.Context(), "events")
	require.NoError(t, err)
	require.Equal(t, int64(3), topic.End, "nothing of a refused batch is stored")

	e = r.do("POST", "/v1/import", line(id3, "1", "3")+"{\n").want(t, 400, CodeBadRequest, "line 2: malformed JSON at byte 1")
	require.Equal(t, 1.0, e["index"])
	require.Equal(t, float64(len(line(id3, "1", "3"))+1), e["offset"])
	r.do("POST", "/v1/import", `{"aggregate_type":"a","aggregate_id":"1","type":"T","data":1}`).want(t, 400, CodeBadRequest, `line 1: member "id" is missing`)
	r.do("POST", "/v1/import", "\n").want(t, 400, CodeBadRequest, "no lines")
}

func TestNothingThere(t *testing.T) {
	r := newRig(t, Config{})
	r.do("GET", "/v1/nothing", "").want(t, 404, CodeNotFound, "there is nothing at /v1/nothing")
	a := r.do("DELETE", "/v1/topics", "")
	a.want(t, 405, CodeMethodNotAllowed, "DELETE is not possible here, only GET, HEAD")
	require.Equal(t, "GET, HEAD", a.header.Get("Allow"))
	r.do("GET", "/v1/topics/nope/messages", "").want(t, 404, CodeNotFound, `there is no topic "nope"`)
	r.do("GET", "/v1/topics/nope", "").want(t, 404, CodeNotFound, `there is no topic "nope"`)
	r.do("GET", "/v1/topics/events/messages", "", "Accept", "text/event-stream").want(t, 406, CodeNotAcceptable, "no live streams")
	r.do("GET", "/v1/consumers/projection/x", "").want(t, 404, CodeNotFound, "no consumer projection/x")
	r.do("GET", "/v1/plugins/x", "").want(t, 404, CodeNotFound, `no plugin "x"`)
	require.Equal(t, `{"items":[],"next":null}`, r.do("GET", "/v1/consumers", "").body)
	require.Equal(t, `{"items":[],"next":null}`, r.do("GET", "/v1/plugins", "").body)
}

func TestHealth(t *testing.T) {
	r := newRig(t, Config{})
	a := r.do("GET", "/healthz", "")
	require.Equal(t, `{"service":"projhost","status":"ok"}`, a.body)
	require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.NotEmpty(t, a.header.Get("X-Request-Id"))
	require.Equal(t, "abc-1", r.do("GET", "/healthz", "", "X-Request-Id", "abc-1").header.Get("X-Request-Id"))
	require.NotEqual(t, "a b", r.do("GET", "/healthz", "", "X-Request-Id", "a b").header.Get("X-Request-Id"))

	require.Equal(t, `{"status":"ready"}`, r.do("GET", "/readyz", "").body)
	r.runtime.reasons = []string{"starting"}
	e := r.do("GET", "/readyz", "").want(t, 503, CodeNotReady, "not ready")
	require.Equal(t, []any{"starting"}, e["reasons"])
	a = r.do("GET", "/metrics", "")
	require.Equal(t, 200, a.status)
	require.Contains(t, a.body, `projhost_http_requests_total{code="200",route="GET /healthz"} 3`)
	require.Contains(t, r.do("GET", "/", "").body, `"service":"projhost"`)
	require.Contains(t, r.do("GET", "/v1/status", "").body, `"store":{"driver":"sqlite",`)
	require.Equal(t, 200, r.do("HEAD", "/healthz", "").status)
}

// unsound is a database in which somebody dropped a column.
type unsound struct{ Store }

const dropped = `table "ph_events", column "codec": missing`

func (unsound) Check(context.Context) error { return errors.New(dropped) }

func (unsound) ReadStream(context.Context, string, string, int64, int) ([]store.Event, error) {
	return nil, &store.TransientError{Op: "read stream", Hint: "a column is missing: mend it", Err: errors.New("SQLSTATE 42703")}
}

// Whoever asks for the status is told what a prober is told, and who asks for
// more than can be had, what to do about it.
func TestUnsoundDatabaseIsTold(t *testing.T) {
	r := newRig(t, Config{})
	r.handler = New(Deps{Store: unsound{r.store}, Runtime: r.runtime, Log: testLog(t)}, Config{}).Handler()
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	r.url = server.URL
	r.runtime.reasons = []string{"projection/a is starting"}
	e := r.do("GET", "/readyz", "").want(t, 503, CodeNotReady, "not ready")
	require.Equal(t, []any{"projection/a is starting", "store: " + dropped}, e["reasons"])
	a := r.do("GET", "/v1/status", "")
	require.Equal(t, 200, a.status)
	var st Status
	require.NoError(t, json.Unmarshal([]byte(a.body), &st))
	require.False(t, st.Ready)
	require.Equal(t, []string{"projection/a is starting", "store: " + dropped}, st.Reasons)

	e = r.do("GET", "/v1/streams/a/1", "").want(t, 503, CodeUnavailable, "right now")
	require.Equal(t, "read stream: the database cannot be used right now: a column is missing: mend it", e["message"])
}

// standing is a database whose mark stands still.
type standing struct {
	Store
	topic store.Topic
}

func (s standing) ListTopics(context.Context) ([]store.Topic, error) {
	return []store.Topic{s.topic}, nil
}

// A mark that stands still while events wait makes the host not ready, which says
// why; one that an open transaction holds has half a minute.
func TestMarkThatStandsStillIsNotReady(t *testing.T) {
	r := newRig(t, Config{})
	ago := func(d time.Duration) *store.MarkHolder {
		return &store.MarkHolder{PID: 7, SinceUS: time.Now().Add(-d).UnixMicro()}
	}
	for _, c := range []struct {
		topic store.Topic
		want  string
	}{
		{store.Topic{Name: "events", End: 9, HighWaterMark: 9, Reason: "the detector is away"}, ""},
		{store.Topic{Name: "events", End: 9, HighWaterMark: 7}, ""},
		{store.Topic{Name: "events", End: 9, HighWaterMark: 7, Holder: ago(10 * time.Second)}, ""},
		{store.Topic{Name: "events", End: 9, HighWaterMark: 7, Holder: ago(time.Minute)}, "stands still at 7 though events wait up to 9: an open transaction has held it since "},
		{store.Topic{Name: "events", End: 9, HighWaterMark: 7, Reason: "the detector is away"}, "stands still at 7 though events wait up to 9: the detector is away"},
	} {
		server := httptest.NewServer(New(Deps{Store: standing{r.store, c.topic}, Runtime: r.runtime, Log: testLog(t)}, Config{}).Handler())
		r.url = server.URL
		a := r.do("GET", "/readyz", "")
		if c.want == "" {
			require.Equal(t, 200, a.status, "%+v: %s", c.topic, a.body)
		} else {
			a.want(t, 503, CodeNotReady, "not ready")
			require.Contains(t, a.body, c.want)
		}
		server.Close()
	}
}

func TestTokensAndRoles(t *testing.T) {
	token := func(name, secret string, roles ...string) Token {
		return Token{Name: name, SHA256: sha256.Sum256([]byte(secret)), Roles: roles}
	}
	r := newRig(t, Config{Tokens: []Token{token("app", "s3cret", "append"), token("ops", "0ps", "read")}})
	a := r.do("GET", "/v1/topics", "")
	a.want(t, 401, CodeUnauthorized, "token")
	require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
	r.token = "wrong"
	r.do("GET", "/v1/topics", "").want(t, 401, CodeUnauthorized, "token")
	r.do("GET", "/v1/topics", "", "Authorization", "Basic s3cret").want(t, 401, CodeUnauthorized, "token")
	r.token = "s3cret"
	e := r.do("GET", "/v1/topics", "").want(t, 403, CodeForbidden, `token "app" lacks the role "read"`)
	require.Equal(t, "read", e["role"])
	require.Equal(t, 201, r.do("POST", "/v1/streams/a/1", `{"expected_version":"any","events":[{"type":"T","data":1}]}`).status)
	r.token = "0ps"
	require.Equal(t, 200, r.do("GET", "/v1/topics", "").status)
	// Refused before the body is looked at.
	r.do("POST", "/v1/streams/a/1", `{`).want(t, 403, CodeForbidden, "append")
	r.token = ""
	for _, open := range []string{"/healthz", "/readyz", "/metrics"} {
		require.Equal(t, 200, r.do("GET", open, "").status, open)
	}
}

// A page in the user's browser cannot use a listener that trusts the machine.
func TestWebPagesAreRefused(t *testing.T) {
	r := newRig(t, Config{})
	const body = `{"expected_version":"any","events":[{"type":"T","data":1}]}`
	r.do("POST", "/v1/streams/a/1", body, "Origin", "https://evil.example").want(t, 403, CodeForbidden, "another site")
	r.do("POST", "/v1/streams/a/1", body, "Sec-Fetch-Site", "cross-site").want(t, 403, CodeForbidden, "another site")
	r.do("GET", "/v1/topics", "", "Host", "evil.example:8080").want(t, 403, CodeForbidden, "evil.example")
	require.Equal(t, 200, r.do("GET", "/v1/topics", "", "Host", "localhost:1").status)
	require.Equal(t, 200, r.do("GET", "/v1/topics", "", "Host", "[::1]:1").status)
}

// blocking is a host whose status takes as long as a test wants.
type blocking struct {
	*runtime
	entered chan struct{}
	release chan struct{}
}

func (b *blocking) Status(ctx context.Context) (Status, error) {
	b.entered <- struct{}{}
	<-b.release
	return b.runtime.Status(ctx)
}

func newBlocking() *blocking {
	return &blocking{runtime: &runtime{}, entered: make(chan struct{}), release: make(chan struct{})}
}

// later makes a request and gives its status when it is answered.
func later(t *testing.T, url string) <-chan int {
	status := make(chan int, 1)
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	require.NoError(t, err)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	return status
}

func TestTooManyAtOnce(t *testing.T) {
	b := newBlocking()
	server := httptest.NewServer(New(Deps{Store: openStore(t), Runtime: b, Log: testLog(t)}, Config{InFlight: 1}).Handler())
	defer server.Close()
	first := later(t, server.URL+"/v1/consumers")
	<-b.entered
	r := &rig{t: t, url: server.URL}
	a := r.do("GET", "/v1/topics", "")
	a.want(t, 503, CodeOverloaded, "too many requests")
	require.Equal(t, "1", a.header.Get("Retry-After"))
	// Readers that wait for their writes do not make the host look dead.
	require.Equal(t, 200, r.do("GET", "/healthz", "").status)
	require.Equal(t, 200, r.do("GET", "/metrics", "").status)
	close(b.release)
	require.Equal(t, 200, <-first)
	require.Equal(t, 200, r.do("GET", "/v1/topics", "").status)
}

// A request under way is answered although the server is told to stop.
func TestShutdownLetsRequestsFinish(t *testing.T) {
	b := newBlocking()
	s := New(Deps{Store: openStore(t), Runtime: b, Log: testLog(t)}, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	first := later(t, "http://"+l.Addr().String()+"/v1/consumers")
	<-b.entered
	cancel()
	close(b.release)
	require.Equal(t, 200, <-first)
	require.NoError(t, <-served)
}

// A request that never ends does not keep the server from stopping.
func TestShutdownHasALimit(t *testing.T) {
	b := newBlocking()
	s := New(Deps{Store: openStore(t), Runtime: b, Log: testLog(t)}, Config{ShutdownTimeout: time.Millisecond})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	gone := make(chan error, 1)
	go func() {
		_, err := http.Get("http://" + l.Addr().String() + "/v1/consumers")
		gone <- err
	}()
	<-b.entered
	cancel()
	require.NoError(t, <-served)
	require.Error(t, <-gone)
	close(b.release)
}

func TestPanicIsAnInternalError(t *testing.T) {
	var log bytes.Buffer
	s := New(Deps{Store: openStore(t), Runtime: panicking{}, Log: hclog.New(&hclog.LoggerOptions{Output: &log})}, Config{})
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	r := &rig{t: t, url: server.URL}
	a := r.do("GET", "/v1/consumers", "")
	a.want(t, 500, CodeInternal, "internal error")
	require.NotContains(t, a.body, "oh no")
	require.Contains(t, log.String(), "oh no")
	require.Contains(t, log.String(), a.header.Get("X-Request-Id"))
}

type panicking struct{ Runtime }

func (panicking) Status(context.Context) (Status, error) { panic("oh no") }

// Any body is answered with JSON: stored, or an error that is no 500.
func FuzzAppendBody(f *testing.F) {
	f.Add([]byte(`{"expected_version":"any","events":[{"id":"`+id1+`","type":"T","data":{"a":1}}]}`), "/v1/streams/a/1")
	f.Add([]byte(`{"streams":[{"aggregate_type":"a","aggregate_id":"1","expected_version":0,"events":[]}],"snapshots":[{"sequence":1}]}`), "/v1/commits")
	f.Add([]byte(`{"id":"`+id2+`","aggregate_type":"a","aggregate_id":"1","type":"T","data":1}`+"\n"), "/v1/import")
	st, err := sqlite.Open(context.Background(), sqlite.Options{DSN: filepath.Join(f.TempDir(), "projhost.db"), TablePrefix: "ph_"})
	require.NoError(f, err)
	f.Cleanup(func() { _ = st.Close() })
	h := New(Deps{Store: st, Runtime: &runtime{}}, Config{}).Handler()
	f.Fuzz(func(t *testing.T, body []byte, path string) {
		switch path {
		case "/v1/streams/a/1", "/v1/commits", "/v1/import":
		default:
			path = "/v1/commits"
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("POST", path, bytes.NewReader(body)))
		if rec.Code >= 500 || !json.Valid(rec.Body.Bytes()) {
			t.Fatalf("%q: %d %s", body, rec.Code, rec.Body)
		}
	})
}
