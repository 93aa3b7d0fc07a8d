package sqlserver

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// engine lends the pool of connections to the portable roles, and sends the
// batches of this driver.
type engine struct {
	db      *sql.DB
	timeout time.Duration // of a wait for a lock, on the server
	// lost is told of a connection that broke under a statement.
	lost func()

	calls  sync.WaitGroup
	mu     sync.Mutex
	closed bool
}

var _ sqlstore.Batcher = (*engine)(nil)

var errClosed = errors.New("the store is closed")

// enter counts a call in, so that Close waits for it.
func (e *engine) enter(op string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%s: %w", op, errClosed)
	}
	e.calls.Add(1)
	return nil
}

// Close implements [sqlstore.Engine].
func (e *engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.calls.Wait()
	return e.db.Close()
}

// Class implements [sqlstore.Engine].
func (e *engine) Class(err error) (sqlstore.Class, string) { return classOf(err) }

// on runs fn with a connection of its own. That database/sql hands it out means
// that it has just answered: settings are made anew for each call. A connection
// lost from now on is news.
func (e *engine) on(ctx context.Context, op string, fn func(c *sql.Conn) error) error {
	if err := e.enter(op); err != nil {
		return err
	}
	defer e.calls.Done()
	c, err := e.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	err = fn(c)
	if class, _ := classOf(err); class == sqlstore.Lost {
		e.lost()
	}
	return err
}

// Read implements [sqlstore.Engine].
func (e *engine) Read(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	err := e.on(ctx, op, func(c *sql.Conn) error { return fn(runner{c}) })
	return sqlstore.Fail(e, op, false, err)
}

// Write implements [sqlstore.Engine].
func (e *engine) Write(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
	return sqlstore.Again(ctx, e, func() error {
		committing := false
		err := e.on(ctx, op, func(c *sql.Conn) error {
			// A default transaction would run at the level of whoever used the
			// connection last. COMMIT has to be waited for, whatever ctx says.
			tx, err := c.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				return err
			}
			if err := fn(runner{tx}); err != nil {
				_ = tx.Rollback()
				return err
			}
			committing = true
			return tx.Commit()
		})
		return sqlstore.Fail(e, op, committing, err)
	})
}

// batch runs a batch that is a whole transaction, and hands over its results.
// Nothing is left to the client between its BEGIN and its COMMIT, so a host
// that freezes holds no lock.
//
// What was sent is waited for, even if ctx ends: what became of it has to be
// known. The server bounds each wait for a lock.
func (e *engine) batch(ctx context.Context, op, text string, args []any, ready func() error, scan func(*sql.Rows) error) error {
	return sqlstore.Again(ctx, e, func() error {
		sent := false
		err := e.on(ctx, op, func(c *sql.Conn) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if ready != nil {
				if err := ready(); err != nil {
					return err
				}
			}
			sent = true
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchWaits*e.timeout)
			defer cancel()
			rows, err := c.QueryContext(ctx, text, args...)
			if err != nil {
				return err
			}
			return drain(rows, scan)
		})
		return sqlstore.Fail(e, op, sent, err)
	})
}

// WriteAll implements [sqlstore.Batcher].
func (e *engine) WriteAll(ctx context.Context, op string, steps []sqlstore.Step) error {
	var b strings.Builder
	b.WriteString(batchHead + "\nBEGIN TRANSACTION;\n")
	var args []any
	taken := 0
	for i, s := range steps {
		text, named, err := bindAfter(taken, s.Text, s.Args)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		b.WriteString(text + ";\n")
		if s.Broken != nil {
			fmt.Fprintf(&b, "IF @@ROWCOUNT <> %d\nBEGIN\n  THROW %d, N'what the transaction relies on has changed', 1;\nEND;\n", s.Rows, errStep+i)
		}
		args = append(args, named...)
		taken += len(s.Args)
	}
	b.WriteString("COMMIT TRANSACTION;\n")
	err := e.batch(ctx, op, b.String(), args, nil, nil)
	if i := int(number(err)) - errStep; i >= 0 && i < len(steps) && steps[i].Broken != nil {
		return steps[i].Broken
	}
	return err
}

// query runs a query outside of a transaction and hands over its rows, one by
// one. A scan that wants no more answers errEnough.
func (e *engine) query(ctx context.Context, op, text string, args []any, scan func(*sql.Rows) error) error {
	enough := false
	err := e.on(ctx, op, func(c *sql.Conn) error {
		rows, err := c.QueryContext(ctx, text, args...)
		if err != nil {
			return err
		}
		for rows.Next() {
			if err := scan(rows); err != nil {
				_ = rows.Close()
				enough = err == errEnough
				return err
			}
		}
		return errors.Join(rows.Err(), rows.Close())
	})
	if enough {
		return errEnough
	}
	return sqlstore.Fail(e, op, false, err)
}

// errEnough ends a query early.
var errEnough = errors.New("enough")

// batchWaits is how many waits for a lock, each as long as can be, a batch may
// have before its connection is given up for dead.
const batchWaits = 8

// drain reads a result to its end, where an error of the batch's last
// statements comes.
func drain(rows *sql.Rows, scan func(*sql.Rows) error) error {
	defer rows.Close()
	if scan != nil {
		if err := scan(rows); err != nil {
			return err
		}
	}
	for {
		for rows.Next() {
		}
		if !rows.NextResultSet() {
			break
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// Snapshot implements [sqlstore.Engine].
func (e *engine) Snapshot(ctx context.Context, op string) (sqlstore.Conn, func(), error) {
	if err := e.enter(op); err != nil {
		return nil, nil, err
	}
	c, err := e.db.Conn(ctx)
	if err != nil {
		e.calls.Done()
		return nil, nil, sqlstore.Fail(e, op, false, err)
	}
	tx, err := c.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSnapshot})
	if err != nil {
		_ = c.Close()
		e.calls.Done()
		return nil, nil, sqlstore.Fail(e, op, false, err)
	}
	var once sync.Once
	return runner{tx}, func() {
		once.Do(func() {
			_ = tx.Rollback()
			_ = c.Close()
			e.calls.Done()
		})
	}, nil
}

const (
	lockSQL = `DECLARE @r int; EXEC @r = sys.sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = @wait; SELECT @r`

	unlockSQL = `EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = 'Session'`
)

// lockWait is how long one request for a lock waits on the server: a longer
// wait would have to be cancelled there.
const lockWait = 500 * time.Millisecond

// Lock implements [sqlstore.Engine]. The lock belongs to the session, which
// nobody else uses meanwhile, and to the database.
func (e *engine) Lock(ctx context.Context, name string) (func() error, error) {
	const op = "lock"
	if err := e.enter(op); err != nil {
		return nil, err
	}
	c, err := e.db.Conn(ctx)
	if err != nil {
		e.calls.Done()
		return nil, sqlstore.Fail(e, op, false, err)
	}
	give := func() {
		_ = c.Close()
		e.calls.Done()
	}
	resource := lockName(name)
	for {
		var got int64
		err := c.QueryRowContext(ctx, lockSQL, sql.Named("name", resource), sql.Named("wait", lockWait.Milliseconds())).Scan(&got)
		switch {
		case err != nil:
		case got >= 0:
			return func() error {
				defer give()
				_, err := c.ExecContext(context.WithoutCancel(ctx), unlockSQL, sql.Named("name", resource))
				return sqlstore.Fail(e, op, false, err)
			}, nil
		case got == -1: // not in time
			if err = ctx.Err(); err == nil {
				continue
			}
			err = fmt.Errorf("another process holds the lock %q: %w", name, err)
		case got == -3:
			continue // the victim of a deadlock
		default:
			err = fmt.Errorf("sp_getapplock %q answered %d", name, got)
		}
		give()
		return nil, sqlstore.Fail(e, op, false, err)
	}
}

// lockNameMax is the longest resource of sp_getapplock, in UTF-16 units.
const lockNameMax = 255

func lockName(name string) string {
	name = "projhost:" + name
	if len(name) <= lockNameMax {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "projhost:" + hex.EncodeToString(sum[:])
}

// querier is a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// runner runs the portable roles' statements.
type runner struct{ q querier }

func (r runner) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	text, args, err := bind(text, args)
	if err != nil {
		return 0, err
	}
	res, err := r.q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (r runner) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	text, args, err := bind(text, args)
	if err != nil {
		return nil, err
	}
	rows, err := r.q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	return result{rows}, nil
}

type result struct{ *sql.Rows }

// Close implements [sqlstore.Rows].
func (r result) Close() error { return errors.Join(r.Rows.Err(), r.Rows.Close()) }
