SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @leases TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NOT NULL);
INSERT INTO @leases ([partition], generation)
SELECT j.p, j.g FROM OPENJSON(@held) WITH (p int '$.p', g bigint '$.g') AS j;
DECLARE @leased int = (SELECT COUNT(*) FROM @leases);
DECLARE @moves TABLE (ord int NOT NULL PRIMARY KEY, topic varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
 [partition] int NOT NULL, moved_from bigint NOT NULL, moved_to bigint NOT NULL);
INSERT INTO @moves (ord, topic, [partition], moved_from, moved_to)
SELECT j.o, j.t, j.p, j.f, j.m
FROM OPENJSON(@checkpoints) WITH (o int '$.o', t nvarchar(510) '$.t', p int '$.p', f bigint '$.f', m bigint '$.m') AS j;
DECLARE @moved int = (SELECT COUNT(*) FROM @moves);
DECLARE @w0 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, o int NOT NULL, p bigint NULL, u bigint NULL, v0 VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8 NULL, v1 VARCHAR(30) COLLATE Latin1_General_100_BIN2_UTF8 NULL, v2 BIGINT NULL, v3 DECIMAL(19,2) NULL, v4 FLOAT(53) NULL, v5 BIT NULL, v6 DATE NULL, v7 TIME(6) NULL, v8 DATETIME2(6) NULL, v9 CHAR(36) COLLATE Latin1_General_100_BIN2 NULL, v10 VARBINARY(MAX) NULL, v11 VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8 NULL);
INSERT INTO @w0 (k, o, p, u, v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11)
SELECT j.k, j.o, j.p, j.u, j.v0, j.v1, j.v2, CAST(j.v3 AS DECIMAL(19,2)), CAST(j.v4 AS float(53)) * POWER(CAST(2 AS float(53)), j.ev4 / 2) * POWER(CAST(2 AS float(53)), j.ev4 - j.ev4 / 2), j.v5, CAST(j.v6 AS DATE), CAST(j.v7 AS TIME(6)), CAST(j.v8 AS DATETIME2(6)), j.v9, CONVERT(varbinary(max), j.v10, 2), j.v11
FROM OPENJSON(@rows0) WITH (k nvarchar(510) '$.k', o int '$.o', p bigint '$.p', u bigint '$.u', v0 nvarchar(max) '$.v0', v1 nvarchar(max) '$.v1', v2 bigint '$.v2', v3 nvarchar(60) '$.v3', v4 bigint '$.v4', ev4 int '$.ev4', v5 bit '$.v5', v6 nvarchar(60) '$.v6', v7 nvarchar(60) '$.v7', v8 nvarchar(60) '$.v8', v9 nvarchar(60) '$.v9', v10 nvarchar(max) '$.v10', v11 nvarchar(max) '$.v11') AS j;
DECLARE @g1 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL);
INSERT INTO @g1 (k)
SELECT j.k FROM OPENJSON(@gone1) WITH (k nvarchar(510) '$') AS j;
DECLARE @s1 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL);
INSERT INTO @s1 (k)
SELECT j.k FROM OPENJSON(@stale1) WITH (k nvarchar(510) '$') AS j;
DECLARE @w1 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, h varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, r AS CAST(HASHBYTES('SHA2_256', CAST(k AS VARBINARY(1020)) + 0x00 + CAST(h AS VARBINARY(1020))) AS BINARY(32)), o int NOT NULL, p bigint NULL, u bigint NULL, v0 BIGINT NULL);
INSERT INTO @w1 (k, h, o, p, u, v0)
SELECT j.k, j.h, j.o, j.p, j.u, j.v0
FROM OPENJSON(@rows1) WITH (k nvarchar(510) '$.k', h nvarchar(510) '$.h', o int '$.o', p bigint '$.p', u bigint '$.u', v0 bigint '$.v0') AS j;
DECLARE @w2 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, o int NOT NULL, p bigint NULL, u bigint NULL, v0 VARCHAR(300) COLLATE Latin1_General_100_BIN2_UTF8 NULL, v1 VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8 NULL);
INSERT INTO @w2 (k, o, p, u, v0, v1)
SELECT j.k, j.o, j.p, j.u, j.v0, j.v1
FROM OPENJSON(@rows2) WITH (k nvarchar(510) '$.k', o int '$.o', p bigint '$.p', u bigint '$.u', v0 nvarchar(max) '$.v0', v1 nvarchar(max) '$.v1') AS j;
DECLARE @g3 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL);
INSERT INTO @g3 (k)
SELECT j.k FROM OPENJSON(@gone3) WITH (k nvarchar(510) '$') AS j;
DECLARE @s3 TABLE (k varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL);
INSERT INTO @s3 (k)
SELECT j.k FROM OPENJSON(@stale3) WITH (k nvarchar(510) '$') AS j;
DECLARE @now bigint = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME());
DECLARE @retries TABLE (id bigint NOT NULL PRIMARY KEY, [partition] int NOT NULL, [key] varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
 was varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, attempts int NOT NULL, passing int NOT NULL, gone int NOT NULL,
 becomes varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL, code int NULL, reason varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL, then_attempts int NULL, then_passing int NULL, digest varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
 due_in bigint NULL, line varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL);
