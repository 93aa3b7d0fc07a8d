package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lib "modernc.org/sqlite/lib"
)

// writer is the one connection that writes and the fair queue before it.
//
// SQLite has one writer at a time whatever we do, so waiting happens here, in
// order of arrival and ended by the caller's context, and not in SQLite's busy
// handler, which is neither. Calls that wait while another commits share the
// next transaction, each in a savepoint of its own: with synchronous=FULL a
// commit costs one fsync whether it carries one append or sixty.
type writer struct {
	open func() (*conn, error)

	mu      sync.Mutex
	idle    *sync.Cond // signalled when led becomes false
	queue   []*writeCall
	led     bool // some goroutine is working the queue
	closed  bool
	busy    error // why the one that runs cannot begin; nil when it can
	conn    *conn // nil: has to be opened again
	onLoss  func()
	busyFor time.Duration
	pages   int // written to the log since the last checkpoint was asked for
	every   int // pages between two checkpoints
	points  *checkpointer
}

// A group is bounded by members and rows, so that a single append never waits
// for more than a few milliseconds of others' work in its own transaction.
const (
	groupMax     = 64
	groupRowsMax = 512
)

type writeCall struct {
	ctx   context.Context
	op    string
	rows  int
	fn    func(tx *tx) error
	after []func()
	err   error
	turn  chan turn // buffered, one value
	state callState
}

type turn uint8

const (
	turnDone turn = iota
	turnLead
)

type callState uint8

const (
	callQueued callState = iota
	callLeads            // the queue was handed to it; still the queue's head
	callTaken            // in a group that runs
)

// tx is a write transaction, or one call's part of a shared one.
type tx struct {
	*conn
	call *writeCall
}

// afterCommit has f run once what the call wrote is durable.
func (t *tx) afterCommit(f func()) { t.call.after = append(t.call.after, f) }

var errClosed = errors.New("the store is closed")

// do runs fn in a write transaction (BEGIN IMMEDIATE). rows is about how many
// rows it will write. fn
//   - has no effect outside tx but through afterCommit, and can be run again:
//     when a transaction that it shared with others is lost, it is;
//   - returns an error to have its part rolled back and that error returned,
//     classified if it is SQLite's;
//   - passes no cancellable context to tx and looks at its own between
//     statements where it runs many.
//
// A call that waits can be cancelled; one that runs is waited for, since what
// became of it has to be known.
func (w *writer) do(ctx context.Context, op string, rows int, fn func(tx *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &writeCall{ctx: ctx, op: op, rows: rows, fn: fn, turn: make(chan turn, 1)}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return fmt.Errorf("%s: %w", op, errClosed)
	}
	w.queue = append(w.queue, c)
	lead := !w.led
	if lead {
		w.led = true
		c.state = callLeads
	}
	w.mu.Unlock()
	if lead {
		return w.lead(c)
	}
	select {
	case t := <-c.turn:
		return w.take(c, t)
	case <-ctx.Done():
		return w.leave(c)
	}
}

func (w *writer) take(c *writeCall, t turn) error {
	if t == turnLead {
		return w.lead(c)
	}
	return c.err
}

// leave takes a cancelled call out of the queue, if it has not begun.
func (w *writer) leave(c *writeCall) error {
	w.mu.Lock()
	if c.state == callTaken {
		w.mu.Unlock()
		return w.take(c, <-c.turn)
	}
	for i, q := range w.queue {
		if q == c {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			break
		}
	}
	led, busy := c.state == callLeads, w.busy
	w.mu.Unlock()
	if led {
		w.handOver()
	}
	return waited(c.ctx, c.op, busy)
}

// waited is the error of a call that was cancelled before it began. What it
// waited for is what somebody can do something about.
func waited(ctx context.Context, op string, busy error) error {
	if busy != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), classify(op, busy))
	}
	return fmt.Errorf("%s: waited for the writes before it: %w", op, ctx.Err())
}

// handOver gives the queue to its head, or leaves it alone when it is empty.
func (w *writer) handOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.led = false
		w.idle.Broadcast()
		return
	}
	w.queue[0].state = callLeads
	w.queue[0].turn <- turnLead
}

// lead runs the group that begins with c, which is the queue's head, and hands
// the queue over.
func (w *writer) lead(c *writeCall) error {
	w.mu.Lock()
	n, rows := 0, 0
	for n < len(w.queue) && n < groupMax && (n == 0 || rows+w.queue[n].rows <= groupRowsMax) {
		rows += w.queue[n].rows
		w.queue[n].state = callTaken
		n++
	}
	group := append([]*writeCall(nil), w.queue[:n]...)
	w.queue = append(w.queue[:0], w.queue[n:]...)
	w.mu.Unlock()

	defer func() {
		if p := recover(); p != nil {
			w.discard()
			for _, g := range group[1:] {
				g.err = fmt.Errorf("%s: a write in the same transaction panicked: %v", g.op, p)
				g.turn <- turnDone
			}
			w.handOver()
			panic(p)
		}
	}()
	back := w.run(group)
	if len(back) > 0 {
		w.mu.Lock()
		for _, g := range back {
			g.state = callQueued
		}
		w.queue = append(append([]*writeCall(nil), back...), w.queue...)
		w.mu.Unlock()
	}
	for _, g := range group[1 : len(group)-len(back)] {
		g.turn <- turnDone
	}
	w.handOver()
	return c.err
}

