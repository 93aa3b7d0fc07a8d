SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now bigint = DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME());
DECLARE @e TABLE (
  ord int NOT NULL PRIMARY KEY,
  place int NOT NULL,
  sequence bigint NULL,
  occurred_us bigint NOT NULL,
  id binary(16) NOT NULL,
  stream binary(32) NOT NULL,
  partition_key int NOT NULL,
  revision int NOT NULL,
  codec_version int NOT NULL,
  aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  aggregate_id varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  codec varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  data varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
  data_bytes varbinary(max) NULL,
  metadata varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL
);
INSERT INTO @e (ord, place, sequence, occurred_us, id, stream, partition_key, revision, codec_version,
 aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata)
SELECT j.ord, j.place, j.sequence, COALESCE(j.occurred_us, @now), CONVERT(binary(16), j.id, 2), CONVERT(binary(32), j.stream, 2),
 j.partition_key, j.revision, j.codec_version, j.aggregate_type, j.aggregate_id, j.type, j.codec,
 j.data, CONVERT(varbinary(max), j.data_bytes, 2), j.metadata
FROM OPENJSON(@events) WITH (
  ord int '$.o',
  place int '$.n',
  sequence bigint '$.q',
  occurred_us bigint '$.w',
  id nvarchar(32) '$.i',
  stream nvarchar(64) '$.s',
  partition_key int '$.p',
  revision int '$.r',
  codec_version int '$.v',
  aggregate_type nvarchar(510) '$.a',
  aggregate_id nvarchar(510) '$.k',
  type nvarchar(510) '$.t',
  codec nvarchar(510) '$.c',
  data nvarchar(max) '$.d',
  data_bytes nvarchar(max) '$.b',
  metadata nvarchar(max) '$.m'
) AS j;
DECLARE @n int = (SELECT COUNT(*) FROM @e);
DECLARE @s TABLE (
  stream binary(32) NOT NULL PRIMARY KEY,
  aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  aggregate_id varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  sequence bigint NOT NULL,
  version int NOT NULL,
  codec varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  codec_version int NOT NULL,
  created_us bigint NOT NULL,
  data varchar(max) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
  data_bytes varbinary(max) NULL
);
INSERT INTO @s (stream, aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data, data_bytes)
SELECT CONVERT(binary(32), j.stream, 2), j.aggregate_type, j.aggregate_id, j.sequence, j.version, j.codec, j.codec_version,
 COALESCE(j.created_us, @now), j.data, CONVERT(varbinary(max), j.data_bytes, 2)
FROM OPENJSON(@snapshots) WITH (
  stream nvarchar(64) '$.s',
  aggregate_type nvarchar(510) '$.a',
  aggregate_id nvarchar(510) '$.k',
  sequence bigint '$.q',
  version int '$.r',
  codec nvarchar(510) '$.c',
  codec_version int '$.v',
  created_us bigint '$.w',
  data nvarchar(max) '$.d',
  data_bytes nvarchar(max) '$.b'
) AS j;
DECLARE @last bigint;
BEGIN TRANSACTION;
IF @n > 0
BEGIN
  IF EXISTS (SELECT 1 FROM @e AS e INNER LOOP JOIN [ph_events] AS v ON v.id = e.id)
  BEGIN
    THROW 51302, N'an event id is stored already', 1;
  END;
  IF EXISTS (SELECT 1 FROM @e AS e INNER LOOP JOIN [ph_events] AS v ON v.stream = e.stream AND v.sequence = e.sequence)
    OR EXISTS (SELECT 1 FROM @e AS e WHERE e.place = 1 AND e.sequence > 1
      AND NOT EXISTS (SELECT 1 FROM [ph_events] AS v WHERE v.stream = e.stream AND v.sequence = e.sequence - 1))
  BEGIN
    THROW 51301, N'a stream has another version than the one expected', 1;
  END;
  UPDATE [ph_topics] SET end_position = end_position + @n, high_water_mark = end_position + @n WHERE name = 'events';
  IF @@ROWCOUNT <> 1
  BEGIN
    THROW 51303, N'the row of the topic events is missing', 1;
  END;
  SELECT @last = end_position FROM [ph_topics] WHERE name = 'events';
  UPDATE e SET e.sequence = e.place + COALESCE((SELECT MAX(v.sequence) FROM [ph_events] AS v WHERE v.stream = e.stream), 0)
  FROM @e AS e WHERE e.sequence IS NULL;
  INSERT INTO [ph_events] (position, sequence, occurred_us, id, stream, partition_key, revision, codec_version,
   aggregate_type, aggregate_id, type, codec, data, data_bytes, metadata)
  SELECT @last - @n + e.ord, e.sequence, e.occurred_us, e.id, e.stream, e.partition_key, e.revision, e.codec_version,
   e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata
  FROM @e AS e;
END;
UPDATE o SET o.sequence = s.sequence, o.version = s.version, o.codec = s.codec, o.codec_version = s.codec_version,
 o.created_us = s.created_us, o.data = s.data, o.data_bytes = s.data_bytes
FROM @s AS s INNER LOOP JOIN [ph_snapshots] AS o ON o.stream = s.stream
WHERE o.sequence <= s.sequence
 OR o.sequence > COALESCE((SELECT MAX(v.sequence) FROM [ph_events] AS v WHERE v.stream = s.stream), 0);
INSERT INTO [ph_snapshots] (stream, aggregate_type, aggregate_id, sequence, version, codec, codec_version, created_us, data, data_bytes)
SELECT s.stream, s.aggregate_type, s.aggregate_id, s.sequence, s.version, s.codec, s.codec_version, s.created_us, s.data, s.data_bytes
FROM @s AS s WHERE NOT EXISTS (SELECT 1 FROM [ph_snapshots] AS o WHERE o.stream = s.stream);
COMMIT TRANSACTION;
SELECT @last - @n + e.ord, e.sequence FROM @e AS e WHERE e.place = 1 ORDER BY e.ord;
