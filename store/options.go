package store

import "time"

// Options say which database to open and what to expect there, for all drivers
// alike; a driver's own word on some of them is at its Options.
type Options struct {
	// DSN is a connection string, or the path of an embedded database.
	DSN string
	// DirectDSN reaches the same database past a pooler, for what needs a session
	// of its own. "": DSN is direct. Only PostgreSQL has poolers before it.
	DirectDSN string
	// TablePrefix precedes the host's tables; it is used as it stands.
	TablePrefix string
	// ReadModelPrefix precedes the tables of read models.
	ReadModelPrefix string
	// NeverInitialize checks the schema at start instead of creating it.
	NeverInitialize bool
	// Partitions is N; the first start freezes it. 0: what the database has,
	// 256 for a new one.
	Partitions int
	// MaxEvent bounds an event's data and metadata, bytes. 0: 1 MiB.
	MaxEvent int
	// MaxOpenConns bounds the connections for work. 0: the driver's default.
	MaxOpenConns int
	// Timeout is how long a statement waits for a lock, and how long a server
	// lets a session sit in a transaction, so that a frozen host holds up nobody
	// for ever. 0: 15 s, or 5 s for an embedded database.
	Timeout time.Duration
	// Now is the clock of an embedded database; a server has its own. nil:
	// time.Now.
	Now func() time.Time
	// Logf gets what an operator should see and no caller is told, such as a
	// connection of a detector that was lost. nil: nobody.
	Logf func(format string, args ...any)
}
