package storetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// id makes the n-th id of a test. The low bytes differ first, so neighbours
// are no neighbours in an index.
func id(n int) store.ID {
	var i store.ID
	binary.LittleEndian.PutUint64(i[:], uint64(n)+1)
	i[6], i[8] = i[6]|0x70, i[8]|0x80
	return i
}

// event makes an event of a type with small data and without an id.
func event(typ string) store.NewEvent {
	return store.NewEvent{Type: typ, Data: []byte(`{"n":1}`)}
}

// eventN makes an event whose members are all given, by n.
func eventN(n int) store.NewEvent {
	return store.NewEvent{
		ID: id(n), HasID: true, Type: "Counted", Revision: 2, HasRevision: true,
		Data: fmt.Appendf(nil, `{"n":%d}`, n), Metadata: fmt.Appendf(nil, `{"actor":%d}`, n),
		OccurredUS: 1_700_000_000_000_000 + int64(n), HasOccurred: true,
	}
}

func events(from, to int) []store.NewEvent {
	var list []store.NewEvent
	for n := from; n < to; n++ {
		list = append(list, eventN(n))
	}
	return list
}

func appendTo(typ, aggregate string, expected int64, events ...store.NewEvent) store.Commit {
	return store.Commit{Streams: []store.StreamAppend{{AggregateType: typ, AggregateID: aggregate, ExpectedVersion: expected, Events: events}}}
}

// append appends to one stream and expects success.
func (d *db) append(typ, aggregate string, expected int64, events ...store.NewEvent) store.StreamResult {
	d.t.Helper()
	res, err := d.Commit(d.ctx(), appendTo(typ, aggregate, expected, events...))
	require.NoError(d.t, err)
	require.Len(d.t, res.Streams, 1)
	return res.Streams[0]
}

// stream reads all of a stream.
func (d *db) stream(typ, aggregate string) []store.Event {
	d.t.Helper()
	list, err := d.ReadStream(d.ctx(), typ, aggregate, 1, 1_000_000)
	require.NoError(d.t, err)
	return list
}

// all reads the whole events topic, page by page.
func (d *db) all() []store.Event {
	d.t.Helper()
	list, err := readAll(d.ctx(), d, store.PageQuery{Limit: 100})
	require.NoError(d.t, err)
	return list
}

// readAll reads the events topic as q says, up to the end it has at the start.
// An engine may hold the high-water mark back for a moment: that is waited for.
func readAll(ctx context.Context, s store.Topics, q store.PageQuery) ([]store.Event, error) {
	q.Topic = store.EventsTopic
	topic, err := s.Topic(ctx, q.Topic)
	if err != nil {
		return nil, err
	}
	var list []store.Event
	for q.After < topic.End {
		wake := s.Wake(q.Topic)
		p, err := s.ReadPage(ctx, q)
		if err != nil {
			return nil, err
		}
		if p.From == p.To {
			select {
			case <-wake:
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		list = append(list, p.Events...)
		q.After = p.To
	}
	return list, nil
}

// end is the events topic's end.
func (d *db) end() int64 {
	d.t.Helper()
	topic, err := d.Topic(d.ctx(), store.EventsTopic)
	require.NoError(d.t, err)
	return topic.End
}

// requireEmpty checks that nothing at all was stored.
func (d *db) requireEmpty() {
	d.t.Helper()
	require.Empty(d.t, d.all(), "events were stored")
}

// requireInvalid checks for a refusal with a code and a place, -1 for none.
func requireInvalid(t require.TestingT, err error, code string, index int) {
	var invalid *store.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, code, invalid.Code, invalid.Reason)
	require.Equal(t, index, invalid.Index, invalid.Reason)
	require.NotEmpty(t, invalid.Reason)
}

func requireDuplicate(t require.TestingT, err error, want store.DuplicateEventError, reason string) {
	var dup *store.DuplicateEventError
	require.ErrorAs(t, err, &dup)
	require.Contains(t, dup.Reason, reason)
	want.Reason = dup.Reason
	require.Equal(t, want, *dup)
}

// long is a text of n times a character.
func long(char string, n int) string { return strings.Repeat(char, n) }
