package sqlserver

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// What a batch did not apply, and what became of what it tried again: staged like
// everything else before the transaction begins, and written in the one order of
// locks, behind the rows and before the checkpoints. A batch without has none of
// this in its text.

const (
	textType = "varchar(1020) COLLATE " + collation
	longType = "varchar(max) COLLATE " + collation

	declareTimeSQL = `DECLARE @now bigint = ` + nowSQL + `;
`

	// due_in is NULL for at once. [key] is that of the row itself.
	stageRetriesSQL = `DECLARE @retries TABLE (id bigint NOT NULL PRIMARY KEY, [partition] int NOT NULL, [key] ` + textType + ` NULL,
 was ` + textType + ` NOT NULL, attempts int NOT NULL, passing int NOT NULL, gone int NOT NULL,
 becomes ` + textType + ` NULL, code int NULL, reason ` + longType + ` NULL, then_attempts int NULL, then_passing int NULL, digest ` + textType + ` NULL,
 due_in bigint NULL, line ` + textType + ` NULL);
INSERT INTO @retries (id, [partition], was, attempts, passing, gone, becomes, code, reason, then_attempts, then_passing, digest, due_in, line)
SELECT j.i, j.p, j.s, j.a, j.b, j.g, j.t, j.c, j.r, j.x, j.y, j.d, j.w, j.l
FROM OPENJSON(@retried) WITH (i bigint '$.i', p int '$.p', s nvarchar(60) '$.s', a int '$.a', b int '$.b', g int '$.g', t nvarchar(60) '$.t',
 c int '$.c', r nvarchar(max) '$.r', x int '$.x', y int '$.y', d nvarchar(510) '$.d', w bigint '$.w', l nvarchar(60) '$.l') AS j;
DECLARE @retrying int = (SELECT COUNT(*) FROM @retries);
`

	// Rows are what they were read as, under the epoch that they were read in (H12).
	asReadSQL = `u.build = @build AND u.[partition] = r.[partition] AND u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing
 AND EXISTS (SELECT 1 FROM {{checkpoints}} AS c WHERE c.build = u.build AND c.topic = u.topic AND c.[partition] = u.[partition] AND c.epoch = @epoch)`

	retrySQL = `UPDATE r SET r.[key] = u.[key]
FROM @retries AS r INNER LOOP JOIN {{undelivered}} AS u ON u.id = r.id
WHERE u.build = @build;
UPDATE u SET u.status = r.line, u.last_us = @now
FROM @retries AS r INNER LOOP JOIN {{undelivered}} AS u WITH (ROWLOCK) ON u.build = @build AND u.[partition] = r.[partition] AND u.[key] = r.[key]
WHERE u.id > r.id AND u.status IN ('WAITING', 'DEAD_LETTER_KEY') AND u.status <> r.line;
DECLARE @done int;
DELETE u FROM @retries AS r INNER LOOP JOIN {{undelivered}} AS u ON u.id = r.id WHERE r.gone = 1 AND ` + asReadSQL + `;
SET @done = @@ROWCOUNT;
UPDATE u SET u.status = r.becomes, u.code = r.code, u.reason = r.reason, u.attempts = r.then_attempts, u.passing = r.then_passing,
 u.digest = r.digest, u.last_us = @now, u.retry_us = @now + r.due_in,
 u.budget_us = CASE WHEN r.attempts + r.passing = 0 THEN @now ELSE u.budget_us END
FROM @retries AS r INNER LOOP JOIN {{undelivered}} AS u WITH (ROWLOCK) ON u.id = r.id
WHERE r.gone = 0 AND ` + asReadSQL + `;
IF @done + @@ROWCOUNT <> @retrying
BEGIN
  THROW 51307, N'an undelivered message is not what it was read as', 1;
END;
`

	stageRecordsSQL = `DECLARE @records TABLE (ord int NOT NULL PRIMARY KEY, topic ` + textType + ` NOT NULL, position bigint NOT NULL, [partition] int NOT NULL,
 [key] ` + textType + ` NOT NULL, key_hash binary(32) NOT NULL, unresolved int NOT NULL, status ` + textType + ` NOT NULL, code int NOT NULL,
 reason ` + longType + ` NOT NULL, attempts int NOT NULL, passing int NOT NULL, digest ` + textType + ` NOT NULL, due_in bigint NULL,
 event_id binary(16) NOT NULL, aggregate_type ` + textType + ` NOT NULL, aggregate_id ` + textType + ` NOT NULL, sequence bigint NOT NULL,
 event_type ` + textType + ` NOT NULL, revision int NOT NULL, codec ` + textType + ` NOT NULL, codec_version int NOT NULL, occurred_us bigint NOT NULL,
 data ` + longType + ` NULL, data_bytes varbinary(max) NULL, metadata ` + longType + ` NULL);
INSERT INTO @records (ord, topic, position, [partition], [key], key_hash, unresolved, status, code, reason, attempts, passing, digest, due_in,
 event_id, aggregate_type, aggregate_id, sequence, event_type, revision, codec, codec_version, occurred_us, data, data_bytes, metadata)
SELECT j.o, j.t, j.f, j.p, j.k, CONVERT(binary(32), j.h, 2), j.u, j.s, j.c, j.r, j.a, j.b, j.d, j.w,
 CONVERT(binary(16), j.i, 2), j.gt, j.gi, j.q, j.et, j.v, j.cn, j.cv, j.ou, j.dt, CONVERT(varbinary(max), j.db, 2), j.md
FROM OPENJSON(@recorded) WITH (o int '$.o', t nvarchar(510) '$.t', f bigint '$.f', p int '$.p', k nvarchar(510) '$.k', h nvarchar(64) '$.h', u int '$.u',
 s nvarchar(60) '$.s', c int '$.c', r nvarchar(max) '$.r', a int '$.a', b int '$.b', d nvarchar(510) '$.d', w bigint '$.w', i nvarchar(32) '$.i',
 gt nvarchar(510) '$.gt', gi nvarchar(510) '$.gi', q bigint '$.q', et nvarchar(510) '$.et', v int '$.v', cn nvarchar(510) '$.cn', cv int '$.cv',
 ou bigint '$.ou', dt nvarchar(max) '$.dt', db nvarchar(max) '$.db', md nvarchar(max) '$.md') AS j;
`

	recordSQL = `INSERT INTO {{undelivered}} (build, topic, position, [partition], [key], key_hash, unresolved, status, code, reason, attempts, passing, digest,
 first_us, last_us, retry_us, event_id, aggregate_type, aggregate_id, sequence, event_type, revision, codec, codec_version, occurred_us, data, data_bytes, metadata)
SELECT @build, r.topic, r.position, r.[partition], r.[key], r.key_hash, r.unresolved, r.status, r.code, r.reason, r.attempts, r.passing, r.digest,
 @now, @now, @now + r.due_in, r.event_id, r.aggregate_type, r.aggregate_id, r.sequence, r.event_type, r.revision, r.codec, r.codec_version, r.occurred_us,
 r.data, r.data_bytes, r.metadata
FROM @records AS r ORDER BY r.ord;
`

	stageSkipsSQL = `DECLARE @skips TABLE (ord int NOT NULL PRIMARY KEY, topic ` + textType + ` NOT NULL, position bigint NOT NULL, [partition] int NOT NULL,
 [key] ` + textType + ` NOT NULL, key_hash binary(32) NOT NULL, every_key int NOT NULL, detail ` + textType + ` NOT NULL);
INSERT INTO @skips (ord, topic, position, [partition], [key], key_hash, every_key, detail)
SELECT j.o, j.t, j.f, j.p, j.k, CONVERT(binary(32), j.h, 2), j.e, j.d
FROM OPENJSON(@skipping) WITH (o int '$.o', t nvarchar(510) '$.t', f bigint '$.f', p int '$.p', k nvarchar(510) '$.k', h nvarchar(64) '$.h', e int '$.e',
 d nvarchar(60) '$.d') AS j;
`

	notSkippedSQL = `NOT EXISTS (SELECT 1 FROM {{skipped}} AS k WHERE k.build = @build AND k.topic = s.topic AND k.position = s.position
 AND k.[partition] = s.[partition] AND k.key_hash = s.key_hash)`

	consumerTypeSQL = `CAST(@type COLLATE ` + collation + ` AS varchar(1020))`
	consumerNameSQL = `CAST(@name COLLATE ` + collation + ` AS varchar(1020))`

	historyColumnsSQL = `consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail`

	skipSQL = `INSERT INTO {{consumer_history}} (` + historyColumnsSQL + `)
SELECT ` + consumerTypeSQL + `, ` + consumerNameSQL + `, @build, @now, 'host', 'skip', s.topic, s.[partition], s.position, s.[key], s.detail
FROM @skips AS s WHERE ` + notSkippedSQL + ` ORDER BY s.ord;
INSERT INTO {{skipped}} (build, topic, position, [partition], [key], key_hash, every_key)
SELECT @build, s.topic, s.position, s.[partition], s.[key], s.key_hash, s.every_key
FROM @skips AS s WHERE ` + notSkippedSQL + `;
`

	// The first halt stands, and an operator's pause is not displaced. What is not live
	// halts by itself.
	haltConsumerSQL = haltEntrySQL + `FROM {{consumers}} AS c WHERE c.type = ` + consumerTypeSQL + ` AND c.name = ` + consumerNameSQL + ` AND c.live_build = @build
 AND c.state IN ('running', 'rebuilding');
UPDATE {{consumers}} SET state = 'halted', halt = CAST(@halt COLLATE ` + collation + ` AS varchar(max)), state_since_us = @now
WHERE type = ` + consumerTypeSQL + ` AND name = ` + consumerNameSQL + ` AND live_build = @build AND state IN ('running', 'rebuilding');
` + haltEntrySQL + `FROM {{consumers}} AS c INNER JOIN {{builds}} AS b ON b.id = @build
WHERE c.type = ` + consumerTypeSQL + ` AND c.name = ` + consumerNameSQL + ` AND c.live_build <> @build AND b.state = 'running';
UPDATE {{builds}} SET state = 'halted', halt = CAST(@halt COLLATE ` + collation + ` AS varchar(max)), state_since_us = @now
WHERE id = @build AND state = 'running'
 AND NOT EXISTS (SELECT 1 FROM {{consumers}} AS c WHERE c.type = ` + consumerTypeSQL + ` AND c.name = ` + consumerNameSQL + ` AND c.live_build = @build);
`
	haltEntrySQL = `INSERT INTO {{consumer_history}} (` + historyColumnsSQL + `)
SELECT c.type, c.name, @build, @now, 'host', 'halt', CAST(@halt_topic COLLATE ` + collation + ` AS varchar(1020)), @halt_partition, @halt_position,
 CAST(@halt_key COLLATE ` + collation + ` AS varchar(1020)), CAST(@halt COLLATE ` + collation + ` AS varchar(max))
`

	// See standing. Of a row that is both what it was and what it becomes it cannot
	// be told what became of it.
	retriedSQL = batchHead + `
` + stageLeasesSQL + stageRetriesSQL + `DECLARE @holds int;
DECLARE @done int;
DECLARE @same int;
DECLARE @as_read int;
BEGIN TRANSACTION;
` + holdLeasesSQL + `SET @holds = @@ROWCOUNT;
SELECT @done = COUNT(CASE WHEN r.gone = 1 AND u.id IS NULL THEN 1 WHEN ` + becameSQL + ` AND NOT (` + wasSQL + `) THEN 1 END), @same = COUNT(CASE WHEN ` + wasSQL + ` AND NOT (` + becameSQL + `) THEN 1 END)
FROM @retries AS r LEFT JOIN {{undelivered}} AS u ON u.id = r.id AND u.build = @build;
SELECT @as_read = COUNT(*)
FROM @retries AS r INNER LOOP JOIN {{undelivered}} AS u ON u.id = r.id WHERE ` + asReadSQL + `;
COMMIT TRANSACTION;
SELECT @holds, @done, @same, @as_read;
`

	wasSQL    = `u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing`
	becameSQL = `r.gone = 0 AND u.status = r.becomes AND u.attempts = r.then_attempts AND u.passing = r.then_passing`
)

