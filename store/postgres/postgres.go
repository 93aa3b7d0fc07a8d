// Package postgres is the driver for PostgreSQL 14 to 18.
//
// It speaks the protocol itself (pgx): an append or a batch of a lane goes to
// the server in one flight, from BEGIN to COMMIT, with guards that fail as errors
// on the server, so nothing stale commits (P1, P2). Positions come from an
// identity column and appends never wait for each other; readers see what the
// high-water mark of package mark allows (P4).
//
// Any number of hosts share a database. Work may go through a pooler in
// transaction mode; the detector and locks need a session and go past it.
package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
	"github.com/projhost/projhost/store/postgres/internal/mark"
)

// Options is [store.Options]. DSN is a URL or key=value pairs; tables are made in
// the first schema of its search_path. MaxOpenConns is by the number of
// processors unless it is set, and a few connections more go past a pooler.
type Options = store.Options

// Store is an open database. It implements [store.Store].
type Store struct {
	*sqlstore.Core
	opt      Options
	engine   *engine
	q        queries
	sequence string // quoted, with its schema
	wakes    rules.Wakes
	detector *mark.Detector
	plans    sync.Map // physical table → *rowPlan

	eventSize atomic.Int64 // bytes of an event's payload in the pages read of late

	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.wakes.Wait(topic) }

// Close waits for the calls that run and closes the connections.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		if s.detector != nil {
			s.detector.Close()
		}
		s.closeErr = s.engine.Close()
	})
	return s.closeErr
}

// tables puts the prefix into SQL: {{name}} is one of the host's tables.
func tables(prefix, text string) string {
	return strings.NewReplacer("{{", `"`+prefix, "}}", `"`).Replace(text)
}

// guarded makes a query fail where a condition on its rows does not hold: the
// division by zero is an error inside the transaction, so COMMIT, which goes in
// the same flight, does not take effect (H1).
func guarded(condition, rows string) string {
	return fmt.Sprintf("SELECT 1 / (%s)::int FROM (%s) g", condition, rows)
}

func (s *Store) logf(format string, args ...any) {
	if s.opt.Logf != nil {
		s.opt.Logf(format, args...)
	}
}

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context) error {
	if err := s.InShape(ctx); err != nil {
		return err
	}
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if st := s.detector.State(); st.Err != nil {
		return fmt.Errorf("high-water mark of topic %s stands still: %w", store.EventsTopic, st.Err)
	}
	return nil
}
