-- Consumers and what they have applied. All bookkeeping hangs on a build: one
-- set of a consumer's tables. Which build is live is a column of its consumer.

CREATE TABLE {{consumers}} (
    type                character varying(255) COLLATE "C" NOT NULL,
    name                character varying(255) COLLATE "C" NOT NULL,
    state               text    NOT NULL,
    state_since_us      bigint  NOT NULL,
    halt                text,
    epoch               bigint  NOT NULL DEFAULT 0,
    live_build          bigint  NOT NULL,
    revision            bigint  NOT NULL DEFAULT 1,
    plugin              text    NOT NULL,
    digest              text    NOT NULL,
    topics              text    NOT NULL,
    fingerprint_version integer NOT NULL,
    inputs_hash         text    NOT NULL,
    keys_hash           text    NOT NULL,
    tables_hash         text    NOT NULL,
    logic_hash          text    NOT NULL,
    PRIMARY KEY (type, name)
);

-- The number comes from counters: it is part of table names, and those are never
-- used again. tables is their declaration in JSON, so that rows can be read
-- without the module.
CREATE TABLE {{builds}} (
    id            bigint NOT NULL,
    consumer_type character varying(255) COLLATE "C" NOT NULL,
    consumer_name character varying(255) COLLATE "C" NOT NULL,
    created_us    bigint NOT NULL,
    digest        text   NOT NULL,
    tables        text   NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE {{checkpoints}} (
    build              bigint  NOT NULL,
    topic              character varying(255) COLLATE "C" NOT NULL,
    partition          integer NOT NULL,
    position           bigint  NOT NULL DEFAULT 0,
    epoch              bigint  NOT NULL DEFAULT 0,
    effects_through    bigint  NOT NULL DEFAULT 0,
    replay_through     bigint  NOT NULL DEFAULT 0,
    incomplete_through bigint  NOT NULL DEFAULT 0,
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
