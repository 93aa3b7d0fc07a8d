package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// cancelEvery is the number of rows between two looks at a caller's context.
const cancelEvery = 256

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
	var res store.CommitResult
	err = s.write(ctx, "append", len(ids)+len(c.Snapshots), func(tx *tx) error {
		a := appender{s: s, tx: tx, ctx: ctx, now: s.nowUS()}
		var err error
		res, err = a.commit(&c, ids)
		return err
	})
	if err != nil {
		return store.CommitResult{}, s.settleConflict(ctx, err)
	}
	return res, nil
}

// settleConflict reads the stream's version anew: what the rolled-back
// transaction saw may be an append that was not committed either. The answer
// tells a version that was true after the refusal.
func (s *Store) settleConflict(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		if v, e := s.StreamVersion(context.WithoutCancel(ctx), conflict.AggregateType, conflict.AggregateID); e == nil {
			conflict.Actual = v
		}
	}
	return err
}

// appender is one append transaction.
type appender struct {
	s    *Store
	tx   *tx
	ctx  context.Context
	now  int64
	rows int
	end  int64 // last position drawn; -1 before the counter was read
}

// bg is for statements inside the transaction; see [conn.exec].
var bg = context.Background()

func (a *appender) commit(c *store.Commit, ids []store.ID) (store.CommitResult, error) {
	a.end = -1
	var res store.CommitResult
	res.Streams = make([]store.StreamResult, len(c.Streams))
	for i, index := 0, 0; i < len(c.Streams); i++ {
		st := &c.Streams[i]
		r, err := a.appendStream(st, ids[index:index+len(st.Events)], index)
		if err != nil {
			return res, err
		}
		res.Streams[i] = r
		index += len(st.Events)
	}
	for i := range c.Snapshots {
		if err := a.s.saveSnapshot(a.tx.conn, &c.Snapshots[i], a.now); err != nil {
			return res, err
		}
	}
	return res, a.finish()
}

// finish stores the counter. The lock on it is the transaction's, so drawing
// it last and reading it first are the same here.
func (a *appender) finish() error {
	if a.rows == 0 {
		return nil
	}
	if _, err := a.tx.exec(a.s.q.setEnd, a.end); err != nil {
		return err
	}
	a.tx.afterCommit(func() { a.s.wakes.Wake(store.EventsTopic) })
	return nil
}

func (a *appender) appendStream(st *store.StreamAppend, ids []store.ID, index int) (store.StreamResult, error) {
	res := store.StreamResult{AggregateType: st.AggregateType, AggregateID: st.AggregateID, IDs: ids}
	// A repeat is told by its first id, before the version is looked at. Where
	// that is unknown, a known one further on is met by its insert.
	if st.Events[0].HasID {
		first, err := a.byID(ids[0])
		if err != nil {
			return res, err
		}
		if first != nil {
			return rules.Replay(st, ids, index, first, a.byID)
		}
	}
	version, err := a.tx.queryInt(bg, a.s.q.version, st.AggregateType, st.AggregateID)
	if err != nil {
		return res, err
	}
	if st.ExpectedVersion != store.AnyVersion && st.ExpectedVersion != version {
		if err := rules.RefuseKnown(st, ids, index, a.byID); err != nil {
			return res, err
		}
		return res, &store.ConflictError{AggregateType: st.AggregateType, AggregateID: st.AggregateID, Expected: st.ExpectedVersion, Actual: version}
	}
	for j := range st.Events {
		version++
		stored, err := a.insert(st.AggregateType, st.AggregateID, version, ids[j], &st.Events[j])
		if err != nil {
			return res, err
		}
		if !stored {
			return res, a.duplicate(ids[j], index+j, st, &st.Events[j])
		}
		if j == 0 {
			res.FirstPosition = a.end
		}
	}
	res.Version, res.LastPosition = version, a.end
	return res, nil
}

