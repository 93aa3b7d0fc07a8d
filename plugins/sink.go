package plugins

import (
	"errors"

	"github.com/projhost/projhost/abi"
)

// Sink takes a batch's results as the guest gives them, and answers its
// questions about rows. All calls come from within Apply, on its goroutine,
// between the results of entry n-1 and entry n: reads are for entry n.
//
// An error is the guest's fault (a bad op, an unknown table) unless it is
// wrapped by [HostFault]. The guest's fault in Done fails the entry with
// abi.CodeMalformed and ends the call; in Get and List it is a negative answer
// to the guest, which may go on. A host fault ends the call; Apply returns it.
//
// Every slice a method gets is a view of guest memory and valid during that
// call only: copy what is kept. A slice it returns is read before the next
// call and not kept.
type Sink interface {
	// Done takes the result of entry index: abi.StatusOK with its ops, or
	// abi.StatusIgnored without. An error means: entry index has no result.
	Done(index int, status abi.Status, ops []byte) error
	// Get returns a row as abi encodes it, earlier ops of the same batch
	// included. key is as in the ABI: empty for the entry's own row, `str child`
	// in a child table, `str key` and `str child` in a free one.
	Get(table uint16, key []byte) (row []byte, ok bool, err error)
	// List returns up to limit children after the child key `after`, in the
	// order of child keys, as the ABI's list answers them.
	List(table uint16, key, after []byte, limit int) (children []byte, err error)
}

// HostFault marks an error of a [Sink] as none of the guest's doing: a
// database that does not answer, say. Apply returns err itself.
func HostFault(err error) error {
	if err == nil {
		return nil
	}
	return &hostFault{err}
}

type hostFault struct{ err error }

func (h *hostFault) Error() string { return h.err.Error() }
func (h *hostFault) Unwrap() error { return h.err }

// asHostFault returns what HostFault was given.
func asHostFault(err error) (error, bool) {
	var h *hostFault
	if errors.As(err, &h) {
		return h.err, true
	}
	return nil, false
}
