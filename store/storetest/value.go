package storetest

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var valueCases = []testCase{
	{"EveryKindComesBackByteForByte", valueEveryKind},
	{"NullIsNotEmpty", valueNull},
	{"LargeOnesComeBack", valueLarge},
	{"KeysCompareExactly", valueKeysExact},
	{"ChildKeysCompareExactly", valueChildKeysExact},
	{"KeysOfFullLength", valueLongKeys},
}

// valueColumns has a column of each kind, some twice.
func valueColumns() []abi.Column {
	return []abi.Column{
		{Name: "text", Kind: abi.ColumnText},
		{Name: "short", Kind: abi.ColumnText, Max: 255, Index: true},
		{Name: "int", Kind: abi.ColumnInt, Index: true},
		{Name: "money", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2, Index: true},
		{Name: "wide", Kind: abi.ColumnDecimal, Precision: 38, Scale: 30, Index: true},
		{Name: "whole", Kind: abi.ColumnDecimal, Precision: 38},
		{Name: "float", Kind: abi.ColumnFloat, Index: true},
		{Name: "bool", Kind: abi.ColumnBool, Index: true},
		{Name: "date", Kind: abi.ColumnDate, Index: true},
		{Name: "time", Kind: abi.ColumnTime, Index: true},
		{Name: "timestamp", Kind: abi.ColumnTimestamp, Index: true},
		{Name: "uuid", Kind: abi.ColumnUUID, Index: true},
		{Name: "bytes", Kind: abi.ColumnBytes},
		{Name: "json", Kind: abi.ColumnJSON},
	}
}

// Bounds of dates and times, as days and microseconds since 1970.
const (
	dateMin      = -354285 // 1000-01-01
	dateMax      = 2932896 // 9999-12-31
	microsPerDay = 86_400_000_000
)

// nasty are values that come back changed from a driver that is careless about
// types, zones, precision, trailing zeros, encodings or empty values.
func nasty() map[string][]abi.Value {
	texts := func(tag abi.Tag, list ...string) (values []abi.Value) {
		for _, s := range list {
			values = append(values, abi.Value{Tag: tag, B: []byte(s)})
		}
		return values
	}
	ints := func(tag abi.Tag, list ...int64) (values []abi.Value) {
		for _, i := range list {
			values = append(values, abi.Value{Tag: tag, I: i})
		}
		return values
	}
	text := append([]string{"", " ", "  x  ", "\t\r\n", "0", "007", "1e5", "0x10", "12:30:00", "2024-02-30", "2024-01-01 00:00:00", "true", "null",
		"\x01\x1f\x7f", "\ufeff", "\u2028", `\x00`, "\\u0000", "a\\'", "{}", "ﬀ"}, identifiers...)
	return map[string][]abi.Value{
		"text":  texts(abi.TagText, text...),
		"short": texts(abi.TagText, text...),
		"int":   ints(abi.TagInt, 0, 1, -1, 255, 1<<31, -1<<31, 1<<53, 1<<53+1, math.MaxInt64, math.MinInt64, math.MaxInt64-1),
		"money": append(texts(abi.TagDecimal, "0", "-0.00", "1", "1.5", "1.50", "-1.05", "10", "9", "100.10", "00012.30",
			"99999999999999999.99", "-99999999999999999.99", "0.01", "-0.01", "12345678901234567.89"), ints(abi.TagInt, 7, -7)...),
		"wide": texts(abi.TagDecimal, "0", "12345678.123456789012345678901234567890", "-99999999.999999999999999999999999999999",
			"0.000000000000000000000000000001", "-0.000000000000000000000000000001", "1"),
		"whole": texts(abi.TagDecimal, "99999999999999999999999999999999999999", "-99999999999999999999999999999999999999", "0", "-1",
			"9007199254740993", "18446744073709551616"),
		"float": func() (values []abi.Value) {
			for _, f := range []float64{0, math.Copysign(0, -1), 1, -1, 0.1, 1.0 / 3, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, math.MaxFloat64,
				-math.MaxFloat64, 1 << 53, 1<<53 + 2, 123456789.123456789, 1e15, 1e16, 1e-7, 100} {
				values = append(values, abi.Value{Tag: abi.TagFloat, F: f})
			}
			return values
		}(),
		"bool":      {{Tag: abi.TagTrue}, {Tag: abi.TagFalse}},
		"date":      ints(abi.TagDate, 0, 1, -1, dateMin, dateMax, 11016, 19782, -25567),
		"time":      ints(abi.TagTime, 0, 1, 999_999, 1_000_000, microsPerDay-1, microsPerDay/2),
		"timestamp": ints(abi.TagTimestamp, 0, 1, -1, dateMin*microsPerDay, (dateMax+1)*microsPerDay-1, 1_330_513_200_000_000, 1_700_000_000_123_456, -1_000_000),
		"uuid": func() (values []abi.Value) {
			for _, text := range []string{"00000000000000000000000000000000", "ffffffffffffffffffffffffffffffff", "6f1c2c9e2b1d7c3e8f000123456789ab", "00ff00ff00ff00ff00ff00ff00ff00ff"} {
				b, _ := hex.DecodeString(text)
				values = append(values, abi.Value{Tag: abi.TagUUID, B: b})
			}
			return values
		}(),
		"bytes": texts(abi.TagBytes, "", "\x00", "\x00\x00\x00", "\xff\xfe", "text", "'", "\\x41", strings.Repeat("\x00\xff", 500)),
		"json": texts(abi.TagJSON, `null`, `true`, `0`, `-0`, `-0.0`, `1.0`, `1.10`, `1e400`, `123456789012345678901234567890`, `""`, `" "`, `"\u0041\/"`, `"é"`,
			`"\ud83d\ude00"`, `"😀"`, `"\u2028"`, `{}`, `[]`, ` { "b" : 1 , "a" : [ 1 , 2 ] } `, `{"a":1,"a":2}`, `{"z":1,"a":2}`, "[1,\n\t2]", `{"":{"":[[[]]]}}`),
	}
}

