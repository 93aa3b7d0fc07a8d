package abi

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type pointerVector struct {
	Name    string `json:"name,omitempty"`
	Data    string `json:"data"` // "text:…" or "hex:…"
	Pointer string `json:"pointer"`
	Result  string `json:"result"` // absent, key or unresolved
	Key     string `json:"key,omitempty"`
	StandIn bool   `json:"stand_in,omitempty"`
}

var pointerStates = []string{"absent", "key", "unresolved"}

// pointerCases are the inputs of pointers.json; the results come from it.
var pointerCases = []pointerVector{
	{Name: "a string", Data: `{"a":"x"}`, Pointer: "/a"},
	{Name: "a number counts as it is spelled", Data: `{"a":1.50e+2}`, Pointer: "/a"},
	{Data: `{"a":-0}`, Pointer: "/a"},
	{Data: `{"a":12345678901234567890123}`, Pointer: "/a"},
	{Name: "absent, null and the empty string: not interested", Data: `{"b":1}`, Pointer: "/a"},
	{Data: `{"a":null}`, Pointer: "/a"},
	{Data: `{"a":""}`, Pointer: "/a"},
	{Name: "what is no string or number is unresolved", Data: `{"a":true}`, Pointer: "/a"},
	{Data: `{"a":false}`, Pointer: "/a"},
	{Data: `{"a":{}}`, Pointer: "/a"},
	{Data: `{"a":[]}`, Pointer: "/a"},
	{Name: "below a scalar there is nothing", Data: `{"a":"x"}`, Pointer: "/a/b"},
	{Data: `{"a":true}`, Pointer: "/a/b"},
	{Name: "nested", Data: ` { "a" : { "b" : [ 1 , { "c" : "x" } ] } } `, Pointer: "/a/b/1/c"},
	{Name: "the whole document", Data: `"x"`, Pointer: ""},
	{Data: `17`, Pointer: ""},
	{Data: `null`, Pointer: ""},
	{Data: `{"a":1}`, Pointer: ""},
	{Name: "the last of members with one name counts", Data: `{"a":"x","a":"y"}`, Pointer: "/a"},
	{Data: `{"a":"x","a":null}`, Pointer: "/a"},
	{Data: `{"a":true,"a":"y"}`, Pointer: "/a"},
	{Data: `{"a":"x","a":[]}`, Pointer: "/a"},
	{Name: "it replaces the earlier one whole", Data: `{"a":{"b":"x"},"a":{"c":"y"}}`, Pointer: "/a/b"},
	{Data: `{"a":"x","\u0061":"y"}`, Pointer: "/a"},
	{Name: "escapes in names and values", Data: `{"a\/b":"x"}`, Pointer: "/a~1b"},
	{Data: `{"m~n":"x"}`, Pointer: "/m~0n"},
	{Data: `{"~1":"x"}`, Pointer: "/~01"},
	{Data: `{"":"x"}`, Pointer: "/"},
	{Data: `{"\ud83d\ude00":"\uD83D\uDE00"}`, Pointer: "/\U0001F600"},
	{Data: `{"a":"\"\\\/\b\f\n\r\tä\u00e4"}`, Pointer: "/a"},
	{Data: `{"org:resource":112}`, Pointer: "/org:resource"},
	{Name: "elements of arrays", Data: `["a","b"]`, Pointer: "/1"},
	{Data: `["a","b"]`, Pointer: "/2"},
	{Data: `["a","b"]`, Pointer: "/-"},
	{Data: `["a","b"]`, Pointer: "/01"},
	{Data: `{"01":"x","-":"y"}`, Pointer: "/01"},
	{Data: `{"0":"x"}`, Pointer: "/0"},
	{Data: `["a"]`, Pointer: "/4294967296"},
	{Name: "told but not stored: a trailing space", Data: `{"a":"x "}`, Pointer: "/a"},
	{Name: "the same key, spelled differently", Data: `{"a":"x\u0020"}`, Pointer: "/a"},
	{Name: "told but not stored: U+0000", Data: `{"a":"x\u0000y"}`, Pointer: "/a"},
	{Name: "told but not stored: lone surrogates, hashed as the three bytes their code points would have",
		Data: `{"a":"\ud800"}`, Pointer: "/a"},
	{Data: `{"a":"\udc00\ud800x"}`, Pointer: "/a"},
	{Data: `{"a":"\ud800\u0041"}`, Pointer: "/a"},
	{Name: "told but not stored: more than 255 code points", Data: `{"a":"` + strings.Repeat("ä", 256) + `"}`, Pointer: "/a"},
	{Name: "255 code points can be stored", Data: `{"a":"` + strings.Repeat("ä", 255) + `"}`, Pointer: "/a"},
	{Name: "told but not stored: not UTF-8", Data: "{\"a\":\"\xff\"}", Pointer: "/a"},
	{Name: "data that is not JSON is unresolved", Data: ``, Pointer: "/a"},
	{Data: `{"a":"x"`, Pointer: "/a"},
	{Data: `{"a":"x"}}`, Pointer: "/a"},
	{Data: `{"a":"x"} 1`, Pointer: "/a"},
	{Data: `{"a":"x",}`, Pointer: "/a"},
	{Data: `{"a":"x","b":01}`, Pointer: "/a"},
	{Data: `{"a":"x","b":.5}`, Pointer: "/a"},
	{Data: `{"a":"x","b":"\x"}`, Pointer: "/a"},
	{Data: "{\"a\":\"x\ty\"}", Pointer: "/a"},
	{Data: "\ufeff{\"a\":\"x\"}", Pointer: "/a"},
	{Data: `{"a":"x","b":nul}`, Pointer: "/a"},
	{Data: `{a:"x"}`, Pointer: "/a"},
}

