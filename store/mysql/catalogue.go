package mysql

import (
	"context"
	"fmt"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// dialect is how this server spells what all databases do.
func dialect(srv *server) *sqlstore.Dialect {
	return &sqlstore.Dialect{
		Name: srv.kind(),
		Rows: srv.rows(),
		// The statement's beginning, in decimals: exact to the microsecond.
		Now:          "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
		Greatest:     "GREATEST",
		Schema:       schemaFiles,
		Words:        map[string]string{"text": "CHARACTER SET utf8mb4 COLLATE " + srv.collation()},
		PositionMode: "counter",
		Describe:     describe,
		Find:         find,
		Adopt: func(from, to string, _ *readmodel.Table) []string {
			// Views that read the table go on reading its name, which will be a
			// view of ours.
			return []string{"RENAME TABLE " + srv.rows().Quote(from) + " TO " + srv.rows().Quote(to)}
		},
		ViewIs: viewIs(srv),
	}
}

const (
	columnsSQL = `SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE = 'YES', coalesce(COLUMN_DEFAULT, 'NULL') <> 'NULL' OR EXTRA LIKE '%GENERATED%' OR EXTRA LIKE '%auto_increment%',
 coalesce(COLLATION_NAME, '') FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = database() AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`

	indexesSQL = `SELECT INDEX_NAME, coalesce(COLUMN_NAME, '(an expression)'), NON_UNIQUE = 0, coalesce(SUB_PART, 0)
 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = database() AND TABLE_NAME = ? ORDER BY INDEX_NAME, SEQ_IN_INDEX`

	// The spelling asked for comes first: names may differ in case alone.
	findSQL = `SELECT TABLE_TYPE, TABLE_NAME FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = database() AND lower(TABLE_NAME) = lower(?) ORDER BY TABLE_NAME <> CAST(? AS BINARY) LIMIT 1`

	viewSQL = `SELECT coalesce(VIEW_DEFINITION, ''), database() FROM information_schema.VIEWS WHERE TABLE_SCHEMA = database() AND TABLE_NAME = ?`
)

// describe tells a table as the catalogue has it.
func describe(ctx context.Context, c sqlstore.Conn, table string) (t readmodel.ActualTable, err error) {
	err = each(ctx, c, columnsSQL, []any{table}, func(r sqlstore.Rows) error {
		var col readmodel.ActualColumn
		if err := r.Scan(&col.Name, &col.Type, &col.Nullable, &col.HasDefault, &col.Collation); err != nil {
			return err
		}
		col.Type = withoutWidth(col.Type)
		t.Columns = append(t.Columns, col)
		return nil
	})
	if err != nil {
		return t, err
	}
	err = each(ctx, c, indexesSQL, []any{table}, func(r sqlstore.Rows) error {
		var index, column string
		var unique bool
		var part int64
		if err := r.Scan(&index, &column, &unique, &part); err != nil {
			return err
		}
		if index == "PRIMARY" {
			for i := range t.Columns {
				if t.Columns[i].Name == column {
					t.Columns[i].PrimaryKey = 1 + primaryColumns(&t)
					break
				}
			}
			return nil
		}
		if part > 0 { // the column's beginning alone
			column = fmt.Sprintf("%s(%d)", column, part)
		}
		if n := len(t.Indexes); n > 0 && t.Indexes[n-1].Name == index {
			t.Indexes[n-1].Columns = append(t.Indexes[n-1].Columns, column)
			return nil
		}
		t.Indexes = append(t.Indexes, readmodel.ActualIndex{Name: index, Columns: []string{column}, Unique: unique})
		return nil
	})
	return t, err
}

func primaryColumns(t *readmodel.ActualTable) (n int) {
	for i := range t.Columns {
		if t.Columns[i].PrimaryKey > 0 {
			n++
		}
	}
	return n
}

// withoutWidth takes the display width off an integer's type, which MySQL 8 no
// longer has and which never meant a size.
func withoutWidth(typ string) string {
	open, close := strings.IndexByte(typ, '('), strings.IndexByte(typ, ')')
	if open < 0 || close < open || !strings.HasSuffix(typ[:open], "int") {
		return typ
	}
	return typ[:open] + typ[close+1:]
}

// find tells what has a name. Indexes have names of their own in each table.
func find(ctx context.Context, c sqlstore.Conn, name string) (kind, spelled string, err error) {
	err = each(ctx, c, findSQL, []any{name, name}, func(r sqlstore.Rows) error {
		if err := r.Scan(&kind, &spelled); err != nil {
			return err
		}
		switch kind {
		case "BASE TABLE", "SYSTEM VERSIONED":
			kind = "table"
		case "VIEW", "SYSTEM VIEW":
			kind = "view"
		default:
			kind = strings.ToLower(kind)
		}
		return nil
	})
	return kind, spelled, err
}

// viewIs compares what the server keeps of a view with what it makes of our
// statement.
func viewIs(srv *server) func(ctx context.Context, c sqlstore.Conn, public, physical string, t *readmodel.Table) (bool, error) {
	return func(ctx context.Context, c sqlstore.Conn, public, physical string, t *readmodel.Table) (is bool, err error) {
		err = each(ctx, c, viewSQL, []any{public}, func(r sqlstore.Rows) error {
			var text, database string
			if err := r.Scan(&text, &database); err != nil {
				return err
			}
			is = viewText(srv.rows(), database, text) == viewText(srv.rows(), database, kept(srv.rows(), public, physical, t))
			return nil
		})
		return is, err
	}
}

// kept is how a server keeps a view of a build's table.
func kept(d *readmodel.Dialect, public, physical string, t *readmodel.Table) string {
	create := strings.Join(d.CreateView(public, physical, t), "")
	_, query, _ := strings.Cut(create, "SELECT ")
	list, _, _ := strings.Cut(query, "\nFROM ")
	columns := strings.Split(list, ", ")
	for i, name := range columns {
		columns[i] = d.Quote(physical) + "." + name + " AS " + name
	}
	return "select " + strings.Join(columns, ",") + " from " + d.Quote(physical)
}

// viewText takes the database's name, which not every server keeps, out of a
// view's text.
func viewText(d *readmodel.Dialect, database, text string) string {
	return strings.TrimSpace(strings.ReplaceAll(text, d.Quote(database)+".", ""))
}

// each runs a query and fn on each row of its result.
func each(ctx context.Context, c sqlstore.Conn, text string, args []any, fn func(sqlstore.Rows) error) error {
	r, err := c.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	for r.Next() {
		if err := fn(r); err != nil {
			_ = r.Close()
			return err
		}
	}
	return r.Close()
}
