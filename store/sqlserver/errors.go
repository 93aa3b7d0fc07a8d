package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Numbers of the errors that our own batches throw when what they rely on is
// not so. SQL Server leaves the numbers from 50000 on to applications.
const (
	errVersion    = 51301 // a stream's version is not the expected one
	errKnown      = 51302 // an event id is stored already
	errTopic      = 51303 // the topic's row is missing
	errFenced     = 51304 // a lease is no longer held
	errCheckpoint = 51305 // a checkpoint or the epoch is another
	errJoined     = 51306 // an instance has not joined
	errRetry      = 51307 // an undelivered message is another than it was read as
	errStep       = 51400 // and up: the guard of this step of a transaction
	errStepMax    = 59999
)

// unmapped is the number that Babelfish gives to every error of PostgreSQL for
// which SQL Server has none: a lock that was not had in time and a snapshot
// conflict among them. What it means cannot be told; its transaction is gone.
const unmapped = 33557097

// number is SQL Server's number of an error, 0 if it has none. A batch can end
// in several errors: the first is the cause, the others tell what it ended.
func number(err error) int32 {
	e, ok := serverError(err)
	if !ok {
		return 0
	}
	return e.Number
}

func serverError(err error) (mssql.Error, bool) {
	var e mssql.Error
	if !errors.As(err, &e) {
		return e, false
	}
	for _, first := range e.All {
		if _, known := classes[first.Number]; known || first.Number >= errVersion && first.Number <= errStepMax {
			return first, true
		}
	}
	return e, true
}

// classOf tells what an error of a statement means, by its number, and by its
// severity where that says that the connection has ended.
func classOf(err error) (class sqlstore.Class, hint string) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return sqlstore.Unknown, ""
	}
	var fatal mssql.ServerError
	if e, ok := serverError(err); ok {
		if c, ok := classes[e.Number]; ok {
			return c.class, c.hint
		}
		if e.Class >= fatalSeverity || errors.As(err, &fatal) {
			return sqlstore.Lost, "SQL Server ended the session: its error log tells why"
		}
		return sqlstore.Unlisted, ""
	}
	var stream mssql.StreamError
	var network net.Error
	var dial *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns), errors.As(err, &dial) && dial.Op == "dial":
		// Nothing was under way on a connection that was never there.
		return sqlstore.Unavailable, hintDial
	case errors.As(err, &fatal), errors.As(err, &stream), errors.As(err, &network),
		errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return sqlstore.Lost, hintLost
	}
	return sqlstore.Unknown, ""
}

// dataError is the refusal of a row. The server's text quotes the value, which
// is nobody's business but the database's, so it is told by its number.
type dataError struct{ cause mssql.Error }

func (e *dataError) Unwrap() error { return e.cause }

func (e *dataError) Error() string {
	what := "the data is refused"
	switch e.cause.Number {
	case 2627, 2601:
		what = "a value that has to be unique is there already"
	case 515:
		what = "a value is missing where none may be"
	case 547:
		what = "a constraint of the table is broken"
	case 8152, 2628:
		what = "a value is too long for its column"
	case 8115, 220, 232, 248:
		what = "a number is too large for its column"
	case 8114, 245, 241, 242, 295, 235, 293, 8169:
		what = "a value cannot be converted to its column's type"
	case 1946:
		what = "an entry is too long for its index"
	case 511:
		what = "the row is too long"
	}
	return fmt.Sprintf("%s (SQL Server error %d)", what, e.cause.Number)
}

// fatalSeverity is the severity from which on an error ends the session.
const fatalSeverity = 20

type errorClass struct {
	class sqlstore.Class
	hint  string
}

// Hints that several numbers share.
const (
	hintDial       = "the server does not answer: is it running, and are host and port in [store] dsn right?"
	hintLost       = "the connection to the server broke; it is opened again"
	hintLogin      = "the login was refused: mend user and password in [store] dsn, or the login on the server"
	hintNoDatabase = "the database cannot be opened: does it exist, is it online, and may this login use it?"
	hintDenied     = "permission was denied: the login needs db_owner of the database, or ALTER, SELECT, INSERT, UPDATE, DELETE and CREATE TABLE and VIEW in its schema"
	hintFull       = "there is no room left: free space, or let the files of the database and of tempdb grow"
	hintLogFull    = "the transaction log is full: back it up, or end what keeps it (sys.databases.log_reuse_wait_desc)"
	hintReadOnly   = "the database is read-only: set it READ_WRITE, or connect to the primary replica"
	hintMoving     = "the database is starting, moving or failing over; it comes back by itself"
	hintMemory     = "the server is out of memory or locks: give it more, or lower [apply] lanes"
	hintBusy       = "the server is at its limit: choose a larger service tier, or lower [store] max_open_conns"
	hintDisk       = "the disk answered with an error: look at the server's error log, and run DBCC CHECKDB"
	hintMissing    = "a table or column is missing: compare with `projhost schema print --driver sqlserver`"
	hintSnapshot   = "snapshot isolation is off: ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"
)

// classes holds the numbers whose meaning matters.
var classes = func() map[int32]errorClass {
	m := map[int32]errorClass{}
	add := func(class sqlstore.Class, hint string, numbers ...int32) {
		for _, n := range numbers {
			m[n] = errorClass{class, hint}
		}
	}
	// Deadlock; lock time-out; snapshot conflict with a row or with DDL.
	add(sqlstore.Retry, "", 1205, 1222, 3960, 3961)
	add(sqlstore.Retry, "the server is Babelfish, which does not tell what went wrong", unmapped)

	add(sqlstore.Duplicate, "", 2627, 2601)

	// NULL, CHECK and foreign key; truncation; overflow of a type; conversion;
	// a text or number that is none; an index entry or a row that is too long.
	add(sqlstore.Data, "", 515, 547, 8152, 2628, 8115, 220, 232, 248, 8114, 245, 241, 242, 295, 8169, 235, 293,
		8134, 3606, 3607, 1946, 511, 8631, 8023, 9803, 2705, 13609)

	add(sqlstore.Unavailable, hintLogin, 18456, 18452, 18470, 18486, 18487, 18488, 18401)
	add(sqlstore.Unavailable, hintNoDatabase, 4060, 911, 916, 942, 945, 924, 926)
	add(sqlstore.Unavailable, hintDenied, 229, 230, 262, 297, 300, 1088, 3704, 15151)
	add(sqlstore.Unavailable, hintFull, 1105, 1101, 3967, 40544)
	add(sqlstore.Unavailable, hintLogFull, 9002)
	add(sqlstore.Unavailable, hintReadOnly, 3906, 3908, 3909, 3914)
	add(sqlstore.Unavailable, hintMoving, 922, 927, 952, 976, 978, 979, 983, 17142, 18401, 40613, 40197)
	add(sqlstore.Unavailable, hintMemory, 701, 802, 1204, 8645, 8651, 17803)
	add(sqlstore.Unavailable, hintBusy, 10928, 10929, 40501, 49918, 49919, 49920, 17809)
	add(sqlstore.Unavailable, hintDisk, 823, 824, 825, 605)
	add(sqlstore.Unavailable, hintSnapshot, 3952)
	add(sqlstore.Unavailable, hintMissing, 207, 208)

	// The session was killed, or the server goes down.
	add(sqlstore.Lost, "the session was ended by an administrator or by a limit of the server", 596, 40549, 40550, 40551, 40552, 40553)
	add(sqlstore.Lost, "the server is shutting down", 6005, 6006)
	return m
}()