func TestGoldenPointers(t *testing.T) {
	vectors := append([]pointerVector(nil), pointerCases...)
	for i := range vectors {
		v := &vectors[i]
		r := Pointer([]byte(v.Data), v.Pointer)
		v.Result, v.Key, v.StandIn = pointerStates[r.State], r.Key, r.StandIn
		v.Data = blob([]byte(v.Data))
	}
	golden(t, "pointers.json", vectors)
}

// TestPointersInOnePass looks up all pointers of pointers.json that share a
// document at once.
func TestPointersInOnePass(t *testing.T) {
	for _, v := range pointerCases {
		pointers := []string{"/a", "/a", "/b", v.Pointer, "/a/b", "", "/a/b/1/c"}
		p, err := CompilePointers(pointers...)
		require.NoError(t, err)
		require.Equal(t, len(pointers), p.Len())
		got := p.Extract([]PointerResult{{Key: "kept"}}, []byte(v.Data))
		require.Equal(t, "kept", got[0].Key)
		for i, r := range got[1:] {
			require.Equal(t, Pointer([]byte(v.Data), pointers[i]), r, "%s at %q", v.Data, pointers[i])
		}
	}
}

func TestKeysOfPointersAreASet(t *testing.T) {
	p, err := CompilePointers("/from", "/to", "/by")
	require.NoError(t, err)
	for data, want := range map[string][]string{
		`{"from":"a","to":"b","by":"c"}`:    {"a", "b", "c"},
		`{"from":"a","to":"a","by":"c"}`:    {"a", "c"},
		`{"from":"1","to":1,"by":"\u0031"}`: {"1"},
		`{"to":"b"}`:                        {"b"},
		`{}`:                                {},
	} {
		keys, ok := p.Keys([]string{"before"}, []byte(data))
		require.True(t, ok, data)
		require.Equal(t, append([]string{"before"}, want...), keys, data)
	}
	for _, data := range []string{`{"from":"a","to":true}`, `{"from":"a"`, `[1,]`} {
		keys, ok := p.Keys([]string{"before"}, []byte(data))
		require.False(t, ok, data)
		require.Equal(t, []string{"before"}, keys)
	}
}

