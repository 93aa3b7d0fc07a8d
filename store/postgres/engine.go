package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// engine is the pool of connections for work, and what the common roles ask of
// a database.
type engine struct {
	pool   *pgxpool.Pool
	direct *pgx.ConnConfig // of connections that go past a pooler
	named  bool
	// local sets in each write transaction what a session behind a pooler
	// cannot keep; "" where the session has it.
	local string
	// bound ends a transaction that is sent whole, where the server can: one whose
	// client freezes while it sends is not idle. "" before PostgreSQL 17.
	bound   string
	timeout time.Duration
	raise   func()
	started atomic.Int64 // when the server of the last connection did, by its clock
	beats   *engine      // of one connection; nil in itself

	closeOnce sync.Once
	closed    chan struct{}
}

var errClosed = errors.New("the store is closed")

// meet looks at the server of a new connection. Its start time is a server's own,
// to the microsecond: another means that it was restarted, or that another has
// taken its place, and what was read may no longer be true (H3). The detector
// finds out as well, but on a connection of its own, in its own time.
func (e *engine) meet(ctx context.Context, pg *pgx.Conn) error {
	st := &statement{sql: "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint", fresh: true}
	st.row = func(v [][]byte) error {
		now := int8Of(v[0])
		if was := e.started.Swap(now); was != 0 && was != now {
			e.raise()
		}
		return nil
	}
	_, err := newConn(pg.PgConn(), e.named).run(ctx, st)
	return err
}

// acquire takes a connection of the pool. One that was idle for long was
// tried before.
func (e *engine) acquire(ctx context.Context) (*conn, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	pc, err := e.pool.Acquire(ctx)
	if err != nil {
		err = connecting(err)
		select {
		case <-e.closed:
			return nil, nil, errClosed
		default:
		}
		if cause := ctx.Err(); cause != nil {
			return nil, nil, fmt.Errorf("wait for a connection: %w", cause)
		}
		return nil, nil, err
	}
	c := newConn(pc.Conn().PgConn(), e.named)
	return c, func() {
		if len(c.ses.prepared) > maxPrepared {
			_ = c.pg.Close(context.Background())
		}
		pc.Release()
	}, nil
}

// with runs fn with a connection. A connection that was dead before fn's first
// statement is replaced; any other loss begins a new incarnation.
func (e *engine) with(ctx context.Context, fn func(c *conn) error) error {
	for {
		c, release, err := e.acquire(ctx)
		if err != nil {
			return err
		}
		err = func() error {
			defer release()
			defer func() {
				if p := recover(); p != nil { // what the connection is in the middle of is not known
					_ = c.pg.Close(context.Background())
					panic(p)
				}
			}()
			return fn(c)
		}()
		var lost *lostError
		if errors.As(err, &lost) && lost.safe && ctx.Err() == nil {
			continue
		}
		e.noteLoss(ctx, err)
		return err
	}
}

// noteLoss begins a new incarnation if the server or the way to it went away.
// A connection that we cut ourselves, because the caller went away, does not
// count.
func (e *engine) noteLoss(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	if class, _ := e.Class(err); class == sqlstore.Lost {
		e.raise()
	}
}

// steady is a context for a transaction that has begun: it outlives ctx's end
// for a while, since what became of the transaction has to be known.
func (e *engine) steady(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(e.timeout, cancel)
	})
	return out, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel()
	}
}

// Read implements [sqlstore.Engine].
func (e *engine) Read(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	err := sqlstore.Again(ctx, e, func() error {
		return e.with(ctx, func(c *conn) error { return fn(&sqlConn{c: c}) })
	})
	return sqlstore.Fail(e, op, false, unlost(ctx, err))
}