// nastyRows makes a row of each nasty value, all other columns null.
func nastyRows(t *testing.T, table *readmodel.Table) (writes []readmodel.Write) {
	values := nasty()
	for i, c := range table.Columns {
		require.NotEmpty(t, values[c.Name])
		for n, v := range values[c.Name] {
			row, err := table.Upsert([]abi.ColumnValue{{Column: uint16(i), Value: v}})
			require.NoError(t, err, "%s: %+v %q", c.Name, v, v.B)
			writes = append(writes, put(c.Name+" "+hex.EncodeToString([]byte{byte(n)}), row, int64(n)))
		}
	}
	return writes
}

func keysOf(writes []readmodel.Write) (keys []readmodel.Key) {
	for _, w := range writes {
		keys = append(keys, w.Key)
	}
	return keys
}

// requireRows compares rows with the writes that made them, byte for byte.
func requireRows(t require.TestingT, writes []readmodel.Write, rows []store.StoredRow) {
	require.Len(t, rows, len(writes))
	for i, w := range writes {
		require.Equal(t, stored(w), rows[i], "row %q", w.Key)
	}
}

func valueEveryKind(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "values", abi.Table{Name: "values", Columns: valueColumns()}), "i", 3)
	writes := nastyRows(t, l.c.Tables[0].Table)
	b := l.batch(7, 3)
	l.write(b, "values", writes...)
	l.apply(b)
	check := func() {
		t.Helper()
		requireRows(t, writes, l.load("values", keysOf(writes)...))
		requireRows(t, writes, l.all("values"))
		v, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		defer v.Close()
		for _, w := range writes {
			row, err := v.Get(d.ctx(), "values", w.Key)
			require.NoError(t, err)
			require.Equal(t, stored(w), row)
		}
	}
	check()
	require.NoError(t, d.Leave(d.ctx(), "i"))
	d.reopen()
	check()

	// Over another value and back, by an update of the row.
	d.join("i")
	l.claim(3)
	b = l.batch(9, 3)
	var empty []readmodel.Write
	for _, w := range writes {
		empty = append(empty, put(w.Key.Key, l.row("values"), 1))
	}
	l.write(b, "values", empty...)
	l.apply(b)
	requireRows(t, empty, l.all("values"))
	b = l.batch(11, 3)
	l.write(b, "values", writes...)
	l.apply(b)
	check()
}

