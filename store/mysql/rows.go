package mysql

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

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

// deletesMax bounds the rows that one DELETE names.
const deletesMax = 500

func (s *Store) deleteRows(ctx context.Context, se *session, p *sqlstore.Plan, w *store.TableWrites) error {
	keys := make([]any, 0, len(w.DeleteChildrenOf))
	for _, key := range w.DeleteChildrenOf {
		keys = append(keys, key)
	}
	if err := deleteByKey(ctx, se, p, keys); err != nil {
		return err
	}
	if err := pruneByKey(ctx, se, p, w); err != nil {
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

// deleteByKey deletes all rows of the given keys, of a child table those of all
// children.
func deleteByKey(ctx context.Context, se *session, p *sqlstore.Plan, keys []any) error {
	return deleteListed(ctx, se, p, "", keys, readmodel.KeyColumn)
}

// pruneByKey deletes the rows of the keys that are to be pruned.
func pruneByKey(ctx context.Context, se *session, p *sqlstore.Plan, w *store.TableWrites) error {
	keys := make([]any, 0, len(w.PruneKeys))
	for _, key := range w.PruneKeys {
		keys = append(keys, key)
	}
	older := " WHERE " + p.Dialect.Quote(p.Physical) + "." + p.Dialect.Quote(readmodel.EpochColumn) + " < " + strconv.FormatInt(w.Table.Epoch, 10)
	return deleteListed(ctx, se, p, older, keys, readmodel.KeyColumn)
}

// deletePairs deletes rows of a child table by key and child.
func deletePairs(ctx context.Context, se *session, p *sqlstore.Plan, pairs []any) error {
	return deleteListed(ctx, se, p, "", pairs, readmodel.KeyColumn, readmodel.ChildColumn)
}

// deleteListed deletes the rows whose columns, which begin the primary key, have
// the listed values, and that a condition holds for, if there is one. The list is joined in its order: given as a condition, the
// server would rather look through a small table, where it waits for rows that
// others are changing. (An UPDATE passes these by, a DELETE does not.)
func deleteListed(ctx context.Context, se *session, p *sqlstore.Plan, where string, values []any, columns ...string) error {
	quoted := p.Dialect.Quote(p.Physical)
	first, more, on := "SELECT ", " UNION ALL SELECT "+marks(len(columns)), ""
	for i, name := range columns {
		if i > 0 {
			first, on = first+", ", on+" AND "
		}
		listed := "c" + strconv.Itoa(i)
		first += "? AS " + listed
		on += quoted + "." + p.Dialect.Quote(name) + " = l." + listed
	}
	for len(values) > 0 {
		n := min(len(values), deletesMax*len(columns))
		text := "DELETE " + quoted + " FROM (" + first + strings.Repeat(more, n/len(columns)-1) + ") l STRAIGHT_JOIN " + quoted + " ON " + on + where
		if _, err := se.Exec(ctx, text, values[:n]...); err != nil {
			return refusal(p, err)
		}
		values = values[n:]
	}
	return nil
}

// insertRows writes rows, many with one statement. Its text is put together
// here: by way of arguments every value would be boxed, collected and looked at
// twice, which took a third of what writing a row costs this side.
func (s *Store) insertRows(ctx context.Context, se *session, p *sqlstore.Plan, w *store.TableWrites) (err error) {
	// The statement for one row taken apart, so that it can take many.
	const values = " VALUES "
	head, tail := p.Insert[:strings.LastIndex(p.Insert, values)+len(values)], ""
	if p.Upsert != "" {
		tail = p.Upsert[len(p.Insert):]
	}
	buf := texts.Get().(*[]byte)
	defer texts.Put(buf)
	text, rows := append((*buf)[:0], head...), 0
	send := func(text []byte) error {
		_, err := se.Exec(ctx, string(append(text, tail...)))
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
		at := len(text)
		if text, err = appendRow(text, args); err != nil {
			return badRow(p, row.Key.Key, err)
		}
		if rows > 0 && (len(text)+len(tail) > s.sizeMax() || rows == rowsMax) {
			last := bytes.Clone(text[at:])
			if err := send(text[:at-len(", ")]); err != nil {
				return err
			}
			text, rows = append(append(text[:0], head...), last...), 0
		}
		text = append(text, ", "...)
		rows++
	}
	if *buf = text; rows == 0 {
		return nil
	}
	return send(text[:len(text)-len(", ")])
}

// texts keeps the memory of statements between batches.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// appendRow appends the values of a row in parentheses.
func appendRow(text []byte, args []any) ([]byte, error) {
	for i, arg := range args {
		if i == 0 {
			text = append(text, '(')
		} else {
			text = append(text, ',')
		}
		switch v := arg.(type) {
		case nil:
			text = append(text, "NULL"...)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		case float64:
			text = strconv.AppendFloat(text, v, 'g', -1, 64)
		case bool:
			text = strconv.AppendBool(text, v)
		case string:
			text = appendQuoted(text, v)
		case []byte:
			text = appendQuoted(append(text, "_binary"...), viewOf(v))
		default:
			return text, fmt.Errorf("a value of type %T cannot be sent", arg)
		}
	}
	return append(text, ')'), nil
}

// appendQuoted appends a literal. Sessions are in utf8mb4, where no character
// holds the byte of another, and read backslashes as escapes.
func appendQuoted(text []byte, s string) []byte {
	text = append(text, '\'')
	for i := range len(s) {
		switch c := s[i]; c {
		case 0:
			text = append(text, `\0`...)
		case '\n':
			text = append(text, `\n`...)
		case '\r':
			text = append(text, `\r`...)
		case 0x1a:
			text = append(text, `\Z`...)
		case '\'', '"', '\\':
			text = append(text, '\\', c)
		default:
			text = append(text, c)
		}
	}
	return append(text, '\'')
}
