-- name: beat
-- Writes that a driver process runs a stream. The first call of a process writes its row. Each later one
-- writes the stream and the time.
-- Locks:   the row, until commit.
UPDATE {state}.heartbeat SET stream = @stream, beat = SYSUTCDATETIME() WHERE driver = @driver;
IF @@ROWCOUNT = 0
    INSERT INTO {state}.heartbeat (driver, stream, name, queue, host, process, shared)
    VALUES (@driver, @stream, @name, @queue_name, @host, @process, @shared)

-- name: forget_heartbeats
-- Deletes the rows of other processes that ran the stream before, and the rows of processes that ended an
-- hour ago and ran no stream.
-- Locks:   the rows that it deletes, until commit.
DELETE b
  FROM {state}.heartbeat AS b
 WHERE b.driver <> @driver
   AND (b.stream = @stream OR (b.stream IS NULL AND b.beat < DATEADD(hour, -1, SYSUTCDATETIME())))

-- name: heartbeats
-- Lists the processes that run streams. Skips a row that is being written now.
-- Returns: driver, stream (null if the process has no batch yet), name (of Spark's query, else the one that
--          the process wrote; or null), queue, host, process bigint, shared bit, started, beat, silent
--          float: seconds since the last heartbeat
SELECT b.driver, b.stream, ISNULL(o.query_name, b.name) AS name, b.queue, b.host, b.process, b.shared,
       b.started AS started, b.beat AS beat,
       DATEDIFF_BIG(millisecond, b.beat, SYSUTCDATETIME()) / 1000e0 AS silent
  FROM {state}.heartbeat AS b WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
  LEFT JOIN {state}.stream AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON o.stream = b.stream
 ORDER BY b.started, b.driver

-- name: streams
-- Lists the streams, but for those that were removed, the one that was active last first. Skips receipts
-- that a task is writing now.
-- Returns: stream, name (of Spark's query, else the one that its process wrote; or null), queue, host and
--          process bigint (null without a heartbeat), query_id, batch (the last acknowledged one), messages,
--          expired, diverted, forwarded, created, seen; receipts, held bigint: how many receipts the stream
--          has, and how many messages are in them; is_open bit: a batch is planned and not acknowledged;
--          silent float: seconds since the last batch or heartbeat
SELECT o.stream, ISNULL(o.query_name, b.name) AS name, o.queue, b.host, b.process, o.query_id,
       o.acked_batch AS batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created AS created, o.seen AS seen, h.receipts, h.held,
       CAST(CASE WHEN o.plan_batch IS NULL THEN 0 ELSE 1 END AS bit) AS is_open,
       DATEDIFF_BIG(millisecond, CASE WHEN b.beat > o.seen THEN b.beat ELSE o.seen END, SYSUTCDATETIME())
       / 1000e0 AS silent
  FROM {state}.stream AS o
 OUTER APPLY (SELECT TOP (1) l.name, l.host, l.process, l.beat
                FROM {state}.heartbeat AS l
               WHERE l.stream = o.stream
               ORDER BY l.beat DESC) AS b
 CROSS APPLY (SELECT COUNT_BIG(*) AS receipts, ISNULL(SUM(r.messages), 0) AS held
                FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
               WHERE r.stream = o.stream) AS h
 WHERE o.removed IS NULL
 ORDER BY o.seen DESC

-- name: remove_stream
-- Takes a stream out of all lists. Its row stays, because it has the highest batch that Spark's query closed.
-- Locks:   the row, until commit; lock_stream has waited for the stream's tasks.
DELETE FROM {state}.heartbeat WHERE stream = @stream;
UPDATE {state}.stream SET removed = SYSUTCDATETIME() WHERE stream = @stream
