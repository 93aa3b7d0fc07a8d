package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/store/sqlite"
)

const (
	id1 = "00000000-0000-4000-8000-000000000001"
	id2 = "00000000-0000-4000-8000-000000000002"
	id3 = "00000000-0000-4000-8000-000000000003"
)

// line is an event in the form that export gives it, so that a round trip can
// be compared byte for byte.
func line(id, stream, typ, data string) string {
	return `{"id":"` + id + `","aggregate_type":"account","aggregate_id":"` + stream + `","type":"` + typ + `","revision":0,"data":` + data +
		`,"occurred_at":"2026-01-02T03:04:05.678901Z"}` + "\n"
}

func TestImportAndExportRoundTrip(t *testing.T) {
	p := newPlace(t)
	text := line(id1, "A-1", "opened", `{"b":1,  "a":"\u00e4<&>"}`) + line(id2, "A-2", "opened", `[1.50,null]`) +
		strings.Replace(line(id3, "A-1", "odd", `"x"`), `"data":"x"`, `"codec":"cbor","codec_version":2,"data_base64":"AQID","metadata":{"by": "me"}`, 1)
	p.write("events.jsonl", text)
	require.Equal(t, "3 events stored in TIME (RATE/s)\n", masked(p, p.run("", "import", "events.jsonl").ok()))
	require.Equal(t, text, p.run("", "export", "events").ok())
	require.Equal(t, "0 events stored, 3 already there in TIME (RATE/s)\n", masked(p, p.run("", "import", "events.jsonl").ok()))

	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	_, _ = zw.Write([]byte(text + line("00000000-0000-4000-8000-000000000004", "A-1", "more", "1")))
	require.NoError(t, zw.Close())
	p.write("events.jsonl.gz", gz.String())
	require.Equal(t, `{"stored":1,"already_there":3,"already_there_derived":0,"skipped":0,"last_position":4,"seconds":TIME}`+"\n",
		masked(p, p.run("", "import", "--json", "events.jsonl.gz").ok()))

	require.Equal(t, line(id2, "A-2", "opened", `[1.50,null]`), p.run("", "export", "events", "--after", "1", "--limit", "1").ok())
	require.Contains(t, p.run("", "export", "events", "--with-sequence", "--limit", "1").ok(), `"aggregate_id":"A-1","sequence":1,"type"`)
	p.run("", "export", "events", "--gzip", "-o", "out.gz").ok()
	zr, err := gzip.NewReader(strings.NewReader(p.read("out.gz")))
	require.NoError(t, err)
	var unpacked bytes.Buffer
	_, err = unpacked.ReadFrom(zr)
	require.NoError(t, err)
	require.Equal(t, text+line("00000000-0000-4000-8000-000000000004", "A-1", "more", "1"), unpacked.String())

	// What is exported makes the same store elsewhere.
	p.write("other.toml", "data_dir = \"other\"\n[http]\nlisten = \"127.0.0.1:1\"\n")
	p.run(unpacked.String(), "import", "-", "--as", "x", "--config", "other.toml").ok()
	require.Equal(t, unpacked.String(), p.run("", "export", "events", "--config", "other.toml").ok())

	p.run("", "export", "nope").fails(exitFailed, "projhost: export nope: there is no topic \"nope\" (not_found)\n")
	p.run("", "import", "nope.jsonl").fails(exitFailed, "projhost: open nope.jsonl: no such file or directory\n")
}

// Lines without id: the same file again is the same import, an equal line of
// another file is another event.
func TestImportOfLinesWithoutID(t *testing.T) {
	p := newPlace(t)
	const anonymous = `{"aggregate_type":"a","aggregate_id":"1","type":"T","data":1}` + "\n"
	p.write("monday.jsonl", anonymous+anonymous)
	p.write("tuesday.jsonl", anonymous+anonymous)
	require.Contains(t, p.run("", "import", "monday.jsonl").ok(), "2 events stored in")
	require.Contains(t, p.run("", "import", "monday.jsonl").ok(), "0 events stored, 2 without id already there by this import's name in")
	require.Contains(t, p.run("", "import", "tuesday.jsonl").ok(), "2 events stored in")
	require.Contains(t, p.run(anonymous, "import", "-", "--as", "pipe").ok(), "1 event stored in")
	require.Contains(t, p.run(anonymous, "import", "-", "--as", "pipe").ok(), "0 events stored, 1 without id already there")
	require.Contains(t, p.run(anonymous, "import", "-", "--as", "pipe2").ok(), "1 event stored in")
	require.Contains(t, p.run("", "import", "--as", "both", "monday.jsonl", "tuesday.jsonl").ok(), "4 events stored in")
	// A line more at the end leaves the ids of those before it, as long as the
	// name is given: the default name tells files by how they begin.
	p.write("monday.jsonl", anonymous+anonymous+anonymous)
	require.Contains(t, p.run("", "import", "--as", "m", "monday.jsonl").ok(), "3 events stored in")
	p.write("monday.jsonl", anonymous+anonymous+anonymous+line(id1, "1", "T", "1"))
	require.Contains(t, p.run("", "import", "--as", "m", "monday.jsonl").ok(), "1 event stored, 3 without id already there")
}

