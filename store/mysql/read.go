package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"math"

	"github.com/projhost/projhost/store"
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

// readPage reads a page in one statement where it can.
//
// Promise (P4): what is in a page's range is in the page. It would hold by itself
// if a statement saw one moment. MariaDB makes a statement's view from its list of
// open transactions while these end: it can see a commit and miss an earlier one
// that this had waited for. So the counter may be seen without all events up to
// it. But a view that is made after the counter was seen has them all. Hence
// events that came with the counter have to follow each other without a gap, as
// positions do; what is missing is asked for again, and so is a partition, where a
// gap cannot be told.
//
// A page with a limit of bytes is read in pieces of about as many rows as events
// usually fill.
func (s *Store) readPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	p := pageRead{s: s, q: q, page: store.Page{Topic: q.Topic, From: q.After, To: -1, End: -1}, after: q.After}
	if q.Partition >= 0 {
		err := s.engine.read(ctx, "read page", func(se *session) error {
			return se.scan(ctx, s.q.end, []any{q.Topic}, func(vals []driver.Value) error {
				p.page.End = vals[0].(int64)
				return nil
			}, nil)
		})
		if err != nil {
			return p.page, err
		}
	}
	for p.page.To < 0 {
		// Each on a connection of its own: what was not wanted of an answer may
		// have cost one.
		err := s.engine.read(ctx, "read page", func(se *session) error { return p.piece(ctx, se) })
		if err != nil {
			return p.page, err
		}
	}
	if n := len(p.page.Events); n > 0 {
		s.row.Store(int64(p.size/n) + 1)
	}
	return p.page, nil
}

// pageRead is a page that is being read.
type pageRead struct {
	s     *Store
	q     store.PageQuery
	page  store.Page // End < 0: not known yet; To < 0: goes on
	after int64      // of the last event
	size  int        // of the payloads
}

func (p *pageRead) piece(ctx context.Context, se *session) error {
	q, first := &p.q, p.page.End < 0
	want := q.Limit - len(p.page.Events)
	if usual := int(p.s.row.Load()); q.MaxBytes > 0 && usual > 0 {
		want = min(want, (q.MaxBytes-p.size)/usual*5/4+16)
	}
	limit := p.page.End
	if first {
		limit = math.MaxInt64
	}
	rows, full, gap, end := 0, false, false, int64(-1)
	each := func(vals []driver.Value) error {
		p.page.Start, end = vals[eventColumnCount].(int64), vals[eventColumnCount+1].(int64)
		position, ok := vals[0].(int64)
		if !ok {
			return nil // nothing but the topic's row
		}
		if first && position != max(p.after, p.page.Start)+1 {
			gap = true
			return errStop
		}
		rows++
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
	}
	cut := func() bool { return want-rows > drainMax }
	var err error
	if q.Partition < 0 {
		err = se.scan(ctx, p.s.q.page, []any{p.after, limit, q.Topic, int64(want)}, each, cut)
	} else {
		err = se.scan(ctx, p.s.q.pagePart, []any{int64(q.Partition), p.after, limit, q.Topic, int64(want)}, each, cut)
	}
	switch {
	case err != nil:
		return err
	case end < 0:
		return fmt.Errorf("topic %q: %w", q.Topic, store.ErrNotFound)
	case first:
		p.page.End = end
	}
	switch {
	case full || len(p.page.Events) == q.Limit:
		p.page.To = p.after
	case rows < want && !gap && (!first || max(p.after, p.page.Start) >= end):
		p.page.To = max(q.After, p.page.End)
	}
	return nil
}
