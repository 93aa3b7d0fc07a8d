SET XACT_ABORT ON;
BEGIN TRANSACTION;

-- The event log, its topic and the snapshots. Names in double braces become the
-- quoted name with the table prefix. Text has a collation that is exact, in the
-- order of code points and in UTF-8; lengths count bytes: 1020 are 255 code
-- points. Types are spelled as the catalogue spells them: the host compares both
-- at each start.
--
-- An index entry holds 1700 bytes, in a clustered index 900. So a primary key
-- with a text of full length is nonclustered, and a stream, which is named by two
-- of them, is found by its hash.

CREATE TABLE [ph_schema_migrations] (
    version    int                   NOT NULL,
    name       varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    checksum   varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    applied_us bigint                NOT NULL,
    PRIMARY KEY (version)
);

-- What the first start freezes for ever: every later start compares its
-- configuration with this row.
CREATE TABLE [ph_partition_metadata] (
    id            int                   NOT NULL,
    partitions    int                   NOT NULL,
    hash          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    key_encoding  int                   NOT NULL,
    position_mode varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    PRIMARY KEY (id)
);

-- Numbers that are never used twice. They are drawn in transactions of their
-- own, so that what uses one may be rolled back.
CREATE TABLE [ph_counters] (
    name  varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    value bigint                NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
);

-- end_position is the counter positions are drawn from. What it holds after a
-- commit may be read by everybody, so the high-water mark is moved along with it.
CREATE TABLE [ph_topics] (
    name            varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    kind            varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    topic_start     bigint                 NOT NULL DEFAULT 0,
    end_position    bigint                 NOT NULL DEFAULT 0,
    high_water_mark bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (name)
);

-- stream is SHA-256 of the aggregate type, a zero byte and the aggregate id. The
-- payload is text where it is JSON, so that SQL clients can read it, else bytes:
-- exactly one of data and data_bytes is set.
CREATE TABLE [ph_events] (
    position       bigint                 NOT NULL,
    sequence       bigint                 NOT NULL,
    occurred_us    bigint                 NOT NULL,
    id             binary(16)             NOT NULL,
    stream         binary(32)             NOT NULL,
    partition_key  int                    NOT NULL,
    revision       int                    NOT NULL,
    codec_version  int                    NOT NULL,
    aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    aggregate_id   varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    type           varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    codec          varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    data           varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    data_bytes     varbinary(max)         NULL,
    metadata       varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    PRIMARY KEY (position)
);

CREATE UNIQUE INDEX [ph_events_id] ON [ph_events] (id);

-- The last one of a stream is its version, and two appends of one version
-- cannot both be stored.
CREATE UNIQUE INDEX [ph_events_stream] ON [ph_events] (stream, sequence);

-- In partition order, then by position: the clustered key is the last part of
-- every index.
CREATE INDEX [ph_events_partition] ON [ph_events] (partition_key);

CREATE TABLE [ph_snapshots] (
    stream         binary(32)             NOT NULL,
    aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    aggregate_id   varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    sequence       bigint                 NOT NULL,
    version        int                    NOT NULL,
    codec          varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    codec_version  int                    NOT NULL,
    created_us     bigint                 NOT NULL,
    data           varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    data_bytes     varbinary(max)         NULL,
    PRIMARY KEY (stream)
);

INSERT INTO [ph_schema_migrations] (version, name, checksum, applied_us) VALUES (1, 'events', 'a60b91a48f403c3b10a4ae379ac281df8c33ceffa055a219162d16cb979d633d', DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()));

-- Consumers and what they have applied. All bookkeeping hangs on a build: one
-- set of a consumer's tables. Which build is live is a column of its consumer.
-- The type of a consumer is shorter than other names, so that both parts of its
-- key have room in an index entry.

CREATE TABLE [ph_consumers] (
    type           varchar(680) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    name           varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    state          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    state_since_us bigint                 NOT NULL,
    halt           varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    epoch          bigint                 NOT NULL DEFAULT 0,
    live_build     bigint                 NOT NULL,
    revision       bigint                 NOT NULL DEFAULT 1,
    PRIMARY KEY NONCLUSTERED (type, name)
);

-- The number comes from counters: it is part of table names, and those are never
-- used again. A build has the declaration it was made by, tables in JSON, so that rows
-- can be read without the module. Epoch, state and halt are those of a build that is
-- not live: of the live one its consumer has them. stood_down_us is when it was live
-- last, and what has been is kept until keep_until_us (NULL: for good), cold if
-- nobody applies it meanwhile. stopped_us is when stop_at was set in its checkpoints,
-- dropped_us when it was given up: what is left of it then are tables to be dropped.
CREATE TABLE [ph_builds] (
    id                  bigint                 NOT NULL,
    consumer_type       varchar(680) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_name       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    created_us          bigint                 NOT NULL,
    plugin              varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    digest              varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    topics              varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    fingerprint_version int                    NOT NULL,
    inputs_hash         varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    keys_hash           varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    tables_hash         varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    logic_hash          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    tables              varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    epoch               bigint                 NOT NULL DEFAULT 0,
    state               varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    state_since_us      bigint                 NOT NULL,
    halt                varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    stood_down_us       bigint                 NULL,
    keep_until_us       bigint                 NULL,
    cold                int                    NOT NULL DEFAULT 0,
    stopped_us          bigint                 NULL,
    dropped_us          bigint                 NULL,
    PRIMARY KEY (id)
);