INSERT INTO @retries (id, [partition], was, attempts, passing, gone, becomes, code, reason, then_attempts, then_passing, digest, due_in, line)
SELECT j.i, j.p, j.s, j.a, j.b, j.g, j.t, j.c, j.r, j.x, j.y, j.d, j.w, j.l
FROM OPENJSON(@retried) WITH (i bigint '$.i', p int '$.p', s nvarchar(60) '$.s', a int '$.a', b int '$.b', g int '$.g', t nvarchar(60) '$.t',
 c int '$.c', r nvarchar(max) '$.r', x int '$.x', y int '$.y', d nvarchar(510) '$.d', w bigint '$.w', l nvarchar(60) '$.l') AS j;
DECLARE @retrying int = (SELECT COUNT(*) FROM @retries);
DECLARE @records TABLE (ord int NOT NULL PRIMARY KEY, topic varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, position bigint NOT NULL, [partition] int NOT NULL,
 [key] varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, key_hash binary(32) NOT NULL, unresolved int NOT NULL, status varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, code int NOT NULL,
 reason varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, attempts int NOT NULL, passing int NOT NULL, digest varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, due_in bigint NULL,
 event_id binary(16) NOT NULL, aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, aggregate_id varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, sequence bigint NOT NULL,
 event_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, revision int NOT NULL, codec varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, codec_version int NOT NULL, occurred_us bigint NOT NULL,
 data varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL, data_bytes varbinary(max) NULL, metadata varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL);
INSERT INTO @records (ord, topic, position, [partition], [key], key_hash, unresolved, status, code, reason, attempts, passing, digest, due_in,
 event_id, aggregate_type, aggregate_id, sequence, event_type, revision, codec, codec_version, occurred_us, data, data_bytes, metadata)
SELECT j.o, j.t, j.f, j.p, j.k, CONVERT(binary(32), j.h, 2), j.u, j.s, j.c, j.r, j.a, j.b, j.d, j.w,
 CONVERT(binary(16), j.i, 2), j.gt, j.gi, j.q, j.et, j.v, j.cn, j.cv, j.ou, j.dt, CONVERT(varbinary(max), j.db, 2), j.md
FROM OPENJSON(@recorded) WITH (o int '$.o', t nvarchar(510) '$.t', f bigint '$.f', p int '$.p', k nvarchar(510) '$.k', h nvarchar(64) '$.h', u int '$.u',
 s nvarchar(60) '$.s', c int '$.c', r nvarchar(max) '$.r', a int '$.a', b int '$.b', d nvarchar(510) '$.d', w bigint '$.w', i nvarchar(32) '$.i',
 gt nvarchar(510) '$.gt', gi nvarchar(510) '$.gi', q bigint '$.q', et nvarchar(510) '$.et', v int '$.v', cn nvarchar(510) '$.cn', cv int '$.cv',
 ou bigint '$.ou', dt nvarchar(max) '$.dt', db nvarchar(max) '$.db', md nvarchar(max) '$.md') AS j;
DECLARE @skips TABLE (ord int NOT NULL PRIMARY KEY, topic varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, position bigint NOT NULL, [partition] int NOT NULL,
 [key] varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, key_hash binary(32) NOT NULL, every_key int NOT NULL, detail varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL);
INSERT INTO @skips (ord, topic, position, [partition], [key], key_hash, every_key, detail)
SELECT j.o, j.t, j.f, j.p, j.k, CONVERT(binary(32), j.h, 2), j.e, j.d
FROM OPENJSON(@skipping) WITH (o int '$.o', t nvarchar(510) '$.t', f bigint '$.f', p int '$.p', k nvarchar(510) '$.k', h nvarchar(64) '$.h', e int '$.e',
 d nvarchar(60) '$.d') AS j;
