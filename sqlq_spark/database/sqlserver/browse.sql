-- part: page
-- A page of a range of seqs; other statements contain this part.
FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion

-- name: weigh_page
-- Reads the sizes of the messages of a page, before `browse` reads the page. The client then ends the
-- page where the messages have enough bytes (see calls.py). One statement for both would spool the bodies
-- in tempdb.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: seq bigint, bytes bigint; by seq
SELECT TOP (@messages) RowVersion AS seq, {message_bytes} AS bytes
{page}

-- name: browse
-- Reads a page of a range, without locked rows. Of a message larger than @largest bytes it reads only the
-- size.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: the columns of receive, by seq; large bigint: null, or the bytes of a message that is larger
--          than @largest. Headers and body of such a message are null
SELECT CAST(Id AS binary(16)) AS id,
       CASE WHEN Expires < '99991231' THEN Expires END AS expires,
       CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CASE WHEN bytes <= @largest THEN CAST(Headers AS nvarchar(max)) END AS varbinary(max))
           AS headers,
       CASE WHEN bytes <= @largest THEN Body END AS body,
       RowVersion AS seq,
       CASE WHEN bytes > @largest THEN bytes END AS large
  FROM (SELECT TOP (@messages)
               Id, Expires, Headers, Body, RowVersion,
               {message_bytes} AS bytes
        {page}) AS page
 ORDER BY RowVersion

-- name: browse_seq
-- Reads a page of a range without headers and bodies.
SELECT TOP (@messages) CAST(Id AS binary(16)) AS id,
       CASE WHEN Expires < '99991231' THEN Expires END AS expires, RowVersion AS seq
{page}

-- name: browse_headers
-- Reads the beginning of the headers of each message of a page, without locked rows.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: headers as UTF-16 bytes, seq bigint; by seq
SELECT TOP (@messages)
       CAST(LEFT(CAST(Headers AS nvarchar(max)), 65536) AS varbinary(max)) AS headers,
       RowVersion AS seq
{page}

-- name: purge
-- Deletes all messages, as the transport does with PurgeOnStartup.
-- Locks:   each row until commit, or the whole table; waits for rows that others hold.
-- Returns: messages bigint
DELETE FROM {queue};
SELECT ROWCOUNT_BIG() AS messages

-- name: purge_range
-- Deletes the messages in a range of seqs.
-- Locks:   each row until commit, or the whole table; waits for rows that others hold.
-- Index:   Index_RowVersion.
-- Returns: messages bigint
DELETE FROM {queue} WHERE RowVersion >= @first AND RowVersion < @stop;
SELECT ROWCOUNT_BIG() AS messages

-- name: purge_expired
-- Deletes messages that have expired, at most @messages. It leaves out those that another session holds.
-- It finds them by Index_Expires without keeping a lock in that index, and deletes them by RowVersion and
-- the condition that they have expired. A delete by Index_Expires could deadlock with a receiver, because
-- it would lock the indexes in another order, and would wait for rows in the other indexes.
-- Locks:   an update lock for each message, until commit. It never waits for a row.
-- Index:   Index_Expires; without it, it reads the whole table. Index_RowVersion, one seek for each
--          message.
-- Returns: messages bigint
DECLARE @found TABLE (seq bigint NOT NULL);
DECLARE @gone bigint = 0, @taken bigint = 1;
WHILE @taken > 0 AND @gone < @messages
BEGIN
    DELETE FROM @found;
    INSERT INTO @found (seq)
    SELECT TOP (CASE WHEN @messages - @gone < 2000 THEN @messages - @gone ELSE 2000 END)
           RowVersion
      FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Expires <= GETUTCDATE();
    DELETE q
      FROM @found AS f
     INNER LOOP JOIN {queue} AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON q.RowVersion = f.seq AND q.Expires <= GETUTCDATE()
    OPTION (MAXDOP 1);
    SET @taken = ROWCOUNT_BIG();
    SET @gone = @gone + @taken;
END;
SELECT @gone AS messages

