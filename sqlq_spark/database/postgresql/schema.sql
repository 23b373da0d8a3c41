-- name: install_lock
-- Makes the second of two installers wait for the first.
-- Locks:   an advisory lock, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sqlq_spark install ' || :state_name::text, 0))

-- name: install_schema
-- Creates the state schema if it is missing. This runs before the check of the schema's owner, so that no
-- other login can create the schema after the check.
DO $do$
BEGIN
    IF to_regnamespace('{state_escaped}') IS NULL THEN
        CREATE SCHEMA {state};
    END IF;
END
$do$

-- name: install_state
-- Notes on the tables, for maintainers:
-- - A row of `stream` is updated twice in a batch. Because of the free space in its page, these updates
--   write no index entries (HOT). Only the first acknowledgement changes the key of an index.
-- - `query_id` and `spark_batch` are Spark's names for the last acknowledged batch. The plan may only be
--   used for batches above those in `plan_high_water`. `removed` is set while the stream is in no list.
-- - `stream` of `heartbeat` is null until the process knows its stream.
-- - A row of `receipt` is inserted in the transaction that deletes its messages from the queue. Only a
--   replay reads it. It is deleted when its batch is acknowledged. Its payload is compressed already, so
--   the server must not try to compress it again.
-- - `batch` of `dispatch_log` is null for a sink that has sent no batch. `destination` is set only by a
--   write that has a name, and belongs to its last batch.
-- - A login may only insert into `trail`. The server writes the time and the logins. `session_login` is
--   the login that connected, before any SET ROLE.
-- Locks:   the tables that it creates, until commit; nothing that exists already.

