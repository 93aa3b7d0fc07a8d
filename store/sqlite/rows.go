package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// tablePlan is what a physical table needs to be read and written. It is made
// once, so that the texts of its statements are the same strings every time.
type tablePlan struct {
	*readmodel.Statements
	children []*tablePlan // whose rows go with a row of this table
}

// plan finds or makes the plan of a table. Physical names are of one build and
// a build's tables do not change, but the same build can be declared again at a
// later start of the consumer, which makes another *Table.
func (s *Store) plan(ref *store.TableRef) *tablePlan {
	if p, ok := s.plans.Load(ref.Physical); ok && p.(*tablePlan).Table == ref.Table {
		return p.(*tablePlan)
	}
	p := &tablePlan{Statements: readmodel.SQLite.Statements(ref.Physical, ref.Table)}
	for _, t := range ref.Table.Children {
		p.children = append(p.children, &tablePlan{
			Statements: readmodel.SQLite.Statements(readmodel.PhysicalName(s.opt.ReadModelPrefix, t.Name, ref.Build), t)})
	}
	s.plans.Store(ref.Physical, p)
	return p
}

// writeRows writes the final rows of all tables. Everything that is deleted
// goes first: a row of a child table that was written after its parent's
// deletion stays, in whatever order the tables come.
func (s *Store) writeRows(tx *tx, tables []store.TableWrites) error {
	for i := range tables {
		w := &tables[i]
		if err := deleteRows(tx, s.plan(&w.Table), w); err != nil {
			return err
		}
	}
	for i := range tables {
		w := &tables[i]
		if err := upsertRows(tx, s.plan(&w.Table), w); err != nil {
			return err
		}
	}
	return nil
}

func deleteRows(tx *tx, p *tablePlan, w *store.TableWrites) error {
	for _, key := range w.DeleteChildrenOf {
		if _, err := tx.exec(p.DeleteChildren, key); err != nil {
			return refusal(p, err)
		}
	}
	for _, key := range w.PruneKeys {
		if _, err := tx.exec(p.Prune, key, w.Table.Epoch); err != nil {
			return refusal(p, err)
		}
	}
	var args []any
	for i := range w.Writes {
		row := &w.Writes[i]
		// In a table with a unique column every row to be written is taken
		// out first, so that a value can move from one row to another.
		if row.Row != nil && (p.Upsert != "" || p.Updates(row)) {
			continue
		}
		args = p.KeyArgs(args[:0], row.Key)
		if _, err := tx.execAny(p.Delete, args); err != nil {
			return refusal(p, err)
		}
		if row.Row != nil {
			continue
		}
		for _, child := range p.children {
			if _, err := tx.exec(child.DeleteChildren, row.Key.Key); err != nil {
				return refusal(child, err)
			}
		}
	}
	return nil
}

func upsertRows(tx *tx, p *tablePlan, w *store.TableWrites) (err error) {
	text := p.Upsert
	if text == "" {
		text = p.Insert
	}
	var args []any
	for i := range w.Writes {
		row := &w.Writes[i]
		if row.Row == nil {
			continue
		}
		if p.Updates(row) {
			if args, err = p.UpdateArgs(args[:0], row, w.Table.Epoch); err != nil {
				return fmt.Errorf("table %s, row %q: %w", p.Table.Name, row.Key.Key, err)
			}
			switch n, err := tx.execAny(p.Update, args); {
			case err != nil:
				return refusal(p, err)
			case n > 0:
				continue
			}
			// Somebody has deleted it: it is written whole.
		}
		if args, err = p.RowArgs(args[:0], row, w.Table.Epoch); err != nil {
			return fmt.Errorf("table %s, row %q: %w", p.Table.Name, row.Key.Key, err)
		}
		if _, err := tx.execAny(text, args); err != nil {
			return refusal(p, err)
		}
	}
	return nil
}

// refusal names the table whose data the database does not accept.
func refusal(p *tablePlan, err error) error {
	if isData(err) {
		return &store.DataError{Table: p.Table.Name, Err: err}
	}
	return err
}

// bindAny is bind with arguments as readmodel makes them.
func (c *conn) bindAny(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// execAny is exec with such arguments.
func (c *conn) execAny(text string, args []any) (int64, error) {
	s, err := c.prepare(text)
	if err != nil {
		return 0, err
	}
	r, err := s.ds.ExecContext(context.Background(), c.bindAny(args))
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// queryAny is query with such arguments.
func (c *conn) queryAny(ctx context.Context, text string, args []any) (*rows, error) {
	s, err := c.prepare(text)
	if err != nil {
		return nil, err
	}
	return s.query(ctx, c.bindAny(args))
}
