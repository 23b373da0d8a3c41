-- name: dues
-- Computes due times from @delays, which are milliseconds, and from @moments, which are times in UTC.
-- Both are JSON arrays of texts. DATEADD takes at most 24 days of milliseconds, so days are added
-- separately. A time in the past becomes the current time, because a datetime cannot be before 1753.
-- Returns: one row: delays, moments: the due times in the order of the arrays, separated by commas
SELECT STUFF((SELECT N',' + CONVERT(nvarchar(30), DATEADD(
                        millisecond, CAST(CAST(j.value AS bigint) % 86400000 AS int),
                        DATEADD(day, CAST(CAST(j.value AS bigint) / 86400000 AS int),
                                GETUTCDATE())), 126)
                FROM OPENJSON(@delays) AS j
               ORDER BY CAST(j.[key] AS int)
                 FOR XML PATH('')), 1, 1, N'') AS delays,
       STUFF((SELECT N',' + CASE WHEN CAST(j.value AS datetime2(6)) > GETUTCDATE()
                                 THEN j.value ELSE CONVERT(nvarchar(30), GETUTCDATE(), 126) END
                FROM OPENJSON(@moments) AS j
               ORDER BY CAST(j.[key] AS int)
                 FOR XML PATH('')), 1, 1, N'') AS moments

-- name: due_index
-- Finds the indexes on the due time, so that `move_due` may use FORCESEEK. A table of an old release may
-- have no such index. Then FORCESEEK would fail with error 8622. `check_delayed` contains this statement.
-- Returns: found int, a row for each index
SELECT 1 AS found
  FROM {delayed_catalog}sys.indexes AS i
 WHERE i.object_id = OBJECT_ID({delayed_text}, N'U')
   AND i.type IN (1, 2) AND i.is_disabled = 0 AND i.has_filter = 0
   AND INDEX_COL({delayed_text}, i.index_id, 1) = N'Due'

-- name: move_due
-- Moves due messages into the queue, with new ids, as the transport does. Those that have been due
-- longest come first. At any time a message is in exactly one of the two tables.
-- {seek}: FORCESEEK, if there is an index on Due. It is needed because with stale statistics the server
-- may choose a scan and a sort, which lock every message that is due.
-- {headers_fit}: a condition that is false for headers that the queue's varchar would store with question
-- marks. Such messages stay.
-- Locks:   the delayed rows, until commit; skips rows that others hold. Never waits for a row.
-- Index:   Index_Due, a seek.
-- Returns: one row: moved bigint; renamed bigint: 0, because new ids cannot be in the queue already;
--          unfit bigint: how many are due and stay, because their headers do not fit
DECLARE @now datetime = GETUTCDATE(), @moved bigint;
WITH message AS (
    SELECT TOP (@messages) Headers, Body, Due
      FROM {delayed} WITH ({seek}UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Due <= @now AND {headers_fit}
     ORDER BY Due
)
DELETE FROM message
OUTPUT NEWID(), {one}deleted.Headers, ISNULL(deleted.Body, 0x)
  INTO {queue} (Id, {recoverable}Headers, Body);
SET @moved = ROWCOUNT_BIG();
SELECT @moved AS moved, CAST(0 AS bigint) AS renamed,
       (SELECT COUNT_BIG(*)
          FROM {delayed} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Due <= @now AND NOT ({headers_fit})) AS unfit

-- name: next_due
-- Reads when the next delayed message is due.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_Due.
-- Returns: seconds float until the next message is due, null if none waits. It is below 0 if a message is
--          due already, because a full batch has left it
SELECT CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), MIN(Due)) AS float) / 1000 AS seconds
  FROM {delayed} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
