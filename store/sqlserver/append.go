package sqlserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// streamKey names a stream.
type streamKey struct{ typ, id string }

// hash is how the database finds the stream.
func (k streamKey) hash() []byte {
	h := sha256.New()
	h.Write([]byte(k.typ))
	h.Write([]byte{0}) // in neither
	h.Write([]byte(k.id))
	return h.Sum(nil)
}

// appendSQL is the batch that appends. It stages the rows before it takes any
// lock, refuses what is known to be refused before it takes the counter, and
// takes the counter last: appends wait for each other there until they commit.
//
// An event without a sequence is of an append that expects no version. Its
// sequence is told under the counter, where nobody else can append.
const appendSQL = batchHead + `
DECLARE @now bigint = ` + nowSQL + `;
DECLARE @e TABLE (
  ord int NOT NULL PRIMARY KEY,
  place int NOT NULL,
  sequence bigint NULL,
  occurred_us bigint NOT NULL,
  id binary(16) NOT NULL,
  stream binary(32) NOT NULL,
  partition_key int NOT NULL,
  revision int NOT NULL,
  codec_version int NOT NULL,
  aggregate_type varchar(1020) COLLATE ` + collation + ` NOT NULL,
  aggregate_id varchar(1020) COLLATE ` + collation + ` NOT NULL,
  type varchar(1020) COLLATE ` + collation + ` NOT NULL,
  codec varchar(1020) COLLATE ` + collation + ` NOT NULL,
  data varchar(max) COLLATE ` + collation + ` NULL,
  data_bytes varbinary(max) NULL,
  metadata varchar(max) COLLATE ` + collation + ` NULL
);
INSERT INTO @e (ord, place, sequence, occurred_us, id, stream, partition_key, revision, codec_version,
 aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata)
SELECT j.ord, j.place, j.sequence, COALESCE(j.occurred_us, @now), CONVERT(binary(16), j.id, 2), CONVERT(binary(32), j.stream, 2),
 j.partition_key, j.revision, j.codec_version, j.aggregate_type, j.aggregate_id, j.type, j.codec,
 j.data, CONVERT(varbinary(max), j.data_bytes, 2), j.metadata
FROM OPENJSON(@events) WITH (
  ord int '$.o',
  place int '$.n',
  sequence bigint '$.q',
  occurred_us bigint '$.w',
  id nvarchar(32) '$.i',
  stream nvarchar(64) '$.s',
  partition_key int '$.p',
  revision int '$.r',
  codec_version int '$.v',
  aggregate_type nvarchar(510) '$.a',
  aggregate_id nvarchar(510) '$.k',
  type nvarchar(510) '$.t',
  codec nvarchar(510) '$.c',
  data nvarchar(max) '$.d',
  data_bytes nvarchar(max) '$.b',
  metadata nvarchar(max) '$.m'
) AS j;
DECLARE @n int = (SELECT COUNT(*) FROM @e);
DECLARE @s TABLE (
  stream binary(32) NOT NULL PRIMARY KEY,
  aggregate_type varchar(1020) COLLATE ` + collation + ` NOT NULL,
  aggregate_id varchar(1020) COLLATE ` + collation + ` NOT NULL,
  sequence bigint NOT NULL,
  version int NOT NULL,
  codec varchar(1020) COLLATE ` + collation + ` NOT NULL,
  codec_version int NOT NULL,
  created_us bigint NOT NULL,
  data varchar(max) COLLATE ` + collation + ` NULL,
  data_bytes varbinary(max) NULL
);
INSERT INTO @s (stream, aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data, data_bytes)
SELECT CONVERT(binary(32), j.stream, 2), j.aggregate_type, j.aggregate_id, j.sequence, j.version, j.codec, j.codec_version,
 COALESCE(j.created_us, @now), j.data, CONVERT(varbinary(max), j.data_bytes, 2)
FROM OPENJSON(@snapshots) WITH (
  stream nvarchar(64) '$.s',
  aggregate_type nvarchar(510) '$.a',
  aggregate_id nvarchar(510) '$.k',
  sequence bigint '$.q',
  version int '$.r',
  codec nvarchar(510) '$.c',
  codec_version int '$.v',
  created_us bigint '$.w',
  data nvarchar(max) '$.d',
  data_bytes nvarchar(max) '$.b'
) AS j;
DECLARE @last bigint;
BEGIN TRANSACTION;
IF @n > 0
BEGIN
  IF EXISTS (SELECT 1 FROM @e AS e INNER LOOP JOIN {{events}} AS v ON v.id = e.id)
  BEGIN
    THROW 51302, N'an event id is stored already', 1;
  END;
  IF EXISTS (SELECT 1 FROM @e AS e INNER LOOP JOIN {{events}} AS v ON v.stream = e.stream AND v.sequence = e.sequence)
    OR EXISTS (SELECT 1 FROM @e AS e WHERE e.place = 1 AND e.sequence > 1
      AND NOT EXISTS (SELECT 1 FROM {{events}} AS v WHERE v.stream = e.stream AND v.sequence = e.sequence - 1))
  BEGIN
    THROW 51301, N'a stream has another version than the one expected', 1;
  END;
  UPDATE {{topics}} SET end_position = end_position + @n, high_water_mark = end_position + @n WHERE name = 'events';
  IF @@ROWCOUNT <> 1
  BEGIN
    THROW 51303, N'the row of the topic events is missing', 1;
  END;
  SELECT @last = end_position FROM {{topics}} WHERE name = 'events';
  UPDATE e SET e.sequence = e.place + COALESCE((SELECT MAX(v.sequence) FROM {{events}} AS v WHERE v.stream = e.stream), 0)
  FROM @e AS e WHERE e.sequence IS NULL;
  INSERT INTO {{events}} (position, sequence, occurred_us, id, stream, partition_key, revision, codec_version,
   aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata)
  SELECT @last - @n + e.ord, e.sequence, e.occurred_us, e.id, e.stream, e.partition_key, e.revision, e.codec_version,
   e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata
  FROM @e AS e;
END;
UPDATE o SET o.sequence = s.sequence, o.version = s.version, o.codec = s.codec, o.codec_version = s.codec_version,
 o.created_us = s.created_us, o.data = s.data, o.data_bytes = s.data_bytes
FROM @s AS s INNER LOOP JOIN {{snapshots}} AS o ON o.stream = s.stream
WHERE o.sequence <= s.sequence
 OR o.sequence > COALESCE((SELECT MAX(v.sequence) FROM {{events}} AS v WHERE v.stream = s.stream), 0);
INSERT INTO {{snapshots}} (stream, aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data, data_bytes)
SELECT s.stream, s.aggregate_type, s.aggregate_id, s.sequence, s.version, s.codec, s.codec_version, s.created_us, s.data, s.data_bytes
FROM @s AS s WHERE NOT EXISTS (SELECT 1 FROM {{snapshots}} AS o WHERE o.stream = s.stream);
COMMIT TRANSACTION;
SELECT @last - @n + e.ord, e.sequence FROM @e AS e WHERE e.place = 1 ORDER BY e.ord;
`

