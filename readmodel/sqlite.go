package readmodel

import "strings"

// SQLite is the dialect of SQLite 3.24 and later.
//
// It has no types for decimals and times, so these are text: a decimal in its
// readable form with, if it has an index, a hidden column beside it that sorts
// by value; times with a fixed width, most significant first, in the form that
// SQLite's own date functions give and take, so that comparing text compares
// time. Text compares by byte (BINARY), which is by code point in UTF-8.
//
// A child table of small rows is WITHOUT ROWID, sorted by its key: it takes half
// the space, and the children of a key stand together. Other tables are not: in
// the tree of their keys, rows of more than a few hundred bytes, or written at
// random places, cost two to three times as much (BenchmarkSQLiteWrite).
var SQLite = &Dialect{
	Name:      "sqlite",
	quoteOpen: `"`, quoteClose: `"`,
	placeholder:  questionMark,
	create:       "CREATE TABLE",
	tableOptions: sqliteOptions,
	key:          "TEXT",
	integer:      "INTEGER",
	sortKey:      [2]string{"INTEGER", "BLOB"},
	types: [...]columnType{
		Text:      {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		Int:       {ddl: "INTEGER", accepts: []actualType{{"INTEGER", anyWidth}}},
		Decimal:   {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		Float:     {ddl: "REAL", accepts: []actualType{{"REAL", anyWidth}}},
		Bool:      {ddl: "INTEGER", accepts: []actualType{{"INTEGER", anyWidth}}},
		Date:      {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		Time:      {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		Timestamp: {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		UUID:      {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
		Bytes:     {ddl: "BLOB", accepts: []actualType{{"BLOB", anyWidth}}},
		JSON:      {ddl: "TEXT", accepts: []actualType{{"TEXT", anyWidth}}},
	},
	collations: []string{"binary"},
	upsert:     onConflictUpdate,
	view: func(d *Dialect, public, query string) []string {
		return []string{
			"DROP VIEW IF EXISTS " + d.Quote(public),
			"CREATE VIEW " + d.Quote(public) + " AS\n" + query,
		}
	},
	dropTable: "DROP TABLE IF EXISTS ",
	dropView:  "DROP VIEW IF EXISTS ",
	limit:     limitBehind,
	affinity:  sqliteAffinity,
}

func sqliteOptions(t *Table) string {
	if t.Parent == nil {
		return ""
	}
	for i := range t.Columns {
		switch c := &t.Columns[i]; {
		case c.Kind == JSON, c.Kind == Bytes, c.Kind == Text && (c.Max == 0 || c.Max > IndexedTextMax):
			return ""
		}
	}
	return " WITHOUT ROWID"
}

// sqliteAffinity reduces a declared type to the affinity that SQLite gives it,
// by SQLite's own rules: the length in VARCHAR(10), say, means nothing to it.
func sqliteAffinity(declared string) string {
	t := strings.ToUpper(declared)
	switch {
	case strings.Contains(t, "INT"):
		return "INTEGER"
	case strings.Contains(t, "CHAR"), strings.Contains(t, "CLOB"), strings.Contains(t, "TEXT"):
		return "TEXT"
	case t == "", strings.Contains(t, "BLOB"):
		return "BLOB"
	case strings.Contains(t, "REAL"), strings.Contains(t, "FLOA"), strings.Contains(t, "DOUB"):
		return "REAL"
	}
	return "NUMERIC"
}