-- All state tables, once.
DO $do$
BEGIN
    IF to_regclass('{state_escaped}.version') IS NOT NULL THEN
        RETURN;
    END IF;

    -- a row for each checkpoint, updated twice in a batch
    CREATE TABLE {state}.stream (
        stream      varchar(36) PRIMARY KEY,
        login       name        NOT NULL DEFAULT current_user,
        queue       text        NOT NULL,
        driver      varchar(36) NOT NULL,
        acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
        plan_batch  bigint      CHECK (plan_batch > acked_batch),
        stored_plan text        CHECK ((stored_plan IS NULL) = (plan_batch IS NULL)),
        plan_high_water text,
        query_id    varchar(36),
        spark_batch bigint      CHECK ((query_id IS NULL) = (spark_batch IS NULL)),
        query_name  varchar(200),
        removed     timestamptz,
        messages    bigint      NOT NULL DEFAULT 0,
        expired     bigint      NOT NULL DEFAULT 0,
        diverted    bigint      NOT NULL DEFAULT 0,
        forwarded   bigint      NOT NULL DEFAULT 0,
        created     timestamptz NOT NULL DEFAULT now(),
        seen        timestamptz NOT NULL DEFAULT now(),
        version_5   boolean
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    CREATE INDEX stream_query ON {state}.stream (query_id);

    -- the one stream of a query that may receive from a queue, and the run in which it began
    CREATE TABLE {state}.query_reader (
        query_id varchar(36)  NOT NULL,
        queue    text         NOT NULL,
        stream   varchar(36)  NOT NULL,
        run_id   varchar(200) NOT NULL,
        PRIMARY KEY (query_id, queue)
    );

    -- the process that runs a stream, and when it last wrote that it does
    CREATE TABLE {state}.heartbeat (
        driver  varchar(36)  PRIMARY KEY,
        stream  varchar(36),
        login   name         NOT NULL DEFAULT current_user,
        name    varchar(200),
        queue   text         NOT NULL,
        host    varchar(255) NOT NULL,
        process bigint       NOT NULL,
        shared  boolean      NOT NULL,
        started timestamptz  NOT NULL DEFAULT now(),
        beat    timestamptz  NOT NULL DEFAULT now()
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

    -- what one task received, until its batch is acknowledged
    CREATE TABLE {state}.receipt (
        stream      varchar(36) NOT NULL,
        login       name        NOT NULL DEFAULT current_user,
        batch       bigint      NOT NULL CHECK (batch > 0),
        task        integer     NOT NULL CHECK (task >= 0),
        queue       text        NOT NULL,
        messages    bigint      NOT NULL CHECK (messages >= 0),
        expired     bigint      NOT NULL CHECK (expired >= 0),
        diverted    bigint      NOT NULL CHECK (diverted >= 0),
        forwarded   bigint      NOT NULL CHECK (forwarded >= 0),
        bytes       bigint      NOT NULL CHECK (bytes >= 0),
        query_id    varchar(36),
        spark_batch bigint,
        query_name  varchar(200),
        settled     boolean     NOT NULL DEFAULT false,
        unpacked    bigint      NOT NULL CHECK (unpacked >= 0),
        payload     bytea       NOT NULL,
        created     timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (stream, batch, task)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    CREATE INDEX receipt_query ON {state}.receipt (query_id, spark_batch);
    ALTER TABLE {state}.receipt ALTER COLUMN payload SET STORAGE EXTERNAL;

    -- the payload of a large receipt, cut so that each row fills a page of the table
    CREATE TABLE {state}.receipt_page (
        stream  varchar(36) NOT NULL,
        batch   bigint      NOT NULL,
        task    integer     NOT NULL,
        page    integer     NOT NULL,
        payload bytea       NOT NULL,
        PRIMARY KEY (stream, batch, task, page)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE {state}.receipt_page ALTER COLUMN payload SET STORAGE PLAIN;

    -- messages that tasks stage for a sink, until the driver dispatches or discards them
    CREATE TABLE {state}.staging (
        sink       varchar(200) NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt    varchar(36)  NOT NULL,
        chunk      integer      NOT NULL,
        messages   bigint       NOT NULL CHECK (messages > 0),
        payload    bytea        NOT NULL,
        created    timestamptz  NOT NULL DEFAULT now(),
        PRIMARY KEY (sink, sink_batch, attempt, chunk)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE {state}.staging ALTER COLUMN payload SET STORAGE EXTERNAL;

    -- the payload of a large chunk, cut in the same way
    CREATE TABLE {state}.staging_page (
        sink       varchar(200) NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt    varchar(36)  NOT NULL,
        chunk      integer      NOT NULL,
        page       integer      NOT NULL,
        payload    bytea        NOT NULL,
        PRIMARY KEY (sink, sink_batch, attempt, chunk, page)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE {state}.staging_page ALTER COLUMN payload SET STORAGE PLAIN;

    -- the last batch that each sink has sent
    CREATE TABLE {state}.dispatch_log (
        sink        varchar(200) PRIMARY KEY,
        login       name         NOT NULL DEFAULT current_user,
        sink_batch  bigint,
        messages    bigint       NOT NULL DEFAULT 0,
        dispatched  timestamptz  NOT NULL DEFAULT now(),
        destination text,
        version_5   boolean
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

    -- the audit trail: who purged, returned, dropped or retired messages
    CREATE TABLE {state}.trail (
        entry         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at            timestamptz NOT NULL DEFAULT now(),
        login         name        NOT NULL DEFAULT current_user,
        session_login name        NOT NULL DEFAULT session_user,
        action        text        NOT NULL CHECK (action IN ('purge', 'return', 'drop', 'retire')),
        queue         text        NOT NULL,
        messages      bigint      NOT NULL CHECK (messages >= 0),
        stream        varchar(36),
        batch         bigint,
        task          integer
    );

    CREATE TABLE {state}.version (version integer PRIMARY KEY);
    INSERT INTO {state}.version (version) VALUES (5);
END
$do$

-- name: state_parts
-- Lists the tables and indexes of the state schema.
-- Returns: name
SELECT relname::text AS name
  FROM pg_catalog.pg_class
 WHERE relnamespace = to_regnamespace('{state_escaped}') AND relkind IN ('r', 'i')

-- name: state_faults
-- Finds out why the state schema must not be used. It runs before anything in the schema is read. The
-- script for a DBA contains the same rules.
-- Returns: fault, role text, is_super boolean
WITH RECURSIVE given (owners, named, deletes) AS (
    SELECT :owners::text::json, :named::text::json, true
), {trusted}, asked (place, id, what) AS (
    SELECT 0, oid, 'table ' || oid::regclass
      FROM pg_class
     WHERE relnamespace = to_regnamespace('{state_escaped}') AND relkind NOT IN ('i', 'I', 'S')
), {faults}
SELECT f.fault, pg_get_userbyid(f.role)::text AS role,
       (SELECT is_super FROM roles LIMIT 1) AS is_super
  FROM (SELECT fault, role FROM faults WHERE rank <> 3
              UNION
             SELECT 'the schema belongs to ' || quote_ident(pg_get_userbyid(nspowner)), nspowner
               FROM pg_namespace
              WHERE nspname = {state_name} AND nspowner NOT IN (SELECT owner FROM trusted)) AS f
 ORDER BY f.fault

-- name: version
-- Reads the version of the state tables.
-- Returns: version integer
SELECT version FROM {state}.version

-- name: create_lock
-- Makes the second of two creators of a table wait for the first.
-- Locks:   an advisory lock, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sqlq_spark create {table_escaped}', 0))

-- name: create_queue
-- Creates a queue's table as the transport does.
CREATE TABLE IF NOT EXISTS {queue} (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
)

-- name: add_body_string
-- Adds a column with the body as text, as the transport's CreateMessageBodyComputedColumn does.
-- Locks:   the whole table while every row is rewritten; nothing if it has the column already.
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass('{queue_escaped}')
                      AND attname = 'bodystring' AND NOT attisdropped) THEN
        ALTER TABLE {queue}
          ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED;
    END IF;
END
$do$

-- name: create_subscriptions
-- Creates the table of subscriptions as the transport does.
CREATE TABLE IF NOT EXISTS {subscriptions} (
    QueueAddress varchar(200) NOT NULL,
    Endpoint     varchar(200) NOT NULL,
    Topic        varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
) WITH (fillfactor = 100)

-- name: create_delayed
-- Creates the table in which messages wait until they are due, as the transport does. {index} is
-- `<table>_Due`, the transport's name for the index, if that has at most 63 bytes.
-- Locks:   the table that it creates, until commit; nothing if the index exists already.
DO $do$
BEGIN
    IF to_regclass('{index_place_escaped}') IS NULL THEN
        CREATE TABLE IF NOT EXISTS {delayed} (
            Id      uuid        DEFAULT gen_random_uuid() PRIMARY KEY,
            Headers text        NOT NULL,
            Body    bytea,
            Due     timestamptz NOT NULL
        ) WITH (fillfactor = 100);
        CREATE INDEX {index} ON {delayed} (Due);
    END IF;
END
$do$

-- name: queue_columns
-- Lists the columns of a queue.
-- Returns: name, type; no row if the table is absent
SELECT attname::text AS name, format_type(atttypid, NULL)::text AS type
  FROM pg_catalog.pg_attribute
 WHERE attrelid = to_regclass(:table_name::text) AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum

-- part: queue_types
-- The columns of a queue and of a table of delayed messages, and the types that they may have; other
-- statements contain this part. `timestamp with time zone` is not allowed for expires, because it would
-- mean another instant than the transport's type.
SELECT types.name, types.kinds::regtype[]::oid[] AS kinds, types.wanted
  FROM (VALUES ('id', ARRAY ['uuid'], 'uuid'),
               ('expires', ARRAY ['timestamp', 'date'], 'timestamp'),
               ('headers', ARRAY ['text', 'varchar'], 'text'),
               ('body', ARRAY ['bytea', 'text'], 'bytea'),
               ('seq', ARRAY ['int4', 'int8', 'numeric'], 'integer or bigint'),
               ('due', ARRAY ['timestamptz'], 'timestamptz')) AS types (name, kinds, wanted)

-- part: column_fault
-- What is wrong with a column, or null if it is right; other statements contain this part. The caller
-- defines k, the column's row of queue_types, and a, its row of pg_attribute. A domain counts as its base
-- type.
CASE WHEN a.atttypid IS NULL THEN format('it has no column %s', k.name)
     WHEN (SELECT coalesce(nullif(y.typbasetype, 0), y.oid)
             FROM pg_catalog.pg_type AS y
            WHERE y.oid = a.atttypid) <> ALL (k.kinds)
     THEN format('column %s is %s: expected %s', k.name, format_type(a.atttypid, a.atttypmod), k.wanted)
END

-- name: wrong_types
-- Finds the columns of a queue that are absent, or have another type than the transport's.
-- Returns: fault text; no row if all are right, or if the table is absent
SELECT fault.text AS fault
  FROM ({queue_types}) AS k
  LEFT JOIN pg_catalog.pg_attribute AS a
    ON a.attrelid = to_regclass(:table_name::text) AND NOT a.attisdropped AND a.attname = k.name::name
 CROSS JOIN LATERAL (SELECT {column_fault}) AS fault (text)
 WHERE k.name <> 'due' AND fault.text IS NOT NULL AND to_regclass(:table_name::text) IS NOT NULL
 ORDER BY a.attnum

-- name: lock_read
-- Keeps a table's name, schema and owner as they are until commit. It runs before `table_owners`.
-- Locks:   the table, as a SELECT does, until commit.
LOCK TABLE {queue} IN ACCESS SHARE MODE

-- name: lock_insert
-- Keeps a table's definition as it is until commit, before an INSERT. No other session can rename the
-- table, change its owner, or add a trigger or a foreign key.
-- Locks:   the table, as an INSERT does, until commit.
LOCK TABLE {queue} IN ROW EXCLUSIVE MODE

-- name: lock_delete
-- Keeps a table's definition as it is until commit, before a DELETE, as lock_insert does.
-- Locks:   the table, as a DELETE does, until commit.
LOCK TABLE {queue} IN ROW EXCLUSIVE MODE

-- name: lock_queue
-- Locks a queue, or a table of delayed messages, before it is dropped. So nobody can send to it after the
-- caller has counted its messages.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
LOCK TABLE {queue} IN ACCESS EXCLUSIVE MODE

-- name: drop_queue
-- Drops a table after lock_queue. Sessions that wait for the table fail then, because the table is gone.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
DROP TABLE {queue}
