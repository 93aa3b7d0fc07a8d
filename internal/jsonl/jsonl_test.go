package jsonl

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

const fullLine = `{"id":"96f9a74e-4bb1-5940-b42b-1789908e7cf0","aggregate_type":"loan-application","aggregate_id":"173688",` +
	`"sequence":3,"type":"A_SUBMITTED","revision":2,"data": {"case": {"AMOUNT_REQ":"20000", "x":1.50}} ,"metadata":{"actor":"112"},` +
	`"occurred_at":"2011-10-01T00:38:44.546+02:00","codec":"json","codec_version":1}`

func decode(t *testing.T, line string, stream Stream) (store.ImportEvent, error) {
	t.Helper()
	var e store.ImportEvent
	d := Decoder{Stream: stream}
	err := d.Decode([]byte(line), &e)
	return e, err
}

func TestDecodeTakesEveryMember(t *testing.T) {
	e, err := decode(t, fullLine, StreamRequired)
	require.NoError(t, err)
	require.Equal(t, "96f9a74e-4bb1-5940-b42b-1789908e7cf0", e.ID.String())
	require.Equal(t, "loan-application", e.AggregateType)
	require.Equal(t, "173688", e.AggregateID)
	require.Equal(t, int64(3), e.Sequence)
	require.Equal(t, "A_SUBMITTED", e.Type)
	require.Equal(t, int32(2), e.Revision)
	require.True(t, e.HasRevision && e.HasOccurred && e.HasID)
	require.Equal(t, `{"case": {"AMOUNT_REQ":"20000", "x":1.50}}`, string(e.Data))
	require.Equal(t, `{"actor":"112"}`, string(e.Metadata))
	require.Equal(t, time.Date(2011, 9, 30, 22, 38, 44, 546_000_000, time.UTC).UnixMicro(), e.OccurredUS)

	e, err = decode(t, `{"aggregate_type":"a","aggregate_id":"\u00e4","type":"T","data":null,"metadata":null}`, StreamRequired)
	require.NoError(t, err)
	require.Equal(t, "ä", e.AggregateID)
	require.Equal(t, "null", string(e.Data))
	require.Nil(t, e.Metadata)
	require.False(t, e.HasRevision || e.HasOccurred || e.HasID)

	e, err = decode(t, `{"aggregate_type":"a","aggregate_id":"b","type":"T","data_base64":"AQID","codec":"cbor","codec_version":2,"metadata_base64":"eyB9"}`, StreamRequired)
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3}, e.Data)
	require.Equal(t, "{ }", string(e.Metadata))
	require.Equal(t, "cbor", e.Codec)
	require.Equal(t, int32(2), e.CodecVersion)

	e, err = decode(t, `{"type":"T","data":1}`, StreamOptional)
	require.NoError(t, err)
	require.Empty(t, e.AggregateID)
}

// The stream of the line before is no guide to what an escape means.
func TestStreamsThatDifferByAnEscape(t *testing.T) {
	d := Decoder{}
	for _, c := range []struct{ written, means string }{
		{`a\\n`, `a\n`}, {`a\n`, "a\n"}, {`a\\/b`, `a\/b`}, {`a\/b`, "a/b"}, {`a\u002fb`, "a/b"}, {"a/b", "a/b"}, {"a/b", "a/b"},
	} {
		var e store.ImportEvent
		require.NoError(t, d.Decode([]byte(`{"aggregate_type":"a","aggregate_id":"`+c.written+`","type":"T","data":1}`), &e))
		require.Equal(t, c.means, e.AggregateID, c.written)
	}
}