// A lost connection and a database that is away for a while do not end an
// import, but it does not wait for ever.
func TestImportTriesAgain(t *testing.T) {
	p := newPlace(t)
	st, err := sqlite.Open(t.Context(), sqlite.Options{DSN: filepath.Join(t.TempDir(), "x.db"), TablePrefix: "ph_"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	inner := api.New(api.Deps{Store: st, Runtime: noRuntime{}}, api.Config{}).Handler()
	calls, failures := 0, 2
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/import" {
			inner.ServeHTTP(w, r)
			return
		}
		calls++
		switch {
		case calls > failures:
			inner.ServeHTTP(w, r)
		case calls == 1: // it is stored, and nobody is told
			inner.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"code":"unavailable","message":"import: the server is starting up"}}`))
		}
	}))
	t.Cleanup(srv.Close)
	p.write("events.jsonl", line(id1, "1", "T", "1"))
	o := p.run("", "import", "events.jsonl", "--url", srv.URL)
	require.Equal(t, exitOK, o.code)
	require.Contains(t, o.stdout, "0 events stored, 1 already there")
	require.Equal(t, 3, calls)
	require.Regexp(t, `^import events\.jsonl: (call the host at|read the answer of) `+srv.URL+`: .*: it is tried again for up to 1m0s
import events\.jsonl: goes on after .*s
$`, o.stderr)

	calls, failures = 1, 1000
	o = p.run("", "import", "events.jsonl", "--url", srv.URL, "--retry-for", "300ms")
	require.Equal(t, exitFailed, o.code)
	require.GreaterOrEqual(t, calls, 3, "now, and at least once more")
	require.Contains(t, o.stderr, "projhost: import events.jsonl: import: the server is starting up (unavailable) (0 events stored; import again to go on)\n")
	calls = 1
	p.run("", "import", "events.jsonl", "--url", srv.URL, "--retry-for", "0").
		fails(exitFailed, "projhost: import events.jsonl: import: the server is starting up (unavailable) (0 events stored; import again to go on)\n")
	require.Equal(t, 2, calls)
	o = p.run("", "import", "events.jsonl", "--retry-for", "-1s")
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.stderr, "--retry-for must not be negative")
}

// A file that had to be mended is still the same import, under the name that
// the error gives: lines without id are not stored twice.
func TestImportGoesOnAfterMending(t *testing.T) {
	p := newPlace(t)
	good := `{"aggregate_type":"a","aggregate_id":"1","type":"t","data":1}` + "\n"
	p.write("events.jsonl", good+good+"{oops\n"+good)
	o := p.run("", "import", "events.jsonl")
	as := regexp.MustCompile(`import again with --as "(events\.jsonl@[0-9a-f]+)"`).FindStringSubmatch(o.stderr)
	require.NotNil(t, as, o.stderr)
	p.write("events.jsonl", good+good+good+good)
	require.Contains(t, p.run("", "import", "events.jsonl", "--as", as[1]).ok(), "2 events stored, 2 without id already there")

	p.write("bad.jsonl", good)
	o = p.run("", "import", "bad.jsonl", "--skip-bad", "bad.jsonl")
	require.Contains(t, o.stderr, "would overwrite the file that is imported")
	require.Equal(t, good, p.read("bad.jsonl"))
}

// The first bad line ends the import; everything before it is stored, nothing
// of it and nothing after it.
func TestImportStopsAtTheFirstBadLine(t *testing.T) {
	good := func(n int) string {
		return line(fmt.Sprintf("00000000-0000-4000-8000-1%011d", n), "A-1", "T", fmt.Sprint(n))
	}
	for name, tc := range map[string]struct{ bad, want string }{
		"malformed":       {`{"id":`, `malformed JSON at byte 6: the text ends where a value is expected`},
		"unknown member":  {`{"aggregate_type":"a","aggregate_id":"1","type":"T","data":1,"datum":1}`, `unknown member "datum"; the members are aggregate_type, aggregate_id, id, type, revision, data, data_base64, codec, codec_version, metadata, metadata_base64, occurred_at, sequence`},
		"missing":         {`{"aggregate_type":"a","type":"T","data":1}`, `member "aggregate_id" is missing`},
		"other content":   {strings.TrimSpace(line("00000000-0000-4000-8000-100000000001", "A-1", "T", "99")), `event id 00000000-0000-4000-8000-100000000001 is already stored at position 1 (stream account/A-1): its data differs (duplicate_event)`},
		"other stream":    {strings.TrimSpace(line("00000000-0000-4000-8000-100000000001", "A-2", "T", "1")), `event id 00000000-0000-4000-8000-100000000001 is already stored at position 1 (stream account/A-1): it belongs to another stream (duplicate_event)`},
		"sequence":        {`{"aggregate_type":"account","aggregate_id":"A-1","type":"T","data":1,"sequence":9}`, `sequence 9 of stream account/A-1: the stream has 2 events, the next is 3 (bad_request)`},
		"trailing space":  {`{"aggregate_type":"account","aggregate_id":"A-1 ","type":"T","data":1}`, `aggregate id ends with a space (bad_request)`},
		"invalid UTF-8":   {"{\"aggregate_type\":\"\xff\"}", `malformed JSON at byte 19: not valid UTF-8`},
		"codec":           {`{"aggregate_type":"a","aggregate_id":"1","type":"T","data_base64":"e30K","codec":"json","codec_version":2}`, `event of type T: codec json has no version 2, only 1 (bad_request)`},
		"not JSON inside": {`{"aggregate_type":"a","aggregate_id":"1","type":"T","data_base64":"e30x"}`, `event of type T: data: malformed JSON at byte 2: '1' after the value (bad_request)`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.write("events.jsonl", good(1)+"\n"+good(2)+tc.bad+"\n"+good(3))
			p.run("", "import", "events.jsonl").fails(exitFailed,
				"projhost: import events.jsonl: line 4: "+tc.want+" (2 events stored before it; mend the line and import again, or pass bad lines with --skip-bad FILE)\n")
			require.Equal(t, good(1)+good(2), p.run("", "export", "events").ok())

			require.Equal(t, "1 event stored, 2 already there, 1 bad line written to bad.jsonl in TIME (RATE/s)\n",
				masked(p, p.run("", "import", "events.jsonl", "--skip-bad", "bad.jsonl").ok()))
			require.Equal(t, tc.bad+"\n", p.read("bad.jsonl"))
			require.Equal(t, good(1)+good(2)+good(3), p.run("", "export", "events").ok())
		})
	}
}

func TestImportOfLargeLines(t *testing.T) {
	p := newPlace(t)
	long := line(id2, "A-1", "T", `"`+strings.Repeat("x", 2<<20)+`"`)
	p.write("events.jsonl", line(id1, "A-1", "T", "1")+long+line(id3, "A-1", "T", "3"))
	o := p.run("", "import", "events.jsonl")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "line 2: ")
	require.Contains(t, o.stderr, "(too_large) (1 event stored before it;")
	require.Contains(t, p.run("", "import", "events.jsonl", "--skip-bad", "bad.jsonl").ok(), "1 event stored, 1 already there, 1 bad line written")
	require.Equal(t, long, p.read("bad.jsonl"))

	huge := `{"type":"` + strings.Repeat("x", 17<<20) + `"}`
	p.write("huge.jsonl", huge+"\n"+line(id3, "A-1", "T", "3"))
	p.run("", "import", "huge.jsonl").fails(exitFailed, "projhost: import huge.jsonl: line 1: the line is longer than 16777216 bytes (0 events stored before it; mend the line and import again, or pass bad lines with --skip-bad FILE)\n")
	require.Contains(t, p.run("", "import", "huge.jsonl", "--skip-bad", "bad.jsonl").ok(), "0 events stored, 1 already there, 1 bad line written")
	require.Equal(t, huge+"\n", p.read("bad.jsonl"))
}

func TestImportOfACutFile(t *testing.T) {
	p := newPlace(t)
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	for i := range 20_000 {
		_, _ = zw.Write([]byte(line(fmt.Sprintf("00000000-0000-4000-8000-1%011d", i), fmt.Sprint("A-", i%7), "T", fmt.Sprint(i*i))))
	}
	require.NoError(t, zw.Close())
	path := p.write("events.jsonl.gz", gz.String()[:gz.Len()/2])
	o := p.run("", "import", path, "--skip-bad", "bad.jsonl")
	require.Equal(t, exitFailed, o.code)
	require.Regexp(t, `^projhost: import \S+: line \d+: unexpected EOF \([\d,]+ events stored before it; `, o.stderr)
	require.Empty(t, p.read("bad.jsonl"))

	p.write("events.jsonl.gz", gz.String())
	require.Regexp(t, `^[\d,]+ events stored, [\d,]+ already there in`, p.run("", "import", path).ok())
	require.Equal(t, 20_000, strings.Count(p.run("", "export", "events").ok(), "\n"))
}

func TestImportIsInterrupted(t *testing.T) {
	p := newPlace(t)
	p.write("events.jsonl", line(id1, "A-1", "T", "1"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := p.runContext(ctx, strings.NewReader(""), "import", "events.jsonl")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "projhost: interrupted\n", o.stderr)
}

func TestAppend(t *testing.T) {
	p := newPlace(t)
	require.Equal(t, "account/A-1 stored at positions 1 to 2, version 2\n",
		p.run(`{"id":"`+id1+`","type":"opened","data":{ "x" : 1.0 }}`+"\n"+`{"type":"T","aggregate_type":"account","aggregate_id":"A-1","data":2,"sequence":2}`+"\n",
			"append", "account", "A-1", "--expected-version", "new").ok())
	require.Contains(t, p.run("", "export", "events", "--limit", "1").ok(), `"data":{ "x" : 1.0 },`)
	require.Equal(t, "account/A-1 was stored before at position 1, version 1\n",
		p.run(`{"id":"`+id1+`","type":"opened","data":{ "x" : 1.0 }}`, "append", "account", "A-1", "--expected-version", "7").ok())
	require.Regexp(t, `^{"version":3,"first_position":3,"last_position":3,"ids":\["[0-9a-f-]{36}"\]}\n$`,
		p.run(`{"type":"T","data":3}`, "append", "account", "A-1", "--json").ok())

	for stdin, want := range map[string]string{
		"":                              `standard input holds no events: give one JSON object a line`,
		`{"type":"T"}`:                  `standard input: line 1: member "data" is missing (nothing was stored)`,
		`{"type":"T","data":1}` + "\n{": `standard input: line 2: malformed JSON at byte 1: the end where the name of a member is expected (nothing was stored)`,
		`{"type":"T","data":1,"aggregate_id":"A-2"}`:    `standard input: line 1: member "aggregate_id" is "A-2", the stream's is "A-1" (nothing was stored)`,
		`{"type":"T","data":1,"aggregate_type":"loan"}`: `standard input: line 1: member "aggregate_type" is "loan", the stream's is "account" (nothing was stored)`,
		`{"type":"T","data":1,"sequence":9}`:            `standard input: line 1: member "sequence" is 9, the event would get 2 (nothing was stored)`,
		`{"type":"T","data":1,"sequence":2}`:            `append to account/A-1: stream account/A-1: expected version 1, it is 3: somebody else appended; read the stream and decide again (concurrent_write)`,
	} {
		p.run(stdin, "append", "account", "A-1", "--expected-version", "1").fails(exitFailed, "projhost: "+want+"\n")
	}
	p.run(`{"type":"T","data":1}`, "append", "", "A-1").fails(exitUsage, "projhost: TYPE and ID must not be empty\n")
	p.run(`{"type":"T","data":1,"sequence":9}`, "append", "account", "A-1").fails(exitFailed, "projhost: standard input: line 1: member \"sequence\" can be checked only with --expected-version (nothing was stored)\n")
}

func TestTopics(t *testing.T) {
	p := newPlace(t)
	p.write("events.jsonl", line(id1, "A-1", "opened", `{"x":"`+strings.Repeat("y", 100)+`"}`)+line(id2, "A-2", "opened", "{\"a\": 1}"))
	p.run("", "import", "events.jsonl").ok()
	golden(t, "topics-list", p.run("", "topics", "list").ok())
	require.Equal(t, `{"items":[{"name":"events","kind":"events","start":0,"end":2,"high_water_mark":2,"lag":0,"messages":2}],"next":null}`+"\n", p.run("", "topics", "list", "--json").ok())
	golden(t, "topics-tail", p.run("", "topics", "tail", "events").ok())
	require.Equal(t, `{"position":2,"id":"`+id2+`","aggregate_type":"account","aggregate_id":"A-2","sequence":1,"type":"opened","revision":0,"data":{"a": 1},`+
		`"occurred_at":"2026-01-02T03:04:05.678901Z","partition":104}`+"\n", p.run("", "topics", "tail", "events", "-n", "1", "--json").ok())
	p.run("", "topics", "tail", "events", "--follow").fails(exitFailed, "projhost: --follow needs a running host: nothing is appended while this process holds the store\n")
	p.run("", "topics", "tail", "nope").fails(exitFailed, "projhost: tail nope: there is no topic \"nope\" (not_found)\n")
}

// What only reads leaves no database where there was none.
func TestReadingMakesNothing(t *testing.T) {
	p := newPlace(t)
	for _, args := range [][]string{{"topics", "list"}, {"topics", "tail", "events"}, {"query", "x"}, {"export", "events"}} {
		p.run("", args...).fails(exitFailed, "projhost: no host answers at 127.0.0.1:1, and there is no database at data/projhost.db: name the host with --url, or the configuration with --config\n")
	}
	require.NoDirExists(t, filepath.Join(p.dir, "data"))
}

func TestExportCompressesByName(t *testing.T) {
	p := newPlace(t)
	p.run("", "import", p.write("events.jsonl", line(id1, "A-1", "opened", `{}`))).ok()
	p.run("", "export", "events", "-o", "out.jsonl.gz").ok()
	r, err := gzip.NewReader(strings.NewReader(p.read("out.jsonl.gz")))
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, p.run("", "export", "events").ok(), string(text))
}

