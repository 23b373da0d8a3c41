-- part: autovacuum
-- The autovacuum settings of table c; other statements contain this part. `off` says whether autovacuum
-- is off for the table or for its large values. `threshold` and `scale` say when it begins. If one is
-- null, the server's setting holds.
SELECT bool_or(o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean) AS off,
       max(o.option_value::float8) FILTER (
           WHERE o.option_name = 'autovacuum_vacuum_threshold' AND t.oid = c.oid) AS threshold,
       max(o.option_value::float8) FILTER (
           WHERE o.option_name = 'autovacuum_vacuum_scale_factor' AND t.oid = c.oid) AS scale
  FROM pg_catalog.pg_class AS t
 CROSS JOIN LATERAL pg_options_to_table(t.reloptions) AS o
 WHERE t.oid IN (c.oid, c.reltoastrelid)

-- part: asked_table
-- The table that a check is asked about, and its columns; other statements contain this part.
asked AS (
    SELECT c.*, n.nspname, c.relpersistence = 'u' AS unlogged,
           c.relkind <> 'r' OR EXISTS (
               SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid) AS divided,
           quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS named,
           quote_ident(current_user) AS login,
           has_table_privilege(c.oid, 'SELECT')
           AND has_table_privilege(c.oid, 'DELETE')
           AND has_any_column_privilege(c.oid, 'UPDATE') AS may_receive,
           v.off,
           coalesce(v.threshold, current_setting('autovacuum_vacuum_threshold')::float8) AS threshold,
           coalesce(v.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) AS scale
      FROM parse_ident(:table_name::text) AS asked (name)
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = asked.name[1]
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = asked.name[2]
     CROSS JOIN LATERAL (
            {autovacuum}) AS v
), columns AS (
    SELECT a.attname AS name, a.attnum AS at, a.attidentity <> '' AS is_identity,
           coalesce(nullif(y.typbasetype, 0), y.oid) AS kind, format_type(a.atttypid, a.atttypmod) AS type
      FROM asked AS q
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = q.oid
      JOIN pg_catalog.pg_type AS y ON y.oid = a.atttypid
     WHERE a.attnum > 0 AND NOT a.attisdropped
)

-- part: changed_type
-- The statement that gives a column of table f the right type; other statements contain this part. c is
-- the column, k is its row of queue_types.
format('ALTER TABLE %s ALTER COLUMN %s TYPE %s USING %s', f.named, c.name,
       replace(k.wanted, 'integer or ', ''),
       format(CASE WHEN c.name = 'id' AND c.kind = 'bytea'::regtype THEN 'encode(%1$s, ''hex'')::uuid'
                   WHEN c.name = 'expires' AND c.kind = 'timestamptz'::regtype
                   THEN '%1$s AT TIME ZONE ''UTC'''
                   WHEN c.name = 'body' THEN 'convert_to(%1$s::text, ''UTF8'')'
                   ELSE '%1$s::%2$s' END,
              c.name, replace(k.wanted, 'integer or ', '')))

-- name: check_rows
-- Reads facts of the messages with the lowest seqs: how long they live, and how large their headers are.
-- Also reads the highest seq. It locks nothing, and reads only the beginning of the headers.
-- Index:   the unique index on seq.
-- Returns: one row for each of the lowest 50 messages that expires, or one row if none of them expires.
--          last bigint: the highest seq, null if the queue is empty. expires timestamp: when the message
--          expires, null for infinity. sent, lives text: its headers TimeSent and TimeToBeReceived, null
--          if absent. seq, bytes bigint: the message with the largest headers of the lowest 50, and the
--          size of these headers. Both are the same in each row
SELECT top.last, lowest.expires, lowest.sent, lowest.lives, heaviest.seq, heaviest.bytes
  FROM (SELECT max(seq)::bigint AS last FROM {queue}) AS top
  LEFT JOIN (SELECT seq::bigint AS seq, octet_length(headers)::bigint AS bytes
               FROM (SELECT seq, headers FROM {queue} ORDER BY seq LIMIT 50) AS first_rows
              ORDER BY octet_length(headers) DESC NULLS LAST
              LIMIT 1) AS heaviest ON true
  LEFT JOIN (SELECT {readable_expiry} AS expires,
                    substring(left(headers, 16384)
                              FROM '"NServiceBus.TimeSent":"([^"]{1,40})"') AS sent,
                    substring(left(headers, 16384)
                              FROM '"NServiceBus.TimeToBeReceived":"([^"]{1,40})"') AS lives
               FROM (SELECT expires, headers FROM {queue} ORDER BY seq LIMIT 50) AS first_rows
              WHERE expires IS NOT NULL) AS lowest ON true

