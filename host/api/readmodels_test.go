package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// projection is a recorded projection whose rows a test writes.
type projection struct {
	*rig
	consumer store.Consumer
	leases   []store.Lease
}

var thingTables = []abi.Table{
	{Name: "things", Columns: []abi.Column{
		{Name: "n", Kind: abi.ColumnInt, Index: true}, {Name: "price", Kind: abi.ColumnDecimal, Precision: 10, Scale: 2, Index: true},
		{Name: "label", Kind: abi.ColumnText, Max: 50, Index: true}, {Name: "ok", Kind: abi.ColumnBool}, {Name: "ratio", Kind: abi.ColumnFloat},
		{Name: "at", Kind: abi.ColumnTimestamp}, {Name: "ref", Kind: abi.ColumnUUID}, {Name: "raw", Kind: abi.ColumnBytes}, {Name: "doc", Kind: abi.ColumnJSON},
	}},
	{Name: "parts", Parent: "things", Columns: []abi.Column{{Name: "count", Kind: abi.ColumnInt}}},
}

func subscribe(r *rig, name string, topics ...string) *projection {
	t := r.t
	t.Helper()
	decl := make([]abi.Table, len(thingTables))
	copy(decl, thingTables)
	if name != "things" {
		decl = []abi.Table{{Name: name, Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}}}
	}
	tables, err := readmodel.NewTables(decl)
	require.NoError(t, err)
	c, err := r.store.Subscribe(t.Context(), store.Declaration{ID: store.ConsumerID{Type: "projection", Name: name}, Topics: topics, Tables: tables,
		Fingerprint: store.Fingerprint{Version: 1, Inputs: "a", Keys: "a", Tables: "a", Logic: "a"}, Plugin: "p", Digest: "sha256:00"})
	require.NoError(t, err)
	p := &projection{rig: r, consumer: c}
	instance := "i-" + name
	require.NoError(t, r.store.Join(t.Context(), store.Instance{ID: instance, HostName: "h"}))
	partitions := make([]int, 16)
	for i := range partitions {
		partitions[i] = i
	}
	p.leases, _, err = r.store.Claim(t.Context(), instance, c.Build, partitions)
	require.NoError(t, err)
	return p
}

// apply writes rows of a table at a position and moves every checkpoint there.
func (p *projection) apply(table int, from, to int64, writes ...readmodel.Write) {
	p.t.Helper()
	b := &store.Batch{Consumer: p.consumer.ID, Build: p.consumer.Build, Epoch: p.consumer.Epoch, InstanceID: "i-" + p.consumer.ID.Name,
		Incarnation: p.store.Incarnation(), Leases: p.leases, Tables: []store.TableWrites{{Table: p.consumer.Tables[table], Writes: writes}}}
	for _, l := range p.leases {
		b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: p.consumer.Topics[0], Partition: l.Partition, From: from, To: to})
	}
	require.NoError(p.t, p.store.Apply(p.t.Context(), b))
}

func (p *projection) row(table int, key, child string, position int64, values map[string]abi.Value) readmodel.Write {
	p.t.Helper()
	tbl := p.consumer.Tables[table].Table
	var cols []abi.ColumnValue
	for name, v := range values {
		i, ok := tbl.ColumnByName(name)
		require.True(p.t, ok)
		cols = append(cols, abi.ColumnValue{Column: uint16(i), Value: v})
	}
	row, err := tbl.Upsert(cols)
	require.NoError(p.t, err)
	return readmodel.Write{Key: readmodel.Key{Key: key, Child: child}, Row: row, Position: position, UpdatedUS: 1_700_000_000_000_000 + position}
}

func text(s string) abi.Value  { return abi.Value{Tag: abi.TagText, B: []byte(s)} }
func number(i int64) abi.Value { return abi.Value{Tag: abi.TagInt, I: i} }

