package postgres

import "github.com/projhost/projhost/store/postgres/internal/mark"

// queries are the static statements, with the table prefix put in. All of a
// key's rows are found by nested loops that begin at the array: LATERAL and OFFSET
// keep the planner from turning the join round, which it would do for good while
// a table is small.
type queries struct {
	topic, topics     string
	beginAppend       string
	guardVersion      string
	guardVersions     string
	insertAt          string
	insertAny         string
	insertMany        string
	saveSnapshot      string
	eventsByID        string
	versions          string
	stream            string
	page, pageFit     string
	pagePart, partFit string
	pageSome, someFit string
	copyEvents        string
	fence, lockLeases string
	holdLease         string
	moveCheckpoints   string
	guardCheckpoints  string
	checkpoints       string
}

// clock is the database's, at the beginning of the statement, in microseconds.
const clock = `(extract(epoch FROM statement_timestamp()) * 1000000)::bigint`

// eventColumns in the order scanEvent reads.
const eventColumns = `e.position, e.sequence, e.occurred_us, e.id, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata`

const insertColumns = `sequence, occurred_us, id, partition_key, revision, codec_version, aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata`

// insertOne stores events of one stream, numbered from a version on.
func insertOne(version string) string {
	return `INSERT INTO {{events}} (` + insertColumns + `)
SELECT ` + version + ` + e.n, coalesce(e.occurred_us, (SELECT ` + clock + `)), e.id, $3, e.revision, e.codec_version, $1, $2, e.type, e.codec, e.data, e.data_bytes, e.metadata
FROM unnest($4::uuid[], $5::bigint[], $6::integer[], $7::integer[], $8::text[], $9::text[], $10::text[], $11::bytea[], $12::text[])
 WITH ORDINALITY AS e (id, occurred_us, revision, codec_version, type, codec, data, data_bytes, metadata, n)
RETURNING position, sequence`
}

func page(where string) string {
	return `SELECT t.topic_start, t.high_water_mark, e.* FROM {{topics}} t LEFT JOIN LATERAL (
 SELECT ` + eventColumns + ` FROM {{events}} e WHERE ` + where + `e.position > $2 AND e.position <= t.high_water_mark ORDER BY e.position LIMIT $3) e ON true
WHERE t.name = $1`
}

// fit is page that ends where the payload passes a size: two more events come
// along, so that one is seen to be left out.
func fit(where string) string {
	return `SELECT t.topic_start, t.high_water_mark, e.* FROM {{topics}} t LEFT JOIN LATERAL (
 SELECT ` + eventColumns + ` FROM (SELECT ` + eventColumns + `, sum(coalesce(octet_length(e.data), octet_length(e.data_bytes)) + coalesce(octet_length(e.metadata), 0))
   OVER (ORDER BY e.position ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING) AS before
  FROM {{events}} e WHERE ` + where + `e.position > $2 AND e.position <= t.high_water_mark ORDER BY e.position LIMIT $3) e
 WHERE e.before IS NULL OR e.before <= $4) e ON true
WHERE t.name = $1`
}