BEGIN TRANSACTION;
UPDATE o SET o.generation = o.generation
FROM @leases AS l INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK) ON o.build = @build AND o.[partition] = l.[partition]
WHERE o.generation = l.generation AND o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
IF @@ROWCOUNT <> @leased
BEGIN
  THROW 51304, N'a lease is no longer held', 1;
END;
DELETE t FROM @w0 AS w INNER LOOP JOIN [every__b7] AS t ON t.[key] = w.k WHERE w.o IN (0);
DELETE t FROM @w0 AS w INNER LOOP JOIN [lines__b7] AS t ON t.[key] = w.k WHERE w.o = 0;
DELETE t FROM @g1 AS w INNER LOOP JOIN [lines__b7] AS t ON t.[key] = w.k;
DELETE t FROM @s1 AS w INNER LOOP JOIN [lines__b7] AS t ON t.[key] = w.k WHERE t.[ph_epoch] < @epoch;
DELETE t FROM @w1 AS w INNER LOOP JOIN [lines__b7] AS t ON t.[ph_row] = w.r WHERE w.o IN (0);
DELETE t FROM @w2 AS w INNER LOOP JOIN [users__b7] AS t ON t.[key] = w.k WHERE w.o IN (0, 1);
DELETE t FROM @w2 AS w INNER LOOP JOIN [notes__b7] AS t ON t.[key] = w.k WHERE w.o = 0;
DELETE t FROM @g3 AS w INNER LOOP JOIN [notes__b7] AS t ON t.[key] = w.k;
DELETE t FROM @s3 AS w INNER LOOP JOIN [notes__b7] AS t ON t.[key] = w.k WHERE t.[ph_epoch] < @epoch;
UPDATE t SET t.[t] = w.v0, t.[short] = w.v1, t.[i] = w.v2, t.[d] = w.v3, t.[f] = w.v4, t.[b] = w.v5, t.[day] = w.v6, t.[clock] = w.v7, t.[at] = w.v8, t.[id] = w.v9, t.[raw] = w.v10, t.[doc] = w.v11, t.[ph_position] = w.p, t.[ph_updated_us] = w.u, t.[ph_epoch] = @epoch
FROM @w0 AS w INNER LOOP JOIN [every__b7] AS t ON t.[key] = w.k WHERE w.o = 1;
INSERT INTO [every__b7] ([key], [t], [short], [i], [d], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us], [ph_epoch])
SELECT w.k, w.v0, w.v1, w.v2, w.v3, w.v4, w.v5, w.v6, w.v7, w.v8, w.v9, w.v10, w.v11, w.p, w.u, @epoch
FROM @w0 AS w WHERE w.o <> 0 AND NOT EXISTS (SELECT 1 FROM [every__b7] AS t WHERE t.[key] = w.k)
OPTION (LOOP JOIN);
UPDATE t SET t.[n] = w.v0, t.[ph_position] = w.p, t.[ph_updated_us] = w.u, t.[ph_epoch] = @epoch
FROM @w1 AS w INNER LOOP JOIN [lines__b7] AS t ON t.[ph_row] = w.r WHERE w.o = 1;
INSERT INTO [lines__b7] ([key], [child], [n], [ph_position], [ph_updated_us], [ph_epoch])
SELECT w.k, w.h, w.v0, w.p, w.u, @epoch
FROM @w1 AS w WHERE w.o <> 0 AND NOT EXISTS (SELECT 1 FROM [lines__b7] AS t WHERE t.[ph_row] = w.r)
OPTION (LOOP JOIN);
UPDATE t SET t.[bio] = w.v1, t.[ph_position] = w.p, t.[ph_updated_us] = w.u, t.[ph_epoch] = @epoch
FROM @w2 AS w INNER LOOP JOIN [users__b7] AS t ON t.[key] = w.k WHERE w.o = 2;
INSERT INTO [users__b7] ([key], [email], [bio], [ph_position], [ph_updated_us], [ph_epoch])
SELECT w.k, w.v0, w.v1, w.p, w.u, @epoch
FROM @w2 AS w WHERE w.o <> 0 AND NOT EXISTS (SELECT 1 FROM [users__b7] AS t WHERE t.[key] = w.k)
OPTION (LOOP JOIN);
UPDATE r SET r.[key] = u.[key]
FROM @retries AS r INNER LOOP JOIN [ph_undelivered] AS u ON u.id = r.id
WHERE u.build = @build;
UPDATE u SET u.status = r.line, u.last_us = @now
FROM @retries AS r INNER LOOP JOIN [ph_undelivered] AS u WITH (ROWLOCK) ON u.build = @build AND u.[partition] = r.[partition] AND u.[key] = r.[key]
WHERE u.id > r.id AND u.status IN ('WAITING', 'DEAD_LETTER_KEY') AND u.status <> r.line;
DECLARE @done int;
DELETE u FROM @retries AS r INNER LOOP JOIN [ph_undelivered] AS u ON u.id = r.id WHERE r.gone = 1 AND u.build = @build AND u.[partition] = r.[partition] AND u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing
 AND EXISTS (SELECT 1 FROM [ph_checkpoints] AS c WHERE c.build = u.build AND c.topic = u.topic AND c.[partition] = u.[partition] AND c.epoch = @epoch);
