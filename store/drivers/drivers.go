// Package drivers opens a store by the name of its driver, and knows what the
// drivers' errors have in common. A name is here when it can be opened.
package drivers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/mysql"
	"github.com/projhost/projhost/store/postgres"
	"github.com/projhost/projhost/store/sqlite"
	"github.com/projhost/projhost/store/sqlserver"
)

// driver is what there is to know of one.
type driver struct {
	name string
	open func(context.Context, store.Options) (store.Store, error)
	// schemas are the dialects that its script is spelled in, by the name that
	// asks for one; the driver's own name is among them.
	schemas []string
	schema  func(dialect, tablePrefix string, partitions int) (string, error)
}

var all = []driver{
	{
		name:    "sqlite",
		open:    opening(sqlite.Open),
		schemas: []string{"sqlite"},
		schema:  func(_, prefix string, partitions int) (string, error) { return sqlite.SchemaSQL(prefix, partitions) },
	},
	{
		name:    "postgres",
		open:    opening(postgres.Open),
		schemas: []string{"postgres"},
		schema:  func(_, prefix string, partitions int) (string, error) { return postgres.SchemaSQL(prefix, partitions) },
	},
	{
		name:    "mysql",
		open:    opening(mysql.Open),
		schemas: []string{"mysql", "mariadb"},
		schema:  mysql.SchemaSQL,
	},
	{
		name:    "sqlserver",
		open:    opening(sqlserver.Open),
		schemas: []string{"sqlserver"},
		schema:  func(_, prefix string, partitions int) (string, error) { return sqlserver.SchemaSQL(prefix, partitions) },
	},
}

// opening gives the Open of a driver the form of all; it keeps a nil pointer out
// of the interface.
func opening[S store.Store](open func(context.Context, store.Options) (S, error)) func(context.Context, store.Options) (store.Store, error) {
	return func(ctx context.Context, o store.Options) (store.Store, error) {
		s, err := open(ctx, o)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}

// Names are the drivers there are.
func Names() []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].name
	}
	return names
}

// Schemas are the names that SchemaSQL knows: the drivers, and further dialects
// of theirs, such as mariadb.
func Schemas() (names []string) {
	for i := range all {
		names = append(names, all[i].schemas...)
	}
	return names
}

// Open opens a store with the driver of a name, one of Names; see the driver's
// own Open. The errors say what to mend.
func Open(ctx context.Context, name string, o store.Options) (store.Store, error) {
	for i := range all {
		if all[i].name == name {
			return all[i].open(ctx, o)
		}
	}
	return nil, fmt.Errorf("there is no driver %q: it is one of %s", name, strings.Join(Names(), ", "))
}

// SchemaSQL is the script that makes the host's tables in an empty database.
func SchemaSQL(dialect, tablePrefix string, partitions int) (string, error) {
	for i := range all {
		if slices.Contains(all[i].schemas, dialect) {
			return all[i].schema(dialect, tablePrefix, partitions)
		}
	}
	return "", fmt.Errorf("there is no schema for %q: it is one of %s", dialect, strings.Join(Schemas(), ", "))
}
