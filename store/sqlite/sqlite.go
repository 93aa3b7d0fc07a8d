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
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// Options say which database to open and what to expect there.
type Options struct {
	// Path of the database file. Its folder has to exist.
	Path string
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
	// Readers bounds the connections that read. 0: 8.
	Readers int
	// BusyFor is how long a write waits for another process's lock. 0: 5 s.
	BusyFor time.Duration
	// Now is the clock. nil: time.Now.
	Now func() time.Time
}

// Store is an open database. It implements [store.Store].
type Store struct {
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
