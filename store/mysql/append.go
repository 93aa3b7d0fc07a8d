package mysql

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// way is how an append is tried. Each is slower than the one before and is taken
// when that met what it did not know of.
type way int

const (
	// wayFast inserts behind the expected version, which a guard and the unique
	// keys hold true.
	wayFast way = iota
	// wayLook looks ids and versions up and decides, then inserts.
	wayLook
	// wayLocked does the same under the lock on the counter, which keeps all
	// other appends out: nothing can come in between.
	wayLocked
)

// guardsMax is the number of streams up to which the fast way is one.
const guardsMax = 16

// Bounds of the lists in look-ups.
const (
	idsMax      = 256
	versionsMax = 64
)

// errRaced is an append that met events it did not know of. Nothing of it is
// stored.
var errRaced = errors.New("another append was first")

// streamKey names a stream.
type streamKey struct{ typ, id string }

// Commit implements [store.EventLog].
func (s *Store) Commit(ctx context.Context, c store.Commit) (store.CommitResult, error) {
	if err := c.Validate(s.opt.MaxEvent); err != nil {
		return store.CommitResult{}, err
	}
	ids, err := rules.EventIDs(&c)
	if err != nil {
		return store.CommitResult{}, err
	}
	if m := newMember(&c, ids); m != nil {
		return s.commitShared(ctx, m)
	}
	return s.commitAlone(ctx, &c, ids)
}

// commitAlone appends in a transaction of its own.
func (s *Store) commitAlone(ctx context.Context, c *store.Commit, ids []store.ID) (store.CommitResult, error) {
	w := wayFast
	if len(c.Streams) > guardsMax {
		w = wayLook
	}
	for ; ; w++ {
		var res store.CommitResult
		stored := false
		err := s.engine.write(ctx, "append", func(se *session) (err error) {
			a := s.newAppend(ctx, se)
			res, err = a.commit(c, ids, w)
			stored = len(a.rows) > 0
			return err
		})
		switch {
		case err == nil:
			if stored {
				s.wakes.Wake(store.EventsTopic)
			}
			return res, nil
		case !errors.Is(err, errRaced):
			return store.CommitResult{}, s.settleConflict(ctx, err)
		case w == wayLocked:
			return store.CommitResult{}, &store.TransientError{Op: "append", Hint: "another program writes to the table of events", Err: err}
		}
	}
}

// settleConflict reads the stream's version anew, after the roll-back: the answer
// tells a version that is committed.
func (s *Store) settleConflict(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		if v, e := s.StreamVersion(ctx, conflict.AggregateType, conflict.AggregateID); e == nil {
			conflict.Actual = v
		}
	}
	return err
}

// appending is one append transaction.
type appending struct {
	s     *Store
	ctx   context.Context
	se    *session
	now   int64
	rows  []newRow
	known map[store.ID]*store.Event // stored events among the call's ids, once looked up
}

// newRow is an event to insert. Its position is its place behind the counter.
type newRow struct {
	stream   streamKey
	sequence int64
	id       store.ID
	e        *store.NewEvent
}

func (s *Store) newAppend(ctx context.Context, se *session) *appending {
	return &appending{s: s, ctx: ctx, se: se, now: time.Now().UnixMicro()}
}

