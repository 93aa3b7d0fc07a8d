package readmodel

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
)

func TestAppendJSON(t *testing.T) {
	every, _ := everyKind(t)
	row, err := every.Upsert(op(t, every, "t", abi.Text("a\"\\\n\r\t\x01ä😀\u2028</script>"), "i", abi.Int(math.MinInt64), "d", abi.Decimal("-1"),
		"f", abi.Float(1e21), "b", abi.Bool(false), "day", abi.Date(dateMin), "clock", abi.Time(1), "at", abi.Timestamp(timestampMax),
		"id", abi.UUID([]byte("0123456789abcdef")), "raw", abi.Bytes([]byte{0xfb, 0xff}), "doc", abi.JSON([]byte(`{"b": 1, "a": [1.50]}`))))
	require.NoError(t, err)
	require.Equal(t, `{"t":"a\"\\\n\r\t\u0001ä😀`+"\u2028"+`</script>","short":null,"i":-9223372036854775808,"d":"-1.00","big":null,"narrow":null,"f":1e+21,"b":false,`+
		`"day":"1000-01-01","clock":"00:00:00.000001","at":"9999-12-31T23:59:59.999999Z","id":"30313233-3435-3637-3839-616263646566","raw":"+/8=","doc":{"b": 1, "a": [1.50]}}`,
		string(every.AppendJSON(nil, row)))

	rapid.Check(t, func(t *rapid.T) {
		got := every.AppendJSON(nil, drawRow(t, every, "row"))
		if !json.Valid(got) {
			t.Fatalf("not JSON: %s", got)
		}
	})
}

// The text form of a value is read back as the same value.
func TestTextFormsAreReadBack(t *testing.T) {
	every, _ := everyKind(t)
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(every.Columns)-1).Draw(t, "column")
		v := drawValue(&every.Columns[i]).Draw(t, "value")
		v, reason := canon(&every.Columns[i], v)
		if reason != "" || v.Tag == abi.TagNull {
			return
		}
		text := string(AppendText(nil, v))
		again, err := every.ParseText(i, text)
		if err != nil || string(abi.AppendValue(nil, again)) != string(abi.AppendValue(nil, v)) {
			t.Fatalf("%q became %+v (%v)", text, again, err)
		}
	})
}

func TestParseText(t *testing.T) {
	every, _ := everyKind(t)
	for _, test := range []struct{ column, text, want string }{
		{"i", "-5", "-5"}, {"i", "+5", "!not a 64-bit integer"}, {"i", "", "!not a 64"}, {"i", "1.0", "!not a 64"}, {"i", "9223372036854775808", "!not a 64"}, {"i", "1_000", "!not a 64"},
		{"d", "1.5", "1.50"}, {"d", "1e3", "!not a decimal"}, {"d", "1.001", "!fewer digits"},
		{"f", "1e3", "1000"}, {"f", "-0", "0"}, {"f", "NaN", "!not a finite"}, {"f", "inf", "!not a finite"}, {"f", "0x1p3", "!not a finite"}, {"f", "1e999", "!not a finite"},
		{"b", "true", "true"}, {"b", "1", "!not true or false"},
		{"day", "2024-02-29", "2024-02-29"}, {"day", "2023-02-29", "!not a date"}, {"day", "0999-12-31", "!not a date"}, {"day", "2024-2-29", "!not a date"}, {"day", "10000-01-01", "!not a date"},
		{"clock", "23:59:59", "23:59:59.000000"}, {"clock", "24:00:00", "!not a time"}, {"clock", "23:59:60", "!not a time"}, {"clock", "23:59", "!not a time"}, {"clock", "23:59:59.", "!not a time"}, {"clock", "01:02:03.1234567", "01:02:03.123456"},
		{"at", "2011-10-01T00:38:44.546+02:00", "2011-09-30T22:38:44.546000Z"}, {"at", "2011-10-01 00:38:44", "2011-10-01T00:38:44.000000Z"},
		{"at", "2011-10-01T00:38:44.999999999Z", "2011-10-01T00:38:44.999999Z"}, {"at", "2011-10-01", "!not a timestamp"}, {"at", "9999-12-31T23:59:59-01:00", "!not a timestamp"},
		{"at", "2011-10-01T00:38:44+25:00", "!not a timestamp"}, {"at", "2011-10-01T00:38:44 02:00", "!not a timestamp"},
		{"id", "96F9A74E-4bb1-5940-b42b-1789908e7cf0", "96f9a74e-4bb1-5940-b42b-1789908e7cf0"}, {"id", "96F9A74E4bb15940b42b1789908e7cf0", "!not a UUID"}, {"id", strings.Repeat("-", 36), "!not a UUID"},
		{"raw", "AA==", "AA=="}, {"raw", "AA", "!not base64"},
		{"short", "ä", "ä"}, {"short", "12345678901", "!longer than text(10)"}, {"short", "\xff", "!UTF-8"},
	} {
		i, ok := every.ColumnByName(test.column)
		require.True(t, ok)
		v, err := every.ParseText(i, test.text)
		if want, refused := strings.CutPrefix(test.want, "!"); refused {
			var value *ValueError
			require.ErrorAs(t, err, &value, test.text)
			require.ErrorContains(t, err, want, test.text)
			continue
		}
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, string(AppendText(nil, v)))
	}
}

