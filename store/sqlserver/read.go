package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// eventColumns in the order that scanEvent reads. The partition is not read but
// computed.
const eventColumns = `e.position, e.sequence, e.occurred_us, e.id, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata`

const (
	versionSQL = `SELECT COALESCE(MAX(e.sequence), 0) FROM {{events}} AS e WHERE e.stream = @stream`

	versionsSQL = `SELECT COALESCE((SELECT MAX(e.sequence) FROM {{events}} AS e WHERE e.stream = CONVERT(binary(32), j.stream, 2)), 0)
FROM OPENJSON(@streams) WITH (ord int '$.o', stream nvarchar(64) '$.s') AS j ORDER BY j.ord`

	byIDSQL = `SELECT ` + eventColumns + `
FROM OPENJSON(@ids) WITH (id nvarchar(32) '$') AS j INNER LOOP JOIN {{events}} AS e ON e.id = CONVERT(binary(16), j.id, 2)`

	streamSQL = `SELECT TOP (@limit) ` + eventColumns + ` FROM {{events}} AS e
WHERE e.stream = @stream AND e.sequence >= @from ORDER BY e.sequence`

	// One statement, so one moment, gives the counter, the start and the rows.
	pageSQL = `SELECT t.high_water_mark, t.topic_start, ` + eventColumns + `
FROM {{topics}} AS t
OUTER APPLY (
  SELECT TOP (@limit) v.* FROM {{events}} AS v
  WHERE v.position > @after AND v.position <= t.high_water_mark ORDER BY v.position
) AS e
WHERE t.name = CAST(@topic COLLATE ` + collation + ` AS varchar(1020)) ORDER BY e.position`

	pagePartSQL = `SELECT t.high_water_mark, t.topic_start, ` + eventColumns + `
FROM {{topics}} AS t
OUTER APPLY (
  SELECT TOP (@limit) v.* FROM {{events}} AS v
  WHERE v.partition_key = @partition AND v.position > @after AND v.position <= t.high_water_mark ORDER BY v.position
) AS e
WHERE t.name = CAST(@topic COLLATE ` + collation + ` AS varchar(1020)) ORDER BY e.position`

	// A condition that no index fits: rows come in the order of positions.
	pageSomeSQL = `SELECT t.high_water_mark, t.topic_start, ` + eventColumns + `
FROM {{topics}} AS t
OUTER APPLY (
  SELECT TOP (@limit) v.* FROM {{events}} AS v
  WHERE CAST(SUBSTRING(@partitions, v.partition_key / 8 + 1, 1) AS int) & POWER(2, v.partition_key % 8) <> 0
    AND v.position > @after AND v.position <= t.high_water_mark ORDER BY v.position
) AS e
WHERE t.name = CAST(@topic COLLATE ` + collation + ` AS varchar(1020)) ORDER BY e.position`
)

// pageLimitDefault is the number of messages where none is asked for.
const pageLimitDefault = 1000

// Wake implements [store.Topics].
func (s *Store) Wake(topic string) <-chan struct{} { return s.wakes.Wait(topic) }

// eventRow is the destination of an event's columns. All can be null: a page
// without messages is one row without an event.
type eventRow struct {
	position, sequence, occurred, revision, codecVersion sql.NullInt64
	id, bytes                                            []byte
	typ, streamID, name, codec, data, metadata           sql.NullString
}

func (r *eventRow) dest(more ...any) []any {
	return append(more, &r.position, &r.sequence, &r.occurred, &r.id, &r.revision, &r.codecVersion,
		&r.typ, &r.streamID, &r.name, &r.codec, &r.data, &r.bytes, &r.metadata)
}

func (s *Store) event(r *eventRow) (e store.Event, err error) {
	if len(r.id) != len(e.ID) {
		return e, fmt.Errorf("the row of position %d was changed: its id is no UUID", r.position.Int64)
	}
	e = store.Event{Position: r.position.Int64, Sequence: r.sequence.Int64, OccurredUS: r.occurred.Int64,
		Revision: int32(r.revision.Int64), CodecVersion: int32(r.codecVersion.Int64),
		AggregateType: r.typ.String, AggregateID: r.streamID.String, Type: r.name.String, Codec: r.codec.String,
		Data: payloadOf(r.data, r.bytes), Partition: store.PartitionOf(r.streamID.String, s.Partitions())}
	copy(e.ID[:], r.id)
	if r.metadata.Valid {
		e.Metadata = []byte(r.metadata.String)
	}
	return e, nil
}

// payloadOf reads the columns data and data_bytes. Data is never nil.
func payloadOf(text sql.NullString, bytes []byte) []byte {
	switch {
	case text.Valid:
		return []byte(text.String)
	case bytes == nil:
		return []byte{}
	}
	return bytes
}

// readable refuses what this program cannot tell the meaning of.
func readable(e *store.Event) error {
	if why := store.CheckStoredCodec(e.Codec, e.CodecVersion); why != "" {
		return fmt.Errorf("event %s at position %d: %s: a newer projhost may have stored it", e.ID, e.Position, why)
	}
	return nil
}

