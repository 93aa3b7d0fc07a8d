package projhost

import (
	"errors"
	"runtime"
	"strconv"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// Ignore is what a handler returns when a message changes nothing after all:
// writes it made are dropped.
var Ignore error = &abort{status: abi.StatusIgnored, reason: "ignored"}

// Reject is for a message that can never be applied, because of what it says.
// The host halts the projection, or does what its operator chose for such
// messages. Any other error of a handler counts as Reject with its text: the
// same message would fail the same way again.
func Reject(reason string) error { return &abort{abi.StatusReject, reason} }

// Fatal halts the projection, whatever the operator chose for rejected messages.
func Fatal(reason string) error { return &abort{abi.StatusFatal, reason} }

// Retry asks for the message again later. A handler that depends on nothing but
// its message and rows has no reason to.
func Retry(reason string) error { return &abort{abi.StatusRetry, reason} }

// abort is a handler's end other than success. Deep inside it is thrown by
// panic and caught where the entry began.
type abort struct {
	status abi.Status
	reason string
}

func (a *abort) Error() string { return a.reason }

func statusOf(err error) (abi.Status, string) {
	var a *abort
	if errors.As(err, &a) {
		if err == error(a) {
			return a.status, a.reason
		}
		return a.status, err.Error()
	}
	return abi.StatusReject, err.Error()
}

// reportPanic tells the host what a handler panicked with and where, then traps.
// The host restores the instance: nothing of the broken state is used again.
func reportPanic() {
	cause := recover()
	if cause == nil {
		return
	}
	reportCause(cause)
}

func reportCause(cause any) {
	bridge.Fail(int32(abi.CodeTrap), "panic: "+panicText(cause)+panicPlace())
	bridge.Trap(cause)
}

func panicText(cause any) string {
	switch v := cause.(type) {
	case error:
		return v.Error()
	case string:
		return v
	case interface{ String() string }:
		return v.String()
	case int:
		return strconv.Itoa(v)
	}
	return "a value of a type without text"
}

// panicPlace is the line that panicked: the first below the runtime's own.
func panicPlace() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	panicked := false
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, "runtime.") {
			panicked = panicked || strings.HasSuffix(frame.Function, "panic") || strings.HasSuffix(frame.Function, "panicmem")
		} else if panicked {
			return " at " + shortPath(frame.File) + ":" + strconv.Itoa(frame.Line)
		}
		if !more {
			return ""
		}
	}
}

// shortPath keeps a file's name and folder: enough to find it, whatever the
// build machine's paths are.
func shortPath(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i > 0 {
		i = strings.LastIndexByte(path[:i], '/')
	}
	return path[i+1:]
}
