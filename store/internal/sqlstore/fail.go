package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/projhost/projhost/store"
)

// ErrRace is a transaction that found something else than it had read a moment
// before. It is rolled back and begun anew.
var ErrRace = errors.New("another transaction was first")

// LockLost is the hint of an [Engine].Lock that did not last until its release.
const LockLost = "the lock was lost with its connection before the work was done: it is repeated at the next start"

// How often and how patiently the database is asked again for what it gave up:
// all waits together take some two seconds, and what took long to fail, a lock
// that was not had in time, is left to the caller.
const (
	attemptsMax = 10
	firstWait   = 4 * time.Millisecond
	againMax    = 5 * time.Second
)

// Again runs attempt until it succeeds or fails with what another attempt
// cannot mend, but only a few times, waiting a little in between: how
// [Engine].Write repeats what the database gave up. attempt returns errors in
// any form.
func Again(ctx context.Context, e Engine, attempt func() error) error {
	began := time.Now()
	for n := 0; ; n++ {
		err := attempt()
		if err == nil || n == attemptsMax-1 || time.Since(began) > againMax {
			return err
		}
		if class, _ := e.Class(err); class != Retry && !errors.Is(err, ErrRace) {
			return err
		}
		// Those who met must not meet again.
		wait := firstWait << n
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// Fail gives an error of a call its final form: errors that callers act on and
// ctx's stay what they are, an error of the database becomes a
// [*store.TransientError]; committing says that COMMIT was sent, so that its
// outcome is unknown unless the database answered it.
func Fail(e Engine, op string, committing bool, err error) error {
	var data *store.DataError
	var transient *store.TransientError
	if err == nil || errors.As(err, &transient) || errors.As(err, &data) {
		return err
	}
	class, hint := e.Class(err)
	if committing && (class == Lost || class == Unknown) {
		return &store.TransientError{Op: op, Hint: hint, OutcomeUnknown: true, Err: err}
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, ErrRace), class == Lost, class == Retry, class == Unavailable:
		return &store.TransientError{Op: op, Hint: hint, Err: err}
	case class == Data, class == Duplicate, class == Unlisted:
		return fmt.Errorf("%s: %w", op, err)
	}
	return err
}

// Payload gives the columns data and data_bytes of a payload, one of them nil:
// JSON is text, so that SQL clients can read it.
func Payload(codec string, data []byte) (text, bytes any) {
	switch {
	case codec == store.DefaultCodec:
		return string(data), nil
	case data == nil:
		return nil, []byte{}
	}
	return nil, data
}
