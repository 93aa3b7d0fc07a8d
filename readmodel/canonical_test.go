package readmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
)

// canon brings a value into the canonical form of a column.
func canon(c *Column, v abi.Value) (abi.Value, string) {
	b, reason := c.appendCanonical(nil, &v)
	if reason != "" {
		return abi.Value{}, reason
	}
	out, n, ok := readValue(b)
	if !ok || n != len(b) {
		panic("the canonical form does not decode")
	}
	return out, ""
}

func TestCanonicalDecimal(t *testing.T) {
	col := func(precision, scale int) Column {
		return Column{Kind: Decimal, Precision: precision, Scale: scale, Nullable: true}
	}
	digits := strings.Repeat("9", 38)
	for _, test := range []struct {
		col  Column
		in   string
		want string // "": refused
	}{
		{col(19, 2), "1.5", "1.50"},
		{col(19, 2), "1.50", "1.50"},
		{col(19, 2), "-0", "0.00"},
		{col(19, 2), "-0.00", "0.00"},
		{col(19, 2), "0001", "1.00"},
		{col(19, 2), "-0.5", "-0.50"},
		{col(19, 2), "1.500000", "1.50"}, // zeros beyond the scale lose nothing
		{col(19, 2), "1.005", ""},        // never rounded
		{col(19, 2), "99999999999999999.99", "99999999999999999.99"},
		{col(19, 2), "100000000000000000", ""},
		{col(5, 0), "12345", "12345"},
		{col(5, 0), "123456", ""},
		{col(5, 0), "1.0", "1"},
		{col(2, 2), "0.25", "0.25"},
		{col(2, 2), "1", ""},
		{col(38, 0), digits, digits},
		{col(38, 0), "-" + digits, "-" + digits},
		{col(38, 0), digits + "9", ""},
		{col(38, 30), "12345678." + digits[:30], "12345678." + digits[:30]},
		{col(19, 2), "", ""},
		{col(19, 2), "-", ""},
		{col(19, 2), ".5", ""},
		{col(19, 2), "5.", ""},
		{col(19, 2), "+5", ""},
		{col(19, 2), "1e3", ""},
		{col(19, 2), " 1", ""},
		{col(19, 2), "1,5", ""},
		{col(19, 2), "1.5.5", ""},
		{col(19, 2), "NaN", ""},
		{col(19, 2), "１", ""},
	} {
		got, reason := canon(&test.col, abi.Decimal(test.in))
		if test.want == "" {
			require.NotEmpty(t, reason, "%q", test.in)
			continue
		}
		require.Empty(t, reason, "%q", test.in)
		require.Equal(t, test.want, string(got.B), "%q", test.in)
	}
	c := col(19, 2)
	got, _ := canon(&c, abi.Int(-7))
	require.Equal(t, "-7.00", string(got.B), "an int is a decimal")
}

func TestCanonicalRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		col   Column
		value abi.Value
		want  string
	}{
		"null":             {Column{Kind: Int}, abi.Null(), "a value is needed"},
		"text as decimal":  {Column{Kind: Decimal, Precision: 5}, abi.Text("1"), "needs decimal, int, got text"},
		"float as decimal": {Column{Kind: Decimal, Precision: 5}, abi.Float(1), "got float"},
		"int as timestamp": {Column{Kind: Timestamp}, abi.Int(1), "needs timestamp, got int"},
		"text as json":     {Column{Kind: JSON}, abi.Text("1"), "needs json, got text"},
		"bool as int":      {Column{Kind: Int}, abi.Bool(true), "needs int, got bool"},
		"NaN":              {Column{Kind: Float}, abi.Float(math.NaN()), "not finite"},
		"infinity":         {Column{Kind: Float}, abi.Float(math.Inf(-1)), "not finite"},
		"large int":        {Column{Kind: Float}, abi.Int(1<<53 + 1), "not exact"},
		"UTF-8":            {Column{Kind: Text}, abi.Text("a\xff"), "UTF-8"},
		"surrogate":        {Column{Kind: Text}, abi.Text("\xed\xa0\x80"), "UTF-8"},
		"NUL":              {Column{Kind: Text}, abi.Text("a\x00"), "U+0000"},
		"NUL in ä":         {Column{Kind: Text}, abi.Text("ä\x00"), "U+0000"},
		"NUL in a word":    {Column{Kind: Text}, abi.Text("01234\x0067890"), "U+0000"},
		"max":              {Column{Kind: Text, Max: 3}, abi.Text("abcd"), "text of 4 UTF-16 units is longer than text(3) allows"},
		"max of UTF-16":    {Column{Kind: Text, Max: 3}, abi.Text("😀😀"), "text of 4 UTF-16 units"},
		"date before":      {Column{Kind: Date}, abi.Date(dateMin - 1), "1000 to 9999"},
		"date after":       {Column{Kind: Date}, abi.Date(dateMax + 1), "1000 to 9999"},
		"time":             {Column{Kind: Time}, abi.Time(microsPerDay), "00:00:00 to"},
		"negative time":    {Column{Kind: Time}, abi.Time(-1), "00:00:00 to"},
		"timestamp before": {Column{Kind: Timestamp}, abi.Timestamp(timestampMin - 1), "1000 to 9999"},
		"timestamp after":  {Column{Kind: Timestamp}, abi.Timestamp(timestampMax + 1), "1000 to 9999"},
		"uuid":             {Column{Kind: UUID}, abi.UUID([]byte("short")), "needs uuid"},
		"json":             {Column{Kind: JSON}, abi.JSON([]byte(`{"a":}`)), "not one valid JSON"},
		"json UTF-8":       {Column{Kind: JSON}, abi.JSON([]byte("\"\xff\"")), "not one valid JSON"},
		"tag":              {Column{Kind: Int}, abi.Value{Tag: 99}, "unknown type"},
	} {
		t.Run(name, func(t *testing.T) {
			_, reason := canon(&test.col, test.value)
			require.Contains(t, reason, test.want)
		})
	}
}

