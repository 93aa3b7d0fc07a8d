// Package mysql is the driver for MySQL 8.0.17 and later and MariaDB 10.6 and
// later; it finds out which of them it talks to.
//
// Positions come from the topic's row: an append adds to its end_position and
// holds that row until it commits, so positions have no gaps, are committed in
// their order, and a committed end_position is the high-water mark. The row is
// locked as late as possible, since appends to one database wait for each other
// there.
//
// Both commit what a statement did though a later one found nothing to do, and
// neither can make that an error within SQL. So the rows that matched are
// counted and COMMIT is sent only after the counts were seen (clientFoundRows).
package mysql

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Options say which database to open and what to expect there.
type Options struct {
	// DSN is the connection string: user:password@tcp(host:3306)/database, with
	// the parameters of github.com/go-sql-driver/mysql. What the driver relies on
	// is set whatever the string says.
	DSN string
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
	// MaxOpenConns bounds the connections. 0: 20.
	MaxOpenConns int
	// Timeout is how long the server lets a session sit in a transaction, and how
	// long a statement waits for a lock. 0: 15 s.
	Timeout time.Duration
	// Logf gets what an operator should see and no caller is told. nil: nobody.
	Logf func(format string, args ...any)
}

// Store is an open database. It implements [store.Store].
type Store struct {
	*sqlstore.Core
	opt    Options
	engine *engine
	server *server
	q      queries
	wakes  rules.Wakes
	groups groups
	names  names
	row    atomic.Int64 // usual payload of an event, bytes; see ReadPage

	warned    sync.Map // warnings that were told
	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.wakes.Wait(topic) }

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context) error {
	srv, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	for _, w := range srv.warnings() {
		if _, told := s.warned.LoadOrStore(w, true); !told {
			s.logf("mysql: %s", w)
		}
	}
	return errors.Join(srv.check(s.opt.MaxEvent), s.InShape(ctx))
}

func (s *Store) logf(format string, args ...any) {
	if s.opt.Logf != nil {
		s.opt.Logf(format, args...)
	}
}

// Close waits for calls that run and closes the connections. Calls that come
// later fail.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.engine.Close() })
	return s.closeErr
}
