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

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Options is [store.Options]. DSN is user:password@tcp(host:3306)/database, with
// the parameters of github.com/go-sql-driver/mysql; what the driver relies on is
// set whatever the string says. MaxOpenConns is 20 unless it is set.
type Options = store.Options

// Store is an open database. It implements [store.Store].
type Store struct {
	*sqlstore.Core
	opt    Options
	engine *engine
	beats  *engine // of one connection
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
	s.closeOnce.Do(func() { s.closeErr = errors.Join(s.engine.Close(), s.beats.Close()) })
	return s.closeErr
}
