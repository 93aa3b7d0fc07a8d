-- Table Every

CREATE TABLE [app_every__b7] (
  [key] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [t] VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8,
  [short] VARCHAR(30) COLLATE Latin1_General_100_BIN2_UTF8,
  [i] BIGINT,
  [d] DECIMAL(19,2),
  [big] DECIMAL(38,10),
  [narrow] DECIMAL(18,4),
  [f] FLOAT(53),
  [b] BIT,
  [day] DATE,
  [clock] TIME(6),
  [at] DATETIME2(6),
  [id] CHAR(36) COLLATE Latin1_General_100_BIN2,
  [raw] VARBINARY(MAX),
  [doc] VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8,
  [ph_position] BIGINT,
  [ph_updated_us] BIGINT,
  [ph_epoch] BIGINT,
  PRIMARY KEY NONCLUSTERED ([key])
);
CREATE INDEX [app_every__b7_48ee2f40] ON [app_every__b7] ([short], [key]);
CREATE INDEX [app_every__b7_748d4600] ON [app_every__b7] ([i], [key]);
CREATE INDEX [app_every__b7_54b1fa83] ON [app_every__b7] ([d], [key]);
CREATE INDEX [app_every__b7_82b0cb49] ON [app_every__b7] ([big], [key]);
CREATE INDEX [app_every__b7_6d110fd2] ON [app_every__b7] ([narrow], [key]);
CREATE INDEX [app_every__b7_51927294] ON [app_every__b7] ([f], [key]);
CREATE INDEX [app_every__b7_e5480292] ON [app_every__b7] ([b], [key]);
CREATE INDEX [app_every__b7_dfd904b7] ON [app_every__b7] ([day], [key]);
CREATE INDEX [app_every__b7_3e063ef3] ON [app_every__b7] ([clock], [key]);
CREATE INDEX [app_every__b7_70e5bbbf] ON [app_every__b7] ([at], [key]);
CREATE INDEX [app_every__b7_754ce9fc] ON [app_every__b7] ([id], [key]);
CREATE OR ALTER VIEW [app_every] AS
SELECT [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us]
FROM [app_every__b7];
DROP VIEW IF EXISTS [app_every];
DROP TABLE IF EXISTS [app_every__b7];

-- upsert
UPDATE [app_every__b7] SET [t] = @p2, [short] = @p3, [i] = @p4, [d] = @p5, [big] = @p6, [narrow] = @p7, [f] = @p8, [b] = @p9, [day] = @p10, [clock] = @p11, [at] = @p12, [id] = @p13, [raw] = @p14, [doc] = @p15, [ph_position] = @p16, [ph_updated_us] = @p17, [ph_epoch] = @p18 WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)); IF @@ROWCOUNT = 0 INSERT INTO [app_every__b7] ([key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7, @p8, @p9, @p10, @p11, @p12, @p13, @p14, @p15, @p16, @p17, @p18)

-- insert
INSERT INTO [app_every__b7] ([key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7, @p8, @p9, @p10, @p11, @p12, @p13, @p14, @p15, @p16, @p17, @p18)

-- update
UPDATE [app_every__b7] SET [t] = @p1, [raw] = @p2, [doc] = @p3, [ph_position] = @p4, [ph_updated_us] = @p5, [ph_epoch] = @p6 WHERE [key] = CAST(@p7 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- delete
DELETE FROM [app_every__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- delete children


-- get
SELECT [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [app_every__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND ([ph_epoch] >= @p2 OR [ph_epoch] IS NULL)

-- list


-- any
SELECT TOP (1) [key] FROM [app_every__b7]

-- select 4 keys
SELECT [key], [t], [short], [i], [d], [big], [narrow], [f], [b], [day], [clock], [at], [id], [raw], [doc], [ph_position], [ph_updated_us] FROM [app_every__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [key] IN (CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)))

-- Table lines

CREATE TABLE [app_lines__b7] (
  [key] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [child] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [n] BIGINT,
  [note] VARCHAR(765) COLLATE Latin1_General_100_BIN2_UTF8,
  [ph_position] BIGINT,
  [ph_updated_us] BIGINT,
  [ph_epoch] BIGINT,
  [ph_row] AS CAST(HASHBYTES('SHA2_256', CAST([key] AS VARBINARY(1020)) + 0x00 + CAST([child] AS VARBINARY(1020))) AS BINARY(32)) PERSISTED NOT NULL,
  PRIMARY KEY ([ph_row])
);
CREATE INDEX [app_lines__b7_acd57b72] ON [app_lines__b7] ([key]) INCLUDE ([child]);
CREATE INDEX [app_lines__b7_b899943d] ON [app_lines__b7] ([n]);
CREATE INDEX [app_lines__b7_99d5339c] ON [app_lines__b7] ([note]);
CREATE OR ALTER VIEW [app_lines] AS
SELECT [key], [child], [n], [note], [ph_position], [ph_updated_us]
FROM [app_lines__b7];
DROP VIEW IF EXISTS [app_lines];
DROP TABLE IF EXISTS [app_lines__b7];

-- upsert
UPDATE [app_lines__b7] SET [n] = @p3, [note] = @p4, [ph_position] = @p5, [ph_updated_us] = @p6, [ph_epoch] = @p7 WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)); IF @@ROWCOUNT = 0 INSERT INTO [app_lines__b7] ([key], [child], [n], [note], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7)

-- insert
INSERT INTO [app_lines__b7] ([key], [child], [n], [note], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7)

-- update
UPDATE [app_lines__b7] SET [ph_position] = @p1, [ph_updated_us] = @p2, [ph_epoch] = @p3 WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32))

-- delete
DELETE FROM [app_lines__b7] WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32))

