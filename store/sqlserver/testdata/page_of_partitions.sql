SELECT t.high_water_mark, t.topic_start, e.position, e.sequence, e.occurred_us, e.id, e.revision, e.codec_version, e.aggregate_type, e.aggregate_id, e.type, e.codec, e.data, e.data_bytes, e.metadata
FROM [ph_topics] AS t
OUTER APPLY (
  SELECT TOP (@limit) v.* FROM [ph_events] AS v
  WHERE CAST(SUBSTRING(@partitions, v.partition_key / 8 + 1, 1) AS int) & POWER(2, v.partition_key % 8) <> 0
    AND v.position > @after AND v.position <= t.high_water_mark ORDER BY v.position
) AS e
WHERE t.name = CAST(@topic COLLATE Latin1_General_100_BIN2_UTF8 AS varchar(1020)) ORDER BY e.position