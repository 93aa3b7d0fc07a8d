package bench

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// conn is a connection with its prepared statements, on the driver's own
// interface: database/sql would cost the baselines a conversion of every column.
type conn struct {
	c     driver.Conn
	stmts map[string]driver.Stmt
	args  []driver.NamedValue
}

func newConn(c driver.Conn) *conn { return &conn{c: c, stmts: map[string]driver.Stmt{}} }

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

// exec runs a text that is not prepared.
func (c *conn) exec(ctx context.Context, text string) error {
	_, err := c.c.(driver.ExecerContext).ExecContext(ctx, text, nil)
	return err
}

func (c *conn) stmt(ctx context.Context, text string, args []driver.Value) (driver.Stmt, []driver.NamedValue, error) {
	s := c.stmts[text]
	if s == nil {
		var err error
		if s, err = c.c.(driver.ConnPrepareContext).PrepareContext(ctx, text); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", text, err)
		}
		c.stmts[text] = s
	}
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s, c.args, nil
}

// run runs a prepared statement and returns how many rows it changed.
func (c *conn) run(ctx context.Context, text string, args ...driver.Value) (int64, error) {
	s, named, err := c.stmt(ctx, text, args)
	if err != nil {
		return 0, err
	}
	r, err := s.(driver.StmtExecContext).ExecContext(ctx, named)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// query calls each for every row; the values are its own until it returns.
func (c *conn) query(ctx context.Context, text string, args []driver.Value, each func([]driver.Value)) error {
	s, named, err := c.stmt(ctx, text, args)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, named)
	if err != nil {
		return err
	}
	values := make([]driver.Value, len(rows.Columns()))
	for err = rows.Next(values); err == nil; err = rows.Next(values) {
		each(values)
	}
	if err != io.EOF {
		return errors.Join(err, rows.Close())
	}
	return rows.Close()
}

// text is a value as text.
func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

// texts calls each with the values of every row as text.
func (c *conn) texts(ctx context.Context, query string, args []driver.Value, each func([]string)) error {
	return c.query(ctx, query, args, func(v []driver.Value) {
		row := make([]string, len(v))
		for i := range v {
			row[i] = text(v[i])
		}
		each(row)
	})
}

// transaction runs f between two texts, and rolls back if it fails.
func (c *conn) transaction(ctx context.Context, begin string, f func() error) error {
	if _, err := c.run(ctx, begin); err != nil {
		return err
	}
	if err := f(); err != nil {
		_, e := c.run(ctx, "ROLLBACK")
		return errors.Join(err, e)
	}
	_, err := c.run(ctx, "COMMIT")
	return err
}
