package host

import (
	"errors"
	"maps"
	"slices"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/store"
)

// Reasons for the end of work, told by contexts.
var (
	errShutdown  = errors.New("the host is stopping")
	errEnding    = errors.New("the consumer's session ends")
	errHalted    = errors.New("the consumer is halted")
	errMoved     = errors.New("partitions of the session are due to another host")
	errJoined    = errors.New("the session goes on as one with another")
	errRebuilt   = errors.New("the rebuild has ended: the session goes on without a bound")
	errLeaseLost = errors.New("a lease of the session was lost: its partitions are claimed anew")
	errOrphan    = errors.New("the host's instance was removed: its partitions are claimed anew")
	errTooLong   = errors.New("the batches in hand took too long to commit")
)

// after is what follows when a session has ended; of several feeds and lanes
// that end for different reasons, the one with the highest decides.
type after int

const (
	asked      after = iota // it was told to end, and did
	unresolved              // a message's keys cannot be told; a feed is ahead of the lanes, so it counts last
	refused                 // the database refuses some entry's data: smaller batches find which
	failed                  // tried again after a pause
	lost                    // the leases are gone or may be: claimed anew
	halts                   // a message stops the consumer
)

// ending is how a session ended.
type ending struct {
	after after
	err   error       // why; nil if it was asked to
	halt  *store.Halt // of one that halts
	// recorded: the database has the halt.
	recorded bool
	untold   *reader.UnresolvedError // it halts for a message whose keys cannot be told
	// kept: of every batch it is certain whether it was committed, and no lease
	// was found lost, so that work can go on under the same ones.
	kept bool
	// careful is what refused batches tell about where the culprit is, by
	// partition.
	careful map[int]lane.Careful
	rows    map[int64]lane.RefusedRow // and about retries
}

// endingOf tells what an end of a feed or lane means.
func endingOf(c *consumer, err error) ending {
	var (
		halt    *lane.HaltError
		bug     *lane.PanicError
		missing *reader.MissingHistoryError
		untold  *reader.UnresolvedError
		data    *lane.RefusedError
	)
	digest := c.plugin.Module.Digest()
	e := ending{err: err, kept: true}
	switch {
	case errors.As(err, &halt):
		e.after, e.halt, e.recorded = halts, &halt.Halt, halt.Recorded
	case errors.As(err, &bug):
		c.log.Error("panic in the host's own code", "panic", bug.Value, "stack", string(bug.Stack))
		e.after, e.halt = halts, &store.Halt{Reason: store.HaltApplyError, Message: bug.Error(), Digest: digest}
	case errors.As(err, &missing):
		e.after, e.halt = halts, &store.Halt{
			Reason: store.HaltMissingHistory, Message: missing.Error(),
			Topic: missing.Topic, Position: missing.After, Digest: digest,
		}
	case errors.As(err, &untold):
		e.untold = untold
		e.after, e.halt = unresolved, &store.Halt{
			Reason: store.HaltApplyError, Code: int(abi.CodeMalformed), Message: lane.Reason(untold.Error()),
			Topic: untold.Topic, Position: untold.Event.Position,
			EventType: untold.Event.Type, EventID: untold.Event.ID.String(), Digest: digest,
		}
	case errors.As(err, &data):
		e.after = refused
	case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrCheckpointMoved), errors.Is(err, store.ErrRetryMoved), errors.Is(err, store.ErrIncarnation),
		errors.Is(err, lane.ErrLost), errors.Is(err, errOrphan):
		// No error of unknown kind: it may go on for as long as others want the
		// same partitions.
		e.after, e.err = lost, &store.TransientError{Op: "apply " + c.id.String(), Err: err}
	case err == nil, errors.Is(err, errEnding), errors.Is(err, lane.ErrClosed),
		errors.Is(err, errLeaseLost), errors.Is(err, errTooLong):
		e.err = nil
	default:
		e.after = failed
	}
	return e
}

// add weighs one more end.
func (e *ending) add(c *consumer, err error) {
	next := endingOf(c, err)
	next.kept, next.careful, next.rows = e.kept, e.careful, e.rows
	if next.after > e.after {
		*e = next
	}
}

// addLane weighs the end of a lane with these partitions.
func (e *ending) addLane(c *consumer, err error, partitions []int) {
	var halt *lane.HaltError
	var data *lane.RefusedError
	switch {
	case errors.As(err, &data) && len(data.Rows) > 0:
		if e.rows == nil {
			e.rows = make(map[int64]lane.RefusedRow)
		}
		maps.Copy(e.rows, data.Rows)
	case errors.As(err, &data):
		if e.careful == nil {
			e.careful = make(map[int]lane.Careful)
		}
		for _, p := range partitions {
			e.careful[p] = data.Careful
		}
	case !errors.As(err, &halt):
		e.kept = false
	}
	e.add(c, err)
}

// settle says what a message whose keys cannot be told means: the consumer
// halts, once everything before it is applied; if that did not succeed it is
// tried again.
func (e *ending) settle(s *session) {
	if e.after != unresolved {
		return
	}
	t := slices.Index(s.c.topics, e.halt.Topic)
	for _, p := range s.partitions {
		if s.applied(t, p) < e.halt.Position-1 {
			e.after, e.halt, e.untold = failed, nil, nil
			e.err = &store.TransientError{Op: "apply " + s.c.id.String(), Err: errors.New("what comes before an unreadable message is not applied yet")}
			return
		}
	}
	e.after = halts
}

// carefulWith is how careful a lane has to be that begins there with these
// partitions, nil if not at all.
func (c *consumer) carefulWith(partitions []int, start []int64) *lane.Careful {
	var all *lane.Careful
	for _, p := range partitions {
		one, ok := c.careful[p]
		if !ok {
			continue
		}
		if all == nil {
			all = &lane.Careful{Messages: one.Messages, Through: slices.Clone(start)}
		}
		passed := true
		for t, through := range one.Through {
			passed = passed && start[t] >= through
			all.Through[t] = max(all.Through[t], through)
		}
		if passed {
			delete(c.careful, p)
			continue
		}
		all.Messages = min(all.Messages, one.Messages)
		for _, r := range one.Refusals {
			if !slices.Contains(all.Refusals, r) {
				all.Refusals = append(all.Refusals, r)
			}
		}
	}
	return all
}

// refusedMax bounds what is remembered of refused retries. What is forgotten is
// found out again.
const refusedMax = 1000

func (c *consumer) keepRefused(rows map[int64]lane.RefusedRow) {
	if len(c.refused)+len(rows) > refusedMax {
		clear(c.refused)
	}
	maps.Copy(c.refused, rows)
}
