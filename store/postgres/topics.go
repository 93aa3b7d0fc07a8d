package postgres

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

const pageLimitDefault = 1000

// ListTopics implements [store.Topics].
func (s *Store) ListTopics(ctx context.Context) ([]store.Topic, error) {
	return s.readTopics(ctx, "list topics", &statement{sql: s.q.topics})
}

// Topic implements [store.Topics].
func (s *Store) Topic(ctx context.Context, name string) (store.Topic, error) {
	st := &statement{sql: s.q.topic}
	st.text(name)
	list, err := s.readTopics(ctx, "read topic", st)
	switch {
	case err != nil:
		return store.Topic{}, err
	case len(list) == 0:
		return store.Topic{}, unknownTopic(name)
	}
	return list[0], nil
}

func unknownTopic(name string) error { return fmt.Errorf("topic %q: %w", name, store.ErrNotFound) }

func (s *Store) readTopics(ctx context.Context, op string, st *statement) (list []store.Topic, err error) {
	err = s.flight(ctx, op, func(*conn) []*statement {
		list = nil
		st.row = func(v [][]byte) error {
			t := store.Topic{Name: string(v[0]), Kind: string(v[1]), Start: int8Of(v[2]), HighWaterMark: int8Of(v[3]), Messages: -1}
			// Other transactions may have moved both since the row was read.
			t.End = max(t.HighWaterMark, int8Of(v[4]))
			if t.Name == store.EventsTopic {
				st := s.detector.State()
				if t.Holder = st.Holder; st.Err != nil {
					t.Reason = st.Err.Error()
				}
			}
			list = append(list, t)
			return nil
		}
		return []*statement{st}
	})
	return list, err
}

// ReadPage implements [store.Topics].
//
// Promise (P4): one statement, hence one snapshot, gives the persisted mark and
// the rows up to it, and everything up to it had ended before it was persisted.
func (s *Store) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	if q.After < 0 {
		return store.Page{}, &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("read topic %q: position %d is negative", q.Topic, q.After)}
	}
	if q.Limit <= 0 {
		q.Limit = pageLimitDefault
	}
	look := s.Look(q.Topic)
	st := s.pageStatement(&q)
	var page store.Page
	found := false
	size, seen := 0, 0
	err := s.flight(ctx, "read page", func(c *conn) []*statement {
		page, found = store.Page{Topic: q.Topic, From: q.After}, false
		size, seen = 0, 0
		full := false
		st.row = func(v [][]byte) error {
			if !found {
				found = true
				page.Start, page.End = int8Of(v[0]), int8Of(v[1])
				page.To = max(page.From, page.End)
			}
			if v = v[2:]; v[0] == nil {
				return nil
			}
			seen++
			if full {
				size += len(v[10]) + len(v[11]) + len(v[12])
				return nil
			}
			if page.Events == nil {
				page.Events = make([]store.Event, 0, min(int64(q.Limit), page.End-page.From, pageLimitDefault))
			}
			page.Events = append(page.Events, store.Event{})
			e := &page.Events[len(page.Events)-1]
			if err := s.readEvent(c, v, e); err != nil {
				return err
			}
			n := len(page.Events)
			if n > 1 && e.Position <= page.Events[n-2].Position {
				return fmt.Errorf("read page: the server gave position %d after %d", e.Position, page.Events[n-2].Position)
			}
			size += len(e.Data) + len(e.Metadata)
			if q.MaxBytes > 0 && size > q.MaxBytes && n > 1 {
				page.Events = page.Events[:n-1]
				page.To = page.Events[n-2].Position
				full = true
			}
			return nil
		}
		return []*statement{st}
	})
	switch {
	case err != nil:
		return store.Page{}, err
	case !found:
		return store.Page{}, unknownTopic(q.Topic)
	}
	if n := len(page.Events); n > 0 {
		s.eventSize.Store(max(1, int64(size/seen), s.eventSize.Load()*7/8))
	}
	if n := len(page.Events); n == q.Limit {
		page.To = page.Events[n-1].Position
	}
	page.Incarnation = look.Saw(page.End)
	return page, nil
}

