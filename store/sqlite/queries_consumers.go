package sqlite

import "github.com/projhost/projhost/store/internal/sqlstore"

// fails is an expression that SQLite cannot evaluate: an integer overflow, which
// it reports as a plain error. A guard is a statement that yields it when what
// the transaction relies on is not so; so a guard fails as an error inside the
// transaction, and nobody has to remember to look at a count (P1, P2).
const fails = `abs(-9223372036854775808)`

// live is the condition that an instance counts as running at ?1. A heartbeat of
// the future is from before the clock was set back, and proves nothing (H36).
const live = `(expires_us > ?1 AND (ttl_us = 0 OR last_heartbeat_us <= ?1 + ttl_us))`

// consumerQueries are the static statements of consumers, leases and applies.
type consumerQueries struct {
	consumer        string
	consumers       string
	insertConsumer  string
	insertBuild     string
	tableOwner      string
	ownsTable       string
	claimTable      string
	insertOwnership string
	insertCheckpts  string
	countOwnership  string
	countCheckpts   string
	checkpoints     string
	checkpoint      string
	position        string
	lowest          string
	told            string
	standings       string
	clearHalt       string
	guardHolder     string

	joinInstance  string
	heartbeat     string
	instance      string
	joined        string
	instances     string
	dropInstance  string
	dropLapsed    string
	dropInstances string
	releaseAll    string
	claim         string
	release       string
	owners        string

	beginTenure     string
	advance         string
	enlist          string
	delist          string
	dropMemberships string
	dropStrangers   string
	members         string
	states          string
	ownersOf        string

	guardLeases  string
	moveCheckpt  string
	totalChanges string
	guardChanges string
}

const consumerColumns = `c.type, c.name, c.state, c.state_since_us, c.halt, c.epoch, c.live_build, b.plugin, b.digest, b.topics,
 b.fingerprint_version, b.inputs_hash, b.keys_hash, b.tables_hash, b.logic_hash, b.tables`

const consumerSQL = `SELECT ` + consumerColumns + ` FROM {{consumers}} c JOIN {{builds}} b ON b.id = c.live_build`

func newConsumerQueries(n *naming) consumerQueries {
	return consumerQueries{
		consumer:       n.sql(consumerSQL + ` WHERE c.type = ? AND c.name = ?`),
		consumers:      n.sql(consumerSQL + ` ORDER BY c.type, c.name`),
		insertConsumer: n.sql(`INSERT INTO {{consumers}} (type, name, state, state_since_us, live_build) VALUES (?, ?, 'running', ?, ?)`),
		insertBuild: n.sql(`INSERT INTO {{builds}} (consumer_type, consumer_name, created_us, state, state_since_us, plugin, digest, topics,
			fingerprint_version, inputs_hash, keys_hash, tables_hash, logic_hash, tables) VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`),
		tableOwner: n.sql(`SELECT t.consumer_type, t.consumer_name, b.plugin FROM {{read_model_tables}} t
			LEFT JOIN {{consumers}} c ON c.type = t.consumer_type AND c.name = t.consumer_name LEFT JOIN {{builds}} b ON b.id = c.live_build WHERE t.name = ?`),
		ownsTable:  n.sql(`SELECT 1 FROM {{read_model_tables}} WHERE name = ? AND consumer_type = ? AND consumer_name = ?`),
		claimTable: n.sql(`INSERT INTO {{read_model_tables}} (name, consumer_type, consumer_name, declared, build) VALUES (?, ?, ?, ?, ?)`),
		insertOwnership: n.sql(`WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i + 1 < ?)
			INSERT INTO {{ownership}} (build, partition) SELECT ?, i FROM p`),
		insertCheckpts: n.sql(`WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i + 1 < ?)
			INSERT INTO {{checkpoints}} (build, topic, partition) SELECT ?, ?, i FROM p`),
		countOwnership: n.sql(`SELECT count(*) FROM {{ownership}} WHERE build = ?`),
		countCheckpts:  n.sql(`SELECT count(*) FROM {{checkpoints}} WHERE build = ?`),
		checkpoints:    n.sql(`SELECT topic, partition, position, epoch, effects_through, effects_before, replay_through, pruned_epoch, incomplete_through, stop_at FROM {{checkpoints}} WHERE build = ? ORDER BY topic, partition`),
		checkpoint:     n.sql(`SELECT position, epoch FROM {{checkpoints}} WHERE build = ? AND topic = ? AND partition = ?`),
		position: n.sql(`SELECT max(c.position, coalesce((SELECT m.read_through FROM {{members}} m WHERE m.build = c.build AND m.topic = c.topic
			AND m.instance_id = (SELECT o.instance_id FROM {{ownership}} o WHERE o.build = c.build AND o.partition = c.partition)), 0))
			FROM {{checkpoints}} c WHERE c.build = ? AND c.topic = ? AND c.partition = ?`),
		lowest: n.sql(`SELECT topic, min(position) FROM {{checkpoints}} WHERE build = ? GROUP BY topic`),
		told: n.sql(`SELECT m.topic, min(m.read_through) FROM (SELECT DISTINCT instance_id FROM {{ownership}} WHERE build = ?1) o
			LEFT JOIN {{members}} m ON m.instance_id = o.instance_id AND m.build = ?1 GROUP BY m.topic`),
		standings: n.sql(`SELECT c.topic, c.partition, c.position, coalesce(o.instance_id, ''), o.generation, coalesce(m.read_through, 0),
			c.replay_through, c.incomplete_through, c.pruned_epoch < c.epoch
			FROM {{checkpoints}} c JOIN {{ownership}} o ON o.build = c.build AND o.partition = c.partition
			LEFT JOIN {{members}} m ON m.instance_id = o.instance_id AND m.build = c.build AND m.topic = c.topic
			WHERE c.build = ? ORDER BY c.topic, c.partition`),
		clearHalt: n.sql(`UPDATE {{consumers}} SET state = ` + sqlstore.GoesOnSQL + `, halt = NULL, state_since_us = ?
			WHERE type = ? AND name = ? AND state = 'halted' RETURNING 1`),
		// A lease that was released has no instance, whatever its generation.
		guardHolder: n.sql(`SELECT CASE WHEN EXISTS (SELECT 1 FROM {{ownership}} o JOIN {{builds}} b ON b.id = o.build
			WHERE o.build = ? AND o.partition = ? AND o.generation = ? AND o.instance_id IS NOT NULL
			AND b.consumer_type = ? AND b.consumer_name = ?) THEN 1 ELSE ` + fails + ` END`),

		joinInstance: n.sql(`INSERT INTO {{instances}} (id, host_name, started_us, ttl_us, last_heartbeat_us, max_partitions) VALUES (?, ?, ?, ?, ?, ?)`),
		heartbeat:    n.sql(`UPDATE {{instances}} SET last_heartbeat_us = ? WHERE id = ?`),
		instance:     n.sql(`SELECT 1 FROM {{instances}} WHERE id = ?2 AND ` + live),
		joined:       n.sql(`SELECT 1 FROM {{instances}} WHERE id = ?`),
		instances:    n.sql(`SELECT id, host_name, started_us, ttl_us, last_heartbeat_us, max_partitions, ` + live + ` FROM {{instances}} ORDER BY started_us, id`),
		dropInstance: n.sql(`DELETE FROM {{instances}} WHERE id = ?`),
		dropLapsed:   n.sql(`DELETE FROM {{instances}} WHERE NOT ` + live),
		// Nobody else can have the database open.
		dropInstances: n.sql(`DELETE FROM {{instances}}`),
		releaseAll:    n.sql(`UPDATE {{ownership}} SET instance_id = NULL WHERE instance_id = ?`),
		claim: n.sql(`UPDATE {{ownership}} SET instance_id = ?2, generation = generation + 1
			WHERE build = ?3 AND partition IN (SELECT value FROM json_each(?4))
			AND (instance_id IS NULL OR instance_id = ?2 OR instance_id NOT IN (SELECT id FROM {{instances}} WHERE ` + live + `)
			OR instance_id NOT IN (SELECT m.instance_id FROM {{members}} m WHERE m.build = ?3))
			RETURNING partition, generation`),
		release: n.sql(`UPDATE {{ownership}} SET instance_id = NULL WHERE build = ? AND partition = ? AND generation = ? AND instance_id = ?`),
		owners:  n.sql(`SELECT partition, instance_id, generation FROM {{ownership}} WHERE build = ? ORDER BY partition`),

		beginTenure: n.sql(`UPDATE {{members}} SET tenure = ?1, read_through = min(read_through, (SELECT min(c.position) FROM {{checkpoints}} c
			WHERE c.build = {{members}}.build AND c.topic = {{members}}.topic AND c.partition IN (SELECT value FROM json_each(?2))))
			WHERE instance_id = ?3 AND build = ?4`),
		advance: n.sql(`UPDATE {{members}} SET read_through = ?1
			WHERE instance_id = ?2 AND build = ?3 AND topic = ?4 AND tenure = ?5 AND read_through < ?1`),
		// One row of checkpoints for each topic of a build.
		enlist: n.sql(`INSERT INTO {{members}} (instance_id, build, topic, single_owner)
			SELECT ?1, c.build, c.topic, max(l.value ->> 1) FROM json_each(?2) l CROSS JOIN {{checkpoints}} c ON c.build = l.value ->> 0
			WHERE c.partition = 0 GROUP BY c.build, c.topic
			ON CONFLICT DO UPDATE SET single_owner = excluded.single_owner`),
		delist:          n.sql(`DELETE FROM {{members}} WHERE instance_id = ? AND build NOT IN (SELECT value ->> 0 FROM json_each(?))`),
		dropMemberships: n.sql(`DELETE FROM {{members}} WHERE instance_id = ?`),
		dropStrangers:   n.sql(`DELETE FROM {{members}} WHERE instance_id NOT IN (SELECT id FROM {{instances}})`),
		members:         n.sql(`SELECT build, instance_id, topic, single_owner, read_through, coalesce(tenure, 0) FROM {{members}} ORDER BY build, instance_id, topic`),
		states:          n.sql(sqlstore.StatesSQL),
		ownersOf: n.sql(`SELECT build, partition, instance_id, generation FROM {{ownership}}
			WHERE build IN (SELECT value FROM json_each(?)) ORDER BY build, partition`),

		// CROSS JOIN: SQLite keeps this order, and looks each lease up by its
		// key. The other way round it would pass the list once a row.
		guardLeases: n.sql(`SELECT CASE WHEN count(*) = ? THEN 1 ELSE ` + fails + ` END
			FROM json_each(?) l CROSS JOIN {{ownership}} o
			WHERE o.build = ? AND o.partition = l.value ->> 0 AND o.generation = l.value ->> 1 AND o.instance_id = ?`),
		// Compare and set: anything but the expected position and epoch makes
		// the position NULL, which the column refuses.
		moveCheckpt: n.sql(`UPDATE {{checkpoints}} SET position = CASE WHEN position = ? AND epoch = ? THEN ? END,
			effects_through = max(effects_through, ?) WHERE build = ? AND topic = ? AND partition = ?`),
		totalChanges: `SELECT total_changes()`,
		guardChanges: `SELECT CASE WHEN total_changes() = ? THEN 1 ELSE ` + fails + ` END`,
	}
}

// findObjectSQL looks a name up as SQLite does: without case, in ASCII.
const findObjectSQL = `SELECT type, name, sql FROM sqlite_schema WHERE lower(name) = lower(?) AND type IN ('table', 'view', 'index')`
