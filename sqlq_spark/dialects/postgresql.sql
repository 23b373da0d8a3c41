-- The statements of the PostgreSQL dialect.
-- {queue}, {errors}: a quoted table. {state}: the quoted schema of the state tables.
-- :name is a bound value. All run under READ COMMITTED, whatever the database's default is.

-- ---------------------------------------------------------------- transactions

-- name: begin
-- Isolation is said explicitly: the receipt protocol reads, after a lock, what others committed.
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: timeouts
-- For this transaction only, so that a pooler's next client is not surprised.
-- Returns: one row
SELECT set_config('statement_timeout', :milliseconds, true),
       set_config('lock_timeout', :milliseconds, true),
       set_config('idle_in_transaction_session_timeout', :milliseconds, true)

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: clock
-- Returns: the server's UTC time, timestamp without zone
SELECT clock_timestamp() AT TIME ZONE 'UTC'

-- ---------------------------------------------------------------- installation

-- name: install_lock
-- Two installers at once: the second waits.
-- Locks: advisory, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sqlq_spark install ' || :state_name::text, 0))

-- name: install_schema
CREATE SCHEMA IF NOT EXISTS {state}

-- name: install_version
CREATE TABLE IF NOT EXISTS {state}.version (
    version integer NOT NULL PRIMARY KEY
)

-- name: install_version_row
INSERT INTO {state}.version (version)
SELECT :version::integer
 WHERE NOT EXISTS (SELECT FROM {state}.version)