func newQueries(prefix, sequence string) queries {
	sql := func(text string) string { return tables(prefix, text) }
	topic := `SELECT t.name, t.kind, t.topic_start, t.high_water_mark,
 ` + mark.End(sequence) + ` FROM {{topics}} t`
	leases := `SELECT 1 FROM unnest($2::integer[], $3::bigint[]) l (partition, generation) CROSS JOIN LATERAL (
 SELECT 1 FROM {{ownership}} o WHERE o.build = $1 AND o.partition = l.partition AND o.generation = l.generation AND o.instance_id = $4 FOR UPDATE) o`
	moves := `unnest($2::text[], $3::integer[], $4::bigint[], $5::bigint[]) m (topic, partition, was, becomes)`
	return queries{
		topic:  sql(topic + ` WHERE t.name = $1`),
		topics: sql(topic + ` ORDER BY t.name`),
		// The transaction has its id before a position is drawn: a detector by
		// transaction ids depends on it. And the next position is above the mark
		// that this host knows, also where somebody has put an older database in
		// place or set the sequence back: what is appended below would never be
		// read (P4). The mark comes along, since reading its row becomes slow
		// while an old snapshot keeps all its versions.
		beginAppend:  `SELECT pg_current_xact_id(), 1 / (CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END >= $1)::int FROM ` + sequence + ` s`,
		guardVersion: sql(guarded("count(*) = 1", `SELECT 1 FROM {{events}} WHERE aggregate_type = $1 AND aggregate_id = $2 AND sequence = $3`)),
		guardVersions: sql(guarded("count(*) = $4::bigint", `SELECT 1 FROM unnest($1::text[], $2::text[], $3::bigint[]) s (aggregate_type, aggregate_id, version) CROSS JOIN LATERAL (
 SELECT 1 FROM {{events}} e WHERE e.aggregate_type = s.aggregate_type AND e.aggregate_id = s.aggregate_id AND e.sequence = s.version OFFSET 0) e`)),
		insertAt:  sql(insertOne(`$13::bigint`)),
		insertAny: sql(insertOne(`(SELECT coalesce(max(v.sequence), 0) FROM {{events}} v WHERE v.aggregate_type = $1 AND v.aggregate_id = $2)`)),
		insertMany: sql(`INSERT INTO {{events}} (` + insertColumns + `)
SELECT coalesce(e.sequence, e.n + (SELECT coalesce(max(v.sequence), 0) FROM {{events}} v WHERE v.aggregate_type = e.aggregate_type AND v.aggregate_id = e.aggregate_id)),
 coalesce(e.occurred_us, (SELECT ` + clock + `)), e.id, e.partition_key, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata
FROM unnest($1::text[], $2::text[], $3::integer[], $4::uuid[], $5::bigint[], $6::integer[], $7::integer[], $8::text[], $9::text[], $10::text[], $11::bytea[], $12::text[], $13::bigint[], $14::bigint[])
 AS e (aggregate_type, aggregate_id, partition_key, id, occurred_us, revision, codec_version, type, codec, data, data_bytes, metadata, sequence, n)
RETURNING position, sequence`),
		// An older snapshot than the stored one is passed over, unless that is
		// ahead of its stream and so counts as absent.
		saveSnapshot: sql(`INSERT INTO {{snapshots}} AS s (aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data, data_bytes)
VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, ` + clock + `), $8, $9)
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET sequence = excluded.sequence, version = excluded.version, codec = excluded.codec,
 codec_version = excluded.codec_version, created_us = excluded.created_us, data = excluded.data, data_bytes = excluded.data_bytes
WHERE s.sequence <= excluded.sequence OR s.sequence >
 (SELECT coalesce(max(v.sequence), 0) FROM {{events}} v WHERE v.aggregate_type = excluded.aggregate_type AND v.aggregate_id = excluded.aggregate_id)`),
		eventsByID: sql(`SELECT e.* FROM unnest($1::uuid[]) k (id) CROSS JOIN LATERAL (SELECT ` + eventColumns + ` FROM {{events}} e WHERE e.id = k.id OFFSET 0) e`),
		versions: sql(`SELECT s.n, (SELECT coalesce(max(v.sequence), 0) FROM {{events}} v WHERE v.aggregate_type = s.aggregate_type AND v.aggregate_id = s.aggregate_id), ` + clock + `
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS s (aggregate_type, aggregate_id, n)`),
		stream: sql(`SELECT ` + eventColumns + ` FROM {{events}} e
WHERE e.aggregate_type = $1 AND e.aggregate_id = $2 AND e.sequence >= $3 ORDER BY e.sequence LIMIT $4`),
		page:     sql(page("")),
		pagePart: sql(page("e.partition_key = $4 AND ")),
		pageFit:  sql(fit("")),
		partFit:  sql(fit("e.partition_key = $5 AND ")),
		// Some partitions are picked out of all in the order of positions: no index
		// fits the condition, and it is one that seems to hold for nearly every row,
		// lest the server thinks it has to read far for a page and sorts instead.
		pageSome: sql(page("get_bit($4::bytea, e.partition_key) <> 0 AND ")),
		someFit:  sql(fit("get_bit($5::bytea, e.partition_key) <> 0 AND ")),

		copyEvents: sql(`COPY {{events}} (` + insertColumns + `) FROM STDIN (FORMAT binary)`),

		// FOR UPDATE in the order of the array, which is by partition.
		fence:      sql(guarded("count(*) = $5::bigint", leases)),
		lockLeases: sql(`SELECT count(*) FROM (` + leases + `) l`),
		holdLease:  sql(`UPDATE {{ownership}} SET generation = generation WHERE build = $1 AND partition = $2 AND generation = $3 AND instance_id = $4`),
		// The values of a partition are at its place in arrays, which is found
		// without a search. A join of the table and arrays might be turned round
		// and compare each of N rows with each of N moves.
		moveCheckpoints: sql(`WITH moved AS (UPDATE {{checkpoints}} c SET position = ($5::bigint[])[c.partition - $8::integer],
 effects_through = greatest(c.effects_through, ($5::bigint[])[c.partition - $8::integer])
WHERE c.build = $1 AND c.topic = $2 AND c.partition = ANY ($3::integer[]) AND c.position = ($4::bigint[])[c.partition - $8::integer] AND c.epoch = $6 RETURNING 1)
` + guarded("count(*) = $7::bigint", `SELECT 1 FROM moved`)),
		guardCheckpoints: sql(guarded("count(*) = $7::bigint", `SELECT 1 FROM `+moves+` CROSS JOIN LATERAL (
 SELECT 1 FROM {{checkpoints}} c WHERE c.build = $1 AND c.topic = m.topic AND c.partition = m.partition AND c.position = m.was AND c.epoch = $6 AND m.becomes > 0 OFFSET 0) c`)),
		checkpoints: sql(`SELECT c.position, c.epoch, m.was, m.becomes FROM ` + moves + ` CROSS JOIN LATERAL (
 SELECT c.position, c.epoch FROM {{checkpoints}} c WHERE c.build = $1 AND c.topic = m.topic AND c.partition = m.partition OFFSET 0) c`),
	}
}
