SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @leases TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NOT NULL);
INSERT INTO @leases ([partition], generation)
SELECT j.p, j.g FROM OPENJSON(@held) WITH (p int '$.p', g bigint '$.g') AS j;
DECLARE @leased int = (SELECT COUNT(*) FROM @leases);
DECLARE @retries TABLE (id bigint NOT NULL PRIMARY KEY, [partition] int NOT NULL, [key] varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
 was varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL, attempts int NOT NULL, passing int NOT NULL, gone int NOT NULL,
 becomes varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL, code int NULL, reason varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL, then_attempts int NULL, then_passing int NULL, digest varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
 due_in bigint NULL, line varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL);
INSERT INTO @retries (id, [partition], was, attempts, passing, gone, becomes, code, reason, then_attempts, then_passing, digest, due_in, line)
SELECT j.i, j.p, j.s, j.a, j.b, j.g, j.t, j.c, j.r, j.x, j.y, j.d, j.w, j.l
FROM OPENJSON(@retried) WITH (i bigint '$.i', p int '$.p', s nvarchar(60) '$.s', a int '$.a', b int '$.b', g int '$.g', t nvarchar(60) '$.t',
 c int '$.c', r nvarchar(max) '$.r', x int '$.x', y int '$.y', d nvarchar(510) '$.d', w bigint '$.w', l nvarchar(60) '$.l') AS j;
DECLARE @retrying int = (SELECT COUNT(*) FROM @retries);
DECLARE @holds int;
DECLARE @done int;
DECLARE @same int;
DECLARE @as_read int;
BEGIN TRANSACTION;
UPDATE o SET o.generation = o.generation
FROM @leases AS l INNER LOOP JOIN [ph_ownership] AS o WITH (ROWLOCK) ON o.build = @build AND o.[partition] = l.[partition]
WHERE o.generation = l.generation AND o.instance_id = CAST(@instance COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020));
SET @holds = @@ROWCOUNT;
SELECT @done = COUNT(CASE WHEN r.gone = 1 AND u.id IS NULL THEN 1 WHEN r.gone = 0 AND u.status = r.becomes AND u.attempts = r.then_attempts AND u.passing = r.then_passing AND NOT (u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing) THEN 1 END), @same = COUNT(CASE WHEN u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing AND NOT (r.gone = 0 AND u.status = r.becomes AND u.attempts = r.then_attempts AND u.passing = r.then_passing) THEN 1 END)
FROM @retries AS r LEFT JOIN [ph_undelivered] AS u ON u.id = r.id AND u.build = @build;
SELECT @as_read = COUNT(*)
FROM @retries AS r INNER LOOP JOIN [ph_undelivered] AS u ON u.id = r.id WHERE u.build = @build AND u.[partition] = r.[partition] AND u.status = r.was AND u.attempts = r.attempts AND u.passing = r.passing
 AND EXISTS (SELECT 1 FROM [ph_checkpoints] AS c WHERE c.build = u.build AND c.topic = u.topic AND c.[partition] = u.[partition] AND c.epoch = @epoch);
COMMIT TRANSACTION;
SELECT @holds, @done, @same, @as_read;
