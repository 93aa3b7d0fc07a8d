package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/projhost/projhost/store"
)

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.wakes.Wait(topic) }

const pageLimitDefault = 1000

// ListTopics implements [store.Topics].
func (s *Store) ListTopics(ctx context.Context) (list []store.Topic, err error) {
	err = s.read(ctx, "list topics", func(c *conn) error {
		r, err := c.query(ctx, s.q.topics)
		if err != nil {
			return err
		}
		for r.next() {
			list = append(list, topicOf(r.vals))
		}
		return r.close()
	})
	return list, err
}

// Topic implements [store.Topics].
func (s *Store) Topic(ctx context.Context, name string) (t store.Topic, err error) {
	err = s.read(ctx, "read topic", func(c *conn) error {
		t, err = s.topic(ctx, c, name)
		return err
	})
	return t, err
}

func (s *Store) topic(ctx context.Context, c *conn, name string) (store.Topic, error) {
	row, err := c.queryRow(ctx, s.q.topic, name)
	if err != nil {
		return store.Topic{}, err
	}
	if row == nil {
		return store.Topic{}, fmt.Errorf("topic %q: %w", name, store.ErrNotFound)
	}
	return topicOf(row), nil
}

func topicOf(row []driver.Value) store.Topic {
	t := store.Topic{Name: row[0].(string), Kind: row[1].(string), Start: row[2].(int64), End: row[3].(int64), HighWaterMark: row[4].(int64), Messages: -1}
	if t.Kind == store.EventsTopic {
		t.Messages = t.End - t.Start // a rolled-back append gives its positions back
	}
	return t
}

// ReadPage implements [store.Topics].
//
// Promise (P4): one snapshot gives the counter and the rows, and a position is
// committed with the counter, so nothing at or below it will ever appear.
func (s *Store) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	if q.After < 0 {
		return store.Page{}, &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("read topic %q: position %d is negative", q.Topic, q.After)}
	}
	if q.Limit <= 0 {
		q.Limit = pageLimitDefault
	}
	seen := s.seen(q.Topic)
	// What was seen before the snapshot cannot be missing in it.
	before, incarnation := seen.Load(), s.Incarnation()
	var page store.Page
	err := s.snapshot(ctx, "read page", func(c *conn) (err error) {
		page, err = s.readPage(ctx, c, q)
		return err
	})
	if err != nil {
		return store.Page{}, err
	}
	if page.End < before {
		// Somebody put an older file in place: restored a backup, for one.
		seen.Store(page.End)
		s.raise()
		incarnation = s.Incarnation()
	}
	for old := seen.Load(); page.End > old && !seen.CompareAndSwap(old, page.End); old = seen.Load() {
	}
	page.Incarnation = incarnation
	return page, nil
}

// seen is the highest end of a topic that this process has read.
func (s *Store) seen(topic string) *atomic.Int64 {
	v, ok := s.seenEnd.Load(topic)
	if !ok {
		v, _ = s.seenEnd.LoadOrStore(topic, new(atomic.Int64))
	}
	return v.(*atomic.Int64)
}

func (s *Store) readPage(ctx context.Context, c *conn, q store.PageQuery) (store.Page, error) {
	t, err := s.topic(ctx, c, q.Topic)
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Topic: q.Topic, From: q.After, To: max(q.After, t.HighWaterMark), End: t.HighWaterMark, Start: t.Start}
	if page.From >= page.End {
		return page, nil
	}
	var r *rows
	switch {
	case q.Partitions == nil:
		r, err = c.query(ctx, s.q.page, q.After, page.End, int64(q.Limit))
	case len(q.Partitions) == 1:
		r, err = c.query(ctx, s.q.pagePart, int64(q.Partitions[0]), q.After, page.End, int64(q.Limit))
	default:
		list := strings.ReplaceAll(fmt.Sprint(q.Partitions), " ", ",") // is JSON
		r, err = c.query(ctx, s.q.pageSome, list, q.After, page.End, int64(q.Limit))
	}
	if err != nil {
		return store.Page{}, err
	}
	size := 0
	page.Events = make([]store.Event, 0, min(int64(q.Limit), page.End-page.From, pageLimitDefault))
	for r.next() {
		page.Events = append(page.Events, store.Event{})
		e := &page.Events[len(page.Events)-1]
		if r.err = s.readEvent(c, r, e); r.err != nil {
			break
		}
		size += len(e.Data) + len(e.Metadata)
		if q.MaxBytes > 0 && size > q.MaxBytes && len(page.Events) > 1 {
			page.Events = page.Events[:len(page.Events)-1]
			page.To = page.Events[len(page.Events)-1].Position
			break
		}
	}
	if err := r.close(); err != nil {
		return store.Page{}, err
	}
	if len(page.Events) == q.Limit {
		page.To = page.Events[q.Limit-1].Position
	}
	return page, nil
}

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context) error {
	if err := s.snapshot(ctx, "check", s.checkSchema); err != nil {
		return fmt.Errorf("check %s: %w", s.opt.DSN, err)
	}
	// An empty transaction takes the write lock and touches no page.
	if err := s.write(ctx, "check", 0, func(*tx) error { return nil }); err != nil {
		return fmt.Errorf("check %s: %w", s.opt.DSN, err)
	}
	if err := s.points.failed(); err != nil {
		// The next one may be a long way off on a quiet host.
		s.points.wake()
		return fmt.Errorf("check %s: %w", s.opt.DSN, err)
	}
	return nil
}
