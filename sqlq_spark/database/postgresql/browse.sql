-- part: page
-- A page of a range of seqs; other statements contain this part. It sorts by the column q.seq, which is
-- in the index, and not by the result's seq, which is a cast.
FROM {queue} AS q
 WHERE q.seq >= :first::bigint AND q.seq < :stop::bigint
 ORDER BY q.seq
 LIMIT :messages::bigint

-- name: browse
-- Reads a page of a range. Of a message larger than :largest bytes it reads only the size. The client
-- ends the statement when it has got enough bytes for a page. Measured for a row of 1.2 kB: the server
-- takes 1.4 us. It would take 2.2 us if a separate pass read the sizes first.
-- Locks:   nothing.
-- Index:   the unique index on seq.
-- Returns: the columns of receive, by seq; large bigint: null, or the bytes of a message that is larger
--          than :largest. Headers and body of such a message are null
SELECT id, {readable_expiry} AS expires,
       coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
       CASE WHEN bytes <= :largest::bigint THEN headers END AS headers,
       CASE WHEN bytes <= :largest::bigint THEN body END AS body,
       seq::bigint AS seq,
       CASE WHEN bytes > :largest::bigint THEN bytes END AS large
  FROM (SELECT q.id, q.expires, q.headers, q.body, q.seq,
               {message_bytes} AS bytes
        {page}) AS page
 ORDER BY page.seq

-- name: browse_seq
-- Reads a page of a range without headers and bodies.
SELECT q.id, {readable_expiry} AS expires, q.seq::bigint AS seq
{page}

-- name: browse_headers
-- Reads the beginning of the headers of each message of a page.
-- Locks:   nothing.
-- Index:   the unique index on seq.
-- Returns: headers text, seq bigint; by seq
SELECT left(q.headers, 65536) AS headers, q.seq::bigint AS seq
{page}

-- name: purge
-- Deletes all messages, as the transport does with PurgeOnStartup.
-- Locks:   each row, until commit; waits for rows that others hold.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} RETURNING true)
SELECT count(*) AS messages FROM gone

-- name: purge_range
-- Deletes the messages in a range of seqs.
-- Locks:   each row, until commit; waits for rows that others hold.
-- Index:   the unique index on seq.
-- Returns: messages bigint
WITH gone AS (
    DELETE FROM {queue} WHERE seq >= :first::bigint AND seq < :stop::bigint RETURNING true)
SELECT count(*) AS messages FROM gone

-- name: purge_expired
-- Deletes messages that expired before this transaction began, at most :messages. It leaves out those
-- that another session holds.
-- Locks:   each row, until commit. It never waits.
-- Index:   an index on expires, to find the rows; then it deletes them by ctid. Without such an index it
--          reads all pages.
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
SELECT count(*) AS messages FROM gone

-- part: table_figures
-- What the catalogue says of a table's size; other statements contain this part.
SELECT c.oid,
       coalesce(pg_relation_size(c.oid) > :largest::bigint, false) AS large,
       coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0),
                greatest(c.reltuples, 0)::bigint) AS estimate
  FROM pg_catalog.pg_class AS c
 WHERE c.oid = :table_name::text::regclass

-- name: stats
-- Counts the messages of a queue. In a table of more than :largest bytes it estimates their number from
-- the server's statistics, because a count reads the whole table (measured: 13.8 s for 2.9 million
-- messages). The estimate is never more than the range of seqs allows. If :largest is null, it always
-- counts.
-- Locks:   nothing.
-- Index:   the unique index on seq, for the first and the last seq.
-- Returns: messages, expired (null if estimated), bytes of table and indexes, first and last seq, bigint;
--          estimated boolean
SELECT CASE WHEN NOT its.large THEN counted.messages
            WHEN ends.first IS NULL THEN 0
            ELSE least(its.estimate, ends.last - ends.first + 1) END AS messages,
       CASE WHEN NOT its.large THEN counted.expired END AS expired,
       pg_total_relation_size(its.oid) AS bytes, ends.first, ends.last, its.large AS estimated
  FROM ({table_figures}) AS its
 CROSS JOIN (SELECT min(seq)::bigint AS first, max(seq)::bigint AS last FROM {queue}) AS ends
 CROSS JOIN LATERAL (SELECT count(*) AS messages,
                            count(*) FILTER (WHERE expires <= clock_timestamp() AT TIME ZONE 'UTC')
                                AS expired
                       FROM {queue}
                      WHERE NOT its.large) AS counted

-- name: stats_delayed
-- Counts or estimates the delayed messages, as `stats` does. If :zone is not null, it also counts those
-- that are due.
-- Locks:   nothing.
-- Index:   the index on due, in a large table.
-- Returns: messages, due (null if :zone is null), bytes of table and indexes, bigint; estimated boolean
SELECT CASE WHEN its.large THEN its.estimate ELSE counted.messages END AS messages,
       CASE WHEN :zone::text IS NOT NULL
            THEN (SELECT count(*)
                    FROM {queue}
                   WHERE due <= now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text) END AS due,
       pg_total_relation_size(its.oid) AS bytes, its.large AS estimated
  FROM ({table_figures}) AS its
 CROSS JOIN LATERAL (SELECT count(*) AS messages FROM {queue} WHERE NOT its.large) AS counted

-- name: seq_given
-- Reads the highest seq that the sequence has ever given. A send that was undone has used up its seqs
-- too.
-- Returns: given bigint; null if it has given none, or if this login may not see the sequence
SELECT CASE WHEN has_sequence_privilege(sequence, 'USAGE, SELECT')
            THEN pg_sequence_last_value(sequence) END AS given
  FROM (SELECT to_regclass(pg_get_serial_sequence(:table_name::text, 'seq')) AS sequence) AS its

-- name: queue_tables
-- Lists the tables of this database that have the columns of a queue and that this login may read. It
-- does not matter who owns them. Only plain tables are listed. Only the catalogue is read.
-- Locks:   nothing. Waits for no lock.
-- Returns: schema_name, table_name text; messages (an estimate), bytes bigint; by schema_name, table_name
SELECT n.nspname::text AS schema_name, c.relname::text AS table_name,
       coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), greatest(c.reltuples, 0)::bigint)
           AS messages,
       c.relpages * current_setting('block_size')::bigint AS bytes
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
        SELECT array_agg(a.attname::text) AS names
          FROM pg_catalog.pg_attribute AS a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS its
 WHERE c.relkind = 'r'
   AND NOT c.relispartition
   AND c.relpersistence <> 't'
   AND its.names @> '{id,expires,headers,body,seq}'
   AND has_schema_privilege(c.relnamespace, 'USAGE')
   AND has_table_privilege(c.oid, 'SELECT')
 ORDER BY n.nspname, c.relname
 LIMIT 10000
