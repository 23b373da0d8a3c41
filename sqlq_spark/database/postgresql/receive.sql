-- part: message_bytes
-- The size of a message, as limits count it; other statements contain it. The size of a toasted value
-- is read without the value.
coalesce(octet_length(headers), 0)::bigint + coalesce(octet_length(body), 0)

-- part: header_bytes
-- The size of headers, as the server stores them; other statements contain it.
coalesce(octet_length(headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain it.
({message_bytes} > :largest::bigint
 OR {header_bytes} > :largest_headers::bigint)

-- part: readable_expiry
-- An expiry that each client can show; other statements contain it. An expiry that is infinite, or later
-- than the year 9999, becomes null, because such a message never expires. An expiry before 1900, as
-- -infinity, becomes 1900: the message has expired.
CASE WHEN expires < timestamp '9999-12-31' THEN greatest(expires, timestamp '1900-01-01') END

-- part: received_row
-- A message that was received; other statements contain it.
id, {readable_expiry} AS expires,
coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
headers, body, seq::bigint AS seq

-- name: fence
-- A task of a batch that was acknowledged must not receive.
-- `plan_high_water` is the highest batch of Spark's query that one of its streams had closed or had
-- receipts of, when the plan was stored. `is_reader` says whether the stream is the one that may receive
-- from this queue for the query's run, see enter_query. :query_id may be null.
-- Locks:   the stream's row FOR SHARE, until commit; acknowledge waits for the task.
-- Index:   the primary keys of stream and query_reader.
-- Returns: acked_batch bigint, plan_high_water bigint or null, is_reader bool; no row where the stream is
--          not there
SELECT o.acked_batch,
       (o.plan_high_water::json ->> :query_id::text)::bigint AS plan_high_water,
       coalesce(r.stream = o.stream AND r.run_id = :run_id::text, false) AS is_reader
  FROM {state}.stream AS o
  LEFT JOIN {state}.query_reader AS r
    ON r.query_id = :query_id::text AND r.queue = :queue_name::text
 WHERE o.stream = :stream::text AND o.version_4 IS NULL
   FOR SHARE OF o

-- name: enter_query
-- Two streams of one query must not share the messages of a queue, because each would get a part of them.
-- So the first stream that receives from a queue for a run of the query enters itself here. An entry of an
-- earlier run is replaced, because its stream may belong to a checkpoint that is lost. An entry of another
-- stream for the same run stays, see query_reader.
-- Locks:   the row, until commit; waits for another stream that enters itself.
-- Index:   the primary key.
INSERT INTO {state}.query_reader AS r (query_id, queue, stream, run_id)
VALUES (:query_id::text, :queue_name::text, :stream::text, :run_id::text)
    ON CONFLICT (query_id, queue) DO UPDATE
   SET stream = EXCLUDED.stream, run_id = EXCLUDED.run_id
 WHERE r.run_id <> EXCLUDED.run_id

-- name: query_reader
-- After enter_query: which stream may receive from the queue for the query's run.
-- Index:   the primary key.
-- Returns: stream text
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = :query_id::text AND queue = :queue_name::text

-- name: find_receipt
-- Returns: payload bytea; empty where it is in pages; messages, unpacked (bytes) bigint; query_id text,
--          spark_batch bigint, or null
SELECT payload, messages, unpacked, query_id, spark_batch
  FROM {state}.receipt
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint

-- name: receipt_pages
-- Returns: payload bytea, in order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint
 ORDER BY page

-- name: receive_range
-- Deletes all messages of a range, if they are no more than a count and a size and none is too large.
-- Otherwise it deletes none. It locks no row before it deletes it, which saves a fifth of the server's
-- work. Both passes have one snapshot, so no row is added between them. A row that another session changes
-- meanwhile can have more bytes than were counted.
-- Locks:   a row lock for each row it deletes, until commit. Waits 1 ms for each row that another
--          session holds, and gives up at the first one that stays held; `receive` takes the others.
-- Index:   the unique index on seq.
-- Returns: as receive; no order promised
DELETE FROM {queue}
 WHERE seq >= :first::bigint
   AND seq < (SELECT CASE WHEN count(*) <= :messages::bigint
                               AND sum(bytes) <= :bytes::bigint
                               AND NOT bool_or(is_large)
                          THEN :stop::bigint END
                FROM (SELECT {message_bytes} AS bytes,
                             {too_large} AS is_large
                        FROM {queue}
                       WHERE seq >= :first::bigint AND seq < :stop::bigint
                       LIMIT :messages::bigint + 1) AS weighed)
RETURNING {received_row}

-- name: receive
-- Deletes the lowest messages of a range that no other session holds, up to a count and a size; at
-- least one of any size, but none that is too large.
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
                  FROM (SELECT ctid AS place, seq,
                               {message_bytes} AS bytes
                          FROM {queue}
                         WHERE seq >= :first::bigint AND seq < :stop::bigint
                           AND NOT {too_large}
                         ORDER BY seq
                         LIMIT :messages::bigint
                           FOR UPDATE SKIP LOCKED) AS locked) AS weighed
         WHERE before < :bytes::bigint))
RETURNING {received_row}

