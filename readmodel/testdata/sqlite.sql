-- Table Every

CREATE TABLE "app_every__b7" (
  "key" TEXT NOT NULL,
  "t" TEXT,
  "short" TEXT,
  "i" INTEGER,
  "d" TEXT,
  "big" TEXT,
  "narrow" TEXT,
  "f" REAL,
  "b" INTEGER,
  "day" TEXT,
  "clock" TEXT,
  "at" TEXT,
  "id" TEXT,
  "raw" BLOB,
  "doc" TEXT,
  "ph_n_d" BLOB,
  "ph_n_big" BLOB,
  "ph_n_narrow" INTEGER,
  "ph_position" INTEGER,
  "ph_updated_us" INTEGER,
  "ph_epoch" INTEGER,
  PRIMARY KEY ("key")
);
CREATE INDEX "app_every__b7_48ee2f40" ON "app_every__b7" ("short", "key");
CREATE INDEX "app_every__b7_748d4600" ON "app_every__b7" ("i", "key");
CREATE INDEX "app_every__b7_01fa2c30" ON "app_every__b7" ("ph_n_d", "key");
CREATE INDEX "app_every__b7_1f3690b8" ON "app_every__b7" ("ph_n_big", "key");
CREATE INDEX "app_every__b7_d7430afa" ON "app_every__b7" ("ph_n_narrow", "key");
CREATE INDEX "app_every__b7_51927294" ON "app_every__b7" ("f", "key");
CREATE INDEX "app_every__b7_e5480292" ON "app_every__b7" ("b", "key");
CREATE INDEX "app_every__b7_dfd904b7" ON "app_every__b7" ("day", "key");
CREATE INDEX "app_every__b7_3e063ef3" ON "app_every__b7" ("clock", "key");
CREATE INDEX "app_every__b7_70e5bbbf" ON "app_every__b7" ("at", "key");
CREATE INDEX "app_every__b7_754ce9fc" ON "app_every__b7" ("id", "key");
DROP VIEW IF EXISTS "app_every";
CREATE VIEW "app_every" AS
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us"
FROM "app_every__b7";
DROP VIEW IF EXISTS "app_every";
DROP TABLE IF EXISTS "app_every__b7";

-- upsert
INSERT INTO "app_every__b7" ("key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_n_d", "ph_n_big", "ph_n_narrow", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT ("key") DO UPDATE SET "t" = excluded."t", "short" = excluded."short", "i" = excluded."i", "d" = excluded."d", "big" = excluded."big", "narrow" = excluded."narrow", "f" = excluded."f", "b" = excluded."b", "day" = excluded."day", "clock" = excluded."clock", "at" = excluded."at", "id" = excluded."id", "raw" = excluded."raw", "doc" = excluded."doc", "ph_n_d" = excluded."ph_n_d", "ph_n_big" = excluded."ph_n_big", "ph_n_narrow" = excluded."ph_n_narrow", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_every__b7" ("key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_n_d", "ph_n_big", "ph_n_narrow", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE "app_every__b7" SET "t" = ?, "raw" = ?, "doc" = ?, "ph_position" = ?, "ph_updated_us" = ?, "ph_epoch" = ? WHERE "key" = ?

-- delete
DELETE FROM "app_every__b7" WHERE "key" = ?

-- delete children


-- get
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "app_every__b7" WHERE "key" = ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL)

-- list


-- any
SELECT "key" FROM "app_every__b7" LIMIT 1

-- select 4 keys
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "app_every__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "key" IN (?, ?, ?, ?)

-- Table lines

CREATE TABLE "app_lines__b7" (
  "key" TEXT NOT NULL,
  "child" TEXT NOT NULL,
  "n" INTEGER,
  "note" TEXT,
  "ph_position" INTEGER,
  "ph_updated_us" INTEGER,
  "ph_epoch" INTEGER,
  PRIMARY KEY ("key", "child")
) WITHOUT ROWID;
CREATE INDEX "app_lines__b7_ccea11cb" ON "app_lines__b7" ("n", "key", "child");
CREATE INDEX "app_lines__b7_0fddf1b2" ON "app_lines__b7" ("note", "key", "child");
DROP VIEW IF EXISTS "app_lines";
CREATE VIEW "app_lines" AS
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us"
FROM "app_lines__b7";
DROP VIEW IF EXISTS "app_lines";
DROP TABLE IF EXISTS "app_lines__b7";

