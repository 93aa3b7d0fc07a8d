package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Commit implements [store.EventLog].
//
// It first inserts under the versions the caller expects, in one flight. Only
// when the database refuses that, ids and versions are looked up and it is
// decided what the refusal means.
func (s *Store) Commit(ctx context.Context, c store.Commit) (store.CommitResult, error) {
	if err := c.Validate(s.maxEvent()); err != nil {
		return store.CommitResult{}, err
	}
	ids, err := rules.EventIDs(&c)
	if err != nil {
		return store.CommitResult{}, err
	}
	a := &appending{s: s, c: &c, ids: ids, results: make([]store.StreamResult, len(c.Streams))}
	index := 0
	for i := range c.Streams {
		a.first = append(a.first, index)
		index += len(c.Streams[i].Events)
		a.pending = append(a.pending, i)
	}
	// In one order everywhere, so that two commits of the same streams wait for
	// each other and do not deadlock.
	slices.SortFunc(a.pending, func(i, j int) int {
		x, y := &c.Streams[i], &c.Streams[j]
		return cmp.Or(cmp.Compare(x.AggregateType, y.AggregateType), cmp.Compare(x.AggregateID, y.AggregateID))
	})
	if err := a.run(ctx); err != nil {
		return store.CommitResult{}, err
	}
	return store.CommitResult{Streams: a.results}, nil
}

// appending is a commit under way.
type appending struct {
	s       *Store
	c       *store.Commit
	ids     []store.ID
	first   []int // place of each stream's first event in the call
	pending []int // streams still to be stored, sorted
	results []store.StreamResult
}

// refusal is what the database did not take, which has to be looked into.
type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

func (a *appending) run(ctx context.Context) error {
	const op = "append"
	for began, lost := time.Now(), 0; ; lost++ {
		err := a.s.engine.inFlight(ctx, op, func() (bool, error) { return a.fly(ctx, lost > 0) })
		var refused *refusal
		switch {
		case err == nil:
			if len(a.pending) > 0 {
				a.s.detector.Wake()
			}
			return nil
		case !errors.As(err, &refused):
			return err
		}
		if err := a.decide(ctx); err != nil {
			return err
		}
		// Nothing stands against it: another append was first, and may be again.
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(began) > a.s.engine.timeout {
			return &store.TransientError{Op: op, Err: refused.err, Hint: "too many appends to the same stream at once"}
		}
	}
}

// fly stores everything that is to do in one flight.
func (a *appending) fly(ctx context.Context, queue bool) (committing bool, err error) {
	e := a.s.engine
	list := e.beginFlight()
	if len(a.pending) > 0 {
		list = append(list, a.s.beginAppend())
	}
	if queue {
		list = append(list, a.queue()...)
	}
	guards := len(list)
	list = append(list, a.guards()...)
	insert := len(list)
	var positions []int64
	if len(a.pending) > 0 {
		st := a.insert()
		st.row = func(v [][]byte) error {
			positions = append(positions, int8Of(v[0]), int8Of(v[1]))
			return nil
		}
		list = append(list, st)
	}
	snapshots := len(list)
	for i := range a.c.Snapshots {
		list = append(list, a.s.snapshotStatement(&a.c.Snapshots[i]))
	}
	list = append(list, &statement{sql: "COMMIT"})
	err = e.with(ctx, func(c *conn) error {
		positions = positions[:0]
		run, cancel := e.steady(ctx)
		defer cancel()
		failed, err := c.run(run, list...)
		if err != nil {
			c.rollback(run)
		}
		committing = failed >= len(list)-1
		class, _ := e.Class(err)
		switch {
		case codeOf(err) == codeDivision && failed < guards:
			return behindMark("append", err)
		case codeOf(err) == codeDivision && failed >= guards && failed < insert,
			class == sqlstore.Duplicate && failed >= insert && failed < snapshots:
			return &refusal{err}
		}
		return err
	})
	if err != nil {
		return committing, err
	}
	return false, a.answer(positions)
}

