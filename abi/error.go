package abi

import (
	"errors"
	"strconv"
)

// ErrMalformed is wrapped by every error of a decoder: the bytes are not what
// ABI v1 says. The error itself is a [*MalformedError] or a [*ManifestError].
var ErrMalformed = errors.New("malformed")

// MalformedError says what could not be read, where, and why.
type MalformedError struct {
	What   string // "frame", "ops", "row", …
	Offset int    // byte of the input at which it went wrong
	Reason string
}

func (e *MalformedError) Error() string {
	return "malformed " + e.What + " at byte " + strconv.Itoa(e.Offset) + ": " + e.Reason
}

// Unwrap makes errors.Is(err, ErrMalformed) true.
func (e *MalformedError) Unwrap() error { return ErrMalformed }

// Deterministic tells whether a failure of this class will come again on every
// host and at every time: it needs no second try later, only a confirmation.
func (s Status) Deterministic() bool {
	return s == StatusReject || s == StatusFatal || CodeTrap <= s && s <= CodeOrder
}

// Failed tells whether the entry was not applied.
func (s Status) Failed() bool { return s != StatusOK && s != StatusIgnored }

func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusIgnored:
		return "ignored"
	case StatusReject:
		return "reject"
	case StatusFatal:
		return "fatal"
	case StatusRetry:
		return "retry"
	case CodeTrap:
		return "trap"
	case CodeFuel:
		return "fuel"
	case CodeMemory:
		return "memory"
	case CodeMalformed:
		return "malformed"
	case CodeOrder:
		return "order"
	case CodeDeadline:
		return "deadline"
	case CodeDatabase:
		return "database"
	case CodeData:
		return "data"
	}
	return "status " + strconv.Itoa(int(s))
}