-- name: check_owner
-- Counts, among the 100 messages with the lowest seqs, those that only the queue's own endpoint can
-- handle. Copies in an audit queue and failed messages in an error queue do not count. It locks nothing.
-- It reads only the beginning of the headers, as text, so headers that are not JSON do not matter.
-- Index:   the unique index on seq.
-- Returns: messages bigint: the number of saga timeouts, messages for a saga and control messages
SELECT count(*) AS messages
  FROM (SELECT left(headers, 16384) AS text FROM {queue} ORDER BY seq LIMIT 100) AS lowest
 WHERE text ~ '"NServiceBus\.(IsSagaTimeoutMessage|SagaId|ControlMessage)":'
   AND text !~ '"NServiceBus\.(ProcessingEnded|FailedQ|ExceptionInfo\.ExceptionType)":'

-- name: check_queue
-- Finds what is wrong with a queue's table. It reads only the catalogue, which any login may read. :last
-- is the highest seq, or null if it is not known. :expiring says whether messages expire.
-- Returns: name, severity (error, warning, note), found, fix; text; a row for each finding
WITH {asked_table}, queue AS (
    SELECT c.*,
           c.relpages * current_setting('block_size')::bigint >> 20 AS mebibytes,
           pg_stat_get_live_tuples(c.oid) AS live, pg_stat_get_dead_tuples(c.oid) AS dead,
           greatest(pg_stat_get_last_vacuum_time(c.oid),
                    pg_stat_get_last_autovacuum_time(c.oid)) AS cleaned
      FROM asked AS c
     WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
), indexes AS (
    SELECT c.name AS first_column,
           i.indpred IS NULL AS serves,
           i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AS orders,
           x.relname = ('idx_' || q.relname || '_seq')::name AS of_wolverine
      FROM queue AS q
      JOIN pg_catalog.pg_index AS i ON i.indrelid = q.oid
      JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
      JOIN columns AS c ON c.at = i.indkey[0]
     WHERE i.indisvalid
), invalid AS (
    -- A build that runs has not yet finished its index. Other logins' builds do not show their table.
    SELECT string_agg(i.indexrelid::regclass::text, ', ' ORDER BY i.indexrelid) AS named,
           string_agg(format('DROP INDEX CONCURRENTLY %s', i.indexrelid::regclass), E';\n'
                      ORDER BY i.indexrelid) AS drops
      FROM queue AS q
      JOIN pg_catalog.pg_index AS i ON i.indrelid IN (q.oid, q.reltoastrelid)
     WHERE NOT i.indisvalid
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index AS b
                        WHERE b.datname = current_database()
                          AND coalesce(b.relid, i.indrelid) = i.indrelid)
), seq AS (
    SELECT s.seqrelid::regclass::text AS sequence, s.seqmax, s.seqincrement > 0 AS rises,
           has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') AS is_seen,
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
), pins AS (
    SELECT age(coalesce(backend_xmin, backend_xid)) AS age,
           format('session %s (%s, application %s)', pid, coalesce(state, 'unknown'),
                  quote_literal(application_name)) AS pin,
           format('SELECT pg_terminate_backend(%s)', pid) AS unpin
      FROM pg_catalog.pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
       AND xact_start < now() - interval '1 minute'
     UNION ALL
    SELECT age(transaction), format('prepared transaction %s', quote_literal(gid)),
           format('ROLLBACK PREPARED %s', quote_literal(gid))
      FROM pg_catalog.pg_prepared_xacts
     WHERE database = current_database() AND prepared < now() - interval '1 minute'
     UNION ALL
    SELECT age(xmin), format('replication slot %s', quote_ident(slot_name)),
           format('SELECT pg_drop_replication_slot(%s)', quote_literal(slot_name))
      FROM pg_catalog.pg_replication_slots
     WHERE xmin IS NOT NULL AND NOT active
), facts AS (
    SELECT q.*, p.pin, p.unpin, s.sequence,
           least(s.highest, s.seqmax) AS highest,
           -- If this login cannot see the sequence, the highest seq of a row is taken instead. A row
           -- may have a seq that its sequence never gave.
           CASE WHEN s.is_seen THEN s.given ELSE :last::bigint END AS used,
           s.is_seen AND s.rises AND :last::bigint > coalesce(s.given, 0) AS is_behind,
           coalesce(s.given, 0) AS given,
           :last::bigint >= 0.8 * least(s.highest, s.seqmax) AS is_far,
           (SELECT c.type FROM columns AS c WHERE c.name = 'headers') AS headers,
           EXISTS (SELECT FROM columns WHERE name = 'seq') AS has_seq,
           EXISTS (SELECT FROM indexes WHERE first_column = 'seq' AND serves) AS is_served,
           EXISTS (SELECT FROM indexes WHERE first_column = 'seq' AND orders) AS is_unique,
           EXISTS (SELECT FROM indexes WHERE first_column = 'seq' AND of_wolverine) AS of_wolverine,
           EXISTS (SELECT FROM columns WHERE name = 'due')
           AND NOT EXISTS (SELECT FROM columns WHERE name = 'seq') AS delayed,
           has_schema_privilege(q.relnamespace, 'USAGE') AS may_enter,
           (SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC'
                                       ELSE quote_ident(pg_get_userbyid(a.grantee)) END, ', ')
              FROM aclexplode(q.relacl) AS a
             WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES')
               AND a.grantee <> q.relowner) AS adders,
           has_table_privilege(q.oid, 'INSERT') AND coalesce(s.may_use, true) AS may_send,
           v.named AS invalid, v.drops
      FROM queue AS q
     CROSS JOIN invalid AS v
      LEFT JOIN seq AS s ON true
      LEFT JOIN (SELECT pin, unpin FROM pins WHERE age IS NOT NULL ORDER BY age DESC LIMIT 1) AS p
        ON q.dead >= 10000
)
SELECT 'column' AS name, 'error' AS severity,
       format('column %s is missing: the transport and this source name it', wanted.name) AS found,
       CASE WHEN near.name IS NULL
            THEN format('ALTER TABLE %s ADD COLUMN %s %s', f.named, wanted.name, wanted.type)
            ELSE format('ALTER TABLE %s RENAME COLUMN %I TO %s', f.named, near.name, wanted.name)
       END AS fix
  FROM facts AS f
 CROSS JOIN (VALUES ('id', 'uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY'),
                    ('expires', 'timestamp'),
                    ('headers', 'text NOT NULL DEFAULT ''{}'''),
                    ('body', 'bytea'),
                    ('seq', 'serial NOT NULL UNIQUE')) AS wanted (name, type)
  LEFT JOIN columns AS near ON lower(near.name) = wanted.name
 WHERE near.name IS DISTINCT FROM wanted.name AND NOT f.delayed