// duplicate describes an event whose insert met it stored.
func (a *appender) duplicate(id store.ID, index int, st *store.StreamAppend, e *store.NewEvent) error {
	known, err := a.byID(id)
	if err != nil {
		return err
	}
	if known == nil {
		return fmt.Errorf("append: event %s was refused as stored but is not", id)
	}
	return rules.Duplicate(known, index, st, e)
}

// byID returns a stored event, nil if there is none.
func (a *appender) byID(id store.ID) (_ *store.Event, err error) {
	r, err := a.tx.query(bg, a.s.q.eventByID, id[:])
	if err != nil {
		return nil, err
	}
	var e *store.Event
	if r.next() {
		e = new(store.Event)
		r.err = a.s.scanEvent(a.tx.conn, r, e)
	}
	return e, r.close()
}

// insert stores an event at the next position; false if its id is stored.
func (a *appender) insert(typ, id string, sequence int64, eventID store.ID, e *store.NewEvent) (bool, error) {
	if a.rows%cancelEvery == 0 {
		if err := a.ctx.Err(); err != nil {
			return false, err
		}
	}
	if a.end < 0 {
		end, err := a.tx.queryInt(bg, a.s.q.end)
		if err != nil {
			return false, err
		}
		a.end = end
	}
	occurred := a.now
	if e.HasOccurred {
		occurred = e.OccurredUS
	}
	revision := int32(0)
	if e.HasRevision {
		revision = e.Revision
	}
	codec, codecVersion := e.CodecOf()
	n, err := a.tx.exec(a.s.q.insertEvent, a.end+1, eventID[:], typ, id, sequence, e.Type, int64(revision), codec, int64(codecVersion),
		occurred, int64(store.PartitionOf(id, a.s.info.Partitions)), payload(codec, e.Data), payload(store.DefaultCodec, e.Metadata))
	if err != nil || n == 0 {
		return false, err
	}
	a.end++
	a.rows++
	return true, nil
}

// payload is how bytes are stored: JSON as TEXT, so that SQL clients can read
// it, all else as BLOB. nil metadata is NULL, nil data empty.
func payload(codec string, b []byte) driver.Value {
	switch {
	case len(b) == 0 && codec == store.DefaultCodec:
		return nil
	case len(b) == 0:
		return []byte{} // where nil would be NULL
	case codec == store.DefaultCodec:
		// Not a copy: the driver makes its own before exec returns.
		return unsafe.String(unsafe.SliceData(b), len(b))
	}
	return b
}

// Import implements [store.EventLog].
func (s *Store) Import(ctx context.Context, events []store.ImportEvent) (store.ImportResult, error) {
	if err := store.ValidateImport(events, s.opt.MaxEvent); err != nil {
		return store.ImportResult{}, err
	}
	var res store.ImportResult
	err := s.write(ctx, "import", len(events), func(tx *tx) error {
		a := appender{s: s, tx: tx, ctx: ctx, now: s.nowUS(), end: -1}
		var err error
		res, err = a.importAll(events)
		return err
	})
	if err != nil {
		return store.ImportResult{}, err
	}
	return res, nil
}

func (a *appender) importAll(events []store.ImportEvent) (res store.ImportResult, err error) {
	versions := make(map[streamKey]int64)
	for i := range events {
		e := &events[i]
		key := streamKey{e.AggregateType, e.AggregateID}
		version, ok := versions[key]
		if !ok {
			if version, err = a.tx.queryInt(bg, a.s.q.version, key.typ, key.id); err != nil {
				return res, err
			}
		}
		stored := false
		if e.Sequence == 0 || e.Sequence == version+1 {
			if stored, err = a.insert(key.typ, key.id, version+1, e.ID, &e.NewEvent); err != nil {
				return res, err
			}
		}
		if stored {
			versions[key] = version + 1
			res.Stored++
			res.LastPosition = max(res.LastPosition, a.end)
			continue
		}
		versions[key] = version
		position, err := a.alreadyThere(e, i, version)
		if err != nil {
			return res, err
		}
		res.AlreadyThere++
		res.There = append(res.There, i)
		res.LastPosition = max(res.LastPosition, position)
	}
	return res, a.finish()
}

