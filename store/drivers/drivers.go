// Package drivers opens a store by the name of its driver.
package drivers

import (
	"context"
	"time"

	"github.com/projhost/projhost/store"
)

// Options say which database to open, for all drivers alike.
type Options struct {
	Driver string // "sqlite" | "postgres" | "mysql" | "sqlserver"
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

// Names are the drivers there are.
func Names() []string { return []string{"sqlite", "postgres", "mysql", "sqlserver"} }

// Open opens a store; see the driver's own Open.
func Open(ctx context.Context, o Options) (store.Store, error) { panic("todo") }

// SchemaSQL is the script that makes the host's tables in an empty database.
// driver may also be "mariadb".
func SchemaSQL(driver, tablePrefix string, partitions int) (string, error) { panic("todo") }