// The calendar agrees with package time on every day and at random instants.
func TestCalendar(t *testing.T) {
	day := time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)
	for d := int64(dateMin); d <= dateMax; d += 1 {
		y, m, dd := civil(d)
		if ty, tm, td := day.Date(); y != ty || m != int(tm) || dd != td {
			t.Fatalf("day %d is %d-%d-%d, not %v", d, y, m, dd, day)
		}
		if days(y, m, dd) != d {
			t.Fatalf("%v is day %d, not %d", day, days(y, m, dd), d)
		}
		day = day.AddDate(0, 0, 1)
	}
	rapid.Check(t, func(t *rapid.T) {
		us := rapid.Int64Range(timestampMin, timestampMax).Draw(t, "us")
		want := time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000000Z")
		if got := string(append(appendTimestamp(nil, us, 'T'), 'Z')); got != want {
			t.Fatalf("%s, not %s", got, want)
		}
		zone := time.FixedZone("", 60*rapid.IntRange(-23*60, 23*60).Draw(t, "zone"))
		text := time.UnixMicro(us).In(zone).Format(time.RFC3339Nano)
		if got, ok := parseTimestamp(text); len(text) >= 4 && text[:4] >= "1000" && text[:4] <= "9999" && text[4] == '-' && (!ok || got != us) {
			t.Fatalf("%s is %d, not %d", text, got, us)
		}
	})
}

func FuzzValidJSON(f *testing.F) {
	for _, s := range append(nastyJSON, "", " ", "{", `{"a"}`, `{"a":1,}`, "[1,]", "01", "1.", "-", "1e", `"\x"`, `"\u12"`, "\"\x1f\"", "\"\xff\"", "nul", "tru e", "[1 2]", `{1:2}`, `"abcdefgh\"ijklmnop"`, "1 2") {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := json.Valid(b) && utf8.Valid(b)
		if got := validJSON(b); got != want && !(want && strings.Count(string(b), "[")+strings.Count(string(b), "{") > jsonDepthMax) {
			t.Fatalf("%q: valid is %v, encoding/json says %v", b, got, want)
		}
	})
}

func TestJSONDepth(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat(`[`, n) + strings.Repeat(`]`, n)) }
	require.True(t, validJSON(deep(jsonDepthMax-1)))
	require.False(t, validJSON(deep(jsonDepthMax+1)))
	require.False(t, validJSON(deep(1_000_000)))
}

// Pointers find what encoding/json finds.
func FuzzPointer(f *testing.F) {
	for _, doc := range append(nastyJSON, `{"a":{"b":[1,{"c":"x"}]}}`, `{"a\u002fb":1,"~":2,"":3}`, `{"\u0061":1}`) {
		for _, p := range []string{"", "/a", "/a/b/1/c", "/a~1b", "/~0", "/", "/b/a", "/0", "/01", "/-"} {
			f.Add([]byte(doc), p)
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte, text string) {
		p, ok := parsePointer(text)
		if !ok || !validJSON(doc) {
			return
		}
		raw := p.find(doc)
		var value any
		if err := json.Unmarshal(doc, &value); err != nil {
			return
		}
		want, found := walk(value, p)
		if (raw != nil) != found {
			t.Fatalf("%s in %s: found %v, expected %v", text, doc, raw != nil, found)
		}
		if !found {
			return
		}
		var got any
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatalf("%s in %s gave %q: %v", text, doc, raw, err)
		}
		require.Equal(t, want, got)
		// Every kind either takes the value or says why not.
		for k := Text; k <= JSON; k++ {
			c := Column{Kind: k, Precision: 38, Scale: 10, Nullable: true, Max: 0}
			if b, reason := c.appendJSONValue(nil, raw); reason == "" {
				v, n, ok := readValue(b)
				if !ok || n != len(b) {
					t.Fatalf("%s as %s gave %x", raw, k, b)
				}
				if again, reason := c.appendCanonical(nil, &v); reason != "" || string(again) != string(b) {
					t.Fatalf("%s as %s is not canonical: %x, %x", raw, k, b, again)
				}
			}
		}
	})
}