// kept names the lines of a batch that are about the host's own rows.
const kept = "\x00"

// keyHash is what undelivered messages and skip records have besides their key.
func keyHash(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}

// retriesArg stages retries.
func retriesArg(b *store.Batch) sql.NamedArg {
	var j rowsJSON
	for i := range b.Retries {
		r := &b.Retries[i]
		j.row()
		j.int("i", r.ID)
		j.int("p", int64(r.Partition))
		j.string("s", string(r.Status))
		j.int("a", int64(r.Attempts))
		j.int("b", int64(r.Passing))
		if r.Line != "" {
			j.string("l", string(r.Line))
		}
		t := r.Then
		if t == nil {
			j.int("g", 1)
			continue
		}
		j.int("g", 0)
		j.string("t", string(t.Status))
		j.int("c", int64(t.Code))
		j.string("r", rules.Reason(t.Reason))
		j.int("x", int64(t.Attempts))
		j.int("y", int64(t.Passing))
		j.string("d", t.Digest)
		if t.RetryIn > 0 {
			j.int("w", t.RetryIn.Microseconds())
		}
	}
	return named("retried", j.text())
}

func recordsArg(b *store.Batch) sql.NamedArg {
	var j rowsJSON
	for i := range b.Records {
		r := &b.Records[i]
		e := *r.Event
		if r.Unresolved {
			e = store.Event{Position: e.Position, ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type}
		}
		j.row()
		j.int("o", int64(i))
		j.string("t", r.Topic)
		j.int("f", e.Position)
		j.int("p", int64(r.Partition))
		j.string("k", r.Key)
		j.bytes("h", keyHash(r.Key))
		j.int("u", asBit(r.Unresolved))
		j.string("s", string(r.Status))
		j.int("c", int64(r.Code))
		j.string("r", rules.Reason(r.Reason))
		j.int("a", int64(r.Attempts))
		j.int("b", int64(r.Passing))
		j.string("d", r.Digest)
		if r.RetryIn > 0 {
			j.int("w", r.RetryIn.Microseconds())
		}
		j.bytes("i", e.ID[:])
		j.string("gt", e.AggregateType)
		j.string("gi", e.AggregateID)
		j.int("q", e.Sequence)
		j.string("et", e.Type)
		j.int("v", int64(e.Revision))
		j.string("cn", e.Codec)
		j.int("cv", int64(e.CodecVersion))
		j.int("ou", e.OccurredUS)
		if r.Unresolved {
			continue
		}
		switch text, bytes := sqlstore.Payload(e.Codec, e.Data); {
		case text != nil:
			j.string("dt", text.(string))
		case bytes != nil:
			j.bytes("db", bytes.([]byte))
		}
		if e.Metadata != nil {
			j.string("md", string(e.Metadata))
		}
	}
	return named("recorded", j.text())
}

