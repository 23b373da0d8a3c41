-- name: browse
-- Reads a page of a range, up to a count and a size, at least one message. Locks nothing, deletes
-- nothing. Of a message larger than :largest it reads only the size.
-- It weighs the rows first and reads them in a second pass. A window over whole rows would write them
-- to a file. Measured: 2.2 us of the server for a row of 1.2 kB, 3.5 with such a window, 1.4 without
-- the ceiling.
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
  FROM (SELECT q.id, q.expires, q.headers, q.body, q.seq,
               coalesce(octet_length(q.headers), 0)::bigint
               + coalesce(octet_length(q.body), 0) AS bytes
          FROM {queue} AS q
         WHERE q.seq >= :first::bigint
           AND q.seq < :stop::bigint
           AND q.seq <= (
               SELECT max(seq)
                 FROM (SELECT seq,
                              bytes,
                              sum(CASE WHEN bytes <= :largest::bigint THEN bytes ELSE 0 END)
                                  OVER (ROWS UNBOUNDED PRECEDING) AS up_to
                         FROM (SELECT q.seq,
                                      coalesce(octet_length(q.headers), 0)::bigint
                                      + coalesce(octet_length(q.body), 0) AS bytes
                                 FROM {queue} AS q
                                WHERE q.seq >= :first::bigint
                                  AND q.seq < :stop::bigint
                                ORDER BY q.seq
                                LIMIT :messages::bigint) AS lowest) AS weighed
                WHERE up_to - bytes < :bytes::bigint)
         ORDER BY q.seq) AS page
 ORDER BY page.seq

-- name: browse_body_string
-- As browse, for a table with that column.
-- Returns: also bodystring text
SELECT id,
       expires,
       coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
       CASE WHEN bytes <= :largest::bigint THEN headers END AS headers,
       CASE WHEN bytes <= :largest::bigint THEN body END AS body,
       CASE WHEN bytes <= :largest::bigint THEN bodystring END AS bodystring,
       seq::bigint AS seq,
       CASE WHEN bytes > :largest::bigint THEN bytes END AS large
  FROM (SELECT q.id, q.expires, q.headers, q.body, q.bodystring, q.seq,
               coalesce(octet_length(q.headers), 0)::bigint
               + coalesce(octet_length(q.body), 0)
               + coalesce(octet_length(q.bodystring), 0) AS bytes
          FROM {queue} AS q
         WHERE q.seq >= :first::bigint
           AND q.seq < :stop::bigint
           AND q.seq <= (
               SELECT max(seq)
                 FROM (SELECT seq,
                              bytes,
                              sum(CASE WHEN bytes <= :largest::bigint THEN bytes ELSE 0 END)
                                  OVER (ROWS UNBOUNDED PRECEDING) AS up_to
                         FROM (SELECT q.seq,
                                      coalesce(octet_length(q.headers), 0)::bigint
                                      + coalesce(octet_length(q.body), 0)
                                      + coalesce(octet_length(q.bodystring), 0) AS bytes
                                 FROM {queue} AS q
                                WHERE q.seq >= :first::bigint
                                  AND q.seq < :stop::bigint
                                ORDER BY q.seq
                                LIMIT :messages::bigint) AS lowest) AS weighed
                WHERE up_to - bytes < :bytes::bigint)
         ORDER BY q.seq) AS page
 ORDER BY page.seq

-- name: browse_seq
-- Reads the same page without headers and bodies.
SELECT q.id, q.expires, q.seq::bigint AS seq
  FROM {queue} AS q
 WHERE q.seq >= :first::bigint
   AND q.seq < :stop::bigint
 ORDER BY q.seq
 LIMIT :messages::bigint

-- name: browse_headers
-- Reads the beginning of the headers of a range. Locks nothing.
-- Index:   the unique index on seq.
-- Returns: headers text, seq bigint; by seq
SELECT left(q.headers, 65536) AS headers, q.seq::bigint AS seq
  FROM {queue} AS q
 WHERE q.seq >= :first::bigint
   AND q.seq < :stop::bigint
 ORDER BY q.seq
 LIMIT :messages::bigint

-- name: browse_delayed
-- Reads the delayed messages that are due first. Locks nothing, deletes nothing.
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
-- Deletes all messages, as the transport does with PurgeOnStartup.
-- Locks:   a row lock for each, until commit; waits for rows that others hold.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} RETURNING true)
SELECT count(*) FROM gone

-- name: purge_range
-- Deletes the messages in a range of seqs.
-- Locks:   a row lock for each, until commit; waits for rows that others hold.
-- Index:   the unique index on seq.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} WHERE seq >= :first::bigint AND seq < :stop::bigint RETURNING true)
SELECT count(*) FROM gone

-- name: purge_expired
-- Deletes a batch of messages that expired before this transaction and that no other session holds.
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
