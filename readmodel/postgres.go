package readmodel

import "strconv"

// Postgres is the dialect of PostgreSQL 13 and later. Text has the collation
// "C", whatever the database's is, so that it sorts by code point. JSON is the
// type json, which keeps its bytes, not jsonb, which does not.
var Postgres = &Dialect{
	Name:      "postgres",
	quoteOpen: `"`, quoteClose: `"`,
	placeholder: func(n int) string { return "$" + strconv.Itoa(n) },
	create:      "CREATE TABLE",
	key:         `VARCHAR(255) COLLATE "C"`,
	integer:     "BIGINT",
	types: [...]columnType{
		Text: {ddl: `VARCHAR({max}) COLLATE "C"`, long: `TEXT COLLATE "C"`, shortMax: 10485760, accepts: []actualType{
			{"character varying", charsWidth}, {"text", anyWidth}}},
		Int:     {ddl: "BIGINT", accepts: []actualType{{"bigint", anyWidth}}},
		Decimal: {ddl: "NUMERIC({precision},{scale})", accepts: []actualType{{"numeric", decimalWidth}}},
		Float:   {ddl: "DOUBLE PRECISION", accepts: []actualType{{"double precision", anyWidth}}},
		Bool:    {ddl: "BOOLEAN", accepts: []actualType{{"boolean", anyWidth}}},
		Date:    {ddl: "DATE", accepts: []actualType{{"date", anyWidth}}},
		Time:    {ddl: "TIME(6)", accepts: []actualType{{"time without time zone", microsWidth}}},
		Timestamp: {ddl: "TIMESTAMP(6)", accepts: []actualType{
			{"timestamp without time zone", microsWidth}}},
		UUID:  {ddl: "UUID", accepts: []actualType{{"uuid", anyWidth}}},
		Bytes: {ddl: "BYTEA", accepts: []actualType{{"bytea", anyWidth}}},
		JSON:  {ddl: "JSON", accepts: []actualType{{"json", anyWidth}, {"text", anyWidth}}},
	},
	collations: []string{"c", "posix", "c.utf-8", "c.utf8", "ucs_basic"},
	upsert:     onConflictUpdate,
	view:       createOrReplaceView,
	dropTable:  "DROP TABLE IF EXISTS ",
	dropView:   "DROP VIEW IF EXISTS ",
	limit:      limitBehind,
	booleans:   true,
}
