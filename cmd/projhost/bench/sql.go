package bench

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"modernc.org/sqlite"
)

// conn is a connection with its prepared statements, on the driver's own
// interface as the host's store uses it: database/sql would cost the baselines
// a conversion of every column.
type conn struct {
	c     driver.Conn
	stmts map[string]driver.Stmt
	args  []driver.NamedValue
}

// openConn opens the database with the settings of the host's writer. That
// commits use fdatasync is set for the process by the host's store.
func openConn(path string) (*conn, error) {
	c, err := (&sqlite.Driver{}).Open("file:" + path + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
		"&_pragma=wal_autocheckpoint(16000)&_pragma=cache_size(-32768)&_pragma=temp_store(MEMORY)")
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: map[string]driver.Stmt{}}, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

func (c *conn) script(text string) error {
	_, err := c.c.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
	return err
}

func (c *conn) stmt(text string, args []driver.Value) (driver.Stmt, []driver.NamedValue, error) {
	s := c.stmts[text]
	if s == nil {
		var err error
		if s, err = c.c.(driver.ConnPrepareContext).PrepareContext(context.Background(), text); err != nil {
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

// exec runs a prepared statement and returns how many rows it changed.
func (c *conn) exec(text string, args ...driver.Value) (int64, error) {
	s, named, err := c.stmt(text, args)
	if err != nil {
		return 0, err
	}
	r, err := s.(driver.StmtExecContext).ExecContext(context.Background(), named)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// query calls each for every row; the values are its own until it returns.
func (c *conn) query(text string, args []driver.Value, each func([]driver.Value)) error {
	s, named, err := c.stmt(text, args)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(context.Background(), named)
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
