package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// object is what the database has under a name.
type object struct {
	kind string // "table", "view", "index"; "" for nothing
	name string // as it is spelled
	sql  string
}

func findObject(c *conn, name string) (object, error) {
	row, err := c.queryRow(context.Background(), findObjectSQL, name)
	if err != nil || row == nil {
		return object{}, err
	}
	text, _ := row[2].(string)
	return object{kind: row[0].(string), name: row[1].(string), sql: text}, nil
}

// createTable claims a table's public name for its consumer (P6) and makes the
// physical table of the consumer's first build, with its view.
func (s *Store) createTable(tx *tx, d *store.Declaration, t *readmodel.Table, build int64) error {
	public := readmodel.PublicName(s.opt.ReadModelPrefix, t.Name)
	physical := readmodel.PhysicalName(s.opt.ReadModelPrefix, t.Name, build)
	if err := s.claimName(tx, d, t, public, build); err != nil {
		return err
	}
	there, err := findObject(tx.conn, physical)
	if err != nil {
		return err
	}
	if there.kind != "" {
		// Numbers of builds are not used twice, so this is of another host in
		// the same file.
		return &store.NameTakenError{Table: physical, Owner: stranger(there)}
	}
	there, err = findObject(tx.conn, public)
	if err != nil {
		return err
	}
	switch adopted := adopts(d, t.Name); {
	case there.kind == "":
	case adopted && there.kind == "table":
		return s.adopt(tx, t, there.name, public, physical)
	case adopted && there.kind == "view": // is replaced below
	default:
		return &store.NameTakenError{Table: public, Owner: stranger(there)}
	}
	for _, text := range readmodel.SQLite.CreateTable(physical, t) {
		if err := tx.script(text); err != nil {
			return err
		}
	}
	for _, text := range readmodel.SQLite.CreateIndexes(physical, t) {
		if err := tx.script(text); err != nil {
			return err
		}
	}
	return createView(tx, public, physical, t)
}

// adopt makes a user's table, which the operator's configuration gave to the
// consumer, the physical table of its first build. The rows in it stay; the
// table's own name becomes the view, so that whoever read it reads on.
func (s *Store) adopt(tx *tx, t *readmodel.Table, name, public, physical string) error {
	if err := checkShape(tx.conn, name, t); err != nil {
		return err
	}
	// By itself SQLite would change users' views along with the name, and they
	// would read this build's table for ever.
	if err := tx.script("PRAGMA legacy_alter_table = ON"); err != nil {
		return err
	}
	err := tx.script("ALTER TABLE " + quote(name) + " RENAME TO " + quote(physical))
	if e := tx.script("PRAGMA legacy_alter_table = OFF"); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return createView(tx, public, physical, t)
}

func adopts(d *store.Declaration, table string) bool {
	return slices.ContainsFunc(d.Adopt, func(name string) bool { return strings.EqualFold(name, table) })
}

// claimName makes the consumer the owner of a public name, whatever its case.
func (s *Store) claimName(tx *tx, d *store.Declaration, t *readmodel.Table, public string, build int64) error {
	if p := strings.ToLower(s.names.prefix); p != "" && strings.HasPrefix(public, p) {
		return &store.NameTakenError{Table: public, Owner: fmt.Sprintf("projhost itself: all names that begin with %q do", s.names.prefix)}
	}
	row, err := tx.queryRow(context.Background(), s.q.tableOwner, public)
	if err != nil {
		return err
	}
	if row != nil {
		owner := fmt.Sprintf("%v/%v", row[0], row[1])
		if plugin, _ := row[2].(string); plugin != "" {
			owner += " of plugin " + plugin
		}
		return &store.NameTakenError{Table: public, Owner: owner}
	}
	_, err = tx.exec(s.q.claimTable, public, d.ID.Type, d.ID.Name, t.Name, build)
	return err
}

func stranger(o object) string {
	article := "a "
	if o.kind == "index" {
		article = "an "
	}
	return article + o.kind + " that projhost did not create"
}

// checkTable compares a consumer's table with its declaration at a later start,
// and repairs the view.
func (s *Store) checkTable(tx *tx, ref store.TableRef) error {
	if err := checkShape(tx.conn, ref.Physical, ref.Table); err != nil {
		return err
	}
	public := readmodel.PublicName(s.opt.ReadModelPrefix, ref.Table.Name)
	there, err := findObject(tx.conn, public)
	if err != nil {
		return err
	}
	switch {
	case there.kind == "view" && showsTable(there, public, &ref):
		return nil
	case there.kind == "view" || there.kind == "":
		return createView(tx, public, ref.Physical, ref.Table)
	}
	return &store.NameTakenError{Table: public, Owner: stranger(there)}
}

// showsTable tells whether a view is ours and shows just this table.
func showsTable(view object, public string, ref *store.TableRef) bool {
	return slices.Contains(readmodel.SQLite.CreateView(public, ref.Physical, ref.Table), view.sql)
}

func createView(tx *tx, public, physical string, t *readmodel.Table) error {
	for _, text := range readmodel.SQLite.CreateView(public, physical, t) {
		if err := tx.script(text); err != nil {
			return err
		}
	}
	return nil
}
