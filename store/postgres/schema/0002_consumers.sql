-- Consumers and what they have applied. All bookkeeping hangs on a build: one
-- set of a consumer's tables. Which build is live is a column of its consumer.

CREATE TABLE {{consumers}} (
    type           character varying(255) COLLATE "C" NOT NULL,
    name           character varying(255) COLLATE "C" NOT NULL,
    state          text    NOT NULL,
    state_since_us bigint  NOT NULL,
    halt           text,
    epoch          bigint  NOT NULL DEFAULT 0,
    live_build     bigint  NOT NULL,
    revision       bigint  NOT NULL DEFAULT 1,
    PRIMARY KEY (type, name)
);

-- The number comes from counters: it is part of table names, and those are never
-- used again. A build has the declaration it was made by, tables in JSON, so that rows
-- can be read without the module. Epoch, state and halt are those of a build that is
-- not live: of the live one its consumer has them. stood_down_us is when it was live
-- last, and what has been is kept until keep_until_us (NULL: for good), cold if
-- nobody applies it meanwhile. stopped_us is when stop_at was set in its checkpoints,
-- dropped_us when it was given up: what is left of it then are tables to be dropped.
CREATE TABLE {{builds}} (
    id                  bigint                             NOT NULL,
    consumer_type       character varying(255) COLLATE "C" NOT NULL,
    consumer_name       character varying(255) COLLATE "C" NOT NULL,
    created_us          bigint                             NOT NULL,
    plugin              text                               NOT NULL,
    digest              text                               NOT NULL,
    topics              text                               NOT NULL,
    fingerprint_version integer                            NOT NULL,
    inputs_hash         text                               NOT NULL,
    keys_hash           text                               NOT NULL,
    tables_hash         text                               NOT NULL,
    logic_hash          text                               NOT NULL,
    tables              text                               NOT NULL,
    epoch               bigint                             NOT NULL DEFAULT 0,
    state               text                               NOT NULL,
    state_since_us      bigint                             NOT NULL,
    halt                text,
    stood_down_us       bigint,
    keep_until_us       bigint,
    cold                integer                            NOT NULL DEFAULT 0,
    stopped_us          bigint,
    dropped_us          bigint,
    PRIMARY KEY (id)
);

-- A rebuild replays a partition up to replay_through, and prunes it then: when
-- pruned_epoch is the epoch of all, replay_through is 0 again. What is at or below
-- effects_before was applied with its effects before the latest rebuild.
-- Nobody reads further than stop_at, unless that is 0.
CREATE TABLE {{checkpoints}} (
    build              bigint  NOT NULL,
    topic              character varying(255) COLLATE "C" NOT NULL,
    partition          integer NOT NULL,
    position           bigint  NOT NULL DEFAULT 0,
    epoch              bigint  NOT NULL DEFAULT 0,
    effects_through    bigint  NOT NULL DEFAULT 0,
    replay_through     bigint  NOT NULL DEFAULT 0,
    incomplete_through bigint  NOT NULL DEFAULT 0,
    effects_before     bigint  NOT NULL DEFAULT 0,
    pruned_epoch       bigint  NOT NULL DEFAULT 0,
    stop_at            bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (build, topic, partition)
) WITH (fillfactor = 50);

CREATE TABLE {{ownership}} (
    build       bigint  NOT NULL,
    partition   integer NOT NULL,
    instance_id character varying(255) COLLATE "C",
    generation  bigint  NOT NULL DEFAULT 0,
    revision    bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (build, partition)
);

-- An instance counts as running while ttl_us is 0 or its last heartbeat is not
-- older than that, by the database's clock. session is the application_name of all
-- of its sessions: what one that has lapsed left open is found by it.
CREATE TABLE {{instances}} (
    id                character varying(255) COLLATE "C" NOT NULL,
    host_name         text   NOT NULL,
    started_us        bigint NOT NULL,
    ttl_us            bigint NOT NULL,
    last_heartbeat_us bigint NOT NULL,
    max_partitions    integer NOT NULL DEFAULT 0,
    session           text   NOT NULL DEFAULT left(current_setting('application_name'), 63),
    PRIMARY KEY (id)
) WITH (fillfactor = 50);

