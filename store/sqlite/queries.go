package sqlite

import lib "modernc.org/sqlite/lib"

const libVersion = lib.SQLITE_VERSION

// queries are the static statements, with the table prefix put in.
type queries struct {
	topic        string
	topics       string
	end          string
	setEnd       string
	insertEvent  string
	eventByID    string
	version      string
	stream       string
	page         string
	pagePart     string
	pageSome     string
	snapshot     string
	saveSnapshot string

	consumerQueries
}

// eventColumns in the order scanEvent reads. Handing a column over costs the
// driver more than SQLite takes to find it: a call, a lock, a box, a copy. So
// texts come in one, ended by U+0000, which none of them holds, with the payload
// behind them: concatenation and the CAST leave its bytes as they are. The codec
// is NULL where it is the usual one, and the partition is not read but computed.
const eventColumns = `position, CAST(concat_ws(char(0), id, aggregate_type, type, aggregate_id, coalesce(metadata, ''), data) AS BLOB),
 sequence, revision, CASE WHEN codec = 'json' AND codec_version = 1 THEN NULL ELSE codec_version || ' ' || codec END, occurred_us`

// An event that is stored is passed over, so that only it costs a look-up.
const insertEventSQL = `INSERT INTO {{events}} (position, id, aggregate_type, aggregate_id, sequence, type, revision, codec, codec_version,
 occurred_us, partition_key, data, metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
 ON CONFLICT (id) DO NOTHING`

func newQueries(n *naming) queries {
	return queries{
		consumerQueries: newConsumerQueries(n),

		topic:       n.sql(`SELECT name, kind, topic_start, end_position, high_water_mark FROM {{topics}} WHERE name = ?`),
		topics:      n.sql(`SELECT name, kind, topic_start, end_position, high_water_mark FROM {{topics}} ORDER BY name`),
		end:         n.sql(`SELECT end_position FROM {{topics}} WHERE name = 'events'`),
		setEnd:      n.sql(`UPDATE {{topics}} SET end_position = ? WHERE name = 'events'`),
		insertEvent: n.sql(insertEventSQL),
		eventByID:   n.sql(`SELECT ` + eventColumns + ` FROM {{events}} WHERE id = ?`),
		version:     n.sql(`SELECT max(sequence) FROM {{events}} WHERE aggregate_type = ? AND aggregate_id = ?`),
		stream: n.sql(`SELECT ` + eventColumns + ` FROM {{events}}
			WHERE aggregate_type = ? AND aggregate_id = ? AND sequence >= ? ORDER BY sequence LIMIT ?`),
		page: n.sql(`SELECT ` + eventColumns + ` FROM {{events}} WHERE position > ? AND position <= ? ORDER BY position LIMIT ?`),
		pagePart: n.sql(`SELECT ` + eventColumns + ` FROM {{events}}
			WHERE partition_key = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?`),
		// With a + no index fits, so that rows come in the order of positions.
		pageSome: n.sql(`SELECT ` + eventColumns + ` FROM {{events}}
			WHERE +partition_key IN (SELECT value FROM json_each(?)) AND position > ? AND position <= ? ORDER BY position LIMIT ?`),
		snapshot: n.sql(`SELECT sequence, version, codec, codec_version, created_us, CAST(data AS BLOB) FROM {{snapshots}}
			WHERE aggregate_type = ? AND aggregate_id = ?`),
		saveSnapshot: n.sql(`INSERT INTO {{snapshots}} (aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET sequence = excluded.sequence, version = excluded.version,
			codec = excluded.codec, codec_version = excluded.codec_version, created_us = excluded.created_us, data = excluded.data`),
	}
}
