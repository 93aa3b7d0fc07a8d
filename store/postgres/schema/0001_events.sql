-- The event log, its topic and the snapshots. Names in double braces, {{events}},
-- become the quoted name with the table prefix. Types are spelled as the catalogue
-- spells them: the host compares both at each start. Text that is looked up or
-- sorted has the collation "C", so that it is compared by byte.

CREATE TABLE {{schema_migrations}} (
    version    integer NOT NULL,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_us bigint  NOT NULL,
    PRIMARY KEY (version)
);

-- What the first start freezes for ever: every later start compares its
-- configuration with this row.
CREATE TABLE {{partition_metadata}} (
    id            integer NOT NULL,
    partitions    integer NOT NULL,
    hash          text    NOT NULL,
    key_encoding  integer NOT NULL,
    position_mode text    NOT NULL,
    PRIMARY KEY (id)
);

-- Numbers that are never used twice. They are drawn in transactions of their
-- own, so that what uses one may be rolled back.
CREATE TABLE {{counters}} (
    name  character varying(255) COLLATE "C" NOT NULL,
    value bigint                             NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
);

-- high_water_mark is what readers may see. It is committed before anybody is
-- told of it; positions up to end_position are drawn from the sequence of events.
CREATE TABLE {{topics}} (
    name            character varying(255) COLLATE "C" NOT NULL,
    kind            text                               NOT NULL,
    topic_start     bigint                             NOT NULL DEFAULT 0,
    end_position    bigint                             NOT NULL DEFAULT 0,
    high_water_mark bigint                             NOT NULL DEFAULT 0,
    PRIMARY KEY (name)
);

-- The payload is text where it is JSON, so that SQL clients can read it, else
-- bytes: exactly one of data and data_bytes is set. Columns of a fixed width
-- come first, which saves their padding.
CREATE TABLE {{events}} (
    position       bigint                 GENERATED ALWAYS AS IDENTITY (CACHE 1),
    sequence       bigint                 NOT NULL,
    occurred_us    bigint                 NOT NULL,
    id             uuid                   NOT NULL,
    partition_key  integer                NOT NULL,
    revision       integer                NOT NULL,
    codec_version  integer                NOT NULL,
    aggregate_type character varying(255) COLLATE "C" NOT NULL,
    aggregate_id   character varying(255) COLLATE "C" NOT NULL,
    type           character varying(255) COLLATE "C" NOT NULL,
    codec          character varying(255) COLLATE "C" NOT NULL,
    data           text,
    data_bytes     bytea,
    metadata       text,
    PRIMARY KEY (position)
);

CREATE UNIQUE INDEX {{events_id}} ON {{events}} (id);

-- The last one of a stream is its version, and two appends of one version
-- cannot both be stored.
CREATE UNIQUE INDEX {{events_stream}} ON {{events}} (aggregate_type, aggregate_id, sequence);

CREATE INDEX {{events_partition}} ON {{events}} (partition_key, position);

CREATE TABLE {{snapshots}} (
    aggregate_type character varying(255) COLLATE "C" NOT NULL,
    aggregate_id   character varying(255) COLLATE "C" NOT NULL,
    sequence       bigint                 NOT NULL,
    version        integer                NOT NULL,
    codec          character varying(255) COLLATE "C" NOT NULL,
    codec_version  integer                NOT NULL,
    created_us     bigint                 NOT NULL,
    data           text,
    data_bytes     bytea,
    PRIMARY KEY (aggregate_type, aggregate_id)
);
