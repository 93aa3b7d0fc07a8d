-- The event log, its topic and the snapshots. Names in double braces become
-- the quoted name with the table prefix.

-- What the first start freezes for ever: every later start compares its
-- configuration with this row.
CREATE TABLE {{partition_metadata}} (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    partitions    INTEGER NOT NULL CHECK (partitions > 0),
    hash          TEXT    NOT NULL,
    key_encoding  INTEGER NOT NULL,
    position_mode TEXT    NOT NULL
) STRICT;

-- end_position is the counter positions are drawn from. What it holds after a
-- commit may be read by everybody, so it is the high-water mark as well.
CREATE TABLE {{topics}} (
    name            TEXT    NOT NULL PRIMARY KEY,
    kind            TEXT    NOT NULL,
    topic_start     INTEGER NOT NULL DEFAULT 0,
    end_position    INTEGER NOT NULL DEFAULT 0,
    high_water_mark INTEGER NOT NULL GENERATED ALWAYS AS (end_position) VIRTUAL
) STRICT, WITHOUT ROWID;

-- data and metadata hold the very bytes that were appended: TEXT where they are
-- JSON, so that SQL clients can read them, else BLOB. They come last so that
-- reading the other columns never follows an overflow page.
CREATE TABLE {{events}} (
    position       INTEGER PRIMARY KEY,
    id             BLOB    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    sequence       INTEGER NOT NULL,
    type           TEXT    NOT NULL,
    revision       INTEGER NOT NULL,
    codec          TEXT    NOT NULL,
    codec_version  INTEGER NOT NULL,
    occurred_us    INTEGER NOT NULL,
    partition_key  INTEGER NOT NULL,
    data           ANY     NOT NULL,
    metadata       ANY
) STRICT;

CREATE UNIQUE INDEX {{events_id}} ON {{events}} (id);

-- The last one of a stream is its version, and two appends of one version
-- cannot both be stored.
CREATE UNIQUE INDEX {{events_stream}} ON {{events}} (aggregate_type, aggregate_id, sequence);

-- In partition order, then by position: the row id is the last part of every
-- index, so naming it would store it twice.
CREATE INDEX {{events_partition}} ON {{events}} (partition_key);

CREATE TABLE {{snapshots}} (
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    sequence       INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    codec          TEXT    NOT NULL,
    codec_version  INTEGER NOT NULL,
    created_us     INTEGER NOT NULL,
    data           ANY     NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
) STRICT;
