package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// SQLSTATEs that are looked at by themselves.
const (
	codeDivision           = "22012" // a guard (H1)
	codeFeature            = "0A000" // "cached plan must not change result type"
	codeNoStatement        = "26000"
	codeDuplicateStatement = "42P05"
	codeSerialization      = "40001"
	codeDeadlock           = "40P01"
	codeLockNotAvailable   = "55P03"
	codeUnique             = "23505"
	codeExclusion          = "23P01"
	codeQueryCanceled      = "57014"
)

// classes tells what an error of the server means, by SQLSTATE or, where that
// is not listed, by the first two characters, its class.
var classes = map[string]sqlstore.Class{
	codeSerialization:      sqlstore.Retry,
	codeDeadlock:           sqlstore.Retry,
	codeLockNotAvailable:   sqlstore.Retry,
	codeFeature:            sqlstore.Retry,
	codeNoStatement:        sqlstore.Retry,
	codeDuplicateStatement: sqlstore.Retry,
	"40002":                sqlstore.Data, // transaction integrity constraint violation
	"40003":                sqlstore.Lost, // statement completion unknown

	codeUnique:    sqlstore.Duplicate,
	codeExclusion: sqlstore.Duplicate,
	"22":          sqlstore.Data,
	"23":          sqlstore.Data,
	"44":          sqlstore.Data, // WITH CHECK OPTION
	"54":          sqlstore.Data,
	"P0":          sqlstore.Data, // a trigger's own refusal

	"08":    sqlstore.Lost,
	"57P01": sqlstore.Lost, // admin shutdown
	"57P02": sqlstore.Lost, // crash shutdown
	"57P04": sqlstore.Lost, // database dropped
	"57P05": sqlstore.Lost, // idle session timeout
	"25P03": sqlstore.Lost, // idle in transaction session timeout
	"25P04": sqlstore.Lost, // transaction timeout

	"57P03":           sqlstore.Unavailable, // cannot connect now
	codeQueryCanceled: sqlstore.Unavailable,
	"25006":           sqlstore.Unavailable, // read-only transaction
	"42501":           sqlstore.Unavailable, // insufficient privilege
	"28":              sqlstore.Unavailable,
	"3D":              sqlstore.Unavailable,
	"3F":              sqlstore.Unavailable,
	"53":              sqlstore.Unavailable,
	"55":              sqlstore.Unavailable,
	"58":              sqlstore.Unavailable,
	"XX":              sqlstore.Unavailable,
	"F0":              sqlstore.Unavailable,
	"57":              sqlstore.Unavailable,
	"42P01":           sqlstore.Unavailable, // undefined table
	"42703":           sqlstore.Unavailable, // undefined column
}

// hints says what an operator can do.
var hints = map[string]string{
	"08":                 "the connection to the server broke; it is opened again",
	"08P01":              "the server or a pooler before it does not speak the protocol as expected: set [store] direct_dsn, or default_query_exec_mode=exec in the dsn",
	codeNoStatement:      "a pooler is between: set [store] direct_dsn, or default_query_exec_mode=exec in the dsn",
	codeLockNotAvailable: "another transaction holds a lock for long: look for it in pg_stat_activity",
	codeQueryCanceled:    "statement_timeout of the role or database, or an operator, ended the statement: raise it for this role",
	"25006":              "the database is read-only: a standby, or default_transaction_read_only is on; connect to the primary",
	"25P03":              "the session was idle in a transaction for too long: is the host frozen or overloaded?",
	"28":                 "the server refuses the login: check user and password in [store] dsn, and pg_hba.conf",
	"3D":                 "the database does not exist: create it, or mend [store] dsn",
	"3F":                 "no schema of the search_path exists: create it, or mend search_path",
	"42501":              "the role lacks a privilege: it needs all on the tables of projhost, and CREATE on the schema",
	"42P01":              "a table is missing: run `projhost doctor`",
	"42703":              "a column is missing: compare with `projhost schema print`; if it is one of a read model, the next start of the host says how to add it",
	"53":                 "the server has run out of something: see its log",
	"53100":              "the server's disk is full: free some space",
	"53200":              "the server has run out of memory",
	"53300":              "the server takes no more connections: lower [store] max_open_conns, raise max_connections, or put a pooler before it",
	"57P01":              "the server is shutting down, or an operator ended the session",
	"57P02":              "the server has crashed and restarts",
	"57P03":              "the server is starting up or shutting down",
	"58":                 "the server's disk answered with an error: see its log",
	"XX":                 "the server reports an internal error or damaged data: see its log, and stop if it persists",
}

func byCode[T any](table map[string]T, code string) (v T, ok bool) {
	if v, ok = table[code]; !ok && len(code) == 5 {
		v, ok = table[code[:2]]
	}
	return v, ok
}

// codeOf is the SQLSTATE of an error of the server, "" if it is none.
func codeOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// connectError tells in one line why no connection came about: pgx gives a line
// for each address and for each way of encryption it tried, most of them alike.
type connectError struct{ cause *pgconn.ConnectError }

func (e *connectError) Error() string {
	var reasons []string
	for line := range strings.Lines(e.cause.Unwrap().Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(reasons, line) {
			reasons = append(reasons, line)
		}
	}
	return fmt.Sprintf("connect as %s: %s", e.cause.Config.User, strings.Join(reasons, "; "))
}

func (e *connectError) Unwrap() error { return e.cause }

// connecting gives the error of a connection attempt its form.
func connecting(err error) error {
	if cause, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &connectError{cause}
	}
	return err
}

// explain gives an error that no caller of the store is told a form of its own:
// in one line, and with what can be done.
func explain(err error) error {
	err = connecting(err)
	if _, hint := classOf(err); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

// classOf implements [sqlstore.Engine.Class]. Text is never looked at.
func classOf(err error) (sqlstore.Class, string) {
	code := codeOf(err)
	hint, _ := byCode(hints, code)
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		// Nothing was under way on a connection that was never there.
		if hint == "" {
			hint = "the server cannot be reached: is it running, and does [store] dsn name it?"
		}
		if errors.Is(err, context.Canceled) {
			return sqlstore.Unknown, ""
		}
		return sqlstore.Unavailable, hint
	}
	var lost *lostError
	switch {
	case errors.As(err, &lost) && lost.safe:
		return sqlstore.Unavailable, hints["08"]
	case lost != nil:
		return sqlstore.Lost, hints["08"]
	case code == "":
		return sqlstore.Unknown, ""
	}
	class, ok := byCode(classes, code)
	if !ok {
		class = sqlstore.Unlisted
	}
	if hint == "" {
		hint = "SQLSTATE " + code
	}
	return class, hint
}
