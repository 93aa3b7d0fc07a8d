package readmodel

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
)

// orders is a table with defaults, a needed column and columns that follow a
// document.
func orders(t testing.TB) *Table {
	t.Helper()
	tables, err := NewTables([]abi.Table{{Name: "orders", Columns: []abi.Column{
		{Name: "city", Kind: "text", Max: 20, From: "/address/city", Of: "doc"},
		{Name: "doc", Kind: "json"},
		{Name: "total", Kind: "decimal", Precision: 9, Scale: 2, From: "/total", Of: "doc"},
		{Name: "status", Kind: "text", Max: 20, Index: true, Null: no(), Default: abi.RawJSON(`"new"`)},
		{Name: "count", Kind: "int", Default: abi.RawJSON(`10`)},
		{Name: "paid", Kind: "decimal", Precision: 9, Scale: 2},
		{Name: "ratio", Kind: "float"},
		{Name: "seen", Kind: "bool"},
	}}})
	require.NoError(t, err)
	return tables[0]
}

// values of an op, by column name.
func op(t testing.TB, table *Table, pairs ...any) []abi.ColumnValue {
	t.Helper()
	var cols []abi.ColumnValue
	for i := 0; i < len(pairs); i += 2 {
		n, ok := table.ColumnByName(pairs[i].(string))
		require.True(t, ok, pairs[i])
		cols = append(cols, abi.ColumnValue{Column: uint16(n), Value: pairs[i+1].(abi.Value)})
	}
	return cols
}

func requireJSON(t *testing.T, table *Table, row Row, want string) {
	t.Helper()
	require.Equal(t, want, string(table.AppendJSON(nil, row)))
}

func TestUpsert(t *testing.T) {
	table := orders(t)
	row, err := table.Upsert(nil)
	require.NoError(t, err)
	requireJSON(t, table, row, `{"city":null,"doc":null,"total":null,"status":"new","count":10,"paid":null,"ratio":null,"seen":null}`)

	row, err = table.Upsert(op(t, table, "seen", abi.Bool(true), "doc", abi.JSON([]byte(`{"address":{"city":"Köln"},"total":"3.5"}`)), "count", abi.Null()))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"city":"Köln","doc":{"address":{"city":"Köln"},"total":"3.5"},"total":"3.50","status":"new","count":null,"paid":null,"ratio":null,"seen":true}`)
}

func TestPatch(t *testing.T) {
	table := orders(t)
	row, err := table.Patch(nil, op(t, table, "doc", abi.JSON([]byte(`{"address":{"city":"Bonn"},"total":1}`))))
	require.NoError(t, err)
	before := string(row)

	next, err := table.Patch(row, op(t, table, "status", abi.Text("paid"), "paid", abi.Decimal("12")))
	require.NoError(t, err)
	requireJSON(t, table, next, `{"city":"Bonn","doc":{"address":{"city":"Bonn"},"total":1},"total":"1.00","status":"paid","count":10,"paid":"12.00","ratio":null,"seen":null}`)
	require.Equal(t, before, string(row), "a row is immutable")

	// A new document changes what follows it, and only that.
	next, err = table.Patch(next, op(t, table, "doc", abi.JSON([]byte(`{"address":null,"total":2e1}`))))
	require.NoError(t, err)
	requireJSON(t, table, next, `{"city":null,"doc":{"address":null,"total":2e1},"total":"20.00","status":"paid","count":10,"paid":"12.00","ratio":null,"seen":null}`)

	same, err := table.Patch(next, nil)
	require.NoError(t, err)
	require.Equal(t, next, same)
}

func TestAdd(t *testing.T) {
	table := orders(t)
	row, err := table.Add(nil, op(t, table, "count", abi.Int(5), "paid", abi.Decimal("-1.5"), "ratio", abi.Float(0.5)))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"city":null,"doc":null,"total":null,"status":"new","count":15,"paid":"-1.50","ratio":0.5,"seen":null}`)
	row, err = table.Add(row, op(t, table, "paid", abi.Int(2), "count", abi.Int(-20), "ratio", abi.Int(-1)))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"city":null,"doc":null,"total":null,"status":"new","count":-5,"paid":"0.50","ratio":-0.5,"seen":null}`)
	row, err = table.Add(row, op(t, table, "paid", abi.Decimal("-0.5"), "ratio", abi.Float(0.5)))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"city":null,"doc":null,"total":null,"status":"new","count":-5,"paid":"0.00","ratio":0,"seen":null}`)
}

