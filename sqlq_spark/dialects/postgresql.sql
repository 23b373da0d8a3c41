-- The statements of the PostgreSQL dialect.
-- {queue}, {errors}, {delayed}: a quoted table. {state}: the quoted schema of the state tables.
-- :name is a bound value. All run under READ COMMITTED, whatever the database's default is.

-- ---------------------------------------------------------------- transactions

-- name: begin
-- Isolation is said explicitly: the receipt protocol reads, after a lock, what others committed.
-- So is where names are looked up: a function or an operator that another login defined in a schema
-- of the session's search_path could match our arguments better, and would run as this login.
-- For this transaction only, as a pooler may share the session.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp

-- name: timeouts
-- And the name that the DBA sees. A commit is on disk when it is answered, also for a login that does
-- without: Spark has the rows by then, and after a crash they would be in the queue again.
-- A database of SQL_ASCII holds any bytes as text; it gives and takes them as they are where the client
-- says that it does so too, and fails otherwise.
-- For this transaction only, so that a pooler's next client is not surprised.
-- Returns: one row
SELECT set_config('statement_timeout', :milliseconds, true),
       set_config('lock_timeout', :milliseconds, true),
       set_config('idle_in_transaction_session_timeout', :milliseconds, true),
       set_config('synchronous_commit',
                  coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true),
       set_config('application_name', left(:application, 63), true),
       set_config('client_encoding',
                  CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII'
                       ELSE current_setting('client_encoding') END, true)

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
-- What fails from here to the release is undone by itself, and the transaction goes on.
SAVEPOINT attempt

-- name: release
RELEASE SAVEPOINT attempt

-- name: check_deferred
-- What a table leaves until the commit is checked now, where it fails by itself. Measured: 0.2 ms.
SET CONSTRAINTS ALL IMMEDIATE

-- name: clock
-- Returns: the server's UTC time, timestamp without zone
SELECT clock_timestamp() AT TIME ZONE 'UTC'

-- ---------------------------------------------------------------- installation

-- name: install_lock
-- Two installers at once: the second waits.
-- Locks: advisory, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sqlq_spark install ' || :state_name::text, 0))

-- name: state_faults
-- Whose the state schema is and what is in it, where that is not this login's, nor :owner's: whoever
-- owns a table, or has put a trigger on it, decides what runs where a row is written. From the
-- catalogue alone, for a table may be a view that runs code where it is read.
-- Returns: fault text; a row for each thing that is wrong
WITH state AS (
    SELECT oid, nspname, pg_get_userbyid(nspowner) AS owner
      FROM pg_catalog.pg_namespace
     WHERE nspname = :state_name::text
), tables AS (
    SELECT c.oid,
           format('%I.%I', s.nspname, c.relname) AS named,
           pg_get_userbyid(c.relowner) AS owner,
           c.relkind
      FROM state AS s
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
     WHERE c.relname IN ('version', 'reader', 'task', 'receipt', 'receipt_page', 'outbox',
                         'outbox_page', 'dispatched')
), owned AS (
    SELECT format('schema %I', nspname) AS what, owner FROM state
    UNION ALL
    SELECT format('table %s', named), owner FROM tables
)
SELECT format('%s belongs to %I', what, owner) AS fault
  FROM owned
 WHERE owner <> current_user AND owner <> coalesce(:owner::text, current_user)
UNION ALL
SELECT format('%s is no plain table', named) FROM tables WHERE relkind <> 'r'
UNION ALL
SELECT format('table %s has the trigger %I', t.named, g.tgname)
  FROM tables AS t
  JOIN pg_catalog.pg_trigger AS g ON g.tgrelid = t.oid
 WHERE NOT g.tgisinternal
UNION ALL
SELECT format('table %s has the rule %I', t.named, r.rulename)
  FROM tables AS t
  JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = t.oid
 WHERE t.relkind = 'r'
UNION ALL
SELECT format('table %s has a default, a constraint or a policy that calls %s', t.named,
              d.refobjid::regprocedure)
  FROM tables AS t
  JOIN (SELECT 'pg_catalog.pg_attrdef'::regclass AS class, oid, adrelid AS relation
          FROM pg_catalog.pg_attrdef
        UNION ALL
        SELECT 'pg_catalog.pg_constraint'::regclass, oid, conrelid FROM pg_catalog.pg_constraint
        UNION ALL
        SELECT 'pg_catalog.pg_policy'::regclass, oid, polrelid FROM pg_catalog.pg_policy) AS part
    ON part.relation = t.oid
  JOIN pg_catalog.pg_depend AS d ON d.classid = part.class AND d.objid = part.oid
 WHERE d.refclassid = 'pg_catalog.pg_proc'::regclass
UNION ALL
SELECT format('table %s has a column of the type %s', t.named, d.refobjid::regtype)
  FROM tables AS t
  JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = t.oid
 WHERE d.refclassid = 'pg_catalog.pg_type'::regclass

-- name: install_schema
CREATE SCHEMA IF NOT EXISTS {state}

-- name: install_version
CREATE TABLE IF NOT EXISTS {state}.version (
    version integer NOT NULL PRIMARY KEY
)

-- name: install_version_row
INSERT INTO {state}.version (version)
SELECT :version::integer
 WHERE NOT EXISTS (SELECT FROM {state}.version WHERE version >= :version::integer)

-- name: install_version_only
-- Older state tables were made current by what came before.
DELETE FROM {state}.version WHERE version < :version::integer

-- name: install_reader
-- One row for each checkpoint. A row is rewritten twice in a batch: room in its page keeps that HOT.
-- `login` made it; it is in each key, so that no one else's row stands in the way, nor shows itself
-- by that. What belongs to a stream or a sink has the login of its row here or in `dispatched`.
CREATE TABLE IF NOT EXISTS {state}.reader (
    reader      varchar(36) NOT NULL,
    login       name        NOT NULL DEFAULT current_user,
    queue       text        NOT NULL,
    driver      varchar(36) NOT NULL,
    acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
    plan_batch  bigint      CHECK (plan_batch > acked_batch),
    plan        text        CHECK ((plan IS NULL) = (plan_batch IS NULL)),
    messages    bigint      NOT NULL DEFAULT 0,
    expired     bigint      NOT NULL DEFAULT 0,
    diverted    bigint      NOT NULL DEFAULT 0,
    forwarded   bigint      NOT NULL DEFAULT 0,
    created     timestamptz NOT NULL DEFAULT now(),
    seen        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, login)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_task
-- A row for each number that a task of a stream ever had, to be locked by who is at work on it.
CREATE TABLE IF NOT EXISTS {state}.task (
    reader varchar(36) NOT NULL,
    login  name        NOT NULL DEFAULT current_user,
    task   integer     NOT NULL CHECK (task >= 0),
    PRIMARY KEY (reader, login, task)
)