-- upsert
INSERT INTO "app_lines__b7" ("key", "child", "n", "note", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT ("key", "child") DO UPDATE SET "n" = excluded."n", "note" = excluded."note", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_lines__b7" ("key", "child", "n", "note", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE "app_lines__b7" SET "ph_position" = ?, "ph_updated_us" = ?, "ph_epoch" = ? WHERE "key" = ? AND "child" = ?

-- delete
DELETE FROM "app_lines__b7" WHERE "key" = ? AND "child" = ?

-- delete children
DELETE FROM "app_lines__b7" WHERE "key" = ?

-- get
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE "key" = ? AND "child" = ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL)

-- list
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE "key" = ? AND "child" > ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL) ORDER BY "child" LIMIT ?

-- any
SELECT "key" FROM "app_lines__b7" LIMIT 1

-- select 4 keys
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND ("key" = ? AND "child" = ? OR "key" = ? AND "child" = ? OR "key" = ? AND "child" = ? OR "key" = ? AND "child" = ?)

-- Table Users

CREATE TABLE "app_users__b7" (
  "key" TEXT NOT NULL,
  "email" TEXT NOT NULL,
  "balance" TEXT,
  "bio" TEXT,
  "ph_n_balance" BLOB,
  "ph_position" INTEGER,
  "ph_updated_us" INTEGER,
  "ph_epoch" INTEGER,
  PRIMARY KEY ("key")
);
CREATE UNIQUE INDEX "app_users__b7_b5e629e7" ON "app_users__b7" ("email");
CREATE UNIQUE INDEX "app_users__b7_1867f2f2" ON "app_users__b7" ("ph_n_balance");
DROP VIEW IF EXISTS "app_users";
CREATE VIEW "app_users" AS
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us"
FROM "app_users__b7";
DROP VIEW IF EXISTS "app_users";
DROP TABLE IF EXISTS "app_users__b7";

-- upsert


-- insert
INSERT INTO "app_users__b7" ("key", "email", "balance", "bio", "ph_n_balance", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE "app_users__b7" SET "bio" = ?, "ph_position" = ?, "ph_updated_us" = ?, "ph_epoch" = ? WHERE "key" = ?

-- delete
DELETE FROM "app_users__b7" WHERE "key" = ?

-- delete children


-- get
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us" FROM "app_users__b7" WHERE "key" = ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL)

-- list


-- any
SELECT "key" FROM "app_users__b7" LIMIT 1

-- select 4 keys
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us" FROM "app_users__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND "key" IN (?, ?, ?, ?)

-- Table notes

CREATE TABLE "app_notes__b7" (
  "key" TEXT NOT NULL,
  "child" TEXT NOT NULL,
  "doc" TEXT NOT NULL,
  "ph_position" INTEGER,
  "ph_updated_us" INTEGER,
  "ph_epoch" INTEGER,
  PRIMARY KEY ("key", "child")
);
DROP VIEW IF EXISTS "app_notes";
CREATE VIEW "app_notes" AS
SELECT "key", "child", "doc", "ph_position", "ph_updated_us"
FROM "app_notes__b7";
DROP VIEW IF EXISTS "app_notes";
DROP TABLE IF EXISTS "app_notes__b7";

-- upsert
INSERT INTO "app_notes__b7" ("key", "child", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT ("key", "child") DO UPDATE SET "doc" = excluded."doc", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_notes__b7" ("key", "child", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES (?, ?, ?, ?, ?, ?)

-- update
UPDATE "app_notes__b7" SET "doc" = ?, "ph_position" = ?, "ph_updated_us" = ?, "ph_epoch" = ? WHERE "key" = ? AND "child" = ?

-- delete
DELETE FROM "app_notes__b7" WHERE "key" = ? AND "child" = ?

-- delete children
DELETE FROM "app_notes__b7" WHERE "key" = ?

-- get
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE "key" = ? AND "child" = ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL)

-- list
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE "key" = ? AND "child" > ? AND ("ph_epoch" >= ? OR "ph_epoch" IS NULL) ORDER BY "child" LIMIT ?

-- any
SELECT "key" FROM "app_notes__b7" LIMIT 1

-- select 4 keys
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE ("ph_epoch" >= ? OR "ph_epoch" IS NULL) AND ("key" = ? AND "child" = ? OR "key" = ? AND "child" = ? OR "key" = ? AND "child" = ? OR "key" = ? AND "child" = ?)