func (a *appending) commit(c *store.Commit, ids []store.ID, w way) (store.CommitResult, error) {
	var res store.CommitResult
	var guards []newRow // events that have to be there
	if w == wayLocked {
		if err := a.lock(); err != nil {
			return res, err
		}
	}
	// First the versions, then what is stored: a repeat whose first run ends in
	// between is found to be one, whatever version was read.
	streams, err := a.versions(c, w)
	if err != nil {
		return res, err
	}
	if w != wayFast {
		if err := a.lookUp(given(c, ids)); err != nil {
			return res, err
		}
	}
	res.Streams = make([]store.StreamResult, len(c.Streams))
	for i, index := 0, 0; i < len(c.Streams); i++ {
		st := &c.Streams[i]
		own := ids[index : index+len(st.Events)]
		r := store.StreamResult{AggregateType: st.AggregateType, AggregateID: st.AggregateID, IDs: own}
		key := streamKey{st.AggregateType, st.AggregateID}
		version := streams[key]
		if w == wayFast {
			if st.ExpectedVersion != store.AnyVersion {
				version = st.ExpectedVersion
				if version > 0 {
					guards = append(guards, newRow{stream: key, sequence: version})
				}
			}
		} else if replayed, err := a.decide(st, own, index, version, &r); err != nil || replayed {
			if err != nil {
				return res, err
			}
			res.Streams[i] = r
			index += len(own)
			continue
		}
		r.FirstPosition = int64(len(a.rows)) + 1 // behind the counter
		for j := range st.Events {
			version++
			a.rows = append(a.rows, newRow{key, version, own[j], &st.Events[j]})
		}
		r.Version, r.LastPosition = version, int64(len(a.rows))
		res.Streams[i] = r
		index += len(own)
	}
	if err := a.snapshots(c); err != nil {
		return res, err
	}
	before, err := a.insert(guards)
	if err != nil {
		return res, err
	}
	for i := range res.Streams {
		if r := &res.Streams[i]; !r.Replayed {
			r.FirstPosition += before
			r.LastPosition += before
		}
	}
	return res, nil
}

// decide answers a stream's append from what is stored: a repeat has its answer
// in r, a refusal is an error.
func (a *appending) decide(st *store.StreamAppend, ids []store.ID, index int, version int64, r *store.StreamResult) (replayed bool, err error) {
	if st.Events[0].HasID {
		// A repeat is told by its first id, before the version is looked at.
		if first := a.known[ids[0]]; first != nil {
			*r, err = rules.Replay(st, ids, index, first, a.find)
			return true, err
		}
	}
	if err := rules.RefuseKnown(st, ids, index, a.find); err != nil {
		return false, err
	}
	if st.ExpectedVersion != store.AnyVersion && st.ExpectedVersion != version {
		return false, &store.ConflictError{AggregateType: st.AggregateType, AggregateID: st.AggregateID, Expected: st.ExpectedVersion, Actual: version}
	}
	return false, nil
}

func (a *appending) find(id store.ID) (*store.Event, error) { return a.known[id], nil }

// given are the ids that the caller gave.
func given(c *store.Commit, ids []store.ID) (list []store.ID) {
	n := 0
	for i := range c.Streams {
		for j := range c.Streams[i].Events {
			if c.Streams[i].Events[j].HasID {
				list = append(list, ids[n])
			}
			n++
		}
	}
	return list
}

// versions of the streams that have to be known.
func (a *appending) versions(c *store.Commit, w way) (map[streamKey]int64, error) {
	var keys []streamKey
	for i := range c.Streams {
		if st := &c.Streams[i]; w != wayFast || st.ExpectedVersion == store.AnyVersion {
			keys = append(keys, streamKey{st.AggregateType, st.AggregateID})
		}
	}
	return a.versionsOf(keys)
}