// run commits a group. It returns the members that have to wait again.
func (w *writer) run(group []*writeCall) (back []*writeCall) {
	first := group[0]
	if err := w.begin(first.ctx, first.op); err != nil {
		first.err = err
		if first.ctx.Err() != nil {
			return group[1:] // the others go on without it
		}
		for _, g := range group[1:] {
			g.err = titled(g.op, err)
		}
		return nil
	}
	if len(group) == 1 {
		w.runAlone(first)
		return nil
	}
	for _, g := range group {
		if !w.runInSavepoint(g) {
			// SQLite has rolled all of it back (disk full, for one): what
			// members saw of each other is gone, so each begins anew.
			w.rollback()
			w.runEach(group)
			return nil
		}
	}
	if err := w.commit(); err != nil {
		for _, g := range group {
			e := classify(g.op, err)
			e.OutcomeUnknown = g.err == nil && e.OutcomeUnknown
			g.err = e
		}
		return nil
	}
	for _, g := range group {
		if g.err == nil {
			g.committed()
		}
	}
	return nil
}

func (w *writer) runEach(group []*writeCall) {
	for _, g := range group {
		g.after, g.err = nil, nil
		if err := w.begin(g.ctx, g.op); err != nil {
			g.err = err
			continue
		}
		w.runAlone(g)
	}
}

// runAlone runs and commits the transaction that was begun.
func (w *writer) runAlone(c *writeCall) {
	if err := c.call(w.conn); err != nil {
		w.rollback()
		c.err = wrap(c.op, err)
		return
	}
	if err := w.commit(); err != nil {
		c.err = classify(c.op, err)
		return
	}
	c.committed()
}

// runInSavepoint reports false when the transaction is lost.
func (w *writer) runInSavepoint(c *writeCall) bool {
	if _, err := w.conn.exec("SAVEPOINT part"); err != nil {
		return false
	}
	if err := c.call(w.conn); err != nil {
		c.err = wrap(c.op, err)
		if _, err := w.conn.exec("ROLLBACK TO part"); err != nil {
			return false
		}
	}
	_, err := w.conn.exec("RELEASE part")
	return err == nil
}

func (c *writeCall) call(on *conn) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	return c.fn(&tx{conn: on, call: c})
}

func (c *writeCall) committed() {
	for _, f := range c.after {
		f()
	}
}

// begin takes SQLite's write lock. Only another process can hold it: a backup
// tool, an SQL client. We wait for a while, since such a lock is short.
func (w *writer) begin(ctx context.Context, op string) error {
	deadline := time.Now().Add(w.busyFor)
	for {
		err := w.tryBegin()
		w.mu.Lock()
		w.busy = err
		w.mu.Unlock()
		if err == nil {
			return nil
		}
		if !isBusy(err) || time.Now().After(deadline) {
			return classify(op, err)
		}
		select {
		case <-ctx.Done():
			return waited(ctx, op, err)
		case <-time.After(beginRetry):
		}
	}
}

const beginRetry = 10 * time.Millisecond

func (w *writer) tryBegin() error {
	if w.conn == nil {
		c, err := w.open()
		if err != nil {
			return err
		}
		w.conn = c
	}
	if w.points.moved.CompareAndSwap(true, false) {
		// What the checkpoint beside us did not reach is what was written
		// meanwhile: little. With that in the file as well this transaction
		// begins the log anew, so it does not grow. An error here is met
		// again by the next.
		_ = w.conn.checkpoint()
	}
	_, err := w.conn.exec("BEGIN IMMEDIATE")
	return err
}

// commit makes the transaction durable (P9): with WAL and synchronous=FULL it
// returns after the log is synced.
func (w *writer) commit() error {
	_, err := w.conn.exec("COMMIT")
	if err == nil {
		if w.pages += w.conn.pagesWritten(); w.pages >= w.every {
			w.pages = 0
			w.points.wake()
		}
		return nil
	}
	if refused(err) {
		w.rollback()
		return err
	}
	w.discard()
	return &commitError{err}
}

// refused tells an error of COMMIT after which nothing was committed for sure:
// a lock that was not got, or no room for the last frame of the log, which
// makes the transaction one. After any other (a sync that went wrong, say) the
// frame may be there, and what a restart will find is not known.
func refused(err error) bool { return isBusy(err) || primary(code(err)) == lib.SQLITE_FULL }

// rollback ends a transaction that is not to be. Where even that goes wrong
// the connection is given up, which rolls back as well.
func (w *writer) rollback() {
	if w.conn == nil {
		return
	}
	if _, err := w.conn.exec("ROLLBACK"); err != nil && !isPlainError(err) {
		w.discard() // a plain error says that there is none: SQLite was first
	}
}

func (w *writer) discard() {
	if w.conn == nil {
		return
	}
	_ = w.conn.close()
	w.conn = nil
	w.onLoss()
}

// close waits for what runs, refuses what waits and closes the connection.
func (w *writer) close() error {
	w.mu.Lock()
	w.closed = true
	for i := len(w.queue) - 1; i >= 0; i-- {
		if q := w.queue[i]; q.state == callQueued {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			q.err = fmt.Errorf("%s: %w", q.op, errClosed)
			q.state = callTaken
			q.turn <- turnDone
		}
	}
	for w.led {
		w.idle.Wait()
	}
	defer w.mu.Unlock()
	if w.conn == nil {
		return nil
	}
	err := w.conn.close()
	w.conn = nil
	return err
}

// commitError marks an error of COMMIT itself.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }
