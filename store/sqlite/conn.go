package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	sqlite "modernc.org/sqlite"
)

// conn is one connection with its prepared statements. It speaks the driver's
// own interface and not database/sql's: statements live as long as their
// connection, and a row costs no conversion of each column (three times the
// speed on pages of events). It is not safe for concurrent use.
type conn struct {
	dc    driverConn
	stmts map[string]*stmt
	args  []driver.NamedValue
	names map[string]string // see intern
}

type driverConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
}

type stmt struct {
	ds   driverStmt
	busy bool // its rows are open
}

type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// stmtsMax bounds the prepared statements of a connection. Read models bring
// their own, a handful a table.
const stmtsMax = 512

// openConn is the only place that opens a connection, so that every one has the
// same settings.
func openConn(path string, mustExist bool, pragmas ...string) (*conn, error) {
	dsn := path
	if path != ":memory:" {
		u := url.URL{Scheme: "file", OmitHost: true, Path: path}
		if mustExist {
			u.RawQuery = "mode=rw"
		}
		dsn = u.String()
	}
	dc, err := (&sqlite.Driver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	c := &conn{dc: dc.(driverConn), stmts: map[string]*stmt{}, names: map[string]string{}}
	for _, p := range pragmas {
		if err := c.script("PRAGMA " + p); err != nil {
			_ = c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.ds.Close())
	}
	return errors.Join(append(errs, c.dc.Close())...)
}

// script runs statements that are used once.
func (c *conn) script(text string) error {
	_, err := c.dc.ExecContext(context.Background(), text, nil)
	return err
}

func (c *conn) prepare(text string) (*stmt, error) {
	if s := c.stmts[text]; s != nil {
		if s.busy {
			// A programmer's mistake: the inner use would reset the outer.
			return nil, fmt.Errorf("statement is in use: %s", text)
		}
		return s, nil
	}
	if len(c.stmts) >= stmtsMax {
		for key, s := range c.stmts {
			if !s.busy {
				_ = s.ds.Close()
				delete(c.stmts, key)
				break
			}
		}
	}
	ds, err := c.dc.PrepareContext(context.Background(), text)
	if err != nil {
		return nil, err
	}
	s := &stmt{ds: ds.(driverStmt)}
	c.stmts[text] = s
	return s, nil
}

func (c *conn) bind(args []driver.Value) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// exec runs a prepared statement and returns the number of rows it changed.
// Arguments are int64, float64, string, []byte or nil. A nil []byte is NULL.
//
// It takes no context: with one, the driver starts a goroutine a statement to
// watch it. Who runs many statements looks at its context between them.
func (c *conn) exec(text string, args ...driver.Value) (int64, error) {
	s, err := c.prepare(text)
	if err != nil {
		return 0, err
	}
	r, err := s.ds.ExecContext(context.Background(), c.bind(args))
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// query runs a prepared statement; the caller closes the rows. The end of ctx
// interrupts the search for the first row and ends the iteration between rows;
// inside a write transaction pass context.Background(), as with exec.
func (c *conn) query(ctx context.Context, text string, args ...driver.Value) (*rows, error) {
	s, err := c.prepare(text)
	if err != nil {
		return nil, err
	}
	return s.query(ctx, c.bind(args))
}

func (s *stmt) query(ctx context.Context, args []driver.NamedValue) (*rows, error) {
	dr, err := s.ds.QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.busy = true
	return &rows{ctx: ctx, s: s, dr: dr, vals: make([]driver.Value, len(dr.Columns()))}, nil
}

// queryRow runs a prepared statement of at most one row and returns its
// columns, nil if there is none.
func (c *conn) queryRow(ctx context.Context, text string, args ...driver.Value) (_ []driver.Value, err error) {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := r.close(); err == nil {
			err = e
		}
	}()
	if !r.next() {
		return nil, r.err
	}
	return r.vals, nil
}

// queryInt runs a prepared statement of one integer; 0 for no row or NULL.
func (c *conn) queryInt(ctx context.Context, text string, args ...driver.Value) (int64, error) {
	vals, err := c.queryRow(ctx, text, args...)
	if err != nil || vals == nil || vals[0] == nil {
		return 0, err
	}
	return vals[0].(int64), nil
}

// intern returns the one string kept for a value that repeats in every row, so
// that a page does not hold a thousand copies of it.
func (c *conn) intern(s string) string {
	if kept, ok := c.names[s]; ok {
		return kept
	}
	if len(c.names) >= 4096 {
		clear(c.names)
	}
	s = strings.Clone(s) // it may share memory with a page
	c.names[s] = s
	return s
}

// rows iterates over a result. The values of a row are the caller's to keep:
// strings and byte slices are fresh, vals itself is used again.
type rows struct {
	ctx  context.Context
	s    *stmt
	dr   driver.Rows
	vals []driver.Value
	err  error
	n    int
}

// next steps to the next row; false at the end or at an error, which close
// returns.
func (r *rows) next() bool {
	if r.err != nil {
		return false
	}
	if r.n++; r.n&63 == 0 {
		if r.err = r.ctx.Err(); r.err != nil {
			return false
		}
	}
	if err := r.dr.Next(r.vals); err != nil {
		if err != io.EOF {
			r.err = err
		}
		return false
	}
	return true
}

// close ends the iteration and returns its error, if any.
func (r *rows) close() error {
	r.s.busy = false
	if err := r.dr.Close(); r.err == nil && err != nil {
		r.err = err
	}
	return r.err
}

func (r *rows) int(i int) int64 { return r.vals[i].(int64) }

// text returns column i as a string, "" for NULL.
func (r *rows) text(i int) string {
	s, _ := r.vals[i].(string)
	return s
}

// bytes returns column i of a BLOB (or CAST to one); nil for NULL only.
func (r *rows) bytes(i int) []byte {
	if r.vals[i] == nil {
		return nil
	}
	if b := r.vals[i].([]byte); b != nil {
		return b
	}
	return []byte{} // the driver has nil for an empty one
}

func pragmaInt(name string, n int) string { return name + " = " + strconv.Itoa(n) }
