-- part: kept_when_closed
-- What the row of a stream keeps when a batch is closed; other statements contain this part. If a plan is
-- stored for a later batch, the plan and its high-water mark stay. query_id and spark_batch become the
-- highest batch of Spark's query that was closed.
plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
stored_plan = CASE WHEN plan_batch > @batch THEN stored_plan END,
plan_high_water = CASE WHEN plan_batch > @batch THEN plan_high_water END,
query_id    = ISNULL(@query_id, query_id),
spark_batch = CASE WHEN @query_id IS NULL THEN spark_batch
                   WHEN query_id = @query_id AND spark_batch > @spark_batch THEN spark_batch
                   ELSE @spark_batch END

-- name: new_stream
INSERT INTO {state}.stream (stream, queue, driver)
VALUES (@stream, @queue_name, @driver)

-- name: lock_stream
-- Locks the row of a stream for its driver, and reads it. The lock is taken by an update that changes
-- nothing, because other sessions may ignore a lock that only a hint asks for. REPEATABLEREAD keeps the
-- lock: with optimized locking (Azure, SQL Server 2025) the server could release it at the end of the
-- statement.
-- Locks:   the stream's row, until commit; waits for running tasks.
-- Returns: queue, driver, acked_batch bigint, plan_batch bigint, stored_plan; no row if the stream is not
--          there
UPDATE {state}.stream WITH (REPEATABLEREAD, ROWLOCK)
   SET driver = driver
OUTPUT inserted.queue, inserted.driver, inserted.acked_batch, inserted.plan_batch,
       inserted.stored_plan
 WHERE stream = @stream AND version_5 IS NULL

-- name: claim
-- Makes this driver the owner of the stream, and stores the queues that the stream reads. A stream that was
-- removed is in all lists again.
UPDATE {state}.stream
   SET driver = @driver, queue = @queue_name, removed = NULL, seen = SYSUTCDATETIME()
 WHERE stream = @stream

-- name: stream_queue
-- Returns: queue
SELECT queue FROM {state}.stream WHERE stream = @stream

-- name: outcome
-- Sums up what the tasks of the batches from @first to @batch received.
-- Returns: a row for each queue. queue; bigint: tasks, empty (how many tasks took nothing), messages,
--          expired, diverted, forwarded; query_id, spark_batch bigint, query_name: Spark's names for the
--          last batch, all null if the receipts are of several queries
SELECT queue,
       COUNT_BIG(*) AS tasks,
       CAST(SUM(CASE WHEN messages + expired + diverted + forwarded = 0 THEN 1 ELSE 0 END)
            AS bigint) AS empty,
       SUM(messages) AS messages, SUM(expired) AS expired,
       SUM(diverted) AS diverted, SUM(forwarded) AS forwarded,
       CASE WHEN MIN(query_id) = MAX(query_id) THEN MAX(query_id) END AS query_id,
       CASE WHEN MIN(query_id) = MAX(query_id) THEN MAX(spark_batch) END AS spark_batch,
       CASE WHEN MIN(query_id) = MAX(query_id) THEN MAX(query_name) END AS query_name
  FROM {state}.receipt
 WHERE stream = @stream AND batch BETWEEN @first AND @batch
 GROUP BY queue

-- name: acknowledge
-- Closes a batch for its stream and for Spark's query, and adds up what it received. After that no stream
-- of the query receives for this batch again.
UPDATE {state}.stream
   SET acked_batch = @batch,
       {kept_when_closed},
       messages    = messages + @messages,
       expired     = expired + @expired,
       diverted    = diverted + @diverted,
       forwarded   = forwarded + @forwarded,
       query_name  = ISNULL(@query_name, query_name),
       seen        = SYSUTCDATETIME()
 WHERE stream = @stream

-- name: delete_receipts
DELETE FROM {state}.receipt_page
 WHERE stream = @stream AND batch BETWEEN @first AND @batch;
