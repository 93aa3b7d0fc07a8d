package plugins

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
)

// errOutOfTime is the cause of a call's context once the guest has used up its
// wall clock; a caller's own deadline has another cause.
var errOutOfTime = errors.New("the guest ran out of time")

// waitMax is how many times its limit a guest may wait for answers about rows
// on top of it: a slow database is not its fault, asking without end is.
const waitMax = 3

// timeLimit is the one place that knows how a guest is stopped: compiled code
// checks, at loops, whether its module was closed, and the engine closes it
// when the call's context ends. The checks make a trivial call 25 times slower,
// so without a limit they are not compiled in.
type timeLimit time.Duration

func (t timeLimit) configure(c wazero.RuntimeConfig) wazero.RuntimeConfig {
	return c.WithCloseOnContextDone(t > 0)
}

// begin starts the clock of one call. The caller stops it.
func (t timeLimit) begin(ctx context.Context) *callClock {
	if t <= 0 {
		return &callClock{ctx: ctx}
	}
	k := &callClock{limit: time.Duration(t), started: time.Now()}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	k.timer = time.AfterFunc(k.limit, k.expire)
	return k
}

// callClock measures one call. Time spent in the caller's own code, which may
// wait for a database, is allowed for.
type callClock struct {
	ctx     context.Context
	limit   time.Duration // 0: none
	started time.Time
	cancel  context.CancelCauseFunc
	timer   *time.Timer

	since   atomic.Int64 // when the caller's code was entered, after started; 0: it was not
	waited  atomic.Int64 // in the caller's code and not yet allowed for
	allowed time.Duration
}

// enter and leave are called around the caller's code.
func (k *callClock) enter() {
	if k.limit > 0 {
		k.since.Store(max(int64(time.Since(k.started)), 1))
	}
}

func (k *callClock) leave() {
	if k.limit > 0 {
		now := int64(time.Since(k.started))
		k.waited.Add(now - k.since.Swap(0))
	}
}

// expire runs when the limit is reached: the time is up, unless some of it was
// the caller's.
func (k *callClock) expire() {
	extra := time.Duration(k.waited.Swap(0))
	if since := k.since.Load(); since != 0 {
		now := int64(time.Since(k.started))
		if k.since.CompareAndSwap(since, now) {
			extra += time.Duration(now - since)
		}
	}
	extra = min(extra, waitMax*k.limit-k.allowed)
	if extra <= 0 {
		k.cancel(errOutOfTime)
		return
	}
	k.allowed += extra
	k.timer.Reset(extra)
}

// exceeded tells whether it was the guest's own limit that ended the call. Ask
// it before asking about the caller's context.
func (k *callClock) exceeded() bool {
	return k.limit > 0 && context.Cause(k.ctx) == errOutOfTime
}

// stop ends the clock. It tells whether the context had ended by then.
func (k *callClock) stop() (ended bool) {
	if k.limit <= 0 {
		return false
	}
	ended = k.ctx.Err() != nil
	k.timer.Stop()
	k.cancel(nil)
	return ended
}