func newThings(t testing.TB) *projection {
	t.Helper()
	p := subscribe(newRig(t, Config{}), "things", store.EventsTopic)
	p.apply(0, 0, 7,
		p.row(0, "a", "", 5, map[string]abi.Value{
			"n": number(9007199254740993), "price": {Tag: abi.TagDecimal, B: []byte("1.5")}, "label": text("x<&>\"ä"), "ok": {Tag: abi.TagTrue}, "ratio": {Tag: abi.TagFloat, F: 0.5},
			"at": {Tag: abi.TagTimestamp, I: 1_700_000_000_123_456}, "ref": {Tag: abi.TagUUID, B: make([]byte, 16)}, "raw": {Tag: abi.TagBytes, B: []byte{1, 2, 3}}, "doc": {Tag: abi.TagJSON, B: []byte(`{"b":1, "a":[1.0]}`)}}),
		p.row(0, "b", "", 6, map[string]abi.Value{"n": number(2), "label": text("y")}),
		p.row(0, "c/d é", "", 7, map[string]abi.Value{"n": number(2), "price": {Tag: abi.TagDecimal, B: []byte("10")}}))
	p.apply(1, 7, 8, p.row(1, "a", "c1", 8, map[string]abi.Value{"count": number(1)}), p.row(1, "a", "c2", 8, map[string]abi.Value{"count": number(2)}),
		p.row(1, "a", "c3", 8, map[string]abi.Value{"count": number(3)}), p.row(1, "b", "c1", 8, map[string]abi.Value{"count": number(4)}))
	return p
}

const rowA = `{"key":"a","row":{"n":9007199254740993,"price":"1.50","label":"x<&>\"ä","ok":true,"ratio":0.5,"at":"2023-11-14T22:13:20.123456Z",` +
	`"ref":"00000000-0000-0000-0000-000000000000","raw":"AQID","doc":{"b":1, "a":[1.0]}},"position":5,"updated_at":"2023-11-14T22:13:20.000005Z"`

func TestOneRow(t *testing.T) {
	p := newThings(t)
	a := p.do("GET", "/v1/read-models/things/a?limit=2", "")
	require.Equal(t, 200, a.status, a.body)
	child := func(key string, n string) string {
		return `{"child":"` + key + `","row":{"count":` + n + `},"position":8,"updated_at":"2023-11-14T22:13:20.000008Z"}`
	}
	require.Equal(t, rowA+`,"children":{"parts":[`+child("c1", "1")+`,`+child("c2", "2")+`]},"children_next":{"parts":"c2"}}`, a.body)
	require.Equal(t, "8", a.header.Get("Projhost-Position"))
	require.Equal(t, "running", a.header.Get("Projhost-State"))
	require.True(t, json.Valid([]byte(a.body)))

	a = p.do("GET", "/v1/read-models/things/c%2Fd%20%C3%A9", "")
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `{"key":"c/d é","row":{"n":2,"price":"10.00","label":null,`)
	require.Contains(t, a.body, `"children":{"parts":[]},"children_next":{"parts":null}}`)

	require.Equal(t, `{"items":[`+child("c3", "3")+`],"next":null}`, p.do("GET", "/v1/read-models/things/a?table=parts&after=c2", "").body)
	require.Equal(t, `{"items":[`+child("c1", "1")+`],"next":"c1"}`, p.do("GET", "/v1/read-models/things/a?table=parts&limit=1", "").body)
	require.Equal(t, `{"items":[],"next":null}`, p.do("GET", "/v1/read-models/things/nobody?table=parts", "").body)

	p.do("GET", "/v1/read-models/things/nobody", "").want(t, 404, CodeNotFound, `projection/things has no row "nobody" in table things`)
	p.do("GET", "/v1/read-models/nope/a", "").want(t, 404, CodeNotFound, `there is no projection "nope"`)
	p.do("GET", "/v1/read-models/things/a?table=nope", "").want(t, 404, CodeNotFound, `no table "nope"; it has things, parts`)
	p.do("GET", "/v1/read-models/things/a?after=x", "").want(t, 400, CodeBadRequest, `parameter "after" needs "table"`)
	p.do("GET", "/v1/read-models/things/a?where.n=1", "").want(t, 400, CodeBadRequest, `unknown parameter "where.n"; the parameters are min_position, wait, stale, table, after, limit`)
	p.runtime.reasons = []string{"starting"}
	p.do("GET", "/v1/read-models/nope/a", "").want(t, 503, CodeNotReady, `no projection "nope" yet`)
}

