package readmodel

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

// describeSQLite reads a table's shape as the store does.
func describeSQLite(t *testing.T, d *database, table string) ActualTable {
	t.Helper()
	var a ActualTable
	rows, err := d.db.Query(`SELECT name, type, "notnull", dflt_value IS NOT NULL OR hidden IN (2, 3), pk FROM pragma_table_xinfo(?)`, table)
	require.NoError(t, err)
	for rows.Next() {
		var c ActualColumn
		var notNull bool
		require.NoError(t, rows.Scan(&c.Name, &c.Type, &notNull, &c.HasDefault, &c.PrimaryKey))
		c.Nullable = !notNull
		a.Columns = append(a.Columns, c)
	}
	require.NoError(t, rows.Err())
	rows, err = d.db.Query(`SELECT l.name, l."unique", l.partial, x.name FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x WHERE x.key ORDER BY l.seq, x.seqno`, table)
	require.NoError(t, err)
	for rows.Next() {
		var ix ActualIndex
		var column string
		require.NoError(t, rows.Scan(&ix.Name, &ix.Unique, &ix.Partial, &column))
		if n := len(a.Indexes); n == 0 || a.Indexes[n-1].Name != ix.Name {
			a.Indexes = append(a.Indexes, ix)
		}
		last := &a.Indexes[len(a.Indexes)-1]
		last.Columns = append(last.Columns, column)
	}
	require.NoError(t, rows.Err())
	return a
}

// users has a column of each sort that a shape check looks at.
func users(t testing.TB) *Table {
	t.Helper()
	tables, err := NewTables([]abi.Table{{Name: "users", Columns: []abi.Column{
		{Name: "email", Kind: "text", Max: 100, Unique: true},
		{Name: "age", Kind: "int", Null: no(), Default: abi.RawJSON(`0`)},
		{Name: "score", Kind: "decimal", Precision: 9, Scale: 2, Index: true},
	}}})
	require.NoError(t, err)
	return tables[0]
}

// A table that the dialect made is in shape, as its engine describes it.
func TestCheckOwnTables(t *testing.T) {
	every, lines := everyKind(t)
	for _, table := range []*Table{every, lines, users(t)} {
		d := newDatabase(t, openSQLite(t), table)
		require.NoError(t, SQLite.Check(d.s.Physical, table, describeSQLite(t, d, d.s.Physical)), table.Name)
	}
	for _, d := range Dialects() {
		for _, table := range []*Table{every, lines, users(t)} {
			require.NoError(t, d.Check("x", table, asMade(d, table)), "%s %s", d.Name, table.Name)
		}
	}
}

// asMade is what an engine would tell of a table that the dialect made.
func asMade(d *Dialect, table *Table) ActualTable {
	names := strings.NewReplacer("VARCHAR", "character varying", "BOOLEAN", "boolean", "TIMESTAMP(6)", "timestamp(6) without time zone",
		"TIME(6)", "time(6) without time zone", "FLOAT(53)", "float")
	if d != Postgres {
		names = strings.NewReplacer("FLOAT(53)", "float", "BOOLEAN", "tinyint(1)")
	}
	var a ActualTable
	add := func(name, typ string, nullable bool, place int) {
		typ, collation, _ := strings.Cut(typ, " COLLATE ")
		typ, _, _ = strings.Cut(typ, " CHARACTER SET")
		a.Columns = append(a.Columns, ActualColumn{Name: name, Type: names.Replace(typ), Nullable: nullable, PrimaryKey: place, Collation: strings.Trim(collation, `"`)})
	}
	for i, name := range table.keyColumns() {
		if d.hashed(table) {
			i = -1
		}
		add(name, d.key, false, i+1)
	}
	if d.hashed(table) {
		a.Columns = append(a.Columns, ActualColumn{Name: RowColumn, Type: "binary(32)", HasDefault: true, PrimaryKey: 1})
	}
	for i := range table.Columns {
		c := &table.Columns[i]
		add(c.Name, d.ColumnType(c), c.Nullable, 0)
		if d.sorted(c) {
			add(sortPrefix+c.Name, d.sortType(c), c.Nullable, 0)
		}
		if c.Unique {
			a.Indexes = append(a.Indexes, ActualIndex{Name: "u", Columns: []string{d.orderBy(c)}, Unique: true})
		}
	}
	for _, name := range []string{PositionColumn, UpdatedColumn, EpochColumn} {
		add(name, d.integer, true, 0)
	}
	return a
}

func TestCheckSQLite(t *testing.T) {
	table := users(t)
	const good = `key TEXT PRIMARY KEY NOT NULL, email VARCHAR(10), age BIGINT NOT NULL, score TEXT, ph_n_score INT, ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER`
	for name, test := range map[string]struct {
		ddl  string // columns, then further statements
		want string // of the error; "": in shape
	}{
		"users' types":    {good + `); CREATE UNIQUE INDEX e ON t(email`, ""},
		"more columns":    {good + `, note TEXT, made TEXT NOT NULL DEFAULT 'x', twice AS (age * 2)); CREATE UNIQUE INDEX e ON t(email`, ""},
		"more indexes":    {good + `); CREATE UNIQUE INDEX e ON t(email); CREATE INDEX a ON t(age); CREATE UNIQUE INDEX k ON t(age, key`, ""},
		"no column":       {strings.Replace(good, "score TEXT, ", "", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `table "t", column "score": declared is TEXT, the database has no such column; add it: ALTER TABLE "t" ADD "score" TEXT`},
		"no sort column":  {strings.Replace(good, "ph_n_score INT, ", "", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `column "ph_n_score": declared is INTEGER, the database has no such column`},
		"no epoch":        {strings.Replace(good, ", ph_epoch INTEGER", "", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `column "ph_epoch": declared is INTEGER, the database has no such column`},
		"wrong type":      {strings.Replace(good, "score TEXT", "score NUMERIC(9,2)", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `column "score": declared is TEXT, the database has NUMERIC(9,2); change it to "score" TEXT`},
		"not null":        {strings.Replace(good, "score TEXT", "score TEXT NOT NULL", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `column "score": declared is TEXT NULL, the database has TEXT NOT NULL`},
		"no key":          {`id TEXT` + good[3:] + `); CREATE UNIQUE INDEX e ON t(email`, `column "key": declared is TEXT, the database has no such column`},
		"other key":       {strings.Replace(good, " PRIMARY KEY", "", 1) + `, PRIMARY KEY (key, age)); CREATE UNIQUE INDEX e ON t(email`, `column "age": declared is no part of the primary key, the database has a part of it; make the primary key ("key")`},
		"no primary key":  {strings.Replace(good, " PRIMARY KEY", "", 1) + `); CREATE UNIQUE INDEX e ON t(email`, `column "key": declared is primary key ("key"), the database has a column outside the primary key`},
		"extra not null":  {good + `, note TEXT NOT NULL); CREATE UNIQUE INDEX e ON t(email`, `column "note": declared is no such column, the database has TEXT NOT NULL without a default; let it be null`},
		"not unique":      {good + `); CREATE INDEX e ON t(email`, `column "email": declared is unique, the database has no unique index on this column alone`},
		"unique of two":   {good + `); CREATE UNIQUE INDEX e ON t(email, age`, `column "email": declared is unique, the database has no unique index on this column alone`},
		"partly unique":   {good + `); CREATE UNIQUE INDEX e ON t(email) WHERE age > 5; CREATE INDEX f ON t(age`, `column "email": declared is unique`},
		"too much unique": {good + `); CREATE UNIQUE INDEX e ON t(email); CREATE UNIQUE INDEX f ON t(age`, `declared is no unique index but the primary key's and those of unique columns, the database has the unique index "f" on (age); drop the index`},
	} {
		t.Run(name, func(t *testing.T) {
			d := &database{t: t, db: openSQLite(t)}
			d.exec("CREATE TABLE t (" + test.ddl + ")")
			err := SQLite.Check("t", table, describeSQLite(t, d, "t"))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			var shape *ShapeError
			require.ErrorAs(t, err, &shape)
			require.ErrorContains(t, err, test.want)
		})
	}
}

// What other engines call types, and which are wide enough.
func TestCheckTypes(t *testing.T) {
	column := func(kind string, max, precision, scale int) Column {
		k, _ := ParseKind(kind)
		return Column{Name: "c", Kind: k, Max: max, Precision: precision, Scale: scale}
	}
	for _, test := range []struct {
		d      *Dialect
		col    Column
		actual string
		want   bool
	}{
		{Postgres, column("text", 20, 0, 0), "character varying(20)", true},
		{Postgres, column("text", 20, 0, 0), "CHARACTER VARYING (255)", true},
		{Postgres, column("text", 20, 0, 0), "character varying(19)", false},
		{Postgres, column("text", 20, 0, 0), "text", true},
		{Postgres, column("text", 0, 0, 0), "character varying(1000)", false},
		{Postgres, column("text", 0, 0, 0), "character varying", true},
		{Postgres, column("int", 0, 0, 0), "integer", false},
		{Postgres, column("decimal", 0, 9, 2), "numeric", true},
		{Postgres, column("decimal", 0, 9, 2), "numeric(9,2)", true},
		{Postgres, column("decimal", 0, 9, 2), "numeric(12,4)", true},
		{Postgres, column("decimal", 0, 9, 2), "numeric(10,4)", false},
		{Postgres, column("decimal", 0, 9, 2), "numeric(9,1)", false},
		{Postgres, column("decimal", 0, 9, 0), "numeric(9)", true},
		{Postgres, column("time", 0, 0, 0), "time(6) without time zone", true},
		{Postgres, column("time", 0, 0, 0), "time(3) without time zone", false},
		{Postgres, column("timestamp", 0, 0, 0), "timestamp without time zone", true},
		{Postgres, column("timestamp", 0, 0, 0), "timestamp with time zone", false},
		{Postgres, column("json", 0, 0, 0), "jsonb", false},
		{MySQL, column("int", 0, 0, 0), "bigint(20)", true},
		{MySQL, column("int", 0, 0, 0), "bigint unsigned", false},
		{MySQL, column("timestamp", 0, 0, 0), "datetime", false},
		{MySQL, column("timestamp", 0, 0, 0), "datetime(6)", true},
		{MySQL, column("timestamp", 0, 0, 0), "timestamp(6)", false},
		{MariaDB, column("text", 300, 0, 0), "varchar(300)", true},
		{MariaDB, column("json", 0, 0, 0), "longtext", true},
		{SQLServer, column("text", 20, 0, 0), "varchar(60)", true},
		{SQLServer, column("text", 20, 0, 0), "varchar(20)", false},
		{SQLServer, column("text", 20, 0, 0), "varchar(max)", true},
		{SQLServer, column("timestamp", 0, 0, 0), "datetime2", true},
		{SQLServer, column("timestamp", 0, 0, 0), "datetime2(3)", false},
		{SQLServer, column("uuid", 0, 0, 0), "uniqueidentifier", false},
	} {
		require.Equal(t, test.want, test.d.holds(test.d.types[test.col.Kind].accepts, &test.col, test.actual),
			"%s: %s in %s", test.d.Name, test.col.describe(), test.actual)
	}
}

func TestCheckCollation(t *testing.T) {
	table := users(t)
	a := asMade(MySQL, table)
	a.Columns[1].Collation = "utf8mb4_general_ci"
	a.Columns[0].Collation = "utf8mb4_bin" // ignores trailing spaces
	err := MySQL.Check("users", table, a)
	require.ErrorContains(t, err, `column "email": declared is VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin, the database has VARCHAR(100) COLLATE utf8mb4_general_ci`)
	require.ErrorContains(t, err, `column "key"`)
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 2)
	var shape *ShapeError
	require.True(t, errors.As(err, &shape))
	require.NotEmpty(t, shape.Remedy)
}

// SQL Server's index entries do not hold two keys of full length: there the
// primary key of a child table is their hash. A user's table may have the keys
// themselves for one, beside the hash by which rows are found.
func TestCheckOfAHashedKey(t *testing.T) {
	_, lines := everyKind(t)
	key := ActualColumn{Name: "key", Type: "varchar(1020)"}
	child := ActualColumn{Name: "child", Type: "varchar(1020)"}
	rest := []ActualColumn{{Name: "n", Type: "bigint", Nullable: true}, {Name: "note", Type: "varchar(765)", Nullable: true},
		{Name: "ph_position", Type: "bigint", Nullable: true}, {Name: "ph_updated_us", Type: "bigint", Nullable: true},
		{Name: "ph_epoch", Type: "bigint", Nullable: true}}
	table := func(index []string, first ...ActualColumn) ActualTable {
		return ActualTable{Columns: append(first, rest...), Indexes: []ActualIndex{{Name: "pk", Unique: true, Columns: index}}}
	}
	hash := ActualColumn{Name: "ph_row", Type: "binary(32)", HasDefault: true, PrimaryKey: 1}
	require.NoError(t, SQLServer.Check("lines", lines, table([]string{"ph_row"}, key, child, hash)))

	hash.HasDefault = false // somebody's own column, which no insert of ours fills
	require.Error(t, SQLServer.Check("lines", lines, table([]string{"ph_row"}, key, child, hash)))

	require.Error(t, SQLServer.Check("lines", lines, table([]string{"key"}, key, child)), "no primary key")
	key.PrimaryKey, child.PrimaryKey = 1, 2
	err := SQLServer.Check("lines", lines, table([]string{"key", "child"}, key, child))
	require.ErrorContains(t, err, "ALTER TABLE [lines] ADD [ph_row] AS CAST(HASHBYTES(", "without it every look-up passes all children of the key")
	hash = ActualColumn{Name: "ph_row", Type: "binary(32)", HasDefault: true}
	require.NoError(t, SQLServer.Check("lines", lines, table([]string{"key", "child"}, key, child, hash)))
	require.NoError(t, SQLServer.Check("lines", lines, ActualTable{Columns: append([]ActualColumn{key, child, hash}, rest...),
		Indexes: []ActualIndex{{Name: "pk", Unique: true, Columns: []string{"key", "child"}}, {Name: "u", Unique: true, Columns: []string{"ph_row"}}}}))
}

// A text and a key of full length do not fit either; the index is without the
// tie-break then.
func TestIndexEntriesFit(t *testing.T) {
	tables, err := NewTables([]abi.Table{{Name: "t", Columns: []abi.Column{
		{Name: "fits", Kind: "text", Max: 226, Index: true}, {Name: "large", Kind: "text", Max: 227, Index: true}}}})
	require.NoError(t, err)
	list := SQLServer.CreateIndexes("t__b1", tables[0])
	require.Contains(t, list[0], "([fits], [key])")
	require.Contains(t, list[1], "([large])")
	require.Contains(t, Postgres.CreateIndexes("t__b1", tables[0])[1], `("large", "key")`)
}
