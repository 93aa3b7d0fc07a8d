CREATE TABLE [ph_schema_migrations] (
    version    int                   NOT NULL,
    name       varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    checksum   varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    applied_us bigint                NOT NULL,
    PRIMARY KEY (version)
);

CREATE TABLE [ph_partition_metadata] (
    id            int                   NOT NULL,
    partitions    int                   NOT NULL,
    hash          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    key_encoding  int                   NOT NULL,
    position_mode varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE [ph_counters] (
    name  varchar(255) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    value bigint                NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
);

CREATE TABLE [ph_topics] (
    name            varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    kind            varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    topic_start     bigint                 NOT NULL DEFAULT 0,
    end_position    bigint                 NOT NULL DEFAULT 0,
    high_water_mark bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (name)
);

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

CREATE UNIQUE INDEX [ph_events_stream] ON [ph_events] (stream, sequence);

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

CREATE TABLE [ph_instances] (
    id                varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    host_name         varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    started_us        bigint                 NOT NULL,
    ttl_us            bigint                 NOT NULL,
    last_heartbeat_us bigint                 NOT NULL,
    max_partitions    int                    NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (id)
);

CREATE TABLE [ph_members] (
    instance_id  varchar(640) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    build        bigint                 NOT NULL,
    topic        varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    single_owner int                    NOT NULL,
    tenure       bigint                 NULL,
    read_through bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (instance_id, build, topic)
);

CREATE TABLE [ph_read_model_tables] (
    name          varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_type varchar(680) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    consumer_name varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    declared      varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NOT NULL,
    build         bigint                 NOT NULL,
    adopting      varchar(255) COLLATE Latin1_General_100_BIN2_UTF8  NULL,
    PRIMARY KEY (name)
);

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

CREATE INDEX [ph_undelivered_line] ON [ph_undelivered] (build, [partition], [key]);

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

CREATE TABLE [ph_effects_owed] (
    build       bigint                 NOT NULL,
    topic       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    position    bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    [key]       varchar(1020) COLLATE Latin1_General_100_BIN2_UTF8 NOT NULL,
    key_hash    binary(32)             NOT NULL,
    PRIMARY KEY NONCLUSTERED (build, topic, position, [partition], key_hash)
);

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

INSERT INTO [ph_partition_metadata] (id, partitions, hash, key_encoding, position_mode) VALUES (1, 256, 'fnv1a64-fmix64', 1, 'counter');

INSERT INTO [ph_topics] (name, kind) VALUES ('events', 'events');

INSERT INTO [ph_counters] (name, value) VALUES ('builds', 0);
