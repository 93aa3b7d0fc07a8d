package sqlite

import (
	"context"
	"sync"
	"sync/atomic"

	sqlite "modernc.org/sqlite"
)

// checkpointPages is the number of pages (48 MiB) written to the log between
// two checkpoints: a page that many commits change goes to the file once.
const checkpointPages = 12000

// checkpointer moves pages from the log into the file beside the commits and
// not within one: SQLite's own way lets every so many commits wait for a tenth
// of a second and more, until 64 MiB are written and synced. It is never needed
// for correctness.
type checkpointer struct {
	open func() (*conn, error)

	due   chan struct{} // buffered: pages are waiting
	ended chan struct{}
	moved atomic.Bool // all but the latest pages are in the file

	mu     sync.Mutex
	err    error // of the latest checkpoint
	closed bool
}

func newCheckpointer(open func() (*conn, error)) *checkpointer {
	return &checkpointer{open: open, due: make(chan struct{}, 1), ended: make(chan struct{})}
}

// wake asks for a checkpoint soon.
func (k *checkpointer) wake() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	select {
	case k.due <- struct{}{}:
	default:
	}
}

// run works until close. It has a connection of its own: a checkpoint and a
// commit do not wait for each other.
func (k *checkpointer) run() {
	defer close(k.ended)
	var c *conn
	for range k.due {
		var err error
		if c == nil {
			c, err = k.open()
		}
		if err == nil {
			err = c.checkpoint()
		}
		if err != nil && c != nil {
			_ = c.close()
			c = nil
		}
		k.mu.Lock()
		k.err = err
		k.mu.Unlock()
		k.moved.Store(err == nil)
	}
	if c != nil {
		_ = c.close()
	}
}

// failed returns the error of the latest checkpoint.
func (k *checkpointer) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		return nil
	}
	return classify("checkpoint", k.err)
}

func (k *checkpointer) close() {
	k.mu.Lock()
	k.closed = true
	close(k.due)
	k.mu.Unlock()
	<-k.ended
}

// checkpoint moves what no reader holds back. It waits for nobody.
func (c *conn) checkpoint() error {
	_, err := c.queryRow(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)")
	return err
}

// pagesWritten is the number of pages that went to the log since the last call.
func (c *conn) pagesWritten() int {
	n, _, err := c.dc.(sqlite.DBStatus).Status(sqlite.DBStatusCacheWrite, true)
	if err != nil {
		return 0
	}
	return n
}
