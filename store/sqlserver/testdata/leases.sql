SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
DELETE FROM [ph_instances] WHERE id = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND NOT (ttl_us = 0 OR (last_heartbeat_us + ttl_us > DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AND last_heartbeat_us <= DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) + ttl_us));
DELETE FROM [ph_members] WHERE instance_id = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))
			AND NOT EXISTS (SELECT 1 FROM [ph_instances] i WHERE i.id = [ph_members].instance_id);
INSERT INTO [ph_instances] (id, host_name, started_us, ttl_us, last_heartbeat_us, max_partitions)
			VALUES (CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p5, @p6, @p7, @p8);
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
DELETE FROM [ph_instances] WHERE id = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND NOT (ttl_us = 0 OR (last_heartbeat_us + ttl_us > DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) AND last_heartbeat_us <= DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) + ttl_us));
DELETE FROM [ph_members] WHERE instance_id = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))
			AND NOT EXISTS (SELECT 1 FROM [ph_instances] i WHERE i.id = [ph_members].instance_id);
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
UPDATE [ph_instances] SET max_partitions = max_partitions WHERE id = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020));
DELETE FROM [ph_members] WHERE instance_id = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND build NOT IN (0, 9, 8);
UPDATE [ph_members] SET single_owner = 1 - single_owner
		WHERE instance_id = CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND single_owner <> CASE WHEN build IN (0, 8) THEN 1 ELSE 0 END;
INSERT INTO [ph_members] (instance_id, build, topic, single_owner)
		SELECT i.id, c.build, c.topic, CASE WHEN c.build IN (0, 8) THEN 1 ELSE 0 END FROM [ph_checkpoints] c JOIN [ph_instances] i ON i.id = CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))
		WHERE c.build IN (0, 9, 8) AND c.[partition] = 0
		AND NOT EXISTS (SELECT 1 FROM [ph_members] m WHERE m.instance_id = i.id AND m.build = c.build AND m.topic = c.topic);
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now bigint = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME());
DECLARE @p TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NULL);
INSERT INTO @p ([partition])
SELECT DISTINCT j.p FROM OPENJSON(@partitions) WITH (p int '$') AS j;
DECLARE @taken TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NOT NULL);
DECLARE @lowest TABLE (topic varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, position bigint NOT NULL);
IF NOT EXISTS (SELECT 1 FROM [ph_instances] AS i WHERE i.id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND (i.ttl_us = 0 OR (i.last_heartbeat_us + i.ttl_us > @now AND i.last_heartbeat_us <= @now + i.ttl_us)))
BEGIN
  THROW 51306, N'the instance has not joined, or no longer counts as joined', 1;
END;
UPDATE p SET p.generation = o.generation
FROM @p AS p INNER LOOP JOIN [ph_ownership] AS o ON o.build = @build AND o.[partition] = p.[partition]
WHERE o.instance_id IS NULL OR o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020))
 OR NOT EXISTS (SELECT 1 FROM [ph_instances] AS i WHERE i.id = o.instance_id AND (i.ttl_us = 0 OR (i.last_heartbeat_us + i.ttl_us > @now AND i.last_heartbeat_us <= @now + i.ttl_us)))
 OR NOT EXISTS (SELECT 1 FROM [ph_members] AS m WHERE m.instance_id = o.instance_id AND m.build = @build);
