package store

import (
	"errors"
	"fmt"
	"strings"
)

// Errors callers act on. Match with errors.Is and errors.As.
var (
	ErrNotFound        = errors.New("not found")
	ErrFenced          = errors.New("lease is no longer held")
	ErrCheckpointMoved = errors.New("checkpoint or epoch is not what the batch was read from")
	ErrIncarnation     = errors.New("the database is not the one the batch was read from")
)

// ConflictError is an append whose expected version is not the stream's.
type ConflictError struct {
	AggregateType string
	AggregateID   string
	Expected      int64
	Actual        int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %s/%s: expected version %d, it is %d", e.AggregateType, e.AggregateID, e.Expected, e.Actual)
}

// DuplicateEventError is an event id that is stored already, elsewhere or with
// other content. Index is the event's place in the call.
type DuplicateEventError struct {
	ID            ID
	Index         int
	AggregateType string // where it is stored
	AggregateID   string
	Position      int64
	Reason        string // what differs
}

func (e *DuplicateEventError) Error() string {
	return fmt.Sprintf("event id %s is already stored at position %d (stream %s/%s): %s", e.ID, e.Position, e.AggregateType, e.AggregateID, e.Reason)
}

// InvalidError is a request refused before any SQL. Code is a stable HTTP error
// code: "bad_request", "duplicate_stream", "too_large", "duplicate_event".
// Index is the offending event's place in the call, -1 if none.
type InvalidError struct {
	Code   string
	Index  int
	Reason string
}

func (e *InvalidError) Error() string { return e.Reason }

// NameTakenError is a table name that belongs to somebody else.
type NameTakenError struct {
	Table string
	Owner string // "projection/x of plugin y", or "a table that projhost did not create"
}

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("table %q belongs to %s: rename it in the plugin, or set [store] read_model_prefix", e.Table, e.Owner)
}

// DeclarationError is a declaration that changed in more than logic.
type DeclarationError struct {
	Consumer ConsumerID
	Changed  []string // of "inputs", "keys", "tables"
}

func (e *DeclarationError) Error() string {
	return fmt.Sprintf("%s: the module declares other %s than the stored build was made with", e.Consumer, strings.Join(e.Changed, ", "))
}

// ViewError is a public name that cannot be made to show the live build: the
// database refuses to replace its view, which shows an older one.
type ViewError struct {
	Name string
	Err  error
}

func (e *ViewError) Error() string {
	return fmt.Sprintf("view %q does not show the live build, since what is built on it stands in the way: %v", e.Name, e.Err)
}

func (e *ViewError) Unwrap() error { return e.Err }

// TransientError is a failure that has nothing to do with the data: locked,
// full, unreachable, deadlocked. Hint says what an operator can do.
type TransientError struct {
	Op             string
	Hint           string
	OutcomeUnknown bool // the transaction may have committed
	Err            error
}

func (e *TransientError) Error() string {
	if e.Hint != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Op, e.Err, e.Hint)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Err)
}

func (e *TransientError) Unwrap() error { return e.Err }

// DataError is the database's refusal of some row of a batch: a type, range,
// constraint or size it does not accept.
type DataError struct {
	Table string
	Err   error
}

func (e *DataError) Error() string { return fmt.Sprintf("table %s: %v", e.Table, e.Err) }
func (e *DataError) Unwrap() error { return e.Err }

// SchemaError is a table of the host that is missing or not as it has to be.
type SchemaError struct {
	Driver string // for the remedy
	Table  string
	Column string // or index; "" for the table as a whole
	Want   string
	Have   string // "" where it is missing
	New    bool   // the database has nothing of the host's yet
}

func (e *SchemaError) Error() string {
	script := "`projhost schema print --driver " + e.Driver + "`"
	switch {
	case e.Column == "" && e.New:
		return fmt.Sprintf("table %q is missing, as the database is new: make its tables with the script of %s, or set [store] initialize_schema = \"always\"", e.Table, script)
	case e.Column == "":
		// Migrations that are on record are not run again, whatever is set.
		return fmt.Sprintf("table %q is missing: restore it from a backup; %s has the statement that makes an empty one", e.Table, script)
	case e.Have == "":
		return fmt.Sprintf("table %q, %s: missing, should be %s: compare with the output of %s and mend it", e.Table, e.Column, e.Want, script)
	}
	return fmt.Sprintf("table %q, %s: is %s, should be %s: compare with the output of %s and mend it", e.Table, e.Column, e.Have, e.Want, script)
}
