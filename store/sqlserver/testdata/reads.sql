SELECT COALESCE(MAX(e.sequence), 0) FROM [ph_events] AS e WHERE e.stream = @stream;

SELECT COALESCE((SELECT MAX(e.sequence) FROM [ph_events] AS e WHERE e.stream = CONVERT(binary(32), j.stream, 2)), 0)
FROM OPENJSON(@streams) WITH (ord int '$.o', stream nvarchar(64) '$.s') AS j ORDER BY j.ord;

SELECT e.position, e.sequence, e.occurred_us, e.id, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata
FROM OPENJSON(@ids) WITH (id nvarchar(32) '$') AS j INNER LOOP JOIN [ph_events] AS e ON e.id = CONVERT(binary(16), j.id, 2);

SELECT TOP (@limit) e.position, e.sequence, e.occurred_us, e.id, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata FROM [ph_events] AS e
WHERE e.stream = @stream AND e.sequence >= @from ORDER BY e.sequence;

SELECT s.sequence, s.version, s.codec, s.codec_version, s.created_us, s.data, s.data_bytes,
 COALESCE((SELECT MAX(e.sequence) FROM [ph_events] AS e WHERE e.stream = @stream), 0)
FROM [ph_snapshots] AS s WHERE s.stream = @stream;

SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('EngineEdition') AS bigint), d.name,
 CAST(d.compatibility_level AS bigint), CAST(d.is_read_committed_snapshot_on AS bigint), CAST(d.snapshot_isolation_state AS bigint),
 CAST(d.delayed_durability AS bigint), COALESCE(CAST(DATABASEPROPERTYEX(d.name, 'Updateability') AS nvarchar(128)), N'')
FROM sys.databases AS d WHERE d.name = DB_NAME();

SELECT c.name, COALESCE(t.name, N'type of an assembly'), CAST(c.max_length AS bigint), CAST(c.precision AS bigint), CAST(c.scale AS bigint),
 CAST(c.is_nullable AS bigint), COALESCE(c.collation_name, N''),
 CASE WHEN c.is_identity = 1 OR c.is_computed = 1 OR c.default_object_id <> 0 OR c.generated_always_type <> 0 OR t.name = N'timestamp' THEN 1 ELSE 0 END
FROM sys.columns AS c
INNER JOIN sys.objects AS o ON o.object_id = c.object_id
LEFT JOIN sys.types AS t ON t.user_type_id = c.system_type_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'U' AND o.name = @p1
ORDER BY c.column_id;

SELECT i.name, CAST(i.is_unique AS bigint), CAST(i.is_primary_key AS bigint), COALESCE(i.filter_definition, N''), c.name
FROM sys.indexes AS i
INNER JOIN sys.objects AS o ON o.object_id = i.object_id
INNER JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id
INNER JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'U' AND o.name = @p1 AND i.type IN (1, 2) AND i.is_hypothetical = 0
ORDER BY i.index_id, x.is_included_column, x.key_ordinal, x.index_column_id;

SELECT o.type, o.name FROM sys.objects AS o
WHERE o.schema_id = SCHEMA_ID() AND LOWER(o.name COLLATE Latin1_General_100_BIN2_UTF8) = @p1;

SELECT m.definition FROM sys.sql_modules AS m
INNER JOIN sys.objects AS o ON o.object_id = m.object_id
WHERE o.schema_id = SCHEMA_ID() AND o.type = 'V' AND o.name = @p1;

EXEC sys.sp_rename N'[it''s [a]] table]', N'b__b7', N'OBJECT';

DECLARE @r int; EXEC @r = sys.sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = @wait; SELECT @r;

EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = 'Session';
