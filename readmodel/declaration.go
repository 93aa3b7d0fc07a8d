package readmodel

import (
	"encoding/json"
	"fmt"

	"github.com/projhost/projhost/abi"
)

// storedTable and storedColumn are a declaration as MarshalTables writes it: as
// in a manifest, except that a default is a string of its JSON, because
// encoding/json does not leave the bytes of JSON within JSON as they are.
type storedTable struct {
	abi.Table
	Columns []storedColumn `json:"columns"`
}

type storedColumn struct {
	abi.Column
	Default *string `json:"default,omitempty"`
}

// MarshalTables gives the declaration that the tables were made from as JSON.
// A store keeps it beside the build, so that its rows can be read without the
// module.
func MarshalTables(tables []*Table) ([]byte, error) {
	list := make([]storedTable, len(tables))
	for i, t := range tables {
		list[i].Table = t.decl
		for _, c := range t.decl.Columns {
			stored := storedColumn{Column: c}
			if c.Default != nil {
				text := string(c.Default)
				stored.Default = &text
			}
			list[i].Columns = append(list[i].Columns, stored)
		}
	}
	return json.Marshal(list)
}

// UnmarshalTables makes the tables of what MarshalTables gave.
func UnmarshalTables(b []byte) ([]*Table, error) {
	var list []storedTable
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("declared tables: %w", err)
	}
	decl := make([]abi.Table, len(list))
	for i := range list {
		decl[i] = list[i].Table
		for _, stored := range list[i].Columns {
			if stored.Default != nil {
				stored.Column.Default = abi.RawJSON(*stored.Default)
			}
			decl[i].Columns = append(decl[i].Columns, stored.Column)
		}
	}
	return NewTables(decl)
}
