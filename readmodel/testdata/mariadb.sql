-- Table Every

CREATE TABLE IF NOT EXISTS `app_every__b7` (
  `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `t` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
  `short` VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
  `i` BIGINT,
  `d` DECIMAL(19,2),
  `big` DECIMAL(38,10),
  `narrow` DECIMAL(18,4),
  `f` DOUBLE,
  `b` BOOLEAN,
  `day` DATE,
  `clock` TIME(6),
  `at` DATETIME(6),
  `id` CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
  `raw` LONGBLOB,
  `doc` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  `ph_position` BIGINT,
  `ph_updated_us` BIGINT,
  `ph_epoch` BIGINT,
  PRIMARY KEY (`key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
CREATE INDEX `app_every__b7_48ee2f40` ON `app_every__b7` (`short`, `key`);
CREATE INDEX `app_every__b7_748d4600` ON `app_every__b7` (`i`, `key`);
CREATE INDEX `app_every__b7_54b1fa83` ON `app_every__b7` (`d`, `key`);
CREATE INDEX `app_every__b7_82b0cb49` ON `app_every__b7` (`big`, `key`);
CREATE INDEX `app_every__b7_6d110fd2` ON `app_every__b7` (`narrow`, `key`);
CREATE INDEX `app_every__b7_51927294` ON `app_every__b7` (`f`, `key`);
CREATE INDEX `app_every__b7_e5480292` ON `app_every__b7` (`b`, `key`);
CREATE INDEX `app_every__b7_dfd904b7` ON `app_every__b7` (`day`, `key`);
CREATE INDEX `app_every__b7_3e063ef3` ON `app_every__b7` (`clock`, `key`);
CREATE INDEX `app_every__b7_70e5bbbf` ON `app_every__b7` (`at`, `key`);
CREATE INDEX `app_every__b7_754ce9fc` ON `app_every__b7` (`id`, `key`);
CREATE OR REPLACE VIEW `app_every` AS
SELECT `key`, `t`, `short`, `i`, `d`, `big`, `narrow`, `f`, `b`, `day`, `clock`, `at`, `id`, `raw`, `doc`, `ph_position`, `ph_updated_us`
FROM `app_every__b7`;
DROP VIEW IF EXISTS `app_every`;
DROP TABLE IF EXISTS `app_every__b7`;

-- upsert
INSERT INTO `app_every__b7` (`key`, `t`, `short`, `i`, `d`, `big`, `narrow`, `f`, `b`, `day`, `clock`, `at`, `id`, `raw`, `doc`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE `t` = VALUES(`t`), `short` = VALUES(`short`), `i` = VALUES(`i`), `d` = VALUES(`d`), `big` = VALUES(`big`), `narrow` = VALUES(`narrow`), `f` = VALUES(`f`), `b` = VALUES(`b`), `day` = VALUES(`day`), `clock` = VALUES(`clock`), `at` = VALUES(`at`), `id` = VALUES(`id`), `raw` = VALUES(`raw`), `doc` = VALUES(`doc`), `ph_position` = VALUES(`ph_position`), `ph_updated_us` = VALUES(`ph_updated_us`), `ph_epoch` = VALUES(`ph_epoch`)

-- insert
INSERT INTO `app_every__b7` (`key`, `t`, `short`, `i`, `d`, `big`, `narrow`, `f`, `b`, `day`, `clock`, `at`, `id`, `raw`, `doc`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE `app_every__b7` SET `t` = ?, `raw` = ?, `doc` = ?, `ph_position` = ?, `ph_updated_us` = ?, `ph_epoch` = ? WHERE `key` = ?

-- delete
DELETE FROM `app_every__b7` WHERE `key` = ?

-- delete children


-- get
SELECT `key`, `t`, `short`, `i`, `d`, `big`, `narrow`, `f`, `b`, `day`, `clock`, `at`, `id`, `raw`, `doc`, `ph_position`, `ph_updated_us` FROM `app_every__b7` WHERE `key` = ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL)

-- list


-- any
SELECT `key` FROM `app_every__b7` LIMIT 1

-- select 4 keys
SELECT `key`, `t`, `short`, `i`, `d`, `big`, `narrow`, `f`, `b`, `day`, `clock`, `at`, `id`, `raw`, `doc`, `ph_position`, `ph_updated_us` FROM `app_every__b7` WHERE (`ph_epoch` >= ? OR `ph_epoch` IS NULL) AND `key` IN (?, ?, ?, ?)

-- Table lines

CREATE TABLE IF NOT EXISTS `app_lines__b7` (
  `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `child` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `n` BIGINT,
  `note` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
  `ph_position` BIGINT,
  `ph_updated_us` BIGINT,
  `ph_epoch` BIGINT,
  PRIMARY KEY (`key`, `child`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
CREATE INDEX `app_lines__b7_ccea11cb` ON `app_lines__b7` (`n`, `key`, `child`);
CREATE INDEX `app_lines__b7_0fddf1b2` ON `app_lines__b7` (`note`, `key`, `child`);
CREATE OR REPLACE VIEW `app_lines` AS
SELECT `key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us`
FROM `app_lines__b7`;
DROP VIEW IF EXISTS `app_lines`;
DROP TABLE IF EXISTS `app_lines__b7`;

-- upsert
INSERT INTO `app_lines__b7` (`key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE `n` = VALUES(`n`), `note` = VALUES(`note`), `ph_position` = VALUES(`ph_position`), `ph_updated_us` = VALUES(`ph_updated_us`), `ph_epoch` = VALUES(`ph_epoch`)

-- insert
INSERT INTO `app_lines__b7` (`key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE `app_lines__b7` SET `ph_position` = ?, `ph_updated_us` = ?, `ph_epoch` = ? WHERE `key` = ? AND `child` = ?

-- delete
DELETE FROM `app_lines__b7` WHERE `key` = ? AND `child` = ?

-- delete children
DELETE FROM `app_lines__b7` WHERE `key` = ?

-- get
SELECT `key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us` FROM `app_lines__b7` WHERE `key` = ? AND `child` = ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL)

-- list
SELECT `key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us` FROM `app_lines__b7` WHERE `key` = ? AND `child` > ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL) ORDER BY `child` LIMIT ?

-- any
SELECT `key` FROM `app_lines__b7` LIMIT 1

-- select 4 keys
SELECT `key`, `child`, `n`, `note`, `ph_position`, `ph_updated_us` FROM `app_lines__b7` WHERE (`ph_epoch` >= ? OR `ph_epoch` IS NULL) AND (`key` = ? AND `child` = ? OR `key` = ? AND `child` = ? OR `key` = ? AND `child` = ? OR `key` = ? AND `child` = ?)

-- Table Users

CREATE TABLE IF NOT EXISTS `app_users__b7` (
  `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `email` VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `balance` DECIMAL(30,2),
  `bio` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
  `ph_position` BIGINT,
  `ph_updated_us` BIGINT,
  `ph_epoch` BIGINT,
  PRIMARY KEY (`key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
CREATE UNIQUE INDEX `app_users__b7_b5e629e7` ON `app_users__b7` (`email`);
CREATE UNIQUE INDEX `app_users__b7_cedef945` ON `app_users__b7` (`balance`);
CREATE OR REPLACE VIEW `app_users` AS
SELECT `key`, `email`, `balance`, `bio`, `ph_position`, `ph_updated_us`
FROM `app_users__b7`;
DROP VIEW IF EXISTS `app_users`;
DROP TABLE IF EXISTS `app_users__b7`;

-- upsert


-- insert
INSERT INTO `app_users__b7` (`key`, `email`, `balance`, `bio`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?, ?)

-- update
UPDATE `app_users__b7` SET `bio` = ?, `ph_position` = ?, `ph_updated_us` = ?, `ph_epoch` = ? WHERE `key` = ?

-- delete
DELETE FROM `app_users__b7` WHERE `key` = ?

-- delete children


-- get
SELECT `key`, `email`, `balance`, `bio`, `ph_position`, `ph_updated_us` FROM `app_users__b7` WHERE `key` = ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL)

-- list


-- any
SELECT `key` FROM `app_users__b7` LIMIT 1

-- select 4 keys
SELECT `key`, `email`, `balance`, `bio`, `ph_position`, `ph_updated_us` FROM `app_users__b7` WHERE (`ph_epoch` >= ? OR `ph_epoch` IS NULL) AND `key` IN (?, ?, ?, ?)

-- Table notes

CREATE TABLE IF NOT EXISTS `app_notes__b7` (
  `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `child` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `doc` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `ph_position` BIGINT,
  `ph_updated_us` BIGINT,
  `ph_epoch` BIGINT,
  PRIMARY KEY (`key`, `child`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
CREATE OR REPLACE VIEW `app_notes` AS
SELECT `key`, `child`, `doc`, `ph_position`, `ph_updated_us`
FROM `app_notes__b7`;
DROP VIEW IF EXISTS `app_notes`;
DROP TABLE IF EXISTS `app_notes__b7`;

-- upsert
INSERT INTO `app_notes__b7` (`key`, `child`, `doc`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE `doc` = VALUES(`doc`), `ph_position` = VALUES(`ph_position`), `ph_updated_us` = VALUES(`ph_updated_us`), `ph_epoch` = VALUES(`ph_epoch`)

-- insert
INSERT INTO `app_notes__b7` (`key`, `child`, `doc`, `ph_position`, `ph_updated_us`, `ph_epoch`) VALUES (?, ?, ?, ?, ?, ?)

-- update
UPDATE `app_notes__b7` SET `doc` = ?, `ph_position` = ?, `ph_updated_us` = ?, `ph_epoch` = ? WHERE `key` = ? AND `child` = ?

-- delete
DELETE FROM `app_notes__b7` WHERE `key` = ? AND `child` = ?

-- delete children
DELETE FROM `app_notes__b7` WHERE `key` = ?

-- get
SELECT `key`, `child`, `doc`, `ph_position`, `ph_updated_us` FROM `app_notes__b7` WHERE `key` = ? AND `child` = ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL)

-- list
SELECT `key`, `child`, `doc`, `ph_position`, `ph_updated_us` FROM `app_notes__b7` WHERE `key` = ? AND `child` > ? AND (`ph_epoch` >= ? OR `ph_epoch` IS NULL) ORDER BY `child` LIMIT ?

-- any
SELECT `key` FROM `app_notes__b7` LIMIT 1

-- select 4 keys
SELECT `key`, `child`, `doc`, `ph_position`, `ph_updated_us` FROM `app_notes__b7` WHERE (`ph_epoch` >= ? OR `ph_epoch` IS NULL) AND (`key` = ? AND `child` = ? OR `key` = ? AND `child` = ? OR `key` = ? AND `child` = ? OR `key` = ? AND `child` = ?)

