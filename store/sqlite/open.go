package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	sqlite "modernc.org/sqlite"

	"github.com/projhost/projhost/store"
)

func init() {
	// What makes a commit durable is the log's data and size, not its
	// timestamps. On ext4 the commit takes about half the time. Where there is
	// no fdatasync SQLite goes on with fsync.
	_, _ = sqlite.Fdatasync(true)
}

// Open opens the database, creates or checks its schema, and takes the lock
// that keeps other hosts off. Its errors say what to mend.
func Open(ctx context.Context, opt Options) (_ *Store, err error) {
	s, err := newStore(opt)
	if err != nil {
		return nil, err
	}
	if s.unlock, err = lockFile(s.opt.DSN+".lock", s.opt.Now()); err != nil {
		return nil, err
	}
	return s.start(ctx)
}

func newStore(opt Options) (*Store, error) {
	if opt.DSN == "" {
		return nil, errors.New("sqlite: no path of a database ([store] dsn)")
	}
	path, err := filepath.Abs(opt.DSN)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	opt.DSN = path
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || !fi.IsDir() {
		return nil, fmt.Errorf("sqlite: the folder %s does not exist: create it, or set data_dir or [store] dsn", filepath.Dir(path))
	}
	if opt.Partitions < 0 || opt.Partitions > partitionsMax {
		return nil, fmt.Errorf("sqlite: %d partitions: want 1 to %d ([partitions] count)", opt.Partitions, partitionsMax)
	}
	opt.MaxEvent = cmp.Or(opt.MaxEvent, store.DefaultMaxEvent)
	if opt.Now == nil {
		opt.Now = time.Now
	}
	opt.MaxOpenConns = cmp.Or(opt.MaxOpenConns, 8)
	opt.Timeout = cmp.Or(opt.Timeout, 5*time.Second)
	names, err := newNaming(opt.TablePrefix)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	if _, err := newNaming(opt.ReadModelPrefix); err != nil {
		return nil, fmt.Errorf("sqlite: read model prefix: %w", err)
	}
	s := &Store{opt: opt, names: names, q: newQueries(names), unlock: func() error { return nil }}
	s.Ledger = s.newLedger()
	s.incarnation.Store(1)
	s.points = newCheckpointer(s.openCheckpointer)
	s.writer = &writer{open: s.openWriter, onLoss: s.raise, busyFor: opt.Timeout, points: s.points, every: checkpointPages}
	s.writer.idle = sync.NewCond(&s.writer.mu)
	s.readers = &readers{open: s.openReader, slots: make(chan struct{}, opt.MaxOpenConns), ended: make(chan struct{})}
	return s, nil
}

// start brings an opened store to work; it closes it on an error.
func (s *Store) start(ctx context.Context) (_ *Store, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open %s: %w", s.opt.DSN, err), s.Close())
		}
	}()
	go s.points.run()
	if err := s.initialize(ctx); err != nil {
		return nil, err
	}
	if err := s.freeze(ctx); err != nil {
		return nil, err
	}
	if err := s.buryInstances(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Memory of the page caches, in KiB. The writer's holds the upper levels of
// all indexes and the pages of the transaction: with 4 MiB an import of 300,000
// events takes half again as long, with 128 MiB no less. Readers mostly pass
// through; mapping the file gains them nothing and shows as memory in use.
const (
	writerCacheKiB = 32 << 10
	readerCacheKiB = 4 << 10
)

// pragmas of every connection.
func (s *Store) pragmas(more ...string) []string {
	return append([]string{
		// Longer waits are ours, where they are fair and can be cancelled.
		pragmaInt("busy_timeout", 50),
		"foreign_keys = ON",
		"temp_store = MEMORY",
		"trusted_schema = OFF",
		// Where fsync does not reach the disk (macOS); elsewhere nothing.
		"fullfsync = ON",
		"checkpoint_fullfsync = ON",
	}, more...)
}

func (s *Store) openWriter() (*conn, error) {
	c, err := openConn(s.opt.DSN, s.opt.NeverInitialize, s.pragmas(
		"journal_mode = WAL",
		"synchronous = FULL",
		pragmaInt("wal_autocheckpoint", 0), // see checkpointer
		pragmaInt("cache_size", -writerCacheKiB),
	)...)
	if err != nil {
		return nil, err
	}
	mode, err := c.queryRow(context.Background(), "PRAGMA journal_mode")
	if err == nil && mode[0] != "wal" {
		err = fmt.Errorf("the journal mode is %v and cannot be set to WAL: keep the database on a local disk", mode[0])
	}
	if err != nil {
		_ = c.close()
		return nil, err
	}
	return c, nil
}

func (s *Store) openCheckpointer() (*conn, error) {
	// FULL: the log is synced before its pages are moved, the file before the
	// log is written over.
	return openConn(s.opt.DSN, true, s.pragmas("synchronous = FULL", pragmaInt("wal_autocheckpoint", 0), pragmaInt("cache_size", -64))...)
}

func (s *Store) openReader() (*conn, error) {
	return openConn(s.opt.DSN, true, s.pragmas(
		"query_only = ON",
		pragmaInt("cache_size", -readerCacheKiB),
	)...)
}

// Close waits for calls that run, closes the connections and gives the lock
// back. Calls that wait or come later fail.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		// The last connection that is closed moves the log into the file.
		err := errors.Join(s.readers.close(), s.writer.close())
		s.points.close()
		s.closeErr = errors.Join(err, s.unlock())
	})
	return s.closeErr
}
