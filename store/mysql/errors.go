package mysql

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// number is the server's number of an error, 0 if it has none. Text is never
// looked at.
func number(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// meaning is what an error number means, and what an operator can do.
type meaning struct {
	class sqlstore.Class
	hint  string
}

// Hints that several numbers share.
const (
	hintReadOnly   = "the server is read-only: is it a replica? Point [store] dsn at the primary, or end its read_only mode"
	hintPermission = "the user of [store] dsn lacks a permission: GRANT ALL ON its database to it, or the one that the message names"
	hintLogin      = "the server refuses the user or the password of [store] dsn"
	hintFull       = "the disk or a size limit of the server is full: free some space"
	hintMemory     = "the server is out of memory or of file handles"
	hintPacket     = "raise max_allowed_packet on the server"
	hintSchema     = "Compare with `projhost schema print --driver mysql` (or mariadb); if it is one of a read model, the next start of the host says what to do"
	hintLost       = "the connection to the server broke; it is opened again"
	hintServer     = "the server's error log tells more"
)

// numbers are the errors we know of MySQL 8 and MariaDB 10.6 and later. Both
// number alike up to 1999.
var numbers = map[uint16]meaning{
	1213: {class: sqlstore.Retry}, // deadlock
	1205: {class: sqlstore.Retry, hint: "another session holds a lock for long: look for open transactions (SHOW PROCESSLIST, information_schema.INNODB_TRX)"},
	1020: {class: sqlstore.Retry}, // a row changed since it was read
	1412: {class: sqlstore.Retry}, // a table was altered meanwhile
	1614: {class: sqlstore.Retry}, // deadlock, as XA tells it
	1615: {class: sqlstore.Retry}, // a prepared statement has to be prepared again
	1637: {class: sqlstore.Retry}, // too many transactions at once
	1689: {class: sqlstore.Retry}, // the wait for a lock was aborted
	3101: {class: sqlstore.Retry}, // group replication chose another's commit
	3572: {class: sqlstore.Retry}, // NOWAIT

	1022: {class: sqlstore.Duplicate},
	1062: {class: sqlstore.Duplicate},
	1586: {class: sqlstore.Duplicate},
	1859: {class: sqlstore.Duplicate},

	1048: {class: sqlstore.Data}, // null
	1118: {class: sqlstore.Data}, // row too big
	1153: {class: sqlstore.Data, hint: hintPacket},
	1162: {class: sqlstore.Data, hint: hintPacket}, // result longer than a packet
	1216: {class: sqlstore.Data},                   // foreign keys
	1217: {class: sqlstore.Data},
	1264: {class: sqlstore.Data},                   // out of range
	1265: {class: sqlstore.Data},                   // truncated
	1292: {class: sqlstore.Data},                   // truncated, wrong value
	1300: {class: sqlstore.Data},                   // not of the character set
	1301: {class: sqlstore.Data, hint: hintPacket}, // result of a function longer than a packet
	1364: {class: sqlstore.Data},                   // no default
	1365: {class: sqlstore.Data},                   // division by zero
	1366: {class: sqlstore.Data},                   // wrong value
	1367: {class: sqlstore.Data},
	1406: {class: sqlstore.Data}, // too long
	1411: {class: sqlstore.Data},
	1441: {class: sqlstore.Data},
	1451: {class: sqlstore.Data},
	1452: {class: sqlstore.Data},
	1526: {class: sqlstore.Data}, // no partition of the table for it
	1644: {class: sqlstore.Data}, // a trigger's own refusal
	1690: {class: sqlstore.Data}, // arithmetic out of range
	3140: {class: sqlstore.Data}, // not JSON (MySQL)
	3819: {class: sqlstore.Data}, // CHECK (MySQL)
	3854: {class: sqlstore.Data}, // cannot be converted (MySQL)
	3988: {class: sqlstore.Data},
	4025: {class: sqlstore.Data}, // CHECK (MariaDB)

	1053: {class: sqlstore.Lost}, // shutting down
	1152: {class: sqlstore.Lost}, // connection aborted
	1158: {class: sqlstore.Lost}, // reading or writing to the client
	1159: {class: sqlstore.Lost},
	1160: {class: sqlstore.Lost},
	1161: {class: sqlstore.Lost},
	1180: {class: sqlstore.Lost, hint: hintServer}, // COMMIT itself went wrong
	1184: {class: sqlstore.Lost},
	1317: {class: sqlstore.Lost}, // killed
	1927: {class: sqlstore.Lost}, // killed (MariaDB)
	2006: {class: sqlstore.Lost},
	2013: {class: sqlstore.Lost},
	3169: {class: sqlstore.Lost}, // killed (MySQL)
	4031: {class: sqlstore.Lost}, // idle for longer than wait_timeout (MySQL)

	1021: {sqlstore.Unavailable, hintFull},
	1114: {sqlstore.Unavailable, hintFull},
	3675: {sqlstore.Unavailable, hintFull},
	1037: {sqlstore.Unavailable, hintMemory},
	1038: {sqlstore.Unavailable, hintMemory},
	1041: {sqlstore.Unavailable, hintMemory},
	1135: {sqlstore.Unavailable, hintMemory},
	1023: {sqlstore.Unavailable, hintServer},
	1024: {sqlstore.Unavailable, hintServer},
	1026: {sqlstore.Unavailable, hintServer},
	1030: {sqlstore.Unavailable, hintServer},
	1034: {sqlstore.Unavailable, hintServer},
	1194: {sqlstore.Unavailable, hintServer},
	1196: {sqlstore.Unavailable, hintServer},
	1181: {sqlstore.Unavailable, hintServer},
	1815: {sqlstore.Unavailable, hintServer},
	1047: {sqlstore.Unavailable, "the node of the cluster is not ready"},
	1036: {sqlstore.Unavailable, hintReadOnly},
	1223: {sqlstore.Unavailable, "another session holds a global read lock (a backup?)"},
	1290: {sqlstore.Unavailable, hintReadOnly},
	1792: {sqlstore.Unavailable, hintReadOnly},
	1836: {sqlstore.Unavailable, hintReadOnly},
	3100: {sqlstore.Unavailable, "group replication does not take writes: look at its state"},
	1040: {sqlstore.Unavailable, "the server has no connection left: raise its max_connections, or lower [store] max_open_conns"},
	1203: {sqlstore.Unavailable, "the user has no connection left: raise its max_user_connections, or lower [store] max_open_conns"},
	1226: {sqlstore.Unavailable, "a resource limit of the user is used up"},
	1044: {sqlstore.Unavailable, hintPermission},
	1142: {sqlstore.Unavailable, hintPermission},
	1143: {sqlstore.Unavailable, hintPermission},
	1227: {sqlstore.Unavailable, hintPermission},
	1370: {sqlstore.Unavailable, hintPermission},
	1045: {sqlstore.Unavailable, hintLogin},
	1698: {sqlstore.Unavailable, hintLogin},
	1862: {sqlstore.Unavailable, hintLogin},
	3118: {sqlstore.Unavailable, hintLogin},
	4151: {sqlstore.Unavailable, hintLogin},
	1129: {sqlstore.Unavailable, "the server blocks this host after too many connection errors: FLUSH HOSTS there"},
	1130: {sqlstore.Unavailable, "the server does not let this host in: mend the user's host part"},
	1049: {sqlstore.Unavailable, "create the database that [store] dsn names, or mend the dsn"},
	1146: {sqlstore.Unavailable, "was a table dropped? " + hintSchema},
	1054: {sqlstore.Unavailable, "was a table changed? " + hintSchema},
	1969: {sqlstore.Unavailable, "a statement took longer than the server's max_statement_time"},
	3024: {sqlstore.Unavailable, "a statement took longer than the server's max_execution_time"},
}

// quoting are the errors whose text shows what a row holds, which is for the
// database and not for logs, and what is said instead.
var quoting = map[uint16]string{
	1062: "a value that has to be unique is there already",
	1586: "a value that has to be unique is there already",
	1292: "a value does not fit its column",
	1300: "a text is not of the character set of its column",
	1366: "a value does not fit its column",
	1367: "a number cannot be read",
	1411: "a time cannot be read",
	1526: "no partition of the table is for this row",
	1690: "the result of a calculation is out of range",
	3854: "a text cannot be converted to another character set",
	3988: "a text cannot be converted to another character set",
}

type quotingError struct {
	cause *mysql.MySQLError
	says  string
}

func (e *quotingError) Error() string { return fmt.Sprintf("%s (error %d)", e.says, e.cause.Number) }
func (e *quotingError) Unwrap() error { return e.cause }

// discreet gives an error a text without values.
func discreet(err error) error {
	var e *mysql.MySQLError
	if errors.As(err, &e) && quoting[e.Number] != "" {
		return &quotingError{e, quoting[e.Number]}
	}
	return err
}

const hintDial = "the server does not answer: is it running, and is the address in [store] dsn right?"

// classOf tells what an error means.
func classOf(err error) (sqlstore.Class, string) {
	if n := number(err); n != 0 {
		m, ok := numbers[n]
		if !ok {
			return sqlstore.Unlisted, ""
		}
		return m.class, m.hint
	}
	var op *net.OpError
	var dns *net.DNSError
	var netError net.Error
	switch {
	case err == nil:
		return sqlstore.Unknown, ""
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, sql.ErrConnDone):
		return sqlstore.Lost, hintLost
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return sqlstore.Unknown, "" // of the caller; as a net.Error it would be a lost connection's
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial":
		return sqlstore.Unavailable, hintDial
	case errors.Is(err, mysql.ErrPktTooLarge):
		return sqlstore.Data, hintPacket
	case isTLS(err):
		return sqlstore.Unavailable, "TLS to the server cannot be had: mend tls= in [store] dsn, or the server's certificate"
	case errors.Is(err, mysql.ErrMalformPkt), errors.Is(err, mysql.ErrPktSync), errors.Is(err, mysql.ErrPktSyncMul), errors.Is(err, mysql.ErrBusyBuffer),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrShortWrite), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, net.ErrClosed), errors.As(err, &netError):
		return sqlstore.Lost, hintLost
	}
	return sqlstore.Unknown, ""
}

func isTLS(err error) bool {
	var host x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	return errors.Is(err, mysql.ErrNoTLS) || errors.As(err, &host) || errors.As(err, &authority) || errors.As(err, &invalid)
}
