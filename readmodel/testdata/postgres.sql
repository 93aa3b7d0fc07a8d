-- Table Every

CREATE TABLE "app_every__b7" (
  "key" VARCHAR(255) COLLATE "C" NOT NULL,
  "t" TEXT COLLATE "C",
  "short" VARCHAR(10) COLLATE "C",
  "i" BIGINT,
  "d" NUMERIC(19,2),
  "big" NUMERIC(38,10),
  "narrow" NUMERIC(18,4),
  "f" DOUBLE PRECISION,
  "b" BOOLEAN,
  "day" DATE,
  "clock" TIME(6),
  "at" TIMESTAMP(6),
  "id" UUID,
  "raw" BYTEA,
  "doc" JSON,
  "ph_position" BIGINT,
  "ph_updated_us" BIGINT,
  "ph_epoch" BIGINT,
  PRIMARY KEY ("key")
);
CREATE INDEX "app_every__b7_48ee2f40" ON "app_every__b7" ("short", "key");
CREATE INDEX "app_every__b7_748d4600" ON "app_every__b7" ("i", "key");
CREATE INDEX "app_every__b7_54b1fa83" ON "app_every__b7" ("d", "key");
CREATE INDEX "app_every__b7_82b0cb49" ON "app_every__b7" ("big", "key");
CREATE INDEX "app_every__b7_6d110fd2" ON "app_every__b7" ("narrow", "key");
CREATE INDEX "app_every__b7_51927294" ON "app_every__b7" ("f", "key");
CREATE INDEX "app_every__b7_e5480292" ON "app_every__b7" ("b", "key");
CREATE INDEX "app_every__b7_dfd904b7" ON "app_every__b7" ("day", "key");
CREATE INDEX "app_every__b7_3e063ef3" ON "app_every__b7" ("clock", "key");
CREATE INDEX "app_every__b7_70e5bbbf" ON "app_every__b7" ("at", "key");
CREATE INDEX "app_every__b7_754ce9fc" ON "app_every__b7" ("id", "key");
CREATE OR REPLACE VIEW "app_every" AS
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us"
FROM "app_every__b7";
DROP VIEW IF EXISTS "app_every";
DROP TABLE IF EXISTS "app_every__b7";