// batchHead begins every batch that writes. The level is named because a
// connection keeps that of its last user. Any error ends the batch and rolls all
// of it back.
const batchHead = `SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;`

// staged collects what an append writes.
type staged struct {
	partitions int
	events     rowsJSON
	snapshots  rowsJSON
	count      int
}

// event adds an event, the place-th of its stream's append. sequence 0 is the
// stream's next.
func (a *staged) event(key streamKey, hash []byte, place int, sequence int64, id store.ID, e *store.NewEvent) {
	j := &a.events
	j.row()
	a.count++
	j.int("o", int64(a.count))
	j.int("n", int64(place))
	if sequence > 0 {
		j.int("q", sequence)
	}
	if e.HasOccurred {
		j.int("w", e.OccurredUS)
	}
	j.bytes("i", id[:])
	j.bytes("s", hash)
	j.int("p", int64(store.PartitionOf(key.id, a.partitions)))
	revision := int32(0)
	if e.HasRevision {
		revision = e.Revision
	}
	j.int("r", int64(revision))
	codec, version := e.CodecOf()
	j.int("v", int64(version))
	j.string("a", key.typ)
	j.string("k", key.id)
	j.string("t", e.Type)
	j.string("c", codec)
	j.payload(codec, e.Data)
	if e.Metadata != nil {
		j.string("m", string(e.Metadata))
	}
}

func (j *rowsJSON) payload(codec string, data []byte) {
	if codec == store.DefaultCodec {
		j.string("d", string(data))
	} else {
		j.bytes("b", data)
	}
}

// latest adds the last snapshot of each stream.
func (a *staged) latest(list []store.Snapshot) {
	last := map[streamKey]int{}
	for i := range list {
		key := streamKey{list[i].AggregateType, list[i].AggregateID}
		if n, ok := last[key]; !ok || list[i].Sequence >= list[n].Sequence {
			last[key] = i
		}
	}
	j := &a.snapshots
	for i := range list {
		s := &list[i]
		key := streamKey{s.AggregateType, s.AggregateID}
		if last[key] != i {
			continue
		}
		codec, version := s.CodecOf()
		j.row()
		j.bytes("s", key.hash())
		j.string("a", key.typ)
		j.string("k", key.id)
		j.int("q", s.Sequence)
		j.int("r", int64(cmp.Or(s.Version, 1)))
		j.string("c", codec)
		j.int("v", int64(version))
		if s.CreatedUS != 0 {
			j.int("w", s.CreatedUS)
		}
		j.payload(codec, s.Data)
	}
}

