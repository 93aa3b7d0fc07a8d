package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// statement is one statement of a flight: its text, its parameters in binary,
// and what to do with its rows.
type statement struct {
	sql string
	params
	// row gets each row's columns in binary, valid only until it returns.
	row func(values [][]byte) error
	// fresh is planned anew for these very parameters, also on a connection
	// that keeps statements: for a join whose best plan depends on them.
	fresh bool

	affected int64
	tag      string
}

// params are the parameters of a statement. All that have a type are in binary.
type params struct {
	values  [][]byte
	oids    []uint32
	formats []int16
}

var binaryResult = []int16{1}

// maxPrepared bounds the statements that a connection keeps. There are a few
// for the host and some for each table.
const maxPrepared = 1000

// session is what we know of a connection beside pgconn.
type session struct {
	prepared map[string]*pgconn.StatementDescription // by text
	names    int
	texts    map[string]string // see intern
}

const sessionKey = "projhost"

// conn runs flights on a connection.
type conn struct {
	pg    *pgconn.PgConn
	ses   *session
	named bool // statements may be kept by name: no pooler is in between
	used  bool // something was sent for this caller
}

func newConn(pg *pgconn.PgConn, named bool) *conn {
	ses, _ := pg.CustomData()[sessionKey].(*session)
	if ses == nil {
		ses = &session{prepared: map[string]*pgconn.StatementDescription{}, texts: map[string]string{}}
		pg.CustomData()[sessionKey] = ses
	}
	return &conn{pg: pg, ses: ses, named: named}
}

// lostError is a connection that broke. safe says that nothing had been sent on
// it for this caller, neither now nor before: it has read nothing from it.
type lostError struct {
	err  error
	safe bool
}

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// fault gives an error of the connection its form. An error of the server stays
// what it is.
func (c *conn) fault(ctx context.Context, err error) error {
	var server *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &server):
		return err
	}
	lost := &lostError{err: err, safe: pgconn.SafeToRetry(err) && !c.used}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		lost.err = fmt.Errorf("%w: %w", cause, err)
	}
	return lost
}

// reply reads the results of a flight, in order.
type reply struct {
	c   *conn
	ctx context.Context
	p   *pgconn.Pipeline
}

// send sends statements in one flight. What the connection does not know yet is
// prepared on the way, in a part of its own: a statement that cannot be prepared
// is an error, and those that need it fail.
func (c *conn) send(ctx context.Context, list []*statement) (*reply, error) {
	p := c.pg.StartPipeline(ctx)
	r := &reply{c: c, ctx: ctx, p: p}
	type preparing struct{ text, name string }
	var news []preparing
	if c.named {
		for _, st := range list {
			if st.fresh || c.ses.prepared[st.sql] != nil || st.sql == "" {
				continue
			}
			known := false
			for _, n := range news {
				known = known || n.text == st.sql
			}
			if !known {
				c.ses.names++
				name := "ph" + strconv.Itoa(c.ses.names)
				p.SendPrepare(name, st.sql, st.oids)
				news = append(news, preparing{st.sql, name})
			}
		}
		if len(news) > 0 {
			p.SendPipelineSync()
		}
	}
	for _, st := range list {
		switch sd := c.ses.prepared[st.sql]; {
		case !c.named || st.fresh:
			p.SendQueryParams(st.sql, st.values, st.oids, st.formats, binaryResult)
		case sd != nil:
			p.SendQueryStatement(sd, st.values, st.formats, binaryResult)
		default:
			for _, n := range news {
				if n.text == st.sql {
					p.SendQueryPrepared(n.name, st.values, st.formats, binaryResult)
				}
			}
		}
	}
	if err := p.Sync(); err != nil {
		return nil, c.fault(ctx, err)
	}
	c.used = true
	if len(news) == 0 {
		return r, nil
	}
	for _, n := range news {
		res, err := p.GetResults()
		if err != nil {
			return nil, r.fail(err)
		}
		sd, ok := res.(*pgconn.StatementDescription)
		if !ok {
			return nil, r.fail(fmt.Errorf("the server answered %T to a statement", res))
		}
		sd.Name = n.name
		c.ses.prepared[n.text] = sd
	}
	if _, err := p.GetResults(); err != nil { // the end of that part
		return nil, r.fail(err)
	}
	return r, nil
}

// next gives the result of the next statement.
func (r *reply) next() (*pgconn.ResultReader, error) {
	res, err := r.p.GetResults()
	if err != nil {
		return nil, err
	}
	rr, ok := res.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("the server answered %T to a statement", res)
	}
	return rr, nil
}

// fail ends the flight after an error and gives the error its form.
func (r *reply) fail(err error) error {
	e := r.p.Close()
	var server *pgconn.PgError
	if errors.As(err, &server) {
		if stale(server.Code) {
			// The connection's statements are not what they were.
			r.c.ses.prepared = map[string]*pgconn.StatementDescription{}
		}
		return err
	}
	if e != nil && !errors.As(e, &server) {
		return r.c.fault(r.ctx, e)
	}
	return r.c.fault(r.ctx, err)
}

// stale tells an error of a kept statement that is gone, or whose tables were
// changed: prepared anew it works.
func stale(code string) bool {
	switch code {
	case codeNoStatement, codeFeature, codeDuplicateStatement:
		return true
	}
	return false
}

// run sends statements in one flight and reads all results. On an error it
// tells the place of the statement that failed, len(list) for the connection.
func (c *conn) run(ctx context.Context, list ...*statement) (failed int, err error) {
	defer func() {
		var lost *lostError
		if class, _ := classOf(err); errors.As(err, &lost) || class == sqlstore.Lost {
			// All of the flight may have been sent, and whatever answers came
			// so far, the server may go on with the rest of it: an error that
			// tells of a lost connection may be a pooler's, which lost the server.
			failed = len(list)
		}
	}()
	r, err := c.send(ctx, list)
	if err != nil {
		return len(list), err
	}
	var own error
	for i, st := range list {
		rr, err := r.next()
		if err != nil {
			return i, r.fail(err)
		}
		for rr.NextRow() {
			if st.row != nil && own == nil {
				own = st.row(rr.Values())
			}
		}
		tag, err := rr.Close()
		if err != nil {
			return i, r.fail(err)
		}
		st.affected, st.tag = tag.RowsAffected(), tag.String()
	}
	if err := r.p.Close(); err != nil {
		return len(list), c.fault(ctx, err)
	}
	return len(list), own
}

// rollback ends a transaction that is not to be. Where that goes wrong the
// connection is given up, which ends it as well.
func (c *conn) rollback(ctx context.Context) {
	if c.pg.IsClosed() || c.pg.TxStatus() == 'I' {
		return
	}
	if err := c.pg.Exec(ctx, "ROLLBACK").Close(); err != nil {
		_ = c.pg.Close(ctx)
	}
}

// intern keeps one copy of a text that comes again and again.
func (c *conn) intern(b []byte) string {
	if s, ok := c.ses.texts[string(b)]; ok {
		return s
	}
	if len(c.ses.texts) > 1000 {
		clear(c.ses.texts)
	}
	s := string(b)
	c.ses.texts[s] = s
	return s
}
