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
DECLARE @holds int;
DECLARE @at_from int;
DECLARE @at_to int;
BEGIN TRANSACTION;
UPDATE o SET o.generation = o.generation
FROM @leases AS l INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK) ON o.build = @build AND o.[partition] = l.[partition]
WHERE o.generation = l.generation AND o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
SET @holds = @@ROWCOUNT;
SELECT @at_from = COUNT(CASE WHEN c.position = m.moved_from THEN 1 END), @at_to = COUNT(CASE WHEN c.position = m.moved_to THEN 1 END)
FROM @moves AS m INNER LOOP JOIN [ph_checkpoints] AS c ON c.build = @build AND c.topic = m.topic AND c.[partition] = m.[partition]
WHERE c.epoch = @epoch;
COMMIT TRANSACTION;
SELECT @holds, @at_from, @at_to;