func TestListOfRows(t *testing.T) {
	p := newThings(t)
	keys := func(query string) (keys []string, next string) {
		t.Helper()
		a := p.do("GET", "/v1/read-models/things"+query, "")
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "8", a.header.Get("Projhost-Position"))
		var page struct {
			Items []struct{ Key, Child string }
			Next  *string
		}
		require.NoError(t, json.Unmarshal([]byte(a.body), &page))
		for _, i := range page.Items {
			keys = append(keys, i.Key+i.Child)
		}
		if page.Next != nil {
			next = *page.Next
		}
		return keys, next
	}
	require.Contains(t, p.do("GET", "/v1/read-models/things?limit=1", "").body, `{"items":[`+rowA+`}],"next":"`)
	for query, want := range map[string][]string{
		"":                               {"a", "b", "c/d é"},
		"?order=key:desc":                {"c/d é", "b", "a"},
		"?order=n":                       {"b", "c/d é", "a"},
		"?order=n:desc":                  {"a", "c/d é", "b"},
		"?order=price:desc":              {"c/d é", "a", "b"},
		"?order=price:asc":               {"a", "c/d é", "b"},
		"?where.n=2":                     {"b", "c/d é"},
		"?where.n=2&where.label=y":       {"b"},
		"?where.n=2&where.n=3":           nil,
		"?where.price=1.5":               {"a"},
		"?where_null=label":              {"c/d é"},
		"?after_key=a":                   {"b", "c/d é"},
		"?after_key=b&order=key:desc":    {"a"},
		"?table=parts":                   {"ac1", "ac2", "ac3", "bc1"},
		"?table=parts&where.key=b":       {"bc1"},
		"?table=THINGS&where.label=x<&>": nil,
	} {
		query = strings.NewReplacer("<&>", url.QueryEscape("<&>")).Replace(query)
		got, next := keys(query)
		require.Equal(t, want, got, query)
		require.Empty(t, next)
	}
	// A page at a time, in every order, gives every row once.
	for _, order := range []string{"key", "n", "n:desc", "price", "price:desc", "label:desc"} {
		want, _ := keys("?order=" + order)
		var got []string
		for after := ""; ; {
			page, next := keys("?limit=1&order=" + order + "&after=" + after)
			got = append(got, page...)
			if after = next; after == "" {
				break
			}
		}
		require.Equal(t, want, got, order)
	}

	e := p.do("GET", "/v1/read-models/things?where.ratio=1", "").want(t, 400, CodeUnknownField, `only by key, n, price, label`)
	require.Equal(t, "ratio", e["field"])
	require.Equal(t, []any{"key", "n", "price", "label"}, e["allowed"])
	p.do("GET", "/v1/read-models/things?order=doc", "").want(t, 400, CodeUnknownField, "doc")
	p.do("GET", "/v1/read-models/things?order=n:up", "").want(t, 400, CodeBadRequest, `parameter "order" must be FIELD, FIELD:asc or FIELD:desc`)
	p.do("GET", "/v1/read-models/things?where.n=two", "").want(t, 400, CodeBadRequest, `column "n"`)
	p.do("GET", "/v1/read-models/things?after=x", "").want(t, 400, CodeBadRequest, "malformed")
	p.do("GET", "/v1/read-models/things?limit=1001", "").want(t, 400, CodeBadRequest, "from 1 to 1000")
	p.do("GET", "/v1/read-models/things?wehre.n=1", "").want(t, 400, CodeBadRequest, `unknown parameter "wehre.n"; the parameters are min_position, wait, stale, table, limit, after, after_key, order, where_null, where.FIELD`)
	p.do("GET", "/v1/read-models/nope", "").want(t, 404, CodeNotFound, `there is no projection "nope"`)

	_, next := keys("?limit=1&order=n")
	p.do("GET", "/v1/read-models/things?limit=1&order=price&after="+next, "").want(t, 400, CodeBadRequest, "another table, order or direction")
}