func TestDecodeSaysWhatIsWrong(t *testing.T) {
	const ok = `"aggregate_type":"a","aggregate_id":"b","type":"T"`
	for line, want := range map[string]string{
		`{`:                                      `malformed JSON at byte 1: the end where the name of a member is expected`,
		`[]`:                                     `malformed JSON at byte 0: an object is expected, found an array`,
		`{` + ok + `,"data":{}} x`:               `malformed JSON at byte 63: 'x' after the object`,
		`{` + ok + `,"datta":{}}`:                `unknown member "datta"; the members are aggregate_type, aggregate_id, id, type, revision, data, data_base64, codec, codec_version, metadata, metadata_base64, occurred_at, sequence`,
		`{` + ok + `}`:                           `member "data" is missing`,
		`{"data":1}`:                             `members "aggregate_type", "aggregate_id", "type" are missing`,
		`{` + ok + `,"type":"T"}`:                `member "type" is given twice`,
		`{"id":"x",` + ok + `}`:                  `member "id" must be a UUID, such as "96f9a74e-4bb1-5940-b42b-1789908e7cf0"`,
		`{"id":7,` + ok + `}`:                    `member "id" must be a UUID, such as "96f9a74e-4bb1-5940-b42b-1789908e7cf0"`,
		`{"type":7}`:                             `member "type" must be a string`,
		`{"type":"\ud800"}`:                      `member "type" has half of a surrogate pair, which is no character`,
		`{"revision":-1}`:                        `member "revision" must be at least 0`,
		`{"revision":1.5}`:                       `member "revision" must be a whole number`,
		`{"revision":4294967296}`:                `member "revision" is out of range`,
		`{"sequence":0}`:                         `member "sequence" must be at least 1: it is the event's place in its stream`,
		`{"codec":""}`:                           `member "codec" must not be empty`,
		`{"codec_version":0}`:                    `member "codec_version" must be at least 1`,
		`{"data_base64":"AQI"}`:                  `member "data_base64" must be standard base64 with padding`,
		`{"metadata_base64":"AQID"}`:             `member "metadata_base64" does not hold JSON`,
		`{"occurred_at":"yesterday"}`:            `member "occurred_at" must be an RFC 3339 time, such as "2011-10-01T00:38:44.546+02:00"`,
		`{"occurred_at":12}`:                     `member "occurred_at" must be a string`,
		`{` + ok + `,"data":1,"data_base64":""}`: `members "data" and "data_base64" are both given`,
		`{` + ok + `,"data":1,"metadata":1,"metadata_base64":"MQ=="}`: `members "metadata" and "metadata_base64" are both given`,
		`{` + ok + `,"data":1,"codec_version":2}`:                     `member "codec_version" needs "codec"`,
		"{" + ok + ",\"data\":\"\xff\"}":                              `malformed JSON at byte 60: not valid UTF-8`,
	} {
		_, err := decode(t, line, StreamRequired)
		require.EqualError(t, err, want, line)
	}
	_, err := decode(t, `{"aggregate_id":"x"}`, StreamRefused)
	require.ErrorContains(t, err, `unknown member "aggregate_id"; the members are id, type,`)
}

func TestTimes(t *testing.T) {
	for in, want := range map[string]string{
		"2011-10-01T00:38:44.546+02:00":       "2011-09-30T22:38:44.546000Z",
		"2011-10-01t00:38:44z":                "2011-10-01T00:38:44.000000Z",
		"2024-02-29T23:59:59.123456789-00:30": "2024-03-01T00:29:59.123456Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00.000000Z",
		"1969-12-31T23:59:59.999999Z":         "1969-12-31T23:59:59.999999Z",
		"9999-12-31T23:59:59.999999Z":         "9999-12-31T23:59:59.999999Z",
	} {
		us, err := ParseTime([]byte(in))
		require.NoError(t, err, in)
		require.Equal(t, want, FormatTime(us))
	}
	for _, in := range []string{"", "2011-10-01", "2011-10-01 00:38:44Z", "2011-10-01T00:38:44", "2011-10-01T00:38:44,5Z", "2011-10-01T00:38:44.Z",
		"2011-02-29T00:00:00Z", "2011-13-01T00:00:00Z", "2011-10-01T24:00:00Z", "2011-10-01T00:60:00Z", "2011-10-01T00:00:60Z", "2011-10-01T00:00:00+2:00",
		"2011-10-01T00:00:00+25:00", "2011-1-01T00:00:00Z00", "+011-10-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "0000-01-01T00:00:00Z", "2011-10-0１T00:00:00Z"} {
		_, err := ParseTime([]byte(in))
		require.Error(t, err, in)
	}
}

// time.Parse is the oracle wherever it and the standard agree.
func FuzzParseTime(f *testing.F) {
	f.Add("2011-10-01T00:38:44.546+02:00")
	f.Add("2011-10-01T00:38:44Z")
	f.Fuzz(func(t *testing.T, s string) {
		us, err := ParseTime([]byte(s))
		if err != nil {
			return
		}
		want, err := time.Parse(time.RFC3339Nano, strings.ToUpper(s))
		if err != nil || want.UnixMicro() != us {
			t.Fatalf("%q: %d, the library says %v %v", s, us, want, err)
		}
	})
}

func event(e store.ImportEvent) *store.Event {
	out := &store.Event{ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Sequence: 1, Type: e.Type, Revision: e.Revision,
		Codec: e.Codec, CodecVersion: e.CodecVersion, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS}
	if out.Codec == "" {
		out.Codec, out.CodecVersion = store.DefaultCodec, store.DefaultCodecVersion
	}
	if out.CodecVersion == 0 {
		out.CodecVersion = 1
	}
	return out
}

