SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
UPDATE [ph_ownership] SET generation = generation + 1 WHERE build = @p1;
UPDATE [ph_checkpoints] SET stop_at = (SELECT l.q FROM (SELECT topic AS t, max(position) AS q FROM [ph_checkpoints] WHERE build = @p2 GROUP BY topic) l WHERE l.t = [ph_checkpoints].topic) WHERE build = @p3;
UPDATE [ph_builds] SET stopped_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) WHERE id = @p4 AND stopped_us IS NULL;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51402, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_builds] SET cold = cold WHERE id = @p5 AND dropped_us IS NULL;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51403, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_consumers] SET revision = revision WHERE type = CAST(@p6 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND name = CAST(@p7 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND state = CAST(@p8 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)) AND live_build = @p9 AND epoch = @p10;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51404, N'what the transaction relies on has changed', 1;
END;
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
UPDATE [ph_ownership] SET generation = generation + 1 WHERE build = @p1;
UPDATE [ph_ownership] SET generation = generation + 1 WHERE build = @p2;
UPDATE [ph_checkpoints] SET stop_at = 0,
 effects_through = COALESCE((SELECT l.q FROM (SELECT topic AS t, [partition] AS p, max(effects_through) AS q FROM [ph_checkpoints] WHERE build = @p3 GROUP BY topic, [partition]) l WHERE l.t = [ph_checkpoints].topic AND l.p = [ph_checkpoints].[partition]), 0) WHERE build = @p4;
UPDATE [ph_checkpoints] SET effects_before = effects_through WHERE build = @p5;
UPDATE [ph_checkpoints] SET stop_at = 0 WHERE build = @p6 AND stop_at <> 0;
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail)
 SELECT CAST(@p7 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p8 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p9, DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), CAST(@p10 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p11 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), k.topic, -1, max(k.position), '', CAST(@p12 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)) FROM [ph_checkpoints] k WHERE k.build = @p13 GROUP BY k.build, k.topic;
UPDATE [ph_builds] SET stood_down_us = NULL, keep_until_us = NULL, cold = 0, stopped_us = NULL
 WHERE id = @p14 AND dropped_us IS NULL AND state = 'running';
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51406, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_builds] SET cold = @p15, keep_until_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) + @p16, stood_down_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), stopped_us = NULL, epoch = @p17, state = CAST(@p18 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), state_since_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()),
 halt = (SELECT c.halt FROM [ph_consumers] c WHERE c.type = [ph_builds].consumer_type AND c.name = [ph_builds].consumer_name) WHERE id = @p19;
UPDATE [ph_consumers] SET live_build = @p20, epoch = @p21, state = CAST(@p22 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), halt = NULL, state_since_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), revision = revision + 1 WHERE type = CAST(@p23 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND name = CAST(@p24 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND state = CAST(@p25 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)) AND live_build = @p26 AND epoch = @p27 AND NOT EXISTS (SELECT 1 FROM [ph_checkpoints] s JOIN (SELECT topic AS t, max(position) AS q FROM [ph_checkpoints] WHERE build = @p28 GROUP BY topic) l ON l.t = s.topic WHERE s.build = @p29 AND s.position < l.q);
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51408, N'what the transaction relies on has changed', 1;
END;
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
UPDATE [ph_ownership] SET generation = generation + 1 WHERE build = @p1;
DELETE FROM [ph_undelivered] WHERE build = @p2;
DELETE FROM [ph_skipped] WHERE build = @p3;
DELETE FROM [ph_effects_owed] WHERE build = @p4;
DELETE FROM [ph_checkpoints] WHERE build = @p5;
DELETE FROM [ph_members] WHERE build = @p6;
DELETE FROM [ph_ownership] WHERE build = @p7;
UPDATE [ph_builds] SET cold = cold WHERE id = @p8 AND stopped_us IS NULL;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51407, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_builds] SET dropped_us = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) WHERE id = @p9 AND dropped_us IS NULL;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51408, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_consumers] SET revision = revision WHERE type = CAST(@p10 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND name = CAST(@p11 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND state = CAST(@p12 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)) AND live_build = @p13 AND epoch = @p14;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51409, N'what the transaction relies on has changed', 1;
END;
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail) VALUES (CAST(@p15 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p16 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p17, DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), CAST(@p18 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p19 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p20 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p21, @p22, CAST(@p23 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p24 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)));
COMMIT TRANSACTION;

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
UPDATE [ph_ownership] SET generation = generation + 1 WHERE build = @p1;
UPDATE [ph_builds] SET cold = @p2, keep_until_us = NULL WHERE id = @p3 AND dropped_us IS NULL AND stood_down_us IS NOT NULL;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51401, N'what the transaction relies on has changed', 1;
END;
UPDATE [ph_consumers] SET revision = revision WHERE type = CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND name = CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND state = CAST(@p6 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)) AND live_build = @p7 AND epoch = @p8;
IF @@ROWCOUNT <> 1
BEGIN
  THROW 51402, N'what the transaction relies on has changed', 1;
END;
INSERT INTO [ph_consumer_history] (consumer_type, consumer_name, build, at_us, actor, action, topic, [partition], position, [key], detail) VALUES (CAST(@p9 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p10 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p11, DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()), CAST(@p12 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p13 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p14 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), @p15, @p16, CAST(@p17 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)), CAST(@p18 COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(8000)));
COMMIT TRANSACTION;