func TestFreshness(t *testing.T) {
	p := newThings(t)
	// A row written after the host learnt how far it is.
	p.runtime.applied = map[int]int64{AllPartitions: 20, store.PartitionOf("a", 16): 30}
	require.Equal(t, "30", p.do("GET", "/v1/read-models/things/a", "").header.Get("Projhost-Position"))
	require.Equal(t, "20", p.do("GET", "/v1/read-models/things", "").header.Get("Projhost-Position"))
	require.Equal(t, "8", p.do("GET", "/v1/read-models/things/b", "").header.Get("Projhost-Position"), "nothing is known but what is saved")

	type call struct {
		position  int64
		partition int
	}
	var calls []call
	p.runtime.wait = func(_ context.Context, position int64, partition int) error {
		calls = append(calls, call{position, partition})
		return nil
	}
	require.Equal(t, "40", p.do("GET", "/v1/read-models/things/a?min_position=40", "").header.Get("Projhost-Position"))
	require.Equal(t, "41", p.do("GET", "/v1/read-models/things?min_position=events:41&wait=1s", "").header.Get("Projhost-Position"))
	require.Equal(t, []call{{40, store.PartitionOf("a", 16)}, {41, AllPartitions}}, calls)

	p.runtime.wait = func(ctx context.Context, _ int64, partition int) error {
		<-ctx.Done()
		return &NotCaughtUpError{Lagging: []Lagging{{store.PartitionOf("a", 16), 30}}}
	}
	a := p.do("GET", "/v1/read-models/things/a?min_position=40&wait=1ms", "")
	e := a.want(t, 504, CodeNotCaughtUp, "projection/things has not applied events up to 40 within 1ms")
	require.Equal(t, []any{map[string]any{"partition": float64(store.PartitionOf("a", 16)), "position": 30.0}}, e["lagging"])

	// A consumer that only the store knows: what is saved decides.
	p.runtime.wait = nil
	require.Equal(t, 200, p.do("GET", "/v1/read-models/things/a?min_position=8", "").status)
	e = p.do("GET", "/v1/read-models/things/a?min_position=9&wait=1ms", "").want(t, 504, CodeNotCaughtUp, "up to 9")
	require.Equal(t, []any{map[string]any{"partition": float64(store.PartitionOf("a", 16)), "position": 8.0}}, e["lagging"])
	e = p.do("GET", "/v1/read-models/things?min_position=9&wait=1ms", "").want(t, 504, CodeNotCaughtUp, "up to 9")
	require.Len(t, e["lagging"], 16)
	// Another host applies it while the reader waits.
	moved := time.AfterFunc(50*time.Millisecond, func() { p.apply(0, 8, 9) })
	defer moved.Stop()
	require.Equal(t, 200, p.do("GET", "/v1/read-models/things/a?min_position=9&wait=1m", "").status)

	e = p.do("GET", "/v1/read-models/things/a?min_position=capture:1", "").want(t, 400, CodeNotAnInput, `does not read topic "capture"; it reads events`)
	require.Equal(t, []any{"events"}, e["inputs"])
	for _, bad := range []string{"x", "-1", ":1", "events:", "1.5"} {
		p.do("GET", "/v1/read-models/things?min_position="+bad, "").want(t, 400, CodeBadRequest, `"min_position" must be a position`)
	}
	p.do("GET", "/v1/read-models/things?wait=2", "").want(t, 400, CodeBadRequest, `"wait" must be a duration of at most 1m0s`)
	p.do("GET", "/v1/read-models/things?wait=2m", "").want(t, 400, CodeBadRequest, `"wait" must be a duration of at most 1m0s`)
	p.do("GET", "/v1/read-models/things?stale=no", "").want(t, 400, CodeBadRequest, `"stale" can only be "ok"`)
}

func TestPositionsOfSeveralTopics(t *testing.T) {
	require.Equal(t, "7", positionHeader([]string{"events"}, map[string]int64{"events": 7}))
	require.Equal(t, "events:5, capture:0", positionHeader([]string{"events", "capture"}, map[string]int64{"events": 5}))
	require.Equal(t, "read-model:x:3", positionHeader([]string{"read-model:x"}, map[string]int64{"read-model:x": 3}))
}