-- name: install_reader
-- One row for each checkpoint. A row is rewritten twice in a batch: room in its page keeps that HOT.
CREATE TABLE IF NOT EXISTS {state}.reader (
    reader      varchar(36) PRIMARY KEY,
    queue       text        NOT NULL,
    driver      varchar(36) NOT NULL,
    acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
    plan_batch  bigint      CHECK (plan_batch > acked_batch),
    plan        text        CHECK ((plan IS NULL) = (plan_batch IS NULL)),
    messages    bigint      NOT NULL DEFAULT 0,
    expired     bigint      NOT NULL DEFAULT 0,
    diverted    bigint      NOT NULL DEFAULT 0,
    created     timestamptz NOT NULL DEFAULT now(),
    seen        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt
-- What one task took from a queue, in one commit with the delete. Written once, read back only
-- by a replay, deleted by the ack of its batch.
CREATE TABLE IF NOT EXISTS {state}.receipt (
    reader      varchar(36) NOT NULL,
    batch       bigint      NOT NULL CHECK (batch > 0),
    task        integer     NOT NULL CHECK (task >= 0),
    queue       text        NOT NULL,
    messages    bigint      NOT NULL CHECK (messages >= 0),
    expired     bigint      NOT NULL CHECK (expired >= 0),
    diverted    bigint      NOT NULL CHECK (diverted >= 0),
    bytes       bigint      NOT NULL CHECK (bytes >= 0),
    query_id    varchar(36),
    query_batch bigint,
    settled     boolean     NOT NULL DEFAULT false,
    payload     bytea       NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, batch, task)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt_storage
-- The payload is compressed already: do not try again.
ALTER TABLE {state}.receipt ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_outbox
-- Messages staged by the tasks of a sink, until the driver dispatches or discards them.
CREATE TABLE IF NOT EXISTS {state}.outbox (
    sink     varchar(200) NOT NULL,
    batch    bigint       NOT NULL,
    attempt  varchar(36)  NOT NULL,
    parcel   integer      NOT NULL,
    messages bigint       NOT NULL CHECK (messages > 0),
    payload  bytea        NOT NULL,
    created  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, batch, attempt, parcel)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_outbox_storage
ALTER TABLE {state}.outbox ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_dispatched
-- The ledger: the last batch that each sink has sent.
CREATE TABLE IF NOT EXISTS {state}.dispatched (
    sink       varchar(200) PRIMARY KEY,
    batch      bigint       NOT NULL,
    messages   bigint       NOT NULL,
    dispatched timestamptz  NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: version
-- Returns: version integer
SELECT version FROM {state}.version

-- name: create_queue
-- As the transport makes it.
CREATE TABLE IF NOT EXISTS {queue} (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
)

-- name: queue_columns
-- Returns: name, type of each column of a queue; no row where the table is absent
SELECT attname::text, format_type(atttypid, NULL)::text
  FROM pg_catalog.pg_attribute
 WHERE attrelid = to_regclass(:table_name::text)
   AND attnum > 0
   AND NOT attisdropped
 ORDER BY attnum

-- ---------------------------------------------------------------- the peek loop

-- name: peek
-- How many messages wait, counted up to a limit, and where they can be cut into ranges.
-- Locks nothing, waits for no one. Measured: 100,000 messages in 12 ms.
-- Index:   the unique index on seq.
-- Returns: messages bigint, last bigint, marks bigint[]: the seq of every `grain`-th message,
--          the first one's among them; null where none waits
SELECT cardinality(seqs)::bigint,
       seqs[cardinality(seqs)],
       ARRAY (SELECT seqs[place] FROM generate_series(1, cardinality(seqs), :grain::bigint) AS place)
  FROM (SELECT array_agg(seq) AS seqs
          FROM (SELECT seq::bigint AS seq
                  FROM {queue}
                 WHERE seq >= :first::bigint
                   AND seq <= :last::bigint
                 ORDER BY seq
                 LIMIT :messages::bigint) AS lowest
        OFFSET 0) AS waiting

-- name: sample
-- What the lowest messages weigh, since when the lowest waits, and how far the queue reaches.
-- Index:   the unique index on seq.
-- Returns: bytes double precision, sent text (the TimeSent header of the lowest), span bigint
SELECT (SELECT avg(coalesce(octet_length(headers), 0) + coalesce(octet_length(body), 0))
          FROM (SELECT headers, body
                  FROM {queue}
                 WHERE seq >= :first::bigint
                 ORDER BY seq
                 LIMIT 50) AS lowest)::float8,
       (SELECT substring(headers FROM '"NServiceBus.TimeSent":"([^"]{1,40})"')
          FROM {queue}
         WHERE seq = :first::bigint),
       (SELECT max(seq) FROM {queue})::bigint - :first::bigint + 1

-- name: top
-- The ends of a queue as they stand now.
-- Returns: first bigint, last bigint; null where the queue is empty
SELECT min(seq)::bigint, max(seq)::bigint FROM {queue}

-- ---------------------------------------------------------------- receive

-- name: fence
-- A task of a batch that was acknowledged must not touch the queue.
-- Locks:   the reader's row FOR SHARE, until commit: the ack waits for us.
-- Returns: acked_batch bigint; no row where the reader is unknown
SELECT acked_batch FROM {state}.reader WHERE reader = :reader::text FOR SHARE

-- name: task_lock
-- One attempt of a task at a time; the second waits here, then finds the first one's receipt.
-- Locks:   advisory, until the transaction ends.
SELECT pg_advisory_xact_lock(
    hashtextextended(:reader::text || '/' || :batch::bigint || '/' || :task::bigint, 0))

-- name: find_receipt
-- Returns: payload bytea
SELECT payload
  FROM {state}.receipt
 WHERE reader = :reader::text AND batch = :batch::bigint AND task = :task::bigint

-- name: receive
-- Take the lowest messages of a range that no one else holds, up to a count and a weight;
-- at least one, however heavy. The weight of a toasted value is known without reading it.
-- Locks:   a row lock for each looked at, until commit. Never waits.
-- Index:   the unique index on seq; then by ctid.
-- Returns: id uuid, expires timestamp, expired bool, headers text, body bytea, seq bigint;
--          no order promised
DELETE FROM {queue}
 WHERE ctid = ANY (ARRAY (
        SELECT place
          FROM (SELECT place,
                       sum(bytes) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - bytes AS before
                  FROM (SELECT ctid AS place,
                               seq,
                               coalesce(octet_length(headers), 0)
                               + coalesce(octet_length(body), 0) AS bytes
                          FROM {queue}
                         WHERE seq >= :first::bigint
                           AND seq < :stop::bigint
                         ORDER BY seq
                         LIMIT :messages::bigint
                           FOR UPDATE SKIP LOCKED) AS locked) AS weighed
         WHERE before < :bytes::bigint))
RETURNING id,
          expires,
          coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
          headers,
          body,
          seq::bigint AS seq

-- name: divert
-- A poison row, as it was, into the error queue, unless its id is there already.
-- Returns: one row where it was inserted. No arbiter is named: the right to INSERT is enough.
INSERT INTO {errors} (id, headers, body)
VALUES (:id::text::uuid, :headers::text, :body::bytea)
    ON CONFLICT DO NOTHING
RETURNING true

-- name: save_receipt
INSERT INTO {state}.receipt
       (reader, batch, task, queue, messages, expired, diverted, bytes, query_id, query_batch, payload)
VALUES (:reader::text, :batch::bigint, :task::bigint, :queue_name::text, :messages::bigint,
        :expired::bigint, :diverted::bigint, :bytes::bigint, :query_id::text, :query_batch::bigint,
        :payload::bytea)

-- ---------------------------------------------------------------- receipts

-- name: new_reader
INSERT INTO {state}.reader (reader, queue, driver)
VALUES (:reader::text, :queue_name::text, :driver::text)

-- name: lock_reader
-- Locks:   the reader's row; waits for running tasks.
-- Returns: queue text, driver text, acked_batch bigint, plan_batch bigint, plan text
SELECT queue, driver, acked_batch, plan_batch, plan
  FROM {state}.reader
 WHERE reader = :reader::text
   FOR UPDATE

-- name: claim
-- This driver speaks for the reader from now on.
UPDATE {state}.reader SET driver = :driver::text, seen = now() WHERE reader = :reader::text

-- name: outcome
-- What the tasks of the batches up to this one got.
-- Returns: tasks, empty (tasks that took nothing), messages, expired, diverted; bigint
SELECT count(*),
       count(*) FILTER (WHERE messages + expired + diverted = 0),
       coalesce(sum(messages), 0)::bigint,
       coalesce(sum(expired), 0)::bigint,
       coalesce(sum(diverted), 0)::bigint
  FROM {state}.receipt
 WHERE reader = :reader::text AND batch <= :batch::bigint

-- name: acknowledge
UPDATE {state}.reader
   SET acked_batch = :batch::bigint,
       plan_batch  = CASE WHEN plan_batch > :batch::bigint THEN plan_batch END,
       plan        = CASE WHEN plan_batch > :batch::bigint THEN plan END,
       messages    = messages + :messages::bigint,
       expired     = expired + :expired::bigint,
       diverted    = diverted + :diverted::bigint,
       seen        = now()
 WHERE reader = :reader::text

-- name: forget_receipts
DELETE FROM {state}.receipt WHERE reader = :reader::text AND batch <= :batch::bigint

-- name: store_plan
UPDATE {state}.reader
   SET plan_batch = :batch::bigint, plan = :plan::text, seen = now()
 WHERE reader = :reader::text

-- name: receipts
-- Without their payloads, oldest first.
-- Returns: reader, queue, batch, task, messages, bytes, settled, created, seen
SELECT r.reader, r.queue, r.batch, r.task::bigint, r.messages, r.bytes, r.settled, r.created, o.seen
  FROM {state}.receipt AS r
  LEFT JOIN {state}.reader AS o ON o.reader = r.reader
 WHERE (:reader::text IS NULL OR r.reader = :reader::text)
   AND (:queue_name::text IS NULL OR r.queue = :queue_name::text)
 ORDER BY r.created, r.reader, r.batch, r.task

-- name: drop_receipt
-- Returns: queue, messages, settled, payload of the receipt dropped
DELETE FROM {state}.receipt
 WHERE reader = :reader::text AND batch = :batch::bigint AND task = :task::bigint
RETURNING queue, messages, settled, payload

-- name: retire_reader
-- Its receipts were returned or dropped: a checkpoint that comes back must not receive again.
UPDATE {state}.reader
   SET acked_batch = greatest(acked_batch, :batch::bigint),
       plan_batch  = CASE WHEN plan_batch > :batch::bigint THEN plan_batch END,
       plan        = CASE WHEN plan_batch > :batch::bigint THEN plan END
 WHERE reader = :reader::text

-- name: readers
-- Returns: reader, queue, acked_batch, messages, expired, diverted, created, seen, receipts, held
SELECT o.reader, o.queue, o.acked_batch, o.messages, o.expired, o.diverted, o.created, o.seen,
       (SELECT count(*) FROM {state}.receipt AS r WHERE r.reader = o.reader),
       (SELECT coalesce(sum(r.messages), 0)::bigint FROM {state}.receipt AS r WHERE r.reader = o.reader)
  FROM {state}.reader AS o
 ORDER BY o.seen DESC

-- ---------------------------------------------------------------- send

-- name: sink_open
-- Many tasks of a sink stage at once; a driver that dispatches or discards waits for them.
-- Locks:   advisory, shared, until the transaction ends.
SELECT pg_advisory_xact_lock_shared(hashtextextended('sink ' || :sink::text, 0))

-- name: sink_close
-- Locks:   advisory, until the transaction ends: waits for tasks that stage, and they for us.
SELECT pg_advisory_xact_lock(hashtextextended('sink ' || :sink::text, 0))

-- name: stage
-- Nothing where the batch is done or given up, or, after a lost answer, where it is there already.
INSERT INTO {state}.outbox (sink, batch, attempt, parcel, messages, payload)
SELECT :sink::text, :batch::bigint, :attempt::text, :parcel::bigint, :messages::bigint,
       :payload::bytea
 WHERE NOT EXISTS (
        SELECT FROM {state}.dispatched WHERE sink = :sink::text AND batch >= :batch::bigint)
    ON CONFLICT DO NOTHING

-- name: advance
-- Enter a batch into the ledger, unless it, or a later one, is there.
-- Locks:   the sink's row, until commit: of two drivers the second waits, then finds it done.
-- Returns: batch bigint; no row where it was sent before
INSERT INTO {state}.dispatched AS d (sink, batch, messages)
VALUES (:sink::text, :batch::bigint, :messages::bigint)
    ON CONFLICT (sink) DO UPDATE
       SET batch = excluded.batch, messages = excluded.messages, dispatched = now()
     WHERE d.batch < excluded.batch
RETURNING batch

-- name: parcels
-- Returns: attempt text, parcel bigint
SELECT attempt, parcel::bigint
  FROM {state}.outbox
 WHERE sink = :sink::text AND batch = :batch::bigint
 ORDER BY attempt, parcel

-- name: parcel
-- Returns: payload bytea
SELECT payload
  FROM {state}.outbox
 WHERE sink = :sink::text AND batch = :batch::bigint
   AND attempt = :attempt::text AND parcel = :parcel::bigint

-- name: discard
-- What a sink staged up to a batch: sent by now, or never to be sent.
DELETE FROM {state}.outbox WHERE sink = :sink::text AND batch <= :batch::bigint

-- name: discard_abandoned
-- What writes without a name left behind when their job was killed.
DELETE FROM {state}.outbox
 WHERE sink LIKE 'write:%' AND created < now() - make_interval(secs => :seconds::float8)

-- name: forget_abandoned
-- The ledger's rows of writes without a name: kept for a while, so that a task which comes back late
-- stages nothing.
DELETE FROM {state}.dispatched
 WHERE sink LIKE 'write:%' AND dispatched < now() - make_interval(secs => :seconds::float8)

-- ---------------------------------------------------------------- inspection

-- name: browse
-- A page of a range, deleting and locking nothing.
-- Index:   the unique index on seq.
-- Returns: as receive, by seq
SELECT id,
       expires,
       coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
       headers,
       body,
       seq::bigint AS seq
  FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < :stop::bigint
 ORDER BY seq
 LIMIT :messages::bigint

-- name: browse_seq
-- The same page without headers and bodies.
SELECT id, expires, seq::bigint AS seq
  FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < :stop::bigint
 ORDER BY seq
 LIMIT :messages::bigint

-- name: purge
-- Everything, as the transport does at a start when asked to.
DELETE FROM {queue}

-- name: stats
-- Returns: messages, expired, bytes of table and indexes, first and last seq; bigint
SELECT count(*),
       count(*) FILTER (WHERE expires <= clock_timestamp() AT TIME ZONE 'UTC'),
       pg_total_relation_size(:table_name::text::regclass),
       min(seq)::bigint,
       max(seq)::bigint
  FROM {queue}

-- ---------------------------------------------------------------- rights, for a DBA's script

-- name: script_role
-- {literal} is the role's name as text, {role} quoted.
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END
$do$

-- name: script_reader
-- UPDATE of one column is what FOR UPDATE SKIP LOCKED needs.
GRANT USAGE ON SCHEMA {schema}, {state} TO {role};
GRANT SELECT, DELETE, UPDATE (seq) ON {queue} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.reader, {state}.receipt TO {role}

-- name: script_sender
GRANT USAGE ON SCHEMA {schema}, {state} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.outbox, {state}.dispatched TO {role}

-- name: script_errors
-- SELECT (id): a poison row keeps its id where the error queue has none of it yet.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT, SELECT (id) ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}
