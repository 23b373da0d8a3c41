-- part: message_bytes
-- The size of a message in bytes, as limits count it; other statements contain this part. The server
-- reads the size of a toasted value without the value.
coalesce(octet_length(headers), 0)::bigint + coalesce(octet_length(body), 0)

-- part: header_bytes
-- The size of headers in bytes, as the server stores them; other statements contain this part.
coalesce(octet_length(headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain this part.
({message_bytes} > :largest::bigint
 OR {header_bytes} > :largest_headers::bigint)

-- part: readable_expiry
-- An expiry that each client can show; other statements contain this part. An expiry that is infinite, or
-- later than the year 9999, becomes null, because such a message never expires. An expiry before 1900,
-- for example -infinity, becomes 1900, because such a message has expired.
CASE WHEN expires < timestamp '9999-12-31' THEN greatest(expires, timestamp '1900-01-01') END

-- part: received_row
-- The columns of a received message; other statements contain this part.
id, {readable_expiry} AS expires,
coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
headers, body, seq::bigint AS seq

-- name: fence
-- Reads what decides whether a task may receive. :query_id may be null. The columns are:
-- - `acked_batch`: the task must not receive if its batch was acknowledged.
-- - `plan_high_water`: the plan must not be used for this batch of Spark's query, or for an earlier one.
--   It is the highest batch that any stream of the query had closed, or had receipts of, when the plan was
--   stored.
-- - `is_reader`: whether this stream is the one that may receive from this queue in this run of the query.
--   The statement enter_query decides that.
-- Locks:   the stream's row FOR SHARE, until commit; acknowledge waits for the task.
-- Index:   the primary keys of stream and query_reader.
-- Returns: acked_batch bigint, plan_high_water bigint or null, is_reader bool; no row if the stream is
--          not there
SELECT o.acked_batch,
       (o.plan_high_water::json ->> :query_id::text)::bigint AS plan_high_water,
       coalesce(r.stream = o.stream AND r.run_id = :run_id::text, false) AS is_reader
  FROM {state}.stream AS o
  LEFT JOIN {state}.query_reader AS r
    ON r.query_id = :query_id::text AND r.queue = :queue_name::text
 WHERE o.stream = :stream::text AND o.version_5 IS NULL
   FOR SHARE OF o

-- name: enter_query
-- Two streams of one query must not share the messages of a queue, because each would get a part of them.
-- So the first stream that receives from a queue in a run of the query enters itself into the table
-- query_reader. It replaces an entry of an earlier run, because that entry's stream may belong to a
-- checkpoint that is lost. If another stream has entered itself for the same run, its entry stays.
-- Locks:   the row, until commit; waits for another stream that enters itself.
-- Index:   the primary key.
INSERT INTO {state}.query_reader AS r (query_id, queue, stream, run_id)
VALUES (:query_id::text, :queue_name::text, :stream::text, :run_id::text)
    ON CONFLICT (query_id, queue) DO UPDATE
   SET stream = EXCLUDED.stream, run_id = EXCLUDED.run_id
 WHERE r.run_id <> EXCLUDED.run_id

-- name: query_reader
-- Reads, after enter_query, which stream may receive from the queue for the query's run.
-- Index:   the primary key.
-- Returns: stream text
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = :query_id::text AND queue = :queue_name::text

-- name: find_receipt
-- Returns: payload bytea, empty if it is in pages; messages bigint; unpacked bigint: the bytes of the
--          payload before compression; query_id text, spark_batch bigint: Spark's names, or null
SELECT payload, messages, unpacked, query_id, spark_batch
  FROM {state}.receipt
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint

-- name: receipt_pages
-- Returns: payload bytea, the pages in their order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint
 ORDER BY page

-- name: receive_range
-- Deletes all messages of a range, or none. It deletes none if they are too many, if they have too many
-- bytes together, or if one of them is too large. One pass counts the rows and their bytes, and a second
-- pass deletes the rows. The first pass locks no row, which saves a fifth of the server's work. Both
-- passes see one snapshot, so no row is added between them. If another session changes a row between the
-- two passes, the row can have more bytes than were counted.
-- Locks:   a row lock for each row it deletes, until commit. Waits 1 ms for each row that another
--          session holds, and gives up at the first row that stays held. Then `receive` takes
--          the other rows.
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
-- Deletes the lowest messages of a range that no other session holds, up to a number of messages and of
-- bytes. It deletes at least one message, even if that has more bytes, but none that is too large. To sum
-- up sizes, the server does not read the values of toasted columns. The rows are locked in the order of
-- seq, and the window function gets them in this order. To sort them again would cost 4 %. In another
-- order the higher messages could use up the bytes, and some lower ones would be left for the next batch.
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
-- Deletes those of the :chosen messages that no other session holds. :chosen is a JSON array of arrays
-- [seq, id]. The id distinguishes a message from another message with the same seq.
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
-- Finds the lowest messages of a range that are too large and that no other session holds. It runs only
-- if the task got less than was planned, and the plan's sample does not rule out such sizes.
-- Locks:   a row lock for each, until commit. Never waits.
-- Index:   the unique index on seq.
-- Returns: seq bigint; bytes bigint: the size of the message; headers bigint: the size of its headers;
--          place text: the ctid of the row, which is valid until the transaction ends
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
-- Moves the :chosen messages to the error queue, unchanged. The client does not get them, because it
-- could not hold them, and the server cannot send a row of 1 GB. Expired messages are dropped instead.
-- :chosen is a JSON array of arrays [seq, place]. Another message with the same seq stays.
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
-- Moves the sequence of a queue past seqs that rows already have. A row may have a seq that the sequence
-- has not given, because a login that may insert can choose a seq. The sequence stops at the first gap
-- between such rows that has room for :rows rows. Rows behind this gap do not matter. The statement uses
-- up at most :most seqs, and none above 80 % of the highest possible seq.
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
-- Writes an empty page of a receipt, before anything is received. The page's key works as a lock: a second
-- attempt of the same task waits here for the first. If the first attempt commits, the second one fails
-- (23505), starts again and finds the receipt. If the first one fails, the second one goes on. Without
-- this page, each attempt would skip the messages that the other has locked, and the faster one could
-- leave an empty receipt.
-- Locks:   the row it writes, until commit; waits for another attempt.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, -1, '')

-- name: save_receipt
-- Locks:   the row it writes, until commit; begin_receipt has kept other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, query_name, unpacked, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, :queue_name::text, :messages::bigint,
        :expired::bigint, :diverted::bigint, :forwarded::bigint, :bytes::bigint,
        :query_id::text, :spark_batch::bigint, :query_name::text, :unpacked::bigint, :payload::bytea)
