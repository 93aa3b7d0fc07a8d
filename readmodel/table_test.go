package readmodel

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

// everyKind is a table with a column of each kind, besides a child of it.
func everyKind(t testing.TB) (parent, child *Table) {
	t.Helper()
	tables, err := NewTables([]abi.Table{
		{Name: "Every", Columns: []abi.Column{
			{Name: "t", Kind: "text"},
			{Name: "short", Kind: "text", Max: 10, Index: true},
			{Name: "i", Kind: "int", Index: true},
			{Name: "d", Kind: "decimal", Precision: 19, Scale: 2, Index: true},
			{Name: "big", Kind: "decimal", Precision: 38, Scale: 10, Index: true},
			{Name: "narrow", Kind: "decimal", Precision: 18, Scale: 4, Index: true},
			{Name: "f", Kind: "float", Index: true},
			{Name: "b", Kind: "bool", Index: true},
			{Name: "day", Kind: "date", Index: true},
			{Name: "clock", Kind: "time", Index: true},
			{Name: "at", Kind: "timestamp", Index: true},
			{Name: "id", Kind: "uuid", Index: true},
			{Name: "raw", Kind: "bytes"},
			{Name: "doc", Kind: "json"},
		}},
		{Name: "lines", Parent: "every", Columns: []abi.Column{
			{Name: "n", Kind: "int", Index: true},
			{Name: "note", Kind: "text", Max: 255, Index: true},
		}},
	})
	require.NoError(t, err)
	return tables[0], tables[1]
}

func no() *bool { b := false; return &b }

func TestNewTables(t *testing.T) {
	tables, err := NewTables([]abi.Table{
		{Name: "orders", Columns: []abi.Column{
			{Name: "status", Kind: "text", Max: 20, Index: true, Null: no(), Default: abi.RawJSON(`"new"`)},
			{Name: "amount", Kind: "decimal", Precision: 19, Scale: 2, Default: abi.RawJSON(`1.5`)},
			{Name: "customer", Kind: "text", From: "/customer/na~1me", Of: "DOC"},
			{Name: "doc", Kind: "json"},
			{Name: "number", Kind: "int", Unique: true},
		}},
		{Name: "lines", Parent: "Orders", Child: &abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/line"}},
			Columns: []abi.Column{{Name: "qty", Kind: "int"}}},
	})
	require.NoError(t, err)
	orders, lines := tables[0], tables[1]
	require.Same(t, orders, lines.Parent)
	require.Equal(t, []*Table{lines}, orders.Children)
	require.Equal(t, uint16(1), lines.Index)
	require.Equal(t, abi.TableShape{Child: true}, lines.Shape())
	require.Equal(t, []string{"/line"}, lines.ChildRule.Pointers)
	require.Equal(t, &abi.Value{Tag: abi.TagDecimal, B: []byte("1.50")}, orders.Columns[1].Default)
	require.False(t, orders.Columns[0].Nullable)
	require.True(t, orders.Columns[1].Nullable)
	require.True(t, orders.Unique)
	require.True(t, orders.Columns[4].Index, "a unique column has an index to query by")
	i, ok := orders.ColumnByName("STATUS")
	require.True(t, ok)
	require.Zero(t, i)
	require.Equal(t, []string{"key", "status", "number"}, orders.Fields())
	require.Equal(t, []string{"key", "child"}, lines.Fields())
}