func skipsArg(b *store.Batch) sql.NamedArg {
	var j rowsJSON
	seen := map[store.Skip]bool{}
	for i, s := range b.Skips {
		if seen[s] {
			continue
		}
		seen[s] = true
		j.row()
		j.int("o", int64(i))
		j.string("t", s.Topic)
		j.int("f", s.Position)
		j.int("p", int64(s.Partition))
		j.string("k", s.Key)
		j.bytes("h", keyHash(s.Key))
		j.int("e", asBit(s.EveryKey))
		j.string("d", sqlstore.SkipDetail(s.EveryKey))
	}
	return named("skipping", j.text())
}

// haltArgs are the arguments of haltConsumerSQL that no batch has otherwise.
func haltArgs(h *store.Halt) ([]any, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return []any{named("halt", string(text)), named("halt_topic", h.Topic), named("halt_key", h.Key),
		sql.Named("halt_partition", int64(h.Partition)), sql.Named("halt_position", h.Position)}, nil
}

// stageKept stages what a batch has besides rows and checkpoints.
func (w *writes) stageKept(b *store.Batch) error {
	if len(b.Retries)+len(b.Records)+len(b.Skips) == 0 && b.Halt == nil {
		return nil
	}
	w.add(kept, declareTimeSQL)
	if len(b.Retries) > 0 {
		w.add(kept, stageRetriesSQL)
		w.args = append(w.args, retriesArg(b))
	}
	if len(b.Records) > 0 {
		w.add(kept, stageRecordsSQL)
		w.args = append(w.args, recordsArg(b))
	}
	if len(b.Skips) > 0 {
		w.add(kept, stageSkipsSQL)
		w.args = append(w.args, skipsArg(b))
	}
	if len(b.Skips) > 0 || b.Halt != nil {
		w.args = append(w.args, named("type", b.Consumer.Type), named("name", b.Consumer.Name))
	}
	if b.Halt != nil {
		args, err := haltArgs(b.Halt)
		w.args = append(w.args, args...)
		return err
	}
	return nil
}