func (s *Store) beginAppend() *statement {
	st := &statement{sql: s.q.beginAppend}
	st.int8(s.detector.Mark())
	return st
}

// behindMark is an append to a sequence that would hand out positions that
// readers have passed.
func behindMark(op string, err error) error {
	return &store.TransientError{Op: op, Err: err, Hint: "the sequence of the events stands behind the high-water mark, as in a database that was restored without it, and nobody would read what is appended: `projhost doctor` tells how to mend it, and a start of projhost does"}
}

// queue lets appends that lost a race for the end of a stream wait in line,
// instead of racing again.
func (a *appending) queue() (list []*statement) {
	for _, i := range a.pending {
		st := &a.c.Streams[i]
		if st.ExpectedVersion == store.AnyVersion {
			list = append(list, a.s.lockStream(st.AggregateType, st.AggregateID))
		}
	}
	return list
}

func (s *Store) lockStream(typ, id string) *statement {
	h := fnv.New64a()
	fmt.Fprintf(h, "projhost stream\x00%s\x00%s\x00%s", s.opt.TablePrefix, typ, id)
	st := &statement{sql: "SELECT pg_advisory_xact_lock($1)"}
	st.int8(int64(h.Sum64()))
	return st
}

// guards fail unless the last event of each expected version is there. That
// there is none after it is the unique index's to tell.
func (a *appending) guards() []*statement {
	var types, ids, versions *array
	var only *store.StreamAppend
	n := 0
	for _, i := range a.pending {
		if st := &a.c.Streams[i]; st.ExpectedVersion > 0 {
			only = st
			n++
		}
	}
	switch {
	case n == 0:
		return nil
	case n == 1:
		st := &statement{sql: a.s.q.guardVersion}
		st.text(only.AggregateType)
		st.text(only.AggregateID)
		st.int8(only.ExpectedVersion)
		return []*statement{st}
	}
	types, ids, versions = newArray(oidText, n, 16), newArray(oidText, n, 40), newArray(oidInt8, n, 8)
	for _, i := range a.pending {
		if st := &a.c.Streams[i]; st.ExpectedVersion > 0 {
			types.addText(st.AggregateType)
			ids.addText(st.AggregateID)
			versions.addInt8(st.ExpectedVersion)
		}
	}
	st := &statement{sql: a.s.q.guardVersions}
	st.array(types)
	st.array(ids)
	st.array(versions)
	st.int8(int64(n))
	return []*statement{st}
}

// eventArrays are the columns of events that are not their stream's.
type eventArrays struct {
	id, occurred, revision, codecVersion, typ, codec, data, dataBytes, metadata *array
}

func newEventArrays(n, size int) *eventArrays {
	return &eventArrays{
		id: newArray(oidUUID, n, 16), occurred: newArray(oidInt8, n, 8), revision: newArray(oidInt4, n, 4), codecVersion: newArray(oidInt4, n, 4),
		typ: newArray(oidText, n, 24), codec: newArray(oidText, n, 8), data: newArray(oidText, n, size), dataBytes: newArray(oidBytea, n, 0), metadata: newArray(oidText, n, 16),
	}
}

func (a *eventArrays) add(id store.ID, e *store.NewEvent) {
	a.id.addBytes(id[:])
	if e.HasOccurred {
		a.occurred.addInt8(e.OccurredUS)
	} else {
		a.occurred.addNull()
	}
	revision := 0
	if e.HasRevision {
		revision = int(e.Revision)
	}
	a.revision.addInt4(revision)
	codec, version := e.CodecOf()
	a.codecVersion.addInt4(int(version))
	a.typ.addText(e.Type)
	a.codec.addText(codec)
	if codec == store.DefaultCodec {
		a.data.addBytes(e.Data)
		a.dataBytes.addNull()
	} else {
		a.data.addNull()
		a.dataBytes.addBytes(e.Data)
	}
	if e.Metadata == nil {
		a.metadata.addNull()
	} else {
		a.metadata.addBytes(e.Metadata)
	}
}