func TestStorableKey(t *testing.T) {
	type vector struct {
		Key     string `json:"key"` // "text:…" or "hex:…"
		Problem string `json:"problem,omitempty"`
		Stored  string `json:"stored_as"`
	}
	var vectors []vector
	for _, k := range []string{
		"a", " a", "Ä-7", "\U0001F600", "a\tb", "#sha256:x", strings.Repeat("k", 255), strings.Repeat("\U0001F600", 255),
		"", "a ", " ", "a\x00", "\xff", "\xed\xa0\x80", strings.Repeat("k", 256), strings.Repeat("\U0001F600", 256),
	} {
		stored, ok := StorableKey([]byte(k))
		require.Equal(t, ok, CheckKey(k) == nil)
		require.Equal(t, ok, stored == k)
		require.NoError(t, CheckKey(stored))
		vectors = append(vectors, vector{blob([]byte(k)), checkKey([]byte(k)), stored})
	}
	golden(t, "storable.json", vectors)
}

func TestCompilePointersRefuses(t *testing.T) {
	for _, bad := range []string{"a", "#/a", "/a~", "/~2", "/a~x/b", " /a"} {
		_, err := CompilePointers("/ok", bad)
		require.ErrorIs(t, err, ErrMalformed, bad)
		require.Equal(t, PointerResult{State: PointerUnresolved}, Pointer([]byte(`{}`), bad))
	}
}

// one wraps parts of a manifest into a whole one.
func one(consumer string) string {
	return `{"abi":1,"name":"p","version":"1","consumers":[{` + consumer + `}]}`
}

func table(columns string) string {
	return one(`"type":"projection","name":"c","inputs":[{"topic":"events","types":["*"],"key":"aggregate_id"}],` +
		`"tables":[{"name":"t","columns":[` + columns + `]}]`)
}

func owner(tables string) string {
	return one(`"type":"projection","name":"c","distribution":"single-owner",` +
		`"inputs":[{"topic":"events","types":["*"],"key":"aggregate_id"}],"tables":[` + tables + `]`)
}

func input(in string) string {
	return one(`"type":"projection","name":"c","inputs":[` + in + `],"tables":[{"name":"t","columns":[]}]`)
}

const okInput = `"inputs":[{"topic":"events","types":["*"],"key":"aggregate_id"}]`

