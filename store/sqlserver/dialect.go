package sqlserver

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

//go:embed schema
var schemaFiles embed.FS

// nowSQL is the server's clock. It moves within a transaction.
const nowSQL = `DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())`

// dialect is how the portable roles speak to SQL Server.
var dialect = &sqlstore.Dialect{
	Name:         "sqlserver",
	Rows:         readmodel.SQLServer,
	Now:          nowSQL,
	Schema:       schemaFiles,
	Words:        map[string]string{"text": "COLLATE " + collation},
	ScriptBegin:  "SET XACT_ABORT ON;\nBEGIN TRANSACTION;",
	ScriptEnd:    "COMMIT TRANSACTION;",
	PositionMode: "counter",
	KeyHash:      true,
	Describe:     describe,
	Find:         find,
	Adopt:        adopt,
	ViewIs:       viewIs,
}

// SchemaSQL is the script that makes what Open makes in an empty database.
// partitions 0 is the default.
func SchemaSQL(tablePrefix string, partitions int) (string, error) {
	return sqlstore.SchemaSQL(dialect, tablePrefix, partitions)
}

const (
	columnsSQL = `SELECT c.name, COALESCE(t.name, N'type of an assembly'), CAST(c.max_length AS bigint), CAST(c.precision AS bigint), CAST(c.scale AS bigint),
 CAST(c.is_nullable AS bigint), COALESCE(c.collation_name, N''),
 CASE WHEN c.is_identity = 1 OR c.is_computed = 1 OR c.default_object_id <> 0 OR c.generated_always_type <> 0 OR t.name = N'timestamp' THEN 1 ELSE 0 END
FROM sys.columns AS c
INNER JOIN sys.objects AS o ON o.object_id = c.object_id
LEFT JOIN sys.types AS t ON t.user_type_id = c.system_type_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'U' AND o.name = @p1
ORDER BY c.column_id`

	indexesSQL = `SELECT i.name, CAST(i.is_unique AS bigint), CAST(i.is_primary_key AS bigint), COALESCE(i.filter_definition, N''), c.name
FROM sys.indexes AS i
INNER JOIN sys.objects AS o ON o.object_id = i.object_id
INNER JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id
INNER JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'U' AND o.name = @p1 AND i.type IN (1, 2) AND i.is_hypothetical = 0
ORDER BY i.index_id, x.is_included_column, x.key_ordinal, x.index_column_id`

	// The comparison has a collation of its own, in which the letter I is the
	// same for everybody.
	findSQL = `SELECT o.type, o.name FROM sys.objects AS o
WHERE o.schema_id = SCHEMA_ID() AND LOWER(o.name COLLATE ` + collation + `) = @p1`

	viewSQL = `SELECT m.definition FROM sys.sql_modules AS m
INNER JOIN sys.objects AS o ON o.object_id = m.object_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'V' AND o.name = @p1`
)

// each runs a query and fn on each row of its result.
func each(ctx context.Context, c sqlstore.Conn, text string, arg string, fn func(sqlstore.Rows) error) error {
	rows, err := c.Query(ctx, text, arg)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := fn(rows); err != nil {
			_ = rows.Close()
			return err
		}
	}
	return rows.Close()
}

func describe(ctx context.Context, c sqlstore.Conn, table string) (actual readmodel.ActualTable, err error) {
	err = each(ctx, c, columnsSQL, table, func(r sqlstore.Rows) error {
		var col readmodel.ActualColumn
		var base string
		var length, precision, scale, nullable, filled int64
		if err := r.Scan(&col.Name, &base, &length, &precision, &scale, &nullable, &col.Collation, &filled); err != nil {
			return err
		}
		col.Type, col.Nullable, col.HasDefault = typeName(base, length, precision, scale), nullable == 1, filled == 1
		actual.Columns = append(actual.Columns, col)
		return nil
	})
	if err != nil {
		return actual, err
	}
	err = each(ctx, c, indexesSQL, table, func(r sqlstore.Rows) error {
		var name, filter, column string
		var unique, primary int64
		if err := r.Scan(&name, &unique, &primary, &filter, &column); err != nil {
			return err
		}
		n := len(actual.Indexes)
		if n == 0 || actual.Indexes[n-1].Name != name {
			actual.Indexes = append(actual.Indexes, readmodel.ActualIndex{Name: name, Unique: unique == 1,
				Partial: filter != "" && filter != "("+readmodel.SQLServer.Quote(column)+" IS NOT NULL)"})
			n++
		}
		index := &actual.Indexes[n-1]
		index.Columns = append(index.Columns, column)
		for i := range actual.Columns {
			if primary == 1 && actual.Columns[i].Name == column {
				actual.Columns[i].PrimaryKey = len(index.Columns)
			}
		}
		return nil
	})
	return actual, err
}

// typeName spells a type as it is declared.
func typeName(base string, length, precision, scale int64) string {
	switch base {
	case "nvarchar", "nchar":
		if length > 0 {
			length /= 2
		}
		fallthrough
	case "varchar", "char", "varbinary", "binary":
		if length < 0 {
			return base + "(max)"
		}
		return fmt.Sprintf("%s(%d)", base, length)
	case "decimal", "numeric":
		return fmt.Sprintf("%s(%d,%d)", base, precision, scale)
	case "datetime2", "time", "datetimeoffset":
		return fmt.Sprintf("%s(%d)", base, scale)
	}
	return base
}

func find(ctx context.Context, c sqlstore.Conn, name string) (kind, spelled string, err error) {
	err = each(ctx, c, findSQL, strings.ToLower(name), func(r sqlstore.Rows) error { return r.Scan(&kind, &spelled) })
	if err != nil || kind == "" {
		return "", "", err
	}
	switch kind = strings.TrimSpace(kind); kind {
	case "U":
		kind = "table"
	case "V":
		kind = "view"
	case "SN":
		kind = "synonym"
	case "SO":
		kind = "sequence"
	case "P", "PC", "X":
		kind = "procedure"
	case "FN", "IF", "TF", "FS", "FT", "AF":
		kind = "function"
	case "PK", "UQ", "F", "D", "C":
		kind = "constraint"
	default:
		kind = "object of type " + kind
	}
	return kind, spelled, nil
}

// adopt renames a table. Views keep reading the name that they were written
// with.
func adopt(from, to string, _ *readmodel.Table) []string {
	return []string{"EXEC sys.sp_rename N" + literal(readmodel.SQLServer.Quote(from)) + ", N" + literal(to) + ", N'OBJECT'"}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// viewIs compares the query of the view with ours. What precedes it the server
// may have changed: it keeps CREATE OR ALTER as CREATE.
func viewIs(ctx context.Context, c sqlstore.Conn, public, physical string, t *readmodel.Table) (same bool, err error) {
	texts := readmodel.SQLServer.CreateView(public, physical, t)
	_, query, _ := strings.Cut(texts[len(texts)-1], " AS\n")
	err = each(ctx, c, viewSQL, public, func(r sqlstore.Rows) error {
		var definition string
		err := r.Scan(&definition)
		same = strings.HasSuffix(strings.TrimRight(definition, " \r\n;"), " AS\n"+query)
		return err
	})
	return same, err
}
