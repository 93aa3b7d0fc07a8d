package sqlstore

import "strings"

// queries are the static statements, spelled once.
type queries struct {
	applied string
	frozen  string

	now   string
	topic string

	version        string
	snapshot       string
	snapshotSeq    string
	insertSnapshot string
	updateSnapshot string
	replaceAhead   string

	consumer       string
	consumers      string
	insertConsumer string
	insertBuild    string
	drawBuild      string
	build          string
	tableOwner     string
	ownsTable      string
	claimTable     string
	adopting       string
	adopted        string
	insertCheckpts string
	countOwnership string
	countCheckpts  string
	lockTopic      string
	checkpoints    string
	position       string
	lowest         string
	told           string
	standings      string
	clearHalt      string
	guardHolder    string

	join         string
	heartbeat    string
	instances    string
	joined       string
	lapsed       string
	endLapsed    string
	dropLapsed   string
	dropInstance string
	held         string
	owners       string

	lockInstance    string
	recorded        string
	dropMemberships string
	dropStranger    string
	members         string
	states          string
}

const consumerColumns = `c.type, c.name, c.state, c.state_since_us, c.halt, c.epoch, c.live_build, b.plugin, b.digest, b.topics,
 b.fingerprint_version, b.inputs_hash, b.keys_hash, b.tables_hash, b.logic_hash, b.tables`

const consumerSQL = `SELECT ` + consumerColumns + ` FROM {{consumers}} c JOIN {{builds}} b ON b.id = c.live_build`

// live is the condition that an instance counts as running, by the database's
// clock. A heartbeat of the future is from before that clock was set back, and
// proves nothing until the clock is there again (H36).
const live = `(ttl_us = 0 OR (last_heartbeat_us + ttl_us > {{now}} AND last_heartbeat_us <= {{now}} + ttl_us))`

// The statements that insert the host's own rows are part of the schema script
// as well, with their values put in.
const (
	insertMigrationSQL = `INSERT INTO {{schema_migrations}} (version, name, checksum, applied_us) VALUES (%d, '%s', '%s', {{now}})`
	insertFrozenSQL    = `INSERT INTO {{partition_metadata}} (id, partitions, hash, key_encoding, position_mode) VALUES (1, %d, '%s', %d, '%s')`
	insertTopicSQL     = `INSERT INTO {{topics}} (name, kind) VALUES ('events', 'events')`
	insertCounterSQL   = `INSERT INTO {{counters}} (name, value) VALUES ('builds', 0)`
)