var manifestCases = []struct{ name, manifest string }{
	{"the example of docs/abi.md", loansManifest},
	{"child table with declared keys, several pointers", one(`"type":"projection","name":"resources",
	  "inputs":[{"topic":"events","types":["A"],"key":{"pointer":"/org:resource"}},
	            {"topic":"events","types":["B"],"key":{"pointers":["/from","/to"]}}],
	  "tables":[{"name":"resources","columns":[{"name":"events","kind":"int","null":false,"default":0}]},
	            {"name":"seen","parent":"resources","child":"aggregate_id","columns":[]},
	            {"name":"lines","parent":"resources","child":{"pointer":"/line"},"columns":[]}]`)},
	{"single owner: unique and free", owner(`{"name":"t","columns":[{"name":"mail","kind":"text","max":255,"unique":true}]},
	  {"name":"u","free":true,"columns":[]},{"name":"v","free":true,"parent":"u","columns":[]}`)},
	{"keys by function, capabilities, heap", `{"abi":1,"name":"my-plugin","version":"2","heap":"16MiB","capabilities":["send:invoices","http:https://api.example.com"],
	  "consumers":[{"type":"projection","name":"c-1","state_version":3,"ignore_on_replay":true,
	   "inputs":[{"topic":"read-model:orders","types":["*"],"key":"function","keys_version":2}],"tables":[{"name":"t","columns":[]}]}]}`},
	{"a saga and a handler", `{"abi":1,"name":"p","version":"1","consumers":[
	  {"type":"saga","name":"s","inputs":[{"topic":"events","types":["A"],"associations":{"order":"/orderId","customer":"/c"}}],"tables":[{"name":"s","columns":[{"name":"state","kind":"json"}]}]},
	  {"type":"handler","name":"s","aliases":["old-name"],"inputs":[{"topic":"capture","types":["B"],"key":"aggregate_id"}]}]}`},
	{"every kind with a default", table(`{"name":"a","kind":"text","default":"x\u00e4"},{"name":"b","kind":"int","default":-9223372036854775808},
	  {"name":"c","kind":"decimal","precision":38,"scale":10,"default":"-1.50"},{"name":"d","kind":"float","default":1e3},
	  {"name":"e","kind":"bool","default":false},{"name":"f","kind":"date","default":"2024-02-29"},{"name":"g","kind":"time","default":"23:59:59.5"},
	  {"name":"h","kind":"timestamp","default":"1969-12-31T23:59:59.999999Z"},{"name":"i","kind":"uuid","default":"6f1c2c9e-2b1d-7c3e-8f00-0123456789ab"},
	  {"name":"j","kind":"bytes","default":"AP8="},{"name":"k","kind":"json","default":{ "a" : [1] }},{"name":"l","kind":"decimal","precision":4,"scale":2,"default":12}`)},
	{"columns from a document", table(`{"name":"doc","kind":"json"},{"name":"city","kind":"text","max":80,"index":true,"from":"/address/city","of":"doc"}`)},

	{"not JSON", `{"abi":1,`},
	{"not an object", `[]`},
	{"nothing in it", `{}`},
	{"a later ABI", `{"abi":2,"name":"p","version":"1","consumers":[]}`},
	{"wrong types", `{"abi":"1","name":1,"version":null,"consumers":{},"capabilities":[1],"heap":true}`},
	{"unknown members, one of them twice, one in capitals", `{"abi":1,"Name":"p","name":"p","version":"1","version":"2","x y":1,"consumers":[]}`},
	{"SQL in names", table(`{"name":"a\"; DROP TABLE x; --","kind":"int"}`)},
	{"reserved names", table(`{"name":"ph_position","kind":"int"},{"name":"KEY","kind":"int"},{"name":"Child","kind":"int"},{"name":"PH_x","kind":"int"}`)},
	{"names that are too long or odd", table(`{"name":"` + strings.Repeat("a", 48) + `","kind":"int"},{"name":"` + strings.Repeat("a", 49) + `","kind":"int"},
	  {"name":"","kind":"int"},{"name":"1a","kind":"int"},{"name":"a-b","kind":"int"},{"name":"ä","kind":"int"},{"name":"_a","kind":"int"}`)},
	{"names taken, compared without case", `{"abi":1,"name":"p","version":"1","consumers":[
	  {"type":"projection","name":"c",` + okInput + `,"tables":[{"name":"t","columns":[{"name":"a","kind":"int"},{"name":"A","kind":"int"}]},{"name":"T","columns":[]}]},
	  {"type":"projection","name":"C",` + okInput + `,"tables":[{"name":"t","columns":[]}]}]}`},
	{"kinds and their limits", table(`{"name":"a","kind":"string"},{"name":"b","kind":"decimal"},{"name":"c","kind":"decimal","precision":39},
	  {"name":"d","kind":"decimal","precision":4,"scale":5},{"name":"e","kind":"int","max":3},{"name":"f","kind":"text","max":0},
	  {"name":"g","kind":"int","precision":3,"scale":1},{"name":"h","kind":"text","max":1.5},{"name":"i"}`)},
	{"indexes and unique", table(`{"name":"a","kind":"text","index":true},{"name":"b","kind":"text","max":256,"index":true},{"name":"c","kind":"json","index":true},
	  {"name":"d","kind":"int","unique":true},{"name":"e","kind":"bytes","unique":true}`)},
	{"defaults that do not fit", table(`{"name":"a","kind":"text","max":2,"default":"abc"},{"name":"b","kind":"int","default":1.5},{"name":"c","kind":"int","default":9223372036854775808},
	  {"name":"d","kind":"decimal","precision":3,"scale":1,"default":"100.5"},{"name":"e","kind":"decimal","precision":3,"scale":1,"default":"1.05"},
	  {"name":"f","kind":"date","default":"2023-02-29"},{"name":"g","kind":"time","default":"24:00:00"},{"name":"h","kind":"timestamp","default":"2024-01-01T00:00:00+01:00"},
	  {"name":"i","kind":"uuid","default":"6f1c2c9e2b1d7c3e8f000123456789ab"},{"name":"j","kind":"bytes","default":"AP8"},{"name":"k","kind":"bool","default":null},
	  {"name":"l","kind":"float","default":1e999},{"name":"m","kind":"bool","default":"true"},{"name":"n","kind":"text","default":"\u0000"},{"name":"o","kind":"decimal","precision":3,"default":"+1"}`)},
	{"from and of", table(`{"name":"doc","kind":"json"},{"name":"a","kind":"int","from":"/a"},{"name":"b","kind":"int","of":"doc"},{"name":"c","kind":"int","from":"c","of":"doc"},
	  {"name":"d","kind":"int","from":"/d","of":"nope"},{"name":"e","kind":"int","from":"/e","of":"a"},{"name":"f","kind":"json","from":"/f","of":"f"},{"name":"g","kind":"int","from":"","of":"doc"}`)},
	{"parents and children", owner(`{"name":"a","parent":"nope","columns":[]},{"name":"b","parent":"b","columns":[]},{"name":"c","columns":[],"child":"aggregate_id"},
	  {"name":"d","parent":"c","columns":[],"child":"function"},{"name":"e","parent":"d","columns":[],"child":{"pointers":["/a","/b"]}},{"name":"f","free":true,"parent":"c","columns":[]}`)},
	{"free without single owner", one(`"type":"projection","name":"c",` + okInput + `,"tables":[{"name":"t","free":true,"columns":[]}]`)},
	{"key rules", input(`{"topic":"events","types":["A"],"key":"id"},{"topic":"events","types":["A"],"key":{"pointer":"a"}},{"topic":"events","types":["A"],"key":{"pointers":[]}},
	  {"topic":"events","types":["A"],"key":{"pointer":"/a","pointers":["/b"]}},{"topic":"events","types":["A"],"key":{"path":"/a"}},{"topic":"events","types":["A"],"key":7},
	  {"topic":"events","types":["A"]},{"topic":"events","types":["A"],"key":"aggregate_id","keys_version":1},{"topic":"events","types":["A"],"key":"function","keys_version":0},
	  {"topic":"events","types":["A"],"key":{}}`)},
	{"inputs", input(`{"topic":"","types":["A"],"key":"aggregate_id"},{"topic":"events","types":[],"key":"aggregate_id"},{"topic":"events","types":["A","*"],"key":"aggregate_id"},
	  {"topic":"events","types":["A","A"],"key":"aggregate_id"},{"topic":"events","types":["A "],"aggregate_types":[],"key":"aggregate_id"},
	  {"topic":"a:b:c","types":["A"],"aggregate_types":["*"],"key":"aggregate_id"},{"topic":"events","types":["A"],"associations":{"o":"/o"},"key":"aggregate_id"}`)},
	{"consumers", `{"abi":1,"name":"p","version":"1","heap":"16MB","capabilities":["send:a","send:a",":x",""],"consumers":[
	  {"type":"view","name":"c",` + okInput + `},{"type":"projection","name":"c","distribution":"many",` + okInput + `},
	  {"type":"saga","name":"c",` + okInput + `,"tables":[]},{"type":"handler","name":"c",` + okInput + `,"tables":[{"name":"t","columns":[]}]},
	  {"type":"projection","name":"d","aliases":["e"],"inputs":[],"tables":[{"name":"u","columns":[]}]},{"type":"handler","name":"f","aliases":["C"],` + okInput + `}]}`},
}

