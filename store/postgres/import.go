package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Import implements [store.EventLog]: what is there already is looked up, and
// the rest goes to the server by COPY. If another append comes in between, all of
// it begins anew.
func (s *Store) Import(ctx context.Context, events []store.ImportEvent) (store.ImportResult, error) {
	if err := store.ValidateImport(events, s.maxEvent()); err != nil {
		return store.ImportResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return store.ImportResult{}, err
	}
	if len(events) == 0 {
		return store.ImportResult{}, nil
	}
	e := s.engine
	const op = "import"
	for began, lost := time.Now(), 0; ; lost++ {
		i := &importing{s: s, events: events}
		if err := i.plan(ctx, op); err != nil {
			return store.ImportResult{}, err
		}
		if len(i.rows) == 0 {
			return i.res, nil
		}
		var refused error
		err := e.inFlight(ctx, op, func() (committing bool, err error) {
			committing, err = i.copy(ctx, lost > 0)
			if class, _ := e.Class(err); class == sqlstore.Duplicate {
				refused = err
			}
			return committing, err
		})
		switch {
		case err == nil:
			s.detector.Wake()
			return i.res, nil
		case refused == nil:
			return store.ImportResult{}, err
		case ctx.Err() != nil:
			return store.ImportResult{}, ctx.Err()
		case time.Since(began) > e.timeout:
			return store.ImportResult{}, &store.TransientError{Op: op, Err: refused, Hint: "too many appends to the same streams at once"}
		}
	}
}

type streamKey struct{ typ, id string }

// importing is one try of an import.
type importing struct {
	s       *Store
	events  []store.ImportEvent
	streams []streamKey // in order of their first event
	rows    []importRow
	now     int64
	res     store.ImportResult
}

type importRow struct {
	index    int
	sequence int64
}

// plan decides for each event whether it is stored already, and else its
// sequence.
func (i *importing) plan(ctx context.Context, op string) error {
	place := map[streamKey]int{}
	ids := newArray(oidUUID, len(i.events), 16)
	types, aggregates := newArray(oidText, 16, 16), newArray(oidText, 16, 40)
	for n := range i.events {
		e := &i.events[n]
		ids.addBytes(e.ID[:])
		key := streamKey{e.AggregateType, e.AggregateID}
		if _, ok := place[key]; !ok {
			place[key] = len(i.streams)
			i.streams = append(i.streams, key)
			types.addText(key.typ)
			aggregates.addText(key.id)
		}
	}
	known, versions, now, err := i.s.lookUp(ctx, op, ids, types, aggregates)
	if err != nil {
		return err
	}
	i.now = now
	for n := range i.events {
		e := &i.events[n]
		at := place[streamKey{e.AggregateType, e.AggregateID}]
		if stored := known[e.ID]; stored != nil {
			if err := rules.AlreadyThere(e, n, stored); err != nil {
				return err
			}
			i.res.AlreadyThere++
			i.res.There = append(i.res.There, n)
			i.res.LastPosition = max(i.res.LastPosition, stored.Position)
			continue
		}
		if e.Sequence != 0 && e.Sequence != versions[at]+1 {
			return rules.WrongSequence(e, n, versions[at])
		}
		versions[at]++
		i.rows = append(i.rows, importRow{n, versions[at]})
		i.res.Stored++
		known[e.ID] = i.stored(e, versions[at])
	}
	return nil
}

// stored is an event as it will be, for one that comes again in the same call.
// Its position counts when it is known.
func (i *importing) stored(e *store.ImportEvent, sequence int64) *store.Event {
	out := &store.Event{ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Sequence: sequence,
		Type: e.Type, Data: e.Data, Metadata: e.Metadata, OccurredUS: i.now}
	out.Codec, out.CodecVersion = e.CodecOf()
	if e.HasRevision {
		out.Revision = e.Revision
	}
	if e.HasOccurred {
		out.OccurredUS = e.OccurredUS
	}
	return out
}

func (i *importing) copy(ctx context.Context, queue bool) (committing bool, err error) {
	e := i.s.engine
	begin := append(e.beginFlight(), i.s.beginAppend())
	if queue {
		// Nobody else who lost a race is in the way, and few others are.
		for _, key := range i.streams[:min(len(i.streams), 100)] {
			begin = append(begin, i.s.lockStream(key.typ, key.id))
		}
	}
	last := &statement{sql: "SELECT currval($1::text::regclass)", row: func(v [][]byte) error {
		i.res.LastPosition = max(i.res.LastPosition, int8Of(v[0]))
		return nil
	}}
	last.text(i.s.sequence)
	body := i.encode()
	err = e.with(ctx, func(c *conn) error {
		committing = false
		run, cancel := e.steady(ctx)
		defer cancel()
		failed, err := c.run(run, begin...)
		if failed < len(begin) && codeOf(err) == codeDivision {
			err = behindMark("import", err)
		}
		if err == nil {
			_, err = c.pg.CopyFrom(run, bytes.NewReader(body), i.s.q.copyEvents)
			err = c.fault(run, err)
		}
		if err == nil {
			committing = true
			_, err = c.run(run, last, &statement{sql: "COMMIT"})
		}
		if err != nil {
			c.rollback(run)
		}
		return err
	})
	return committing, err
}

// encode is the data of COPY in binary, in the order of insertColumns.
func (i *importing) encode() []byte {
	size := 32
	for _, r := range i.rows {
		e := &i.events[r.index]
		size += 128 + len(e.AggregateType) + len(e.AggregateID) + len(e.Type) + len(e.Codec) + len(e.Data) + len(e.Metadata)
	}
	b := append(make([]byte, 0, size), "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	int8 := func(v int64) { b = binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(v)) }
	int4 := func(v int32) { b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), uint32(v)) }
	field := func(v []byte) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...) }
	text := func(v string) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...) }
	null := func() { b = append(b, 0xff, 0xff, 0xff, 0xff) }
	for _, r := range i.rows {
		e := &i.events[r.index]
		b = append(b, 0, 13)
		int8(r.sequence)
		if e.HasOccurred {
			int8(e.OccurredUS)
		} else {
			int8(i.now)
		}
		field(e.ID[:])
		int4(int32(store.PartitionOf(e.AggregateID, i.s.Partitions())))
		if e.HasRevision {
			int4(e.Revision)
		} else {
			int4(0)
		}
		codec, version := e.CodecOf()
		int4(version)
		text(e.AggregateType)
		text(e.AggregateID)
		text(e.Type)
		text(codec)
		if codec == store.DefaultCodec {
			field(e.Data)
			null()
		} else {
			null()
			field(e.Data)
		}
		if e.Metadata == nil {
			null()
		} else {
			field(e.Metadata)
		}
	}
	return append(b, 0xff, 0xff)
}