func TestHaltedProjection(t *testing.T) {
	p := newThings(t)
	halt := store.Halt{Reason: store.HaltApplyError, Code: 2, Message: "no such currency", Topic: "events", Position: 9, Partition: 3, Key: "a", EventType: "T"}
	check := func() {
		t.Helper()
		for _, path := range []string{"/v1/read-models/things/a", "/v1/read-models/things", "/v1/read-models/things?min_position=1"} {
			a := p.do("GET", path, "")
			e := a.want(t, 503, CodeProjectionHalted, "projection/things is halted (APPLY_ERROR): no such currency; stale=ok reads what it has")
			require.Equal(t, "APPLY_ERROR", e["halt_reason"])
			require.Equal(t, 9.0, e["halt"].(map[string]any)["position"])
			require.Equal(t, "halted", a.header.Get("Projhost-State"))
		}
		a := p.do("GET", "/v1/read-models/things/a?stale=ok", "")
		require.Equal(t, 200, a.status)
		require.Equal(t, "halted", a.header.Get("Projhost-State"))
		require.Equal(t, "8", a.header.Get("Projhost-Position"))
	}
	// Known to the host, not yet to the store.
	p.runtime.halt = &halt
	p.runtime.wait = func(context.Context, int64, int) error {
		return &HaltedError{Halt: halt, Lagging: []Lagging{{3, 8}}}
	}
	check()
	e := p.do("GET", "/v1/read-models/things/a?stale=ok&min_position=9", "").want(t, 504, CodeNotCaughtUp, "up to 9")
	require.Equal(t, []any{map[string]any{"partition": 3.0, "position": 8.0}}, e["lagging"])
	// And to the store alone.
	p.runtime.halt = nil
	require.NoError(t, p.store.Halt(t.Context(), p.consumer.ID, p.leases[3], halt))
	check()
}

func FuzzQuery(f *testing.F) {
	f.Add("limit=1&after=AQEAAAAAAAAARxgDfwAFDQAAAGFjY291bnQtMDAwMDQ&order=n:desc")
	f.Add("where.n=1&where.label=x&where_null=price&min_position=events:1&wait=1ns&stale=ok")
	f.Add("table=parts&after_key=%00&%zz")
	h := newThings(f).handler
	f.Fuzz(func(t *testing.T, query string) {
		req := httptest.NewRequest("GET", "/v1/read-models/things", nil)
		req.Host, req.URL.RawQuery = "localhost", query
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		if rec.Code >= 500 && rec.Code != 504 || !json.Valid(rec.Body.Bytes()) {
			t.Fatalf("%q: %d %s", query, rec.Code, rec.Body)
		}
	})
}

func BenchmarkGetRow(b *testing.B) {
	h := newThings(b).handler
	b.ReportAllocs()
	for b.Loop() {
		req := httptest.NewRequest("GET", "/v1/read-models/things/b", nil)
		req.Host = "localhost"
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		if rec.Code != 200 {
			b.Fatal(rec.Body)
		}
	}
}

// What an append costs the API itself: the store checks, and stores nothing.
func BenchmarkAppend(b *testing.B) {
	for _, events := range []int{1, 100} {
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			h := New(Deps{Store: checking{}, Runtime: &runtime{}}, Config{}).Handler()
			var body bytes.Buffer
			body.WriteString(`{"expected_version":"any","events":[`)
			for e := range samples.Accounts(events, 10) {
				if body.Len() > 40 {
					body.WriteByte(',')
				}
				fmt.Fprintf(&body, `{"id":%q,"type":%q,"occurred_at":%q,"metadata":%s,"data":%s}`, store.ID(e.ID), e.Type, jsonl.FormatTime(e.OccurredUS), e.Metadata, e.Data)
			}
			body.WriteString(`]}`)
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest("POST", "/v1/streams/account/A-1", bytes.NewReader(body.Bytes()))
				req.Host = "localhost"
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, req)
				if rec.Code != 201 {
					b.Fatal(rec.Body)
				}
			}
		})
	}
}

type checking struct{ Store }

func (checking) Commit(_ context.Context, c store.Commit) (store.CommitResult, error) {
	events := c.Streams[0].Events
	r := store.StreamResult{Version: int64(len(events)), IDs: make([]store.ID, len(events))}
	for i := range events {
		r.IDs[i] = events[i].ID
	}
	return store.CommitResult{Streams: []store.StreamResult{r}}, c.Validate(store.DefaultMaxEvent)
}
