package plugins

import (
	"context"
	"errors"
	"time"

	"github.com/tetratelabs/wazero"
)

// errOutOfTime is the cause of a call's context once the guest has used up its
// wall clock; a caller's own deadline has another cause.
var errOutOfTime = errors.New("the guest ran out of time")

// timeLimit is the one place that knows how a guest is stopped: compiled code
// checks, at loops and calls, whether its module was closed, and the engine
// closes it when the call's context ends. The checks make a trivial call 25
// times slower, so without a limit they are not compiled in.
type timeLimit time.Duration

func (t timeLimit) configure(c wazero.RuntimeConfig) wazero.RuntimeConfig {
	return c.WithCloseOnContextDone(t > 0)
}

// begin starts the clock of one call. The caller ends it by the function.
func (t timeLimit) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if t <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, time.Duration(t), errOutOfTime)
}

// exceeded tells whether it was the guest's own limit that ended the call. Ask
// it before asking about the caller's context.
func (t timeLimit) exceeded(ctx context.Context) bool {
	return t > 0 && context.Cause(ctx) == errOutOfTime
}