func (a *eventArrays) to(p *params) {
	for _, x := range []*array{a.id, a.occurred, a.revision, a.codecVersion, a.typ, a.codec, a.data, a.dataBytes, a.metadata} {
		p.array(x)
	}
}

func (a *appending) insert() *statement {
	n, size := 0, 0
	for _, i := range a.pending {
		events := a.c.Streams[i].Events
		n += len(events)
		for j := range events {
			size += len(events[j].Data)
		}
	}
	arrays := newEventArrays(n, size/n+1)
	for _, i := range a.pending {
		st := &a.c.Streams[i]
		for j := range st.Events {
			arrays.add(a.ids[a.first[i]+j], &st.Events[j])
		}
	}
	out := &statement{}
	if len(a.pending) == 1 {
		st := &a.c.Streams[a.pending[0]]
		out.text(st.AggregateType)
		out.text(st.AggregateID)
		out.int4(store.PartitionOf(st.AggregateID, a.s.Partitions()))
		arrays.to(&out.params)
		out.sql = a.s.q.insertAny
		if st.ExpectedVersion != store.AnyVersion {
			out.sql = a.s.q.insertAt
			out.int8(st.ExpectedVersion)
		}
		return out
	}
	out.sql = a.s.q.insertMany
	types, ids, partitions := newArray(oidText, n, 16), newArray(oidText, n, 40), newArray(oidInt4, n, 4)
	sequences, places := newArray(oidInt8, n, 8), newArray(oidInt8, n, 8)
	for _, i := range a.pending {
		st := &a.c.Streams[i]
		partition := store.PartitionOf(st.AggregateID, a.s.Partitions())
		for j := range st.Events {
			types.addText(st.AggregateType)
			ids.addText(st.AggregateID)
			partitions.addInt4(partition)
			places.addInt8(int64(j) + 1)
			if st.ExpectedVersion == store.AnyVersion {
				sequences.addNull()
			} else {
				sequences.addInt8(st.ExpectedVersion + int64(j) + 1)
			}
		}
	}
	out.array(types)
	out.array(ids)
	out.array(partitions)
	arrays.to(&out.params)
	out.array(sequences)
	out.array(places)
	return out
}

func (s *Store) snapshotStatement(snap *store.Snapshot) *statement {
	codec, version := snap.CodecOf()
	st := &statement{sql: s.q.saveSnapshot}
	st.text(snap.AggregateType)
	st.text(snap.AggregateID)
	st.int8(snap.Sequence)
	st.int4(int(cmp.Or(snap.Version, 1)))
	st.text(codec)
	st.int4(int(version))
	if snap.CreatedUS == 0 {
		st.null(oidInt8)
	} else {
		st.int8(snap.CreatedUS)
	}
	if codec == store.DefaultCodec {
		st.text(string(snap.Data))
		st.null(oidBytea)
	} else {
		st.null(oidText)
		st.bytes(snap.Data)
	}
	return st
}

// answer reads the positions and sequences of what was stored, which come in
// the order of the arrays.
func (a *appending) answer(stored []int64) error {
	n := 0
	for _, i := range a.pending {
		st := &a.c.Streams[i]
		k := len(st.Events)
		if len(stored) < 2*(n+k) {
			return fmt.Errorf("append: the server answered %d events", len(stored)/2)
		}
		mine := stored[2*n : 2*(n+k)]
		for j := 1; j < k; j++ {
			if mine[2*j] <= mine[2*j-2] || mine[2*j+1] != mine[2*j-1]+1 {
				return fmt.Errorf("append: the server stored the events of %s/%s in another order", st.AggregateType, st.AggregateID)
			}
		}
		a.results[i] = store.StreamResult{AggregateType: st.AggregateType, AggregateID: st.AggregateID,
			Version: mine[2*k-1], FirstPosition: mine[0], LastPosition: mine[2*k-2], IDs: a.ids[a.first[i] : a.first[i]+k]}
		n += k
	}
	return nil
}