-- name: install_receipt
-- What one task took from a queue, in one commit with the delete. Written once, read back only
-- by a replay, deleted by the ack of its batch.
CREATE TABLE IF NOT EXISTS {state}.receipt (
    reader      varchar(36) NOT NULL,
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
    query_batch bigint,
    settled     boolean     NOT NULL DEFAULT false,
    unpacked    bigint      NOT NULL CHECK (unpacked >= 0),
    payload     bytea       NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, batch, task, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt_storage
-- The payload is compressed already: do not try again.
ALTER TABLE {state}.receipt ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_receipt_page
-- The payload of a large receipt, cut so that a row fills a page.
CREATE TABLE IF NOT EXISTS {state}.receipt_page (
    reader  varchar(36) NOT NULL,
    login   name        NOT NULL DEFAULT current_user,
    batch   bigint      NOT NULL,
    task    integer     NOT NULL,
    page    integer     NOT NULL,
    payload bytea       NOT NULL,
    PRIMARY KEY (reader, batch, task, page, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt_page_storage
ALTER TABLE {state}.receipt_page ALTER COLUMN payload SET STORAGE PLAIN

-- name: install_outbox
-- Messages staged by the tasks of a sink, until the driver dispatches or discards them.
CREATE TABLE IF NOT EXISTS {state}.outbox (
    sink     varchar(200) NOT NULL,
    login    name         NOT NULL DEFAULT current_user,
    batch    bigint       NOT NULL,
    attempt  varchar(36)  NOT NULL,
    parcel   integer      NOT NULL,
    messages bigint       NOT NULL CHECK (messages > 0),
    payload  bytea        NOT NULL,
    created  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, batch, attempt, parcel, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_outbox_storage
ALTER TABLE {state}.outbox ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_outbox_page
-- The payload of a large parcel, cut so that a row fills a page.
CREATE TABLE IF NOT EXISTS {state}.outbox_page (
    sink    varchar(200) NOT NULL,
    login   name         NOT NULL DEFAULT current_user,
    batch   bigint       NOT NULL,
    attempt varchar(36)  NOT NULL,
    parcel  integer      NOT NULL,
    page    integer      NOT NULL,
    payload bytea        NOT NULL,
    PRIMARY KEY (sink, batch, attempt, parcel, page, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_outbox_page_storage
ALTER TABLE {state}.outbox_page ALTER COLUMN payload SET STORAGE PLAIN

-- name: install_dispatched
-- The dispatch log: the last batch that each sink has sent; null where it has sent none.
CREATE TABLE IF NOT EXISTS {state}.dispatched (
    sink       varchar(200) NOT NULL,
    login      name         NOT NULL DEFAULT current_user,
    batch      bigint,
    messages   bigint       NOT NULL DEFAULT 0,
    dispatched timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, login)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_row_security
-- The table's owner is exempt.
-- Locks:   the whole table, for a moment.
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY

-- name: install_no_policy
DROP POLICY IF EXISTS "own rows" ON {table}

-- name: install_policy
-- A login sees and writes its own rows; `sqlqueue script` lets the members of a role share theirs.
CREATE POLICY "own rows" ON {table} USING (login = current_user)

-- name: install_version_policy
-- Whoever may enter may read the version, and only the owner change it, whatever was granted.
CREATE POLICY "own rows" ON {table} FOR SELECT USING (true)

-- name: version
-- Returns: version integer
SELECT version FROM {state}.version

-- name: row_security
-- Whether a table's rows are kept apart for this login, which may not COPY into it then.
-- Returns: active bool; no row where the table is absent
SELECT row_security_active(c.oid)
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = :state_name::text AND c.relname = :table_name::text

-- name: create_queue
-- As the transport makes it.
CREATE TABLE IF NOT EXISTS {queue} (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
)

-- name: add_body_string
-- The body as text beside it, as the transport's CreateMessageBodyComputedColumn asks for.
-- Locks:   the whole table, while every row is written anew.
ALTER TABLE {queue}
  ADD COLUMN IF NOT EXISTS BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED

-- name: create_subscriptions
-- As the transport makes it.
CREATE TABLE IF NOT EXISTS {subscriptions} (
    QueueAddress varchar(200) NOT NULL,
    Endpoint     varchar(200) NOT NULL,
    Topic        varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
) WITH (fillfactor = 100)

-- name: create_delayed
-- Where messages wait until they are due; as the transport makes it.
CREATE TABLE IF NOT EXISTS {delayed} (
    Id      uuid        DEFAULT gen_random_uuid() PRIMARY KEY,
    Headers text        NOT NULL,
    Body    bytea,
    Due     timestamptz NOT NULL
) WITH (fillfactor = 100)

-- name: create_delayed_index
-- {index}: `<table>_Due`, as the transport names it, where 63 bytes allow that.
CREATE INDEX IF NOT EXISTS {index} ON {delayed} (Due)

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
-- Index:   the unique index on seq; the order is by the column, not by the bigint of its name.
-- Returns: messages bigint, last bigint, marks bigint[]: the seq of every `grain`-th message,
--          the first one's among them; null where none waits
SELECT cardinality(seqs)::bigint,
       seqs[cardinality(seqs)],
       ARRAY (SELECT seqs[place] FROM generate_series(1, cardinality(seqs), :grain::bigint) AS place)
  FROM (SELECT array_agg(seq) AS seqs
          FROM (SELECT q.seq::bigint AS seq
                  FROM {queue} AS q
                 WHERE q.seq >= :first::bigint
                   AND q.seq <= :last::bigint
                 ORDER BY q.seq
                 LIMIT :messages::bigint) AS lowest
        OFFSET 0) AS waiting

-- name: sample
-- What the lowest messages weigh, since when the lowest waits, and how far the queue reaches.
-- A weight is known without reading a value, and of headers no more than their beginning is read:
-- a pattern would need 4 bytes for each character, and fails where that is more than 1 GB.
-- Index:   the unique index on seq.
-- Returns: bytes double precision, sent text (the TimeSent header of the lowest), span bigint
SELECT (SELECT avg(coalesce(octet_length(headers), 0)::bigint + coalesce(octet_length(body), 0))
          FROM (SELECT headers, body
                  FROM {queue}
                 WHERE seq >= :first::bigint
                 ORDER BY seq
                 LIMIT 50) AS lowest)::float8,
       (SELECT substring(left(headers, 16384) FROM '"NServiceBus.TimeSent":"([^"]{1,40})"')
          FROM {queue}
         WHERE seq = :first::bigint),
       (SELECT max(seq) FROM {queue})::bigint - :first::bigint + 1

-- name: top
-- The ends of a queue as they stand now.
-- Returns: first bigint, last bigint; null where the queue is empty
SELECT min(seq)::bigint, max(seq)::bigint FROM {queue}

-- ---------------------------------------------------------------- receive

-- name: fence
-- A task of a batch that was acknowledged must not touch the queue. A login from whom no rows are
-- kept (a superuser, the tables' owner) takes its own row only: anyone may have made another.
-- Locks:   the reader's row FOR SHARE, until commit: the ack waits for us.
-- Returns: acked_batch bigint, login text; no row where the reader is unknown
SELECT acked_batch, login::text
  FROM {state}.reader
 WHERE reader = :reader::text
   AND (login = current_user OR row_security_active(tableoid))
 ORDER BY login <> current_user
 LIMIT 1
   FOR SHARE

-- name: task_lock
-- One attempt of a task at a time; the second waits here, then finds the first one's receipt. A row,
-- for an advisory lock could be taken by logins that have no right on any table.
-- Locks:   the row of this number of the reader's tasks, until commit.
-- Returns: one row; none where the number is new
SELECT true
  FROM {state}.task
 WHERE reader = :reader::text AND login = :login::text AND task = :task::bigint
   FOR UPDATE

-- name: new_task
-- Locks:   the row it writes, until commit; of two attempts the second waits.
INSERT INTO {state}.task (reader, login, task)
VALUES (:reader::text, :login::text, :task::bigint)
    ON CONFLICT DO NOTHING

-- name: find_receipt
-- Returns: payload bytea; empty where it is in pages; messages, unpacked (bytes) bigint
SELECT payload, messages, unpacked
  FROM {state}.receipt
 WHERE reader = :reader::text AND login = :login::text
   AND batch = :batch::bigint AND task = :task::bigint

-- name: receipt_pages
-- Returns: payload bytea, in order
SELECT payload
  FROM {state}.receipt_page
 WHERE reader = :reader::text AND login = :login::text
   AND batch = :batch::bigint AND task = :task::bigint
 ORDER BY page

-- name: receive
-- Take the lowest messages of a range that no one else holds, up to a count and a weight;
-- at least one, however heavy, but none larger than :largest.
-- The weight of a toasted value is known without reading it.
-- The rows come to the window as they are locked, by seq: to sort them again would cost 4 %. If ever
-- they came in another order, a heavy step would leave some of them for the next batch.
-- Locks:   a row lock for each looked at, until commit. Never waits.
-- Index:   the unique index on seq; then by ctid.
-- Returns: id uuid, expires timestamp, expired bool, headers text, body bytea, seq bigint;
--          no order promised
DELETE FROM {queue}
 WHERE ctid = ANY (ARRAY (
        SELECT place
          FROM (SELECT place,
                       sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before
                  FROM (SELECT ctid AS place,
                               seq,
                               coalesce(octet_length(headers), 0)::bigint
                               + coalesce(octet_length(body), 0) AS bytes
                          FROM {queue}
                         WHERE seq >= :first::bigint
                           AND seq < :stop::bigint
                           AND coalesce(octet_length(headers), 0)::bigint
                               + coalesce(octet_length(body), 0) <= :largest::bigint
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

-- name: receive_body_string
-- As receive, from a table that has the column, which is weighed too.
-- Returns: also bodystring text
DELETE FROM {queue}
 WHERE ctid = ANY (ARRAY (
        SELECT place
          FROM (SELECT place,
                       sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before
                  FROM (SELECT ctid AS place,
                               seq,
                               coalesce(octet_length(headers), 0)::bigint
                               + coalesce(octet_length(body), 0)
                               + coalesce(octet_length(bodystring), 0) AS bytes
                          FROM {queue}
                         WHERE seq >= :first::bigint
                           AND seq < :stop::bigint
                           AND coalesce(octet_length(headers), 0)::bigint
                               + coalesce(octet_length(body), 0)
                               + coalesce(octet_length(bodystring), 0) <= :largest::bigint
                         ORDER BY seq
                         LIMIT :messages::bigint
                           FOR UPDATE SKIP LOCKED) AS locked) AS weighed
         WHERE before < :bytes::bigint))
RETURNING id,
          expires,
          coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
          headers,
          body,
          bodystring,
          seq::bigint AS seq

-- name: take
-- Take chosen messages, those of them that no one else holds; :seqs is a list.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   the unique index on seq; then by ctid.
-- Returns: as receive; no order promised
DELETE FROM {queue}
 WHERE ctid = ANY (ARRAY (
        SELECT ctid
          FROM {queue}
         WHERE seq = ANY (:seqs::bigint[])
           FOR UPDATE SKIP LOCKED))
RETURNING id,
          expires,
          coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
          headers,
          body,
          seq::bigint AS seq

-- name: patience
-- How long a destination that others lock is waited for, from here to the end of the transaction.
-- Returns: one row
SELECT set_config('lock_timeout', :milliseconds, true)

-- name: lock_destination
-- Keeps what an INSERT would run as it is: no trigger, rule, default or policy can be added, and the
-- table cannot be renamed or replaced, until commit. The right to INSERT is enough.
-- Locks:   the table, as an INSERT does, until commit.
LOCK TABLE {queue} IN ROW EXCLUSIVE MODE

-- name: destinations
-- Tables that messages are to go to: whether they are queues, and whose. No name is cast to a table: the
-- cast fails where a schema may not be used. No expression is printed: that waits for the table's lock.
-- Trusted are this login, superusers, and the owner of the queue that is read, if one is.
-- Returns: for each table that is there: place bigint, in the list that was given; identity bigint;
--          catalog, here (in this database), schema and table; missing text, the first column that it
--          lacks, or null; may_insert bool; owner text; same_owner bool, as the queue that is read;
--          settled bool: its schema's owner is trusted; plain bool: an INSERT runs nothing but the
--          sequence (1574, nextval, cast by 480 or 714), or
--          gen_random_uuid (3432)
SELECT t.place,
       c.oid::bigint AS identity,
       NULL::text AS catalog,
       true AS here,
       n.nspname::text,
       c.relname::text,
       (SELECT min(w.name)
          FROM json_array_elements_text(t.columns) AS w (name)
         WHERE NOT EXISTS (SELECT
                             FROM pg_catalog.pg_attribute AS a
                            WHERE a.attrelid = c.oid
                              AND a.attname = w.name::name
                              AND NOT a.attisdropped)) AS missing,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT') AS may_insert,
       pg_get_userbyid(c.relowner)::text AS owner,
       coalesce(c.relowner = source.owner, false) AS same_owner,
       coalesce((SELECT r.rolsuper OR r.rolname = current_user OR r.oid = source.owner
                   FROM pg_catalog.pg_roles AS r
                  WHERE r.oid = CASE WHEN pg_get_userbyid(n.nspowner) = 'pg_database_owner'
                                     THEN (SELECT d.datdba
                                             FROM pg_catalog.pg_database AS d
                                            WHERE d.datname = current_database())
                                     ELSE n.nspowner END), false) AS settled,
       c.relkind = 'r'
       AND NOT (c.relhastriggers OR c.relhasrules OR c.relrowsecurity)
       AND NOT EXISTS (SELECT
                         FROM pg_catalog.pg_constraint AS k
                        WHERE k.conrelid = c.oid AND k.contype NOT IN ('p', 'u', 'n'))
       AND NOT EXISTS (SELECT
                         FROM pg_catalog.pg_index AS i
                        WHERE i.indrelid = c.oid
                          AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
       AND NOT EXISTS (SELECT
                         FROM pg_catalog.pg_attribute AS a
                         JOIN pg_catalog.pg_type AS y ON y.oid = a.atttypid
                        WHERE a.attrelid = c.oid
                          AND a.attnum > 0
                          AND NOT a.attisdropped
                          AND y.typnamespace <> 'pg_catalog'::regnamespace)
       AND NOT EXISTS (SELECT
                         FROM pg_catalog.pg_attrdef AS d
                        WHERE d.adrelid = c.oid
                          AND (d.adbin::text ~ '\{(?!FUNCEXPR |CONST )'
                               OR d.adbin::text ~ 'funcid (?!(480|714|1574|3432) )'))
       AS plain
  FROM json_to_recordset(:places::text::json)
       AS t(place bigint, schema_name text, table_name text, columns json)
  JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema_name::name
  JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name::name
 CROSS JOIN (SELECT (SELECT q.relowner
                       FROM pg_catalog.pg_namespace AS s
                       JOIN pg_catalog.pg_class AS q ON q.relnamespace = s.oid
                      WHERE s.nspname = :source_schema::text::name
                        AND q.relname = :source_table::text::name) AS owner) AS source
 WHERE c.relkind IN ('r', 'p') OR :source_schema::text IS NULL AND c.relkind IN ('v', 'm', 'f')

-- name: destination_code
-- The first thing that an INSERT into a table would run for an owner that is not trusted; asked of the
-- few tables that are not plain.
-- A table of another owner must not run code at all: in its expressions only immutable functions of
-- pg_catalog and a few that read a clock or a sequence. On a table of a trusted owner, what is called
-- must be trusted too. :places are identities.
-- Returns: identity bigint, code text with its owner; no row where all is trusted
WITH RECURSIVE source AS (
    SELECT c.relowner
      FROM pg_catalog.pg_namespace AS n
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
     WHERE n.nspname = :source_schema::text::name
       AND c.relname = :source_table::text::name
), trusted AS MATERIALIZED (
    SELECT r.oid
      FROM pg_catalog.pg_roles AS r
     WHERE r.rolsuper OR r.rolname = current_user OR r.oid IN (SELECT relowner FROM source)
), asked AS MATERIALIZED (
    SELECT c.oid, c.relkind
      FROM json_array_elements_text(:places::text::json) AS t (id)
      JOIN pg_catalog.pg_class AS c ON c.oid = t.id::oid
), tree AS (
    SELECT a.oid AS root, a.oid, a.relkind FROM asked AS a
    UNION
    SELECT t.root, i.inhrelid, c.relkind
      FROM tree AS t
      JOIN pg_catalog.pg_inherits AS i ON i.inhparent = t.oid AND t.relkind = 'p'
      JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
), part AS MATERIALIZED (
    SELECT a.root::bigint AS place, c.oid, c.relkind, c.relowner, c.relhastriggers, c.relhasrules, c.relhasindex,
           c.relowner IN (SELECT oid FROM trusted) AS trusted
      FROM tree AS a
      JOIN pg_catalog.pg_class AS c ON c.oid = a.oid
), holder AS MATERIALIZED (
    SELECT p.place, p.trusted, p.relowner, 'pg_attrdef'::regclass AS class, d.oid,
           format(CASE a.attgenerated WHEN '' THEN 'default of column %I' ELSE 'generated column %I'
                  END, a.attname) AS what,
           CASE WHEN NOT p.trusted THEN d.adbin::text END AS tree
      FROM part AS p
      JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = p.oid
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.oid AND a.attnum = d.adnum
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_constraint'::regclass, c.oid,
           format('constraint %I', c.conname),
           CASE WHEN NOT p.trusted THEN c.conbin::text END
      FROM part AS p
      JOIN pg_catalog.pg_constraint AS c ON c.conrelid = p.oid AND c.contype IN ('c', 'x')
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_class'::regclass, i.indexrelid,
           format('index %I', c.relname),
           CASE WHEN NOT p.trusted THEN concat(i.indexprs::text, i.indpred::text) END
      FROM part AS p
      JOIN pg_catalog.pg_index AS i ON i.indrelid = p.oid
      JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
     WHERE p.relhasindex AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_rewrite'::regclass, r.oid,
           format('rule %I', r.rulename), NULL
      FROM part AS p
      JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = p.oid
     WHERE p.relhasrules
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_policy'::regclass, y.oid,
           format('policy %I', y.polname), NULL
      FROM part AS p
      JOIN pg_catalog.pg_policy AS y ON y.polrelid = p.oid
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_trigger'::regclass, t.oid,
           format('trigger %I', t.tgname), t.tgqual::text
      FROM part AS p
      JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = p.oid
     WHERE p.relhastriggers AND NOT t.tgisinternal AND t.tgenabled <> 'D'
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_constraint'::regclass, c.oid,
           format('domain %I', t.typname), NULL
      FROM part AS p
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid AND t.typtype = 'd'
      JOIN pg_catalog.pg_constraint AS c ON c.contypid = t.oid
    UNION ALL
    SELECT p.place, p.trusted, p.relowner, 'pg_class'::regclass, p.oid, 'its partitioning', NULL
      FROM part AS p
     WHERE p.relkind = 'p'
), used AS (
    SELECT h.place, h.trusted, h.relowner, h.what, d.refclassid, d.refobjid,
           CASE d.refclassid
           WHEN 'pg_proc'::regclass
           THEN (SELECT f.proowner FROM pg_catalog.pg_proc AS f WHERE f.oid = d.refobjid)
           WHEN 'pg_operator'::regclass
           THEN (SELECT o.oprowner FROM pg_catalog.pg_operator AS o WHERE o.oid = d.refobjid)
           WHEN 'pg_type'::regclass
           THEN (SELECT t.typowner FROM pg_catalog.pg_type AS t WHERE t.oid = d.refobjid)
           WHEN 'pg_opclass'::regclass
           THEN (SELECT o.opcowner FROM pg_catalog.pg_opclass AS o WHERE o.oid = d.refobjid)
           WHEN 'pg_class'::regclass
           THEN CASE WHEN h.class IN ('pg_rewrite'::regclass, 'pg_policy'::regclass)
                THEN (SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = d.refobjid) END
           END AS owner
      FROM holder AS h
      JOIN pg_catalog.pg_depend AS d ON d.classid = h.class AND d.objid = h.oid
), found AS (
    SELECT p.place, 1 AS rank, p.relowner AS owner,
           CASE p.relkind WHEN 'v' THEN 'it is a view' WHEN 'm' THEN 'it is a materialized view'
                WHEN 'f' THEN 'it is, or leads to, a foreign table'
                ELSE 'it is a partitioned table' END AS what
      FROM part AS p
     WHERE p.relkind IN ('v', 'm', 'f') OR p.relkind = 'p' AND NOT p.trusted
    UNION ALL
    SELECT p.place, 2, CASE WHEN p.trusted THEN f.proowner ELSE p.relowner END,
           format('trigger %I calls %I.%I()', t.tgname, n.nspname, f.proname)
      FROM part AS p
      JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = p.oid
      JOIN pg_catalog.pg_proc AS f ON f.oid = t.tgfoid
      JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
     WHERE p.relhastriggers AND NOT t.tgisinternal AND t.tgenabled <> 'D'
       AND (NOT p.trusted OR f.proowner NOT IN (SELECT oid FROM trusted))
    UNION ALL
    SELECT p.place, 3, p.relowner, format('rule %I', r.rulename)
      FROM part AS p
      JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = p.oid
     WHERE p.relhasrules AND NOT p.trusted
    UNION ALL
    SELECT p.place, 4, p.relowner, 'row security applies to this login'
      FROM part AS p
     WHERE NOT p.trusted AND row_security_active(p.oid)
    UNION ALL
    SELECT p.place, 5, p.relowner, format('foreign key %I', c.conname)
      FROM part AS p
      JOIN pg_catalog.pg_constraint AS c ON c.conrelid = p.oid AND c.contype = 'f'
     WHERE NOT p.trusted
    UNION ALL
    SELECT p.place, 6, t.typowner,
           format('column %I has type %I.%I', a.attname, n.nspname, t.typname)
      FROM part AS p
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
      JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
      LEFT JOIN pg_catalog.pg_type AS b ON b.oid = t.typbasetype
     WHERE n.nspname <> 'pg_catalog'
       AND (NOT p.trusted
            OR t.typowner NOT IN (SELECT oid FROM trusted)
            OR t.typtype NOT IN ('b', 'e', 'd')
            OR t.typtype = 'd' AND b.typnamespace <> t.typnamespace
               AND b.typnamespace <> 'pg_catalog'::regnamespace)
    UNION ALL
    SELECT u.place, 7, u.owner,
           format('%s uses %s', u.what, pg_describe_object(u.refclassid, u.refobjid, 0))
      FROM used AS u
     WHERE u.owner IS NOT NULL
       AND (NOT u.trusted OR u.owner NOT IN (SELECT oid FROM trusted))
    UNION ALL
    SELECT h.place, 8, h.relowner, format('%s calls %I.%I()', h.what, n.nspname, f.proname)
      FROM holder AS h
     CROSS JOIN LATERAL regexp_matches(h.tree, 'funcid (\d+)', 'g') AS called (id)
      JOIN pg_catalog.pg_proc AS f ON f.oid = called.id[1]::oid
      JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
     WHERE f.provolatile <> 'i'
       AND (n.nspname <> 'pg_catalog'
            OR f.proname NOT IN ('nextval', 'gen_random_uuid', 'now', 'clock_timestamp',
                                 'statement_timestamp', 'transaction_timestamp',
                                 'pg_trigger_depth'))
)
SELECT DISTINCT ON (f.place) f.place, format('%s, of %I', f.what, pg_get_userbyid(f.owner)) AS code
  FROM found AS f
 ORDER BY f.place, f.rank, f.what

-- name: destination_locks
-- Whether tables are still those that this transaction locked by their names, asked where the owner of a
-- schema is not trusted and may rename it: who puts another schema in its place adds a lock of a table
-- of the same name. :places are identities.
-- Returns: identity bigint, kept bool, locks text
SELECT c.oid::bigint, c.oid = ANY (array_agg(l.relation)), array_agg(l.relation ORDER BY l.relation)::text
  FROM json_array_elements_text(:places::text::json) AS t (id)
  JOIN pg_catalog.pg_class AS c ON c.oid = t.id::oid
  JOIN pg_catalog.pg_class AS named ON named.relname = c.relname
  JOIN pg_catalog.pg_locks AS l ON l.relation = named.oid
 WHERE l.locktype = 'relation'
   AND l.pid = pg_backend_pid()
   AND l.mode = 'RowExclusiveLock'
 GROUP BY c.oid

-- name: find_large
-- The lowest messages of a range that are larger than a limit and that no one else holds. Asked only
-- where the sample weighed so much, and the task got less than was planned.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   the unique index on seq.
-- Returns: seq bigint, bytes bigint
SELECT seq::bigint,
       coalesce(octet_length(headers), 0)::bigint
       + coalesce(octet_length(body), 0) AS bytes
  FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < :stop::bigint
   AND coalesce(octet_length(headers), 0)::bigint
       + coalesce(octet_length(body), 0)
       > :largest::bigint
 ORDER BY seq
 LIMIT :messages::bigint
   FOR UPDATE SKIP LOCKED

-- name: find_large_body_string
-- As find_large, from a table that has the column, which is weighed too.
SELECT seq::bigint,
       coalesce(octet_length(headers), 0)::bigint
       + coalesce(octet_length(body), 0)
       + coalesce(octet_length(bodystring), 0) AS bytes
  FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < :stop::bigint
   AND coalesce(octet_length(headers), 0)::bigint
       + coalesce(octet_length(body), 0)
       + coalesce(octet_length(bodystring), 0)
       > :largest::bigint
 ORDER BY seq
 LIMIT :messages::bigint
   FOR UPDATE SKIP LOCKED

-- name: divert_large
-- Chosen messages into the error queue, as they are, without going through the client, which could not
-- hold them; the server sends no row of 1 GB. Expired ones are dropped. :seqs is a JSON array.
-- Locks:   a row lock for each, until commit; find_large has them already.
-- Index:   the unique index on seq.
-- Returns: moved bigint, expired bigint
WITH gone AS (
    DELETE FROM {queue}
     WHERE seq = ANY (ARRAY (
            SELECT text::bigint FROM json_array_elements_text(:seqs::text::json) AS each (text)))
    RETURNING id,
              headers,
              body,
              coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired),
moved AS (
    INSERT INTO {errors} (id, headers, body)
    SELECT CASE WHEN :renamed::boolean THEN gen_random_uuid() ELSE id END,
           headers,
           coalesce(body, '')
      FROM gone
     WHERE NOT expired)
SELECT count(*) FILTER (WHERE NOT expired), count(*) FILTER (WHERE expired) FROM gone

-- name: save_receipt
INSERT INTO {state}.receipt
       (reader, login, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, query_batch, unpacked, payload)
VALUES (:reader::text, :login::text, :batch::bigint, :task::bigint, :queue_name::text,
        :messages::bigint,
        :expired::bigint, :diverted::bigint, :forwarded::bigint, :bytes::bigint,
        :query_id::text, :query_batch::bigint, :unpacked::bigint, :payload::bytea)

-- ---------------------------------------------------------------- receipts

-- name: new_reader
INSERT INTO {state}.reader (reader, queue, driver)
VALUES (:reader::text, :queue_name::text, :driver::text)

-- name: lock_reader
-- The row of a login, or, where :login is null, the one that `fence` finds.
-- Locks:   the reader's row; waits for running tasks.
-- Returns: queue text, driver text, acked_batch bigint, plan_batch bigint, plan text, login text
SELECT queue, driver, acked_batch, plan_batch, plan, login::text
  FROM {state}.reader
 WHERE reader = :reader::text
   AND CASE WHEN :login::text IS NULL THEN login = current_user OR row_security_active(tableoid)
            ELSE login = :login::text END
 ORDER BY login <> current_user
 LIMIT 1
   FOR UPDATE

-- name: claim
-- This driver speaks for the reader from now on; the queues are those that it reads.
UPDATE {state}.reader
   SET driver = :driver::text, queue = :queue_name::text, seen = now()
 WHERE reader = :reader::text AND login = :login::text

-- name: reader_queue
-- Of the row that `fence` finds. Locks nothing.
-- Returns: queue text
SELECT queue
  FROM {state}.reader
 WHERE reader = :reader::text
   AND (login = current_user OR row_security_active(tableoid))
 ORDER BY login <> current_user
 LIMIT 1

-- name: outcome
-- What the tasks of the batches up to this one got, a row for each queue. The batch acknowledged before is where the index
-- is entered: behind the dead entries of all earlier ones.
-- Returns: queue text; tasks, empty (tasks that took nothing), messages, expired, diverted,
--          forwarded; bigint
SELECT queue,
       count(*),
       count(*) FILTER (WHERE messages + expired + diverted + forwarded = 0),
       coalesce(sum(messages), 0)::bigint,
       coalesce(sum(expired), 0)::bigint,
       coalesce(sum(diverted), 0)::bigint,
       coalesce(sum(forwarded), 0)::bigint
  FROM {state}.receipt
 WHERE reader = :reader::text AND login = :login::text
   AND batch BETWEEN :acked::bigint AND :batch::bigint
 GROUP BY queue

-- name: acknowledge
UPDATE {state}.reader
   SET acked_batch = :batch::bigint,
       plan_batch  = CASE WHEN plan_batch > :batch::bigint THEN plan_batch END,
       plan        = CASE WHEN plan_batch > :batch::bigint THEN plan END,
       messages    = messages + :messages::bigint,
       expired     = expired + :expired::bigint,
       diverted    = diverted + :diverted::bigint,
       forwarded   = forwarded + :forwarded::bigint,
       seen        = now()
 WHERE reader = :reader::text AND login = :login::text

-- name: forget_receipts
WITH pages AS (
    DELETE FROM {state}.receipt_page
     WHERE reader = :reader::text AND login = :login::text
       AND batch BETWEEN :acked::bigint AND :batch::bigint)
DELETE FROM {state}.receipt
 WHERE reader = :reader::text AND login = :login::text
   AND batch BETWEEN :acked::bigint AND :batch::bigint

-- name: store_plan
UPDATE {state}.reader
   SET plan_batch = :batch::bigint, plan = :plan::text, seen = now()
 WHERE reader = :reader::text AND login = :login::text

-- name: receipts
-- Without their payloads, oldest first.
-- Returns: reader, queue, batch, task, messages, bytes, settled, created, seen, login
SELECT r.reader, r.queue, r.batch, r.task::bigint, r.messages, r.bytes, r.settled, r.created, o.seen,
       r.login::text
  FROM {state}.receipt AS r
  LEFT JOIN {state}.reader AS o ON o.reader = r.reader AND o.login = r.login
 WHERE (:reader::text IS NULL OR r.reader = :reader::text)
   AND (:queue_name::text IS NULL OR r.queue = :queue_name::text)
 ORDER BY r.created, r.reader, r.login, r.batch, r.task

-- name: drop_receipt
-- Returns: queue, messages, settled, payload, unpacked of the receipt dropped
WITH pages AS (
    DELETE FROM {state}.receipt_page
     WHERE reader = :reader::text AND login = :login::text
       AND batch = :batch::bigint AND task = :task::bigint)
DELETE FROM {state}.receipt
 WHERE reader = :reader::text AND login = :login::text
   AND batch = :batch::bigint AND task = :task::bigint
RETURNING queue, messages, settled, payload, unpacked

-- name: retire_reader
-- Its receipts were returned or dropped: a checkpoint that comes back must not receive again.
UPDATE {state}.reader
   SET acked_batch = greatest(acked_batch, :batch::bigint),
       plan_batch  = CASE WHEN plan_batch > :batch::bigint THEN plan_batch END,
       plan        = CASE WHEN plan_batch > :batch::bigint THEN plan END
 WHERE reader = :reader::text AND login = :login::text

-- name: readers
-- Returns: reader, queue, acked_batch, messages, expired, diverted, forwarded, created, seen,
--          receipts, held
SELECT o.reader, o.queue, o.acked_batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created, o.seen,
       (SELECT count(*)
          FROM {state}.receipt AS r
         WHERE r.reader = o.reader AND r.login = o.login),
       (SELECT coalesce(sum(r.messages), 0)::bigint
          FROM {state}.receipt AS r
         WHERE r.reader = o.reader AND r.login = o.login)
  FROM {state}.reader AS o
 ORDER BY o.seen DESC

-- ---------------------------------------------------------------- send

-- name: sink_open
-- Many tasks of a sink stage at once; a driver that dispatches or discards waits for them. Which row
-- is the sink's is decided as by `fence`.
-- Locks:   the sink's row FOR SHARE, until commit.
-- Returns: login text; no row where the sink is new
SELECT login::text
  FROM {state}.dispatched
 WHERE sink = :sink::text
   AND (login = current_user OR row_security_active(tableoid))
 ORDER BY login <> current_user
 LIMIT 1
   FOR SHARE

-- name: sink_close
-- Locks:   the sink's row, until commit: waits for tasks that stage, and they for us; of two drivers
--          the second waits.
-- Returns: login text, batch bigint; no row where the sink is new
SELECT login::text, batch
  FROM {state}.dispatched
 WHERE sink = :sink::text
   AND (login = current_user OR row_security_active(tableoid))
 ORDER BY login <> current_user
 LIMIT 1
   FOR UPDATE

-- name: sinks_lock
-- Two logins that share their rows must not make two rows for one sink. Another's dispatch goes on.
-- Locks:   the dispatch log against whoever makes a row in it, until commit.
LOCK TABLE {state}.dispatched IN SHARE UPDATE EXCLUSIVE MODE

-- name: sink_elsewhere
-- For a login from whom no rows are kept: whose row a sink has that was made by another of that kind.
-- Returns: login text
SELECT d.login::text
  FROM {state}.dispatched AS d
  JOIN pg_catalog.pg_class AS c ON c.oid = d.tableoid
  JOIN pg_catalog.pg_roles AS r ON r.rolname = d.login
 WHERE d.sink = :sink::text
   AND d.login <> current_user
   AND NOT row_security_active(d.tableoid)
   AND (r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, c.relowner, 'USAGE'))
 ORDER BY d.login
 LIMIT 1

-- name: new_sink
INSERT INTO {state}.dispatched (sink)
SELECT :sink::text
 WHERE NOT EXISTS (
        SELECT
          FROM {state}.dispatched
         WHERE sink = :sink::text AND (login = current_user OR row_security_active(tableoid)))

-- name: stage
-- Nothing where the batch is done or given up, or, after a lost answer, where it is there already.
-- Returns: one row where it was inserted
INSERT INTO {state}.outbox (sink, login, batch, attempt, parcel, messages, payload)
SELECT :sink::text, :login::text, :batch::bigint, :attempt::text, :parcel::bigint,
       :messages::bigint, :payload::bytea
 WHERE NOT EXISTS (
        SELECT
          FROM {state}.dispatched
         WHERE sink = :sink::text AND login = :login::text AND batch >= :batch::bigint)
    ON CONFLICT DO NOTHING
RETURNING true

-- name: advance
-- Enter a batch into the dispatch log, whose row `sink_close` has locked, unless it, or a later one,
-- is there.
-- Returns: batch bigint; no row where it was sent before
UPDATE {state}.dispatched
   SET batch = :batch::bigint, messages = :messages::bigint, dispatched = now()
 WHERE sink = :sink::text AND login = :login::text
   AND (batch IS NULL OR batch < :batch::bigint)
RETURNING batch

-- name: settle
-- What a micro-batch received is sent on in this transaction. A batch that was closed, because its
-- receipts were returned or dropped, has none to settle.
-- Locks:   the reader's row FOR SHARE, as its tasks do; the receipts until commit.
-- Returns: a row for each receipt
WITH held AS (
    SELECT r.reader, r.login, r.batch, r.task
      FROM {state}.receipt AS r
      JOIN {state}.reader AS o ON o.reader = r.reader AND o.login = r.login
     WHERE r.query_id = :query_id::text
       AND r.query_batch = :query_batch::bigint
       AND r.batch > o.acked_batch
       AND (o.login = current_user OR row_security_active(o.tableoid))
       FOR SHARE OF o)
UPDATE {state}.receipt AS r
   SET settled = true
  FROM held
 WHERE r.reader = held.reader AND r.login = held.login
   AND r.batch = held.batch AND r.task = held.task
RETURNING true

-- name: parcels
-- Returns: attempt text, parcel bigint
SELECT attempt, parcel::bigint
  FROM {state}.outbox
 WHERE sink = :sink::text AND login = :login::text AND batch = :batch::bigint
 ORDER BY attempt, parcel

-- name: parcel
-- Returns: payload bytea; empty where it is in pages
SELECT payload
  FROM {state}.outbox
 WHERE sink = :sink::text AND login = :login::text AND batch = :batch::bigint
   AND attempt = :attempt::text AND parcel = :parcel::bigint

-- name: parcel_pages
-- Returns: payload bytea, in order
SELECT payload
  FROM {state}.outbox_page
 WHERE sink = :sink::text AND login = :login::text AND batch = :batch::bigint
   AND attempt = :attempt::text AND parcel = :parcel::bigint
 ORDER BY page

-- name: discard
-- What a sink staged up to a batch: sent by now, or never to be sent.
WITH pages AS (
    DELETE FROM {state}.outbox_page
     WHERE sink = :sink::text AND login = :login::text AND batch <= :batch::bigint)
DELETE FROM {state}.outbox
 WHERE sink = :sink::text AND login = :login::text AND batch <= :batch::bigint

-- name: discard_abandoned
-- What writes without a name left behind when their job was killed.
WITH gone AS (
    DELETE FROM {state}.outbox
     WHERE sink LIKE 'write:%' AND created < now() - make_interval(secs => :seconds::float8)
    RETURNING sink, login, batch, attempt, parcel)
DELETE FROM {state}.outbox_page AS p
 USING gone
 WHERE p.sink = gone.sink AND p.login = gone.login AND p.batch = gone.batch
   AND p.attempt = gone.attempt AND p.parcel = gone.parcel

-- name: forget_abandoned
-- The ledger's rows of writes without a name: kept for a while, so that a task which comes back late
-- stages nothing.
DELETE FROM {state}.dispatched
 WHERE sink LIKE 'write:%' AND dispatched < now() - make_interval(secs => :seconds::float8)

-- ---------------------------------------------------------------- publish and subscribe

-- name: subscribers
-- The whole table, or one topic of it: it is small, and its key begins with the endpoint.
-- Locks nothing.
-- Returns: topic, endpoint, queueaddress
SELECT topic, endpoint, queueaddress
  FROM {subscriptions}
 WHERE :topic::text IS NULL OR topic = :topic::text
 ORDER BY topic, endpoint

-- name: subscribe
-- One address for an endpoint and topic, the last one given; no new row version for the same.
-- Locks:   the endpoint's row for the topic, until commit.
INSERT INTO {subscriptions} AS s (queueaddress, endpoint, topic)
VALUES (:queue_address::text, :endpoint::text, :topic::text)
    ON CONFLICT (endpoint, topic) DO UPDATE
       SET queueaddress = excluded.queueaddress
     WHERE s.queueaddress <> excluded.queueaddress

-- name: unsubscribe
-- Index:   the primary key.
-- Returns: one row where the endpoint was subscribed
DELETE FROM {subscriptions}
 WHERE endpoint = :endpoint::text AND topic = :topic::text
RETURNING true

-- ---------------------------------------------------------------- delayed delivery

-- name: peer_zone
-- The zone in which the peers' sessions work: as told, or what a plain session of this database gets,
-- which is the database's own setting, or else the server's. Where this session's client asked for
-- a zone (PGTZ, options of the url), the server's cannot be seen.
-- Returns: zone text, null where it cannot be seen; and fails (22023) where no such zone is known
SELECT zone, now() AT TIME ZONE zone
  FROM (SELECT coalesce(
                 :zone::text,
                 (SELECT substr(setting, strpos(setting, '=') + 1)
                    FROM pg_catalog.pg_db_role_setting AS s
                    JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase,
                         unnest(s.setconfig) AS setting
                   WHERE s.setrole = 0
                     AND d.datname = current_database()
                     AND setting ILIKE 'timezone=%'),
                 (SELECT reset_val
                    FROM pg_catalog.pg_settings
                   WHERE name = 'TimeZone' AND source <> 'client')) AS zone) AS known

-- name: dues
-- When messages are due that wait for some milliseconds, or until some moments in UTC. The peers take
-- the server's UTC clock for a time of their session's zone, here and in their movers: so do we.
-- Each list is a JSON array of texts.
-- Returns: one row: timestamptz[] of the delays, timestamptz[] of the moments, in their order
SELECT ARRAY (SELECT (now() AT TIME ZONE 'UTC' + wait::bigint * interval '1 millisecond')
                     AT TIME ZONE :zone::text
                FROM json_array_elements_text(:delays::text::json)
                     WITH ORDINALITY AS each (wait, place)
               ORDER BY place),
       ARRAY (SELECT moment::timestamp AT TIME ZONE :zone::text
                FROM json_array_elements_text(:moments::text::json)
                     WITH ORDINALITY AS each (moment, place)
               ORDER BY place)

-- name: move_due
-- Move the messages that have been due for longest into the queue, under their ids; one whose id is
-- in the queue already goes there under a new one. A message is in one of the tables at any time.
-- Locks:   the delayed rows, until commit; those that others hold are passed over. Never waits for
--          another of our movers; a peer's mover waits for us and then finds them gone.
-- Index:   the one on due; then by ctid.
-- Returns: one row: moved bigint, and how many of them got a new id, bigint
WITH due AS (
    DELETE FROM {delayed}
     WHERE ctid = ANY (ARRAY (
            SELECT ctid
              FROM {delayed}
             WHERE due <= now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text
             ORDER BY due
             LIMIT :messages::bigint
               FOR UPDATE SKIP LOCKED))
    RETURNING id, headers, body, due),
moved AS (
    INSERT INTO {queue} (id, headers, body)
    SELECT id, headers, coalesce(body, '') FROM due ORDER BY due
        ON CONFLICT DO NOTHING
    RETURNING id),
renamed AS (
    INSERT INTO {queue} (id, headers, body)
    SELECT gen_random_uuid(), headers, coalesce(body, '')
      FROM due
     WHERE id NOT IN (SELECT id FROM moved)
     ORDER BY due
    RETURNING id)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM renamed)

-- name: next_due
-- Index:   the one on due.
-- Returns: seconds until the next message is due double precision, null where none waits; below 0
--          where it is due, and another mover holds it or a full batch left it. What is due at infinity
--          is never; before version 17 nothing can be taken from it.
SELECT extract(epoch FROM min(due) - (now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text))::float8
  FROM {delayed}
 WHERE isfinite(due)

-- ---------------------------------------------------------------- inspection

-- name: browse
-- A page of a range, deleting and locking nothing: up to a count and a weight, at least one message.
-- Of one that is larger than :largest nothing is read but its weight.
-- Index:   the unique index on seq; the order is by the column, not by the bigint of its name.
-- Returns: as receive, by seq; and large bigint, the bytes of a message that is too large, whose
--          headers and body are null
SELECT id,
       expires,
       coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
       CASE WHEN bytes <= :largest::bigint THEN headers END AS headers,
       CASE WHEN bytes <= :largest::bigint THEN body END AS body,
       seq::bigint AS seq,
       CASE WHEN bytes > :largest::bigint THEN bytes END AS large
  FROM (SELECT *,
               sum(CASE WHEN bytes <= :largest::bigint THEN bytes ELSE 0 END)
                   OVER (ROWS UNBOUNDED PRECEDING) AS up_to
          FROM (SELECT q.id, q.expires, q.headers, q.body, q.seq,
                       coalesce(octet_length(q.headers), 0)::bigint
                       + coalesce(octet_length(q.body), 0) AS bytes
                  FROM {queue} AS q
                 WHERE q.seq >= :first::bigint
                   AND q.seq < :stop::bigint
                 ORDER BY q.seq
                 LIMIT :messages::bigint) AS lowest) AS weighed
 WHERE up_to - bytes < :bytes::bigint
 ORDER BY weighed.seq

-- name: browse_body_string
-- As browse, from a table that has the column.
-- Returns: also bodystring text
SELECT id,
       expires,
       coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
       CASE WHEN bytes <= :largest::bigint THEN headers END AS headers,
       CASE WHEN bytes <= :largest::bigint THEN body END AS body,
       CASE WHEN bytes <= :largest::bigint THEN bodystring END AS bodystring,
       seq::bigint AS seq,
       CASE WHEN bytes > :largest::bigint THEN bytes END AS large
  FROM (SELECT *,
               sum(CASE WHEN bytes <= :largest::bigint THEN bytes ELSE 0 END)
                   OVER (ROWS UNBOUNDED PRECEDING) AS up_to
          FROM (SELECT q.id, q.expires, q.headers, q.body, q.bodystring, q.seq,
                       coalesce(octet_length(q.headers), 0)::bigint
                       + coalesce(octet_length(q.body), 0)
                       + coalesce(octet_length(q.bodystring), 0) AS bytes
                  FROM {queue} AS q
                 WHERE q.seq >= :first::bigint
                   AND q.seq < :stop::bigint
                 ORDER BY q.seq
                 LIMIT :messages::bigint) AS lowest) AS weighed
 WHERE up_to - bytes < :bytes::bigint
 ORDER BY weighed.seq

-- name: browse_seq
-- The same page without headers and bodies.
SELECT q.id, q.expires, q.seq::bigint AS seq
  FROM {queue} AS q
 WHERE q.seq >= :first::bigint
   AND q.seq < :stop::bigint
 ORDER BY q.seq
 LIMIT :messages::bigint

-- name: browse_headers
-- A page of a range without bodies, for what headers tell: the beginning of each. Locks nothing.
-- Index:   the unique index on seq.
-- Returns: headers text, seq bigint; by seq
SELECT left(q.headers, 65536) AS headers, q.seq::bigint AS seq
  FROM {queue} AS q
 WHERE q.seq >= :first::bigint
   AND q.seq < :stop::bigint
 ORDER BY q.seq
 LIMIT :messages::bigint

-- name: browse_delayed
-- The delayed messages that are due first, deleting and locking nothing.
-- Index:   the one on due.
-- Returns: id text, due timestamp (UTC, within the years 1900 to 9999, for the client: it may be
--          infinite), headers text, body bytea
SELECT id::text,
       least(greatest(due AT TIME ZONE :zone::text, timestamp '1900-01-01'), timestamp '9999-12-31'),
       headers,
       body
  FROM {delayed}
 ORDER BY due
 LIMIT :messages::bigint

-- name: purge
-- Everything, as the transport does at a start when asked to.
-- Locks:   a row lock for each, until commit; waits for those that others hold.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} RETURNING true)
SELECT count(*) FROM gone

-- name: purge_range
-- Part of a queue: each message in a range of seqs.
-- Locks:   a row lock for each, until commit; waits for those that others hold.
-- Index:   the unique index on seq.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} WHERE seq >= :first::bigint AND seq < :stop::bigint RETURNING true)
SELECT count(*) FROM gone

-- name: purge_expired
-- A batch of messages that expired before this transaction and that no one else holds.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   one on expires, where there is one; then by ctid. Without it all pages are read.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue}
     WHERE ctid = ANY (ARRAY (
            SELECT ctid
              FROM {queue}
             WHERE expires <= now() AT TIME ZONE 'UTC'
             LIMIT :messages::bigint
               FOR UPDATE SKIP LOCKED))
    RETURNING true)
SELECT count(*) FROM gone

-- name: stats
-- Returns: messages, expired, bytes of table and indexes, first and last seq; bigint
SELECT count(*),
       count(*) FILTER (WHERE expires <= clock_timestamp() AT TIME ZONE 'UTC'),
       pg_total_relation_size(:table_name::text::regclass),
       min(seq)::bigint,
       max(seq)::bigint
  FROM {queue}

-- name: stats_delayed
-- How many messages wait until they are due, and how many are due; null without a zone.
-- Returns: messages, due, bytes of table and indexes; bigint
SELECT count(*),
       CASE WHEN :zone::text IS NOT NULL
            THEN count(*) FILTER (WHERE due <= now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text) END,
       pg_total_relation_size(:table_name::text::regclass)
  FROM {delayed}

-- name: seq_given
-- The highest seq that was ever handed out, those of sends that were undone among them.
-- Returns: given bigint; null where none was, or this login may not see the sequence
SELECT CASE WHEN has_sequence_privilege(sequence, 'USAGE, SELECT')
            THEN pg_sequence_last_value(sequence) END
  FROM (SELECT to_regclass(pg_get_serial_sequence(:table_name::text, 'seq')) AS sequence) AS its

-- name: table_sizes
-- What a table takes on disk, and how many live and dead rows the server's statistics count.
-- Returns: table, indexes, toast (bytes bigint); live, dead (estimates bigint), cleaned timestamptz
--          (the last vacuum, null where there was none); no row where it is absent
SELECT pg_table_size(oid) - toast, pg_indexes_size(oid), toast,
       pg_stat_get_live_tuples(oid), pg_stat_get_dead_tuples(oid),
       greatest(pg_stat_get_last_vacuum_time(oid), pg_stat_get_last_autovacuum_time(oid))
  FROM (SELECT c.oid,
               coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast
          FROM pg_catalog.pg_class AS c
         WHERE c.oid = to_regclass(:table_name::text)) AS asked

-- name: queue_tables
-- The tables of the default schema that have the columns of a queue, for a shell to complete.
-- Returns: name text
SELECT c.relname::text
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public'
   AND c.relkind IN ('r', 'p')
   AND 5 = (SELECT count(*)
              FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid = c.oid
               AND a.attname IN ('id', 'expires', 'headers', 'body', 'seq')
               AND NOT a.attisdropped)
 ORDER BY c.relname
 LIMIT 1000

-- ---------------------------------------------------------------- checks

-- name: check_rows
-- What the lowest messages tell: how long they live, how large headers are, and how far seq has
-- come. Locks nothing. Of headers only the beginning is read.
-- Index:   the unique index on seq.
-- Returns: last bigint (null where the queue is empty), and of each of the lowest 50 that expires:
--          expires timestamp (within the years 1900 to 9999, for the client: it may be infinite),
--          sent text, lives text (its headers, null where absent); in each row the seq and the
--          bytes of the largest headers among the lowest 50, bigint
SELECT top.last, lowest.expires, lowest.sent, lowest.lives, heaviest.seq, heaviest.bytes
  FROM (SELECT max(seq)::bigint AS last FROM {queue}) AS top
  LEFT JOIN (SELECT seq::bigint AS seq, octet_length(headers)::bigint AS bytes
               FROM (SELECT seq, headers FROM {queue} ORDER BY seq LIMIT 50) AS first_rows
              ORDER BY octet_length(headers) DESC NULLS LAST
              LIMIT 1) AS heaviest ON true
  LEFT JOIN (SELECT least(greatest(expires, timestamp '1900-01-01'), timestamp '9999-12-31') AS expires,
                    substring(left(headers, 16384)
                              FROM '"NServiceBus.TimeSent":"([^"]{1,40})"') AS sent,
                    substring(left(headers, 16384)
                              FROM '"NServiceBus.TimeToBeReceived":"([^"]{1,40})"') AS lives
               FROM (SELECT expires, headers FROM {queue} ORDER BY seq LIMIT 50) AS first_rows
              WHERE expires IS NOT NULL) AS lowest ON true

-- name: check_queue
-- What is wrong with a queue's table, from the catalogue alone; any login may read that.
-- :last is the highest seq, null where it is not known; :expiring, whether messages expire;
-- :body_string, whether the column is asked for.
-- Returns: name, severity (error, warning, note), found, mend; text; a row for each finding
WITH queue AS (
    SELECT c.oid,
           c.relname,
           c.relpages * current_setting('block_size')::bigint >> 20 AS mebibytes,
           c.relkind AS kind,
           c.reltoastrelid AS toast,
           n.oid AS schema,
           quote_ident(n.nspname) AS schema_name,
           quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS named,
           quote_ident(current_user) AS login
      FROM parse_ident(:table_name::text) AS asked (name)
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = asked.name[1]
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = asked.name[2]
     WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
), columns AS (
    SELECT a.attname AS name,
           a.attnum AS at,
           a.attidentity <> '' AS is_identity,
           a.atttypid AS kind,
           format_type(a.atttypid, a.atttypmod) AS type
      FROM queue AS q
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = q.oid
     WHERE a.attnum > 0 AND NOT a.attisdropped
), indexes AS (
    SELECT c.name AS first_column, i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AS orders
      FROM queue AS q
      JOIN pg_catalog.pg_index AS i ON i.indrelid = q.oid
      JOIN columns AS c ON c.at = i.indkey[0]
     WHERE i.indisvalid
), seq AS (
    SELECT s.seqrelid::regclass::text AS sequence,
           s.seqmax,
           CASE c.kind WHEN 'int2'::regtype THEN 32767
                       WHEN 'int4'::regtype THEN 2147483647
                       ELSE 9223372036854775807 END AS highest,
           CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                THEN pg_sequence_last_value(s.seqrelid) END AS given,
           has_sequence_privilege(s.seqrelid, 'USAGE') OR c.is_identity AS may_use
      FROM queue AS q
      JOIN columns AS c ON c.name = 'seq'
      JOIN pg_catalog.pg_depend AS d ON d.refclassid = 'pg_class'::regclass
                                    AND d.refobjid = q.oid
                                    AND d.refobjsubid = c.at
                                    AND d.classid = 'pg_class'::regclass
                                    AND d.deptype IN ('a', 'i')
      JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = d.objid
), facts AS (
    SELECT q.*,
           s.sequence,
           least(s.highest, s.seqmax) AS highest,
           greatest(:last::bigint, s.given) AS used,
           (SELECT c.type FROM columns AS c WHERE c.name = 'headers') AS headers,
           EXISTS (SELECT FROM columns WHERE name = 'due')
           AND NOT EXISTS (SELECT FROM columns WHERE name = 'seq') AS delayed,
           has_schema_privilege(q.schema, 'USAGE') AS may_enter,
           has_table_privilege(q.oid, 'SELECT')
           AND has_table_privilege(q.oid, 'DELETE')
           AND has_any_column_privilege(q.oid, 'UPDATE') AS may_receive,
           has_table_privilege(q.oid, 'INSERT') AND coalesce(s.may_use, true) AS may_send
      FROM queue AS q
      LEFT JOIN seq AS s ON true
)
SELECT 'column', 'error',
       format('column %s is missing: a peer and a reader name it', wanted.name),
       CASE WHEN near.name IS NULL
            THEN format('ALTER TABLE %s ADD COLUMN %s %s', f.named, wanted.name, wanted.type)
            ELSE format('ALTER TABLE %s RENAME COLUMN %I TO %s', f.named, near.name, wanted.name)
       END
  FROM facts AS f
 CROSS JOIN (VALUES ('id', 'uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY'),
                    ('expires', 'timestamp'),
                    ('headers', 'text NOT NULL DEFAULT ''{}'''),
                    ('body', 'bytea'),
                    ('seq', 'serial NOT NULL UNIQUE')) AS wanted (name, type)
  LEFT JOIN columns AS near ON lower(near.name) = wanted.name
 WHERE near.name IS DISTINCT FROM wanted.name AND NOT f.delayed
UNION ALL
SELECT law.name, law.severity, law.found, law.mend
  FROM facts AS f
 CROSS JOIN LATERAL (VALUES
    ('delayed_table', 'error',
     f.delayed,
     'a table of delayed messages, and no queue',
     'name its queue; `sqlqueue move-due` moves what is due into that'),
    ('table_kind', 'error',
     f.kind <> 'r' OR EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = f.oid),
     format('it is %s: what is received could be lost, or come twice',
            CASE f.kind WHEN 'f' THEN 'a foreign table' WHEN 'v' THEN 'a view'
                        WHEN 'm' THEN 'a materialized view'
                        ELSE 'a table of several partitions or descendants' END),
     'name the queue''s own table, in the database that holds it; it must be one plain table'),
    ('row_security', 'error',
     row_security_active(f.oid),
     format('row security is on for login %s: nothing can be sent, and what a policy hides is not '
            'received', f.login),
     format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', f.named)),
    -- the transport makes none: of a small table all is read in no time
    ('expires_index', CASE WHEN f.mebibytes < 64 THEN 'note' ELSE 'warning' END,
     :expiring::boolean AND NOT EXISTS (SELECT FROM indexes WHERE first_column = 'expires'),
     'messages expire, and no index on expires finds them: a purge reads the whole table',
     format('CREATE INDEX CONCURRENTLY ON %s (expires) WHERE expires IS NOT NULL', f.named)),
    ('headers_type', 'error',
     f.headers NOT IN ('text', 'character varying'),
     format('column headers is %s: headers are cut, changed or refused', f.headers),
     format('ALTER TABLE %s ALTER COLUMN headers TYPE text USING headers::text', f.named)),
    ('seq_index', 'error',
     EXISTS (SELECT FROM columns WHERE name = 'seq')
     AND NOT EXISTS (SELECT FROM indexes WHERE first_column = 'seq' AND orders),
     'seq has no unique index: every receive and every peek reads the whole table',
     format('CREATE UNIQUE INDEX CONCURRENTLY ON %s (seq)', f.named)),
    ('seq_end', 'warning',
     f.used >= 0.8 * f.highest,
     format('%s%% of the seqs are used up (%s of %s): at the end every INSERT fails',
            trunc(100.0 * f.used / f.highest), f.used, f.highest),
     format(E'ALTER TABLE %s ALTER COLUMN seq TYPE bigint;\nALTER SEQUENCE %s AS bigint',
            f.named, f.sequence)),
    ('long_name', 'error',
     octet_length(f.relname) > 55,
     format('the name has %s bytes: peers take 55 at most', octet_length(f.relname)),
     format('ALTER TABLE %s RENAME TO %I', f.named,
            (SELECT max(left(f.relname, size)::text)
               FROM generate_series(1, length(f.relname)) AS size
              WHERE octet_length(left(f.relname, size)) <= 55))),
    ('autovacuum', 'error',
     EXISTS (SELECT
               FROM pg_catalog.pg_class AS c
              CROSS JOIN LATERAL pg_options_to_table(c.reloptions) AS o
              WHERE c.oid IN (f.oid, f.toast)
                AND o.option_name = 'autovacuum_enabled'
                AND NOT o.option_value::boolean),
     'autovacuum is off for this table: what is received leaves dead rows that slow it down',
     format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', f.named)),
    ('body_string', 'error',
     :body_string::boolean AND NOT EXISTS (SELECT FROM columns WHERE name = 'bodystring'),
     'includeBodyString is asked for, and there is no column BodyString',
     format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS BodyString text '
            'GENERATED ALWAYS AS (encode(Body, ''escape'')) STORED', f.named)),
    ('schema_right', 'error',
     NOT f.may_enter,
     format('login %s may not enter schema %s', f.login, f.schema_name),
     format('GRANT USAGE ON SCHEMA %s TO %s', f.schema_name, f.login)),
    ('receive_right', CASE WHEN f.may_send THEN 'note' ELSE 'error' END,
     NOT f.may_receive AND NOT f.delayed,
     format('login %s may not receive from it', f.login),
     format('GRANT SELECT, DELETE, UPDATE (seq) ON %s TO %s', f.named, f.login)),
    ('send_right', CASE WHEN f.may_receive THEN 'note' ELSE 'error' END,
     NOT f.may_send AND NOT f.delayed,
     format('login %s may not send to it', f.login),
     format('GRANT INSERT ON %s TO %s', f.named, f.login)
     || CASE WHEN f.sequence IS NULL THEN ''
             ELSE format(E';\nGRANT USAGE ON SEQUENCE %s TO %s', f.sequence, f.login) END)
    ) AS law (name, severity, broken, found, mend)
 WHERE law.broken

-- name: check_delayed
-- What is wrong with a table of delayed messages, from the catalogue alone; nothing where it is absent.
-- A login that may delete from it is to move what is due; who has no right there may do without.
-- Returns: as check_queue
WITH delayed AS (
    SELECT c.oid, c.relname, c.reloptions,
           quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS named,
           quote_ident(current_user) AS login,
           has_table_privilege(c.oid, 'DELETE') AS may_delete,
           has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'DELETE')
           AND has_any_column_privilege(c.oid, 'UPDATE') AS may_move,
           has_table_privilege(c.oid, 'INSERT') AS may_delay
      FROM parse_ident(:table_name::text) AS asked (name)
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = asked.name[1]
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = asked.name[2]
     WHERE c.relkind IN ('r', 'p')
), columns AS (
    SELECT a.attname AS name, a.attnum AS at
      FROM delayed AS d
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.oid
     WHERE a.attnum > 0 AND NOT a.attisdropped
)
SELECT 'delayed_column', 'error',
       format('column %s is missing: messages cannot be delayed or moved', wanted.name),
       format('ALTER TABLE %s ADD COLUMN %s %s', d.named, wanted.name, wanted.type)
  FROM delayed AS d
 CROSS JOIN (VALUES ('headers', 'text NOT NULL DEFAULT ''{}'''),
                    ('body', 'bytea'),
                    ('due', 'timestamptz NOT NULL DEFAULT now()')) AS wanted (name, type)
 WHERE NOT EXISTS (SELECT FROM columns AS c WHERE c.name = wanted.name)
UNION ALL
SELECT law.name, law.severity, law.found, law.mend
  FROM delayed AS d
 CROSS JOIN LATERAL (VALUES
    ('due_index', 'warning',
     EXISTS (SELECT FROM columns WHERE name = 'due')
     AND NOT EXISTS (SELECT
                       FROM pg_catalog.pg_index AS i
                       JOIN columns AS c ON c.at = i.indkey[0]
                      WHERE i.indrelid = d.oid AND i.indisvalid AND c.name = 'due'),
     'due has no index: every look for what is due reads the whole table',
     format('CREATE INDEX CONCURRENTLY %s ON %s (due)',
            CASE WHEN octet_length(d.relname) <= 59 THEN quote_ident(d.relname || '_Due') END,
            d.named)),
    ('delayed_autovacuum', 'error',
     EXISTS (SELECT
               FROM pg_options_to_table(d.reloptions) AS o
              WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean),
     'autovacuum is off for this table: what is moved leaves dead rows that slow it down',
     format('ALTER TABLE %s RESET (autovacuum_enabled)', d.named)),
    ('move_right', CASE WHEN d.may_delete THEN 'error' ELSE 'note' END,
     NOT d.may_move,
     format('login %s may not move what is due', d.login),
     format('GRANT SELECT, DELETE, UPDATE (due) ON %s TO %s', d.named, d.login)),
    ('delay_right', 'note',
     NOT d.may_delay,
     format('login %s may not delay messages', d.login),
     format('GRANT INSERT ON %s TO %s', d.named, d.login))
    ) AS law (name, severity, broken, found, mend)
 WHERE law.broken

-- name: check_server
-- What keeps dead rows in all queues of this database: no autovacuum, old transactions elsewhere.
-- One that has neither a snapshot nor a transaction id pins nothing.
-- Returns: as check_queue
SELECT 'server_autovacuum', 'error',
       'autovacuum is off on this server: what is received leaves dead rows that slow queues down',
       E'ALTER SYSTEM SET autovacuum = on;\nSELECT pg_reload_conf()'
 WHERE NOT current_setting('autovacuum')::boolean
UNION ALL
SELECT 'old_transaction', 'warning',
       format('session %s (%s, application %s) has had a transaction open for %s: it pins the rows '
              'received since, which slow queues down',
              pid, coalesce(state, 'unknown'), quote_literal(application_name),
              date_trunc('second', now() - xact_start)),
       format('SELECT pg_terminate_backend(%s)', pid)
  FROM pg_catalog.pg_stat_activity
 WHERE datname = current_database()
   AND backend_type = 'client backend'
   AND pid <> pg_backend_pid()
   AND xact_start < now() - make_interval(secs => :seconds::float8)
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
UNION ALL
SELECT 'sessions_right', 'note',
       format('login %s may not see how old the transactions of other logins are',
              quote_ident(current_user)),
       format('GRANT pg_read_all_stats TO %I', current_user)
 WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')

-- ---------------------------------------------------------------- rights, for a DBA's script

-- name: script_state_check
-- {faults} is the statement state_faults.
DO $do$
DECLARE
    faults text;
BEGIN
    SELECT string_agg(fault, '; ') INTO faults FROM ({faults}) AS state_faults;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed: %', faults
              USING HINT = 'Whoever owns a state table, or a trigger on it, can run code as those who'
                           ' use it. Find out who made this, drop or rename it, or use another schema.';
    END IF;
END
$do$

-- name: script_role
-- {literal} is the role's name as text, {role} quoted.
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END
$do$

-- name: script_owner
-- The state tables belong to a role that no login is a member of: nobody but a superuser can put code
-- or other columns into them.
-- Locks:   each state table exclusively, for a moment.
DO $do$
BEGIN
    IF EXISTS (SELECT
                 FROM pg_catalog.pg_roles
                WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
                  AND pg_has_role(oid, {literal}, 'MEMBER')) THEN
        RAISE EXCEPTION 'role % has a login as a member', {literal}
              USING HINT = 'Revoke that, or name another owner by --owner.';
    END IF;
END
$do$;
ALTER SCHEMA {state} OWNER TO {role};
ALTER TABLE {state}.version OWNER TO {role};
ALTER TABLE {state}.reader OWNER TO {role};
ALTER TABLE {state}.task OWNER TO {role};
ALTER TABLE {state}.receipt OWNER TO {role};
ALTER TABLE {state}.receipt_page OWNER TO {role};
ALTER TABLE {state}.outbox OWNER TO {role};
ALTER TABLE {state}.outbox_page OWNER TO {role};
ALTER TABLE {state}.dispatched OWNER TO {role}

-- name: script_reader
-- UPDATE of one column is what FOR UPDATE SKIP LOCKED needs.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, DELETE, UPDATE (seq) ON {queue} TO {role}

-- name: script_reader_state
-- UPDATE of one column is what a lock of a row needs; nobody may change whose a row is.
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, plan, messages, expired, diverted, forwarded,
              seen)
   ON {state}.reader TO {role};
GRANT SELECT, INSERT, UPDATE (task) ON {state}.task TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (settled) ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role}

-- name: script_sender
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_sender_state
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.outbox, {state}.outbox_page TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (batch, messages, dispatched) ON {state}.dispatched TO {role}

-- name: script_share
-- The members of a role share their rows: a stream may go on under another login of its role. What a
-- superuser made is not shared, who would count as a member of any role. Who the members are is asked
-- for another's row only.
-- {literal} is the role's name as text, {role} quoted.
-- Locks:   the whole table, for a moment.
DROP POLICY IF EXISTS {role} ON {table};
CREATE POLICY {role} ON {table} TO {role}
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, {literal}, 'USAGE'))))

-- name: script_all_rows
-- An operator sees and writes all rows.
-- Locks:   the whole table, for a moment.
DROP POLICY IF EXISTS {role} ON {table};
CREATE POLICY {role} ON {table} TO {role} USING (true)

-- name: script_mover
-- A reader that also moves what is due into its queue.
GRANT SELECT, DELETE, UPDATE (due) ON {delayed} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_delayer
GRANT INSERT ON {delayed} TO {role}

-- name: script_errors
-- SELECT (id): a poison row keeps its id where the error queue has none of it yet.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT, SELECT (id) ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_publisher
-- Who subscribes needs INSERT, UPDATE and DELETE too, and decides where events go.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscriber
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_creator
-- To create queues; each belongs to whoever makes it.
GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}