func TestLinesRoundTrip(t *testing.T) {
	e, err := decode(t, fullLine, StreamRequired)
	require.NoError(t, err)
	line := AppendLine(nil, event(e), false)
	require.Equal(t, `{"id":"96f9a74e-4bb1-5940-b42b-1789908e7cf0","aggregate_type":"loan-application","aggregate_id":"173688",`+
		`"type":"A_SUBMITTED","revision":2,"data":{"case": {"AMOUNT_REQ":"20000", "x":1.50}},"metadata":{"actor":"112"},"occurred_at":"2011-09-30T22:38:44.546000Z"}`+"\n", string(line))

	for _, data := range []string{"{\n}", " 1", "1\r", "\"\u2028\"", "{}"} {
		ev := event(e)
		ev.Data, ev.Metadata = []byte(data), []byte(data)
		line := AppendLine(nil, ev, true)
		require.Equal(t, 1, bytes.Count(line, []byte("\n")))
		back, err := decode(t, string(line), StreamRequired)
		require.NoError(t, err)
		require.Equal(t, data, string(back.Data))
		require.Equal(t, data, string(back.Metadata))
		require.Equal(t, int64(1), back.Sequence)
	}
	ev := event(e)
	ev.Data, ev.Position, ev.Partition = []byte("{\n}"), 9, 5
	require.Equal(t, `{"position":9,"id":"96f9a74e-4bb1-5940-b42b-1789908e7cf0","aggregate_type":"loan-application","aggregate_id":"173688",`+
		`"sequence":1,"type":"A_SUBMITTED","revision":2,"data":{`+"\n"+`},"metadata":{"actor":"112"},"occurred_at":"2011-09-30T22:38:44.546000Z","partition":5}`, string(AppendMessage(nil, ev)))
}

