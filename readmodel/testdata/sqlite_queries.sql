-- Every: first page by key
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) ORDER BY "key" LIMIT 3
--   int64 3

-- Every: equal text and decimal
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" = ? AND "ph_n_d" = ? AND "b" IS NULL ORDER BY "key" LIMIT 3
--   int64 3
--   string "ä "
--   []uint8 []byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfb, 0x1e}

-- Every: by text, first page
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM (SELECT * FROM (SELECT 0 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" IS NOT NULL ORDER BY "short", "key" LIMIT 3) AS s0 UNION ALL SELECT * FROM (SELECT 1 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" IS NULL ORDER BY "short", "key" LIMIT 3) AS s1) AS p ORDER BY ph_section, "short", "key" LIMIT 3
--   int64 3
--   int64 3

-- Every: by text, next page
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM (SELECT * FROM (SELECT 0 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" = ? AND "key" > ? ORDER BY "short", "key" LIMIT 3) AS s0 UNION ALL SELECT * FROM (SELECT 1 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" > ? ORDER BY "short", "key" LIMIT 3) AS s1 UNION ALL SELECT * FROM (SELECT 2 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "short" IS NULL ORDER BY "short", "key" LIMIT 3) AS s2) AS p ORDER BY ph_section, "short", "key" LIMIT 3
--   int64 3
--   string "ä "
--   string "k"
--   int64 3
--   string "ä "
--   int64 3

-- Every: by decimal, descending, next page
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM (SELECT * FROM (SELECT 0 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us", "ph_n_d" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "ph_n_d" = ? AND "key" < ? ORDER BY "ph_n_d" DESC, "key" DESC LIMIT 3) AS s0 UNION ALL SELECT * FROM (SELECT 1 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us", "ph_n_d" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "ph_n_d" < ? ORDER BY "ph_n_d" DESC, "key" DESC LIMIT 3) AS s1 UNION ALL SELECT * FROM (SELECT 2 AS ph_section, "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us", "ph_n_d" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "ph_n_d" IS NULL ORDER BY "ph_n_d" DESC, "key" DESC LIMIT 3) AS s2) AS p ORDER BY ph_section, "ph_n_d" DESC, "key" DESC LIMIT 3
--   int64 3
--   []uint8 []byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfb, 0x1e}
--   string "k"
--   int64 3
--   []uint8 []byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfb, 0x1e}
--   int64 3

-- Every: by int, next page, among nulls
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "i" IS NULL AND "key" > ? ORDER BY "i", "key" LIMIT 3
--   int64 3
--   string "k"

-- lines: by key, next page
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM (SELECT * FROM (SELECT 0 AS ph_section, "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "lines__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "key" = ? AND "child" > ? ORDER BY "key", "child" LIMIT 3) AS s0 UNION ALL SELECT * FROM (SELECT 1 AS ph_section, "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "lines__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "key" > ? ORDER BY "key", "child" LIMIT 3) AS s1) AS p ORDER BY ph_section, "key", "child" LIMIT 3
--   int64 3
--   string "k"
--   string "c"
--   int64 3
--   string "k"

-- lines: of one parent by child, next page
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "lines__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "key" = ? AND "child" < ? ORDER BY "child" DESC LIMIT 3
--   int64 3
--   string "k"
--   string "c"

