package readmodel

import (
	"fmt"
	"math"
	"strings"

	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
)

// Values as they may come from a guest: nearly all fit the column, the nasty
// ones among them often.

var (
	nastyInts   = []int64{0, 1, -1, math.MinInt64, math.MaxInt64, 1<<53 + 1, -(1<<53 + 1)}
	nastyTexts  = []string{"", " ", "a", "a ", "A", "Ä", "A\u0308", "ä", "\u007f", "\uffff", "\U00010000", "😀", "'; DROP TABLE x; --", `"`, "%_\\", "\t\n", "null", "0", "1e3", "2011-10-01"}
	nastyFloats = []float64{0, math.Copysign(0, -1), 1, -1, 0.1, 1e21, 1e-7, 1 << 53, math.MaxFloat64, -math.MaxFloat64, 0x1p-1022, 5e-324, 1.0000000000000002}
	nastyJSON   = []string{"null", "true", "0", `""`, "[]", "{}", `{"a":1,"a":2,"b":{"a":3}}`, ` { "z" : 1 , "a" : 2 } `,
		"123456789012345678901234567890.123456789e400", `"\ud83d\ude00\u0000\ud800"`, `"😀"`, strings.Repeat("[", 100) + strings.Repeat("]", 100)}
)

func drawValue(c *Column) *rapid.Generator[abi.Value] {
	return rapid.Custom(func(t *rapid.T) abi.Value {
		if rapid.IntRange(0, 9).Draw(t, "null") == 0 {
			return abi.Null()
		}
		switch c.Kind {
		case Text:
			if rapid.Bool().Draw(t, "nasty") {
				return abi.Text(rapid.SampledFrom(nastyTexts).Draw(t, "text"))
			}
			return abi.Text(rapid.StringN(0, 12, -1).Draw(t, "text"))
		case Int:
			return abi.Int(drawInt(t))
		case Decimal:
			return abi.Decimal(drawDecimal(t, c))
		case Float:
			if rapid.Bool().Draw(t, "nasty") {
				return abi.Float(rapid.SampledFrom(nastyFloats).Draw(t, "float"))
			}
			return abi.Float(rapid.Float64().Draw(t, "float"))
		case Bool:
			return abi.Bool(rapid.Bool().Draw(t, "bool"))
		case Date:
			return abi.Date(int32(drawBetween(t, dateMin, dateMax)))
		case Time:
			return abi.Time(drawBetween(t, 0, microsPerDay-1))
		case Timestamp:
			return abi.Timestamp(drawBetween(t, timestampMin, timestampMax))
		case UUID:
			return abi.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
		case Bytes:
			return abi.Bytes(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"))
		}
		return abi.JSON([]byte(rapid.SampledFrom(nastyJSON).Draw(t, "json")))
	})
}

func drawInt(t *rapid.T) int64 {
	if rapid.Bool().Draw(t, "nasty") {
		return rapid.SampledFrom(nastyInts).Draw(t, "int")
	}
	return rapid.Int64Range(-100, 100).Draw(t, "int")
}

func drawBetween(t *rapid.T, lo, hi int64) int64 {
	switch rapid.IntRange(0, 3).Draw(t, "end") {
	case 0:
		return lo
	case 1:
		return hi
	}
	return rapid.Int64Range(lo, hi).Draw(t, "value")
}

// drawDecimal makes a decimal that fits, in no particular form.
func drawDecimal(t *rapid.T, c *Column) string {
	sign := rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign")
	digit := rapid.SampledFrom([]byte("0019"))
	whole := string(rapid.SliceOfN(digit, 0, c.Precision-c.Scale).Draw(t, "whole"))
	fraction := string(rapid.SliceOfN(digit, 0, c.Scale).Draw(t, "fraction"))
	if whole == "" {
		whole = "0"
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + whole + fraction
}

// drawColumns makes values for some columns of a table, in any order. Those
// that do not fit are left out.
func drawColumns(t *rapid.T, table *Table, label string) []abi.ColumnValue {
	order := make([]int, len(table.Columns))
	for i := range order {
		order[i] = i
	}
	var cols []abi.ColumnValue
	for _, i := range rapid.Permutation(order).Draw(t, label+" order") {
		c := &table.Columns[i]
		if c.source >= 0 || rapid.IntRange(0, 3).Draw(t, fmt.Sprint(label, c.Name)) == 0 {
			continue
		}
		v := drawValue(c).Draw(t, label+c.Name)
		if _, reason := c.appendCanonical(nil, &v); reason == "" {
			cols = append(cols, abi.ColumnValue{Column: uint16(i), Value: v})
		}
	}
	return cols
}

func drawRow(t *rapid.T, table *Table, label string) Row {
	row, err := table.Upsert(drawColumns(t, table, label))
	if err != nil {
		t.Fatal(err)
	}
	return row
}
