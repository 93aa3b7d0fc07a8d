package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// engine is the pool of connections. It implements [sqlstore.Engine].
//
// It works on pinned connections and sends START TRANSACTION and COMMIT itself: an
// append needs the number that comes with the answer to its UPDATE, COMMIT is
// waited for whether or not the caller still does, and events are read three times
// as fast from the library's own rows as by database/sql's Scan.
type engine struct {
	db        *sql.DB
	connector driver.Connector
	lockName  func(name string) string
	timeout   time.Duration
	raise     func() // what was read may no longer be true

	mu     sync.Mutex
	calls  int
	closed bool
	idle   sync.Cond // signalled when calls becomes 0
}

var errClosed = errors.New("the store is closed")

// closeWait bounds the wait for calls that are still under way at the end.
const closeWait = 10 * time.Second

// endWait bounds what ends a transaction, whose caller may be gone.
const endWait = 10 * time.Second

func newEngine(connector driver.Connector, maxOpen int, idleFor, timeout time.Duration, raise func()) *engine {
	e := &engine{db: sql.OpenDB(connector), connector: connector, timeout: timeout, raise: raise}
	e.idle.L = &e.mu
	e.db.SetMaxOpenConns(maxOpen)
	e.db.SetMaxIdleConns(maxOpen)
	e.db.SetConnMaxIdleTime(idleFor)
	return e
}

// Class implements [sqlstore.Engine].
func (e *engine) Class(err error) (sqlstore.Class, string) { return classOf(err) }

func (e *engine) begin(op string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%s: %w", op, errClosed)
	}
	e.calls++
	return nil
}

func (e *engine) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.calls--; e.calls == 0 {
		e.idle.Broadcast()
	}
}

// Close implements [sqlstore.Engine].
func (e *engine) Close() error {
	e.mu.Lock()
	e.closed = true
	late := false
	timer := time.AfterFunc(closeWait, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		late = true
		e.idle.Broadcast()
	})
	for e.calls > 0 && !late {
		e.idle.Wait()
	}
	timer.Stop()
	calls := e.calls
	e.mu.Unlock()
	err := e.db.Close()
	if calls > 0 {
		err = errors.Join(fmt.Errorf("%d calls have not ended after %v", calls, closeWait), err)
	}
	return err
}

// session is a connection that a call has for itself. It implements
// [sqlstore.Conn].
type session struct {
	e    *engine
	conn *sql.Conn
	used bool // a statement was answered on it
	lost bool
}

func (e *engine) open(ctx context.Context) (*session, error) {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{e: e, conn: conn}, nil
}

