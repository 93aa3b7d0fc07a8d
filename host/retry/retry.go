// Package retry decides how long and how often a failed call to the store is
// tried again. Transient failures are tried for ever, with growing pauses and
// in everybody's sight; a failure of a kind nobody knows is tried a few times
// only, so that it cannot hide.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/projhost/projhost/store"
)

// UnknownMax is how often an error of unknown class is tried again.
const UnknownMax = 10

// Policy is the pauses between tries: from Min, doubling, to Max, each up to a
// fifth shorter or longer so that many do not come back at once.
type Policy struct {
	Min, Max time.Duration
}

// Loop is one thing that is tried until it succeeds. Its zero value is not
// usable; it is not safe for concurrent use.
type Loop struct {
	policy   Policy
	retrying func(err error) // told of every failure, and nil once it is over

	tries   int
	unknown int
}

// NewLoop makes a loop. Retrying may be nil.
func (p Policy) NewLoop(retrying func(err error)) *Loop {
	return &Loop{policy: p, retrying: retrying}
}

// ExhaustedError is an error of unknown class that did not go away.
type ExhaustedError struct {
	Tries int
	Err   error
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("tried %d times: %v", e.Tries, e.Err)
}

func (e *ExhaustedError) Unwrap() error { return e.Err }

// Transient tells whether an error says of itself that it may pass.
func Transient(err error) bool {
	var transient *store.TransientError
	return errors.As(err, &transient)
}

// Again pauses after a failure and returns nil to have it tried again. It
// returns ctx's cause when that ends first, and an *ExhaustedError.
func (l *Loop) Again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	pause, err := l.Next(err)
	if err != nil {
		return err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Next is Again without the pause, which it tells.
func (l *Loop) Next(err error) (time.Duration, error) {
	l.tries++
	if !Transient(err) {
		l.unknown++
		if l.unknown > UnknownMax {
			return 0, &ExhaustedError{Tries: l.unknown, Err: err}
		}
	}
	if l.retrying != nil {
		l.retrying(err)
	}
	return l.policy.Pause(l.tries), nil
}

// Done ends a streak of failures.
func (l *Loop) Done() {
	if l.tries == 0 {
		return
	}
	l.tries, l.unknown = 0, 0
	if l.retrying != nil {
		l.retrying(nil)
	}
}

// Pause is how long to wait after so many tries, from 1.
func (p Policy) Pause(tries int) time.Duration {
	pause := p.Max
	if shift := tries - 1; shift < 30 {
		pause = min(p.Max, p.Min<<shift)
	}
	return time.Duration(float64(pause) * (0.8 + 0.4*rand.Float64()))
}
