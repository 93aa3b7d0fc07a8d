package bench

import (
	"context"
	"fmt"

	"github.com/projhost/projhost/store"
)

// engine is a kind of database under measurement: where a run gets a database
// with the events of the workload in it, and how the host and the baselines
// open it.
type engine interface {
	// template names the database that the events are imported into, once for
	// all runs; loaded is told when they are there and nobody has it open.
	template() string
	loaded(ctx context.Context) error
	// with makes a database that is as the template was when it was loaded, calls
	// f with its name and removes it.
	with(ctx context.Context, f func(dsn string) error) error
	// open opens a database as the host does.
	open(ctx context.Context, dsn string) (store.Store, error)
	// connect opens a connection for a baseline.
	connect(ctx context.Context, dsn string) (session, error)
	// close removes everything that was made.
	close() error
}

// session is a baseline's connection. It is not safe for concurrent use.
type session interface {
	// create makes the baseline's tables in the shape of the host's, and
	// its checkpoints and leases.
	create(ctx context.Context) error
	// page reads the events behind a position, in order.
	page(ctx context.Context, after int64, limit int) ([]nativeEvent, error)
	// apply commits rows, at most one an account and in order of keys, with the
	// checkpoints of their partitions, if all leases are still held.
	apply(ctx context.Context, rows []nativeAccount, moves []move) error
	// applyOne is the same for one event whose account it reads, a statement
	// after the other.
	applyOne(ctx context.Context, e *nativeEvent, from int64) error
	// exec runs a statement.
	exec(ctx context.Context, text string) error
	// rows gives what a table holds, in order of keys: the account's values,
	// the position, the time and the epoch, as text.
	rows(ctx context.Context, table string, each func(values []string)) error
	// shape tells what a write of a table costs: its columns, its key, and the
	// columns of its indexes, without names.
	shape(ctx context.Context, table string) (string, error)
	close() error
}

// move takes a partition's checkpoint from one position to another.
type move struct {
	partition int
	from, to  int64
}

// checkpoints are a baseline's, by partition, as far as it knows.
type checkpoints [partitions]int64

// moves are those that rows bring about, by partition.
func (c *checkpoints) moves(rows []nativeAccount) []move {
	var to checkpoints
	for i := range rows {
		a := &rows[i]
		to[a.partition] = max(to[a.partition], a.position)
	}
	moves := make([]move, 0, partitions)
	for p := range to {
		if to[p] != 0 {
			moves = append(moves, move{p, c[p], to[p]})
			c[p] = to[p]
		}
	}
	return moves
}

func (m *move) lost() error {
	return fmt.Errorf("the checkpoint of partition %d is not %d", m.partition, m.from)
}

// Drivers are the names of the databases that can be measured.
func Drivers() []string { return []string{"sqlite", "postgres", "mysql"} }

// newEngine makes the engine of a driver. dir is for files.
func newEngine(ctx context.Context, driver, dsn, dir string) (engine, error) {
	switch driver {
	case "postgres":
		return newPostgres(ctx, dsn)
	case "mysql":
		return newMySQL(ctx, dsn)
	}
	return &sqliteEngine{dir: dir}, nil
}