-- name: take
-- Deletes given messages that no other session holds; :chosen is a JSON array of arrays [seq, id]. The
-- id distinguishes a message from another one of the same seq.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   the index on seq; then by ctid.
-- Returns: as receive; no order promised
DELETE FROM {queue}
 WHERE ctid = ANY (ARRAY (
        SELECT ctid
          FROM {queue}
         WHERE seq = ANY (ARRAY (
                SELECT (pair ->> 0)::bigint FROM json_array_elements(:chosen::text::json) AS pair))
           AND (seq::bigint, id) IN (
                SELECT (pair ->> 0)::bigint, (pair ->> 1)::uuid
                  FROM json_array_elements(:chosen::text::json) AS pair)
           FOR UPDATE SKIP LOCKED))
RETURNING {received_row}


-- name: find_large
-- The lowest messages of a range that are too large and that no other session holds. It runs only if the
-- sample of the plan may have had such sizes, and the task got less than was planned.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   the unique index on seq.
-- Returns: seq bigint, bytes bigint, headers bigint: their bytes; place text: the row's own until the
--          transaction ends
SELECT seq::bigint AS seq, {message_bytes} AS bytes,
       {header_bytes}::bigint AS headers,
       ctid::text AS place
  FROM {queue}
 WHERE seq >= :first::bigint AND seq < :stop::bigint
   AND {too_large}
 ORDER BY seq
 LIMIT :messages::bigint
   FOR UPDATE SKIP LOCKED

-- name: divert_large
-- Moves given messages to the error queue, unchanged, without the client, which could not hold them;
-- the server sends no row of 1 GB. Drops expired ones. :chosen is a JSON array of arrays [seq, place].
-- Another message of the same seq stays.
-- Locks:   a row lock for each, until commit; find_large has them already.
-- Index:   none; by ctid.
-- Returns: diverted bigint, expired bigint: how many were moved, and how many were dropped
WITH gone AS (
    DELETE FROM {queue}
     WHERE ctid = ANY (ARRAY (
            SELECT (pair ->> 1)::tid FROM json_array_elements(:chosen::text::json) AS pair))
    RETURNING id, headers, body,
              coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired),
moved AS (
    INSERT INTO {errors} (id, headers, body)
    SELECT CASE WHEN :renamed::boolean THEN gen_random_uuid() ELSE id END, headers, coalesce(body, '')
      FROM gone
     WHERE NOT expired)
SELECT count(*) FILTER (WHERE NOT expired) AS diverted, count(*) FILTER (WHERE expired) AS expired
  FROM gone

-- name: skip_taken
-- Moves the sequence of a queue past seqs that rows have already: whoever may insert can choose a seq. It
-- follows the rows ahead of the sequence to the first gap that has room for :rows rows; a row behind
-- that gap is not run up to. It uses up at most :most seqs, and none beyond 80 % of what seq can hold.
-- Locks:   nothing. The seqs are used up, even if the transaction is undone.
-- Index:   the unique index on seq.
-- Returns: skipped bigint: how many seqs were used up
WITH its AS MATERIALIZED (
    SELECT s.seqrelid::regclass AS sequence,
           coalesce(pg_sequence_last_value(s.seqrelid), s.seqstart - 1) AS given,
           least(s.seqmax, CASE a.atttypid WHEN 'smallint'::regtype THEN 32767
                                           WHEN 'integer'::regtype THEN 2147483647
                                           ELSE 9223372036854775807 END) / 5 * 4 AS highest
      FROM pg_catalog.pg_sequence AS s
      JOIN pg_catalog.pg_attribute AS a
        ON a.attrelid = to_regclass(:table_name::text) AND a.attname = 'seq'
     WHERE s.seqrelid = to_regclass(pg_get_serial_sequence(:table_name::text, 'seq'))),
ahead AS (
    SELECT seq, seq - lag(seq, 1, (SELECT given FROM its)) OVER (ORDER BY seq) AS distance
      FROM (SELECT seq::bigint AS seq
              FROM {queue}
             WHERE seq > (SELECT given FROM its)
             ORDER BY seq
             LIMIT :most::bigint) AS nearest),
taken AS (
    SELECT max(seq) AS last
      FROM (SELECT seq, max(distance) OVER (ORDER BY seq) AS widest FROM ahead) AS reached
     WHERE widest <= :rows::bigint)
SELECT count(nextval(its.sequence)) AS skipped
  FROM its, taken,
       generate_series(1, least(taken.last, its.given + :most::bigint, its.highest) - its.given)
 WHERE taken.last IS NOT NULL

-- name: begin_receipt
-- Writes an empty page, before the others. Its key is the lock of an attempt. A second attempt of the task
-- waits here. If the first one commits, the second one fails (23505), starts again and finds the receipt. If
-- the first one fails, the second one goes on. Without this page both would skip each other's messages, and
-- the faster one could leave an empty receipt.
-- Locks:   the row it writes, until commit; waits for another attempt.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, -1, '')

-- name: save_receipt
-- Locks:   the row it writes, until commit; begin_receipt has kept other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, unpacked, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, :queue_name::text, :messages::bigint,
        :expired::bigint, :diverted::bigint, :forwarded::bigint, :bytes::bigint,
        :query_id::text, :spark_batch::bigint, :unpacked::bigint, :payload::bytea)