// writeKept writes it, but for the halt.
func (w *writes) writeKept(b *store.Batch) {
	if len(b.Retries) > 0 {
		w.add(kept, w.s.q.retry)
	}
	if len(b.Records) > 0 {
		w.add(kept, w.s.q.record)
	}
	if len(b.Skips) > 0 {
		w.add(kept, w.s.q.skip)
	}
}

// retried is how a batch's retried rows stand, under its leases.
type retried struct {
	held       bool
	done, same int
	asRead     int
}

func (s *Store) retried(ctx context.Context, op string, b *store.Batch) (at retried, err error) {
	found := false
	args := append(guardArgs(b), retriesArg(b))
	err = s.engine.batch(ctx, op, s.q.retried, args, nil, func(r *sql.Rows) error {
		for r.Next() {
			var held int
			if err := r.Scan(&held, &at.done, &at.same, &at.asRead); err != nil {
				return err
			}
			found, at.held = true, held == len(b.Leases)
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New(op + ": the answer tells nothing of the batch")
	}
	// Nothing was written, so nothing is unknown.
	var transient *store.TransientError
	if errors.As(err, &transient) {
		transient.OutcomeUnknown = false
	}
	return at, err
}

// named is a text argument, sent alike whatever its length.
func named(name, text string) sql.NamedArg { return sql.Named(name, mssql.NVarCharMax(text)) }

func asBit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