DELETE FROM {state}.receipt
 WHERE stream = @stream AND batch BETWEEN @first AND @batch

-- name: store_plan
-- Stores the plan of a batch, with its high-water mark. The mark is the highest batch of Spark's query
-- that any stream of the query has closed or has receipts of. A sink may already have the batches up to
-- the mark, so the plan must not be used for them. The mark is stored as JSON: query → batch. Before the
-- first acknowledgement it is not known which query the stream belongs to. Then the JSON has the marks of
-- the 500 queries that were seen last, 23 kB at most. Rows that other sessions are writing now are
-- skipped.
-- Index:   receipt_query, behind the batches that were acknowledged before; stream_query.
UPDATE o
   SET plan_batch = @batch,
       stored_plan = @stored_plan,
       plan_high_water = CASE WHEN o.query_id IS NULL
                    THEN (SELECT TOP (500) m.query_id AS query, MAX(m.spark_batch) AS batch
                            FROM (SELECT r.query_id, r.spark_batch, r.created AS seen
                                    FROM {state}.receipt AS r
                                         WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                                  UNION ALL
                                  SELECT q.query_id, q.spark_batch, q.seen
                                    FROM {state}.stream AS q
                                         WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS m
                           WHERE m.query_id IS NOT NULL
                           GROUP BY m.query_id
                           ORDER BY MAX(m.seen) DESC
                             FOR JSON PATH)
                    ELSE (SELECT o.query_id AS query, MAX(m.spark_batch) AS batch
                            FROM (SELECT r.spark_batch
                                    FROM {state}.receipt AS r
                                         WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                                   WHERE r.query_id = o.query_id AND r.spark_batch > o.spark_batch
                                  UNION ALL
                                  SELECT q.spark_batch
                                    FROM {state}.stream AS q
                                         WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                                   WHERE q.query_id = o.query_id) AS m
                             FOR JSON PATH) END,
       seen       = SYSUTCDATETIME()
  FROM {state}.stream AS o
 WHERE o.stream = @stream AND o.version_5 IS NULL

-- name: receipts
-- Lists receipts without their payloads, oldest first. Skips receipts that a task is writing now.
-- Returns: stream, queue, batch, task, query_id, spark_batch, messages, bytes, settled, created, seen,
--          login; entitled bit: whether the login that wrote the receipt may receive from its queue. Here
--          it is always 1, because SQL Server does not show a login what another login may do
SELECT r.stream, r.queue, r.batch, CAST(r.task AS bigint) AS task, r.query_id, r.spark_batch,
       r.messages, r.bytes, r.settled, r.created AS created, o.seen AS seen, r.login,
       CAST(1 AS bit) AS entitled
  FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
  LEFT JOIN {state}.stream AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON o.stream = r.stream
 WHERE (@stream IS NULL OR r.stream = @stream)
   AND (@queue_name IS NULL OR r.queue = @queue_name)
 ORDER BY r.created, r.stream, r.batch, r.task

-- name: drop_receipt
-- Deletes one receipt with its pages, and returns it.
-- Returns: queue, messages, settled, payload, unpacked, query_id, spark_batch of the deleted receipt; no
--          row if there is no such receipt
DELETE FROM {state}.receipt_page
 WHERE stream = @stream AND batch = @batch AND task = @task;
DELETE FROM {state}.receipt
OUTPUT deleted.queue, deleted.messages, deleted.settled, deleted.payload, deleted.unpacked,
       deleted.query_id, deleted.spark_batch
 WHERE stream = @stream AND batch = @batch AND task = @task

-- name: close_batch
-- Closes a batch when an operator has returned or dropped one of its receipts. After that no stream of
-- Spark's query receives for this batch, not even one with a restored checkpoint.
UPDATE {state}.stream
   SET acked_batch = CASE WHEN acked_batch > @batch THEN acked_batch ELSE @batch END,
       {kept_when_closed}
 WHERE stream = @stream
