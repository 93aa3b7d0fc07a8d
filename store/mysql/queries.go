package mysql

import (
	"strings"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

// queries are the driver's own statements, spelled once.
type queries struct {
	lockEnd     string
	draw        string // add a guard for each stream
	guard       string
	version     string // of one stream of a list, UNION ALL between them
	byID        string // IN (…)
	insertEvent string // rows follow
	stream      string
	end         string
	page        string
	pagePart    string
	pageSome    string

	fence          string // the generations follow
	moveCheckpoint string // see moves
	checkpoints    string
}

// eventColumns bring an event in few values: the codec is NULL where it is the
// usual one, data and data_bytes are one.
const eventColumns = `e.position, e.sequence, e.occurred_us, e.revision, e.id,
 CASE WHEN e.codec = 'json' AND e.codec_version = 1 THEN NULL ELSE concat(e.codec_version, ' ', e.codec) END,
 e.aggregate_type, e.aggregate_id, e.type, coalesce(e.data_bytes, e.data), e.metadata`

const eventColumnCount = 11

func newQueries(c *sqlstore.Core) queries {
	return queries{
		lockEnd: c.SQL(`SELECT end_position FROM {{topics}} WHERE name = 'events' FOR UPDATE`),
		// The new end comes back in the answer itself.
		draw:    c.SQL(`UPDATE {{topics}} SET end_position = LAST_INSERT_ID(end_position + ?) WHERE name = 'events'`),
		guard:   c.SQL(` AND EXISTS (SELECT 1 FROM {{events}} WHERE aggregate_type = ? AND aggregate_id = ? AND sequence = ?)`),
		version: c.SQL(`SELECT ? AS n, max(sequence) FROM {{events}} WHERE aggregate_type = ? AND aggregate_id = ?`),
		byID:    c.SQL(`SELECT ` + eventColumns + ` FROM {{events}} e WHERE e.id IN (`),
		insertEvent: c.SQL(`INSERT INTO {{events}} (position, sequence, occurred_us, id, partition_key, revision, codec_version,
 aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata) VALUES `),
		stream: c.SQL(`SELECT ` + eventColumns + ` FROM {{events}} e
 WHERE e.aggregate_type = ? AND e.aggregate_id = ? AND e.sequence >= ? ORDER BY e.sequence LIMIT ?`),
		end: c.SQL(`SELECT topic_start, end_position FROM {{topics}} WHERE name = ?`),
		page: c.SQL(`SELECT ` + eventColumns + `, t.topic_start FROM {{topics}} t
 JOIN {{events}} e ON e.position > ? AND e.position <= ? WHERE t.name = ? ORDER BY e.position LIMIT ?`),
		pagePart: c.SQL(`SELECT ` + eventColumns + `, t.topic_start FROM {{topics}} t
 JOIN {{events}} e ON e.partition_key = ? AND e.position > ? AND e.position <= ? WHERE t.name = ? ORDER BY e.position LIMIT ?`),
		// A condition that no index fits: rows come in the order of positions.
		pageSome: c.SQL(`SELECT ` + eventColumns + `, t.topic_start FROM {{topics}} t
 JOIN {{events}} e ON ascii(substring(?, (e.partition_key >> 3) + 1, 1)) & (1 << (e.partition_key & 7)) <> 0
 AND e.position > ? AND e.position <= ? WHERE t.name = ? ORDER BY e.position LIMIT ?`),

		// An UPDATE passes by rows that others hold and that do not match; a
		// SELECT … FOR UPDATE that the server answers from a longer stretch of the
		// index would wait for them.
		fence:          c.SQL(`UPDATE {{ownership}} SET generation = generation WHERE build = ? AND instance_id = ? AND `),
		moveCheckpoint: c.SQL(`UPDATE {{checkpoints}} SET`),
		checkpoints:    c.SQL(`SELECT "partition", position, epoch FROM {{checkpoints}} WHERE build = ? AND topic = ? AND "partition" IN (`),
	}
}

// marks are n placeholders for a list.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }
