package readmodel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func TestTablesSurviveJSON(t *testing.T) {
	no := false
	decl := []abi.Table{
		{Name: "orders", Columns: []abi.Column{
			{Name: "doc", Kind: abi.ColumnJSON, Default: abi.RawJSON(`{"b": 1, "a": 2}`)},
			{Name: "total", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2, Index: true, Default: abi.RawJSON(`"0.00"`)},
			{Name: "city", Kind: abi.ColumnText, Max: 80, Index: true, From: "/address/city", Of: "doc"},
			{Name: "n", Kind: abi.ColumnInt, Null: &no, Default: abi.RawJSON(`-9223372036854775808`)},
		}},
		{Name: "lines", Parent: "orders", Child: &abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/line~1no"}},
			Columns: []abi.Column{{Name: "sku", Kind: abi.ColumnText, Max: 40, Unique: true}}},
		{Name: "notes", Free: true, Columns: []abi.Column{{Name: "text", Kind: abi.ColumnText}}},
	}
	tables, err := NewTables(decl)
	require.NoError(t, err)
	text, err := MarshalTables(tables)
	require.NoError(t, err)
	again, err := UnmarshalTables(text)
	require.NoError(t, err)
	require.Equal(t, tables, again)
	require.Equal(t, SQLite.CreateTable("t", tables[1]), SQLite.CreateTable("t", again[1]))

	_, err = UnmarshalTables([]byte(`[{"name": "ph_mine", "columns": []}]`))
	require.Error(t, err, "what is stored is checked like any declaration")
}
