package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// nameClaim is a public name that a new consumer takes.
type nameClaim struct {
	public, declared string
	adopting         string // the user's table that becomes the build's
}

// claims checks that every table's public name is the consumer's to take (P6),
// and that what it adopts has the declared shape.
func (c *Core) claims(ctx context.Context, conn Conn, d *store.Declaration) ([]nameClaim, error) {
	list := make([]nameClaim, len(d.Tables))
	for i, t := range d.Tables {
		cl := nameClaim{public: readmodel.PublicName(c.Opt.ReadModelPrefix, t.Name), declared: t.Name}
		if err := c.checkOwner(ctx, conn, cl.public); err != nil {
			return nil, err
		}
		kind, spelled, err := c.Dialect.Find(ctx, conn, cl.public)
		if err != nil {
			return nil, err
		}
		adopted := slices.ContainsFunc(d.Adopt, func(name string) bool { return strings.EqualFold(name, t.Name) })
		switch {
		case kind == "":
		case adopted && kind == "table":
			if err := c.checkShape(ctx, conn, spelled, t); err != nil {
				return nil, err
			}
			cl.adopting = spelled
		case adopted && kind == "view": // is replaced in the end
		default:
			return nil, &store.NameTakenError{Table: cl.public, Owner: stranger(kind)}
		}
		list[i] = cl
	}
	return list, nil
}

// checkOwner tells whether a public name has an owner, whatever its case.
func (c *Core) checkOwner(ctx context.Context, conn Conn, public string) error {
	if p := strings.ToLower(c.Opt.TablePrefix); p != "" && strings.HasPrefix(public, p) {
		return &store.NameTakenError{Table: public, Owner: fmt.Sprintf("projhost itself: all names that begin with %q do", c.Opt.TablePrefix)}
	}
	var typ, name string
	var plugin sql.NullString
	found, err := one(ctx, conn, c.q.tableOwner, []any{public}, &typ, &name, &plugin)
	if err != nil || !found {
		return err
	}
	owner := typ + "/" + name
	if plugin.String != "" {
		owner += " of plugin " + plugin.String
	}
	return &store.NameTakenError{Table: public, Owner: owner}
}

func stranger(kind string) string {
	article := "a "
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		article = "an "
	}
	return article + kind + " that projhost did not create"
}

// checkShape compares a table with its declaration. It is never altered: that
// is for its owner to do.
func (c *Core) checkShape(ctx context.Context, conn Conn, name string, t *readmodel.Table) error {
	actual, err := c.Dialect.Describe(ctx, conn, name)
	if err != nil {
		return err
	}
	if len(actual.Columns) == 0 {
		return &readmodel.ShapeError{Table: name, Declared: "a table", Actual: "none",
			Remedy: "restore it from a backup, or rebuild the consumer: projhost does not begin anew with an empty one by itself"}
	}
	return c.Dialect.Rows.Check(name, t, actual)
}