func TestSchema(t *testing.T) {
	p := newPlace(t)
	p.run("", "schema", "check").fails(exitFailed, "projhost: there is no database at data/projhost.db: projhost run makes it, or projhost schema print its script\n")
	sql := p.run("", "schema", "print", "--driver", "sqlite").ok()
	require.Contains(t, sql, `CREATE TABLE "ph_events"`)
	p.run("", "import", p.write("none.jsonl", "")).ok()
	require.Equal(t, "data/projhost.db is in shape\n", p.run("", "schema", "check").ok())
	require.Equal(t, "{\"ok\":true}\n", p.run("", "schema", "check", "--json").ok())

	// What is printed serves older shells of SQLite too.
	require.NotContains(t, sql, "subsec")

	// Somebody who lets nothing be made makes it himself.
	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n[store]\ntable_prefix = \"x_\"\ninitialize_schema = \"never\"\n")
	o := p.run("", "schema", "check")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "x_")
	require.Contains(t, p.run("", "schema", "print").ok(), `CREATE TABLE "x_events"`)
}

func TestNeverInitializedSaysHow(t *testing.T) {
	p := newPlace(t)
	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n[store]\ninitialize_schema = \"never\"\n")
	p.run("", "run").fails(exitFailed, "projhost: there is no database at data/projhost.db, and initialize_schema is \"never\": make it with the script of projhost schema print\n")
}

func TestDoctor(t *testing.T) {
	p := newPlace(t)
	golden(t, "doctor-fresh", masked(p, p.run("", "doctor").ok()))
	p.run("", "import", p.write("none.jsonl", "")).ok()
	golden(t, "doctor", masked(p, p.run("", "doctor").ok()))
	p.write("notwasm.wasm", "hello")
	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n[[plugin]]\nname = \"a\"\npath = \"notwasm.wasm\"\nfuel = 1\n[[plugin]]\nname = \"b\"\npath = \"nope.wasm\"\n")
	o := p.run("", "doctor")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "projhost: doctor: 1 thing to mend\n", o.stderr)
	golden(t, "doctor-plugins", masked(p, o.stdout))
	o = p.run("", "doctor", "--json")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, `"ok":false`)

	require.NoError(t, os.RemoveAll(filepath.Join(p.dir, "data")))
	p.write("data", "a file")
	o = p.run("", "doctor")
	require.Contains(t, masked(p, o.stdout), "DIR/data is a file")
	p.write("config.toml", "x = 1")
	o = p.run("", "doctor")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "config.toml:1: x: unknown key")
}