// StreamVersion implements [store.EventLog].
func (s *Store) StreamVersion(ctx context.Context, aggregateType, aggregateID string) (version int64, err error) {
	key := streamKey{aggregateType, aggregateID}
	err = s.engine.query(ctx, "read stream version", s.q.version, []any{sql.Named("stream", key.hash())},
		func(r *sql.Rows) error { return r.Scan(&version) })
	return version, err
}

// versions reads the versions of streams.
func (s *Store) versions(ctx context.Context, keys []streamKey) (versions []int64, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var j rowsJSON
	for i, key := range keys {
		j.row()
		j.int("o", int64(i))
		j.bytes("s", key.hash())
	}
	versions = make([]int64, 0, len(keys))
	err = s.engine.query(ctx, "read stream versions", s.q.versions, []any{sql.Named("streams", mssql.NVarCharMax(j.text()))},
		func(r *sql.Rows) error {
			var v int64
			err := r.Scan(&v)
			versions = append(versions, v)
			return err
		})
	if err == nil && len(versions) != len(keys) {
		err = fmt.Errorf("read stream versions: %d were asked for, the answer tells %d", len(keys), len(versions))
	}
	return versions, err
}

// byID looks events up by their ids.
func (s *Store) byID(ctx context.Context, ids []store.ID) (map[store.ID]*store.Event, error) {
	found := map[store.ID]*store.Event{}
	if len(ids) == 0 {
		return found, nil
	}
	list := make([]string, len(ids))
	for i := range ids {
		list[i] = hex.EncodeToString(ids[i][:])
	}
	err := s.engine.query(ctx, "look events up", s.q.byID, []any{sql.Named("ids", mssql.NVarCharMax(stringsJSON(list)))},
		func(r *sql.Rows) error {
			var row eventRow
			if err := r.Scan(row.dest()...); err != nil {
				return err
			}
			e, err := s.event(&row)
			found[e.ID] = &e
			return err
		})
	return found, err
}

// ReadStream implements [store.EventLog].
func (s *Store) ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) ([]store.Event, error) {
	if limit <= 0 {
		limit = pageLimitDefault
	}
	var list []store.Event
	key := streamKey{aggregateType, aggregateID}
	args := []any{sql.Named("limit", int64(limit)), sql.Named("stream", key.hash()), sql.Named("from", from)}
	err := s.engine.query(ctx, "read stream", s.q.stream, args, func(r *sql.Rows) error {
		var row eventRow
		if err := r.Scan(row.dest()...); err != nil {
			return err
		}
		e, err := s.event(&row)
		if err == nil {
			err = readable(&e)
		}
		list = append(list, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ReadPage implements [store.Topics].
//
// Promise (P4): one statement gives the counter and the rows, and a position is
// committed with the counter, so nothing at or below it will ever appear.
func (s *Store) ReadPage(ctx context.Context, q store.PageQuery) (store.Page, error) {
	if q.After < 0 {
		return store.Page{}, &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("read topic %q: position %d is negative", q.Topic, q.After)}
	}
	if q.Limit <= 0 {
		q.Limit = pageLimitDefault
	}
	look := s.Look(q.Topic)
	text := s.q.page
	args := []any{sql.Named("topic", mssql.NVarCharMax(q.Topic)), sql.Named("after", q.After), sql.Named("limit", int64(q.Limit))}
	switch {
	case q.Partitions == nil:
	case len(q.Partitions) == 1:
		text = s.q.pagePart
		args = append(args, sql.Named("partition", int64(q.Partitions[0])))
	default:
		text = s.q.pageSome
		args = append(args, sql.Named("partitions", rules.PartitionBits(q.Partitions, s.Partitions())))
	}
	page := store.Page{Topic: q.Topic, From: q.After}
	found, size := false, 0
	err := s.engine.query(ctx, "read page", text, args, func(r *sql.Rows) error {
		var row eventRow
		if err := r.Scan(row.dest(&page.End, &page.Start)...); err != nil {
			return err
		}
		found = true
		if !row.position.Valid {
			return nil
		}
		e, err := s.event(&row)
		if err != nil {
			return err
		}
		if err := readable(&e); err != nil {
			return err
		}
		size += len(e.Data) + len(e.Metadata)
		if q.MaxBytes > 0 && size > q.MaxBytes && len(page.Events) > 0 {
			return errEnough
		}
		page.Events = append(page.Events, e)
		return nil
	})
	full := err == errEnough || len(page.Events) == q.Limit
	switch {
	case err != nil && err != errEnough:
		return store.Page{}, err
	case !found:
		return store.Page{}, fmt.Errorf("topic %q: %w", q.Topic, store.ErrNotFound)
	}
	if full {
		page.To = page.Events[len(page.Events)-1].Position
	} else {
		page.To = max(q.After, page.End)
	}
	page.Incarnation = look.Saw(page.End)
	return page, nil
}
