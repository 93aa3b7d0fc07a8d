package readmodel

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

var update = flag.Bool("update", false, "rewrite the golden files and docs/types.md")

// golden compares with a file that is rewritten by -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./readmodel -update writes it")
	require.Equal(t, string(want), got, "%s; go test ./readmodel -update rewrites it", path)
}

// What each engine is sent, whether it runs here or not.
func TestGoldenSQL(t *testing.T) {
	every, lines := everyKind(t)
	tables, err := NewTables([]abi.Table{
		{Name: "Users", Columns: []abi.Column{
			{Name: "email", Kind: "text", Max: 100, Unique: true, Null: no()},
			{Name: "balance", Kind: "decimal", Precision: 30, Scale: 2, Unique: true},
			{Name: "bio", Kind: "text", Max: 5000},
		}},
		{Name: "notes", Parent: "users", Columns: []abi.Column{{Name: "doc", Kind: "json", Null: no()}}},
	})
	require.NoError(t, err)
	for _, d := range Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			var b strings.Builder
			for _, table := range []*Table{every, lines, tables[0], tables[1]} {
				physical := PhysicalName("app_", table.Name, 7)
				fmt.Fprintf(&b, "-- Table %s\n\n", table.Name)
				for _, list := range [][]string{d.CreateTable(physical, table), d.CreateIndexes(physical, table),
					d.CreateView(PublicName("app_", table.Name), physical, table),
					{d.DropView(PublicName("app_", table.Name)), d.DropTable(physical)}} {
					for _, q := range list {
						b.WriteString(q + ";\n")
					}
				}
				s := d.Statements(physical, table)
				for _, q := range []struct{ name, sql string }{{"upsert", s.Upsert}, {"insert", s.Insert}, {"update", s.Update}, {"delete", s.Delete},
					{"delete children", s.DeleteChildren}, {"get", s.Get}, {"list", s.List}, {"any", s.Any}, {"select 4 keys", s.SelectKeys(4)}} {
					fmt.Fprintf(&b, "\n-- %s\n%s\n", q.name, q.sql)
				}
				b.WriteString("\n")
			}
			golden(t, "testdata/"+d.Name+".sql", b.String())
		})
	}
}

// Queries as each engine is sent them, with their arguments.
func TestGoldenQueries(t *testing.T) {
	every, lines := everyKind(t)
	for _, d := range Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			var b strings.Builder
			show := func(table *Table, note string, q Query) {
				q.Limit, q.Build = 2, 7
				c, err := d.CompileQuery(PhysicalName("", table.Name, 7), table, 3, q)
				require.NoError(t, err)
				fmt.Fprintf(&b, "-- %s: %s\n%s\n", table.Name, note, c.SQL)
				for _, a := range c.Args {
					fmt.Fprintf(&b, "--   %T %#v\n", a, a)
				}
				b.WriteString("\n")
			}
			after := func(table *Table, q Query, row StoredRow) string {
				q.Limit, q.Build = 1, 7
				c, err := d.CompileQuery("x", table, 3, q)
				require.NoError(t, err)
				_, next, err := c.Page([]StoredRow{row, row})
				require.NoError(t, err)
				return next
			}
			full, err := every.Upsert(op(t, every, "short", abi.Text("ä "), "d", abi.Decimal("-12.5"), "big", abi.Decimal("3")))
			require.NoError(t, err)
			line, err := lines.Upsert(nil)
			require.NoError(t, err)

			show(every, "first page by key", Query{})
			show(every, "equal text and decimal", Query{Where: []Cond{{Column: "short", Text: "ä "}, {Column: "D", Text: "-12.5"}, {Column: "b", Null: true}}})
			q := Query{Order: "short"}
			show(every, "by text, first page", q)
			q.After = after(every, q, StoredRow{Key: Key{Key: "k"}, Row: full})
			show(every, "by text, next page", q)
			q = Query{Order: "d", Desc: true}
			q.After = after(every, q, StoredRow{Key: Key{Key: "k"}, Row: full})
			show(every, "by decimal, descending, next page", q)
			q = Query{Order: "i"}
			q.After = after(every, q, StoredRow{Key: Key{Key: "k"}, Row: full})
			show(every, "by int, next page, among nulls", q)
			q = Query{}
			q.After = after(lines, q, StoredRow{Key: Key{Key: "k", Child: "c"}, Row: line})
			show(lines, "by key, next page", q)
			q = Query{Parent: "k", Order: "child", Desc: true}
			q.After = after(lines, q, StoredRow{Key: Key{Key: "k", Child: "c"}, Row: line})
			show(lines, "of one parent by child, next page", q)
			golden(t, "testdata/"+d.Name+"_queries.sql", b.String())
		})
	}
}

// docs/types.md is written from the tables that the code uses.
func TestTypesDocument(t *testing.T) {
	golden(t, "../docs/types.md", typesDocument())
}