func (a *appending) versionsOf(keys []streamKey) (map[streamKey]int64, error) {
	found := make(map[streamKey]int64, len(keys))
	for chunk := range slices.Chunk(keys, versionsMax) {
		args := make([]any, 0, 3*len(chunk))
		for n, key := range chunk {
			args = append(args, int64(n), key.typ, key.id)
		}
		text := strings.TrimSuffix(strings.Repeat(a.s.q.version+" UNION ALL ", len(chunk)), " UNION ALL ")
		err := a.se.scan(a.ctx, text, args, func(vals []driver.Value) error {
			version, _ := vals[1].(int64)
			found[chunk[vals[0].(int64)]] = version
			return nil
		}, nil)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// lookUp finds which ids are stored.
func (a *appending) lookUp(ids []store.ID) error {
	a.known = make(map[store.ID]*store.Event)
	for chunk := range slices.Chunk(ids, idsMax) {
		args := make([]any, len(chunk))
		for i := range chunk {
			args[i] = chunk[i][:]
		}
		err := a.se.scan(a.ctx, a.s.q.byID+marks(len(chunk))+")", args, func(vals []driver.Value) error {
			e := new(store.Event)
			if err := a.s.scanEvent(vals, e); err != nil {
				return err
			}
			a.known[e.ID] = e
			return nil
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// snapshots go before the counter is drawn: nobody waits for them. They are
// locked in order of their streams.
func (a *appending) snapshots(c *store.Commit) error {
	list := make([]*store.Snapshot, len(c.Snapshots))
	for i := range c.Snapshots {
		list[i] = &c.Snapshots[i]
	}
	slices.SortStableFunc(list, func(x, y *store.Snapshot) int {
		return cmp.Or(cmp.Compare(x.AggregateType, y.AggregateType), cmp.Compare(x.AggregateID, y.AggregateID))
	})
	for _, snap := range list {
		if err := a.s.SaveSnapshotIn(a.ctx, a.se, snap); err != nil {
			return err
		}
	}
	return nil
}

// lock takes the lock on the counter before anything is read.
func (a *appending) lock() error {
	found := false
	err := a.se.scan(a.ctx, a.s.q.lockEnd, nil, func([]driver.Value) error {
		found = true
		return nil
	}, nil)
	if err == nil && !found {
		err = errNoTopic
	}
	return err
}

var errNoTopic = fmt.Errorf("the row of topic %q is missing: compare with `projhost schema print --driver mysql` (or mariadb)", store.EventsTopic)

// insert draws positions for the rows and stores them. It returns the position
// before the first. From the draw to COMMIT all other appends wait, so all that
// can be made before is.
func (a *appending) insert(guards []newRow) (before int64, err error) {
	if len(a.rows) == 0 {
		return 0, nil
	}
	statements := a.statements()
	args := make([]any, 0, 1+3*len(guards))
	args = append(args, int64(len(a.rows)))
	for _, g := range guards {
		args = append(args, g.stream.typ, g.stream.id, g.sequence)
	}
	res, err := a.se.exec(a.ctx, a.s.q.draw+strings.Repeat(a.s.q.guard, len(guards)), args...)
	if err != nil {
		return 0, err
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return 0, err
	case n == 0 && len(guards) > 0:
		return 0, errRaced
	case n == 0:
		return 0, errNoTopic
	}
	end, err := res.LastInsertId()
	if err != nil {
		return 0, err
	}
	before = end - int64(len(a.rows))
	position := before
	for _, st := range statements {
		for i := 0; i < len(st.args); i += insertColumns {
			position++
			st.args[i] = position
		}
		_, err := a.se.Exec(a.ctx, st.text.String(), st.args...)
		if class, _ := classOf(err); class == sqlstore.Duplicate {
			return 0, fmt.Errorf("%w: %w", errRaced, err)
		}
		if err != nil {
			return 0, err
		}
	}
	return before, nil
}

const insertColumns = 14

var insertRow = "(" + marks(insertColumns) + ")"

// statements insert the rows, once each row's first argument is its position.
func (a *appending) statements() []*statement {
	list := []*statement{new(statement)}
	var args [insertColumns]any
	for i := range a.rows {
		r := &a.rows[i]
		occurred := a.now
		if r.e.HasOccurred {
			occurred = r.e.OccurredUS
		}
		revision := int32(0)
		if r.e.HasRevision {
			revision = r.e.Revision
		}
		codec, codecVersion := r.e.CodecOf()
		text, bytes := payload(codec, r.e.Data)
		metadata, _ := payload(store.DefaultCodec, r.e.Metadata)
		if r.e.Metadata == nil {
			metadata = nil
		}
		args = [insertColumns]any{int64(0), r.sequence, occurred, r.id[:], int64(store.PartitionOf(r.stream.id, a.s.Partitions())),
			int64(revision), int64(codecVersion), r.stream.typ, r.stream.id, r.e.Type, codec, text, bytes, metadata}
		if !list[len(list)-1].add(a.s.q.insertEvent, insertRow, args[:], a.s.sizeMax()) {
			list = append(list, new(statement))
			list[len(list)-1].add(a.s.q.insertEvent, insertRow, args[:], a.s.sizeMax())
		}
	}
	return list
}

// payload gives the columns data and data_bytes of a payload. Text is not
// copied: it goes into the statement before the call returns.
func payload(codec string, data []byte) (text, bytes any) {
	switch {
	case codec == store.DefaultCodec:
		return viewOf(data), nil
	case data == nil:
		return nil, []byte{}
	}
	return nil, data
}

// Import implements [store.EventLog].
func (s *Store) Import(ctx context.Context, events []store.ImportEvent) (store.ImportResult, error) {
	if err := store.ValidateImport(events, s.opt.MaxEvent); err != nil {
		return store.ImportResult{}, err
	}
	if len(events) == 0 {
		return store.ImportResult{}, nil
	}
	for w := wayLook; ; w++ {
		var res store.ImportResult
		err := s.engine.write(ctx, "import", func(se *session) (err error) {
			res, err = s.newAppend(ctx, se).importAll(events, w)
			return err
		})
		switch {
		case err == nil:
			if res.Stored > 0 {
				s.wakes.Wake(store.EventsTopic)
			}
			return res, nil
		case !errors.Is(err, errRaced):
			return store.ImportResult{}, err
		case w == wayLocked:
			return store.ImportResult{}, &store.TransientError{Op: "import", Hint: "another program writes to the table of events", Err: err}
		}
	}
}

func (a *appending) importAll(events []store.ImportEvent, w way) (res store.ImportResult, err error) {
	if w == wayLocked {
		if err := a.lock(); err != nil {
			return res, err
		}
	}
	ids := make([]store.ID, len(events))
	var keys []streamKey
	versions := make(map[streamKey]int64)
	for i := range events {
		e := &events[i]
		ids[i] = e.ID
		key := streamKey{e.AggregateType, e.AggregateID}
		if _, ok := versions[key]; !ok {
			versions[key] = 0
			keys = append(keys, key)
		}
	}
	if versions, err = a.versionsOf(keys); err != nil {
		return res, err
	}
	if err := a.lookUp(ids); err != nil {
		return res, err
	}
	for i := range events {
		e := &events[i]
		key := streamKey{e.AggregateType, e.AggregateID}
		if known := a.known[e.ID]; known != nil {
			if err := rules.AlreadyThere(e, i, known); err != nil {
				return res, a.placed(err)
			}
			res.AlreadyThere++
			res.There = append(res.There, i)
			if known.Position > 0 {
				res.LastPosition = max(res.LastPosition, known.Position)
			}
			continue
		}
		if e.Sequence != 0 && e.Sequence != versions[key]+1 {
			return res, rules.WrongSequence(e, i, versions[key])
		}
		versions[key]++
		a.rows = append(a.rows, newRow{key, versions[key], e.ID, &e.NewEvent})
		a.known[e.ID] = a.asStored(&a.rows[len(a.rows)-1])
	}
	before, err := a.insert(nil)
	if err != nil {
		return res, err
	}
	if res.Stored = len(a.rows); res.Stored > 0 {
		res.LastPosition = before + int64(res.Stored)
	}
	return res, nil
}

// asStored is a new event as a later one of the same call meets it. Its position
// is not known yet.
func (a *appending) asStored(r *newRow) *store.Event {
	e := &store.Event{ID: r.id, AggregateType: r.stream.typ, AggregateID: r.stream.id, Sequence: r.sequence, Type: r.e.Type,
		Data: r.e.Data, Metadata: r.e.Metadata, OccurredUS: a.now, Position: -int64(len(a.rows))}
	if r.e.HasRevision {
		e.Revision = r.e.Revision
	}
	if r.e.HasOccurred {
		e.OccurredUS = r.e.OccurredUS
	}
	e.Codec, e.CodecVersion = r.e.CodecOf()
	return e
}

// placed gives a refusal of an event that repeats one of the same call the
// position that one would have had.
func (a *appending) placed(err error) error {
	var dup *store.DuplicateEventError
	if errors.As(err, &dup) && dup.Position < 0 {
		end := int64(0)
		if e := a.se.scan(a.ctx, a.s.q.lockEnd, nil, func(vals []driver.Value) error {
			end, _ = vals[0].(int64)
			return nil
		}, nil); e != nil {
			return e
		}
		dup.Position = end - dup.Position
	}
	return err
}