// first is where an append to a stream began.
type first struct{ position, sequence int64 }

// send runs the batch. It returns where each stream's append began, in the order
// in which they were staged.
func (s *Store) send(ctx context.Context, op string, a *staged) (firsts []first, err error) {
	args := []any{sql.Named("events", mssql.NVarCharMax(a.events.text())), sql.Named("snapshots", mssql.NVarCharMax(a.snapshots.text()))}
	err = s.engine.batch(ctx, op, s.q.append, args, nil, func(r *sql.Rows) error {
		firsts = firsts[:0]
		for r.Next() {
			var f first
			if err := r.Scan(&f.position, &f.sequence); err != nil {
				return err
			}
			firsts = append(firsts, f)
		}
		return nil
	})
	if err == nil && a.count > 0 {
		s.wakes.Wake(store.EventsTopic)
	}
	return firsts, err
}

// lostRace tells an append that met somebody else's: what it relied on has to be
// looked up, and then it is decided whether it goes on.
func lostRace(err error) bool {
	switch number(err) {
	case errVersion, errKnown:
		return true
	}
	class, _ := classOf(err)
	return class == sqlstore.Duplicate
}

// attemptsMax bounds how often an append meets others.
const attemptsMax = 100

// Commit implements [store.EventLog].
func (s *Store) Commit(ctx context.Context, c store.Commit) (store.CommitResult, error) {
	if err := c.Validate(s.Opt.MaxEvent); err != nil {
		return store.CommitResult{}, err
	}
	ids, err := rules.EventIDs(&c)
	if err != nil {
		return store.CommitResult{}, err
	}
	w := commit{s: s, c: &c, ids: ids, results: make([]store.StreamResult, len(c.Streams))}
	for n := 0; ; n++ {
		err := w.try(ctx)
		if err == nil {
			return store.CommitResult{Streams: w.results}, nil
		}
		if !lostRace(err) || n == attemptsMax {
			return store.CommitResult{}, err
		}
		if err := w.lookUp(ctx); err != nil {
			return store.CommitResult{}, err
		}
	}
}

// commit is an append under way.
type commit struct {
	s       *Store
	c       *store.Commit
	ids     []store.ID
	results []store.StreamResult // those with Replayed set are final
}

// try sends the streams that are not stored yet, in the belief that they have
// the versions that the caller expects.
func (w *commit) try(ctx context.Context) error {
	a := staged{partitions: w.s.Partitions()}
	var sent []int
	for i, index := 0, 0; i < len(w.c.Streams); i++ {
		st := &w.c.Streams[i]
		ids := w.ids[index : index+len(st.Events)]
		index += len(st.Events)
		if w.results[i].Replayed {
			continue
		}
		key := streamKey{st.AggregateType, st.AggregateID}
		hash := key.hash()
		for j := range st.Events {
			sequence := int64(0)
			if st.ExpectedVersion != store.AnyVersion {
				sequence = st.ExpectedVersion + int64(j) + 1
			}
			a.event(key, hash, j+1, sequence, ids[j], &st.Events[j])
		}
		w.results[i] = store.StreamResult{AggregateType: st.AggregateType, AggregateID: st.AggregateID, IDs: ids}
		sent = append(sent, i)
	}
	if len(sent) == 0 && len(w.c.Snapshots) == 0 {
		return nil
	}
	a.latest(w.c.Snapshots)
	firsts, err := w.s.send(ctx, "append", &a)
	if err != nil {
		return err
	}
	if len(firsts) != len(sent) {
		return fmt.Errorf("append: %d streams were sent, the answer tells of %d", len(sent), len(firsts))
	}
	for n, i := range sent {
		r, more := &w.results[i], int64(len(w.c.Streams[i].Events)-1)
		r.FirstPosition, r.LastPosition = firsts[n].position, firsts[n].position+more
		r.Version = firsts[n].sequence + more
	}
	return nil
}