SET @done = @@ROWCOUNT;
UPDATE u SET u.status = r.becomes, u.code = r.code, u.reason = r.reason, u.attempts = r.then_attempts, u.passing = r.then_passing,
 u.digest = r.digest, u.last_us = @now, u.retry_us = @now + r.due_in,
 u.budget_us = CASE WHEN r.attempts + r.passing = 0 THEN @now ELSE u.budget_us END
FROM @retries AS r INNER LOOP JOIN [ph_undelivered] AS u WITH (ROWLOCK) ON u.id = r.id
WHERE r.gone = 0 AND u.build = @build AND u.[partition] = r.[partition] AND u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing
 AND EXISTS (SELECT 1 FROM [ph_checkpoints] AS c WHERE c.build = u.build AND c.topic = u.topic AND c.[partition] = u.[partition] AND c.epoch = @epoch);
IF @done + @@ROWCOUNT <> @retrying
BEGIN
  THROW 51307, N'an undelivered message is not what it was read as', 1;
END;
INSERT INTO [ph_undelivered] (build, topic, position, [partition], [key], key_hash, unresolved, status, code, reason, attempts, passing, digest,
 first_us, last_us, retry_us, event_id, aggregate_type, aggregate_id, sequence, event_type, revision, codec, codec_version, occurred_us, data, data_bytes, metadata)
SELECT @build, r.topic, r.position, r.[partition], r.[key], r.key_hash, r.unresolved, r.status, r.code, r.reason, r.attempts, r.passing, r.digest,
 @now, @now, @now + r.due_in, r.event_id, r.aggregate_type, r.aggregate_id, r.sequence, r.event_type, r.revision, r.codec, r.codec_version, r.occurred_us,
 r.data, r.data_bytes, r.metadata
FROM @records AS r ORDER BY r.ord;
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail)
SELECT CAST(@type COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), CAST(@name COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)), @build, @now, 'host', 'skip', s.topic, s.[partition], s.position, s.[key], s.detail
FROM @skips AS s WHERE NOT EXISTS (SELECT 1 FROM [ph_skipped] AS k WHERE k.build = @build AND k.topic = s.topic AND k.position = s.position
 AND k.[partition] = s.[partition] AND k.key_hash = s.key_hash) ORDER BY s.ord;
INSERT INTO [ph_skipped] (build, topic, position, [partition], [key], key_hash, every_key)
SELECT @build, s.topic, s.position, s.[partition], s.[key], s.key_hash, s.every_key
FROM @skips AS s WHERE NOT EXISTS (SELECT 1 FROM [ph_skipped] AS k WHERE k.build = @build AND k.topic = s.topic AND k.position = s.position
 AND k.[partition] = s.[partition] AND k.key_hash = s.key_hash);
UPDATE c SET c.position = m.moved_to,
 c.effects_through = CASE WHEN c.effects_through > m.moved_to THEN c.effects_through ELSE m.moved_to END
FROM @moves AS m INNER LOOP JOIN [ph_checkpoints] AS c WITH (ROWLOCK) ON c.build = @build AND c.topic = m.topic AND c.[partition] = m.[partition]
WHERE c.position = m.moved_from AND c.epoch = @epoch;
IF @@ROWCOUNT <> @moved
BEGIN
  THROW 51305, N'a checkpoint or the epoch is not what the batch was read from', 1;
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
