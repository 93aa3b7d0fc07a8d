// Package sqlite is the driver for embedded SQLite: one file, one process, pure
// Go.
//
// One connection writes, behind a fair queue; a pool of connections reads. The
// log is synced before a commit is acknowledged (P9). A lock file beside the
// database keeps a second host off.
package sqlite

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Options is [store.Options]. DSN is the path of the database file, whose folder
// has to exist. MaxOpenConns bounds the connections that read, 8 unless it is
// set. Timeout is how long a write waits for another process's lock.
type Options = store.Options

// Store is an open database. It implements [store.Store].
type Store struct {
	*sqlstore.Ledger
	opt     Options
	names   *naming
	q       queries
	writer  *writer
	readers *readers
	points  *checkpointer
	unlock  func() error
	info    store.Info

	incarnation atomic.Uint64
	wakes       rules.Wakes
	seenEnd     sync.Map // topic → *atomic.Int64, see ReadPage
	builds      sync.Map // build → []*readmodel.Table
	plans       sync.Map // physical table → *tablePlan

	closeOnce sync.Once
	closeErr  error
}

// write runs fn in a write transaction; see [writer.do] for fn's duties.
func (s *Store) write(ctx context.Context, op string, rows int, fn func(tx *tx) error) error {
	return s.writer.do(ctx, op, rows, fn)
}

// nowUS is the database's clock: the file's host is ours.
func (s *Store) nowUS() int64 { return s.opt.Now().UnixMicro() }

// Incarnation implements [store.Topics].
func (s *Store) Incarnation() uint64 { return s.incarnation.Load() }

// raise starts a new incarnation: what was read may no longer be true.
func (s *Store) raise() { s.incarnation.Add(1) }

// Info implements [store.Store].
func (s *Store) Info(context.Context) (store.Info, error) { return s.info, nil }
