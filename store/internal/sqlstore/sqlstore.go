// Package sqlstore is what drivers for database servers have in common:
// consumers, leases, snapshots, read models, topics, the schema and its check.
// It is written in SQL that all of them understand, with the spelling left to a
// [Dialect] and the connections to an [Engine]. A driver embeds a [Core] and
// adds what makes its database fast and its promises true: appending, reading
// pages, the high-water mark, and applying.
//
// Promise: what it decides, it decides alike on every engine.
package sqlstore

import (
	"context"
	"io/fs"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Conn runs statements, outside of a transaction or in one. Statements are
// spelled for the engine ([Core.SQL]); arguments are nil, string, int64, float64,
// bool and []byte. It is not safe for concurrent use.
type Conn interface {
	// Exec returns the number of rows that matched, changed or not.
	Exec(ctx context.Context, text string, args ...any) (int64, error)
	Query(ctx context.Context, text string, args ...any) (Rows, error)
}

// Rows is the result of a query, as database/sql has it. Scan takes pointers to
// string, int64, []byte, the sql.Null types, and sql.Scanner. Close returns the
// error that ended the rows, if any.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Close() error
}

// Engine is a pool of connections to one database. Its methods give errors
// their final form ([Fail]) and are safe for concurrent use.
type Engine interface {
	// Read runs fn on a connection outside of a transaction: every statement
	// sees what was committed before it began. DDL runs here as well, and single
	// statements that may run twice.
	Read(ctx context.Context, op string, fn func(Conn) error) error
	// Write runs fn in a transaction at READ COMMITTED and commits it if fn
	// returns nil. What the database gave up in favour of another transaction
	// is run again a few times, so fn begins anew each time it is called. An
	// unknown outcome of COMMIT is a *store.TransientError that says so.
	Write(ctx context.Context, op string, fn func(Conn) error) error
	// Snapshot opens a read-only transaction whose statements all see one
	// moment, the first statement's. end gives the connection back.
	Snapshot(ctx context.Context, op string) (c Conn, end func(), err error)
	// Lock takes the database's own lock of a name against every other process
	// that uses this database, and waits for it as long as ctx allows. It goes
	// with the connection, or with release. A core takes one at a time, and uses
	// another connection while it holds it.
	Lock(ctx context.Context, name string) (release func() error, err error)
	// Class tells what an error of a statement means, and what an operator can
	// do about it ("" where nothing).
	Class(err error) (c Class, hint string)
	// Close waits for the calls that run.
	Close() error
}

// Step is a statement of a transaction that needs no answer of those before it.
type Step struct {
	Text string
	Args []any
	// Broken, unless nil, is what it means if the statement, an UPDATE or a DELETE,
	// finds another number of rows than Rows: then nothing of the transaction is
	// stored (H1).
	Broken error
	Rows   int64
}

// Batcher is an engine that sends a transaction whole, with its COMMIT. One has
// to where the server knows no limit for a transaction whose client has gone
// quiet (H35).
type Batcher interface {
	WriteAll(ctx context.Context, op string, steps []Step) error
}

// Class is what an error of the database means. It is told by code, never by
// text.
type Class int

// Classes.
const (
	// Unknown is no error of the database.
	Unknown Class = iota
	// Unlisted is an answer of the database whose code the driver does not know.
	// Its transaction is rolled back. Callers try it a few times only, so that it
	// cannot hide (H33).
	Unlisted
	// Lost is a connection that broke, or a server that went away. What was
	// read may no longer be true (a COMMIT may have happened).
	Lost
	// Retry is a transaction the database gave up: a deadlock, a serialisation
	// failure, a lock that was not had in time. Nothing of it is stored.
	Retry
	// Duplicate is a unique key that is taken.
	Duplicate
	// Data is a row's own fault: type, range, constraint, size.
	Data
	// Unavailable passes, or an operator ends it: disk full, read-only, no
	// permission, too many connections, starting up, a table or column that is
	// missing.
	Unavailable
)

// Dialect is the spelling of one engine, and where its catalogue is.
type Dialect struct {
	Name string // "postgres", "mysql", "mariadb", "sqlserver"
	Rows *readmodel.Dialect
	// Now is an expression: the database's clock, in microseconds since 1970,
	// UTC, moving within a transaction.
	Now string
	// Greatest is the function that gives the largest of its arguments; "" where a CASE
	// has to do.
	Greatest string
	// Schema holds the driver's migrations, schema/NNNN_name.sql: plain CREATE
	// TABLE and CREATE INDEX, ALTER TABLE … ADD of a column, and whatever else
	// may run twice. Statements end with ";" at a line's end. {{name}} is a
	// table of the host, unless Words says what stands there. What a statement
	// creates and is there already is passed over, so none needs IF NOT EXISTS.
	Schema fs.FS
	Words  map[string]string
	// ScriptBegin and ScriptEnd enclose the script of SchemaSQL where DDL can be
	// rolled back ("BEGIN;", "COMMIT;").
	ScriptBegin, ScriptEnd string
	// PositionMode is frozen by the first start.
	PositionMode string
	// ForUpdate is what a SELECT locks rows with, where an UPDATE of many would take
	// them in any order; "" where it goes by their key.
	ForUpdate string
	// KeyHash says that index entries have no room for a topic and a key: tables with
	// both have the column key_hash.
	KeyHash bool
	// EndLapsed ends the sessions on the server in which instances that are not
	// live, or processes that have none any more, have left a transaction open. It
	// gives the number of those that it ended or tried to, and of those of known
	// instances that are still there, also since their time has not come. {{live}} is the condition
	// that a row of {{instances}} is live. "" where limits of the server's own end
	// all of them in time.
	EndLapsed string
	// Describe tells a table of the current schema as the catalogue has it,
	// empty for none. A column that the database computes or numbers HasDefault.
	// Find tells what has a name, whatever its case: "table", "view", "index", …
	// ("" for nothing), and its spelling.
	Describe func(ctx context.Context, c Conn, table string) (readmodel.ActualTable, error)
	Find     func(ctx context.Context, c Conn, name string) (kind, spelled string, err error)
	// Adopt renames a user's table to be the build's table t, and leaves what
	// reads it by its name reading that name. Where an engine changes users'
	// views along with the table, it makes the public view as well.
	Adopt func(from, to string, t *readmodel.Table) []string
	// ViewIs tells whether a view reads just this build's table; a view that
	// does not is replaced.
	ViewIs func(ctx context.Context, c Conn, public, physical string, t *readmodel.Table) (bool, error)
}

var _ interface {
	store.Consumers
	store.Leases
	store.ReadModels
	store.Undelivered
	store.Operations
	store.Rebuilds
	store.Builds
} = (*Core)(nil)