// Whatever decodes is given back: the bytes of data and metadata, and the rest.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(fullLine))
	f.Add([]byte(`{"aggregate_type":"a","aggregate_id":"\u00e4\"","type":"T","data_base64":"AQID","codec":"cbor","metadata_base64":"eyB9"}`))
	f.Add([]byte(`{"aggregate_type":"a","aggregate_id":"b","type":"T","data":[1,2],"data":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var d Decoder
		var e, back store.ImportEvent
		if d.Decode(line, &e) != nil {
			return
		}
		out := AppendLine(nil, event(e), false)
		if bytes.Count(out, []byte("\n")) != 1 {
			t.Fatalf("%q became %q", line, out)
		}
		if err := d.Decode(out, &back); err != nil {
			t.Fatalf("%q became %q: %v", line, out, err)
		}
		if !bytes.Equal(e.Data, back.Data) || !bytes.Equal(e.Metadata, back.Metadata) || (e.Metadata == nil) != (back.Metadata == nil) ||
			e.AggregateID != back.AggregateID || e.AggregateType != back.AggregateType || e.Type != back.Type || e.OccurredUS != back.OccurredUS || e.Revision != back.Revision {
			t.Fatalf("%q became %q", line, out)
		}
		var ev store.Event
		if err := d.DecodeMessage(AppendMessage(nil, event(e)), &ev); err != nil || !bytes.Equal(ev.Data, e.Data) || ev.AggregateID != e.AggregateID {
			t.Fatalf("%q: message %+v: %v", line, ev, err)
		}
		if rawjson.Check(AppendMessage(nil, event(e))) != nil && (e.Codec == "" || e.Codec == "json") && rawjson.Check(e.Data) == nil {
			t.Fatalf("%q gives a message that is not JSON", line)
		}
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\x00\x7fä\xff\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := rawjson.String(AppendString(nil, s))
		if err != nil || got != strings.ToValidUTF8(s, "\ufffd") && strings.ToValidUTF8(s, "") == s {
			t.Fatalf("%q became %q: %v", s, got, err)
		}
		if err := rawjson.Check(AppendString(nil, s)); err != nil {
			t.Fatal(err)
		}
	})
}

func readAll(t *testing.T, src io.Reader, maxLine int) (lines []string, numbers []int, err error) {
	t.Helper()
	r, err := NewReader(src)
	require.NoError(t, err)
	if maxLine > 0 {
		r.Max = maxLine
	}
	for {
		line, err := r.Next()
		if err == io.EOF {
			return lines, numbers, nil
		}
		if err != nil {
			return lines, numbers, err
		}
		lines, numbers = append(lines, string(line)), append(numbers, r.Line())
	}
}

func TestReaderGivesLinesAndNumbers(t *testing.T) {
	text := "\xef\xbb\xbfone\r\n\n  \ntwo\nthree"
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	_, _ = zw.Write([]byte(text))
	require.NoError(t, zw.Close())
	for name, src := range map[string]io.Reader{
		"plain": strings.NewReader(text), "gzip": bytes.NewReader(gz.Bytes()),
		"byte by byte": iotest.OneByteReader(strings.NewReader(text)), "data with eof": iotest.DataErrReader(strings.NewReader(text)),
	} {
		lines, numbers, err := readAll(t, src, 0)
		require.NoError(t, err, name)
		require.Equal(t, []string{"one", "two", "three"}, lines, name)
		require.Equal(t, []int{1, 4, 5}, numbers, name)
	}
	lines, _, err := readAll(t, strings.NewReader(""), 0)
	require.NoError(t, err)
	require.Empty(t, lines)

	lines, _, err = readAll(t, bytes.NewReader(gz.Bytes()[:gz.Len()-9]), 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotEmpty(t, lines)

	lines, _, err = readAll(t, io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(errors.New("disk gone"))), 0)
	require.EqualError(t, err, "disk gone")
	require.Equal(t, []string{"a"}, lines, "half a line is no line")
}

func TestReaderPassesLongLines(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	text := "a\n" + long + "\nb\n" + strings.Repeat("y", 200) + "\nc"
	r, err := NewReader(strings.NewReader(text))
	require.NoError(t, err)
	r.Max = 100
	line, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "a", string(line))
	_, err = r.Next()
	require.EqualError(t, err, "the line is longer than 100 bytes")
	require.Equal(t, 2, r.Line())
	var rest bytes.Buffer
	require.NoError(t, r.CopyLine(&rest))
	require.Equal(t, long+"\n", rest.String())
	line, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "b", string(line))
	_, err = r.Next()
	require.EqualError(t, err, "the line is longer than 100 bytes")
	line, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "c", string(line))
	require.Equal(t, 5, r.Line())
}

func TestLinesStayValid(t *testing.T) {
	var text strings.Builder
	for i := range 300_000 {
		text.WriteString(strings.Repeat(string(rune('a'+i%26)), i%17+1) + "\n")
	}
	r, err := NewReader(strings.NewReader(text.String()))
	require.NoError(t, err)
	var lines [][]byte
	for {
		line, err := r.Next()
		if err == io.EOF {
			break
		}
		lines = append(lines, line)
	}
	require.Equal(t, text.String(), string(bytes.Join(lines, []byte("\n")))+"\n")
}

func TestDerivedIDs(t *testing.T) {
	line := []byte(`{"type":"T"}`)
	ids := func(name string, streams ...string) (out []string) {
		n := NewNamer(name)
		for _, s := range streams {
			e := store.ImportEvent{AggregateType: "a", AggregateID: s}
			require.True(t, n.Take(line, &e))
			out = append(out, e.ID.String())
		}
		return out
	}
	first := ids("f", "1", "2", "1")
	require.Equal(t, first, ids("f", "1", "2", "1"), "the same file gives the same ids")
	require.NotEqual(t, first[0], first[2], "an equal line further down is another event")
	require.NotEqual(t, first[0], first[1])
	require.NotEqual(t, first[0], ids("g", "1")[0], "an equal line of another import is another event")
	require.Equal(t, first[2], ids("f", "2", "1", "9", "1")[3], "lines of other streams do not count")
	// Golden: a change would make every file of the past another import.
	require.Equal(t, "b2c4a988-4f2e-5f66-9cc7-524105e43209", first[0])

	n := NewNamer("f")
	given := store.ImportEvent{AggregateType: "a", AggregateID: "1"}
	given.HasID = true
	require.False(t, n.Take(line, &given))
	e := store.ImportEvent{AggregateType: "a", AggregateID: "1"}
	n.Take(line, &e)
	require.Equal(t, first[2], e.ID.String(), "a line with an id counts in its stream")

	require.Equal(t, Name("x/y.jsonl", []byte("head")), Name("y.jsonl.gz", []byte("head")))
	require.NotEqual(t, Name("y.jsonl", []byte("head")), Name("y.jsonl", []byte("tail")))
}

// The loan file, if there is one, else lines of its shape: parsing must not be
// what an import waits for.
func BenchmarkDecode(b *testing.B) {
	line := []byte(fullLine)
	if path := os.Getenv("PROJHOST_TEST_LOANS"); path != "" {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		r, err := NewReader(f)
		if err != nil {
			b.Fatal(err)
		}
		if line, err = r.Next(); err != nil {
			b.Fatal(err)
		}
	}
	var d Decoder
	var e store.ImportEvent
	n := NewNamer("bench")
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(line, &e); err != nil {
			b.Fatal(err)
		}
		n.Take(line, &e)
	}
}
