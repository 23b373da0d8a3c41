-- name: beat
-- Writes that a driver process runs a stream. The first call of a process writes its row. Each later one
-- writes the stream and the time.
-- Locks:   the row, until commit.
INSERT INTO {state}.heartbeat AS b (driver, stream, name, queue, host, process, shared)
VALUES (:driver::text, :stream::text, :name::text, :queue_name::text, :host::text, :process::bigint,
        :shared::boolean)
    ON CONFLICT (driver) DO UPDATE SET stream = EXCLUDED.stream, beat = now()

-- name: forget_heartbeats
-- Deletes the rows of other processes that ran the stream before, and the rows of processes that ended an
-- hour ago and ran no stream.
-- Locks:   the rows that it deletes, until commit.
DELETE FROM {state}.heartbeat AS b
 WHERE b.driver <> :driver::text
   AND (b.stream = :stream::text OR b.stream IS NULL AND b.beat < now() - interval '1 hour')

-- name: heartbeats
-- Lists the processes that run streams. Locks nothing.
-- Returns: driver, stream (null if the process has no batch yet), name (of Spark's query, else the one that
--          the process wrote; or null), queue, host, process bigint, shared bool, started, beat, silent
--          double: seconds since the last heartbeat
SELECT b.driver, b.stream, coalesce(o.query_name, b.name) AS name, b.queue, b.host, b.process, b.shared,
       b.started, b.beat,
       extract(epoch FROM clock_timestamp() - b.beat)::double precision AS silent
  FROM {state}.heartbeat AS b
  LEFT JOIN {state}.stream AS o ON o.stream = b.stream
 ORDER BY b.started, b.driver

-- name: streams
-- Lists the streams, but for those that were removed, the one that was active last first. Locks nothing.
-- Returns: stream, name (of Spark's query, else the one that its process wrote; or null), queue, host and
--          process bigint (null without a heartbeat), query_id, batch (the last acknowledged one), messages,
--          expired, diverted, forwarded, created, seen; receipts, held bigint: how many receipts the stream
--          has, and how many messages are in them; is_open bool: a batch is planned and not acknowledged;
--          silent double: seconds since the last batch or heartbeat
SELECT o.stream, coalesce(o.query_name, b.name) AS name, o.queue, b.host, b.process, o.query_id,
       o.acked_batch AS batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created, o.seen, h.receipts, h.held, o.plan_batch IS NOT NULL AS is_open,
       extract(epoch FROM clock_timestamp() - greatest(o.seen, b.beat))::double precision AS silent
  FROM {state}.stream AS o
  LEFT JOIN LATERAL (SELECT l.name, l.host, l.process, l.beat
                       FROM {state}.heartbeat AS l
                      WHERE l.stream = o.stream
                      ORDER BY l.beat DESC
                      LIMIT 1) AS b ON true
 CROSS JOIN LATERAL (SELECT count(*) AS receipts, coalesce(sum(r.messages), 0)::bigint AS held
                       FROM {state}.receipt AS r
                      WHERE r.stream = o.stream) AS h
 WHERE o.removed IS NULL
 ORDER BY o.seen DESC

-- name: remove_stream
-- Takes a stream out of all lists. Its row stays, because it has the highest batch that Spark's query closed.
-- Locks:   the row, until commit; lock_stream has waited for the stream's tasks.
WITH heartbeat AS (
    DELETE FROM {state}.heartbeat WHERE stream = :stream::text)
UPDATE {state}.stream SET removed = now() WHERE stream = :stream::text
