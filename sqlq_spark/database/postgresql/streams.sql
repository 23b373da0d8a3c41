-- name: beat
-- Writes that a driver process runs a stream. The first call of a process writes its row, and each later one
-- the time.
-- Locks:   the row, until commit; no other session writes it.
INSERT INTO {state}.heartbeat AS b (driver, name, queue, host, process, shared)
VALUES (:driver::text, :name::text, :queue_name::text, :host::text, :process::bigint, :shared::boolean)
    ON CONFLICT (driver) DO UPDATE SET beat = now()

-- name: forget_heartbeats
-- Deletes the row of the process that ran this process's stream before, and the rows of processes that ended
-- an hour ago and ran no stream.
DELETE FROM {state}.heartbeat AS b
 WHERE b.driver <> :driver::text
   AND (b.driver = (SELECT o.driver FROM {state}.stream AS o WHERE o.stream = :stream::text)
        OR b.beat < now() - interval '1 hour'
           AND NOT EXISTS (SELECT FROM {state}.stream AS o WHERE o.driver = b.driver))

-- name: heartbeats
-- Lists the processes that run streams. Locks nothing.
-- Returns: driver, stream (null if the process has no batch yet), name (of Spark's query, else the one that
--          the process wrote; or null), queue, host, process bigint, shared bool, started, beat, silent
--          double: seconds since the last heartbeat
SELECT b.driver, o.stream, coalesce(o.query_name, b.name) AS name, b.queue, b.host, b.process, b.shared,
       b.started, b.beat,
       extract(epoch FROM clock_timestamp() - b.beat)::double precision AS silent
  FROM {state}.heartbeat AS b
  LEFT JOIN {state}.stream AS o ON o.driver = b.driver
 ORDER BY b.started, b.driver

-- name: streams
-- Lists the streams, but for those that were removed. Locks nothing.
-- Returns: stream, name (of Spark's query, else the one that its process wrote; or null), queue, host and
--          process bigint (null without a heartbeat), query_id, batch (the last acknowledged one), messages,
--          expired, diverted, forwarded, created, seen, receipts, held, is_open bool: a batch is planned and
--          not acknowledged; silent double: seconds since the last batch or heartbeat
SELECT o.stream, coalesce(o.query_name, b.name) AS name, o.queue, b.host, b.process, o.query_id,
       o.acked_batch AS batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created, o.seen, h.receipts, h.held, o.plan_batch IS NOT NULL AS is_open,
       extract(epoch FROM clock_timestamp() - greatest(o.seen, b.beat))::double precision AS silent
  FROM {state}.stream AS o
  LEFT JOIN {state}.heartbeat AS b ON b.driver = o.driver
 CROSS JOIN LATERAL (SELECT count(*) AS receipts, coalesce(sum(r.messages), 0)::bigint AS held
                       FROM {state}.receipt AS r
                      WHERE r.stream = o.stream) AS h
 WHERE o.removed IS NULL
 ORDER BY o.seen DESC

-- name: remove_stream
-- Takes a stream out of all lists. Its row stays, because it has the highest batch that Spark's query closed.
-- Locks:   the row, until commit; lock_stream has waited for the stream's tasks.
WITH heartbeat AS (
    DELETE FROM {state}.heartbeat AS b
     USING {state}.stream AS o
     WHERE o.stream = :stream::text AND b.driver = o.driver)
UPDATE {state}.stream SET removed = now() WHERE stream = :stream::text