-- upsert
INSERT INTO "app_every__b7" ("key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT ("key") DO UPDATE SET "t" = excluded."t", "short" = excluded."short", "i" = excluded."i", "d" = excluded."d", "big" = excluded."big", "narrow" = excluded."narrow", "f" = excluded."f", "b" = excluded."b", "day" = excluded."day", "clock" = excluded."clock", "at" = excluded."at", "id" = excluded."id", "raw" = excluded."raw", "doc" = excluded."doc", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_every__b7" ("key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)

-- update
UPDATE "app_every__b7" SET "t" = $1, "raw" = $2, "doc" = $3, "ph_position" = $4, "ph_updated_us" = $5, "ph_epoch" = $6 WHERE "key" = $7

-- delete
DELETE FROM "app_every__b7" WHERE "key" = $1

-- delete children


-- get
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "app_every__b7" WHERE "key" = $1 AND ("ph_epoch" >= $2 OR "ph_epoch" IS NULL)

-- list


-- any
SELECT "key" FROM "app_every__b7" LIMIT 1

-- select 4 keys
SELECT "key", "t", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id", "raw", "doc", "ph_position", "ph_updated_us" FROM "app_every__b7" WHERE ("ph_epoch" >= $1 OR "ph_epoch" IS NULL) AND "key" IN ($2, $3, $4, $5)

-- Table lines

CREATE TABLE "app_lines__b7" (
  "key" VARCHAR(255) COLLATE "C" NOT NULL,
  "child" VARCHAR(255) COLLATE "C" NOT NULL,
  "n" BIGINT,
  "note" VARCHAR(255) COLLATE "C",
  "ph_position" BIGINT,
  "ph_updated_us" BIGINT,
  "ph_epoch" BIGINT,
  PRIMARY KEY ("key", "child")
);
CREATE INDEX "app_lines__b7_ccea11cb" ON "app_lines__b7" ("n", "key", "child");
CREATE INDEX "app_lines__b7_0fddf1b2" ON "app_lines__b7" ("note", "key", "child");
CREATE OR REPLACE VIEW "app_lines" AS
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us"
FROM "app_lines__b7";
DROP VIEW IF EXISTS "app_lines";
DROP TABLE IF EXISTS "app_lines__b7";

-- upsert
INSERT INTO "app_lines__b7" ("key", "child", "n", "note", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT ("key", "child") DO UPDATE SET "n" = excluded."n", "note" = excluded."note", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_lines__b7" ("key", "child", "n", "note", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6, $7)

-- update
UPDATE "app_lines__b7" SET "ph_position" = $1, "ph_updated_us" = $2, "ph_epoch" = $3 WHERE "key" = $4 AND "child" = $5

-- delete
DELETE FROM "app_lines__b7" WHERE "key" = $1 AND "child" = $2

-- delete children
DELETE FROM "app_lines__b7" WHERE "key" = $1

-- get
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE "key" = $1 AND "child" = $2 AND ("ph_epoch" >= $3 OR "ph_epoch" IS NULL)

-- list
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE "key" = $1 AND "child" > $2 AND ("ph_epoch" >= $3 OR "ph_epoch" IS NULL) ORDER BY "child" LIMIT $4

-- any
SELECT "key" FROM "app_lines__b7" LIMIT 1

-- select 4 keys
SELECT "key", "child", "n", "note", "ph_position", "ph_updated_us" FROM "app_lines__b7" WHERE ("ph_epoch" >= $1 OR "ph_epoch" IS NULL) AND ("key" = $2 AND "child" = $3 OR "key" = $4 AND "child" = $5 OR "key" = $6 AND "child" = $7 OR "key" = $8 AND "child" = $9)

-- Table Users

CREATE TABLE "app_users__b7" (
  "key" VARCHAR(255) COLLATE "C" NOT NULL,
  "email" VARCHAR(100) COLLATE "C" NOT NULL,
  "balance" NUMERIC(30,2),
  "bio" VARCHAR(5000) COLLATE "C",
  "ph_position" BIGINT,
  "ph_updated_us" BIGINT,
  "ph_epoch" BIGINT,
  PRIMARY KEY ("key")
);
CREATE UNIQUE INDEX "app_users__b7_b5e629e7" ON "app_users__b7" ("email");
CREATE UNIQUE INDEX "app_users__b7_cedef945" ON "app_users__b7" ("balance");
CREATE OR REPLACE VIEW "app_users" AS
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us"
FROM "app_users__b7";
DROP VIEW IF EXISTS "app_users";
DROP TABLE IF EXISTS "app_users__b7";

-- upsert


-- insert
INSERT INTO "app_users__b7" ("key", "email", "balance", "bio", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6, $7)

-- update
UPDATE "app_users__b7" SET "bio" = $1, "ph_position" = $2, "ph_updated_us" = $3, "ph_epoch" = $4 WHERE "key" = $5

-- delete
DELETE FROM "app_users__b7" WHERE "key" = $1

-- delete children


-- get
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us" FROM "app_users__b7" WHERE "key" = $1 AND ("ph_epoch" >= $2 OR "ph_epoch" IS NULL)

-- list


-- any
SELECT "key" FROM "app_users__b7" LIMIT 1

-- select 4 keys
SELECT "key", "email", "balance", "bio", "ph_position", "ph_updated_us" FROM "app_users__b7" WHERE ("ph_epoch" >= $1 OR "ph_epoch" IS NULL) AND "key" IN ($2, $3, $4, $5)

-- Table notes

CREATE TABLE "app_notes__b7" (
  "key" VARCHAR(255) COLLATE "C" NOT NULL,
  "child" VARCHAR(255) COLLATE "C" NOT NULL,
  "doc" JSON NOT NULL,
  "ph_position" BIGINT,
  "ph_updated_us" BIGINT,
  "ph_epoch" BIGINT,
  PRIMARY KEY ("key", "child")
);
CREATE OR REPLACE VIEW "app_notes" AS
SELECT "key", "child", "doc", "ph_position", "ph_updated_us"
FROM "app_notes__b7";
DROP VIEW IF EXISTS "app_notes";
DROP TABLE IF EXISTS "app_notes__b7";

-- upsert
INSERT INTO "app_notes__b7" ("key", "child", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT ("key", "child") DO UPDATE SET "doc" = excluded."doc", "ph_position" = excluded."ph_position", "ph_updated_us" = excluded."ph_updated_us", "ph_epoch" = excluded."ph_epoch"

-- insert
INSERT INTO "app_notes__b7" ("key", "child", "doc", "ph_position", "ph_updated_us", "ph_epoch") VALUES ($1, $2, $3, $4, $5, $6)

-- update
UPDATE "app_notes__b7" SET "doc" = $1, "ph_position" = $2, "ph_updated_us" = $3, "ph_epoch" = $4 WHERE "key" = $5 AND "child" = $6

-- delete
DELETE FROM "app_notes__b7" WHERE "key" = $1 AND "child" = $2

-- delete children
DELETE FROM "app_notes__b7" WHERE "key" = $1

-- get
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE "key" = $1 AND "child" = $2 AND ("ph_epoch" >= $3 OR "ph_epoch" IS NULL)

-- list
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE "key" = $1 AND "child" > $2 AND ("ph_epoch" >= $3 OR "ph_epoch" IS NULL) ORDER BY "child" LIMIT $4

-- any
SELECT "key" FROM "app_notes__b7" LIMIT 1

-- select 4 keys
SELECT "key", "child", "doc", "ph_position", "ph_updated_us" FROM "app_notes__b7" WHERE ("ph_epoch" >= $1 OR "ph_epoch" IS NULL) AND ("key" = $2 AND "child" = $3 OR "key" = $4 AND "child" = $5 OR "key" = $6 AND "child" = $7 OR "key" = $8 AND "child" = $9)

