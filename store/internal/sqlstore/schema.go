package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
)

// CheckSchema compares the host's tables with what the migrations make. Further
// tables, columns that may be left out and plain indexes are the user's own
// business.
func (c *Core) CheckSchema(ctx context.Context) error {
	applied, err := c.applied(ctx)
	if err != nil {
		return err
	}
	if err := migrate.Verify(applied, c.migrations); err != nil {
		return err
	}
	if err := c.compareTables(ctx, c.migrations); err != nil {
		if e, ok := errors.AsType[*store.SchemaError](err); ok {
			e.New = len(applied) == 0
		}
		return err
	}
	if len(applied) < len(c.migrations) {
		m := c.migrations[len(applied)]
		return fmt.Errorf("migration %04d_%s is not on record in %s: insert the row that `projhost schema print --driver %s` has for it",
			m.Version, m.Name, c.names.table("schema_migrations"), c.Dialect.Name)
	}
	return nil
}

// inShapeFor is how long a schema that was in shape is taken to be. Whoever asks
// whether a host is well asks again and again, and a look at the schema takes
// some forty statements.
const inShapeFor = time.Minute

// inShape is a look at the schema that found nothing wrong.
type inShape struct {
	at          time.Time
	incarnation uint64
}

// InShape is CheckSchema, but for a schema that was in shape a moment ago, in
// the same incarnation of the database.
func (c *Core) InShape(ctx context.Context) error {
	now := inShape{time.Now(), c.Incarnation()}
	if last := c.shape.Load(); last != nil && last.incarnation == now.incarnation && now.at.Sub(last.at) < inShapeFor {
		return nil
	}
	if err := c.CheckSchema(ctx); err != nil {
		return err
	}
	c.shape.Store(&now)
	return nil
}

// compareTables compares what the database has with what migrations make.
func (c *Core) compareTables(ctx context.Context, ms []migrate.Migration) error {
	expected := expect(c.names, ms)
	return c.Engine.Read(ctx, "check schema", func(conn Conn) error {
		for _, t := range expected {
			have, err := c.Dialect.Describe(ctx, conn, t.name)
			if err != nil {
				return err
			}
			if err := compare(c.Dialect.Name, t, have); err != nil {
				return err
			}
		}
		return nil
	})
}

// expectedTable is a table as the migrations leave it.
type expectedTable struct {
	name string
	readmodel.ActualTable
}

// expect reads the migrations.
func expect(names *naming, ms []migrate.Migration) []*expectedTable {
	var list []*expectedTable
	for _, m := range ms {
		for _, text := range statements(names.script(m.SQL)) {
			s, ok := parseStatement(text)
			if !ok {
				continue
			}
			if s.kind == createsTable {
				list = append(list, &expectedTable{s.table, s.whole})
				continue
			}
			for _, t := range list {
				switch {
				case t.name != s.table:
				case s.kind == createsIndex:
					t.Indexes = append(t.Indexes, s.index)
				default:
					t.Columns = append(t.Columns, s.column)
				}
			}
		}
	}
	return list
}

func compare(driver string, want *expectedTable, have readmodel.ActualTable) error {
	if len(have.Columns) == 0 {
		return &store.SchemaError{Driver: driver, Table: want.name}
	}
	differ := func(what, wanted, found string) error {
		if wanted == found {
			return nil
		}
		return &store.SchemaError{Driver: driver, Table: want.name, Column: what, Want: wanted, Have: found}
	}
	for i := range want.Columns {
		w := &want.Columns[i]
		found := ""
		if h, ok := findColumn(have.Columns, w.Name); ok {
			found = columnText(h, w)
		}
		if err := differ(fmt.Sprintf("column %q", w.Name), columnText(w, w), found); err != nil {
			return err
		}
	}
	for _, w := range want.Indexes {
		found := ""
		for _, h := range have.Indexes {
			// Named by what it covers: how an index is called does not matter.
			if sameColumns(h.Columns, w.Columns) && (found == "" || h.Unique == w.Unique) {
				found = indexText(h)
			}
		}
		if err := differ(fmt.Sprintf("index on (%s)", strings.Join(w.Columns, ", ")), indexText(w), found); err != nil {
			return err
		}
	}
	// What an insert by us would trip over.
	for i := range have.Columns {
		h := &have.Columns[i]
		if _, wanted := findColumn(want.Columns, h.Name); !wanted && !h.Nullable && !h.HasDefault {
			return differ(fmt.Sprintf("column %q", h.Name), "absent, or harmless (nullable, or with a default)", columnText(h, h))
		}
	}
	for _, h := range have.Indexes {
		if h.Unique && !coversKey(h, want.Columns) && !slices.ContainsFunc(want.Indexes, func(w readmodel.ActualIndex) bool { return w.Unique && sameColumns(w.Columns, h.Columns) }) {
			return differ(fmt.Sprintf("index %q on (%s)", h.Name, strings.Join(h.Columns, ", ")), "absent, or not unique", indexText(h))
		}
	}
	return nil
}

func findColumn(list []readmodel.ActualColumn, name string) (*readmodel.ActualColumn, bool) {
	i := slices.IndexFunc(list, func(c readmodel.ActualColumn) bool { return strings.EqualFold(c.Name, name) })
	if i < 0 {
		return nil, false
	}
	return &list[i], true
}

func hasIndex(list []readmodel.ActualIndex, called func(name string) bool) bool {
	return slices.ContainsFunc(list, func(x readmodel.ActualIndex) bool { return called(x.Name) })
}

func sameColumns(a, b []string) bool { return slices.EqualFunc(a, b, strings.EqualFold) }

// coversKey tells whether an index has all columns of the primary key, so that
// it refuses nothing which that does not.
func coversKey(x readmodel.ActualIndex, columns []readmodel.ActualColumn) bool {
	for _, c := range columns {
		if c.PrimaryKey != 0 && !slices.ContainsFunc(x.Columns, func(name string) bool { return strings.EqualFold(name, c.Name) }) {
			return false
		}
	}
	return true
}

// columnText shows a column in what the wanted one says: a default it does not
// ask for does no harm, nor a collation.
func columnText(c, want *readmodel.ActualColumn) string {
	text := strings.Join(strings.Fields(strings.ToLower(c.Type)), " ")
	if want.Type == "" {
		text = "" // computed, in the type of what it is computed from
	}
	if want.Collation != "" {
		text += " COLLATE " + strings.ToLower(cmp.Or(c.Collation, "of another kind"))
	}
	if !c.Nullable {
		text += " NOT NULL"
	}
	if c.HasDefault && want.HasDefault {
		text += " with a default"
	}
	if c.PrimaryKey != 0 {
		text += fmt.Sprintf(" PRIMARY KEY part %d", c.PrimaryKey)
	}
	return strings.TrimSpace(text)
}

func indexText(x readmodel.ActualIndex) string {
	kind := "an index"
	if x.Unique {
		kind = "a unique index"
	}
	if x.Partial {
		kind += " over some rows"
	}
	return kind + " on (" + strings.ToLower(strings.Join(x.Columns, ", ")) + ")"
}