// CheckTables implements [store.Store].
func (c *Core) CheckTables(ctx context.Context) (err error) {
	var wrong []error
	err = c.Engine.Read(ctx, "check read models", func(conn Conn) error {
		wrong = nil
		consumers, err := c.loadConsumers(ctx, conn, c.q.consumers)
		if err != nil {
			return err
		}
		for i := range consumers {
			for _, ref := range consumers[i].Tables {
				var adopting sql.NullString
				_, err := one(ctx, conn, c.q.adopting, []any{readmodel.PublicName(c.Opt.ReadModelPrefix, ref.Table.Name)}, &adopting)
				if err != nil {
					return err
				}
				if adopting.Valid {
					continue // the next start renames it
				}
				err = c.checkShape(ctx, conn, ref.Physical, ref.Table)
				if _, differs := errors.AsType[*readmodel.ShapeError](err); differs {
					wrong = append(wrong, fmt.Errorf("%s: %w", consumers[i].ID, err))
				} else if err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(append(wrong, err)...)
}

// makeTable makes a build's table, whose name nobody has.
func (c *Core) makeTable(ctx context.Context, ref store.TableRef) error {
	rows := c.Dialect.Rows
	return c.ddl(ctx, "create "+ref.Physical, slices.Concat(rows.CreateTable(ref.Physical, ref.Table), rows.CreateIndexes(ref.Physical, ref.Table)))
}

// dropTables removes the tables of a build that did not come to be: a host that
// tries again and again would leave ever more of them. One that it cannot remove
// does no harm, as its number is not used again.
func (c *Core) dropTables(ctx context.Context, refs []store.TableRef) {
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	for _, ref := range refs {
		_ = c.ddl(ctx, "drop "+ref.Physical, []string{c.Dialect.Rows.DropTable(ref.Physical)})
	}
}

// ddl runs statements that change the schema, each by itself.
func (c *Core) ddl(ctx context.Context, op string, statements []string) error {
	for _, text := range statements {
		// A statement that was given up had no effect.
		err := Again(ctx, c.Engine, func() error {
			return c.Engine.Read(ctx, op, func(conn Conn) error {
				_, err := conn.Exec(ctx, text)
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settleTables brings what is in the database to what is on record, and checks
// it: at the end of a first start, and at every later one.
func (c *Core) settleTables(ctx context.Context, id store.ConsumerID, refs []store.TableRef) error {
	var stuck error
	for i := range refs {
		err := c.settleTable(ctx, id, &refs[i])
		if _, ok := errors.AsType[*store.ViewError](err); ok {
			stuck = errors.Join(stuck, err) // the others can be settled still
		} else if err != nil {
			return err
		}
	}
	return stuck
}

// settleTable renames an adopted table, makes the view, and checks both.
func (c *Core) settleTable(ctx context.Context, id store.ConsumerID, ref *store.TableRef) error {
	public := readmodel.PublicName(c.Opt.ReadModelPrefix, ref.Table.Name)
	var adopting sql.NullString
	var physical, kind, spelled string
	sound := false
	look := func(conn Conn) (err error) {
		known, err := one(ctx, conn, c.q.adopting, []any{public}, &adopting)
		if err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("%s: the row %q of %s is missing: restore it from a backup", id, public, c.names.table("read_model_tables"))
		}
		if physical, _, err = c.Dialect.Find(ctx, conn, ref.Physical); err != nil {
			return err
		}
		if kind, spelled, err = c.Dialect.Find(ctx, conn, public); err != nil || kind != "view" {
			return err
		}
		sound, err = c.Dialect.ViewIs(ctx, conn, spelled, ref.Physical, ref.Table)
		return err
	}
	op := "check table " + public
	if err := c.Engine.Read(ctx, op, look); err != nil {
		return err
	}
	if adopting.Valid && physical == "" {
		// Checked once more: the table was its user's until now.
		err := c.Engine.Read(ctx, op, func(conn Conn) error { return c.checkShape(ctx, conn, adopting.String, ref.Table) })
		if err != nil {
			return err
		}
		if err := c.ddl(ctx, "adopt "+adopting.String, c.Dialect.Adopt(adopting.String, ref.Physical, ref.Table)); err != nil {
			return err
		}
		if err := c.Engine.Read(ctx, op, look); err != nil {
			return err
		}
	}
	err := c.Engine.Read(ctx, op, func(conn Conn) error { return c.checkShape(ctx, conn, ref.Physical, ref.Table) })
	if err != nil {
		return err
	}
	switch {
	case sound:
	case kind == "" || kind == "view":
		if err := c.makeView(ctx, public, kind, spelled, ref); err != nil {
			return err
		}
	default:
		return &store.NameTakenError{Table: public, Owner: stranger(kind)}
	}
	if !adopting.Valid {
		return nil
	}
	return c.Engine.Write(ctx, "adopted "+public, func(conn Conn) error {
		_, err := conn.Exec(ctx, c.q.adopted, public)
		return err
	})
}

// makeView makes the public name show the build's table: in place, so that
// users' grants and views stay. PostgreSQL cannot give a view other columns; there
// it is dropped and made again, both or neither.
func (c *Core) makeView(ctx context.Context, public, kind, spelled string, ref *store.TableRef) error {
	rows, op := c.Dialect.Rows, "create view "+public
	create := rows.CreateView(public, ref.Physical, ref.Table)
	err := c.ddl(ctx, op, create)
	if err == nil || kind != "view" || spelled != public || c.Dialect.ScriptBegin == "" {
		return err
	}
	again := c.Engine.Write(ctx, op, func(conn Conn) error {
		for _, text := range append([]string{rows.DropView(public)}, create...) {
			if _, err := conn.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
	if again != nil {
		return &store.ViewError{Name: public, Err: fmt.Errorf("%w; nor can it be dropped and made anew: %w", err, again)}
	}
	return nil
}