func TestGoldenManifests(t *testing.T) {
	type vector struct {
		Name     string          `json:"name"`
		Manifest string          `json:"manifest"`
		Parsed   json.RawMessage `json:"parsed,omitempty"`
		Problems []string        `json:"problems,omitempty"`
	}
	var vectors []vector
	for _, c := range manifestCases {
		v := vector{Name: c.name, Manifest: c.manifest}
		m, err := ParseManifest([]byte(c.manifest))
		if err != nil {
			problems := &ManifestError{}
			require.ErrorAs(t, err, &problems)
			require.Nil(t, m)
			v.Problems = problems.Problems
		} else {
			v.Parsed = m.AppendJSON(nil)
			again, err := ParseManifest(v.Parsed)
			require.NoError(t, err)
			require.Equal(t, m, again)
			require.NoError(t, m.Validate())
		}
		vectors = append(vectors, v)
	}
	golden(t, "manifests.json", vectors)
}

func TestDefaultValues(t *testing.T) {
	for _, c := range manifestCases {
		if c.name != "every kind with a default" {
			continue
		}
		m, err := ParseManifest([]byte(c.manifest))
		require.NoError(t, err)
		var got []valueVector
		for _, col := range m.Consumers[0].Tables[0].Columns {
			v, ok := col.DefaultValue()
			require.True(t, ok)
			got = append(got, describeValue(v))
		}
		require.Equal(t, []valueVector{
			{"text", "xä"}, {"int", "-9223372036854775808"}, {"decimal", "-1.50"}, {"float", "408f400000000000"},
			{"false"}, {"date", "19782"}, {"time", "86399500000"}, {"timestamp", "-1"},
			{"uuid", "6f1c2c9e2b1d7c3e8f000123456789ab"}, {"bytes", "00ff"}, {"json", `{ "a" : [1] }`}, {"decimal", "12"},
		}, got)
	}
}

