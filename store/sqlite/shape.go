package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
)

// checkSchema compares what the database has with what the migrations make in
// an empty one. Further tables, columns that may be null and plain indexes are
// the user's own business.
func (s *Store) checkSchema(c *conn) error {
	ctx := context.Background()
	applied, err := s.applied(ctx, c)
	if err != nil {
		return err
	}
	if err := migrate.Verify(applied, migrations); err != nil {
		return err
	}
	model, err := openConn(":memory:", false)
	if err != nil {
		return err
	}
	defer model.close()
	if err := model.script(s.names.sql(schemaMigrationsDDL)); err != nil {
		return err
	}
	for _, m := range migrations {
		if err := model.script(s.names.sql(m.SQL)); err != nil {
			return err
		}
	}
	tables, err := model.queryTexts(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
	if err != nil {
		return err
	}
	sort.Strings(tables)
	for _, table := range tables {
		want, err := shapeOf(model, table)
		if err != nil {
			return err
		}
		have, err := shapeOf(c, table)
		if err != nil {
			return err
		}
		if err := compareShapes(table, want, have); err != nil {
			if e, ok := errors.AsType[*store.SchemaError](err); ok {
				e.New = len(applied) == 0
			}
			return err
		}
	}
	if len(applied) < len(migrations) {
		m := migrations[len(applied)]
		return fmt.Errorf("migration %04d_%s is not on record in %s: insert the row that `projhost schema print --driver sqlite` ends it with", m.Version, m.Name, quote(s.names.prefix+"schema_migrations"))
	}
	return nil
}

// shape is a table's columns and unique indexes, as text to compare and show.
type shape struct {
	names []string
	parts map[string]string
	extra map[string]string // what an insert by us would trip over, if not wanted
}

func shapeOf(c *conn, table string) (*shape, error) {
	s := &shape{parts: map[string]string{}, extra: map[string]string{}}
	add := func(name, text string) {
		s.names = append(s.names, name)
		s.parts[name] = text
	}
	r, err := c.query(context.Background(), `SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)`, table)
	if err != nil {
		return nil, err
	}
	for r.next() {
		text := r.text(1)
		if r.int(2) != 0 {
			text += " NOT NULL"
			if r.vals[3] == nil && r.int(5) == 0 {
				s.extra["column "+quote(r.text(0))] = text
			}
		}
		if r.vals[3] != nil {
			text += " DEFAULT " + r.text(3)
		}
		if r.int(4) != 0 {
			text += fmt.Sprintf(" PRIMARY KEY part %d", r.int(4))
		}
		if r.int(5) != 0 {
			text += " GENERATED"
		}
		add("column "+quote(r.text(0)), text)
	}
	if err := r.close(); err != nil || len(s.names) == 0 {
		return s, err
	}
	r, err = c.query(context.Background(), `SELECT i.name, i."unique", i.partial, group_concat(quote(x.name) || ' ' || x.coll, ', ' ORDER BY x.seqno)
		FROM pragma_index_list(?) i, pragma_index_xinfo(i.name) x WHERE x.key GROUP BY i.name ORDER BY i.name`, table)
	if err != nil {
		return nil, err
	}
	for r.next() {
		kind := "an index"
		if r.int(1) != 0 {
			kind = "a unique index"
		}
		if r.int(2) != 0 {
			kind += " over some rows"
		}
		text := kind + " on (" + r.text(3) + ")"
		// Named by what it covers: how an index is called does not matter.
		name := "index on (" + r.text(3) + ")"
		add(name, text)
		if r.int(1) != 0 {
			s.extra[name] = text
		}
	}
	return s, r.close()
}

func compareShapes(table string, want, have *shape) error {
	if len(have.names) == 0 {
		return &store.SchemaError{Driver: "sqlite", Table: table}
	}
	for _, name := range want.names {
		if have.parts[name] != want.parts[name] {
			return &store.SchemaError{Driver: "sqlite", Table: table, Column: name, Want: want.parts[name], Have: have.parts[name]}
		}
	}
	for _, name := range have.names {
		if _, wanted := want.parts[name]; !wanted && have.extra[name] != "" {
			return &store.SchemaError{Driver: "sqlite", Table: table, Column: name, Want: "absent, or harmless (nullable, not unique)", Have: have.extra[name]}
		}
	}
	return nil
}

func (c *conn) queryTexts(text string) ([]string, error) {
	r, err := c.query(context.Background(), text)
	if err != nil {
		return nil, err
	}
	var list []string
	for r.next() {
		list = append(list, r.text(0))
	}
	return list, r.close()
}