-- part: table_figures
-- What the catalogue says of a table's size, and the number of its messages; other statements contain
-- this part.
DECLARE @rows bigint, @stored bigint, @bytes bigint, @count bigint;
SELECT @stored = SUM(CASE WHEN p.index_id < 2 AND a.type = 1 THEN a.data_pages END) * 8192,
       @rows = SUM(CASE WHEN p.index_id < 2 AND a.type = 1 THEN p.rows END),
       @bytes = SUM(a.total_pages) * 8192
  FROM {queue_catalog}sys.partitions AS p
  JOIN {queue_catalog}sys.allocation_units AS a
    ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
 WHERE p.object_id = OBJECT_ID({queue_text}, N'U');
DECLARE @large bit = CASE WHEN @stored > @largest THEN 1 ELSE 0 END;
SELECT @count = CASE WHEN @large = 1 THEN ISNULL(@rows, 0)
                     ELSE (SELECT COUNT_BIG(*)
                             FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) END;

-- name: stats
-- Counts the messages of a queue. In a table of more than @largest bytes their number is an estimate: the
-- rows that the catalogue counts. If @largest is null, it always counts. Each figure is a query of its
-- own, so that an index can answer it. No index is named, because a table may lack it. No query reads
-- headers or bodies.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion and Index_Expires.
-- Returns: messages, expired (null if estimated), bytes of table and indexes, first and last seq, bigint;
--          estimated bit
{table_figures}
SELECT @count AS messages,
       CASE WHEN @large = 0
            THEN (SELECT COUNT_BIG(*)
                    FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                   WHERE Expires <= GETUTCDATE()) END AS expired,
       ISNULL(@bytes, 0) AS bytes,
       (SELECT MIN(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS first,
       (SELECT MAX(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS last,
       @large AS estimated

-- name: stats_delayed
-- Counts or estimates the delayed messages, as `stats` does. It also counts those that are due.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_Due.
-- Returns: messages, due, bytes of table and indexes, bigint; estimated bit
{table_figures}
SELECT @count AS messages,
       (SELECT COUNT_BIG(*)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Due <= GETUTCDATE()) AS due,
       ISNULL(@bytes, 0) AS bytes, @large AS estimated

-- name: seq_given
-- Reads the highest RowVersion that the table has ever given. A send that was undone has used up its
-- RowVersions too.
-- Returns: given bigint; null if it has given none
SELECT CAST(c.last_value AS bigint) AS given
  FROM {queue_catalog}sys.identity_columns AS c
 WHERE c.object_id = OBJECT_ID({queue_text}, N'U')

-- name: queue_tables
-- Lists the tables of this database that have the columns of a queue and that this login may read. It
-- does not matter who owns them. Only the catalogue is read. HAS_PERMS_BY_NAME returns null for a name of
-- more than 128 characters. This null counts as a right.
-- Locks:   keeps none. Waits for a session that creates or changes a table and has not committed;
--          `blockers` shows it.
-- Returns: schema_name, table_name; messages (an estimate), bytes bigint; by schema_name, table_name
WITH found AS (
    SELECT t.object_id, t.name, s.name AS schema_name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.columns AS c ON c.object_id = t.object_id
     WHERE c.name IN (N'Id', N'Expires', N'Headers', N'Body', N'RowVersion')
     GROUP BY t.object_id, t.name, s.name
    HAVING COUNT(*) = 5
)
SELECT TOP (10000)
       f.schema_name, f.name AS table_name, sizes.messages, sizes.bytes
  FROM found AS f
 CROSS APPLY (SELECT ISNULL(SUM(CASE WHEN p.index_id < 2 AND a.type = 1 THEN p.rows END), 0) AS messages,
                     ISNULL(SUM(a.total_pages), 0) * 8192 AS bytes
                FROM sys.partitions AS p
                JOIN sys.allocation_units AS a
                  ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
               WHERE p.object_id = f.object_id) AS sizes
 WHERE ISNULL(HAS_PERMS_BY_NAME(CONCAT(QUOTENAME(f.schema_name), N'.', QUOTENAME(f.name)),
                                N'OBJECT', N'SELECT'), 1) = 1
 ORDER BY f.schema_name, f.name
