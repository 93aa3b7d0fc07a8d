package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Leases are taken, given back and relied on in one batch each, like everything
// that locks what other hosts want: SQL Server knows no limit for a transaction
// whose client has gone quiet, so there is none (H35). What is decided is what
// the portable roles decide.

// liveSQL is the condition that instance i counts as running.
const liveSQL = `(i.ttl_us = 0 OR (i.last_heartbeat_us + i.ttl_us > @now AND i.last_heartbeat_us <= @now + i.ttl_us))`

const (
	instanceSQL = `CAST(@instance COLLATE ` + collation + ` AS varchar(1020))`

	declareNowSQL = batchHead + `
DECLARE @now bigint = ` + nowSQL + `;
`

	// What may be claimed is looked up without a lock and then taken by
	// compare-and-set on the generation. What somebody holds locked is passed over.
	claimSQL = declareNowSQL + `DECLARE @p TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NULL);
INSERT INTO @p ([partition])
SELECT DISTINCT j.p FROM OPENJSON(@partitions) WITH (p int '$') AS j;
DECLARE @taken TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NOT NULL);
DECLARE @lowest TABLE (topic varchar(1020) COLLATE ` + collation + ` NOT NULL, position bigint NOT NULL);
IF NOT EXISTS (SELECT 1 FROM {{instances}} AS i WHERE i.id = ` + instanceSQL + ` AND ` + liveSQL + `)
BEGIN
  THROW 51306, N'the instance has not joined, or no longer counts as joined', 1;
END;
UPDATE p SET p.generation = o.generation
FROM @p AS p INNER LOOP JOIN {{ownership}} AS o ON o.build = @build AND o.[partition] = p.[partition]
WHERE o.instance_id IS NULL OR o.instance_id = ` + instanceSQL + `
 OR NOT EXISTS (SELECT 1 FROM {{instances}} AS i WHERE i.id = o.instance_id AND ` + liveSQL + `)
 OR NOT EXISTS (SELECT 1 FROM {{members}} AS m WHERE m.instance_id = o.instance_id AND m.build = @build);
BEGIN TRANSACTION;
UPDATE o SET o.instance_id = ` + instanceSQL + `, o.generation = o.generation + 1
OUTPUT inserted.[partition], inserted.generation INTO @taken ([partition], generation)
FROM @p AS p INNER LOOP JOIN {{ownership}} AS o WITH (ROWLOCK, READPAST) ON o.build = @build AND o.[partition] = p.[partition]
WHERE o.generation = p.generation;
INSERT INTO @lowest (topic, position)
SELECT c.topic, MIN(c.position) FROM {{checkpoints}} AS c WHERE c.build = @build AND c.[partition] IN (SELECT t.[partition] FROM @taken AS t) GROUP BY c.topic;
UPDATE m SET m.tenure = @tenure, m.read_through = CASE WHEN m.read_through > l.position THEN l.position ELSE m.read_through END
FROM @lowest AS l INNER LOOP JOIN {{members}} AS m ON m.instance_id = ` + instanceSQL + ` AND m.build = @build AND m.topic = l.topic;
COMMIT TRANSACTION;
SELECT t.[partition], t.generation FROM @taken AS t ORDER BY t.[partition];
`

	declareHeldSQL = `DECLARE @held TABLE (build bigint NOT NULL, [partition] int NOT NULL, generation bigint NOT NULL, PRIMARY KEY (build, [partition]));
`

	giveBackSQL = `UPDATE o SET o.instance_id = NULL
FROM @held AS h INNER LOOP JOIN {{ownership}} AS o WITH (ROWLOCK) ON o.build = h.build AND o.[partition] = h.[partition]
WHERE o.generation = h.generation AND o.instance_id = ` + instanceSQL + `;
`

	releaseSQL = batchHead + `
` + declareHeldSQL + `INSERT INTO @held (build, [partition], generation)
SELECT DISTINCT j.b, j.p, j.g FROM OPENJSON(@leases) WITH (b bigint '$.b', p int '$.p', g bigint '$.g') AS j;
BEGIN TRANSACTION;
` + giveBackSQL + `COMMIT TRANSACTION;
`

	// Looked for first, so that rows are locked by their key and in order.
	leaveSQL = batchHead + `
` + declareHeldSQL + `INSERT INTO @held (build, [partition], generation)
SELECT o.build, o.[partition], o.generation FROM {{ownership}} AS o WHERE o.instance_id = ` + instanceSQL + `;
BEGIN TRANSACTION;
` + giveBackSQL + `DELETE FROM {{instances}} WHERE id = ` + instanceSQL + `;
DELETE FROM {{members}} WHERE instance_id = ` + instanceSQL + `;
COMMIT TRANSACTION;
`

	// A lease that was released has no instance, whatever its generation.
	haltSQL = declareNowSQL + `BEGIN TRANSACTION;
UPDATE {{ownership}} SET generation = generation
WHERE build = @build AND [partition] = @partition AND generation = @generation AND instance_id IS NOT NULL
 AND EXISTS (SELECT 1 FROM {{builds}} AS b WHERE b.id = @build AND b.consumer_type = CAST(@type COLLATE ` + collation + ` AS varchar(1020))
  AND b.consumer_name = CAST(@name COLLATE ` + collation + ` AS varchar(1020)));
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51304, N'a lease is no longer held', 1;
END;
` + haltConsumerSQL + `COMMIT TRANSACTION;
`

	clearHaltSQL = declareNowSQL + `BEGIN TRANSACTION;
UPDATE {{consumers}} SET state = ` + sqlstore.GoesOnSQL + `, halt = NULL, state_since_us = @now
WHERE type = CAST(@type COLLATE ` + collation + ` AS varchar(1020)) AND name = CAST(@name COLLATE ` + collation + ` AS varchar(1020)) AND state = 'halted';
SELECT @@ROWCOUNT;
COMMIT TRANSACTION;
`
)