// lookUp finds out why an append was refused, in new transactions after the
// roll-back: the caller's answer, or nil if it may be tried again. The versions
// are read before the ids: of two equal appends at once the second then finds
// the first one's ids wherever it finds its version.
func (w *commit) lookUp(ctx context.Context) error {
	keys := make([]streamKey, len(w.c.Streams))
	for i := range keys {
		keys[i] = streamKey{w.c.Streams[i].AggregateType, w.c.Streams[i].AggregateID}
	}
	versions, err := w.s.versions(ctx, keys)
	if err != nil {
		return err
	}
	var given []store.ID
	index := 0
	for i := range w.c.Streams {
		for j := range w.c.Streams[i].Events {
			if w.c.Streams[i].Events[j].HasID {
				given = append(given, w.ids[index])
			}
			index++
		}
	}
	stored, err := w.s.byID(ctx, given)
	if err != nil {
		return err
	}
	known := func(id store.ID) (*store.Event, error) { return stored[id], nil }
	index = 0
	for i := range w.c.Streams {
		st := &w.c.Streams[i]
		ids, at := w.ids[index:index+len(st.Events)], index
		index += len(st.Events)
		if st.Events[0].HasID && stored[ids[0]] != nil {
			r, err := rules.Replay(st, ids, at, stored[ids[0]], known)
			if err != nil {
				return err
			}
			w.results[i] = r
			continue
		}
		if err := rules.RefuseKnown(st, ids, at, known); err != nil {
			return err
		}
		if st.ExpectedVersion != store.AnyVersion && st.ExpectedVersion != versions[i] {
			return &store.ConflictError{AggregateType: st.AggregateType, AggregateID: st.AggregateID,
				Expected: st.ExpectedVersion, Actual: versions[i]}
		}
	}
	return nil
}

// Import implements [store.EventLog].
func (s *Store) Import(ctx context.Context, events []store.ImportEvent) (store.ImportResult, error) {
	if err := store.ValidateImport(events, s.Opt.MaxEvent); err != nil {
		return store.ImportResult{}, err
	}
	for n := 0; ; n++ {
		res, err := s.importOnce(ctx, events)
		if err == nil {
			return res, nil
		}
		if !lostRace(err) || n == attemptsMax {
			return store.ImportResult{}, err
		}
	}
}

// importOnce looks up what is stored, decides, and sends the rest with the
// sequences that it has then. If somebody appends in between, a unique key
// refuses it.
func (s *Store) importOnce(ctx context.Context, events []store.ImportEvent) (res store.ImportResult, err error) {
	var keys []streamKey
	place := map[streamKey]int{}
	ids := make([]store.ID, len(events))
	for i := range events {
		ids[i] = events[i].ID
		key := streamKey{events[i].AggregateType, events[i].AggregateID}
		if _, ok := place[key]; !ok {
			place[key] = len(keys)
			keys = append(keys, key)
		}
	}
	versions, err := s.versions(ctx, keys)
	if err != nil {
		return res, err
	}
	stored, err := s.byID(ctx, ids)
	if err != nil {
		return res, err
	}
	hashes := make([][]byte, len(keys))
	began := make([]bool, len(keys))
	a := staged{partitions: s.Partitions()}
	for i := range events {
		e := &events[i]
		if known := stored[e.ID]; known != nil {
			if err := rules.AlreadyThere(e, i, known); err != nil {
				return res, err
			}
			res.AlreadyThere++
			res.There = append(res.There, i)
			if known.Position > 0 {
				res.LastPosition = max(res.LastPosition, known.Position)
			}
			continue
		}
		key := streamKey{e.AggregateType, e.AggregateID}
		k := place[key]
		if e.Sequence != 0 && e.Sequence != versions[k]+1 {
			return res, rules.WrongSequence(e, i, versions[k])
		}
		versions[k]++
		if hashes[k] == nil {
			hashes[k] = key.hash()
		}
		n := 1
		if began[k] {
			n = 2 // only the first of a stream has to find its predecessor
		}
		began[k] = true
		a.event(key, hashes[k], n, versions[k], e.ID, &e.NewEvent)
		stored[e.ID] = asStored(e, versions[k])
	}
	res.Stored = a.count
	if a.count == 0 {
		return res, nil
	}
	firsts, err := s.send(ctx, "import", &a)
	if err != nil {
		return res, err
	}
	if len(firsts) == 0 {
		return res, errors.New("import: the answer tells of no position")
	}
	// The first event of all is the first of its stream.
	res.LastPosition = max(res.LastPosition, firsts[0].position+int64(a.count)-1)
	return res, nil
}

// asStored is what an event of this call will be stored as; its position is not
// known yet.
func asStored(e *store.ImportEvent, sequence int64) *store.Event {
	codec, version := e.CodecOf()
	stored := &store.Event{ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Sequence: sequence,
		Type: e.Type, Codec: codec, CodecVersion: version, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS}
	if e.HasRevision {
		stored.Revision = e.Revision
	}
	return stored
}
