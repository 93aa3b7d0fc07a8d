package api

import (
	"context"

	"github.com/projhost/projhost/store"
)

// A page ends with its limit, or with the item that brings it to pageBytes: how
// many items fit into memory is not for their number to say.
const pageBytes = 4 << 20

// pacer reads a page in steps. The first tells how large items are, so that
// small ones take few steps, and large ones little memory.
type pacer struct {
	left  int // items that may still come
	count int
	bytes int
}

const (
	firstStep  = 16
	stepGrowth = 8 // an item may be larger than those before it
)

// step is how many items to ask for next; 0 when the page is complete.
func (p *pacer) step() int {
	switch {
	case p.bytes >= pageBytes:
		return 0
	case p.count == 0:
		return min(p.left, firstStep)
	}
	fit := (pageBytes-p.bytes)/(p.bytes/p.count+1) + 1
	return min(p.left, fit, stepGrowth*p.count)
}

func (p *pacer) took(items, bytes int) {
	p.left -= items
	p.count += items
	p.bytes += bytes
}

// itemBytes is what an item takes beside its own text, about.
const itemBytes = 256

func rowsBytes(rows []store.StoredRow) (n int) {
	for i := range rows {
		n += itemBytes + len(rows[i].Row) + len(rows[i].Key.Key) + len(rows[i].Child)
	}
	return n
}

// pageOf reads a page of a query, and the cursor of what follows.
func pageOf(ctx context.Context, v store.ReadView, table string, q store.Query) (rows []store.StoredRow, next string, err error) {
	p := pacer{left: q.Limit}
	for n := p.step(); n > 0; n = p.step() {
		q.Limit = n
		var part []store.StoredRow
		if part, next, err = v.Query(ctx, table, q); err != nil {
			return nil, "", err
		}
		rows = append(rows, part...)
		if next == "" {
			break
		}
		p.took(len(part), rowsBytes(part))
		q.After, q.AfterKey = next, ""
	}
	return rows, next, nil
}

// childrenOf reads a page of the children of a key behind one of them; next is
// the last of the page if more follow.
func childrenOf(ctx context.Context, v store.ReadView, table, key, after string, limit int) (rows []store.StoredRow, next string, err error) {
	p := pacer{left: limit}
	for n := p.step(); n > 0; n = p.step() {
		// One more than asked for tells whether there is more.
		part, err := v.Children(ctx, table, key, after, n+1)
		if err != nil {
			return nil, "", err
		}
		if len(part) <= n {
			return append(rows, part...), "", nil
		}
		part = part[:n]
		rows = append(rows, part...)
		p.took(n, rowsBytes(part))
		after = part[n-1].Child
	}
	return rows, after, nil
}

// eventsOf reads a page of a stream; next is the sequence of what follows, 0 if
// nothing does.
func (s *Server) eventsOf(ctx context.Context, aggregateType, id string, from int64, limit int) (events []store.Event, next int64, err error) {
	p := pacer{left: limit}
	for n := p.step(); n > 0; n = p.step() {
		part, err := s.deps.Store.ReadStream(ctx, aggregateType, id, from, n+1)
		if err != nil {
			return nil, 0, err
		}
		if len(part) <= n {
			return append(events, part...), 0, nil
		}
		next = part[n].Sequence
		part = part[:n]
		events = append(events, part...)
		bytes := 0
		for i := range part {
			bytes += itemBytes + len(part[i].Data) + len(part[i].Metadata)
		}
		p.took(n, bytes)
		from = next
	}
	return events, next, nil
}