// unlost gives a caller that went away its own reason.
func unlost(ctx context.Context, err error) error {
	if cause := ctx.Err(); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Write implements [sqlstore.Engine].
func (e *engine) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	committing := false
	err := sqlstore.Again(ctx, e, func() error {
		committing = false
		return e.with(ctx, func(c *conn) error {
			run, cancel := e.steady(ctx)
			defer cancel()
			sc := &sqlConn{c: c, ctx: run, begin: e.beginWrite()}
			if err := fn(sc); err != nil {
				c.rollback(run)
				return err
			}
			if sc.begin != nil {
				return nil // no statement was run
			}
			committing = true
			return sc.commit()
		})
	})
	return sqlstore.Fail(e, op, committing, unlost(ctx, err))
}

// inFlight runs whole flights, and again what the database gave up. fly reports
// whether COMMIT may have been carried out.
func (e *engine) inFlight(ctx context.Context, op string, fly func() (committing bool, err error)) error {
	committing := false
	err := sqlstore.Again(ctx, e, func() (err error) {
		committing, err = fly()
		return err
	})
	return sqlstore.Fail(e, op, committing, unlost(ctx, err))
}

// beginWrite are the statements that begin a write transaction.
func (e *engine) beginWrite() []*statement {
	list := []*statement{{sql: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}}
	if e.local != "" {
		list = append(list, &statement{sql: e.local})
	}
	return list
}

// beginFlight are those of a transaction that is sent whole.
func (e *engine) beginFlight() []*statement {
	list := e.beginWrite()
	if e.bound != "" {
		list = append(list, &statement{sql: e.bound})
	}
	return list
}

const beginSnapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

// Snapshot implements [sqlstore.Engine].
func (e *engine) Snapshot(ctx context.Context, op string) (sqlstore.Conn, func(), error) {
	c, release, err := e.acquire(ctx)
	if err != nil {
		return nil, nil, sqlstore.Fail(e, op, false, err)
	}
	sc := &sqlConn{c: c, begin: []*statement{{sql: beginSnapshot}}, failed: func(ctx context.Context, err error) { e.noteLoss(ctx, err) }}
	var once sync.Once
	return sc, func() {
		once.Do(func() {
			end, cancel := context.WithTimeout(context.Background(), e.timeout)
			defer cancel()
			if sc.open != nil {
				_ = sc.open.Close()
			}
			c.rollback(end)
			release()
		})
	}, nil
}

// Lock implements [sqlstore.Engine] by a session's advisory lock, on a
// connection of its own.
func (e *engine) Lock(ctx context.Context, name string) (func() error, error) {
	op := "lock " + name
	pc, err := pgx.ConnectConfig(ctx, e.direct)
	if err != nil {
		return nil, sqlstore.Fail(e, op, false, unlost(ctx, connecting(err)))
	}
	h := fnv.New64a()
	h.Write([]byte("projhost\x00" + name))
	c := newConn(pc.PgConn(), false)
	lock := &statement{sql: "SELECT pg_advisory_lock($1)"}
	lock.int8(int64(h.Sum64()))
	// The wait is the caller's to end, and the connection is idle while the holder
	// works: no limit of the role or the database is for either.
	if _, err = c.run(ctx, &statement{sql: "SELECT set_config(s, '0', false) FROM unnest('{lock_timeout,statement_timeout,idle_session_timeout}'::text[]) s"}); err == nil {
		_, err = c.run(ctx, lock)
	}
	if err != nil {
		_ = pc.Close(context.Background())
		return nil, sqlstore.Fail(e, op, false, unlost(ctx, err))
	}
	return func() error {
		end, cancel := context.WithTimeout(context.Background(), e.timeout)
		defer cancel()
		_, err := c.run(end, &statement{sql: "SELECT"}) // the lock is had for as long as this is answered
		if err != nil {
			err = &store.TransientError{Op: "unlock", Hint: sqlstore.LockLost, Err: err}
		}
		return errors.Join(err, pc.Close(end))
	}, nil
}

// Class implements [sqlstore.Engine].
func (e *engine) Class(err error) (sqlstore.Class, string) { return classOf(err) }

