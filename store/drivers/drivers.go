// Package drivers opens a store by the name of its driver, and knows what the
// drivers' errors have in common. A name is here when it can be opened.
package drivers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/mysql"
	"github.com/projhost/projhost/store/postgres"
	"github.com/projhost/projhost/store/sqlite"
	"github.com/projhost/projhost/store/sqlserver"
)

// Options say which database to open, for all drivers alike.
type Options struct {
	Driver string // one of Names
	// DSN is the path of the file for sqlite, else a connection string.
	DSN string
	// DirectDSN is a session connection where DSN goes through a pooler
	// (postgres: detector, LISTEN, locks). "": DSN.
	DirectDSN       string
	TablePrefix     string
	ReadModelPrefix string
	NeverInitialize bool
	Partitions      int
	MaxEvent        int
	MaxOpenConns    int // 0: the driver's default
	// Timeout ends what a frozen host would hold for ever: the server's limit
	// for an idle transaction and for waits. 0: 15 s.
	Timeout time.Duration
	// Logf gets what an operator should see and no caller is told, such as a
	// connection of the detector that was lost. nil: nobody.
	Logf func(format string, args ...any)
}

// driver is what there is to know of one.
type driver struct {
	name string
	open func(context.Context, Options) (store.Store, error)
	// schemas are the dialects that its script is spelled in, by the name that
	// asks for one; the driver's own name is among them.
	schemas []string
	schema  func(dialect, tablePrefix string, partitions int) (string, error)
}

var all = []driver{
	{
		name: "sqlite",
		open: func(ctx context.Context, o Options) (store.Store, error) {
			return opened(sqlite.Open(ctx, sqlite.Options{
				Path: o.DSN, TablePrefix: o.TablePrefix, ReadModelPrefix: o.ReadModelPrefix, NeverInitialize: o.NeverInitialize,
				Partitions: o.Partitions, MaxEvent: o.MaxEvent, Readers: o.MaxOpenConns, BusyFor: o.Timeout,
			}))
		},
		schemas: []string{"sqlite"},
		schema:  func(_, prefix string, partitions int) (string, error) { return sqlite.SchemaSQL(prefix, partitions) },
	},
	{
		name: "postgres",
		open: func(ctx context.Context, o Options) (store.Store, error) {
			return opened(postgres.Open(ctx, postgres.Options{
				DSN: o.DSN, DirectDSN: o.DirectDSN, TablePrefix: o.TablePrefix, ReadModelPrefix: o.ReadModelPrefix, NeverInitialize: o.NeverInitialize,
				Partitions: o.Partitions, MaxEvent: o.MaxEvent, MaxOpenConns: o.MaxOpenConns, Timeout: o.Timeout, Logf: o.Logf,
			}))
		},
		schemas: []string{"postgres"},
		schema:  func(_, prefix string, partitions int) (string, error) { return postgres.SchemaSQL(prefix, partitions) },
	},
	{
		name: "mysql",
		open: func(ctx context.Context, o Options) (store.Store, error) {
			return opened(mysql.Open(ctx, mysql.Options{
				DSN: o.DSN, TablePrefix: o.TablePrefix, ReadModelPrefix: o.ReadModelPrefix, NeverInitialize: o.NeverInitialize,
				Partitions: o.Partitions, MaxEvent: o.MaxEvent, MaxOpenConns: o.MaxOpenConns, Timeout: o.Timeout, Logf: o.Logf,
			}))
		},
		schemas: []string{"mysql", "mariadb"},
		schema:  mysql.SchemaSQL,
	},
	{
		name: "sqlserver",
		open: func(ctx context.Context, o Options) (store.Store, error) {
			return opened(sqlserver.Open(ctx, sqlserver.Options{
				DSN: o.DSN, TablePrefix: o.TablePrefix, ReadModelPrefix: o.ReadModelPrefix, NeverInitialize: o.NeverInitialize,
				Partitions: o.Partitions, MaxEvent: o.MaxEvent, MaxOpenConns: o.MaxOpenConns, Timeout: o.Timeout, Logf: o.Logf,
			}))
		},
		schemas: []string{"sqlserver"},
		schema:  func(_, prefix string, partitions int) (string, error) { return sqlserver.SchemaSQL(prefix, partitions) },
	},
}

// opened keeps a nil pointer out of the interface.
func opened[S store.Store](s S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
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

// Open opens a store; see the driver's own Open. The errors say what to mend.
func Open(ctx context.Context, o Options) (store.Store, error) {
	for i := range all {
		if all[i].name == o.Driver {
			return all[i].open(ctx, o)
		}
	}
	return nil, fmt.Errorf("there is no driver %q: it is one of %s", o.Driver, strings.Join(Names(), ", "))
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
