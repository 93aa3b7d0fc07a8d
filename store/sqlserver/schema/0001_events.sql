-- The event log, its topic and the snapshots. Names in double braces become the
-- quoted name with the table prefix. Text has a collation that is exact, in the
-- order of code points and in UTF-8; lengths count bytes: 1020 are 255 code
-- points. Types are spelled as the catalogue spells them: the host compares both
-- at each start.
--
-- An index entry holds 1700 bytes, in a clustered index 900. So a primary key
-- with a text of full length is nonclustered, and a stream, which is named by two
-- of them, is found by its hash.

CREATE TABLE {{schema_migrations}} (
    version    int                   NOT NULL,
    name       varchar(255) {{text}} NOT NULL,
    checksum   varchar(255) {{text}} NOT NULL,
    applied_us bigint                NOT NULL,
    PRIMARY KEY (version)
);

-- What the first start freezes for ever: every later start compares its
-- configuration with this row.
CREATE TABLE {{partition_metadata}} (
    id            int                   NOT NULL,
    partitions    int                   NOT NULL,
    hash          varchar(255) {{text}} NOT NULL,
    key_encoding  int                   NOT NULL,
    position_mode varchar(255) {{text}} NOT NULL,
    PRIMARY KEY (id)
);

-- Numbers that are never used twice. They are drawn in transactions of their
-- own, so that what uses one may be rolled back.
CREATE TABLE {{counters}} (
    name  varchar(255) {{text}} NOT NULL,
    value bigint                NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
);

-- end_position is the counter positions are drawn from. What it holds after a
-- commit may be read by everybody, so the high-water mark is moved along with it.
CREATE TABLE {{topics}} (
    name            varchar(1020) {{text}} NOT NULL,
    kind            varchar(255) {{text}}  NOT NULL,
    topic_start     bigint                 NOT NULL DEFAULT 0,
    end_position    bigint                 NOT NULL DEFAULT 0,
    high_water_mark bigint                 NOT NULL DEFAULT 0,
    PRIMARY KEY NONCLUSTERED (name)
);

-- stream is SHA-256 of the aggregate type, a zero byte and the aggregate id. The
-- payload is text where it is JSON, so that SQL clients can read it, else bytes:
-- exactly one of data and data_bytes is set.
CREATE TABLE {{events}} (
    position       bigint                 NOT NULL,
    sequence       bigint                 NOT NULL,
    occurred_us    bigint                 NOT NULL,
    id             binary(16)             NOT NULL,
    stream         binary(32)             NOT NULL,
    partition_key  int                    NOT NULL,
    revision       int                    NOT NULL,
    codec_version  int                    NOT NULL,
    aggregate_type varchar(1020) {{text}} NOT NULL,
    aggregate_id   varchar(1020) {{text}} NOT NULL,
    type           varchar(1020) {{text}} NOT NULL,
    codec          varchar(1020) {{text}} NOT NULL,
    data           varchar(max) {{text}}  NULL,
    data_bytes     varbinary(max)         NULL,
    metadata       varchar(max) {{text}}  NULL,
    PRIMARY KEY (position)
);

CREATE UNIQUE INDEX {{events_id}} ON {{events}} (id);

-- The last one of a stream is its version, and two appends of one version
-- cannot both be stored.
CREATE UNIQUE INDEX {{events_stream}} ON {{events}} (stream, sequence);

-- In partition order, then by position: the clustered key is the last part of
-- every index.
CREATE INDEX {{events_partition}} ON {{events}} (partition_key);

CREATE TABLE {{snapshots}} (
    stream         binary(32)             NOT NULL,
    aggregate_type varchar(1020) {{text}} NOT NULL,
    aggregate_id   varchar(1020) {{text}} NOT NULL,
    sequence       bigint                 NOT NULL,
    version        int                    NOT NULL,
    codec          varchar(1020) {{text}} NOT NULL,
    codec_version  int                    NOT NULL,
    created_us     bigint                 NOT NULL,
    data           varchar(max) {{text}}  NULL,
    data_bytes     varbinary(max)         NULL,
    PRIMARY KEY (stream)
);
