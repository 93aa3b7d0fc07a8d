-- Every: first page by key
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) ORDER BY [key]
--   int64 3

-- Every: equal text and decimal
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [short] = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(30)) AND DATALENGTH([short]) = DATALENGTH(CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(30))) AND [d] = CAST(@p4 AS DECIMAL(19,2)) AND [b] IS NULL ORDER BY [key]
--   int64 3
--   string "ä "
--   string "ä "
--   string "-12.50"

-- Every: by text, first page
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM (SELECT * FROM (SELECT TOP (3) 0 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [short] IS NOT NULL ORDER BY [short], [key]) AS s0 UNION ALL SELECT * FROM (SELECT TOP (3) 1 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p2 OR [ph_epoch] IS NULL) AND [short] IS NULL ORDER BY [short], [key]) AS s1) AS p ORDER BY ph_section, [short], [key]
--   int64 3
--   int64 3

-- Every: by text, next page
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM (SELECT * FROM (SELECT TOP (3) 0 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [short] = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(30)) AND [key] > CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [short], [key]) AS s0 UNION ALL SELECT * FROM (SELECT TOP (3) 1 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p4 OR [ph_epoch] IS NULL) AND [short] > CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(30)) ORDER BY [short], [key]) AS s1 UNION ALL SELECT * FROM (SELECT TOP (3) 2 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p6 OR [ph_epoch] IS NULL) AND [short] IS NULL ORDER BY [short], [key]) AS s2) AS p ORDER BY ph_section, [short], [key]
--   int64 3
--   string "ä "
--   string "k"
--   int64 3
--   string "ä "
--   int64 3

-- Every: by decimal, descending, next page
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM (SELECT * FROM (SELECT TOP (3) 0 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [d] = CAST(@p2 AS DECIMAL(19,2)) AND [key] < CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [d] DESC, [key] DESC) AS s0 UNION ALL SELECT * FROM (SELECT TOP (3) 1 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p4 OR [ph_epoch] IS NULL) AND [d] < CAST(@p5 AS DECIMAL(19,2)) ORDER BY [d] DESC, [key] DESC) AS s1 UNION ALL SELECT * FROM (SELECT TOP (3) 2 AS ph_section, [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p6 OR [ph_epoch] IS NULL) AND [d] IS NULL ORDER BY [d] DESC, [key] DESC) AS s2) AS p ORDER BY ph_section, [d] DESC, [key] DESC
--   int64 3
--   string "-12.50"
--   string "k"
--   int64 3
--   string "-12.50"
--   int64 3

-- Every: by int, next page, among nulls
SELECT TOP (3) [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [i] IS NULL AND [key] > CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [i], [key]
--   int64 3
--   string "k"

-- lines: by key, next page
SELECT TOP (3) [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM (SELECT * FROM (SELECT TOP (3) 0 AS ph_section, [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [lines__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [key] = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND [child] > CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [key], [child]) AS s0 UNION ALL SELECT * FROM (SELECT TOP (3) 1 AS ph_section, [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [lines__b7] WHERE ([ph_epoch] >= @p4 OR [ph_epoch] IS NULL) AND [key] > CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [key], [child]) AS s1) AS p ORDER BY ph_section, [key], [child]
--   int64 3
--   string "k"
--   string "c"
--   int64 3
--   string "k"

-- lines: of one parent by child, next page
SELECT TOP (3) [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [lines__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [key] = CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND [child] < CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) ORDER BY [child] DESC
--   int64 3
--   string "k"
--   string "c"