-- Which instance runs which build, a row for each topic of the build, and up to where
-- it has applied that in all that it owns since the claim that tenure names.
CREATE TABLE {{members}} (
    instance_id  character varying(255) COLLATE "C" NOT NULL,
    build        bigint NOT NULL,
    topic        character varying(255) COLLATE "C" NOT NULL,
    single_owner integer NOT NULL,
    tenure       bigint,
    read_through bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (instance_id, build, topic)
) WITH (fillfactor = 50);

-- Who owns a table name, compared in lower case with the prefix, so that no
-- consumer can take another's table or the user's own. adopting is the name of a
-- user's table that is the consumer's now, until it is renamed.
CREATE TABLE {{read_model_tables}} (
    name          character varying(255) COLLATE "C" NOT NULL,
    consumer_type character varying(255) COLLATE "C" NOT NULL,
    consumer_name character varying(255) COLLATE "C" NOT NULL,
    declared      text   NOT NULL,
    build         bigint NOT NULL,
    adopting      text,
    PRIMARY KEY (name)
);

-- Messages that could not be applied for one of their keys, with a full copy. The
-- rows of a key in a partition are a line, in the order of their ids; those that
-- are DEAD_LETTER hold nothing. The key is '' where it could not be told, and then
-- there is no copy. Of data and data_bytes one is set.
CREATE TABLE {{undelivered}} (
    id             bigint  GENERATED ALWAYS AS IDENTITY (CACHE 1),
    build          bigint  NOT NULL,
    position       bigint  NOT NULL,
    sequence       bigint  NOT NULL,
    occurred_us    bigint  NOT NULL,
    first_us       bigint  NOT NULL,
    last_us        bigint  NOT NULL,
    retry_us       bigint,
    budget_us      bigint,
    event_id       uuid    NOT NULL,
    partition      integer NOT NULL,
    unresolved     integer NOT NULL,
    code           integer NOT NULL,
    attempts       integer NOT NULL,
    passing        integer NOT NULL,
    revision       integer NOT NULL,
    codec_version  integer NOT NULL,
    topic          character varying(255) COLLATE "C" NOT NULL,
    "key"          character varying(255) COLLATE "C" NOT NULL,
    status         text    NOT NULL,
    reason         text    NOT NULL,
    digest         text    NOT NULL,
    aggregate_type character varying(255) COLLATE "C" NOT NULL,
    aggregate_id   character varying(255) COLLATE "C" NOT NULL,
    event_type     character varying(255) COLLATE "C" NOT NULL,
    codec          character varying(255) COLLATE "C" NOT NULL,
    data           text,
    data_bytes     bytea,
    metadata       text,
    PRIMARY KEY (id)
);

CREATE UNIQUE INDEX {{undelivered_message}} ON {{undelivered}} (build, topic, position, partition, "key");

CREATE INDEX {{undelivered_line}} ON {{undelivered}} (build, partition, "key", id);

-- Messages that are passed over for a key of a partition, or for every key.
CREATE TABLE {{skipped}} (
    build     bigint  NOT NULL,
    topic     character varying(255) COLLATE "C" NOT NULL,
    position  bigint  NOT NULL,
    partition integer NOT NULL,
    "key"     character varying(255) COLLATE "C" NOT NULL,
    every_key integer NOT NULL,
    PRIMARY KEY (build, topic, position, partition, "key")
);

-- Messages at or below effects_before whose effects were not had: they were
-- undelivered when a rebuild began.
CREATE TABLE {{effects_owed}} (
    build     bigint  NOT NULL,
    topic     character varying(255) COLLATE "C" NOT NULL,
    position  bigint  NOT NULL,
    partition integer NOT NULL,
    "key"     character varying(255) COLLATE "C" NOT NULL,
    PRIMARY KEY (build, topic, position, partition, "key")
);

-- What was done to consumers, kept for good, also of those that were dropped.
CREATE TABLE {{consumer_history}} (
    id            bigint  GENERATED ALWAYS AS IDENTITY (CACHE 1),
    consumer_type character varying(255) COLLATE "C" NOT NULL,
    consumer_name character varying(255) COLLATE "C" NOT NULL,
    build         bigint  NOT NULL,
    at_us         bigint  NOT NULL,
    actor         text    NOT NULL,
    action        text    NOT NULL,
    topic         text    NOT NULL,
    partition     integer NOT NULL,
    position      bigint  NOT NULL,
    "key"         text    NOT NULL,
    detail        text    NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX {{consumer_history_consumer}} ON {{consumer_history}} (consumer_type, consumer_name, id);