func TestNewTablesRefuses(t *testing.T) {
	text := func(name string) []abi.Column { return []abi.Column{{Name: name, Kind: "text"}} }
	col := func(c abi.Column) []abi.Table {
		if c.Name == "" {
			c.Name = "c"
		}
		return []abi.Table{{Name: "t", Columns: []abi.Column{c, {Name: "doc", Kind: "json"}}}}
	}
	many := func(n, maxLen int) []abi.Column {
		columns := make([]abi.Column, n)
		for i := range columns {
			columns[i] = abi.Column{Name: "c" + strings.Repeat("x", i%40) + string(rune('a'+i/40)), Kind: "text", Max: maxLen}
		}
		return columns
	}
	for name, test := range map[string]struct {
		decl []abi.Table
		want string
	}{
		"name":             {[]abi.Table{{Name: `x"; DROP TABLE events; --`, Columns: text("a")}}, `tables[0] "x\"; DROP TABLE events; --": a name is made of letters`},
		"no name":          {[]abi.Table{{Columns: text("a")}}, "a name is needed"},
		"long name":        {[]abi.Table{{Name: strings.Repeat("n", 49), Columns: text("a")}}, "longer than 48"},
		"host's name":      {[]abi.Table{{Name: "PH_events", Columns: text("a")}}, "reserved for the host"},
		"sqlite's name":    {[]abi.Table{{Name: "Sqlite_x", Columns: text("a")}}, "reserved by SQLite"},
		"build's name":     {[]abi.Table{{Name: "orders__B12", Columns: text("a")}}, "reserved for the builds"},
		"same name":        {[]abi.Table{{Name: "a", Columns: text("a")}, {Name: "A", Columns: text("a")}}, `tables[1] "A": tables[0] has this name too`},
		"no columns":       {[]abi.Table{{Name: "a"}}, "at least one column"},
		"many columns":     {[]abi.Table{{Name: "a", Columns: many(101, 0)}}, "at most 100"},
		"many short texts": {[]abi.Table{{Name: "a", Columns: many(61, 255)}}, "at most 60"},
		"column name":      {col(abi.Column{Name: "ä", Kind: "text"}), `column "ä": a name is made of letters`},
		"key":              {col(abi.Column{Name: "Key", Kind: "text"}), `every table has the column "key"`},
		"child":            {col(abi.Column{Name: "CHILD", Kind: "text"}), `every table has the column "child"`},
		"system column":    {col(abi.Column{Name: "ph_epoch", Kind: "int"}), "reserved for the host"},
		"same column":      {col(abi.Column{Name: "DOC", Kind: "int"}), "declared twice"},
		"kind":             {col(abi.Column{Kind: "varchar"}), `unknown kind "varchar": it is one of text, int, decimal`},
		"max":              {col(abi.Column{Kind: "int", Max: 3}), "max is for text, not for int"},
		"negative max":     {col(abi.Column{Kind: "text", Max: -3}), "max is 1 to"},
		"scale":            {col(abi.Column{Kind: "int", Scale: 3}), "precision and scale are for decimal"},
		"no precision":     {col(abi.Column{Kind: "decimal"}), "precision of 1 to 38"},
		"precision":        {col(abi.Column{Kind: "decimal", Precision: 39}), "precision of 1 to 38"},
		"large scale":      {col(abi.Column{Kind: "decimal", Precision: 5, Scale: 6}), "0 to its precision"},
		"mysql's scale":    {col(abi.Column{Kind: "decimal", Precision: 38, Scale: 31}), "at most 30"},
		"json index":       {col(abi.Column{Kind: "json", Index: true}), "a json column cannot have an index"},
		"bytes unique":     {col(abi.Column{Kind: "bytes", Unique: true}), "a bytes column cannot have an index"},
		"text index":       {col(abi.Column{Kind: "text", Index: true}), "a text with an index needs a max of at most 255"},
		"long text index":  {col(abi.Column{Kind: "text", Max: 256, Unique: true}), "a text with an index needs a max of at most 255"},
		"default":          {col(abi.Column{Kind: "int", Default: abi.RawJSON(`"x"`)}), "no value of the column"},
		"default range":    {col(abi.Column{Kind: "decimal", Precision: 3, Scale: 1, Default: abi.RawJSON(`1.25`)}), "fits decimal(3,1)"},
		"default syntax":   {col(abi.Column{Kind: "json", Default: abi.RawJSON(`{`)}), "no value of the column"},
		"default null":     {col(abi.Column{Kind: "int", Null: no(), Default: abi.RawJSON(`null`)}), "no value of the column"},
		"from alone":       {col(abi.Column{Kind: "int", From: "/a"}), `"from" needs "of"`},
		"of alone":         {col(abi.Column{Kind: "int", Of: "doc"}), `"from" is a JSON pointer`},
		"of what":          {col(abi.Column{Kind: "int", From: "/a", Of: "nope"}), `"of" names a json column`},
		"of itself":        {col(abi.Column{Kind: "json", From: "/a", Of: "c"}), `"of" names a json column`},
		"pointer":          {col(abi.Column{Kind: "int", From: "a/~2", Of: "doc"}), `"from" is a JSON pointer`},
		"from and default": {col(abi.Column{Kind: "int", From: "/a", Of: "doc", Default: abi.RawJSON(`1`)}), `has no default`},
		"parent":           {[]abi.Table{{Name: "a", Parent: "b", Columns: text("a")}}, `parent "b" is not a table`},
		"own parent":       {[]abi.Table{{Name: "a", Parent: "a", Columns: text("a")}}, "its own parent"},
		"grandparent": {[]abi.Table{{Name: "a", Columns: text("a")}, {Name: "b", Parent: "a", Columns: text("a")},
			{Name: "c", Parent: "b", Columns: text("a")}}, "one level of children"},
		"free parent": {[]abi.Table{{Name: "a", Free: true, Columns: text("a")}, {Name: "b", Parent: "a", Columns: text("a")}},
			"exactly if its parent is"},
		"child key alone": {[]abi.Table{{Name: "a", Child: &abi.KeyRule{Kind: abi.KeyAggregateID}, Columns: text("a")}}, `name the "parent" too`},
		"child key": {[]abi.Table{{Name: "a", Columns: text("a")}, {Name: "b", Parent: "a", Columns: text("a"),
			Child: &abi.KeyRule{Kind: abi.KeyFunction}}}, `"child" is "aggregate_id" or one JSON pointer`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewTables(test.decl)
			require.ErrorContains(t, err, test.want)
		})
	}
}