// Close implements [sqlstore.Engine].
func (e *engine) Close() error {
	e.closeOnce.Do(func() {
		close(e.closed)
		e.pool.Close()
		if e.beats != nil {
			_ = e.beats.Close()
		}
	})
	return nil
}

// keptMax is how many statements a session keeps before the common roles' new
// ones are no longer kept. The driver's own are few: by table and size of list.
const keptMax = 256

// sqlConn is a connection for the common roles, one statement at a time.
type sqlConn struct {
	c      *conn
	ctx    context.Context // of a write transaction; nil: the caller's
	begin  []*statement    // goes with the first statement
	open   *sqlRows
	failed func(ctx context.Context, err error)
}

func (s *sqlConn) query(ctx context.Context, text string, args []any) (*sqlRows, error) {
	if s.open != nil {
		return nil, errors.New("a statement while the rows of another are read")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.ctx != nil {
		ctx = s.ctx
	}
	// The common roles have statements with numbers and lists in their text, and
	// users' queries come in any form: not all of them can be kept.
	st := &statement{sql: text, fresh: s.c.ses.prepared[text] == nil && len(s.c.ses.prepared) >= keptMax}
	for i, a := range args {
		if err := st.addAny(a); err != nil {
			return nil, fmt.Errorf("argument %d of %q: %w", i+1, text, err)
		}
	}
	list := append(s.begin[:len(s.begin):len(s.begin)], st)
	n := len(s.begin)
	s.begin = nil
	r, err := s.c.send(ctx, list)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	for range n {
		rr, err := r.next()
		if err == nil {
			_, err = rr.Close()
		}
		if err != nil {
			return nil, s.fail(ctx, r.fail(err))
		}
	}
	rr, err := r.next()
	if err != nil {
		return nil, s.fail(ctx, r.fail(err))
	}
	s.open = &sqlRows{s: s, r: r, rr: rr}
	for _, f := range rr.FieldDescriptions() {
		s.open.oids = append(s.open.oids, f.DataTypeOID)
	}
	return s.open, nil
}

func (s *sqlConn) fail(ctx context.Context, err error) error {
	if s.failed != nil {
		s.failed(ctx, err)
	}
	return err
}

func (s *sqlConn) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	rows, err := s.query(ctx, text, args)
	if err != nil {
		return 0, err
	}
	err = rows.Close()
	return rows.tag.RowsAffected(), err
}

func (s *sqlConn) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	rows, err := s.query(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// commit ends a write transaction. The server answers COMMIT of a transaction
// that has failed by rolling it back, without an error.
func (s *sqlConn) commit() error {
	st := &statement{sql: "COMMIT"}
	if _, err := s.c.run(s.ctx, st); err != nil {
		s.c.rollback(s.ctx)
		return err
	}
	if st.tag != "COMMIT" {
		return errors.New("the transaction had failed: the server rolled it back")
	}
	return nil
}

// sqlRows is the result of one statement.
type sqlRows struct {
	s    *sqlConn
	r    *reply
	rr   *pgconn.ResultReader
	oids []uint32
	tag  pgconn.CommandTag
	err  error
	done bool
}

func (r *sqlRows) Next() bool { return r.err == nil && !r.done && r.rr.NextRow() }

func (r *sqlRows) Scan(dest ...any) error {
	values := r.rr.Values()
	if len(dest) != len(values) {
		return fmt.Errorf("%d columns for %d variables", len(values), len(dest))
	}
	for i, b := range values {
		v, err := decode(r.oids[i], b)
		if err == nil {
			err = assign(dest[i], v)
		}
		if err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}

func (r *sqlRows) Close() error {
	if r.done {
		return r.err
	}
	r.done = true
	r.s.open = nil
	tag, err := r.rr.Close()
	r.tag = tag
	if err != nil {
		r.err = r.s.fail(r.r.ctx, r.r.fail(err))
		return r.err
	}
	if err := r.r.p.Close(); err != nil {
		r.err = r.s.fail(r.r.ctx, r.s.c.fault(r.r.ctx, err))
	}
	return r.err
}