// malformedCases must be refused by every decoder of that message.
func TestGoldenMalformed(t *testing.T) {
	type vector struct {
		Message string        `json:"message"`
		Name    string        `json:"name"`
		Tables  []shapeVector `json:"tables,omitempty"`
		Hex     string        `json:"hex"`
		Error   string        `json:"error"`
	}
	frame := AppendFrame(nil, 0, sampleEntries(1))
	edit := func(b []byte, at int, with ...byte) []byte {
		b = append([]byte(nil), b...)
		copy(b[at:], with)
		return b
	}
	tables := []shapeVector{{}, {Child: true}, {Free: true}}
	vectors := []vector{
		{Message: "frame", Name: "empty", Hex: ""},
		{Message: "frame", Name: "other magic", Hex: hex.EncodeToString(edit(frame, 0, 'X'))},
		{Message: "frame", Name: "cut in the header", Hex: hex.EncodeToString(frame[:15])},
		{Message: "frame", Name: "cut in the last entry", Hex: hex.EncodeToString(frame[:len(frame)-1])},
		{Message: "frame", Name: "more entries than there are", Hex: hex.EncodeToString(edit(frame, 12, 2))},
		{Message: "frame", Name: "fewer entries than there are", Hex: hex.EncodeToString(edit(frame, 12, 0))},
		{Message: "frame", Name: "an entry that ends within its fields", Hex: hex.EncodeToString(edit(frame, 16, 60, 0, 0, 0))},
		{Message: "frame", Name: "a length beyond the entry", Hex: hex.EncodeToString(edit(frame, 72, 255, 255, 255, 255))},
		{Message: "frame", Name: "a byte after the last entry", Hex: hex.EncodeToString(append(edit(frame, 0), 0))},

		{Message: "value", Name: "empty", Hex: ""},
		{Message: "value", Name: "unknown tag", Hex: "0d"},
		{Message: "value", Name: "cut", Hex: "03000000"},
		{Message: "value", Name: "NaN", Hex: "04000000000000f87f"},
		{Message: "value", Name: "infinity", Hex: "04000000000000f0ff"},
		{Message: "value", Name: "text longer than the input", Hex: "05ffffffff61"},
		{Message: "value", Name: "UUID of 15 bytes", Hex: "0b000000000000000000000000000000"},

		{Message: "row", Name: "fewer values than announced", Hex: "020000"},
		{Message: "row", Name: "bytes after the last value", Hex: "01000000"},
		{Message: "row", Name: "unknown tag", Hex: "0100ff"},

		{Message: "ops", Name: "cut count", Hex: "010000"},
		{Message: "ops", Name: "more ops than fit", Hex: "ffffffff"},
		{Message: "ops", Name: "bytes after the last op", Hex: "0000000000"},
		{Message: "ops", Name: "unknown op", Hex: "01000000070000"},
		{Message: "ops", Name: "table not declared", Hex: "01000000040900"},
		{Message: "ops", Name: "child key empty", Hex: "0100000004010000000000"},
		{Message: "ops", Name: "child key with a trailing space", Hex: "01000000040100020000006120"},
		{Message: "ops", Name: "child key with U+0000", Hex: "010000000401000100000000"},
		{Message: "ops", Name: "key not UTF-8", Hex: "0100000004020001000000ff"},
		{Message: "ops", Name: "delete_children of a table without", Hex: "01000000060000"},
		{Message: "ops", Name: "a column twice", Hex: "0100000001000002000100000100" + "00"},
		{Message: "ops", Name: "a column beyond the limit", Hex: "01000000010000010000010" + "0"},
		{Message: "ops", Name: "text with U+0000", Hex: "0100000001000001000000050100000000"},
		{Message: "ops", Name: "text not UTF-8", Hex: "01000000010000010000000501000000ff"},
		{Message: "ops", Name: "json not UTF-8", Hex: "01000000010000010000000c01000000ff"},
		{Message: "ops", Name: "decimal with U+0000", Hex: "0100000001000001000000070100000000"},
		{Message: "ops", Name: "NaN", Hex: "010000000100000100000004000000000000f87f"},
		{Message: "ops", Name: "add of a float", Hex: "010000000500000100000004000000000000f03f"},
		{Message: "ops", Name: "add of null", Hex: "0100000005000001000000" + "00"},
		{Message: "ops", Name: "deadline without a name", Hex: "0100000011" + "00000000" + "0000000000000000" + "00000000"},

		{Message: "keys", Name: "empty", Hex: ""},
		{Message: "keys", Name: "an empty key", Hex: "0100000000000000"},
		{Message: "keys", Name: "more than 1000", Hex: "e9030000"},
		{Message: "keys", Name: "not UTF-8", Hex: "0100000001000000ff"},
		{Message: "keys", Name: "bytes after the last key", Hex: "0000000000"},

		{Message: "get_many", Name: "fewer rows than announced", Hex: "01000000"},
		{Message: "get_many", Name: "table not declared", Hex: "010000000900"},
		{Message: "get_many", Name: "no child key", Hex: "01000000010000000000"},
		{Message: "get_many", Name: "bytes after the last row", Hex: "0000000000"},

		{Message: "found", Name: "neither present nor absent", Hex: "0100000002"},
		{Message: "found", Name: "present without a row", Hex: "0100000001"},
		{Message: "children", Name: "a child without a row", Hex: "010000000100000061"},
		{Message: "children", Name: "bytes after the last child", Hex: "0000000000"},
	}
	for i := range vectors {
		v := &vectors[i]
		b := fromHex(t, v.Hex)
		if v.Message == "ops" || v.Message == "get_many" {
			v.Tables = tables
		}
		err := decode(v.Message, b, tables)
		require.ErrorIs(t, err, ErrMalformed, "%s: %s", v.Message, v.Name)
		var malformed *MalformedError
		require.ErrorAs(t, err, &malformed)
		require.LessOrEqual(t, malformed.Offset, len(b))
		v.Error = err.Error()
	}
	golden(t, "malformed.json", vectors)
}

// decode reads a message to its end.
func decode(message string, b []byte, tables []shapeVector) error {
	switch message {
	case "frame":
		f, err := ParseFrame(b)
		for more := err == nil; more && err == nil; {
			var e Entry
			more, err = f.Next(&e)
		}
		return err
	case "value":
		_, _, err := ReadValue(b)
		return err
	case "row":
		_, err := ReadRow(b, nil)
		return err
	case "ops":
		_, err := readOps(b, tables)
		return err
	case "keys":
		return ReadKeys(b, func([]byte) error { return nil })
	case "get_many":
		return ReadGetMany(b, shapesOf(tables), func(uint16, []byte) error { return nil })
	case "found":
		return ReadFound(b, func(int, []byte) error { return nil })
	case "children":
		return ReadChildren(b, func(_, _ []byte) error { return nil })
	}
	panic(message)
}

// TestDecodersStayInsideTheirInput gives each decoder a part of a message,
// with the rest, and then garbage, right behind it in the same array. Nothing
// of that may show.
func TestDecodersStayInsideTheirInput(t *testing.T) {
	tables := []shapeVector{{}, {Child: true}, {Free: true}, {Free: true, Child: true}}
	for message, source := range map[string][2]string{
		"frame": {"frames.json", "hex"}, "value": {"values.json", "hex"}, "row": {"rows.json", "hex"},
		"ops": {"ops.json", "hex"}, "keys": {"keys.json", "hex"}, "get_many": {"get_many.json", "request_hex"},
		"found": {"get_many.json", "answer_hex"}, "children": {"list.json", "hex"},
	} {
		for _, whole := range goldenBytes(t, source[0], source[1]) {
			require.NoError(t, decode(message, whole, tables))
			for n := range whole {
				alone := decode(message, append([]byte(nil), whole[:n]...), tables)
				require.Equal(t, alone, decode(message, whole[:n], tables), "%s, %d of %d bytes", message, n, len(whole))
				if n > 0 && message != "value" {
					require.ErrorIs(t, alone, ErrMalformed, "%s, %d of %d bytes", message, n, len(whole))
				}
			}
		}
	}
}

// TestCountsAreBelievedOnlyIfTheyFit: callers make room by them.
func TestCountsAreBelievedOnlyIfTheyFit(t *testing.T) {
	frame := AppendFrame(nil, 0, sampleEntries(2))
	PutCount(frame[12:], 1<<31)
	_, err := ParseFrame(frame)
	require.ErrorIs(t, err, ErrMalformed)
	r := ReadOps([]byte{0xff, 0xff, 0xff, 0x7f, 19}, plainTable)
	require.Zero(t, r.Len())
	_, err = r.Next(&Op{})
	require.ErrorIs(t, err, ErrMalformed)
}

// TestErrorsOfCallbacksComeBack as they are, and at once.
func TestErrorsOfCallbacksComeBack(t *testing.T) {
	stop := errors.New("stop")
	calls := 0
	each := func([]byte) error { calls++; return stop }
	require.Equal(t, stop, ReadKeys(AppendKeys(nil, "a", "b"), each))
	require.Equal(t, stop, ReadGetMany(AppendGetMany(nil, make([]GetKey, 2)), plainTable, func(uint16, []byte) error { return each(nil) }))
	require.Equal(t, stop, ReadFound(AppendFound(AppendFound(AppendCount(nil, 2), nil), nil), func(int, []byte) error { return each(nil) }))
	row := AppendRow(nil, nil)
	require.Equal(t, stop, ReadChildren(AppendChild(AppendChild(AppendCount(nil, 2), "a", row), "b", row), func(_, _ []byte) error { return each(nil) }))
	require.Equal(t, 4, calls)
}