// All problems are told at once, so that an author mends them in one go.
func TestNewTablesTellsEverything(t *testing.T) {
	_, err := NewTables([]abi.Table{
		{Name: "a", Columns: []abi.Column{{Name: "x", Kind: "nope"}, {Name: "key", Kind: "int"}}},
		{Name: "b", Parent: "c", Columns: []abi.Column{{Name: "y", Kind: "decimal"}}},
	})
	require.Equal(t, 4, len(strings.Split(err.Error(), "\n")), "%v", err)
}

func TestNames(t *testing.T) {
	require.Equal(t, "app_orders__b12", PhysicalName("App_", "Orders", 12))
	require.Equal(t, "app_orders", PublicName("App_", "Orders"))
	long := strings.Repeat("n", NameMax)
	require.Len(t, PublicName(strings.Repeat("p", PrefixMax), long), identifierMax)
	physical := PhysicalName(strings.Repeat("p", PrefixMax), long, 1<<62)
	require.Len(t, physical, identifierMax)
	require.True(t, strings.HasSuffix(physical, "__b4611686018427387904"))
	require.NotEqual(t, physical, PhysicalName(strings.Repeat("p", PrefixMax), long[1:]+"m", 1<<62))

	// Two indexes whose plain names an engine would cut to the same 63 bytes.
	a, b := IndexName(long+"__b1", long+"a"), IndexName(long+"__b1", long+"b")
	require.NotEqual(t, a, b)
	require.Regexp(t, `^n{40}_[0-9a-f]{8}$`, a)
	require.NotEqual(t, IndexName("t", "a", "b"), IndexName("t", "ab"))

	require.NoError(t, CheckPrefix(""))
	require.NoError(t, CheckPrefix("App_1_"))
	require.ErrorContains(t, CheckPrefix("a-"), "letters, digits and underscores")
	require.ErrorContains(t, CheckPrefix("_a"), "begins with a letter")
	require.ErrorContains(t, CheckPrefix(strings.Repeat("p", PrefixMax+1)), "at most 15")
}

func TestCheckKey(t *testing.T) {
	for _, key := range []string{"a", " a", "Ä\u0308", strings.Repeat("k", 255), strings.Repeat("😀", 255), "\u00a0", "\ufffd"} {
		require.NoError(t, CheckKey(key), "%q", key)
	}
	for key, want := range map[string]string{
		"":                       "empty",
		"a ":                     "space",
		"a\x00b":                 "U+0000",
		"ä\x00":                  "U+0000",
		"a\xff":                  "UTF-8",
		"\xed\xa0\x80":           "UTF-8", // a surrogate
		strings.Repeat("k", 256): "255",
		strings.Repeat("ä", 256): "255",
	} {
		require.ErrorContains(t, CheckKey(key), want, "%q", key)
	}
}
