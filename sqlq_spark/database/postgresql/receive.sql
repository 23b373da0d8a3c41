-- part: message_bytes
-- The bytes of a message, as limits count them; other statements contain this part. For a large value
-- that the server stores outside of the row (toasted), it reads only the size and not the value.
coalesce(octet_length(headers), 0)::bigint + coalesce(octet_length(body), 0)

-- part: header_bytes
-- The size of headers in bytes, as the server stores them; other statements contain this part.
coalesce(octet_length(headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain this part.
({message_bytes} > :largest::bigint
 OR {header_bytes} > :largest_headers::bigint)

-- part: readable_expiry
-- The expiry of a message as a time that any client can show; other statements contain this part. An
-- infinite expiry, and one later than the year 9999, become null: such a message never expires. An expiry
-- before 1900, for example -infinity, becomes 1900: such a message has expired.
CASE WHEN expires < timestamp '9999-12-31' THEN greatest(expires, timestamp '1900-01-01') END

-- part: received_row
-- The columns of a received message; other statements contain this part.
id, {readable_expiry} AS expires,
coalesce(expires <= clock_timestamp() AT TIME ZONE 'UTC', false) AS expired,
headers, body, seq::bigint AS seq

-- name: fence
-- Reads the facts by which a task decides whether it may receive:
-- - `acked_batch`: the last batch that was acknowledged. A task of this or an earlier batch must not
--   receive.
-- - `plan_high_water`: the highest batch of Spark's query :query_id that any of the query's streams had
--   closed, or had receipts of, when the plan was stored. The plan must not be used for this or an
--   earlier batch. It is null if there is no such batch, or if :query_id is null.
-- - `is_reader`: whether this stream may receive from the queue in this run of the query. See
--   enter_query.
-- Locks:   the stream's row FOR SHARE, until commit. An acknowledgement waits for this task.
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
-- Enters this stream into the table query_reader: in this run of the query, it alone receives from the
-- queue. If another stream is entered for the same run, nothing changes. Two streams of one query must
-- not receive from the same queue, because each would get a part of the messages. An entry of an earlier
-- run is replaced, because its stream may belong to a checkpoint that is lost.
-- Locks:   the row it writes, until commit; waits for another session that writes it.
-- Index:   the primary key.
INSERT INTO {state}.query_reader AS r (query_id, queue, stream, run_id)
VALUES (:query_id::text, :queue_name::text, :stream::text, :run_id::text)
    ON CONFLICT (query_id, queue) DO UPDATE
   SET stream = EXCLUDED.stream, run_id = EXCLUDED.run_id
 WHERE r.run_id <> EXCLUDED.run_id

-- name: query_reader
-- Reads which stream may receive from the queue in the query's run. It runs after enter_query.
-- Index:   the primary key.
-- Returns: stream text
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = :query_id::text AND queue = :queue_name::text

-- name: find_receipt
-- Reads the receipt of a task, if an earlier attempt of the task has left one.
-- Returns: payload bytea, empty if it is in pages; messages bigint; unpacked bigint: the bytes of the
--          payload before compression; query_id text, spark_batch bigint: Spark's query and batch for
--          which the messages were received, or null. No row if there is no receipt
SELECT payload, messages, unpacked, query_id, spark_batch
  FROM {state}.receipt
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint

-- name: receipt_pages
-- Reads the payload of a large receipt, which is stored in pages.
-- Returns: payload bytea, the pages in their order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint
 ORDER BY page

-- name: receive_range
-- Deletes all messages of a range, or none of them. It deletes none if the messages or their bytes are
-- more than the limits, or if one message is too large. One pass counts the rows and their bytes without
-- a lock, which saves a fifth of the server's work. A second pass deletes the rows. Both passes see one
-- snapshot, so no row is added between them. Only if another session changes a row between the passes,
-- the row can have more bytes than were counted.
-- Locks:   each row that it deletes, until commit. Waits 1 ms for a row that another session holds. If
--          the row stays held, the statement fails, and `receive` takes the other rows instead.
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
-- bytes. It deletes at least one message, even if that one has more bytes. It deletes none that is too
-- large. The rows are locked and summed up in the order of seq. In another order the higher messages
-- could use up the bytes, and lower ones would wait for the next batch. The window function relies on
-- that order, because to sort again would cost 4 %. To sum up sizes, the server does not read the values
-- of toasted columns.
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
-- Deletes the messages that :chosen lists, except those that another session holds. :chosen is a JSON
-- array of arrays [seq, id]. The id is needed because two messages may have the same seq.
-- Locks:   a row lock for each row it reads, until commit. Never waits.
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
-- if a task got less than was planned, and if the sizes that the driver sampled for the plan allow such a
-- message.
-- Locks:   a row lock for each row it reads, until commit. Never waits.
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
-- Moves the messages that :chosen lists to the error queue, unchanged. Those that have expired are
-- deleted instead. The messages stay on the server, because the client could not hold them, and the
-- server cannot send a row of 1 GB. :chosen is a JSON array of arrays [seq, place]. Only `place` selects
-- a row, so another message with the same seq stays.
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
-- Moves the sequence of a queue past seqs that rows already have. A login that may insert can choose a
-- seq, so a row may have a seq that the sequence has not given yet. The sequence stops before the first
-- gap that has room for :rows rows. Rows after this gap do no harm to the next insert. At most :most seqs
-- are used up, and none above 80 % of the highest possible seq.
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
-- Writes an empty page of a receipt, before anything is received. The key of this page works as a lock: a
-- second attempt of the same task waits here for the first. If the first attempt commits, the second one
-- fails (23505), starts again and finds the receipt. If the first attempt is undone, the second one goes
-- on. Without the page, each attempt would skip the messages that the other one has locked, and the
-- attempt that ends first could leave an empty receipt.
-- Locks:   the row it writes, until commit; waits for another session that writes it.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, -1, '')

-- name: save_receipt
-- Writes the receipt of a task.
-- Locks:   the row that it writes, until commit; begin_receipt keeps other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, query_name, unpacked, payload)
VALUES (:stream::text, :batch::bigint, :task::bigint, :queue_name::text, :messages::bigint,
        :expired::bigint, :diverted::bigint, :forwarded::bigint, :bytes::bigint,
        :query_id::text, :spark_batch::bigint, :query_name::text, :unpacked::bigint, :payload::bytea)
