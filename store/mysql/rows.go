package mysql

import (
	"context"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// writeRows writes the final rows of all tables. Everything that is deleted goes
// first: a row of a child table that was written after its parent's deletion
// stays, in whatever order the tables come.
func (s *Store) writeRows(ctx context.Context, se *session, tables []store.TableWrites) error {
	for i := range tables {
		w := &tables[i]
		if err := s.deleteRows(ctx, se, s.Plan(&w.Table), w); err != nil {
			return err
		}
	}
	for i := range tables {
		w := &tables[i]
		if err := s.insertRows(ctx, se, s.Plan(&w.Table), w); err != nil {
			return err
		}
	}
	return nil
}

// deletesMax bounds the keys of a DELETE. From 1,000 on MariaDB makes a join of
// the list.
const deletesMax = 500

func (s *Store) deleteRows(ctx context.Context, se *session, p *sqlstore.Plan, w *store.TableWrites) error {
	keys := make([]any, 0, len(w.DeleteChildrenOf))
	for _, key := range w.DeleteChildrenOf {
		keys = append(keys, key)
	}
	if err := deleteByKey(ctx, se, p, keys); err != nil {
		return err
	}
	var parents, list []any
	for i := range w.Writes {
		row := &w.Writes[i]
		// In a table with a unique column every row to be written is taken out
		// first: a value can move from one row to another, and a clash is an error.
		// ON DUPLICATE KEY UPDATE would change the row that has the value (H18).
		if row.Row != nil && p.Upsert != "" {
			continue
		}
		list = p.KeyArgs(list, row.Key)
		if row.Row == nil && len(p.Children) > 0 {
			parents = append(parents, row.Key.Key)
		}
	}
	if p.Table.Parent != nil {
		if err := deletePairs(ctx, se, p, list); err != nil {
			return err
		}
	} else if err := deleteByKey(ctx, se, p, list); err != nil {
		return err
	}
	for _, child := range p.Children {
		if err := deleteByKey(ctx, se, child, parents); err != nil {
			return err
		}
	}
	return nil
}

// deleteFrom begins a DELETE that finds its rows by the primary key whatever the
// server thinks of the table's size: in a scan it would wait for rows that others
// are changing.
func deleteFrom(p *sqlstore.Plan) string {
	quoted := p.Dialect.Quote(p.Physical)
	return "DELETE " + quoted + " FROM " + quoted + " FORCE INDEX (PRIMARY) WHERE "
}

// deleteByKey deletes all rows of the given keys, of a child table those of all
// children.
func deleteByKey(ctx context.Context, se *session, p *sqlstore.Plan, keys []any) error {
	for len(keys) > 0 {
		n := min(len(keys), deletesMax)
		text := deleteFrom(p) + p.Dialect.Quote(readmodel.KeyColumn) + " IN (" + marks(n) + ")"
		if _, err := se.Exec(ctx, text, keys[:n]...); err != nil {
			return refusal(p, err)
		}
		keys = keys[n:]
	}
	return nil
}

// deletePairs deletes rows of a child table by key and child.
func deletePairs(ctx context.Context, se *session, p *sqlstore.Plan, pairs []any) error {
	one := "(" + p.Dialect.Quote(readmodel.KeyColumn) + " = ? AND " + p.Dialect.Quote(readmodel.ChildColumn) + " = ?)"
	for len(pairs) > 0 {
		n := min(len(pairs), 2*deletesMax)
		text := deleteFrom(p) + one + strings.Repeat(" OR "+one, n/2-1)
		if _, err := se.Exec(ctx, text, pairs[:n]...); err != nil {
			return refusal(p, err)
		}
		pairs = pairs[n:]
	}
	return nil
}

// insertRows writes rows, many with one statement.
func (s *Store) insertRows(ctx context.Context, se *session, p *sqlstore.Plan, w *store.TableWrites) (err error) {
	// The statement for one row taken apart, so that it can take many.
	const values = " VALUES "
	mark := strings.LastIndex(p.Insert, values) + len(values)
	head, marks, tail := p.Insert[:mark], p.Insert[mark:], ""
	if p.Upsert != "" {
		tail = p.Upsert[len(p.Insert):]
	}
	st := new(statement)
	send := func() error {
		if st.rows == 0 {
			return nil
		}
		_, err := se.Exec(ctx, st.text.String()+tail, st.args...)
		st = &statement{args: st.args[:0]}
		return refusal(p, err)
	}
	var args []any
	for i := range w.Writes {
		row := &w.Writes[i]
		if row.Row == nil {
			continue
		}
		if args, err = p.RowArgs(args[:0], row, w.Table.Epoch); err != nil {
			return badRow(p, row.Key.Key, err)
		}
		if !st.add(head, marks, args, s.sizeMax()-len(tail)) {
			if err := send(); err != nil {
				return err
			}
			st.add(head, marks, args, s.sizeMax()-len(tail))
		}
	}
	return send()
}
