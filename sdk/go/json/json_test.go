package json

import (
	"bytes"
	stdjson "encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// documents are the seeds of the fuzz test and the table of the tests by hand.
var documents = []string{
	`{"org:resource":"112","lifecycle:transition":"COMPLETE","case":{"REG_DATE":"2011-10-01T00:38:44.546+02:00","AMOUNT_REQ":"20000"}}`,
	`{}`, `[]`, ` { } `, "\t[\r\n]", `{"":""}`, `null`, `true`, `false`, `0`, `-0`, `-0.0e-10`, `12345678901234567890`,
	`{"a":1,"a":2,"b":{"a":[1,2,{"c":null}]},"a":[]}`,
	`{"\u0061":"escaped name","b\"":"\u00e4\ud83d\ude00\ud800\udc","tab":"\t\n\b\f\r\/\\"}`,
	`"\ud800"`, `"\ud83d\ude00"`, `"\udc00\ud800x"`, `"\ud800\u0041"`, `"\"`, `"\u12"`, `"\u12g4"`, `"\x"`, `"ä€😀"`,
	`[1,2,3,]`, `{"a":1,}`, `{"a" 1}`, `{"a":}`, `{a:1}`, `[1 2]`, `[,]`, `{"a":[1}`, `{"a":1`, `"abc`, `-`, `01`, `1.`, `.5`, `1e`, `1e+`, `tru`, `nulll`,
	"\"\x01\"", `{"a":"}","b":"[{"}`, `{"a":"\\","b":"\\\""}`, `[[[[[]]]]]`, `9223372036854775807`, `-9223372036854775808`, `9223372036854775808`,
	`1e400`, `[1.5e3,-2E-2]`, `{"a":{"b":{"c":"d"}}}`, "\xff", `"` + "\xff" + `"`, ``, ` `,
}

func TestValuesReadAsInEncodingJSON(t *testing.T) {
	for _, doc := range documents {
		checkDocument(t, []byte(doc))
	}
}

func TestValidityIsThatOfEncodingJSON(t *testing.T) {
	for _, doc := range documents {
		require.Equal(t, stdjson.Valid([]byte(doc)), Valid([]byte(doc)), "%q", doc)
	}
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	require.True(t, Valid([]byte(deep)))
	require.False(t, Valid([]byte("["+deep+"]")))
	objects := strings.Repeat(`{"":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1)
	require.False(t, Valid([]byte(objects)))
}

func FuzzReader(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Fuzz(checkDocument)
}

// checkDocument holds this package to encoding/json, which is the judge of what
// is valid and of what a valid document says. An invalid one may only not panic.
func checkDocument(t *testing.T, doc []byte) {
	valid := stdjson.Valid(doc)
	if got := Valid(doc); got != valid {
		t.Fatalf("Valid(%q) = %v", doc, got)
	}
	v := Parse(doc)
	if !valid {
		poke(v, 4)
		return
	}
	if !utf8.Valid(doc) {
		return // encoding/json replaces what is no UTF-8, a view cannot
	}
	dec := stdjson.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var want any
	if err := dec.Decode(&want); err != nil {
		return // nested too deeply for the decoder's own limits
	}
	compare(t, want, v)
}

func compare(t *testing.T, want any, v Value) {
	t.Helper()
	switch want := want.(type) {
	case nil:
		if !v.IsNull() || v.Kind() != Null || !v.Exists() {
			t.Fatalf("%q is null", v.Raw())
		}
	case bool:
		if got, err := v.Bool(); err != nil || got != want {
			t.Fatalf("%q: %v %v", v.Raw(), got, err)
		}
	case string:
		got, err := v.Text()
		if err != nil || got != want || v.Str() != want || v.Kind() != String {
			t.Fatalf("%q: %q %v, want %q", v.Raw(), got, err, want)
		}
		appended, err := v.AppendText([]byte("x"))
		if err != nil || string(appended) != "x"+want {
			t.Fatalf("%q appends %q %v", v.Raw(), appended, err)
		}
	case stdjson.Number:
		compareNumber(t, want, v)
	case []any:
		compareArray(t, want, v)
	case map[string]any:
		compareObject(t, want, v)
	}
}

func compareNumber(t *testing.T, want stdjson.Number, v Value) {
	t.Helper()
	if got, err := v.Number(); err != nil || got != want.String() || v.Kind() != Number {
		t.Fatalf("%q: %q %v", v.Raw(), got, err)
	}
	wantInt, intErr := want.Int64()
	if got, err := v.Int(); (err == nil) != (intErr == nil) || err == nil && got != wantInt {
		t.Fatalf("%q as an integer: %d %v, want %d %v", v.Raw(), got, err, wantInt, intErr)
	}
	wantFloat, floatErr := want.Float64()
	if got, err := v.Float(); (err == nil) != (floatErr == nil) || err == nil && got != wantFloat {
		t.Fatalf("%q as a float: %v %v, want %v %v", v.Raw(), got, err, wantFloat, floatErr)
	}
}

func compareArray(t *testing.T, want []any, v Value) {
	t.Helper()
	e := v.Elements()
	for i, w := range want {
		if !e.Next() {
			t.Fatalf("%q ends before element %d", v.Raw(), i)
		}
		compare(t, w, e.Value())
		if got := v.At(i); got != e.Value() {
			t.Fatalf("%q: At(%d) = %q", v.Raw(), i, got.Raw())
		}
	}
	if e.Next() || e.Err() != nil {
		t.Fatalf("%q goes on after element %d: %v", v.Raw(), len(want), e.Err())
	}
	if v.At(len(want)).Exists() || v.At(-1).Exists() {
		t.Fatalf("%q has an element too many", v.Raw())
	}
}

func compareObject(t *testing.T, want map[string]any, v Value) {
	t.Helper()
	last := map[string]Value{}
	m := v.Members()
	for m.Next() {
		last[m.Name()] = m.Value()
	}
	if m.Err() != nil || len(last) != len(want) {
		t.Fatalf("%q: %d members, %v", v.Raw(), len(last), m.Err())
	}
	for name, w := range want {
		got := v.Get(name)
		if got != last[name] {
			t.Fatalf("%q: Get(%q) = %q, the last is %q", v.Raw(), name, got.Raw(), last[name].Raw())
		}
		compare(t, w, got)
	}
}

// poke calls everything on a value that may be any bytes.
func poke(v Value, depth int) {
	_, _ = v.Text()
	_, _ = v.AppendText(nil)
	_, _ = v.Number()
	_, _ = v.Int()
	_, _ = v.Float()
	_, _ = v.Bool()
	_ = v.Kind().String()
	_ = v.Find(MustPointer("/a/0/~1"))
	if depth == 0 {
		return
	}
	poke(v.Get("a"), depth-1)
	poke(v.At(1), depth-1)
	m := v.Members()
	for m.Next() {
		_ = m.Name()
		poke(m.Value(), depth-1)
	}
	_ = m.Err()
	e := v.Elements()
	for e.Next() {
		poke(e.Value(), depth-1)
	}
	_ = e.Err()
}

func TestPointers(t *testing.T) {
	v := ParseString(`{"a/b":{"m~n":[10,{"":"deep"}]},"":1,"0":{"x":null}}`)
	for pointer, want := range map[string]string{
		"":                v.Raw(),
		"/a~1b/m~0n/0":    "10",
		"/a~1b/m~0n/1/":   `"deep"`,
		"/":               "1",
		"/0/x":            "null",
		"/a~1b/m~0n/00":   "",
		"/a~1b/m~0n/-":    "",
		"/a~1b/m~0n/2":    "",
		"/missing/deeper": "",
		"//x":             "",
	} {
		require.Equal(t, want, v.Find(MustPointer(pointer)).Raw(), pointer)
	}
	for _, bad := range []string{"a", "/~", "/~2", "/a~"} {
		_, err := NewPointer(bad)
		require.Error(t, err, bad)
	}
}

func TestErrorsSayWhatWasThere(t *testing.T) {
	v := ParseString(`{"a":"text","long":"` + strings.Repeat("ä", 50) + `"}`)
	_, err := v.Get("a").Int()
	require.EqualError(t, err, `want an integer of 64 bits, have a string: "text"`)
	_, err = v.Get("b").Text()
	require.EqualError(t, err, `want a string, have absent`)
	_, err = v.Get("long").Bool()
	require.ErrorContains(t, err, "…")
	require.True(t, utf8.ValidString(err.Error()))
	_, err = ParseString("?").Number()
	require.EqualError(t, err, "want a number, have no JSON")
}

func TestWalksTellMalformedFromEmpty(t *testing.T) {
	for doc, bad := range map[string]bool{
		`{}`: false, `{"a":1}`: false, `null`: false, ``: false,
		`{"a":1,}`: true, `{"a":1`: true, `{"a"}`: true, `{"a":1 "b":2}`: true, `[]`: true, `{,}`: true, `{}}`: true, `{1:2}`: true,
	} {
		m := ParseString(doc).Members()
		for m.Next() {
		}
		require.Equal(t, bad, m.Err() != nil, "%q", doc)
		require.False(t, m.Next())
	}
	for doc, bad := range map[string]bool{
		`[]`: false, `[1]`: false, `null`: false, ``: false,
		`[1,]`: true, `[1`: true, `[1 2]`: true, `{}`: true, `[,]`: true, `[]]`: true,
	} {
		e := ParseString(doc).Elements()
		for e.Next() {
		}
		require.Equal(t, bad, e.Err() != nil, "%q", doc)
	}
}

func TestWriter(t *testing.T) {
	var w Writer
	for range 2 { // the second time in the memory of the first
		w.Reset()
		w.BeginObject()
		w.Name("text").String("a\"\\\n\r\t\x00\x1fä\xff😀")
		w.Name("n").Int(math.MinInt64)
		w.Name("list").BeginArray()
		w.Int(1)
		w.Float(1.5)
		w.Float(math.NaN())
		w.Bool(true)
		w.Null()
		w.BeginObject()
		w.EndObject()
		w.EndArray()
		w.Name("raw").Raw("20000.00")
		w.Name("view").Value(ParseString(`{"a":[1]}`).Get("a"))
		w.Name("absent").Value(Value{})
		w.EndObject()
		require.Equal(t, `{"text":"a\"\\\n\r\t\u0000\u001fä`+"\ufffd"+`😀","n":-9223372036854775808,`+
			`"list":[1,1.5,null,true,null,{}],"raw":20000.00,"view":[1],"absent":null}`, string(w.Bytes()))
		require.True(t, Valid(w.Bytes()))
	}
}

func FuzzWriterString(f *testing.F) {
	f.Add("plain")
	f.Add("\x00\"\\\xff\u2028😀")
	f.Fuzz(func(t *testing.T, s string) {
		written := AppendString(nil, s)
		var back string
		require.NoError(t, stdjson.Unmarshal(written, &back))
		require.Equal(t, string([]rune(s)), back)
	})
}

func FuzzWriterFloat(f *testing.F) {
	f.Add(1e-7)
	f.Fuzz(func(t *testing.T, x float64) {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return
		}
		var w Writer
		w.Float(x)
		want, err := stdjson.Marshal(x)
		require.NoError(t, err)
		var got float64
		require.NoError(t, stdjson.Unmarshal(w.Bytes(), &got))
		require.Equal(t, math.Float64bits(x), math.Float64bits(got), "%s and %s", w.Bytes(), want)
	})
}

func TestHotPathAllocatesNothing(t *testing.T) {
	doc := []byte(documents[0])
	pointer := MustPointer("/case/AMOUNT_REQ")
	var w Writer
	var buf []byte
	allocs := testing.AllocsPerRun(100, func() {
		v := Parse(doc)
		if v.Get("org:resource").Str() != "112" {
			t.Fatal("resource")
		}
		if s, err := v.Find(pointer).Text(); err != nil || s != "20000" {
			t.Fatal(s, err)
		}
		m := v.Members()
		for m.Next() {
			buf = append(buf[:0], m.Name()...)
		}
		w.Reset()
		w.BeginObject()
		w.Name("amount").String("20000.00")
		w.EndObject()
	})
	require.Zero(t, allocs)
}

func BenchmarkGetTwo(b *testing.B) {
	doc := []byte(documents[0])
	pointer := MustPointer("/case/AMOUNT_REQ")
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		v := Parse(doc)
		if v.Get("org:resource").Str() == "" || v.Find(pointer).Str() == "" {
			b.Fatal("missing")
		}
	}
}

// A payload of the demo: ten members, the one that is wanted first.
func BenchmarkGetOfTen(b *testing.B) {
	doc := []byte(`{"amount":"586.41","currency":"EUR","channel":"app","payer":{"name":"City Transport","iban":"DE00000000000043046721"},"reference":"TX-0000001234","booked":true}`)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		if Parse(doc).Get("amount").Str() == "" {
			b.Fatal("missing")
		}
	}
}
