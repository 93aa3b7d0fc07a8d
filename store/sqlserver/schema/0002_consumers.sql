-- Consumers and what they have applied. All bookkeeping hangs on a build: one
-- set of a consumer's tables. Which build is live is a column of its consumer.
-- The type of a consumer is shorter than other names, so that both parts of its
-- key have room in an index entry.

CREATE TABLE {{consumers}} (
    type           varchar(680) {{text}}  NOT NULL,
    name           varchar(1020) {{text}} NOT NULL,
    state          varchar(255) {{text}}  NOT NULL,
    state_since_us bigint                 NOT NULL,
    halt           varchar(max) {{text}}  NULL,
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
CREATE TABLE {{builds}} (
    id                  bigint                 NOT NULL,
    consumer_type       varchar(680) {{text}}  NOT NULL,
    consumer_name       varchar(1020) {{text}} NOT NULL,
    created_us          bigint                 NOT NULL,
    plugin              varchar(1020) {{text}} NOT NULL,
    digest              varchar(1020) {{text}} NOT NULL,
    topics              varchar(max) {{text}}  NOT NULL,
    fingerprint_version int                    NOT NULL,
    inputs_hash         varchar(255) {{text}}  NOT NULL,
    keys_hash           varchar(255) {{text}}  NOT NULL,
    tables_hash         varchar(255) {{text}}  NOT NULL,
    logic_hash          varchar(255) {{text}}  NOT NULL,
    tables              varchar(max) {{text}}  NOT NULL,
    epoch               bigint                 NOT NULL DEFAULT 0,
    state               varchar(255) {{text}}  NOT NULL,
    state_since_us      bigint                 NOT NULL,
    halt                varchar(max) {{text}}  NULL,
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
CREATE TABLE {{checkpoints}} (
    build              bigint                 NOT NULL,
    topic              varchar(1020) {{text}} NOT NULL,
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

CREATE TABLE {{ownership}} (
    build       bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    instance_id varchar(1020) {{text}} NULL,
    generation  bigint                 NOT NULL DEFAULT 0,
    revision    bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY (build, [partition])
);

-- An instance counts as running while ttl_us is 0 or its last heartbeat is not
-- older than that, by the database's clock.
CREATE TABLE {{instances}} (
    id                varchar(1020) {{text}} NOT NULL,
    host_name         varchar(1020) {{text}} NOT NULL,
    started_us        bigint                 NOT NULL,
    ttl_us            bigint                 NOT NULL,
    last_heartbeat_us bigint                 NOT NULL,
    max_partitions    int                    NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (id)
);

-- Which instance runs which build, a row for each topic of the build, and up to where
-- it has applied that in all that it owns since the claim that tenure names. The id of an instance is shorter than
-- other names, so that all parts of the key have room in an index entry.
CREATE TABLE {{members}} (
    instance_id  varchar(640) {{text}}  NOT NULL,
    build        bigint                 NOT NULL,
    topic        varchar(1020) {{text}} NOT NULL,
    single_owner int                    NOT NULL,
    tenure       bigint                 NULL,
    read_through bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (instance_id, build, topic)
);

-- Who owns a table name, compared in lower case with the prefix, so that no
-- consumer can take another's table or the user's own. adopting is the name of a
-- user's table that is the consumer's now, until it is renamed.
CREATE TABLE {{read_model_tables}} (
    name          varchar(255) {{text}}  NOT NULL,
    consumer_type varchar(680) {{text}}  NOT NULL,
    consumer_name varchar(1020) {{text}} NOT NULL,
    declared      varchar(255) {{text}}  NOT NULL,
    build         bigint                 NOT NULL,
    adopting      varchar(255) {{text}}  NULL,
    PRIMARY KEY (name)
);

-- Messages that could not be applied for one of their keys, with a full copy. The
-- rows of a key in a partition are a line, in the order of their ids; those that
-- are DEAD_LETTER hold nothing. The key is '' where it could not be told, and then
-- there is no copy. Of data and data_bytes one is set. key_hash is SHA-256 of the
-- key: topic and key have no room in one index entry.
CREATE TABLE {{undelivered}} (
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
    topic          varchar(1020) {{text}} NOT NULL,
    [key]          varchar(1020) {{text}} NOT NULL,
    status         varchar(255) {{text}}  NOT NULL,
    reason         varchar(max) {{text}}  NOT NULL,
    digest         varchar(1020) {{text}} NOT NULL,
    aggregate_type varchar(1020) {{text}} NOT NULL,
    aggregate_id   varchar(1020) {{text}} NOT NULL,
    event_type     varchar(1020) {{text}} NOT NULL,
    codec          varchar(1020) {{text}} NOT NULL,
    data           varchar(max) {{text}}  NULL,
    data_bytes     varbinary(max)         NULL,
    metadata       varchar(max) {{text}}  NULL,
    PRIMARY KEY (id)
);

CREATE UNIQUE INDEX {{undelivered_message}} ON {{undelivered}} (build, topic, position, [partition], key_hash);

-- The line: the clustered key is the last part of every index.
CREATE INDEX {{undelivered_line}} ON {{undelivered}} (build, [partition], [key]);

-- Messages that are passed over for a key of a partition, or for every key.
CREATE TABLE {{skipped}} (
    build       bigint                 NOT NULL,
    topic       varchar(1020) {{text}} NOT NULL,
    position    bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    [key]       varchar(1020) {{text}} NOT NULL,
    key_hash    binary(32)             NOT NULL,
    every_key   int                    NOT NULL,
    PRIMARY KEY NONCLUSTERED (build, topic, position, [partition], key_hash)
);

-- Messages at or below effects_before whose effects were not had: they were
-- undelivered when a rebuild began.
CREATE TABLE {{effects_owed}} (
    build       bigint                 NOT NULL,
    topic       varchar(1020) {{text}} NOT NULL,
    position    bigint                 NOT NULL,
    [partition] int                    NOT NULL,
    [key]       varchar(1020) {{text}} NOT NULL,
    key_hash    binary(32)             NOT NULL,
    PRIMARY KEY NONCLUSTERED (build, topic, position, [partition], key_hash)
);

-- What was done to consumers, kept for good, also of those that were dropped.
CREATE TABLE {{consumer_history}} (
    id            bigint                 NOT NULL IDENTITY(1,1),
    consumer_type varchar(680) {{text}}  NOT NULL,
    consumer_name varchar(1020) {{text}} NOT NULL,
    build         bigint                 NOT NULL,
    at_us         bigint                 NOT NULL,
    actor         varchar(1020) {{text}} NOT NULL,
    action        varchar(255) {{text}}  NOT NULL,
    topic         varchar(1020) {{text}} NOT NULL,
    [partition]   int                    NOT NULL,
    position      bigint                 NOT NULL,
    [key]         varchar(1020) {{text}} NOT NULL,
    detail        varchar(max) {{text}}  NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX {{consumer_history_consumer}} ON {{consumer_history}} (consumer_type, consumer_name);