func TestCanonicalKeeps(t *testing.T) {
	require.Equal(t, int64(dateMin), days(1000, 1, 1))
	require.Equal(t, int64(dateMax), days(9999, 12, 31))
	doc := ` {"b":1,"a":1,"b":12345678901234567890.1e400, "c":"\ud800"}` + "\n"
	for name, test := range map[string]struct {
		col  Column
		in   abi.Value
		want abi.Value
	}{
		"minus zero":    {Column{Kind: Float}, abi.Float(math.Copysign(0, -1)), abi.Float(0)},
		"subnormal":     {Column{Kind: Float}, abi.Float(-5e-324), abi.Float(0)},
		"smallest":      {Column{Kind: Float}, abi.Float(0x1p-1022), abi.Float(0x1p-1022)},
		"int":           {Column{Kind: Float}, abi.Int(-3), abi.Float(-3)},
		"max of UTF-16": {Column{Kind: Text, Max: 4}, abi.Text("😀äö"), abi.Text("😀äö")},
		"empty":         {Column{Kind: Text, Max: 4}, abi.Text(""), abi.Value{Tag: abi.TagText, B: []byte{}}},
		"json":          {Column{Kind: JSON}, abi.JSON([]byte(doc)), abi.JSON([]byte(doc))},
		"first":         {Column{Kind: Timestamp}, abi.Timestamp(timestampMin), abi.Timestamp(timestampMin)},
		"last":          {Column{Kind: Timestamp}, abi.Timestamp(timestampMax), abi.Timestamp(timestampMax)},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason := canon(&test.col, test.in)
			require.Empty(t, reason)
			require.Equal(t, test.want, got)
			require.False(t, math.Signbit(got.F) && got.F == 0)
		})
	}
}

// A canonical value is its own canonical form, whatever made it (P10).
func TestCanonicalIsIdempotent(t *testing.T) {
	every, _ := everyKind(t)
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(every.Columns)-1).Draw(t, "column")
		c := &every.Columns[i]
		v := drawValue(c).Draw(t, "value")
		first, reason := c.appendCanonical(nil, &v)
		if reason != "" {
			return
		}
		again, n, ok := readValue(first)
		if !ok || n != len(first) {
			t.Fatalf("%x does not decode", first)
		}
		second, reason := c.appendCanonical(nil, &again)
		if reason != "" || string(second) != string(first) {
			t.Fatalf("canonical form %x became %x (%s)", first, second, reason)
		}
	})
}

// The rows made here are the rows of package abi: a guest reads what we write.
func TestRowIsABIs(t *testing.T) {
	every, _ := everyKind(t)
	rapid.Check(t, func(t *rapid.T) {
		row := drawRow(t, every, "row")
		values, err := abi.ReadRow(row, nil)
		if err != nil {
			t.Fatal(err)
		}
		if again := abi.AppendRow(nil, values); string(again) != string(row) {
			t.Fatalf("%x became %x", []byte(row), again)
		}
		ours, err := every.Values(row, nil)
		if err != nil {
			t.Fatal(err)
		}
		if string(abi.AppendRow(nil, ours)) != string(row) {
			t.Fatalf("Values differ from ReadRow")
		}
	})
}

func TestValuesRefuses(t *testing.T) {
	every, _ := everyKind(t)
	row, err := every.Upsert(nil)
	require.NoError(t, err)
	for _, bad := range []Row{nil, {}, {1}, row[:len(row)-1], append(append(Row{}, row...), 0), {14, 0, 99}, {1, 0, 0}} {
		_, err := every.Values(bad, nil)
		require.Error(t, err, "%x", []byte(bad))
		_, err = every.Patch(bad, []abi.ColumnValue{{Column: 2, Value: abi.Int(1)}})
		if bad != nil {
			require.Error(t, err, "%x", []byte(bad))
		}
	}
}