// alreadyThere returns the position of an imported event that was stored
// before just as it is.
func (a *appender) alreadyThere(e *store.ImportEvent, index int, version int64) (int64, error) {
	known, err := a.byID(e.ID)
	if err != nil {
		return 0, err
	}
	if known == nil {
		return 0, rules.WrongSequence(e, index, version)
	}
	if err := rules.AlreadyThere(e, index, known); err != nil {
		return 0, err
	}
	return known.Position, nil
}

// scanEvent reads the row of an eventColumns query. Texts and payload of an
// event share memory.
func (s *Store) scanEvent(c *conn, r *rows, e *store.Event) error {
	e.Position = r.int(0)
	packed := r.bytes(1)
	const metadata = 3
	var texts [metadata + 1][]byte // after aggregate type, type and aggregate id, which are not empty
	idEnd := len(e.ID)
	if len(packed) <= idEnd || packed[idEnd] != 0 {
		return fmt.Errorf("the row of position %d was changed: its id is no UUID", e.Position)
	}
	copy(e.ID[:], packed)
	rest := packed[idEnd+1:]
	for i := range texts {
		end := bytes.IndexByte(rest, 0)
		if end < 0 || end == 0 && i < metadata {
			return fmt.Errorf("the row of position %d was changed: its texts cannot be taken apart", e.Position)
		}
		texts[i], rest = rest[:end:end], rest[end+1:]
	}
	e.AggregateType = c.intern(viewOf(texts[0]))
	e.Type = c.intern(viewOf(texts[1]))
	e.AggregateID = viewOf(texts[2])
	if len(texts[metadata]) > 0 {
		e.Metadata = texts[metadata]
	}
	e.Data = rest
	e.Sequence = r.int(2)
	e.Revision = int32(r.int(3))
	e.Codec, e.CodecVersion = store.DefaultCodec, store.DefaultCodecVersion
	if other := r.text(4); other != "" {
		version, codec, _ := strings.Cut(other, " ")
		n, _ := strconv.ParseInt(version, 10, 32) // is an INTEGER column's
		e.Codec, e.CodecVersion = c.intern(codec), int32(n)
	}
	e.OccurredUS = r.int(5)
	e.Partition = store.PartitionOf(e.AggregateID, s.info.Partitions)
	return nil
}

// viewOf gives bytes as a string without copying them: they never change.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// readEvent is scanEvent for readers: it refuses what this program cannot tell
// the meaning of.
func (s *Store) readEvent(c *conn, r *rows, e *store.Event) error {
	if err := s.scanEvent(c, r, e); err != nil || r.vals[4] == nil {
		return err
	}
	if why := store.CheckStoredCodec(e.Codec, e.CodecVersion); why != "" {
		return fmt.Errorf("event %s at position %d: %s: a newer projhost may have stored it", e.ID, e.Position, why)
	}
	return nil
}

// ReadStream implements [store.EventLog].
func (s *Store) ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) ([]store.Event, error) {
	if limit <= 0 {
		limit = pageLimitDefault
	}
	var list []store.Event
	err := s.read(ctx, "read stream", func(c *conn) error {
		r, err := c.query(ctx, s.q.stream, aggregateType, aggregateID, from, int64(limit))
		if err != nil {
			return err
		}
		for r.next() {
			var e store.Event
			if r.err = s.readEvent(c, r, &e); r.err != nil {
				break
			}
			list = append(list, e)
		}
		return r.close()
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// StreamVersion implements [store.EventLog].
func (s *Store) StreamVersion(ctx context.Context, aggregateType, aggregateID string) (version int64, err error) {
	err = s.read(ctx, "read stream version", func(c *conn) error {
		version, err = c.queryInt(ctx, s.q.version, aggregateType, aggregateID)
		return err
	})
	return version, err
}
