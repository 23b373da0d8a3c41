-- name: fence
-- A task of a batch that was acknowledged must not receive.
-- The second column is the query's high-water mark, as it was when the plan was stored: the last batch
-- of Spark's query that one of its streams had received for. :query_id may be null.
-- Locks:   the stream's row FOR SHARE, until commit; acknowledge waits for the task.
-- Returns: acked_batch bigint, query_batch bigint or null; no row where the stream is not there
SELECT acked_batch, (plan_after::json ->> :query_id::text)::bigint AS query_batch
  FROM {state}.stream
 WHERE stream = :stream::text
   FOR SHARE

-- name: find_receipt
-- Returns: payload bytea; empty where it is in pages; messages, unpacked (bytes) bigint; query_id text,
--          query_batch bigint, or null
SELECT payload, messages, unpacked, query_id, query_batch
  FROM {state}.receipt
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint

-- name: receipt_pages
-- Returns: payload bytea, in order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint
 ORDER BY page

-- name: receive_range
-- Deletes the messages of a range that no other session needs: all of them, if they are no more than a
-- count and a size and none is larger than :largest; otherwise none. It locks no row before it deletes
-- it, which saves a fifth of the server's work. Both passes have one snapshot, so the limits are exact.
-- Locks:   a row lock for each row it deletes, until commit. Waits 1 ms for each row that another
--          session holds, and gives up at the first one that stays held; `receive` takes the others.
-- Index:   the unique index on seq.
-- Returns: as receive; no order promised
DELETE FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < (SELECT CASE WHEN count(*) <= :messages::bigint
                               AND sum(bytes) <= :bytes::bigint
                               AND max(bytes) <= :largest::bigint
                          THEN :stop::bigint END
                FROM (SELECT coalesce(octet_length(headers), 0)::bigint
                             + coalesce(octet_length(body), 0) AS bytes
                        FROM {queue}
                       WHERE seq >= :first::bigint
                         AND seq < :stop::bigint
                       LIMIT :messages::bigint + 1) AS weighed)
RETURNING id,
          expires,
          coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
          headers,
          body,
          seq::bigint AS seq

-- name: receive
-- Deletes the lowest messages of a range that no other session holds, up to a count and a size; at
-- least one of any size, but none larger than :largest.
-- The size of a toasted value is read without the value.
-- The window gets the rows as they are locked, by seq; sorting them again costs 4 %. In another order
-- a step of large messages would leave some of them for the next batch.
-- Locks:   a row lock for each row it reads, until commit. Never waits.
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

-- name: take
-- Deletes given messages that no other session holds; :seqs is a list.
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
-- Sets how long the transaction waits for a destination that others lock, from here to its end.
-- Returns: one row
SELECT set_config('lock_timeout', :milliseconds, true)

-- name: lock_destination
-- Keeps the code that an INSERT runs as it is: until commit no trigger, rule, default or policy can be
-- added, and the table cannot be renamed or replaced. The right to INSERT is enough.
-- Locks:   the table, as an INSERT does, until commit.
LOCK TABLE {queue} IN ROW EXCLUSIVE MODE

-- name: destinations
-- For tables that messages are to go to: whether they are queues, and their owners. It casts no name to
-- a table, because the cast fails without USAGE on the schema. It prints no expression, because that
-- waits for the table's lock. Trusted are this login, superusers, and the owner of the queue that is
-- read, if any.
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
       AND NOT (c.relhastriggers OR c.relhasrules OR c.relrowsecurity OR c.relhassubclass)
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
-- The first code that an INSERT into a table would run for an owner that is not trusted. It runs only
-- for the few tables that are not plain.
-- A table of another owner must run no code at all: its expressions may use only immutable functions of
-- pg_catalog and a few that read a clock or a sequence. The code of a trusted owner's table must call
-- only trusted code. Tables that inherit from it count too, because a DELETE reaches them.
-- :places are identities.
-- Returns: identity bigint, code text with its owner; no row where all code is trusted
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
      JOIN pg_catalog.pg_inherits AS i ON i.inhparent = t.oid
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
-- Whether tables are still those that this transaction locked by their names. It runs where the owner
-- of a schema is not trusted and may rename it. If another schema gets the name, the transaction holds
-- a lock on a second table of the same name. :places are identities.
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
-- The lowest messages of a range that are larger than a limit and that no other session holds. It runs
-- only where the sample had such sizes and the task got less than was planned.
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

-- name: divert_large
-- Moves given messages to the error queue, unchanged, without the client, which could not hold them;
-- the server sends no row of 1 GB. Drops expired ones. :seqs is a JSON array.
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
-- The key is the lock of an attempt: of two attempts of one task, the second fails (23505), starts again
-- and then finds the first one's receipt.
-- Locks:   the row it writes, until commit; waits for another attempt that has written it.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, query_batch, unpacked, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, :queue_name::text, :messages::bigint,
        :expired::bigint, :diverted::bigint, :forwarded::bigint, :bytes::bigint,
        :query_id::text, :query_batch::bigint, :unpacked::bigint, :payload::bytea)