// Claim implements [store.Leases].
//
// Promise (P2): each lease has one holder at each generation.
func (s *Store) Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error) {
	list := []byte{'['}
	for i, p := range partitions {
		if i > 0 {
			list = append(list, ',')
		}
		list = fmt.Append(list, p)
	}
	tenure = rules.NewTenure()
	args := []any{named("instance", instanceID), sql.Named("build", build), named("partitions", string(append(list, ']'))), sql.Named("tenure", tenure)}
	err = s.engine.batch(ctx, "claim", s.q.claim, args, nil, func(r *sql.Rows) error {
		leases = nil
		for r.Next() {
			l := store.Lease{Build: build}
			if err := r.Scan(&l.Partition, &l.Generation); err != nil {
				return err
			}
			leases = append(leases, l)
		}
		return nil
	})
	if number(err) == errJoined {
		err = fmt.Errorf("claim: instance %s: %w", instanceID, store.ErrNotFound)
	}
	if err != nil {
		return nil, 0, err
	}
	if len(leases) == 0 {
		tenure = 0
	}
	return leases, tenure, nil
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, instanceID string, leases []store.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	var j rowsJSON
	type place struct {
		build     int64
		partition int
	}
	newest := map[place]store.Lease{}
	for _, l := range leases {
		at := place{l.Build, l.Partition}
		if newest[at].Generation <= l.Generation {
			newest[at] = l
		}
	}
	for _, l := range leases {
		if newest[place{l.Build, l.Partition}] != l {
			continue // of an earlier time, and so no longer held
		}
		j.row()
		j.int("b", l.Build)
		j.int("p", int64(l.Partition))
		j.int("g", l.Generation)
	}
	return s.engine.batch(ctx, "release", s.q.release, []any{named("instance", instanceID), named("leases", j.text())}, nil, nil)
}

// Leave implements [store.Leases].
func (s *Store) Leave(ctx context.Context, instanceID string) error {
	return s.engine.batch(ctx, "leave", s.q.leave, []any{named("instance", instanceID)}, nil, nil)
}

// Halt implements [store.Consumers].
func (s *Store) Halt(ctx context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	op := "halt " + id.String()
	if h.AtUS == 0 {
		err := s.engine.query(ctx, op, s.q.now, nil, func(r *sql.Rows) error { return r.Scan(&h.AtUS) })
		if err != nil {
			return err
		}
	}
	args, err := haltArgs(&h)
	if err != nil {
		return err
	}
	args = append(args, sql.Named("build", lease.Build), sql.Named("partition", int64(lease.Partition)), sql.Named("generation", lease.Generation),
		named("type", id.Type), named("name", id.Name))
	err = s.engine.batch(ctx, op, s.q.halt, args, nil, nil)
	if number(err) == errFenced {
		return store.ErrFenced
	}
	return err
}

// ClearHalt implements [store.Consumers].
func (s *Store) ClearHalt(ctx context.Context, id store.ConsumerID) (was bool, err error) {
	err = s.engine.batch(ctx, "clear halt of "+id.String(), s.q.clearHalt, []any{named("type", id.Type), named("name", id.Name)}, nil, func(r *sql.Rows) error {
		var n int64
		if r.Next() {
			if err := r.Scan(&n); err != nil {
				return err
			}
		}
		was = n > 0
		return nil
	})
	return was && err == nil, err
}