func valueNull(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "values", abi.Table{Name: "values", Columns: valueColumns()}), "i", 3)
	table := l.c.Tables[0].Table
	null := l.row("values")
	values, err := table.Values(null, nil)
	require.NoError(t, err)
	for _, v := range values {
		require.Equal(t, abi.TagNull, v.Tag)
	}
	empty := l.row("values", abi.ColumnValue{Column: 0, Value: textValue("")}, abi.ColumnValue{Column: 1, Value: textValue("")},
		abi.ColumnValue{Column: 12, Value: abi.Value{Tag: abi.TagBytes}})
	writes := []readmodel.Write{put("empty", empty, 1), put("null", null, 1)}
	b := l.batch(7, 3)
	l.write(b, "values", writes...)
	l.apply(b)
	requireRows(t, writes, l.all("values"))
}

func valueLarge(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "values", abi.Table{Name: "values", Columns: valueColumns()}), "i", 3)
	const size = 1 << 20
	var writes []readmodel.Write
	for i, v := range map[uint16]abi.Value{
		0:  textValue(strings.Repeat("ä€😀x", size/10)),
		12: {Tag: abi.TagBytes, B: []byte(strings.Repeat("\x00\xff\x80", size/3))},
		13: {Tag: abi.TagJSON, B: []byte(`[` + strings.Repeat(`{"k":"v \u0041"},`, size/17) + `0]`)},
	} {
		writes = append(writes, put(l.c.Tables[0].Table.Columns[i].Name, l.row("values", abi.ColumnValue{Column: i, Value: v}), 1))
	}
	b := l.batch(7, 3)
	l.write(b, "values", writes...)
	l.apply(b)
	requireRows(t, writes, l.all("values"))
	d.reopen()
	requireRows(t, writes, l.all("values"))
}

// exactKeys are keys that are all different.
func exactKeys() (keys []string) {
	for _, name := range identifiers {
		if readmodel.CheckKey(name) == nil {
			keys = append(keys, name)
		}
	}
	return keys
}

func valueKeysExact(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(7, 3)
	var writes []readmodel.Write
	for i, key := range exactKeys() {
		writes = append(writes, l.account(key, int64(i), ""))
	}
	l.write(b, "accounts", writes...)
	l.apply(b)
	requireRows(t, writes, l.all("accounts"))
	requireRows(t, writes, l.load("accounts", keysOf(writes)...))
	// Each deletion removes one row.
	position := int64(7)
	for len(writes) > 0 {
		position++
		b := l.batch(position, 3)
		l.write(b, "accounts", remove(writes[0].Key.Key))
		l.apply(b)
		writes = writes[1:]
		requireRows(t, writes, l.all("accounts"))
	}
}

func valueChildKeysExact(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(7, 3)
	var writes []readmodel.Write
	for i, key := range exactKeys() {
		for j, child := range exactKeys()[:8] {
			writes = append(writes, l.entry(key, child, int64(100*i+j)))
		}
	}
	l.write(b, "entries", writes...)
	l.apply(b)
	requireRows(t, writes, l.all("entries"))
	requireRows(t, writes, l.load("entries", keysOf(writes)...))
	key := exactKeys()[1]
	b = l.batch(8, 3)
	b.Tables = []store.TableWrites{{Table: l.ref("entries"), DeleteChildrenOf: []string{key}}}
	l.apply(b)
	var left []readmodel.Write
	for _, w := range writes {
		if w.Key.Key != key {
			left = append(left, w)
		}
	}
	requireRows(t, left, l.all("entries"))
}

func valueLongKeys(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(7, 3)
	var writes, entries []readmodel.Write
	for i, char := range []string{"a", "ä", "€", "😀"} {
		key := long(char, readmodel.KeyMax)
		writes = append(writes, l.account(key, int64(i), ""), l.account(long(char, readmodel.KeyMax-1)+"b", int64(i), ""))
		entries = append(entries, l.entry(key, key, int64(i)), l.entry(key, long(char, readmodel.KeyMax-1)+"b", int64(i)))
	}
	l.write(b, "accounts", writes...)
	l.write(b, "entries", entries...)
	l.apply(b)
	requireRows(t, writes, l.all("accounts"))
	requireRows(t, entries, l.all("entries"))
	requireRows(t, entries, l.load("entries", keysOf(entries)...))
}
