-- name: install_lock
-- The second of two installers waits for the first.
-- Locks: advisory, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sqlq_spark install ' || :state_name::text, 0))

-- name: state_faults
-- Finds what this login, or :owner, does not own in the state schema: the owner of a table or of its
-- trigger decides what code runs when a row is written. Reads only the catalogue, because a table may be
-- a view that runs code when it is read.
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
     WHERE c.relname IN ('version', 'stream', 'task', 'receipt', 'receipt_page', 'staging',
                         'staging_page', 'dispatch_log', 'trail')
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

-- name: install_done
-- Finds what is in place already. A second run leaves it out, because a statement that changes nothing
-- would lock its table too.
-- Locks nothing but the catalogue.
-- Returns: part text (the name of a statement), of_table text, role text (empty)
WITH tables AS (
    SELECT c.oid, c.relname::text AS name
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = :state_name::text AND c.relkind = 'r'
)
SELECT 'install_' || t.name || '_storage' AS part, t.name AS of_table, '' AS role
  FROM tables AS t
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.oid AND a.attname = 'payload'
 WHERE a.attstorage = CASE WHEN t.name LIKE '%page' THEN 'p' ELSE 'e' END
UNION ALL
SELECT 'install_' || i.relname::text, t.name, ''
  FROM tables AS t
  JOIN pg_catalog.pg_index AS x ON x.indrelid = t.oid
  JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid

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
-- The statements before have updated older state tables.
DELETE FROM {state}.version WHERE version < :version::integer

-- name: install_stream
-- One row for each checkpoint. A row is updated twice in a batch; free space in its page keeps these
-- updates HOT. `login` made the row. `query_id` and `query_batch` are Spark's names for the last
-- acknowledged batch. The plan may only be used for batches above those in `plan_after`.
CREATE TABLE IF NOT EXISTS {state}.stream (
    stream      varchar(36) NOT NULL PRIMARY KEY,
    login       name        NOT NULL DEFAULT current_user,
    queue       text        NOT NULL,
    driver      varchar(36) NOT NULL,
    acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
    plan_batch  bigint      CHECK (plan_batch > acked_batch),
    plan        text        CHECK ((plan IS NULL) = (plan_batch IS NULL)),
    plan_after  text,
    query_id    varchar(36),
    query_batch bigint      CHECK ((query_id IS NULL) = (query_batch IS NULL)),
    messages    bigint      NOT NULL DEFAULT 0,
    expired     bigint      NOT NULL DEFAULT 0,
    diverted    bigint      NOT NULL DEFAULT 0,
    forwarded   bigint      NOT NULL DEFAULT 0,
    created     timestamptz NOT NULL DEFAULT now(),
    seen        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_stream_query
-- The streams of a query. No update of a row changes its key, except the first acknowledgement.
CREATE INDEX IF NOT EXISTS stream_query ON {state}.stream (query_id)

-- name: install_task
-- A row for each task number of a stream. An attempt of the task locks it.
CREATE TABLE IF NOT EXISTS {state}.task (
    stream varchar(36) NOT NULL,
    task   integer     NOT NULL CHECK (task >= 0),
    PRIMARY KEY (stream, task)
)

-- name: install_receipt
-- What one task received from a queue, in one commit with the delete. It is written once, read only by
-- a replay, and deleted when its batch is acknowledged.
CREATE TABLE IF NOT EXISTS {state}.receipt (
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
    query_batch bigint,
    settled     boolean     NOT NULL DEFAULT false,
    unpacked    bigint      NOT NULL CHECK (unpacked >= 0),
    payload     bytea       NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, batch, task)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt_query
CREATE INDEX IF NOT EXISTS receipt_query ON {state}.receipt (query_id, query_batch)

-- name: install_receipt_storage
-- The payload is compressed already, so the server must not try again.
ALTER TABLE {state}.receipt ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_receipt_page
-- The payload of a large receipt, cut so that a row fills a page.
CREATE TABLE IF NOT EXISTS {state}.receipt_page (
    stream  varchar(36) NOT NULL,
    batch   bigint      NOT NULL,
    task    integer     NOT NULL,
    page    integer     NOT NULL,
    payload bytea       NOT NULL,
    PRIMARY KEY (stream, batch, task, page)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_receipt_page_storage
ALTER TABLE {state}.receipt_page ALTER COLUMN payload SET STORAGE PLAIN

-- name: install_staging
-- Messages staged by the tasks of a sink, until the driver dispatches or discards them.
CREATE TABLE IF NOT EXISTS {state}.staging (
    sink     varchar(200) NOT NULL,
    batch    bigint       NOT NULL,
    attempt  varchar(36)  NOT NULL,
    chunk   integer      NOT NULL,
    messages bigint       NOT NULL CHECK (messages > 0),
    payload  bytea        NOT NULL,
    created  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, batch, attempt, chunk)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_staging_storage
ALTER TABLE {state}.staging ALTER COLUMN payload SET STORAGE EXTERNAL

-- name: install_staging_page
-- The payload of a large chunk, cut so that a row fills a page.
CREATE TABLE IF NOT EXISTS {state}.staging_page (
    sink    varchar(200) NOT NULL,
    batch   bigint       NOT NULL,
    attempt varchar(36)  NOT NULL,
    chunk  integer      NOT NULL,
    page    integer      NOT NULL,
    payload bytea        NOT NULL,
    PRIMARY KEY (sink, batch, attempt, chunk, page)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_staging_page_storage
ALTER TABLE {state}.staging_page ALTER COLUMN payload SET STORAGE PLAIN

-- name: install_dispatch_log
-- The dispatch log: the last batch that each sink has sent; null where it has sent none.
CREATE TABLE IF NOT EXISTS {state}.dispatch_log (
    sink       varchar(200) NOT NULL PRIMARY KEY,
    login      name         NOT NULL DEFAULT current_user,
    batch      bigint,
    messages   bigint       NOT NULL DEFAULT 0,
    dispatched timestamptz  NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0)

-- name: install_trail
-- The audit trail: who purged, returned, dropped or retired what. A login only inserts, and the server
-- writes the time and the logins. `session_login` is the one that connected, before SET ROLE.
CREATE TABLE IF NOT EXISTS {state}.trail (
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
)

-- name: version
-- Returns: version integer
SELECT version FROM {state}.version

-- name: create_queue
-- As the transport creates it.
CREATE TABLE IF NOT EXISTS {queue} (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
)

-- name: add_body_string
-- A column with the body as text, as the transport's CreateMessageBodyComputedColumn adds it.
-- Locks:   the whole table, while every row is rewritten.
ALTER TABLE {queue}
  ADD COLUMN IF NOT EXISTS BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED

-- name: create_subscriptions
-- As the transport creates it.
CREATE TABLE IF NOT EXISTS {subscriptions} (
    QueueAddress varchar(200) NOT NULL,
    Endpoint     varchar(200) NOT NULL,
    Topic        varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
) WITH (fillfactor = 100)

-- name: create_delayed
-- The table where messages wait until they are due, as the transport creates it.
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

-- name: lock_queue
-- For a queue, or a table of delayed messages, that is to be dropped. What was sent to it is counted
-- after this, and nothing more can be sent.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
LOCK TABLE {queue} IN ACCESS EXCLUSIVE MODE

-- name: drop_queue
-- After lock_queue. Who waits for the table then fails, because it is gone.
-- Locks:   the whole table, until commit.
DROP TABLE {queue}
