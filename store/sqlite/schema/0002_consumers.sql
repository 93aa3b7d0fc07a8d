-- Consumers and what they have applied. All bookkeeping hangs on a build: one
-- set of a consumer's tables. Which build is live is a column of its consumer.

CREATE TABLE {{consumers}} (
    type           TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    state_since_us INTEGER NOT NULL,
    halt           TEXT,
    epoch          INTEGER NOT NULL DEFAULT 0,
    live_build     INTEGER NOT NULL,
    revision       INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (type, name)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: the number is part of table names, and those are never used
-- again. A build has the declaration it was made by, tables in JSON, so that rows
-- can be read without the module. Epoch, state and halt are those of a build that is
-- not live: of the live one its consumer has them. stood_down_us is when it was live
-- last, and what has been is kept until keep_until_us (NULL: for good), cold if
-- nobody applies it meanwhile. stopped_us is when stop_at was set in its checkpoints,
-- dropped_us when it was given up: what is left of it then are tables to be dropped.
CREATE TABLE {{builds}} (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_type       TEXT    NOT NULL,
    consumer_name       TEXT    NOT NULL,
    created_us          INTEGER NOT NULL,
    plugin              TEXT    NOT NULL,
    digest              TEXT    NOT NULL,
    topics              TEXT    NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    inputs_hash         TEXT    NOT NULL,
    keys_hash           TEXT    NOT NULL,
    tables_hash         TEXT    NOT NULL,
    logic_hash          TEXT    NOT NULL,
    tables              TEXT    NOT NULL,
    epoch               INTEGER NOT NULL DEFAULT 0,
    state               TEXT    NOT NULL,
    state_since_us      INTEGER NOT NULL,
    halt                TEXT,
    stood_down_us       INTEGER,
    keep_until_us       INTEGER,
    cold                INTEGER NOT NULL DEFAULT 0,
    stopped_us          INTEGER,
    dropped_us          INTEGER
) STRICT;

CREATE INDEX {{builds_consumer}} ON {{builds}} (consumer_type, consumer_name);

-- A rebuild replays a partition up to replay_through, and prunes it then: when
-- pruned_epoch is the epoch of all, replay_through is 0 again. What is at or below
-- effects_before was applied with its effects before the latest rebuild.
-- Nobody reads further than stop_at, unless that is 0.
CREATE TABLE {{checkpoints}} (
    build              INTEGER NOT NULL REFERENCES {{builds}} (id),
    topic              TEXT    NOT NULL,
    partition          INTEGER NOT NULL,
    position           INTEGER NOT NULL DEFAULT 0,
    epoch              INTEGER NOT NULL DEFAULT 0,
    effects_through    INTEGER NOT NULL DEFAULT 0,
    replay_through     INTEGER NOT NULL DEFAULT 0,
    incomplete_through INTEGER NOT NULL DEFAULT 0,
    effects_before     INTEGER NOT NULL DEFAULT 0,
    pruned_epoch       INTEGER NOT NULL DEFAULT 0,
    stop_at            INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (build, topic, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE {{ownership}} (
    build       INTEGER NOT NULL REFERENCES {{builds}} (id),
    partition   INTEGER NOT NULL,
    instance_id TEXT,
    generation  INTEGER NOT NULL DEFAULT 0,
    revision    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (build, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE {{instances}} (
    id                TEXT    NOT NULL PRIMARY KEY,
    host_name         TEXT    NOT NULL,
    started_us        INTEGER NOT NULL,
    ttl_us            INTEGER NOT NULL,
    last_heartbeat_us INTEGER NOT NULL,
    max_partitions    INTEGER NOT NULL DEFAULT 0,
    expires_us        INTEGER NOT NULL GENERATED ALWAYS AS (iif(ttl_us = 0, 9223372036854775807, last_heartbeat_us + ttl_us)) VIRTUAL
) STRICT, WITHOUT ROWID;

-- Which instance runs which build, a row for each topic of the build, and up to where
-- it has applied that in all that it owns since the claim that tenure names.
CREATE TABLE {{members}} (
    instance_id  TEXT    NOT NULL,
    build        INTEGER NOT NULL REFERENCES {{builds}} (id),
    topic        TEXT    NOT NULL,
    single_owner INTEGER NOT NULL,
    tenure       INTEGER,
    read_through INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (instance_id, build, topic)
) STRICT, WITHOUT ROWID;

-- Who owns a table name, compared in lower case with the prefix, so that no
-- consumer can take another's table or the user's own.
CREATE TABLE {{read_model_tables}} (
    name          TEXT NOT NULL PRIMARY KEY,
    consumer_type TEXT NOT NULL,
    consumer_name TEXT NOT NULL,
    declared      TEXT NOT NULL,
    build         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages that could not be applied for one of their keys, with a full copy. The
-- rows of a key in a partition are a line, in the order of their ids; those that
-- are DEAD_LETTER hold nothing. The key is '' where it could not be told, and then
-- there is no copy. Of data and data_bytes one is set.
CREATE TABLE {{undelivered}} (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    build          INTEGER NOT NULL,
    topic          TEXT    NOT NULL,
    position       INTEGER NOT NULL,
    partition      INTEGER NOT NULL,
    key            TEXT    NOT NULL,
    unresolved     INTEGER NOT NULL,
    status         TEXT    NOT NULL,
    code           INTEGER NOT NULL,
    reason         TEXT    NOT NULL,
    attempts       INTEGER NOT NULL,
    passing        INTEGER NOT NULL,
    digest         TEXT    NOT NULL,
    first_us       INTEGER NOT NULL,
    last_us        INTEGER NOT NULL,
    retry_us       INTEGER,
    budget_us      INTEGER,
    event_id       BLOB    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    sequence       INTEGER NOT NULL,
    event_type     TEXT    NOT NULL,
    revision       INTEGER NOT NULL,
    codec          TEXT    NOT NULL,
    codec_version  INTEGER NOT NULL,
    occurred_us    INTEGER NOT NULL,
    data           TEXT,
    data_bytes     BLOB,
    metadata       TEXT
) STRICT;

CREATE UNIQUE INDEX {{undelivered_message}} ON {{undelivered}} (build, topic, position, partition, key);

-- The line: the row id is the last part of every index.
CREATE INDEX {{undelivered_line}} ON {{undelivered}} (build, partition, key);

-- Messages that are passed over for a key of a partition, or for every key.
CREATE TABLE {{skipped}} (
    build     INTEGER NOT NULL,
    topic     TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    key       TEXT    NOT NULL,
    every_key INTEGER NOT NULL,
    PRIMARY KEY (build, topic, position, partition, key)
) STRICT, WITHOUT ROWID;

-- Messages at or below effects_before whose effects were not had: they were
-- undelivered when a rebuild began.
CREATE TABLE {{effects_owed}} (
    build     INTEGER NOT NULL,
    topic     TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    key       TEXT    NOT NULL,
    PRIMARY KEY (build, topic, position, partition, key)
) STRICT, WITHOUT ROWID;

-- What was done to consumers, kept for good, also of those that were dropped.
CREATE TABLE {{consumer_history}} (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_type TEXT    NOT NULL,
    consumer_name TEXT    NOT NULL,
    build         INTEGER NOT NULL,
    at_us         INTEGER NOT NULL,
    actor         TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    partition     INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    detail        TEXT    NOT NULL
) STRICT;

CREATE INDEX {{consumer_history_consumer}} ON {{consumer_history}} (consumer_type, consumer_name);
