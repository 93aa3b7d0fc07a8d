package postgres

import (
	"context"
	"strconv"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// rowPlan is the statements that write and read many rows of a physical table.
type rowPlan struct {
	*sqlstore.Plan
	upsert, insert         string
	delete, deleteChildren string
	prune                  string
	load                   string
	kinds                  []uint32 // of the declared columns
}

func (s *Store) rowPlan(ref *store.TableRef) *rowPlan {
	if p, ok := s.plans.Load(ref.Physical); ok && p.(*rowPlan).Table == ref.Table {
		return p.(*rowPlan)
	}
	p := newRowPlan(s.Plan(ref))
	s.plans.Store(ref.Physical, p)
	return p
}

func newRowPlan(plan *sqlstore.Plan) *rowPlan {
	p := &rowPlan{Plan: plan}
	t, quote := plan.Table, plan.Dialect.Quote
	keys := []string{quote(readmodel.KeyColumn)}
	if t.Parent != nil {
		keys = append(keys, quote(readmodel.ChildColumn))
	}
	arrays := make([]string, 0, len(keys)+len(t.Columns)+2)
	columns := append(make([]string, 0, cap(arrays)+1), keys...)
	for range keys {
		arrays = append(arrays, "text")
	}
	for i := range t.Columns {
		oid := elementOf(t.Columns[i].Kind)
		p.kinds = append(p.kinds, oid)
		arrays = append(arrays, elementNames[oid])
		columns = append(columns, quote(t.Columns[i].Name))
	}
	arrays = append(arrays, "bigint", "bigint")
	columns = append(columns, quote(readmodel.PositionColumn), quote(readmodel.UpdatedColumn), quote(readmodel.EpochColumn))
	table := quote(plan.Physical)
	p.insert = "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ")\nSELECT u.*, $" + strconv.Itoa(len(arrays)+1) + "::bigint FROM unnest(" + marks(arrays) + ") u"
	var set []string
	for _, c := range columns[len(keys):] {
		set = append(set, c+" = excluded."+c)
	}
	p.upsert = p.insert + "\nON CONFLICT (" + strings.Join(keys, ", ") + ") DO UPDATE SET " + strings.Join(set, ", ")
	p.deleteChildren = "DELETE FROM " + table + " WHERE " + keys[0] + " = ANY ($1::text[])"
	p.prune = p.deleteChildren + " AND " + quote(readmodel.EpochColumn) + " < $2"
	p.delete = p.deleteChildren
	if t.Parent != nil {
		p.delete = "DELETE FROM " + table + " t USING unnest($1::text[], $2::text[]) d (key, child) WHERE t." + keys[0] + " = d.key AND t." + keys[1] + " = d.child"
	}
	// The rows as package readmodel scans them: all columns but the epoch.
	epoch := "$" + strconv.Itoa(len(keys)+1)
	match := "t." + keys[0] + " = k.key"
	names := "key"
	if t.Parent != nil {
		match += " AND t." + keys[1] + " = k.child"
		names += ", child"
	}
	e := "t." + quote(readmodel.EpochColumn)
	p.load = "SELECT r.* FROM unnest(" + marks(arrays[:len(keys)]) + ") k (" + names + ") CROSS JOIN LATERAL (\n SELECT " +
		strings.Join(columns[:len(columns)-1], ", ") + " FROM " + table + " t WHERE " + match + " AND (" + e + " >= " + epoch + " OR " + e + " IS NULL) OFFSET 0) r"
	return p
}

var elementNames = map[uint32]string{
	oidText: "text", oidInt8: "bigint", oidNumeric: "numeric", oidFloat8: "double precision", oidBool: "boolean", oidDate: "date",
	oidTime: "time", oidTimestamp: "timestamp", oidUUID: "uuid", oidBytea: "bytea", oidJSON: "json",
}

// marks are array parameters of the types, from the first on.
func marks(types []string) string {
	list := make([]string, len(types))
	for i, t := range types {
		list[i] = "$" + strconv.Itoa(i+1) + "::" + t + "[]"
	}
	return strings.Join(list, ", ")
}