func (s *Store) pageStatement(q *store.PageQuery) *statement {
	// The server adds sizes up only where a page may well pass its bound: that
	// costs a tenth of reading. Events larger than those of late by far come
	// along once, and are left out here.
	size := s.eventSize.Load()
	fit := q.MaxBytes > 0 && (size == 0 || size*int64(q.Limit) > int64(q.MaxBytes)/4)
	plain, fitting := s.q.page, s.q.pageFit
	switch {
	case q.Partitions == nil:
	case len(q.Partitions) == 1:
		plain, fitting = s.q.pagePart, s.q.partFit
	default:
		plain, fitting = s.q.pageSome, s.q.someFit
	}
	st := &statement{sql: plain}
	st.text(q.Topic)
	st.int8(q.After)
	st.int8(int64(q.Limit))
	if fit {
		st.sql = fitting
		st.int8(int64(q.MaxBytes))
	}
	switch {
	case q.Partitions == nil:
	case len(q.Partitions) == 1:
		st.int4(q.Partitions[0])
	default:
		st.bytes(rules.PartitionBits(q.Partitions, s.Partitions()))
	}
	return st
}

// ReadStream implements [store.EventLog].
func (s *Store) ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) (list []store.Event, err error) {
	if limit <= 0 {
		limit = pageLimitDefault
	}
	st := &statement{sql: s.q.stream}
	st.text(aggregateType)
	st.text(aggregateID)
	st.int8(from)
	st.int8(int64(limit))
	err = s.flight(ctx, "read stream", func(c *conn) []*statement {
		list = nil
		st.row = func(v [][]byte) error {
			list = append(list, store.Event{})
			return s.readEvent(c, v, &list[len(list)-1])
		}
		return []*statement{st}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// scanEvent reads the row of an eventColumns query. An event's id, data and
// metadata share memory.
func (s *Store) scanEvent(c *conn, v [][]byte, e *store.Event) error {
	if len(v[3]) != len(e.ID) {
		return fmt.Errorf("the id of the event at position %d is no UUID", int8Of(v[0]))
	}
	e.Position, e.Sequence, e.OccurredUS = int8Of(v[0]), int8Of(v[1]), int8Of(v[2])
	copy(e.ID[:], v[3])
	e.Revision, e.CodecVersion = int4Of(v[4]), int4Of(v[5])
	e.AggregateType, e.Type, e.Codec = c.intern(v[6]), c.intern(v[8]), c.intern(v[9])
	data := v[10]
	if data == nil {
		data = v[11]
	}
	id, n := len(v[7]), len(v[7])+len(data)
	all := make([]byte, 0, n+len(v[12]))
	all = append(append(append(all, v[7]...), data...), v[12]...)
	e.AggregateID = viewOf(all[:id:id])
	e.Data = all[id:n:n]
	if v[12] != nil {
		e.Metadata = all[n:]
	}
	e.Partition = store.PartitionOf(e.AggregateID, s.Partitions())
	return nil
}

// readEvent is scanEvent for readers: it refuses what this program cannot tell
// the meaning of.
func (s *Store) readEvent(c *conn, v [][]byte, e *store.Event) error {
	if err := s.scanEvent(c, v, e); err != nil {
		return err
	}
	if e.Codec == store.DefaultCodec && e.CodecVersion == store.DefaultCodecVersion {
		return nil
	}
	if why := store.CheckStoredCodec(e.Codec, e.CodecVersion); why != "" {
		return fmt.Errorf("event %s at position %d: %s: a newer projhost may have stored it", e.ID, e.Position, why)
	}
	return nil
}

// viewOf gives bytes as a string without copying them: they never change.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
