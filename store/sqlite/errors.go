package sqlite

import (
	"context"
	"errors"
	"fmt"

	sqlite "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
)

// code is SQLite's extended result code of an error, 0 if it has none. Text is
// never looked at.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// primary is the class of an extended code.
func primary(code int) int { return code & 0xff }

func isBusy(err error) bool {
	switch primary(code(err)) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_PROTOCOL:
		return true
	}
	return false
}

func isPlainError(err error) bool { return code(err) == lib.SQLITE_ERROR }

// isData tells the database's refusal of a row (type, range, constraint, size)
// from everything else. It is the fault of some entry and not of the moment.
func isData(err error) bool {
	switch primary(code(err)) {
	case lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_TOOBIG, lib.SQLITE_RANGE:
		return true
	}
	return false
}

// wrap gives an error of a call's own doing its final form: SQLite's become
// [*store.TransientError], all others stay what they are.
func wrap(op string, err error) error {
	var data *store.DataError
	if err == nil || code(err) == 0 || errors.As(err, &data) {
		return err
	}
	var transient *store.TransientError
	if errors.As(err, &transient) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if isData(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return classify(op, err)
}

// classify makes a TransientError of an error of SQLite or of opening it.
func classify(op string, err error) *store.TransientError {
	e := &store.TransientError{Op: op, Hint: hint(code(err)), Err: err}
	var commit *commitError
	e.OutcomeUnknown = errors.As(err, &commit)
	return e
}

// titled is a transient error as another call has met it.
func titled(op string, err error) error {
	var transient *store.TransientError
	if !errors.As(err, &transient) {
		return err
	}
	e := *transient
	e.Op = op
	return &e
}

// hint says what an operator can do about a result code.
func hint(code int) string {
	switch code {
	case lib.SQLITE_IOERR_SHMSIZE:
		return "there is no room for the -shm file beside the database: the disk is full, free some space"
	case lib.SQLITE_IOERR_SHMMAP, lib.SQLITE_IOERR_SHMOPEN, lib.SQLITE_IOERR_SHMLOCK:
		return "the file system cannot share memory between processes: keep the database on a local disk, not on a network share"
	case lib.SQLITE_IOERR_NOMEM:
		return "there is no memory left: give the process more, or lower [apply] lanes"
	case lib.SQLITE_READONLY_DIRECTORY, lib.SQLITE_READONLY_CANTINIT:
		return "the folder of the database cannot be written to: SQLite needs it for the -wal and -shm files; mend its permissions"
	case lib.SQLITE_READONLY_DBMOVED:
		return "the database file was moved or deleted while it was open: put it back and restart"
	}
	switch primary(code) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_PROTOCOL:
		return "another process holds the database's write lock: end its transaction (an SQL client, a backup)"
	case lib.SQLITE_FULL:
		return "the disk or the database's size limit is full: free some space"
	case lib.SQLITE_READONLY:
		return "the database is read-only: mend the permissions of the file and its folder, or the mount"
	case lib.SQLITE_PERM, lib.SQLITE_AUTH:
		return "access was denied: mend the permissions of the file and its folder"
	case lib.SQLITE_CANTOPEN:
		return "the file cannot be opened: does its folder exist, and may this user write there?"
	case lib.SQLITE_CORRUPT:
		return "the database file is damaged: stop, keep a copy, and restore a backup; `PRAGMA integrity_check` tells more"
	case lib.SQLITE_NOTADB:
		return "the file is not an SQLite database: set [store] dsn to another path, or move the file away"
	case lib.SQLITE_IOERR:
		return "the disk answered with an error: look at the system's log"
	case lib.SQLITE_NOMEM:
		return "there is no memory left: give the process more, or lower [apply] lanes"
	case lib.SQLITE_SCHEMA:
		return "the schema changes in another process: let it end"
	}
	if code == 0 {
		return ""
	}
	return fmt.Sprintf("SQLite result code %d", code)
}