// writeStatements write the final rows of all tables. Everything that is deleted
// goes first: a row of a child table that was written after its parent's
// deletion stays, in whatever order the tables come.
func (s *Store) writeStatements(f *applyFlight, tables []store.TableWrites) error {
	var later []func() error
	for i := range tables {
		w := &tables[i]
		p := s.rowPlan(&w.Table)
		p.deletes(f, w)
		later = append(later, func() error { return p.writes(f, w) })
	}
	for _, write := range later {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// moves tells whether a row is to be taken out before it is written: in a table
// with a unique column a value can move from one row to another, so all rows
// whose unique columns change are taken out first (H18).
func (p *rowPlan) moves(w *readmodel.Write) bool {
	return w.Row != nil && p.Table.Unique && !p.Updates(w)
}

func (p *rowPlan) deletes(f *applyFlight, w *store.TableWrites) {
	if len(w.DeleteChildrenOf) > 0 {
		keys := f.arena.array(oidText)
		for _, k := range w.DeleteChildrenOf {
			keys.addText(k)
		}
		st := &statement{sql: p.deleteChildren, fresh: true}
		st.array(keys)
		f.add(p.Table.Name, st)
	}
	if len(w.PruneKeys) > 0 {
		keys := f.arena.array(oidText)
		for _, k := range w.PruneKeys {
			keys.addText(k)
		}
		st := &statement{sql: p.prune, fresh: true}
		st.array(keys)
		st.int8(w.Table.Epoch)
		f.add(p.Table.Name, st)
	}
	var keys, children, gone *array
	for i := range w.Writes {
		row := &w.Writes[i]
		if row.Row != nil && !p.moves(row) {
			continue
		}
		if keys == nil {
			keys, children, gone = f.arena.array(oidText), f.arena.array(oidText), f.arena.array(oidText)
		}
		keys.addText(row.Key.Key)
		children.addText(row.Child)
		if row.Row == nil {
			gone.addText(row.Key.Key)
		}
	}
	if keys == nil {
		return
	}
	st := &statement{sql: p.delete, fresh: true}
	st.array(keys)
	if p.Table.Parent != nil {
		st.array(children)
	}
	f.add(p.Table.Name, st)
	if gone.n == 0 {
		return
	}
	for _, child := range p.Children {
		st := &statement{sql: newRowPlan(child).deleteChildren, fresh: true}
		st.array(gone)
		f.add(child.Table.Name, st)
	}
}

// writes adds the statements that store the rows: one for all of them, two in a
// table with a unique column.
func (p *rowPlan) writes(f *applyFlight, w *store.TableWrites) error {
	if err := p.store(f, w, p.upsert, func(row *readmodel.Write) bool { return row.Row != nil && !p.moves(row) }); err != nil {
		return err
	}
	if !p.Table.Unique {
		return nil
	}
	return p.store(f, w, p.insert, p.moves)
}

func (p *rowPlan) store(f *applyFlight, w *store.TableWrites, sql string, wanted func(*readmodel.Write) bool) (err error) {
	t := p.Table
	var keys, children, positions, updated *array
	var columns []*array
	var values []abi.Value
	for i := range w.Writes {
		row := &w.Writes[i]
		if !wanted(row) {
			continue
		}
		if keys == nil {
			keys, children = f.arena.array(oidText), f.arena.array(oidText)
			positions, updated = f.arena.array(oidInt8), f.arena.array(oidInt8)
			for _, kind := range p.kinds {
				columns = append(columns, f.arena.array(kind))
			}
		}
		if values, err = t.Values(row.Row, values); err != nil {
			return notRow(t.Name, row.Key.Key, err)
		}
		keys.addText(row.Key.Key)
		if t.Parent != nil {
			children.addText(row.Child)
		}
		for c := range values {
			columns[c].addValue(&values[c])
		}
		positions.addInt8(row.Position)
		updated.addInt8(row.UpdatedUS)
	}
	if keys == nil {
		return nil
	}
	st := &statement{sql: sql}
	st.array(keys)
	if t.Parent != nil {
		st.array(children)
	}
	for _, c := range columns {
		st.array(c)
	}
	st.array(positions)
	st.array(updated)
	st.int8(w.Table.Epoch)
	f.add(t.Name, st)
	return nil
}

// LoadRows implements [store.ReadModels].
func (s *Store) LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) (list []store.StoredRow, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	p := s.rowPlan(&t)
	keys = once(keys)
	n := len(keys)
	names := newArray(oidText, n, 24)
	for _, k := range keys {
		names.addText(k.Key)
	}
	st := &statement{sql: p.load}
	st.array(names)
	if p.Table.Parent != nil {
		children := newArray(oidText, n, 24)
		for _, k := range keys {
			children.addText(k.Child)
		}
		st.array(children)
	}
	st.int8(t.Epoch)
	err = s.flight(ctx, "load rows", func(*conn) []*statement {
		list = make([]store.StoredRow, 0, n)
		sc := p.NewScanner()
		oids := p.columnTypes()
		st.row = func(v [][]byte) error {
			for i, b := range v {
				value, err := decode(oids[i], b)
				if err != nil {
					return err
				}
				sc.Set(i, value)
			}
			row, err := sc.Row()
			if err == nil {
				list = append(list, row)
			}
			return err
		}
		return []*statement{st}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// columnTypes are the types of a row as Scanner wants it.
func (p *rowPlan) columnTypes() []uint32 {
	oids := []uint32{oidText}
	if p.Table.Parent != nil {
		oids = append(oids, oidText)
	}
	return append(append(oids, p.kinds...), oidInt8, oidInt8)
}

// once leaves out keys that come again.
func once(keys []store.RowKey) []store.RowKey {
	rising := true
	for i := 1; i < len(keys); i++ {
		rising = rising && keys[i-1].Less(keys[i])
	}
	if rising {
		return keys
	}
	seen := make(map[store.RowKey]bool, len(keys))
	out := make([]store.RowKey, 0, len(keys))
	for _, k := range keys {
		if !seen[k] {
			seen[k] = true
			out = append(out, k)
		}
	}
	return out
}