// walk follows a pointer in what encoding/json made of a document.
func walk(v any, p pointer) (any, bool) {
	for _, token := range p {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[token]; !ok {
				return nil, false
			}
		case []any:
			n := 0
			if token == "" || len(token) > 9 || len(token) > 1 && token[0] == '0' || strings.Trim(token, "0123456789") != "" {
				return nil, false
			}
			for _, c := range token {
				n = n*10 + int(c-'0')
			}
			if n >= len(x) {
				return nil, false
			}
			v = x[n]
		default:
			return nil, false
		}
	}
	return v, true
}

// Whatever text a URL brings, a column takes it in canonical form or refuses it.
func FuzzParseText(f *testing.F) {
	every, _ := everyKind(f)
	for i := range every.Columns {
		for _, s := range append(nastyTexts, "1.5", "-0", "2011-10-01T00:38:44.546+02:00", "96f9a74e-4bb1-5940-b42b-1789908e7cf0", "01:02:03.5", "AA==", "1e308", "true") {
			f.Add(i, s)
		}
	}
	f.Fuzz(func(t *testing.T, i int, text string) {
		if i < 0 || i >= len(every.Columns) {
			return
		}
		v, err := every.ParseText(i, text)
		if err != nil {
			return
		}
		b := abi.AppendValue(nil, v)
		again, reason := every.Columns[i].appendCanonical(nil, &v)
		if reason != "" || string(again) != string(b) {
			t.Fatalf("%q gave %x, which is not canonical (%s)", text, b, reason)
		}
	})
}

// A cursor that anybody made up is refused, or is a place in the order.
func FuzzCursor(f *testing.F) {
	every, lines := everyKind(f)
	row, err := every.Upsert(op(f, every, "short", abi.Text("x"), "big", abi.Decimal("1")))
	require.NoError(f, err)
	line, err := lines.Upsert(nil)
	require.NoError(f, err)
	queries := []struct {
		table *Table
		q     Query
		row   Row
	}{{every, Query{}, row}, {every, Query{Order: "short"}, row}, {every, Query{Order: "big", Desc: true}, row}, {every, Query{Order: "f"}, row},
		{lines, Query{Order: "n"}, line}, {lines, Query{Parent: "k"}, line}}
	for i, x := range queries {
		x.q.Limit = 1
		c, err := SQLite.CompileQuery("x", x.table, 1, x.q)
		require.NoError(f, err)
		stored := StoredRow{Key: Key{Key: "k"}, Row: x.row}
		if x.table.Parent != nil {
			stored.Child = "c"
		}
		_, next, err := c.Page([]StoredRow{stored, stored})
		require.NoError(f, err)
		f.Add(i, next)
		f.Add(i, "")
		f.Add(i, next[1:])
	}
	f.Fuzz(func(t *testing.T, i int, cursor string) {
		if i < 0 || i >= len(queries) {
			return
		}
		q := queries[i].q
		q.After = cursor
		c, err := SQLite.CompileQuery("x", queries[i].table, 1, q)
		if err != nil {
			if _, ok := err.(*CursorError); !ok {
				t.Fatalf("%q: %v", cursor, err)
			}
			return
		}
		if strings.Count(c.SQL, "?") != len(c.Args) {
			t.Fatalf("%s has %d arguments", c.SQL, len(c.Args))
		}
	})
}

func FuzzNewTables(f *testing.F) {
	f.Add("orders", "status", "text", 20, 0, 0, `"new"`, "", "")
	f.Add("orders", "amount", "decimal", 0, 19, 2, `1.5`, "/a", "doc")
	f.Fuzz(func(t *testing.T, table, column, kind string, max, precision, scale int, deflt, from, of string) {
		tables, err := NewTables([]abi.Table{{Name: table, Columns: []abi.Column{
			{Name: column, Kind: kind, Max: max, Precision: precision, Scale: scale, Default: abi.RawJSON(deflt), From: from, Of: of, Index: true},
			{Name: "doc", Kind: "json"}}}})
		if err != nil {
			return
		}
		for _, d := range Dialects() {
			for _, q := range d.CreateTable(PhysicalName("", table, 1), tables[0]) {
				if strings.Contains(q, "{") {
					t.Fatal(q)
				}
			}
		}
		if row, err := tables[0].Upsert(nil); err == nil {
			_ = tables[0].AppendJSON(nil, row)
		}
	})
}