// decide looks into a refusal, in a transaction that began after the roll-back.
// Ids and versions are of one moment: an append that is there is seen with its
// ids. Streams that are stored already are taken off the list.
func (a *appending) decide(ctx context.Context) error {
	known, versions, err := a.look(ctx)
	if err != nil {
		return err
	}
	byID := func(id store.ID) (*store.Event, error) { return known[id], nil }
	// In the order of the call: the first that is wrong is told.
	for i := range a.c.Streams {
		if !slices.Contains(a.pending, i) {
			continue
		}
		st := &a.c.Streams[i]
		index := a.first[i]
		ids := a.ids[index : index+len(st.Events)]
		if st.Events[0].HasID {
			if first := known[ids[0]]; first != nil {
				res, err := rules.Replay(st, ids, index, first, byID)
				if err != nil {
					return err
				}
				a.results[i] = res
				a.pending = slices.DeleteFunc(a.pending, func(j int) bool { return j == i })
				continue
			}
		}
		if err := rules.RefuseKnown(st, ids, index, byID); err != nil {
			return err
		}
		if v := versions[i]; st.ExpectedVersion != store.AnyVersion && st.ExpectedVersion != v {
			return &store.ConflictError{AggregateType: st.AggregateType, AggregateID: st.AggregateID, Expected: st.ExpectedVersion, Actual: v}
		}
	}
	return nil
}

// look reads the events that are stored under ids of the call, and the versions
// of its streams.
func (a *appending) look(ctx context.Context) (map[store.ID]*store.Event, map[int]int64, error) {
	n := 0
	ids := newArray(oidUUID, len(a.ids), 16)
	types, aggregates := newArray(oidText, len(a.pending), 16), newArray(oidText, len(a.pending), 40)
	for _, i := range a.pending {
		st := &a.c.Streams[i]
		types.addText(st.AggregateType)
		aggregates.addText(st.AggregateID)
		for j := range st.Events {
			if st.Events[j].HasID {
				id := a.ids[a.first[i]+j]
				ids.addBytes(id[:])
				n++
			}
		}
	}
	known, list, _, err := a.s.lookUp(ctx, "append", ids, types, aggregates)
	if err != nil {
		return nil, nil, err
	}
	versions := make(map[int]int64, len(a.pending))
	for k, i := range a.pending {
		versions[i] = list[k]
	}
	return known, versions, nil
}

// lookUp reads events by id, versions of streams and the database's clock, all
// of one moment.
func (s *Store) lookUp(ctx context.Context, op string, ids, types, aggregates *array) (known map[store.ID]*store.Event, versions []int64, now int64, err error) {
	events := &statement{sql: s.q.eventsByID}
	events.array(ids)
	streams := &statement{sql: s.q.versions}
	streams.array(types)
	streams.array(aggregates)
	err = s.flight(ctx, op, func(c *conn) []*statement {
		known, versions = map[store.ID]*store.Event{}, make([]int64, types.n)
		events.row = func(v [][]byte) error {
			e := new(store.Event)
			err := s.scanEvent(c, v, e)
			known[e.ID] = e
			return err
		}
		streams.row = func(v [][]byte) error {
			versions[int8Of(v[0])-1], now = int8Of(v[1]), int8Of(v[2])
			return nil
		}
		return []*statement{{sql: beginSnapshot}, events, streams, {sql: "COMMIT"}}
	})
	return known, versions, now, err
}

// flight runs reading statements in one flight, and again if the database gave
// them up.
func (s *Store) flight(ctx context.Context, op string, statements func(c *conn) []*statement) error {
	e := s.engine
	return e.inFlight(ctx, op, func() (bool, error) {
		return false, e.with(ctx, func(c *conn) error {
			_, err := c.run(ctx, statements(c)...)
			if err != nil && !c.pg.IsClosed() {
				end, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.timeout)
				defer cancel()
				c.rollback(end)
			}
			return err
		})
	})
}

func (s *Store) maxEvent() int { return cmp.Or(s.opt.MaxEvent, store.DefaultMaxEvent) }
