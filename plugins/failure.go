package plugins

import (
	"fmt"
	"strings"

	"github.com/projhost/projhost/abi"
)

// Failure is an entry the guest could not give a result for. The instance is
// put back before its next call; entries before Index have their results.
type Failure struct {
	Index   int        // of the entry in the batch
	Code    abi.Status // the guest's status ≥ 2, or one of the host's codes
	Message string     // the guest's own reason if it gave one, else the host's
	Trap    string     // what WebAssembly says, with the guest's functions; empty if it did not trap
	Digest  string     // of the module
	// Deterministic: the same entry fails again in the same state. Only a run
	// of the entry alone may be believed for memory.
	Deterministic bool
}

// Error says the code, the reason and the trap in one line.
func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "entry %d: %s", f.Index, codeText(f.Code))
	if f.Message != "" {
		b.WriteString(": ")
		b.WriteString(f.Message)
	}
	if f.Trap != "" && f.Trap != f.Message {
		b.WriteString(" (")
		b.WriteString(f.Trap)
		b.WriteString(")")
	}
	return b.String()
}

func codeText(c abi.Status) string {
	switch c {
	case abi.StatusReject:
		return "rejected by the plugin"
	case abi.StatusFatal:
		return "the plugin asks for a halt"
	case abi.StatusRetry:
		return "the plugin asks for a retry"
	case abi.CodeTrap:
		return "trap"
	case abi.CodeFuel:
		return "out of fuel"
	case abi.CodeMemory:
		return "out of memory"
	case abi.CodeMalformed:
		return "bad op or argument"
	case abi.CodeOrder:
		return "answered out of order"
	case abi.CodeDeadline:
		return "out of time"
	default:
		return fmt.Sprintf("status %d", c)
	}
}

// RejectError is a module that is not admitted, with every reason that could
// be found.
type RejectError struct {
	Name    string // the deployment's
	Digest  string
	Reasons []string
}

func (e *RejectError) Error() string {
	if len(e.Reasons) == 1 {
		return fmt.Sprintf("plugin %s is rejected: %s", e.Name, e.Reasons[0])
	}
	return fmt.Sprintf("plugin %s is rejected for %d reasons:\n  - %s",
		e.Name, len(e.Reasons), strings.Join(e.Reasons, "\n  - "))
}

// FrameError is a batch that does not fit the input region. The caller splits
// it; an entry that is too large alone can never be applied.
type FrameError struct {
	Size, Max int
	Entries   int
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("a frame of %d entries takes %d bytes, frame_max is %d", e.Entries, e.Size, e.Max)
}