func newQueries(n *naming) queries {
	return queries{
		applied: n.sql(`SELECT version, name, checksum FROM {{schema_migrations}} ORDER BY version`),
		frozen:  n.sql(`SELECT partitions, hash, key_encoding, position_mode FROM {{partition_metadata}} WHERE id = 1`),

		now:   n.sql(`SELECT {{now}}`),
		topic: n.sql(`SELECT name, kind, topic_start, end_position, high_water_mark FROM {{topics}}`),

		version: n.sql(`SELECT COALESCE(max(sequence), 0) FROM {{events}} WHERE aggregate_type = {{?}} AND aggregate_id = {{?}}`),
		snapshot: n.sql(`SELECT s.sequence, s.version, s.codec, s.codec_version, s.created_us, s.data, s.data_bytes,
			(SELECT COALESCE(max(e.sequence), 0) FROM {{events}} e WHERE e.aggregate_type = {{?}} AND e.aggregate_id = {{?}})
			FROM {{snapshots}} s WHERE s.aggregate_type = {{?}} AND s.aggregate_id = {{?}}`),
		snapshotSeq: n.sql(`SELECT sequence FROM {{snapshots}} WHERE aggregate_type = {{?}} AND aggregate_id = {{?}}`),
		insertSnapshot: n.sql(`INSERT INTO {{snapshots}} (sequence, version, codec, codec_version, created_us, data, data_bytes, aggregate_type, aggregate_id)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`),
		updateSnapshot: n.sql(updateSnapshotSQL + ` AND sequence <= ?`),
		replaceAhead:   n.sql(updateSnapshotSQL + ` AND sequence = ?`),

		consumer:       n.sql(consumerSQL + ` WHERE c.type = {{?}} AND c.name = {{?}}`),
		consumers:      n.sql(consumerSQL + ` ORDER BY c.type, c.name`),
		insertConsumer: n.sql(`INSERT INTO {{consumers}} (type, name, state, state_since_us, live_build) VALUES (?, ?, 'running', ?, ?)`),
		insertBuild: n.sql(`INSERT INTO {{builds}} (id, consumer_type, consumer_name, created_us, state, state_since_us, plugin, digest, topics,
			fingerprint_version, inputs_hash, keys_hash, tables_hash, logic_hash, tables) VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`),
		drawBuild: n.sql(`UPDATE {{counters}} SET value = value + 1 WHERE name = 'builds'`),
		build:     n.sql(`SELECT value FROM {{counters}} WHERE name = 'builds'`),
		tableOwner: n.sql(`SELECT t.consumer_type, t.consumer_name, b.plugin FROM {{read_model_tables}} t
			LEFT JOIN {{consumers}} c ON c.type = t.consumer_type AND c.name = t.consumer_name LEFT JOIN {{builds}} b ON b.id = c.live_build WHERE t.name = {{?}}`),
		ownsTable:  n.sql(`SELECT count(*) FROM {{read_model_tables}} WHERE name = {{?}} AND consumer_type = {{?}} AND consumer_name = {{?}}`),
		claimTable: n.sql(`INSERT INTO {{read_model_tables}} (name, consumer_type, consumer_name, declared, build, adopting) VALUES (?, ?, ?, ?, ?, ?)`),
		adopting:   n.sql(`SELECT adopting FROM {{read_model_tables}} WHERE name = {{?}}`),
		adopted:    n.sql(`UPDATE {{read_model_tables}} SET adopting = NULL WHERE name = {{?}}`),
		insertCheckpts: n.sql(`INSERT INTO {{checkpoints}} (build, topic, "partition")
			SELECT build, ?, "partition" FROM {{ownership}} WHERE build = ?`),
		countOwnership: n.sql(`SELECT count(*) FROM {{ownership}} WHERE build = ?`),
		countCheckpts:  n.sql(`SELECT count(*) FROM {{checkpoints}} WHERE build = ?`),
		// Retention locks the same row before it asks for the slowest
		// checkpoint, so it sees ours, or we see what it deleted (H11).
		lockTopic:   n.sql(`UPDATE {{topics}} SET topic_start = topic_start WHERE name = {{?}}`),
		checkpoints: n.sql(`SELECT topic, "partition", position, epoch, effects_through, effects_before, replay_through, pruned_epoch, incomplete_through, stop_at FROM {{checkpoints}} WHERE build = ? ORDER BY topic, "partition"`),
		// The owner is looked up by keys alone: a join might be planned the other
		// way round.
		position: n.sql(`SELECT c.position, COALESCE((SELECT m.read_through FROM {{members}} m WHERE m.build = c.build AND m.topic = c.topic
			AND m.instance_id = (SELECT o.instance_id FROM {{ownership}} o WHERE o.build = c.build AND o."partition" = c."partition")), 0)
			FROM {{checkpoints}} c WHERE c.build = ? AND c.topic = {{?}} AND c."partition" = ?`),
		lowest: n.sql(`SELECT topic, min(position) FROM {{checkpoints}} WHERE build = ? GROUP BY topic`),
		told: n.sql(`SELECT m.topic, min(m.read_through) FROM (SELECT DISTINCT instance_id FROM {{ownership}} WHERE build = ?) o
			LEFT JOIN {{members}} m ON m.instance_id = o.instance_id AND m.build = ? GROUP BY m.topic`),
		standings: n.sql(`SELECT c.topic, c."partition", c.position, o.instance_id, o.generation, COALESCE(m.read_through, 0),
			c.replay_through, c.incomplete_through, CASE WHEN c.pruned_epoch < c.epoch THEN 1 ELSE 0 END
			FROM {{checkpoints}} c JOIN {{ownership}} o ON o.build = c.build AND o."partition" = c."partition"
			LEFT JOIN {{members}} m ON m.instance_id = o.instance_id AND m.build = c.build AND m.topic = c.topic
			WHERE c.build = ? ORDER BY c.topic, c."partition"`),
		clearHalt: n.sql(`UPDATE {{consumers}} SET state = ` + GoesOnSQL + `, halt = NULL, state_since_us = {{now}}
			WHERE type = {{?}} AND name = {{?}} AND state = 'halted'`),
		// Locks the lease against the next claim until the transaction ends. A
		// lease that was released has no instance, whatever its generation.
		guardHolder: n.sql(`UPDATE {{ownership}} SET generation = generation
			WHERE build = ? AND "partition" = ? AND generation = ? AND instance_id IS NOT NULL
			AND build IN (SELECT id FROM {{builds}} WHERE consumer_type = {{?}} AND consumer_name = {{?}})`),

		join: n.sql(`INSERT INTO {{instances}} (id, host_name, started_us, ttl_us, last_heartbeat_us, max_partitions)
			VALUES (?, ?, ?, ?, ?, ?)`),
		heartbeat: n.sql(`UPDATE {{instances}} SET last_heartbeat_us = {{now}} WHERE id = {{?}}`),
		joined:    n.sql(`SELECT count(*) FROM {{instances}} WHERE id = {{?}} AND ` + live),
		instances: n.sql(`SELECT id, host_name, started_us, ttl_us, last_heartbeat_us, max_partitions, CASE WHEN ` + live + ` THEN 1 ELSE 0 END
			FROM {{instances}} ORDER BY started_us, id`),
		lapsed:       n.sql(`SELECT id FROM {{instances}} WHERE NOT ` + live + ` ORDER BY id`),
		endLapsed:    n.sql(strings.ReplaceAll(n.d.EndLapsed, "{{live}}", live)),
		dropLapsed:   n.sql(`DELETE FROM {{instances}} WHERE id = {{?}} AND NOT ` + live),
		dropInstance: n.sql(`DELETE FROM {{instances}} WHERE id = {{?}}`),
		held:         n.sql(`SELECT build, "partition", generation FROM {{ownership}} WHERE instance_id = {{?}} ORDER BY build, "partition"`),
		owners:       n.sql(`SELECT "partition", instance_id, generation FROM {{ownership}} WHERE build = ? ORDER BY "partition"`),

		// Locks the instance against its removal until the transaction ends.
		lockInstance:    n.sql(`UPDATE {{instances}} SET max_partitions = max_partitions WHERE id = {{?}}`),
		recorded:        n.sql(`SELECT count(*) FROM {{instances}} WHERE id = {{?}}`),
		dropMemberships: n.sql(`DELETE FROM {{members}} WHERE instance_id = {{?}}`),
		// The instance may have lived after all.
		dropStranger: n.sql(`DELETE FROM {{members}} WHERE instance_id = {{?}}
			AND NOT EXISTS (SELECT 1 FROM {{instances}} i WHERE i.id = {{members}}.instance_id)`),
		members: n.sql(`SELECT build, instance_id, topic, single_owner, read_through, COALESCE(tenure, 0) FROM {{members}} ORDER BY build, instance_id, topic`),
		states:  n.sql(StatesSQL),
	}
}