BEGIN TRANSACTION;
UPDATE o SET o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), o.generation = o.generation + 1
OUTPUT inserted.[partition], inserted.generation INTO @taken ([partition], generation)
FROM @p AS p INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK, READPAST) ON o.build = @build AND o.[partition] = p.[partition]
WHERE o.generation = p.generation;
INSERT INTO @lowest (topic, position)
SELECT c.topic, MIN(c.position) FROM [ph_checkpoints] AS c WHERE c.build = @build AND c.[partition] IN (SELECT t.[partition] FROM @taken AS t) GROUP BY c.topic;
UPDATE m SET m.tenure = @tenure, m.read_through = CASE WHEN m.read_through > l.position THEN l.position ELSE m.read_through END
FROM @lowest AS l INNER LOOP JOIN [ph_members] AS m ON m.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND m.build = @build AND m.topic = l.topic;
COMMIT TRANSACTION;
SELECT t.[partition], t.generation FROM @taken AS t ORDER BY t.[partition];

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @held TABLE (build bigint NOT NULL, [partition] int NOT NULL, generation bigint NOT NULL, PRIMARY KEY (build, [partition]));
INSERT INTO @held (build, [partition], generation)
SELECT DISTINCT j.b, j.p, j.g FROM OPENJSON(@leases) WITH (b bigint '$.b', p int '$.p', g bigint '$.g') AS j;
BEGIN TRANSACTION;
UPDATE o SET o.instance_id = NULL
FROM @held AS h INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK) ON o.build = h.build AND o.[partition] = h.[partition]
WHERE o.generation = h.generation AND o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @held TABLE (build bigint NOT NULL, [partition] int NOT NULL, generation bigint NOT NULL, PRIMARY KEY (build, [partition]));
INSERT INTO @held (build, [partition], generation)
SELECT o.build, o.[partition], o.generation FROM [ph_ownership] AS o WHERE o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
BEGIN TRANSACTION;
UPDATE o SET o.instance_id = NULL
FROM @held AS h INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK) ON o.build = h.build AND o.[partition] = h.[partition]
WHERE o.generation = h.generation AND o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
DELETE FROM [ph_instances] WHERE id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
DELETE FROM [ph_members] WHERE instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now bigint = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME());
BEGIN TRANSACTION;
UPDATE [ph_ownership] SET generation = generation
WHERE build = @build AND [partition] = @partition AND generation = @generation AND instance_id IS NOT NULL
 AND EXISTS (SELECT 1 FROM [ph_builds] AS b WHERE b.id = @build AND b.consumer_type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020))
  AND b.consumer_name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)));
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51304, N'a lease is no longer held', 1;
END;
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail)
SELECT c.type, c.name, @build, @now, 'host', 'halt', CAST(@halt_topic COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), @halt_partition, @halt_position,
 CAST(@halt_key COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), CAST(@halt COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(max))
FROM [ph_consumers] AS c WHERE c.type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.live_build = @build
 AND c.state IN ('running', 'rebuilding');
UPDATE [ph_consumers] SET state = 'halted', halt = CAST(@halt COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(max)), state_since_us = @now
WHERE type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND live_build = @build AND state IN ('running', 'rebuilding');
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail)
SELECT c.type, c.name, @build, @now, 'host', 'halt', CAST(@halt_topic COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), @halt_partition, @halt_position,
 CAST(@halt_key COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), CAST(@halt COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(max))
FROM [ph_consumers] AS c INNER JOIN [ph_builds] AS b ON b.id = @build
WHERE c.type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.live_build <> @build AND b.state = 'running';
UPDATE [ph_builds] SET state = 'halted', halt = CAST(@halt COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(max)), state_since_us = @now
WHERE id = @build AND state = 'running'
 AND NOT EXISTS (SELECT 1 FROM [ph_consumers] AS c WHERE c.type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND c.live_build = @build);
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now bigint = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME());
BEGIN TRANSACTION;
UPDATE [ph_consumers] SET state = CASE WHEN EXISTS (SELECT 1 FROM [ph_checkpoints] k WHERE k.build = [ph_consumers].live_build AND (k.pruned_epoch < k.epoch OR k.replay_through > 0))
 THEN 'rebuilding' ELSE 'running' END, halt = NULL, state_since_us = @now
WHERE type = CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND name = CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) AND state = 'halted';
SELECT @@ROWCOUNT;
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
INSERT INTO a VALUES (CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), NULL, @p3);
UPDATE b SET n = n;
UPDATE a SET n = @p5 WHERE k = @p4;
COMMIT TRANSACTION;
