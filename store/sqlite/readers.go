package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// readers is a bounded pool of connections that only read. In WAL mode they
// neither wait for the writer nor hold it up.
type readers struct {
	open  func() (*conn, error)
	slots chan struct{} // one value for each connection in use
	ended chan struct{} // closed by close

	mu     sync.Mutex
	idle   []*conn // last in, first out: the warmest cache first
	closed bool
}

// get waits for a free connection. The caller gives it back with put.
func (r *readers) get(ctx context.Context, op string) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case r.slots <- struct{}{}:
	case <-r.ended:
		return nil, fmt.Errorf("%s: %w", op, errClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.slots
		return nil, fmt.Errorf("%s: %w", op, errClosed)
	}
	if n := len(r.idle); n > 0 {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	c, err := r.open()
	if err != nil {
		<-r.slots
		return nil, classify(op, err)
	}
	return c, nil
}

// put gives a connection back; one that met an error of SQLite is closed.
func (r *readers) put(c *conn, err error) {
	r.mu.Lock()
	keep := !r.closed && err != errAbandoned && (code(err) == 0 || isBusy(err))
	if keep {
		r.idle = append(r.idle, c)
	}
	r.mu.Unlock()
	if !keep {
		_ = c.close()
	}
	<-r.slots
}

// closeWait bounds the wait for reads that are still under way at the end.
const closeWait = 10 * time.Second

// close closes what is idle, then waits for what is in use.
func (r *readers) close() error {
	r.mu.Lock()
	r.closed = true
	close(r.ended)
	idle := r.idle
	r.idle = nil
	r.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.close())
	}
	end := time.After(closeWait)
	for n := range cap(r.slots) {
		select {
		case r.slots <- struct{}{}:
		case <-end:
			return errors.Join(append(errs, fmt.Errorf("%d reads have not ended after %v", cap(r.slots)-n, closeWait))...)
		}
	}
	return errors.Join(errs...)
}

// read runs fn with a connection outside of a transaction: right for a single
// statement.
func (s *Store) read(ctx context.Context, op string, fn func(c *conn) error) error {
	c, err := s.readers.get(ctx, op)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended { // fn panicked: what the connection is in the middle of is not known
			s.readers.put(c, errAbandoned)
		}
	}()
	err = fn(c)
	ended = true
	s.readers.put(c, err)
	return wrap(op, err)
}

// errAbandoned gives up a connection in an unknown state.
var errAbandoned = errors.New("connection abandoned")

// snapshot runs fn in a read transaction: all of its statements see the
// database as of the first.
func (s *Store) snapshot(ctx context.Context, op string, fn func(c *conn) error) error {
	return s.read(ctx, op, func(c *conn) error {
		if _, err := c.exec("BEGIN"); err != nil {
			return err
		}
		err := fn(c)
		if _, e := c.exec("COMMIT"); e != nil {
			return e // which ends the connection; err is likely the same
		}
		return err
	})
}
