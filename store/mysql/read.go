package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// pageLimitDefault is the length of a page or list whose limit was left open.
const pageLimitDefault = 1000

// ReadStream implements [store.EventLog].
func (s *Store) ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) (list []store.Event, err error) {
	if limit <= 0 {
		limit = pageLimitDefault
	}
	err = s.engine.read(ctx, "read stream", func(se *session) error {
		list = nil
		return se.scan(ctx, s.q.stream, []any{aggregateType, aggregateID, from, int64(limit)}, func(vals []driver.Value) error {
			var e store.Event
			err := s.readEvent(vals, &e)
			list = append(list, e)
			return err
		}, nil)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ReadPage implements [store.Topics].
func (s *Store) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	if q.After < 0 {
		return store.Page{}, &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("read topic %q: position %d is negative", q.Topic, q.After)}
	}
	if q.Limit <= 0 {
		q.Limit = pageLimitDefault
	}
	look := s.Look(q.Topic)
	page, err := s.readPage(ctx, q)
	if err != nil {
		return store.Page{}, err
	}
	page.Incarnation = look.Saw(page.End)
	return page, nil
}

// Of an answer that is not wanted to its end, this many rows at most are read for
// nothing before the connection is given up instead.
const drainMax = 64

// readPage reads the counter and then the events up to it.
//
// Promise (P4): what is in a page's range is in the page. One statement for both
// would not keep it: MariaDB makes a statement's view from its list of open
// transactions while these end, so it can see a commit and miss an earlier one
// that this had waited for (measured: 3 of 22,139 reads beside 24 writers). A view
// that is made after the counter was seen has all events up to it.
//
// A page with a limit of bytes is read in pieces of about as many rows as events
// usually fill.
func (s *Store) readPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	p := pageRead{s: s, q: q, page: store.Page{Topic: q.Topic, From: q.After, To: -1}, after: q.After}
	err := s.engine.read(ctx, "read page", func(se *session) error { return p.topic(ctx, se) })
	if err == nil && q.After >= p.page.End {
		p.page.To = q.After
	}
	for err == nil && p.page.To < 0 {
		// Each on a connection of its own: what was not wanted of an answer may
		// have cost one.
		err = s.engine.read(ctx, "read page", func(se *session) error { return p.piece(ctx, se) })
	}
	if n := len(p.page.Events); n > 0 {
		s.row.Store(int64(p.size/n) + 1)
	}
	return p.page, err
}

// pageRead is a page that is being read.
type pageRead struct {
	s     *Store
	q     store.PageQuery
	page  store.Page // To < 0: goes on
	after int64      // of the last event
	size  int        // of the payloads
}

// topic reads the topic's row.
func (p *pageRead) topic(ctx context.Context, se *session) error {
	found := false
	err := se.scan(ctx, p.s.q.end, []any{p.q.Topic}, func(vals []driver.Value) error {
		p.page.Start = vals[0].(int64)
		if p.page.End == 0 {
			p.page.End = vals[1].(int64)
		}
		found = true
		return nil
	}, nil)
	if err == nil && !found {
		err = fmt.Errorf("topic %q: %w", p.q.Topic, store.ErrNotFound)
	}
	return err
}

func (p *pageRead) piece(ctx context.Context, se *session) error {
	q := &p.q
	want := q.Limit - len(p.page.Events)
	if usual := int(p.s.row.Load()); q.MaxBytes > 0 && usual > 0 {
		want = min(want, (q.MaxBytes-p.size)/usual*5/4+16)
	}
	text, args := p.s.q.page, []any{p.after, p.page.End, q.Topic, int64(want)}
	switch {
	case q.Partitions == nil:
	case len(q.Partitions) == 1:
		text, args = p.s.q.pagePart, append([]any{int64(q.Partitions[0])}, args...)
	default:
		text, args = p.s.q.pageSome, append([]any{rules.PartitionBits(q.Partitions, p.s.Partitions())}, args...)
	}
	rows, full := 0, false
	err := se.scan(ctx, text, args, func(vals []driver.Value) error {
		rows++
		p.page.Start = vals[eventColumnCount].(int64)
		var e store.Event
		if err := p.s.readEvent(vals, &e); err != nil {
			return err
		}
		size := p.size + len(e.Data) + len(e.Metadata)
		if q.MaxBytes > 0 && size > q.MaxBytes && len(p.page.Events) > 0 {
			full = true
			return errStop
		}
		p.page.Events = append(p.page.Events, e)
		p.size, p.after = size, e.Position
		return nil
	}, func() bool { return want-rows > drainMax })
	switch {
	case err != nil:
		return err
	case full || len(p.page.Events) == q.Limit:
		p.page.To = p.after
	case rows < want:
		p.page.To = p.page.End
	}
	if rows == 0 {
		// What was there may have been deleted since the start was read (H11).
		return p.topic(ctx, se)
	}
	return nil
}