// give returns the connection to the pool. One in the middle of something, or
// broken, is closed.
func (s *session) give(sound bool) {
	if s.conn == nil {
		return
	}
	if !sound || s.lost {
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = s.conn.Close()
}

// deadMax bounds the connections in a row that are found dead before their first
// statement: a server that was restarted ends all of a pool's at once.
const deadMax = 3

// first runs a statement. If it is the first on a connection that is found dead,
// another is taken: nothing has been read from it, so nothing was lost. twice says
// that the statement may be sent twice; else it is only if it was not sent.
func (s *session) first(ctx context.Context, twice bool, send func() error) error {
	for try := 1; ; try++ {
		err := send()
		if err == nil || s.used || try == deadMax || ctx.Err() != nil {
			return s.note(ctx, err)
		}
		if class, _ := classOf(err); class != sqlstore.Lost || !twice && !errors.Is(err, driver.ErrBadConn) {
			return s.note(ctx, err)
		}
		s.give(false)
		conn, err := s.e.db.Conn(ctx)
		if err != nil {
			s.conn = nil
			return err
		}
		s.conn = conn
	}
}

// note remembers how a statement ended.
func (s *session) note(ctx context.Context, err error) error {
	if err == nil {
		s.used = true
		return nil
	}
	class, _ := classOf(err)
	switch {
	case ctx.Err() != nil && (class == sqlstore.Lost || class == sqlstore.Unknown):
		// The caller went: the driver has cut the connection for that.
		s.lost = true
		return ctx.Err()
	case class == sqlstore.Lost:
		s.lost = true
		if s.used {
			s.e.raise()
		}
	}
	return discreet(err)
}

// exec runs a statement and returns its result.
func (s *session) exec(ctx context.Context, text string, args ...any) (sql.Result, error) {
	var res sql.Result
	err := s.first(ctx, false, func() (err error) {
		res, err = s.conn.ExecContext(ctx, text, args...)
		return err
	})
	return res, err
}

// Exec implements [sqlstore.Conn].
func (s *session) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	res, err := s.exec(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query implements [sqlstore.Conn].
func (s *session) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	var r *sql.Rows
	err := s.first(ctx, true, func() (err error) {
		r, err = s.conn.QueryContext(ctx, text, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &rows{Rows: r, s: s, ctx: ctx}, nil
}

// rows are the rows of a query, whose error Close gives.
type rows struct {
	*sql.Rows
	s   *session
	ctx context.Context
}

func (r *rows) Close() error {
	err := r.Rows.Err()
	if e := r.Rows.Close(); err == nil {
		err = e
	}
	return r.s.note(r.ctx, err)
}

// errStop ends a scan early.
var errStop = errors.New("stop")

// scan gives every row of a query to fn as the driver has it: integers are
// int64, all else bytes that are good until the next row. That is three times as
// fast as database/sql's way. fn returns errStop to end the scan; the rest of the rows is
// read, unless cut says to give the connection up instead.
func (s *session) scan(ctx context.Context, text string, args []any, fn func(vals []driver.Value) error, cut func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	var ended error // fn's
	err := s.first(ctx, true, func() error {
		return s.conn.Raw(func(dc any) error {
			r, err := dc.(driver.QueryerContext).QueryContext(ctx, text, named)
			if err != nil {
				return err
			}
			vals := make([]driver.Value, len(r.Columns()))
			for ended == nil {
				if err = r.Next(vals); err != nil {
					break
				}
				s.used = true // what fn was given is not given again
				ended = fn(vals)
			}
			if ended != nil && cut != nil && cut() {
				s.lost = true
				cancel()
			}
			if e := r.Close(); err == nil || err == io.EOF {
				err = e
			}
			if s.lost {
				return nil
			}
			return err
		})
	})
	switch {
	case err != nil:
		return err
	case ended == errStop:
		return nil
	}
	return ended
}

// final gives an error of a call its form; see [sqlstore.Fail].
func (e *engine) final(ctx context.Context, op string, committing bool, err error) error {
	if err == nil {
		return nil
	}
	if class, _ := classOf(err); !committing && class == sqlstore.Lost && ctx.Err() != nil {
		err = ctx.Err()
	}
	return sqlstore.Fail(e, op, committing, err)
}

// Read implements [sqlstore.Engine].
func (e *engine) Read(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return e.read(ctx, op, func(s *session) error { return fn(s) })
}

func (e *engine) read(ctx context.Context, op string, fn func(*session) error) error {
	if err := e.begin(op); err != nil {
		return err
	}
	defer e.end()
	s, err := e.open(ctx)
	if err != nil {
		return e.final(ctx, op, false, err)
	}
	sound := false
	defer func() { s.give(sound) }()
	err = fn(s)
	sound = true
	return e.final(ctx, op, false, err)
}

// Write implements [sqlstore.Engine].
func (e *engine) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return e.write(ctx, op, func(s *session) error { return fn(s) })
}

func (e *engine) write(ctx context.Context, op string, fn func(*session) error) error {
	if err := e.begin(op); err != nil {
		return err
	}
	defer e.end()
	committing := false
	err := sqlstore.Again(ctx, e, func() (err error) {
		committing, err = e.transact(ctx, fn)
		return err
	})
	return e.final(ctx, op, committing, err)
}

// transact runs fn in a transaction. committing tells that the error is
// COMMIT's.
func (e *engine) transact(ctx context.Context, fn func(*session) error) (committing bool, err error) {
	s, err := e.open(ctx)
	if err != nil {
		return false, err
	}
	sound := false
	defer func() { s.give(sound) }()
	if err := s.first(ctx, true, func() error {
		_, err := s.conn.ExecContext(ctx, "START TRANSACTION")
		return err
	}); err != nil {
		return false, err
	}
	if err = fn(s); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		sound = s.rollback()
		return false, err
	}
	err = s.commit(ctx)
	sound = err == nil
	return true, err
}

// commit sends COMMIT, whether or not the caller still waits: what became of it
// has to be known.
func (s *session) commit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.e.timeout+endWait)
	defer cancel()
	_, err := s.exec(ctx, "COMMIT")
	if ctx.Err() != nil && err != nil {
		s.e.raise()
		return errors.Join(driver.ErrBadConn, err) // no answer in time
	}
	return err
}

// rollback ends the transaction and reports whether the connection is good for
// another. Closing it rolls back as well.
func (s *session) rollback() bool {
	if s.lost {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	_, err := s.conn.ExecContext(ctx, "ROLLBACK")
	return err == nil
}

// Snapshot implements [sqlstore.Engine].
func (e *engine) Snapshot(ctx context.Context, op string) (_ sqlstore.Conn, end func(), err error) {
	if err := e.begin(op); err != nil {
		return nil, nil, err
	}
	s, err := e.open(ctx)
	if err != nil {
		e.end()
		return nil, nil, e.final(ctx, op, false, err)
	}
	err = s.first(ctx, true, func() error {
		// For the next transaction only.
		_, err := s.conn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
		return err
	})
	if err == nil {
		_, err = s.exec(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
	}
	if err != nil {
		s.give(false)
		e.end()
		return nil, nil, e.final(ctx, op, false, err)
	}
	var once sync.Once
	return s, func() {
		once.Do(func() {
			s.give(s.rollback())
			e.end()
		})
	}, nil
}

// Lock implements [sqlstore.Engine]. GET_LOCK goes with its connection, so it
// has one of its own, outside of the pool: the holder needs others.
func (e *engine) Lock(ctx context.Context, name string) (release func() error, err error) {
	db := sql.OpenDB(e.connector)
	conn, err := db.Conn(ctx)
	end := func() error { // closing the pool alone would leave the connection
		if conn != nil {
			_ = conn.Close()
		}
		return db.Close()
	}
	defer func() {
		if err != nil {
			_ = end()
		}
	}()
	if err != nil {
		return nil, e.final(ctx, "lock", false, err)
	}
	lock := e.lockName(name)
	// It is idle while the holder works, for longer than other connections may be.
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 28800"); err != nil {
		return nil, e.final(ctx, "lock", false, err)
	}
	for {
		var got sql.NullInt64
		// In turns, so that the server sees in time when we are gone.
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 2)", lock).Scan(&got); err != nil {
			return nil, e.final(ctx, "lock", false, err)
		}
		if got.Int64 == 1 {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), endWait)
		defer cancel()
		var had sql.NullInt64
		err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK(?)", lock).Scan(&had)
		if err == nil && had.Int64 != 1 {
			err = driver.ErrBadConn
		}
		if err != nil {
			err = &store.TransientError{Op: "unlock", Hint: sqlstore.LockLost, Err: err}
		}
		return errors.Join(err, end())
	}, nil
}
