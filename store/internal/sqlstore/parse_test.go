package sqlstore

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
)

func TestStatementsEndWithTheirLine(t *testing.T) {
	require.Equal(t, []string{"CREATE TABLE a (\n  b int DEFAULT ';'\n)", "INSERT INTO a VALUES (1)", "SELECT 1"},
		statements("-- of a; and b;\nCREATE TABLE a (\n  b int DEFAULT ';'\n);\n\n  -- more\nINSERT INTO a VALUES (1);\nSELECT 1\n"))
	require.Empty(t, statements("\n-- nothing;\n"))
}

func TestParseReadsWhatSchemaFilesSay(t *testing.T) {
	type column = readmodel.ActualColumn
	type index = readmodel.ActualIndex
	for text, want := range map[string]statement{
		`CREATE TABLE "ph_a" (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1), "partition" integer NOT NULL, t character varying(255) COLLATE "C" NOT NULL DEFAULT 'x, y', PRIMARY KEY (t, id)) WITH (fillfactor = 50)`: {
			kind: createsTable, table: "ph_a", whole: readmodel.ActualTable{Columns: []column{
				{Name: "id", Type: "bigint", HasDefault: true, PrimaryKey: 2},
				{Name: "partition", Type: "integer"},
				{Name: "t", Type: "character varying(255)", Collation: "C", HasDefault: true, PrimaryKey: 1},
			}}},
		"CREATE TABLE IF NOT EXISTS `a` (\n `partition` int, v varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, d decimal(10, 2) DEFAULT (1 + (2)),\n" +
			" g bigint GENERATED ALWAYS AS (`partition`) VIRTUAL, n int NOT NULL AUTO_INCREMENT PRIMARY KEY, UNIQUE KEY u (v, d DESC), KEY (n), CONSTRAINT c CHECK (n > 0)) ENGINE=InnoDB": {
			kind: createsTable, table: "a", whole: readmodel.ActualTable{Columns: []column{
				{Name: "partition", Type: "int", Nullable: true},
				{Name: "v", Type: "varchar(255)", Collation: "utf8mb4_bin"},
				{Name: "d", Type: "decimal(10,2)", Nullable: true, HasDefault: true},
				{Name: "g", Type: "bigint", Nullable: true, HasDefault: true},
				{Name: "n", Type: "int", HasDefault: true, PrimaryKey: 1},
			}, Indexes: []index{{Name: "u", Columns: []string{"v", "d"}, Unique: true}, {Columns: []string{"n"}}}}},
		"IF OBJECT_ID('a') IS NULL CREATE TABLE [dbo].[a] ([id] int IDENTITY(1,1) NOT NULL, [f] float(53), m AS id, CONSTRAINT [pk] PRIMARY KEY NONCLUSTERED ([id]))": {
			kind: createsTable, table: "a", whole: readmodel.ActualTable{Columns: []column{
				{Name: "id", Type: "int", HasDefault: true, PrimaryKey: 1},
				{Name: "f", Type: "float(53)", Nullable: true},
				{Name: "m", Nullable: true, HasDefault: true},
			}}},
		"CREATE TABLE t (a timestamp(6) without time zone, b double precision REFERENCES x (y) NOT NULL UNIQUE)": {
			kind: createsTable, table: "t", whole: readmodel.ActualTable{Columns: []column{
				{Name: "a", Type: "timestamp(6) without time zone", Nullable: true},
				{Name: "b", Type: "double precision"},
			}, Indexes: []index{{Columns: []string{"b"}, Unique: true}}}},
		`CREATE UNIQUE INDEX "i" ON "t" USING btree (a, b)`: {kind: createsIndex, table: "t", index: index{Name: "i", Columns: []string{"a", "b"}, Unique: true}},
		"CREATE INDEX i ON t (a DESC) INCLUDE (b) WHERE a IS NOT NULL": {
			kind: createsIndex, table: "t", index: index{Name: "i", Columns: []string{"a", "b"}, Partial: true}},
		"CREATE UNIQUE NONCLUSTERED INDEX i ON dbo.t (a)":    {kind: createsIndex, table: "t", index: index{Name: "i", Columns: []string{"a"}, Unique: true}},
		`ALTER TABLE "t" ADD COLUMN "c" text DEFAULT 'a'`:    {kind: createsColumn, table: "t", column: column{Name: "c", Type: "text", Nullable: true, HasDefault: true}},
		"ALTER TABLE t ADD c varchar(10) COLLATE x NOT NULL": {kind: createsColumn, table: "t", column: column{Name: "c", Type: "varchar(10)", Collation: "x"}},
	} {
		got, ok := parseStatement(text)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "INSERT INTO t VALUES (1)", "CREATE VIEW v AS SELECT 1", "CREATE TABLE t", "CREATE TABLE (a int)", "CREATE INDEX i", "ALTER TABLE t DROP COLUMN c"} {
		_, ok := parseStatement(text)
		require.False(t, ok, text)
	}
}

// What a damaged file says is of no matter, but it must end.
func FuzzParseEnds(f *testing.F) {
	for _, name := range []string{"postgres", "mysql", "sqlserver"} {
		text, err := os.ReadFile("../../" + name + "/schema/0001_events.sql")
		require.NoError(f, err)
		for _, s := range statements(string(text)) {
			f.Add(s)
		}
	}
	f.Add("CREATE TABLE [a (((\"")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, s := range statements(text) {
			parseStatement(s)
		}
	})
}

func TestDifferencesAreTold(t *testing.T) {
	names := &naming{d: testDialect, prefix: "ph_"}
	table := func(change func(*readmodel.ActualTable)) error {
		ms := []migrate.Migration{{SQL: "CREATE TABLE {{a}} (\n  id bigint NOT NULL,\n  n text COLLATE \"C\",\n  d int NOT NULL DEFAULT 1,\n  PRIMARY KEY (id)\n);\n" +
			"CREATE UNIQUE INDEX {{a_n}} ON {{a}} (n);\nALTER TABLE {{a}} ADD late bigint;\n"}}
		want := expect(names, ms)
		require.Len(t, want, 1)
		require.Equal(t, "ph_a", want[0].name)
		have := expect(names, ms)[0].ActualTable
		change(&have)
		return compare("postgres", want[0], have)
	}
	require.NoError(t, table(func(*readmodel.ActualTable) {}))
	require.NoError(t, table(func(a *readmodel.ActualTable) {
		a.Columns[0].Type, a.Columns[1].HasDefault, a.Columns[1].Collation = "BIGINT", true, "c"
		a.Columns = append(a.Columns, readmodel.ActualColumn{Name: "mine", Type: "x", Nullable: true}, readmodel.ActualColumn{Name: "too", Type: "x", HasDefault: true})
		a.Indexes = append(a.Indexes, readmodel.ActualIndex{Name: "mine", Columns: []string{"d"}}, readmodel.ActualIndex{Name: "pk", Columns: []string{"id"}, Unique: true},
			readmodel.ActualIndex{Name: "wide", Columns: []string{"n", "id"}, Unique: true})
	}), "what does no harm")
	for _, c := range []struct {
		change func(*readmodel.ActualTable)
		want   store.SchemaError
	}{
		{func(a *readmodel.ActualTable) { *a = readmodel.ActualTable{} }, store.SchemaError{}},
		{func(a *readmodel.ActualTable) { a.Columns[0].Type = "integer" },
			store.SchemaError{Column: `column "id"`, Want: "bigint NOT NULL PRIMARY KEY part 1", Have: "integer NOT NULL PRIMARY KEY part 1"}},
		{func(a *readmodel.ActualTable) { a.Columns[0].PrimaryKey = 0 },
			store.SchemaError{Column: `column "id"`, Want: "bigint NOT NULL PRIMARY KEY part 1", Have: "bigint NOT NULL"}},
		{func(a *readmodel.ActualTable) { a.Columns[1].Collation = "en_US" },
			store.SchemaError{Column: `column "n"`, Want: "text COLLATE c", Have: "text COLLATE en_us"}},
		{func(a *readmodel.ActualTable) { a.Columns[1].Nullable = false },
			store.SchemaError{Column: `column "n"`, Want: "text COLLATE c", Have: "text COLLATE c NOT NULL"}},
		{func(a *readmodel.ActualTable) { a.Columns[2].HasDefault = false },
			store.SchemaError{Column: `column "d"`, Want: "int NOT NULL with a default", Have: "int NOT NULL"}},
		{func(a *readmodel.ActualTable) { a.Columns = a.Columns[:3] }, store.SchemaError{Column: `column "late"`, Want: "bigint"}},
		{func(a *readmodel.ActualTable) { a.Indexes[0].Unique = false },
			store.SchemaError{Column: "index on (n)", Want: "a unique index on (n)", Have: "an index on (n)"}},
		{func(a *readmodel.ActualTable) { a.Indexes = nil }, store.SchemaError{Column: "index on (n)", Want: "a unique index on (n)"}},
		{func(a *readmodel.ActualTable) {
			a.Columns = append(a.Columns, readmodel.ActualColumn{Name: "more", Type: "int"})
		}, store.SchemaError{Column: `column "more"`, Want: "absent, or harmless (nullable, or with a default)", Have: "int NOT NULL"}},
		{func(a *readmodel.ActualTable) {
			a.Indexes = append(a.Indexes, readmodel.ActualIndex{Name: "x", Columns: []string{"d"}, Unique: true})
		}, store.SchemaError{Column: `index "x" on (d)`, Want: "absent, or not unique", Have: "a unique index on (d)"}},
	} {
		c.want.Driver, c.want.Table = "postgres", "ph_a"
		var got *store.SchemaError
		require.ErrorAs(t, table(c.change), &got)
		require.Equal(t, c.want, *got)
	}
}