UNION ALL
SELECT 'column_type', 'error',
       format('column %s is %s: expected %s', c.name, c.type, k.wanted),
       {changed_type}
  FROM facts AS f
 CROSS JOIN columns AS c
  JOIN ({queue_types}) AS k ON k.name = c.name
 WHERE c.kind <> ALL (k.kinds) AND k.name <> 'due' AND NOT f.delayed
UNION ALL
SELECT law.name, law.severity, law.found, law.fix
  FROM facts AS f
 CROSS JOIN LATERAL (VALUES
    ('delayed_table', 'error',
     f.delayed,
     'a table of delayed messages, and no queue',
     'name its queue; `sqlqueue move-due` moves what is due into that'),
    ('table_kind', 'error',
     f.divided,
     format('it is %s: what is received could be lost, or come twice',
            CASE f.relkind WHEN 'f' THEN 'a foreign table' WHEN 'v' THEN 'a view'
                        WHEN 'm' THEN 'a materialized view'
                        ELSE 'a table of several partitions or descendants' END),
     'name the queue''s own table, in the database that holds it; it must be one plain table'),
    ('row_security', 'error',
     row_security_active(f.oid),
     format('row security is on for login %s: nothing can be sent, and what a policy hides is not '
            'received', f.login),
     format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', f.named)),
    -- the transport creates no such index, and a small table is read quickly without it
    ('expires_index', CASE WHEN f.mebibytes < 64 THEN 'note' ELSE 'warning' END,
     :expiring::boolean AND NOT EXISTS (SELECT FROM indexes WHERE first_column = 'expires'),
     'messages expire, and no index on expires finds them: a purge reads the whole table',
     format('CREATE INDEX CONCURRENTLY ON %s (expires) WHERE expires IS NOT NULL', f.named)),
    ('headers_type', 'error',
     f.headers LIKE 'character varying(%',
     format('column headers is %s: headers are cut, changed or refused', f.headers),
     format('ALTER TABLE %s ALTER COLUMN headers TYPE text USING headers::text', f.named)),
    ('seq_index', 'error',
     f.has_seq AND NOT f.is_served,
     'seq has no index: every receive and every peek reads the whole table',
     format('CREATE UNIQUE INDEX CONCURRENTLY ON %s (seq)', f.named)),
    ('invalid_index', 'warning',
     f.invalid IS NOT NULL,
     format('a CREATE INDEX or REINDEX that failed left %s: no statement uses it, and an INSERT may '
            'still write it', f.invalid),
     f.drops),
    ('seq_repeats', CASE WHEN f.of_wolverine THEN 'note' ELSE 'warning' END,
     f.is_served AND NOT f.is_unique,
     'seq may repeat, because its index is not unique; the index serves receives and looks'
     || CASE WHEN f.of_wolverine
             THEN '. Wolverine owns this table, and drops other indexes at each of its starts'
             ELSE '' END,
     CASE WHEN f.of_wolverine
          THEN 'none is needed: each message is received once, whatever its seq is'
          ELSE format('CREATE UNIQUE INDEX CONCURRENTLY ON %s (seq)', f.named) END),
    -- this happens if rows were copied with their seqs, or if the sequence was set back
    ('sequence_behind', CASE WHEN f.is_far THEN 'warning' ELSE 'error' END,
     f.is_behind,
     format('the highest seq is %s, but the sequence has given no more than %s: %s',
            :last::bigint, f.given,
            CASE WHEN f.is_unique THEN 'a send fails (23505) where it meets a seq that is taken'
                 ELSE 'seq repeats where the sequence meets one that is taken' END),
     CASE WHEN f.is_far
          THEN format('SELECT id, expires, seq FROM %s WHERE seq = %s', f.named, :last::bigint)
          ELSE format('SELECT setval(%L, %s)', f.sequence, :last::bigint) END),
    ('seq_end', 'warning',
     f.used >= 0.8 * f.highest,
     format('%s%% of the seqs are used up (%s of %s): at the end every INSERT fails',
            trunc(100.0 * f.used / f.highest), f.used, f.highest),
     format(E'ALTER TABLE %s ALTER COLUMN seq TYPE bigint;\nALTER SEQUENCE %s AS bigint',
            f.named, f.sequence)),
    ('long_name', 'error',
     octet_length(f.relname) > 55,
     format('the name has %s bytes, but the transport allows at most 55', octet_length(f.relname)),
     format('ALTER TABLE %s RENAME TO %I', f.named,
            (SELECT max(left(f.relname, size)::text)
               FROM generate_series(1, length(f.relname)) AS size
              WHERE octet_length(left(f.relname, size)) <= 55))),
    ('autovacuum', 'error',
     f.off,
     'autovacuum is off for this table: what is received leaves dead rows that slow it down',
     format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', f.named)),
    ('late_autovacuum', 'warning',
     f.threshold > 100000 OR f.scale > 1,
     format('autovacuum waits for %s dead rows and %s times the live rows: until then they slow it '
            'down', f.threshold, f.scale),
     format('ALTER TABLE %s SET (autovacuum_vacuum_threshold = 1000, '
            'autovacuum_vacuum_scale_factor = 0.01)', f.named)),
    -- A queue that was just emptied also has many dead rows, until autovacuum runs, at most a minute later.
    ('dead_rows', 'warning',
     f.dead >= 10000 AND f.dead > 4 * f.live
     AND (f.cleaned IS NULL OR f.cleaned < now() - interval '10 minutes' OR f.pin IS NOT NULL),
     format('%s of %s rows are dead, last vacuum %s: each receive and each look reads them%s',
            f.dead, f.dead + f.live, coalesce(date_trunc('second', f.cleaned)::text, 'never'),
            '. Pinned by ' || f.pin),
     concat_ws(E';\n', f.unpin, format('VACUUM (ANALYZE) %s', f.named))),
    ('unlogged', 'error',
     f.unlogged,
     'it is UNLOGGED: a crash of the server or a failover deletes all messages',
     format('ALTER TABLE %s SET LOGGED', f.named)),
    ('schema_right', 'error',
     NOT f.may_enter,
     format('login %s may not enter schema %I', f.login, f.nspname),
     format('GRANT USAGE ON SCHEMA %I TO %s', f.nspname, f.login)),
    ('receive_right', CASE WHEN f.may_send THEN 'note' ELSE 'error' END,
     NOT f.may_receive AND NOT f.delayed,
     format('login %s may not receive from it', f.login),
     format('GRANT SELECT, DELETE, UPDATE (seq) ON %s TO %s', f.named, f.login)),
    ('trigger_right', 'note',
     f.adders IS NOT NULL,
     format('%s may add a trigger or a foreign key, and then it is no longer used', f.adders),
     format('REVOKE TRIGGER, REFERENCES ON %s FROM %s', f.named, f.adders)),
    ('send_right', CASE WHEN f.may_receive THEN 'note' ELSE 'error' END,
     NOT f.may_send AND NOT f.delayed,
     format('login %s may not send to it', f.login),
     format('GRANT INSERT ON %s TO %s', f.named, f.login)
     || CASE WHEN f.sequence IS NULL THEN ''
             ELSE format(E';\nGRANT USAGE ON SEQUENCE %s TO %s', f.sequence, f.login) END)
    ) AS law (name, severity, broken, found, fix)
 WHERE law.broken

-- name: check_delayed
-- Finds what is wrong with a table of delayed messages. If the table is absent, it finds nothing. It
-- reads only the catalogue. If the login may delete from the table, it is to move due messages, and each
-- right that it lacks for that is a finding. If the login has no right on the table, it probably does not
-- use the table, and missing rights are no findings.
-- Returns: the columns of check_queue
WITH {asked_table}, delayed AS (
    SELECT c.*,
           quote_ident(c.nspname) || '.' || quote_ident(left(c.relname, -8)) AS queue_named,
           (SELECT max(left(c.relname, size)::text)
              FROM generate_series(1, length(c.relname) - 8) AS size
             WHERE octet_length(left(c.relname, size)) <= 47) AS short,
           has_table_privilege(c.oid, 'DELETE') AS may_delete,
           has_table_privilege(c.oid, 'INSERT') AS may_delay
      FROM asked AS c
     WHERE c.relkind IN ('r', 'p')
)
SELECT 'delayed_column' AS name, 'error' AS severity,
       format('column %s is missing: messages cannot be delayed or moved', wanted.name) AS found,
       format('ALTER TABLE %s ADD COLUMN %s %s', d.named, wanted.name, wanted.type) AS fix
  FROM delayed AS d
 CROSS JOIN (VALUES ('headers', 'text NOT NULL DEFAULT ''{}'''),
                    ('body', 'bytea'),
                    ('due', 'timestamptz NOT NULL DEFAULT now()')) AS wanted (name, type)
 WHERE NOT EXISTS (SELECT FROM columns AS c WHERE c.name = wanted.name)
UNION ALL
SELECT 'delayed_type', 'error',
       format('column %s is %s: expected %s', c.name, c.type, k.wanted),
       {changed_type}
  FROM delayed AS f
 CROSS JOIN columns AS c
  JOIN ({queue_types}) AS k ON k.name = c.name
 WHERE c.kind <> ALL (k.kinds) AND k.name IN ('headers', 'body', 'due')
UNION ALL
SELECT law.name, law.severity, law.found, law.fix
  FROM delayed AS d
 CROSS JOIN LATERAL (VALUES
    ('table_kind', 'error',
     d.divided,
     'it is a table of several partitions or descendants: their messages are never moved',
     'make it one plain table'),
    ('due_index', 'warning',
     EXISTS (SELECT FROM columns WHERE name = 'due')
     AND NOT EXISTS (SELECT
                       FROM pg_catalog.pg_index AS i
                       JOIN columns AS c ON c.at = i.indkey[0]
                      WHERE i.indrelid = d.oid AND i.indisvalid AND i.indpred IS NULL AND c.name = 'due'),
     'due has no index: every look for what is due reads the whole table',
     format('CREATE INDEX CONCURRENTLY %s ON %s (due)',
            CASE WHEN octet_length(d.relname) <= 59 THEN quote_ident(d.relname || '_Due') END,
            d.named)),
    ('delayed_long_name', 'warning',
     octet_length(d.relname) > 55,
     format('the name has %s bytes, but the transport allows at most 55: the installer of a .NET '
            'endpoint refuses it. A queue with delayed messages may have a name of 47 bytes',
            octet_length(d.relname)),
     format(E'ALTER TABLE %s RENAME TO %I;\nALTER TABLE %s RENAME TO %I',
            d.named, d.short || '.Delayed', d.queue_named, d.short)),
    ('delayed_autovacuum', 'error',
     d.off,
     'autovacuum is off for this table: what is moved leaves dead rows that slow it down',
     format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', d.named)),
    ('delayed_unlogged', 'error',
     d.unlogged,
     'it is UNLOGGED: a crash of the server or a failover deletes all delayed messages',
     format('ALTER TABLE %s SET LOGGED', d.named)),
    ('move_right', CASE WHEN d.may_delete THEN 'error' ELSE 'note' END,
     NOT d.may_receive,
     format('login %s may not move what is due', d.login),
     format('GRANT SELECT, DELETE, UPDATE (due) ON %s TO %s', d.named, d.login)),
    ('delay_right', 'note',
     NOT d.may_delay,
     format('login %s may not delay messages', d.login),
     format('GRANT INSERT ON %s TO %s', d.named, d.login))
    ) AS law (name, severity, broken, found, fix)
 WHERE law.broken

-- name: check_server
-- Finds what keeps dead rows in all queues of this database: autovacuum that is off, old transactions,
-- prepared transactions, and replication slots that no client uses. A transaction with neither a snapshot
-- nor a transaction id is left out, because it keeps no dead rows. Before version 17 the server does not
-- say since when a slot is unused. Then every unused slot is a finding. It also finds a
-- transaction_timeout of this login that is shorter than :query_timeout. Other time limits of the login
-- are not checked, because `begin` sets them.
-- Returns: the columns of check_queue
SELECT 'server_autovacuum' AS name, 'error' AS severity,
       'autovacuum is off on this server: what is received leaves dead rows that slow queues down'
           AS found,
       E'ALTER SYSTEM SET autovacuum = on;\nSELECT pg_reload_conf()' AS fix
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
SELECT 'prepared_transaction', 'warning',
       format('transaction %s of login %s was prepared %s ago and is not finished: it keeps its locks, '
              'and pins the rows received since. If its transaction manager has committed it, run '
              'COMMIT PREPARED instead',
              quote_literal(gid), quote_ident(owner), date_trunc('second', now() - prepared)),
       format('ROLLBACK PREPARED %s', quote_literal(gid))
  FROM pg_catalog.pg_prepared_xacts
 WHERE database = current_database()
   AND prepared < now() - make_interval(secs => :seconds::float8)
UNION ALL
SELECT 'replication_slot', 'warning',
       format('no client uses replication slot %s%s: it %s. If its client comes back, start that '
              'instead',
              quote_ident(slot_name),
              ', since ' || date_trunc('second', since AT TIME ZONE 'UTC') || ' UTC',
              concat_ws(' and ',
                        CASE WHEN xmin IS NOT NULL THEN 'pins the rows received since' END,
                        CASE WHEN catalog_xmin IS NOT NULL THEN 'pins rows of the catalogue' END,
                        CASE WHEN restart_lsn IS NOT NULL THEN 'keeps the WAL since' END)),
       format('SELECT pg_drop_replication_slot(%s)', quote_literal(slot_name))
  FROM pg_catalog.pg_replication_slots AS s
 CROSS JOIN LATERAL (SELECT (to_jsonb(s) ->> 'inactive_since')::timestamptz AS since) AS its
 WHERE NOT active
   AND NOT temporary
   AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL OR restart_lsn IS NOT NULL)
   AND coalesce(since, '-infinity') < now() - make_interval(secs => :seconds::float8)
UNION ALL
SELECT 'transaction_limit', 'warning',
       format('login %s has transaction_timeout = %s, but a statement may take %s s (queryTimeout): a longer '
              'transaction of a stream or a write is ended, and fails again at each start',
              quote_ident(current_user), current_setting('transaction_timeout', true), :query_timeout::float8),
       format('ALTER ROLE %I IN DATABASE %I SET transaction_timeout = 0', current_user, current_database())
  FROM (SELECT current_setting('transaction_timeout', true)::interval AS longest) AS its
 WHERE its.longest > interval '0' AND its.longest < make_interval(secs => :query_timeout::float8)
UNION ALL
SELECT 'sessions_right', 'note',
       format('login %s may not see how old the transactions of other logins are',
              quote_ident(current_user)),
       format('GRANT pg_read_all_stats TO %I', current_user)
 WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')

-- name: check_state
-- Finds what is wrong with the settings of the state tables. It reads only the catalogue.
-- Returns: the columns of check_queue
SELECT law.name, law.severity, law.found, law.fix
  FROM (SELECT format('%I.%I', n.nspname, c.relname) AS named,
               c.relpersistence = 'u' AS unlogged, v.off, v.threshold
          FROM pg_catalog.pg_class AS c
          JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         CROSS JOIN LATERAL (
                {autovacuum}) AS v
         WHERE n.nspname = :state_name::text
           AND c.relkind = 'r'
           AND c.relname IN ('stream', 'receipt', 'receipt_page', 'staging', 'staging_page',
                             'dispatch_log')) AS t
 CROSS JOIN LATERAL (VALUES
    ('state_autovacuum', 'error',
     t.off,
     format('autovacuum is off for state table %s: each batch leaves dead rows that slow streams '
            'down', t.named),
     format('ALTER TABLE %s RESET (autovacuum_enabled, toast.autovacuum_enabled)', t.named)),
    ('state_late_autovacuum', 'warning',
     t.threshold > 100000,
     format('autovacuum of state table %s waits for %s dead rows: until then they slow streams down',
            t.named, t.threshold),
     format('ALTER TABLE %s SET (autovacuum_vacuum_threshold = 200, '
            'autovacuum_vacuum_scale_factor = 0)', t.named)),
    ('state_unlogged', 'error',
     t.unlogged,
     format('state table %s is UNLOGGED: a crash of the server or a failover loses messages in '
            'receipts', t.named),
     format('ALTER TABLE %s SET LOGGED', t.named))
    ) AS law (name, severity, broken, found, fix)
 WHERE law.broken

-- name: state_schemas
-- Lists the schemas that seem to have state tables: those with at least two tables of three well-known
-- names, because one table may be missing. If :schema_name is not null, only that schema is looked at.
-- Only the catalogue is read. A schema in the result is untrusted, because anybody who may create a
-- schema can create such tables.
-- Returns: schema text; may_enter boolean: whether this login may enter the schema and read the version;
--          roles text: the roles without a login that may enter the schema
SELECT n.nspname::text AS schema,
       has_schema_privilege(n.oid, 'USAGE')
       AND coalesce((SELECT has_table_privilege(c.oid, 'SELECT')
                       FROM pg_catalog.pg_class AS c
                      WHERE c.relnamespace = n.oid AND c.relname = 'version'), true) AS may_enter,
       coalesce((SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname)
                   FROM aclexplode(n.nspacl) AS a
                   JOIN pg_catalog.pg_roles AS r ON r.oid = a.grantee
                  WHERE a.privilege_type = 'USAGE' AND NOT r.rolcanlogin), '') AS roles
  FROM pg_catalog.pg_namespace AS n
 WHERE n.nspname = coalesce(:schema_name::text::name, n.nspname)
   AND 1 < (SELECT count(*)
              FROM pg_catalog.pg_class AS c
             WHERE c.relnamespace = n.oid
               AND c.relname IN ('receipt_page', 'staging_page', 'dispatch_log'))
 ORDER BY n.nspname

-- name: why_refused
-- Finds what a failed statement lacked. The server's error is not enough, because its words depend on the
-- server's language. This reads only the catalogue. Its parameters:
-- - :asked: a JSON array of the failed statement's tables in their order. Each element has the table's
--   role in the statement, its schema, its name, and the rights that the statement needs. For a statement
--   on state tables the array has one element with the schema alone.
-- - :creates: whether the failed statement creates a table.
-- - :changes: whether the failed statement needs to own the table.
-- - :constraint_name: the constraint that refused a row.
-- Returns: role text, has_schema boolean, has_table boolean; of_seq boolean: whether the constraint is an
--          index on seq; lacks text: the first thing that is missing (database, schema, owner, rights or
--          sequence), or `policy`, or null if nothing is missing; named text: the object on which a right
--          is missing, or else the database
SELECT its.role, n.oid IS NOT NULL AS has_schema, c.oid IS NOT NULL AS has_table, its.of_seq, its.lacks,
       CASE its.lacks WHEN 'schema' THEN quote_ident(n.nspname)
                      WHEN 'sequence' THEN s.name
                      ELSE quote_ident(current_database()) END AS named
  FROM jsonb_array_elements(:asked::text::jsonb) WITH ORDINALITY AS asked (value, at)
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = asked.value ->> 'schema'
  LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = asked.value ->> 'table'
  LEFT JOIN LATERAL (
        SELECT q.seqrelid::regclass::text AS name
          FROM pg_catalog.pg_depend AS d
          JOIN pg_catalog.pg_sequence AS q ON q.seqrelid = d.objid
         WHERE d.classid = 'pg_class'::regclass
           AND d.refclassid = 'pg_class'::regclass
           AND d.refobjid = c.oid
           AND d.deptype = 'a'
           AND NOT has_sequence_privilege(q.seqrelid, 'USAGE')
         LIMIT 1) AS s ON true
 CROSS JOIN LATERAL (
        SELECT asked.value ->> 'role' AS role,
               EXISTS (SELECT
                         FROM pg_catalog.pg_index AS i
                         JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
                         JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid
                                                          AND a.attnum = i.indkey[0]
                        WHERE i.indrelid = c.oid
                          AND x.relname = :constraint_name::text
                          AND a.attname = 'seq') AS of_seq,
               CASE WHEN n.oid IS NULL
                    THEN CASE WHEN :creates::boolean
                               AND NOT has_database_privilege(current_database(), 'CREATE')
                              THEN 'database' END
                    WHEN NOT has_schema_privilege(n.oid, 'USAGE')
                      OR :creates::boolean AND NOT has_schema_privilege(n.oid, 'CREATE') THEN 'schema'
                    WHEN :changes::boolean
                     AND EXISTS (SELECT
                                   FROM pg_catalog.pg_class AS t
                                  WHERE t.relkind = 'r'
                                    AND (t.oid = c.oid
                                         OR t.relnamespace = n.oid
                                        AND asked.value ->> 'table' IS NULL)
                                    AND NOT pg_has_role(t.relowner, 'USAGE')) THEN 'owner'
                    WHEN EXISTS (
                            SELECT
                              FROM jsonb_array_elements_text(asked.value -> 'needs') AS needs (word)
                             CROSS JOIN LATERAL (
                                    SELECT split_part(needs.word, ' ', 1) AS name,
                                           substring(needs.word FROM '\((.*)\)') AS of_column) AS r
                             WHERE CASE WHEN r.of_column IS NULL
                                        THEN NOT has_table_privilege(c.oid, r.name)
                                        ELSE EXISTS (SELECT
                                                       FROM pg_catalog.pg_attribute AS a
                                                      WHERE a.attrelid = c.oid
                                                        AND a.attname = r.of_column
                                                        AND NOT has_column_privilege(
                                                                c.oid, a.attnum, r.name)) END)
                    THEN 'rights'
                    WHEN asked.value -> 'needs' ? 'INSERT' AND s.name IS NOT NULL THEN 'sequence'
                    WHEN row_security_active(c.oid) THEN 'policy' END AS lacks) AS its
 ORDER BY asked.at

-- name: blockers
-- Finds transactions that have locked a whole table of this database, or that wait for such a lock while
-- all others wait behind them. Also finds transactions that have held locks on messages for more than
-- :seconds seconds. It locks nothing and waits for nothing. A login without pg_read_all_stats does not
-- see how old other logins' transactions are. The server shows the locks of a prepared transaction
-- without the transaction's name. If there are several prepared transactions, none is named.
-- Returns: schema_name, table_name, name, severity, found, fix text
SELECT n.nspname::text AS schema_name, c.relname::text AS table_name,
       CASE WHEN l.mode = 'AccessExclusiveLock' THEN 'locked' ELSE 'locked_messages' END AS name,
       CASE WHEN l.mode = 'AccessExclusiveLock' THEN 'error' ELSE 'warning' END AS severity,
       format('%s %s%s',
              CASE WHEN l.pid IS NULL
                   THEN concat_ws(' ', 'a prepared transaction', quote_literal(x.gid))
                   ELSE format('session %s (%s, application %s)', l.pid,
                               coalesce(a.state, 'unknown'),
                               quote_literal(coalesce(a.application_name, ''))) END,
              CASE WHEN l.mode <> 'AccessExclusiveLock' THEN 'has locked messages of it'
                   WHEN l.granted THEN 'has locked the whole table'
                   ELSE 'waits to lock the whole table, and all others wait behind it' END,
              ' for ' || date_trunc('second', now() - coalesce(a.xact_start, x.prepared))::text)
           AS found,
       CASE WHEN l.pid IS NULL
            THEN coalesce('ROLLBACK PREPARED ' || quote_literal(x.gid),
                          'SELECT gid, prepared, owner FROM pg_prepared_xacts')
            ELSE format('SELECT pg_terminate_backend(%s)', l.pid) END AS fix
  FROM pg_catalog.pg_locks AS l
  JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
  LEFT JOIN LATERAL (
        SELECT min(p.gid) AS gid, min(p.prepared) AS prepared
          FROM pg_catalog.pg_locks AS t
          JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = t.transactionid
         WHERE l.pid IS NULL
           AND t.pid IS NULL
           AND t.locktype = 'transactionid'
           AND t.virtualtransaction = l.virtualtransaction
        HAVING count(*) = 1) AS x ON true
 WHERE l.locktype = 'relation'
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND c.relkind = 'r'
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND (l.mode = 'AccessExclusiveLock'
        OR l.mode IN ('RowShareLock', 'RowExclusiveLock')
           AND coalesce(a.xact_start, x.prepared) < now() - make_interval(secs => :seconds::float8))
 ORDER BY l.granted DESC
 LIMIT 1000