// A column that needs a value counts as zero where it is added to an absent
// row; another one that needs a value must still get one.
func TestAddToNeededColumns(t *testing.T) {
	tables, err := NewTables([]abi.Table{{Name: "t", Columns: []abi.Column{
		{Name: "n", Kind: "int", Null: no()}, {Name: "m", Kind: "int", Null: no()},
		{Name: "c", Kind: "text", From: "/c", Of: "doc"}, {Name: "doc", Kind: "json", Default: abi.RawJSON(`{"c":"x"}`)}}}})
	require.NoError(t, err)
	table := tables[0]
	row, err := table.Add(nil, op(t, table, "n", abi.Int(1), "m", abi.Int(2)))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"n":1,"m":2,"c":"x","doc":{"c":"x"}}`)
	_, err = table.Add(nil, op(t, table, "n", abi.Int(1)))
	require.ErrorContains(t, err, `column "m": a value is needed`)
	_, err = table.Patch(nil, op(t, table, "m", abi.Int(1)))
	require.ErrorContains(t, err, `column "n": a value is needed`)
	row, err = table.Upsert(op(t, table, "n", abi.Int(1), "m", abi.Int(2)))
	require.NoError(t, err)
	requireJSON(t, table, row, `{"n":1,"m":2,"c":"x","doc":{"c":"x"}}`)
}

func TestAddToOneNeededColumn(t *testing.T) {
	tables, err := NewTables([]abi.Table{{Name: "t", Columns: []abi.Column{{Name: "a", Kind: "text"}, {Name: "n", Kind: "int", Null: no()}}}})
	require.NoError(t, err)
	row, err := tables[0].Add(nil, op(t, tables[0], "n", abi.Int(3)))
	require.NoError(t, err)
	requireJSON(t, tables[0], row, `{"a":null,"n":3}`)
	_, err = tables[0].Upsert(nil)
	require.ErrorContains(t, err, `column "n": a value is needed`)
}

// A fold makes one allocation, the new row, and wastes little of it: rows are
// kept in caches by the thousand.
func TestFoldAllocatesTheRowOnly(t *testing.T) {
	table, cols := loans(t)
	row, err := table.Upsert(cols)
	require.NoError(t, err)
	for name, fold := range map[string]func() (Row, error){
		"upsert": func() (Row, error) { return table.Upsert(cols) },
		"patch":  func() (Row, error) { return table.Patch(row, cols) },
		"one":    func() (Row, error) { return table.Patch(row, cols[5:]) },
		"add":    func() (Row, error) { return table.Add(row, cols[2:4]) },
	} {
		var out Row
		allocs := testing.AllocsPerRun(10, func() { out, err = fold() })
		require.NoError(t, err)
		require.Equal(t, 1.0, allocs, name)
		require.Less(t, cap(out)-len(out), 64, name)
	}
}

func TestFoldRefuses(t *testing.T) {
	table := orders(t)
	full, err := table.Upsert(op(t, table, "count", abi.Int(math.MaxInt64), "paid", abi.Decimal("9999999.99"), "ratio", abi.Float(math.MaxFloat64)))
	require.NoError(t, err)
	secret := "PRIVATE" + strings.Repeat("x", 100)
	for name, test := range map[string]struct {
		code abi.OpCode
		cols []abi.ColumnValue
		want string
	}{
		"unknown column": {abi.OpUpsert, []abi.ColumnValue{{Column: 8}}, "a column that the table does not have"},
		"twice":          {abi.OpPatch, op(t, table, "seen", abi.Null(), "seen", abi.Null()), `column "seen": the op names the column twice`},
		"followed":       {abi.OpPatch, op(t, table, "city", abi.Text("x")), `column "city": copied from column doc by the host`},
		"needed":         {abi.OpPatch, op(t, table, "status", abi.Null()), `column "status": a value is needed`},
		"too long":       {abi.OpUpsert, op(t, table, "status", abi.Text(secret)), `column "status": text of 107 UTF-16 units`},
		"add text":       {abi.OpAdd, op(t, table, "status", abi.Text("x")), "add is for int, decimal and float"},
		"add null":       {abi.OpAdd, op(t, table, "count", abi.Null()), "add needs int, got null"},
		"add no decimal": {abi.OpAdd, op(t, table, "paid", abi.Null()), "got null"},
		"add float":      {abi.OpAdd, op(t, table, "count", abi.Float(1)), "add needs int, got float"},
		"int overflow":   {abi.OpAdd, op(t, table, "count", abi.Int(1)), "beyond the range of int"},
		"decimal":        {abi.OpAdd, op(t, table, "paid", abi.Decimal("0.01")), "the sum is too large for decimal(9,2)"},
		"scale":          {abi.OpAdd, op(t, table, "paid", abi.Decimal("0.001")), "fewer digits after the point"},
		"float overflow": {abi.OpAdd, op(t, table, "ratio", abi.Float(math.MaxFloat64)), "not finite"},
		"bad document":   {abi.OpPatch, op(t, table, "doc", abi.JSON([]byte(`{"address":`))), "valid JSON"},
		"document's":     {abi.OpPatch, op(t, table, "doc", abi.JSON([]byte(`{"total":1.005}`))), `column "total": decimal(9,2) holds fewer digits`},
		"send":           {abi.OpSend, nil, "not an op on a row"},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := table.Fold(full, &abi.Op{Code: test.code, Columns: test.cols})
			var value *ValueError
			require.ErrorAs(t, err, &value)
			require.Equal(t, "orders", value.Table)
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), "PRIVATE")
			require.Nil(t, row)
		})
	}
	row, err := table.Fold(full, &abi.Op{Code: abi.OpDelete})
	require.NoError(t, err)
	require.Nil(t, row)
}

// A document that is cut off is refused wherever the columns stand that look
// into it.
func TestFollowedDocumentIsChecked(t *testing.T) {
	table := orders(t)
	doc := `{"address":{"city":"K\u00f6ln"},"total":[1,2]}`
	for n := range len(doc) {
		_, err := table.Upsert(op(t, table, "doc", abi.JSON([]byte(doc[:n]))))
		require.ErrorContains(t, err, "valid JSON", "%s", doc[:n])
	}
}

func TestFollowedKinds(t *testing.T) {
	doc := `{"text":"a\u00e4","num":-1.50e1,"int":"42","f":1e-3,"b":true,"day":"2011-10-01","clock":"01:02:03.5",
"at":"2011-10-01T00:38:44.546+02:00","id":"96F9A74E-4bb1-5940-b42b-1789908e7cf0","raw":"AAEC","obj":{"a":[1]},"none":null,"arr":[10,20]}`
	for _, test := range []struct{ kind, from, want string }{
		{"text", "/text", `"aä"`}, {"text", "/num", `"-1.50e1"`}, {"decimal", "/num", `"-15.00"`}, {"int", "/num", "-15"},
		{"int", "/int", "42"}, {"decimal", "/int", `"42.00"`}, {"float", "/f", "0.001"}, {"bool", "/b", "true"},
		{"date", "/day", `"2011-10-01"`}, {"time", "/clock", `"01:02:03.500000"`}, {"timestamp", "/at", `"2011-09-30T22:38:44.546000Z"`},
		{"uuid", "/id", `"96f9a74e-4bb1-5940-b42b-1789908e7cf0"`}, {"bytes", "/raw", `"AAEC"`}, {"json", "/obj", `{"a":[1]}`},
		{"json", "/none", "null"}, {"text", "/none", "null"}, {"text", "/nope/deeper", "null"}, {"int", "/arr/1", "20"}, {"json", "/arr/01", "null"},
		{"text", "/b", "!a JSON boolean is no text"}, {"text", "/obj", "!a JSON object or array is no text"}, {"int", "/f", "!a number with a fraction is no int"},
		{"bool", "/text", "!a JSON string is no bool"}, {"date", "/num", "!a JSON number is no date"}, {"int", "/text", "!not a 64-bit integer"},
	} {
		column := abi.Column{Name: "c", Kind: test.kind, From: test.from, Of: "doc"}
		if test.kind == "decimal" {
			column.Precision, column.Scale = 9, 2
		}
		for _, columns := range [][]abi.Column{{column, {Name: "doc", Kind: "json"}}, {{Name: "doc", Kind: "json"}, column}} {
			tables, err := NewTables([]abi.Table{{Name: "t", Columns: columns}})
			require.NoError(t, err)
			row, err := tables[0].Upsert(op(t, tables[0], "doc", abi.JSON([]byte(doc))))
			if want, refused := strings.CutPrefix(test.want, "!"); refused {
				require.ErrorContains(t, err, want, test.from)
				continue
			}
			require.NoError(t, err, "%s as %s", test.from, test.kind)
			i, _ := tables[0].ColumnByName("c")
			values, err := tables[0].Values(row, nil)
			require.NoError(t, err)
			require.Equal(t, test.want, string(AppendJSONValue(nil, values[i])))
		}
	}
}

// Sums of decimals are exact at any size.
func TestAddIsExact(t *testing.T) {
	c := Column{Kind: Decimal, Precision: 38, Scale: 10, Nullable: true}
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawDecimal(t, &c), drawDecimal(t, &c)
		va, vb := abi.Decimal(a), abi.Decimal(b)
		old, reason := c.appendCanonical(nil, &va)
		if reason != "" {
			t.Fatal(reason)
		}
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		want := new(big.Rat).Add(x, y)
		limit := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(28), nil))
		sum, reason := c.appendSum(nil, old, &vb)
		if new(big.Rat).Abs(want).Cmp(limit) >= 0 {
			if reason == "" {
				t.Fatalf("%s + %s does not fit, yet gave %s", a, b, sum[5:])
			}
			return
		}
		if reason != "" || string(sum[5:]) != want.FloatString(10) {
			t.Fatalf("%s + %s is %s, not %q (%s)", a, b, want.FloatString(10), sum, reason)
		}
	})
}

// How ops are cut into batches does not show: folding them one by one, with the
// row stored in between, gives the row of folding them all at once (P7).
func TestFoldIgnoresBatches(t *testing.T) {
	table := orders(t)
	rapid.Check(t, func(t *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) abi.Op { return drawOp(t, table) }), 1, 12).Draw(t, "ops")
		var inOne Row
		for i := range ops {
			if row, err := table.Fold(inOne, &ops[i]); err == nil {
				inOne = row
			}
		}
		var cut Row
		for i := range ops {
			row, err := table.Fold(cut, &ops[i])
			if err != nil {
				var value *ValueError
				if !errors.As(err, &value) {
					t.Fatal(err)
				}
				continue
			}
			cut = throughArguments(t, table, row)
		}
		if string(inOne) != string(cut) {
			t.Fatalf("in one batch %s, cut %s", table.AppendJSON(nil, inOne), table.AppendJSON(nil, cut))
		}
	})
}

func drawOp(t *rapid.T, table *Table) abi.Op {
	code := rapid.SampledFrom([]abi.OpCode{abi.OpUpsert, abi.OpPatch, abi.OpPatch, abi.OpAdd, abi.OpAdd, abi.OpDelete}).Draw(t, "code")
	cols := drawColumns(t, table, "op")
	if code == abi.OpAdd {
		kept := cols[:0]
		for _, c := range cols {
			if k := table.Columns[c.Column].Kind; (k == Int || k == Decimal || k == Float) && c.Value.Tag != abi.TagNull {
				kept = append(kept, c)
			}
		}
		cols = kept
	}
	return abi.Op{Code: code, Columns: cols}
}

// throughArguments sends a row through every dialect's arguments and back.
func throughArguments(t *rapid.T, table *Table, row Row) Row {
	if row == nil {
		return nil
	}
	for _, d := range Dialects() {
		s := d.Statements("x", table)
		args, err := s.RowArgs(nil, &Write{Key: Key{Key: "k"}, Row: row, Position: 5}, 1)
		if err != nil {
			t.Fatal(err)
		}
		sc := s.NewScanner()
		for i := range sc.Columns() - 2 {
			sc.Set(i, args[i])
		}
		sc.Set(sc.Columns()-2, int64(5))
		sc.Set(sc.Columns()-1, int64(0))
		out, err := sc.Row()
		if err != nil {
			t.Fatal(err)
		}
		if string(out.Row) != string(row) {
			t.Fatalf("%s: %s came back as %s", d.Name, table.AppendJSON(nil, row), table.AppendJSON(nil, out.Row))
		}
		row = out.Row
	}
	return row
}

func rat(v abi.Value) *big.Rat {
	r, ok := new(big.Rat).SetString(string(v.B))
	if !ok {
		panic("not a number: " + string(v.B))
	}
	return r
}
