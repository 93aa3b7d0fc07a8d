package readmodel

import (
	"fmt"
	"strconv"
	"strings"
)

// utf8Collation sorts varchar by the bytes of UTF-8, which is by code point.
// Like every collation of SQL Server it takes "a" and "a " for equal.
const utf8Collation = " COLLATE Latin1_General_100_BIN2_UTF8"

// SQLServer is the dialect of SQL Server 2019 and later. No server of its kind
// has run it; the golden files say what it would be sent.
//
// Text is varchar in UTF-8, whose lengths count bytes. A UUID is its text,
// because uniqueidentifier sorts its bytes in an order of its own. An index entry
// holds 1,700 bytes, that of a clustered index 900, and a key can have 1,020: so
// primary keys are nonclustered, and that of a child table is a hash of both its
// keys.
var SQLServer = &Dialect{
	Name:      "sqlserver",
	quoteOpen: "[", quoteClose: "]",
	placeholder: func(n int) string { return "@p" + strconv.Itoa(n) },
	create:      "CREATE TABLE",
	key:         "VARCHAR(1020)" + utf8Collation,
	integer:     "BIGINT",
	types: [...]columnType{
		Text: {ddl: "VARCHAR({bytes})" + utf8Collation, long: "VARCHAR(MAX)" + utf8Collation, shortMax: 2666, accepts: []actualType{
			{"varchar", bytesWidth}}},
		Int:     {ddl: "BIGINT", accepts: []actualType{{"bigint", anyWidth}}},
		Decimal: {ddl: "DECIMAL({precision},{scale})", accepts: []actualType{{"decimal", decimalWidth}, {"numeric", decimalWidth}}},
		Float:   {ddl: "FLOAT(53)", accepts: []actualType{{"float", anyWidth}}},
		Bool:    {ddl: "BIT", accepts: []actualType{{"bit", anyWidth}}},
		Date:    {ddl: "DATE", accepts: []actualType{{"date", anyWidth}}},
		Time:    {ddl: "TIME(6)", accepts: []actualType{{"time", microsWidth}}},
		Timestamp: {ddl: "DATETIME2(6)", accepts: []actualType{
			{"datetime2", microsWidth}}},
		UUID: {ddl: "CHAR(36) COLLATE Latin1_General_100_BIN2", accepts: []actualType{
			{"char", uuidWidth}, {"varchar", uuidWidth}}},
		Bytes: {ddl: "VARBINARY(MAX)", accepts: []actualType{{"varbinary", bytesWidth}}},
		JSON:  {ddl: "VARCHAR(MAX)" + utf8Collation, accepts: []actualType{{"varchar", bytesWidth}, {"nvarchar", charsWidth}}},
	},
	collations: []string{"latin1_general_100_bin2_utf8", "latin1_general_100_bin2", "latin1_general_bin2"},
	upsert:     updateThenInsert,
	view: func(d *Dialect, public, query string) []string {
		return []string{"CREATE OR ALTER VIEW " + d.Quote(public) + " AS\n" + query}
	},
	dropTable:    "DROP TABLE IF EXISTS ",
	dropView:     "DROP VIEW IF EXISTS ",
	nonclustered: true,
	rowHash:      "CAST(HASHBYTES('SHA2_256', CAST({key} AS VARBINARY(1020)) + 0x00 + CAST({child} AS VARBINARY(1020))) AS BINARY(32))",
	indexBytes:   1700,
	uniqueNulls:  true,
	limit: func(query string, n int) string {
		return strings.Replace(query, "SELECT ", "SELECT TOP ("+strconv.Itoa(n)+") ", 1)
	},
	cast:     sqlServerCast,
	padsText: true,
	booleans: true,
}

// sqlServerCast makes an argument, which the driver sends as nvarchar, the type
// of the column: otherwise the column would be converted, and its index would
// not be used.
func sqlServerCast(c *Column, mark string) string {
	switch {
	case c == nil:
		return "CAST(" + mark + utf8Collation + " AS VARCHAR(1020))"
	case c.Kind == Text:
		return "CAST(" + mark + utf8Collation + " AS VARCHAR(" + strconv.Itoa(utf8Bytes(c.Max)) + "))"
	case c.Kind == UUID:
		return "CAST(" + mark + " COLLATE Latin1_General_100_BIN2 AS CHAR(36))"
	case c.Kind == Decimal:
		return fmt.Sprintf("CAST(%s AS DECIMAL(%d,%d))", mark, c.Precision, c.Scale)
	}
	return mark
}
