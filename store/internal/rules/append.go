package rules

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/projhost/projhost/store"
)

// EventIDs returns the id of every event of the commit in order, made where
// none was given: once, so that a commit that runs twice keeps them.
func EventIDs(c *store.Commit) ([]store.ID, error) {
	n := 0
	for i := range c.Streams {
		n += len(c.Streams[i].Events)
	}
	ids := make([]store.ID, 0, n)
	for i := range c.Streams {
		for j := range c.Streams[i].Events {
			e := &c.Streams[i].Events[j]
			id := e.ID
			if !e.HasID {
				v7, err := uuid.NewV7()
				if err != nil {
					return nil, fmt.Errorf("make event id: %w", err)
				}
				id = store.ID(v7)
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Known looks a stored event up by its id; nil if there is none.
type Known func(id store.ID) (*store.Event, error)

// Replay answers an append whose first event is stored: with the original
// answer if all of it is stored just so, else with a [*store.DuplicateEventError]
// for the event that differs. ids are the events' own, index the place of the
// first in the whole call.
func Replay(st *store.StreamAppend, ids []store.ID, index int, first *store.Event, known Known) (store.StreamResult, error) {
	res := store.StreamResult{AggregateType: st.AggregateType, AggregateID: st.AggregateID, IDs: ids, Replayed: true, FirstPosition: first.Position}
	last := first
	for j := range st.Events {
		e := &st.Events[j]
		if j > 0 {
			last = nil
			if e.HasID {
				var err error
				if last, err = known(ids[j]); err != nil {
					return res, err
				}
			}
		}
		why := ""
		switch {
		case last == nil:
			return res, duplicateOf(first, index, "the append's other events are not all stored with it")
		case last.AggregateType != st.AggregateType || last.AggregateID != st.AggregateID:
			why = "it belongs to another stream"
		case last.Sequence != first.Sequence+int64(j):
			why = "the append's events are not stored one after the other"
		default:
			if member := e.Differs(last); member != "" {
				why = "its " + member + " differs"
			}
		}
		if why != "" {
			return res, duplicateOf(last, index+j, why)
		}
	}
	res.Version, res.LastPosition = last.Sequence, last.Position
	return res, nil
}

// RefuseKnown finds an event of an append, whose first event is not stored,
// that is stored already; nil if there is none.
func RefuseKnown(st *store.StreamAppend, ids []store.ID, index int, known Known) error {
	for j := range st.Events {
		e := &st.Events[j]
		if !e.HasID {
			continue
		}
		stored, err := known(ids[j])
		if err != nil {
			return err
		}
		if stored != nil {
			return Duplicate(stored, index+j, st, e)
		}
	}
	return nil
}

// Duplicate describes a stored event that the append as a whole does not repeat.
func Duplicate(stored *store.Event, index int, st *store.StreamAppend, e *store.NewEvent) error {
	why := "the append's other events are not stored with it"
	if stored.AggregateType != st.AggregateType || stored.AggregateID != st.AggregateID {
		why = "it belongs to another stream"
	} else if member := e.Differs(stored); member != "" {
		why = "its " + member + " differs"
	}
	return duplicateOf(stored, index, why)
}

func duplicateOf(known *store.Event, index int, why string) error {
	return &store.DuplicateEventError{ID: known.ID, Index: index, AggregateType: known.AggregateType,
		AggregateID: known.AggregateID, Position: known.Position, Reason: why}
}

// AlreadyThere checks an imported event against the stored one of its id.
func AlreadyThere(e *store.ImportEvent, index int, stored *store.Event) error {
	if stored.AggregateType != e.AggregateType || stored.AggregateID != e.AggregateID {
		return duplicateOf(stored, index, "it belongs to another stream")
	}
	if member := e.Differs(stored); member != "" {
		return duplicateOf(stored, index, "its "+member+" differs")
	}
	if e.Sequence != 0 && e.Sequence != stored.Sequence {
		return &store.InvalidError{Code: "bad_request", Index: index,
			Reason: fmt.Sprintf("sequence %d of stream %s/%s: event %s is stored with sequence %d", e.Sequence, e.AggregateType, e.AggregateID, e.ID, stored.Sequence)}
	}
	return nil
}

// WrongSequence is an imported event whose given sequence is not its stream's
// next.
func WrongSequence(e *store.ImportEvent, index int, version int64) error {
	return &store.InvalidError{Code: "bad_request", Index: index,
		Reason: fmt.Sprintf("sequence %d of stream %s/%s: the stream has %d events, the next is %d", e.Sequence, e.AggregateType, e.AggregateID, version, version+1)}
}
