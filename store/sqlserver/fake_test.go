package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"
)

// server stands where SQL Server would: it records what is sent, and answers
// from a script. It proves what we send and what we make of answers, and nothing
// about what a server does with it.
type server struct {
	t testing.TB

	mu sync.Mutex
	// answer gives the rows or the error of a batch, nil for none.
	answer func(s sent) (*reply, error)
	log    []sent
	// commit fails COMMITs that are sent as such.
	commit func() error
}

// sent is a batch, or a request of the transaction manager.
type sent struct {
	text string
	args map[string]any
	// level is the isolation of a begin request, -1 for anything else.
	level sql.IsolationLevel
}

type reply struct {
	columns int
	rows    [][]driver.Value
	counted int64
}

func (s *server) record(e sent) (*reply, error) {
	s.mu.Lock()
	s.log = append(s.log, e)
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		return &reply{}, nil
	}
	r, err := answer(e)
	if r == nil {
		r = &reply{}
	}
	return r, err
}

// texts are the batches that were sent.
func (s *server) texts() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.log {
		if e.text != "" {
			list = append(list, e.text)
		}
	}
	return list
}

// named finds the batches that hold a text.
func (s *server) named(part string) (list []sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.log {
		if strings.Contains(e.text, part) {
			list = append(list, e)
		}
	}
	return list
}

func (s *server) Connect(context.Context) (driver.Conn, error) { return &fakeConn{s}, nil }
func (s *server) Driver() driver.Driver                        { return nil }

type fakeConn struct{ s *server }

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { panic("a transaction without a level") }

func (c *fakeConn) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly {
		return nil, fmt.Errorf("read-only transactions are not supported")
	}
	_, err := c.s.record(sent{level: sql.IsolationLevel(o.Isolation)})
	return fakeTx{c.s}, err
}

type fakeTx struct{ s *server }

func (t fakeTx) Commit() error {
	_, err := t.s.record(sent{text: "COMMIT", level: -1})
	if t.s.commit != nil {
		err = t.s.commit()
	}
	return err
}

func (t fakeTx) Rollback() error {
	_, err := t.s.record(sent{text: "ROLLBACK", level: -1})
	return err
}

// CheckNamedValue lets through what the real driver does, and holds every
// argument to the rules: it has a type, and is of one that we mean to send.
func (c *fakeConn) CheckNamedValue(v *driver.NamedValue) error {
	switch v.Value.(type) {
	case int64, float64, bool, mssql.NVarCharMax:
	case string: // names of locks
	case []byte:
		require.NotNil(c.s.t, v.Value, "a NULL without a type")
	default:
		c.s.t.Errorf("argument %s is a %T: the driver would guess its type", v.Name, v.Value)
	}
	return nil
}

func (c *fakeConn) sent(text string, args []driver.NamedValue) (*reply, error) {
	e := sent{text: text, args: map[string]any{}, level: -1}
	for _, a := range args {
		name := a.Name
		if name == "" {
			name = fmt.Sprintf("p%d", a.Ordinal)
		}
		e.args[name] = a.Value
	}
	if n := len(args); n > 2100 {
		c.s.t.Errorf("a batch has %d parameters, SQL Server takes 2100: %s", n, text)
	}
	return c.s.record(e)
}

func (c *fakeConn) QueryContext(_ context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	r, err := c.sent(text, args)
	if err != nil {
		return nil, err
	}
	return &fakeRows{r}, nil
}

func (c *fakeConn) ExecContext(_ context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.sent(text, args)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(r.counted), nil
}

type fakeRows struct{ r *reply }

func (r *fakeRows) Columns() []string {
	n := r.r.columns
	if len(r.r.rows) > 0 {
		n = len(r.r.rows[0])
	}
	return make([]string, n)
}

func (r *fakeRows) Close() error { return nil }

func (r *fakeRows) Next(dest []driver.Value) error {
	if len(r.r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.r.rows[0])
	r.r.rows = r.r.rows[1:]
	return nil
}

// failure is an error as the driver gives it.
func failure(number int32) error {
	e := mssql.Error{Number: number, Class: 16, Message: "as scripted"}
	e.All = []mssql.Error{e}
	return e
}

// rows is a reply of rows.
func rows(list ...[]driver.Value) *reply { return &reply{rows: list} }

// textOf is a text as it was sent.
func textOf(arg any) string { return string(arg.(mssql.NVarCharMax)) }
