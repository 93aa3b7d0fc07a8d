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
UPDATE c SET c.position = m.moved_to,
 c.effects_through = CASE WHEN c.effects_through > m.moved_to THEN c.effects_through ELSE m.moved_to END
FROM @moves AS m INNER LOOP JOIN [ph_checkpoints] AS c WITH (ROWLOCK) ON c.build = @build AND c.topic = m.topic AND c.[partition] = m.[partition]
WHERE c.position = m.moved_from AND c.epoch = @epoch;
IF @@ROWCOUNT <> @moved
BEGIN
  THROW 51305, N'a checkpoint or the epoch is not what the batch was read from', 1;
END;
COMMIT TRANSACTION;