-- A rebuild replays a partition up to replay_through, and prunes it then: when
-- pruned_epoch is the epoch of all, replay_through is 0 again. What is at or below
-- effects_before was applied with its effects before the latest rebuild.
-- Nobody reads further than stop_at, unless that is 0.
CREATE TABLE [ph_checkpoints] (
    build              bigint                 NOT NULL,
    topic              varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    [partition]        int                    NOT NULL,
    position           bigint                 NOT NULL DEFAULT 0,
    epoch              bigint                 NOT NULL DEFAULT 0,
    effects_through    bigint                 NOT NULL DEFAULT 0,
    replay_through     bigint                 NOT NULL DEFAULT 0,
    incomplete_through bigint                 NOT NULL DEFAULT 0,
    effects_before     bigint                 NOT NULL DEFAULT 0,
    pruned_epoch       bigint                 NOT NULL DEFAULT 0,
    stop_at            bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (build, topic, [partition])
);

CREATE TABLE [ph_ownership] (
    build       bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    instance_id varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NULL,
    generation  bigint                 NOT NULL DEFAULT 0,
    revision    bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY (build, [partition])
);

-- An instance counts as running while ttl_us is 0 or its last heartbeat is not
-- older than that, by the database's clock.
CREATE TABLE [ph_instances] (
    id                varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    host_name         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    started_us        bigint                 NOT NULL,
    ttl_us            bigint                 NOT NULL,
    last_heartbeat_us bigint                 NOT NULL,
    max_partitions    int                    NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (id)
);

-- Which instance runs which build, a row for each topic of the build, and up to where
-- it has applied that in all that it owns since the claim that tenure names. The id of an instance is shorter than
-- other names, so that all parts of the key have room in an index entry.
CREATE TABLE [ph_members] (
    instance_id  varchar(640) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    build        bigint                 NOT NULL,
    topic        varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    single_owner int                    NOT NULL,
    tenure       bigint                 NULL,
    read_through bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (instance_id, build, topic)
);

-- Who owns a table name, compared in lower case with the prefix, so that no
-- consumer can take another's table or the user's own. adopting is the name of a
-- user's table that is the consumer's now, until it is renamed.
CREATE TABLE [ph_read_model_tables] (
    name          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_type varchar(680) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_name varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    declared      varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    build         bigint                 NOT NULL,
    adopting      varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    PRIMARY KEY (name)
);

-- Messages that could not be applied for one of their keys, with a full copy. The
-- rows of a key in a partition are a line, in the order of their ids; those that
-- are DEAD_LETTER hold nothing. The key is '' where it could not be told, and then
-- there is no copy. Of data and data_bytes one is set. key_hash is SHA-256 of the
-- key: topic and key have no room in one index entry.
CREATE TABLE [ph_undelivered] (
    id             bigint                 NOT NULL IDENTITY(1,1),
    build          bigint                 NOT NULL,
    position       bigint                 NOT NULL,
    sequence       bigint                 NOT NULL,
    occurred_us    bigint                 NOT NULL,
    first_us       bigint                 NOT NULL,
    last_us        bigint                 NOT NULL,
    retry_us       bigint                 NULL,
    budget_us      bigint                 NULL,
    event_id       binary(16)             NOT NULL,
    key_hash       binary(32)             NOT NULL,
    [partition]    int                    NOT NULL,
    unresolved     int                    NOT NULL,
    code           int                    NOT NULL,
    attempts       int                    NOT NULL,
    passing        int                    NOT NULL,
    revision       int                    NOT NULL,
    codec_version  int                    NOT NULL,
    topic          varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    [key]          varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    status         varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    reason         varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    digest         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    aggregate_type varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    aggregate_id   varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    event_type     varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    codec          varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    data           varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    data_bytes     varbinary(max)         NULL,
    metadata       varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    PRIMARY KEY (id)
);

CREATE UNIQUE INDEX [ph_undelivered_message] ON [ph_undelivered] (build, topic, position, [partition], key_hash);

-- The line: the clustered key is the last part of every index.
CREATE INDEX [ph_undelivered_line] ON [ph_undelivered] (build, [partition], [key]);

-- Messages that are passed over for a key of a partition, or for every key.
CREATE TABLE [ph_skipped] (
    build       bigint                 NOT NULL,
    topic       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    position    bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    [key]       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    key_hash    binary(32)             NOT NULL,
    every_key   int                    NOT NULL,
    PRIMARY KEY NONCLUSTERED (build, topic, position, [partition], key_hash)
);

-- Messages at or below effects_before whose effects were not had: they were
-- undelivered when a rebuild began.
CREATE TABLE [ph_effects_owed] (
    build       bigint                 NOT NULL,
    topic       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    position    bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    [key]       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    key_hash    binary(32)             NOT NULL,
    PRIMARY KEY NONCLUSTERED (build, topic, position, [partition], key_hash)
);

-- What was done to consumers, kept for good, also of those that were dropped.
CREATE TABLE [ph_consumer_history] (
    id            bigint                 NOT NULL IDENTITY(1,1),
    consumer_type varchar(680) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_name varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    build         bigint                 NOT NULL,
    at_us         bigint                 NOT NULL,
    actor         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    action        varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    topic         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    [partition]   int                    NOT NULL,
    position      bigint                 NOT NULL,
    [key]         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    detail        varchar(max) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX [ph_consumer_history_consumer] ON [ph_consumer_history] (consumer_type, consumer_name);

INSERT INTO [ph_schema_migrations] (version, name, checksum, applied_us) VALUES (2, 'consumers', '12bf577a83c12601f8007acbf009a46116015d296fdf1abc8e8698a554a08b7a', DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()));

-- The number of partitions is fixed for ever.
INSERT INTO [ph_partition_metadata] (id, partitions, hash, key_encoding, position_mode) VALUES (1, 256, 'fnv1a64-fmix64', 1, 'counter');
INSERT INTO [ph_topics] (name, kind) VALUES ('events', 'events');
INSERT INTO [ph_counters] (name, value) VALUES ('builds', 0);

COMMIT TRANSACTION;
