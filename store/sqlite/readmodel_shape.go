package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/projhost/projhost/readmodel"
)

// checkShape compares a table with its declaration. It is never altered: that
// is for its owner to do.
func checkShape(c *conn, name string, t *readmodel.Table) error {
	actual, err := actualTable(c, name)
	if err != nil {
		return err
	}
	if len(actual.Columns) == 0 {
		return &readmodel.ShapeError{Table: name, Declared: "a table", Actual: "none",
			Remedy: "restore it from a backup, or rebuild the consumer: projhost does not begin anew with an empty one by itself"}
	}
	return readmodel.SQLite.Check(name, t, actual)
}

// CheckTables implements [store.Store].
func (s *Store) CheckTables(ctx context.Context) error {
	var wrong []error
	err := s.snapshot(ctx, "check read models", func(c *conn) error {
		consumers, err := s.loadConsumers(ctx, c, s.q.consumers)
		if err != nil {
			return err
		}
		for _, consumer := range consumers {
			for _, ref := range consumer.Tables {
				err := checkShape(c, ref.Physical, ref.Table)
				if _, differs := errors.AsType[*readmodel.ShapeError](err); differs {
					wrong = append(wrong, fmt.Errorf("%s: %w", consumer.ID, err))
				} else if err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(append(wrong, err)...)
}

const (
	tableColumnsSQL = `SELECT name, type, "notnull", dflt_value IS NOT NULL OR hidden > 1, pk FROM pragma_table_xinfo(?)`
	tableIndexesSQL = `SELECT i.name, i."unique", i.partial, x.name, x.coll FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) x
		WHERE x.key ORDER BY i.name, x.seqno`
)

func actualTable(c *conn, name string) (actual readmodel.ActualTable, err error) {
	rows, err := c.query(context.Background(), tableColumnsSQL, name)
	if err != nil {
		return actual, err
	}
	for rows.next() {
		actual.Columns = append(actual.Columns, readmodel.ActualColumn{Name: rows.text(0), Type: rows.text(1),
			Nullable: rows.int(2) == 0, HasDefault: rows.int(3) != 0, PrimaryKey: int(rows.int(4))})
	}
	if err := rows.close(); err != nil {
		return actual, err
	}
	if rows, err = c.query(context.Background(), tableIndexesSQL, name); err != nil {
		return actual, err
	}
	for rows.next() {
		n := len(actual.Indexes)
		if n == 0 || actual.Indexes[n-1].Name != rows.text(0) {
			actual.Indexes = append(actual.Indexes, readmodel.ActualIndex{Name: rows.text(0), Unique: rows.int(1) != 0, Partial: rows.int(2) != 0})
			n++
		}
		index := &actual.Indexes[n-1]
		column := rows.text(3) // "" for an expression
		index.Columns = append(index.Columns, column)
		// A column's collation is told by its indexes alone; without one it is
		// compared by nobody.
		for i := range actual.Columns {
			if actual.Columns[i].Name == column {
				actual.Columns[i].Collation = rows.text(4)
			}
		}
	}
	return actual, rows.close()
}