-- delete children
DELETE FROM [app_lines__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- get
SELECT [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [app_lines__b7] WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) AND ([ph_epoch] >= @p3 OR [ph_epoch] IS NULL)

-- list
SELECT [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [app_lines__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND [child] > CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND ([ph_epoch] >= @p3 OR [ph_epoch] IS NULL) ORDER BY [child] OFFSET 0 ROWS FETCH NEXT @p4 ROWS ONLY

-- any
SELECT TOP (1) [key] FROM [app_lines__b7]

-- select 4 keys
SELECT [key], [child], [n], [note], [ph_position], [ph_updated_us] FROM [app_lines__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND ([ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p6 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p7 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p8 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p9 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)))

-- Table Users

CREATE TABLE [app_users__b7] (
  [key] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [email] VARCHAR(300) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [balance] DECIMAL(30,2),
  [bio] VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8,
  [ph_position] BIGINT,
  [ph_updated_us] BIGINT,
  [ph_epoch] BIGINT,
  PRIMARY KEY NONCLUSTERED ([key])
);
CREATE UNIQUE INDEX [app_users__b7_b5e629e7] ON [app_users__b7] ([email]);
CREATE UNIQUE INDEX [app_users__b7_cedef945] ON [app_users__b7] ([balance]) WHERE [balance] IS NOT NULL;
CREATE OR ALTER VIEW [app_users] AS
SELECT [key], [email], [balance], [bio], [ph_position], [ph_updated_us]
FROM [app_users__b7];
DROP VIEW IF EXISTS [app_users];
DROP TABLE IF EXISTS [app_users__b7];

-- upsert


-- insert
INSERT INTO [app_users__b7] ([key], [email], [balance], [bio], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7)

-- update
UPDATE [app_users__b7] SET [bio] = @p1, [ph_position] = @p2, [ph_updated_us] = @p3, [ph_epoch] = @p4 WHERE [key] = CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- delete
DELETE FROM [app_users__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- delete children


-- get
SELECT [key], [email], [balance], [bio], [ph_position], [ph_updated_us] FROM [app_users__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND ([ph_epoch] >= @p2 OR [ph_epoch] IS NULL)

-- list


-- any
SELECT TOP (1) [key] FROM [app_users__b7]

-- select 4 keys
SELECT [key], [email], [balance], [bio], [ph_position], [ph_updated_us] FROM [app_users__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND [key] IN (CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)), CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)))

-- Table notes

CREATE TABLE [app_notes__b7] (
  [key] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [child] VARCHAR(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [doc] VARCHAR(MAX) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
  [ph_position] BIGINT,
  [ph_updated_us] BIGINT,
  [ph_epoch] BIGINT,
  [ph_row] AS CAST(HASHBYTES('SHA2_256', CAST([key] AS VARBINARY(1020)) + 0x00 + CAST([child] AS VARBINARY(1020))) AS BINARY(32)) PERSISTED NOT NULL,
  PRIMARY KEY ([ph_row])
);
CREATE INDEX [app_notes__b7_2fdabc84] ON [app_notes__b7] ([key]) INCLUDE ([child]);
CREATE OR ALTER VIEW [app_notes] AS
SELECT [key], [child], [doc], [ph_position], [ph_updated_us]
FROM [app_notes__b7];
DROP VIEW IF EXISTS [app_notes];
DROP TABLE IF EXISTS [app_notes__b7];

-- upsert
UPDATE [app_notes__b7] SET [doc] = @p3, [ph_position] = @p4, [ph_updated_us] = @p5, [ph_epoch] = @p6 WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)); IF @@ROWCOUNT = 0 INSERT INTO [app_notes__b7] ([key], [child], [doc], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6)

-- insert
INSERT INTO [app_notes__b7] ([key], [child], [doc], [ph_position], [ph_updated_us], [ph_epoch]) VALUES (@p1, @p2, @p3, @p4, @p5, @p6)

-- update
UPDATE [app_notes__b7] SET [doc] = @p1, [ph_position] = @p2, [ph_updated_us] = @p3, [ph_epoch] = @p4 WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p6 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32))

-- delete
DELETE FROM [app_notes__b7] WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32))

-- delete children
DELETE FROM [app_notes__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020))

-- get
SELECT [key], [child], [doc], [ph_position], [ph_updated_us] FROM [app_notes__b7] WHERE [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) AND ([ph_epoch] >= @p3 OR [ph_epoch] IS NULL)

-- list
SELECT [key], [child], [doc], [ph_position], [ph_updated_us] FROM [app_notes__b7] WHERE [key] = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND [child] > CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND ([ph_epoch] >= @p3 OR [ph_epoch] IS NULL) ORDER BY [child] OFFSET 0 ROWS FETCH NEXT @p4 ROWS ONLY

-- any
SELECT TOP (1) [key] FROM [app_notes__b7]

-- select 4 keys
SELECT [key], [child], [doc], [ph_position], [ph_updated_us] FROM [app_notes__b7] WHERE ([ph_epoch] >= @p1 OR [ph_epoch] IS NULL) AND ([ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p2 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p3 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p4 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p5 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p6 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p7 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)) OR [ph_row] = CAST(HASHBYTES('SHA2_256', CAST(CAST(@p8 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020)) + 0x00 + CAST(CAST(@p9 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AS VARBINARY(1020))) AS BINARY(32)))

