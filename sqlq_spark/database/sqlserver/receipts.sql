-- name: new_reader
INSERT INTO {state}.reader (reader, queue, driver)
VALUES (@reader, @queue_name, @driver)

-- name: lock_reader
-- An update that changes nothing: a lock that is only hinted may be passed over by others.
-- REPEATABLEREAD keeps it where locking is optimized (Azure, 2025) and may end with the statement.
-- Locks:   the reader's row; waits for running tasks.
-- Returns: queue, driver, acked_batch bigint, plan_batch bigint, plan, login
UPDATE {state}.reader WITH (REPEATABLEREAD, ROWLOCK)
   SET driver = driver
OUTPUT inserted.queue, inserted.driver, inserted.acked_batch, inserted.plan_batch, inserted.[plan],
       inserted.login
 WHERE reader = @reader AND login = ISNULL(@login, login)

-- name: claim
-- This driver speaks for the reader from now on; the queues are those that it reads.
UPDATE {state}.reader
   SET driver = @driver, queue = @queue_name, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: reader_queue
-- Returns: queue
SELECT queue FROM {state}.reader WHERE reader = @reader

-- name: outcome
-- What the tasks of the batches up to this one got, a row for each queue.
-- Returns: queue; tasks, empty (tasks that took nothing), messages, expired, diverted,
--          forwarded; bigint
SELECT queue,
       COUNT_BIG(*) AS tasks,
       CAST(SUM(CASE WHEN messages + expired + diverted + forwarded = 0 THEN 1 ELSE 0 END)
            AS bigint) AS empty,
       SUM(messages) AS messages,
       SUM(expired) AS expired,
       SUM(diverted) AS diverted,
       SUM(forwarded) AS forwarded
  FROM {state}.receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch
 GROUP BY queue

-- name: acknowledge
UPDATE {state}.reader
   SET acked_batch = @batch,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END,
       messages    = messages + @messages,
       expired     = expired + @expired,
       diverted    = diverted + @diverted,
       forwarded   = forwarded + @forwarded,
       seen        = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: forget_receipts
DELETE FROM {state}.receipt_page
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch;
DELETE FROM {state}.receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch

-- name: store_plan
UPDATE {state}.reader
   SET plan_batch = @batch, [plan] = @plan, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: receipts
-- Without their payloads, oldest first; those that a task is writing now are passed over.
-- Returns: reader, queue, batch, task, messages, bytes, settled, created, seen, login
SELECT r.reader, r.queue, r.batch, CAST(r.task AS bigint) AS task, r.messages, r.bytes, r.settled,
       r.created AS created_utc, o.seen AS seen_utc, r.login
  FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
  LEFT JOIN {state}.reader AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON o.reader = r.reader
 WHERE (@reader IS NULL OR r.reader = @reader)
   AND (@queue_name IS NULL OR r.queue = @queue_name)
 ORDER BY r.created, r.reader, r.login, r.batch, r.task

-- name: drop_receipt
-- Returns: queue, messages, settled, payload, unpacked of the receipt dropped
DELETE FROM {state}.receipt_page
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task;
DELETE FROM {state}.receipt
OUTPUT deleted.queue, deleted.messages, deleted.settled, deleted.payload, deleted.unpacked
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task

-- name: retire_reader
-- Its receipts were returned or dropped: a checkpoint that comes back must not receive again.
UPDATE {state}.reader
   SET acked_batch = CASE WHEN acked_batch > @batch THEN acked_batch ELSE @batch END,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END
 WHERE reader = @reader AND login = @login

-- name: readers
-- Returns: reader, queue, acked_batch, messages, expired, diverted, forwarded, created, seen,
--          receipts, held
SELECT o.reader, o.queue, o.acked_batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created AS created_utc, o.seen AS seen_utc, h.receipts, h.held
  FROM {state}.reader AS o
 CROSS APPLY (SELECT COUNT_BIG(*) AS receipts, ISNULL(SUM(r.messages), 0) AS held
                FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
               WHERE r.reader = o.reader) AS h
 ORDER BY o.seen DESC
