package readmodel

import "fmt"

// MySQL is the dialect of MySQL 8.0.17 and later, MariaDB that of MariaDB 10.5
// and later. They differ in the name of the collation that compares by code
// point and does not ignore trailing spaces. Longer text than an index takes is
// LONGTEXT, which does not count against the row's 65,535 bytes.
var (
	MySQL   = mysqlDialect("mysql", "utf8mb4_0900_bin")
	MariaDB = mysqlDialect("mariadb", "utf8mb4_nopad_bin")
)

func mysqlDialect(name, collation string) *Dialect {
	text := " CHARACTER SET utf8mb4 COLLATE " + collation
	return &Dialect{
		Name:      name,
		quoteOpen: "`", quoteClose: "`",
		placeholder: questionMark,
		create:      "CREATE TABLE IF NOT EXISTS", // DDL is not undone by a roll-back: it has to be repeatable
		tableOptions: func(*Table) string {
			return " ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE " + collation
		},
		key:     "VARCHAR(255)" + text,
		integer: "BIGINT",
		types: [...]columnType{
			Text: {ddl: "VARCHAR({max})" + text, long: "LONGTEXT" + text, shortMax: IndexedTextMax, accepts: []actualType{
				{"varchar", charsWidth}, {"longtext", anyWidth}}},
			Int:     {ddl: "BIGINT", accepts: []actualType{{"bigint", anyWidth}}},
			Decimal: {ddl: "DECIMAL({precision},{scale})", accepts: []actualType{{"decimal", decimalWidth}}},
			Float:   {ddl: "DOUBLE", accepts: []actualType{{"double", anyWidth}}},
			Bool:    {ddl: "BOOLEAN", accepts: []actualType{{"tinyint", anyWidth}}},
			Date:    {ddl: "DATE", accepts: []actualType{{"date", anyWidth}}},
			Time:    {ddl: "TIME(6)", accepts: []actualType{{"time", micros6Width}}},
			Timestamp: {ddl: "DATETIME(6)", accepts: []actualType{
				{"datetime", micros6Width}}},
			UUID: {ddl: "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin", accepts: []actualType{
				{"char", uuidWidth}, {"varchar", uuidWidth}}},
			Bytes: {ddl: "LONGBLOB", accepts: []actualType{{"longblob", anyWidth}}},
			JSON: {ddl: "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", accepts: []actualType{
				{"longtext", anyWidth}}},
		},
		collations: []string{collation},
		upsert:     onDuplicateKeyUpdate,
		view:       createOrReplaceView,
		dropTable:  "DROP TABLE IF EXISTS ",
		dropView:   "DROP VIEW IF EXISTS ",
		limit:      limitBehind,
		booleans:   true,
		cast: func(c *Column, mark string) string {
			if c == nil || c.Kind != Decimal {
				return mark
			}
			// A decimal is compared with text as a float: not exactly.
			return fmt.Sprintf("CAST(%s AS DECIMAL(%d,%d))", mark, c.Precision, c.Scale)
		},
	}
}