const updateSnapshotSQL = `UPDATE {{snapshots}} SET sequence = ?, version = ?, codec = ?, codec_version = ?, created_us = ?, data = ?, data_bytes = ?
 WHERE aggregate_type = {{?}} AND aggregate_id = {{?}}`

const (
	claimableSQL = `SELECT "partition", generation, CASE WHEN instance_id <> {{?}} THEN 1 ELSE 0 END FROM {{ownership}} WHERE build = ? AND "partition" IN (%s)
		AND (instance_id IS NULL OR instance_id = {{?}} OR instance_id NOT IN (SELECT id FROM {{instances}} WHERE ` + live + `)
		OR instance_id NOT IN (SELECT m.instance_id FROM {{members}} m WHERE m.build = ?))
		ORDER BY "partition"`
	// What has changed since it was looked at is at its generation no more.
	freeSQL  = `SELECT "partition", generation, 0 FROM {{ownership}} WHERE build = ? AND (%s) ORDER BY "partition" FOR UPDATE SKIP LOCKED`
	beginSQL = `UPDATE {{members}} SET tenure = ?, read_through = CASE WHEN read_through > (%[1]s) THEN (%[1]s) ELSE read_through END
		WHERE instance_id = {{?}} AND build = ?`
	// Of the topic and the build of a membership.
	lowestOfSQL = `SELECT min(c.position) FROM {{checkpoints}} c
		WHERE c.build = {{members}}.build AND c.topic = {{members}}.topic AND c."partition" IN (%s)`
	claimSQL   = `UPDATE {{ownership}} SET instance_id = ?, generation = generation + 1 WHERE build = ? AND (%s)`
	releaseSQL = `UPDATE {{ownership}} SET instance_id = NULL WHERE build = ? AND instance_id = {{?}} AND (%s)`
	delistSQL  = `DELETE FROM {{members}} WHERE instance_id = {{?}} AND build NOT IN (%s)`
	changedSQL = `UPDATE {{members}} SET single_owner = 1 - single_owner
		WHERE instance_id = {{?}} AND single_owner <> CASE WHEN build IN (%s) THEN 1 ELSE 0 END`
	// One row of checkpoints for each topic of a build.
	enlistSQL = `INSERT INTO {{members}} (instance_id, build, topic, single_owner)
		SELECT i.id, c.build, c.topic, CASE WHEN c.build IN (%[2]s) THEN 1 ELSE 0 END FROM {{checkpoints}} c JOIN {{instances}} i ON i.id = {{?}}
		WHERE c.build IN (%[1]s) AND c."partition" = 0
		AND NOT EXISTS (SELECT 1 FROM {{members}} m WHERE m.instance_id = i.id AND m.build = c.build AND m.topic = c.topic)`
	advanceSQL   = `UPDATE {{members}} SET read_through = CASE%s ELSE read_through END WHERE instance_id = {{?}} AND (%s)`
	advanceCase  = ` WHEN build = ? AND topic = {{?}} THEN ?`
	advanceKey   = `build = ? AND topic = {{?}} AND tenure = ? AND read_through < ?`
	ownersOfSQL  = `SELECT build, "partition", instance_id, generation FROM {{ownership}} WHERE build IN (%s) ORDER BY build, "partition"`
	ownershipSQL = `INSERT INTO {{ownership}} (build, "partition") VALUES %s`
)
