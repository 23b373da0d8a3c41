-- name: check_rows
-- Reads facts of the messages with the lowest RowVersions: how long they live, and how large their
-- headers are. Also reads the highest RowVersion. It reads only the beginning of the headers.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: one row for each of the lowest 50 messages that expires, or one row if none of them expires.
--          last bigint: the highest RowVersion, null if the queue is empty. expires datetime: when the
--          message expires. sent, lives: its headers TimeSent and TimeToBeReceived, null if absent. seq,
--          bytes bigint: the message with the largest headers of the lowest 50, and the size of these
--          headers. Both are the same in each row
WITH lowest AS (
    SELECT TOP (50) RowVersion, Expires,
           LEFT(CAST(Headers AS nvarchar(max)), 16384) AS Headers,
           DATALENGTH(CAST(Headers AS nvarchar(max))) / 2 AS bytes
      FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     ORDER BY RowVersion
), expiring AS (
    SELECT q.Expires AS expires,
           CASE WHEN s.found > 0 AND f.stop - s.found - 24 BETWEEN 1 AND 40
                THEN SUBSTRING(q.Headers, s.found + 24, f.stop - s.found - 24) END AS sent,
           CASE WHEN l.found > 0 AND t.stop - l.found - 32 BETWEEN 1 AND 40
                THEN SUBSTRING(q.Headers, l.found + 32, t.stop - l.found - 32) END AS lives
      FROM lowest AS q
     CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeSent":"', q.Headers) AS found) AS s
     CROSS APPLY (SELECT CHARINDEX(N'"', q.Headers, s.found + 24) AS stop) AS f
     CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeToBeReceived":"', q.Headers) AS found) AS l
     CROSS APPLY (SELECT CHARINDEX(N'"', q.Headers, l.found + 32) AS stop) AS t
     WHERE q.Expires IS NOT NULL
)
SELECT ends.last, e.expires, e.sent, e.lives, heaviest.seq, heaviest.bytes
  FROM (SELECT MAX(RowVersion) AS last
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS ends
  LEFT JOIN (SELECT TOP (1) RowVersion AS seq, bytes FROM lowest ORDER BY bytes DESC) AS heaviest
    ON 1 = 1
  LEFT JOIN expiring AS e ON 1 = 1

-- name: check_owner
-- Counts, among the 100 messages with the lowest RowVersions, those that only the queue's own endpoint
-- can handle. Copies in an audit queue and failed messages in an error queue do not count. It reads only
-- the beginning of the headers, as text, so headers that are not JSON do not matter.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: messages int: the number of saga timeouts, messages for a saga and control messages
SELECT COUNT(*) AS messages
  FROM (SELECT TOP (100) LEFT(CAST(Headers AS nvarchar(max)), 16384) AS text
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         ORDER BY RowVersion) AS lowest
 WHERE (text LIKE N'%"NServiceBus.IsSagaTimeoutMessage":%' OR text LIKE N'%"NServiceBus.SagaId":%'
        OR text LIKE N'%"NServiceBus.ControlMessage":%')
   AND text NOT LIKE N'%"NServiceBus.ProcessingEnded":%'
   AND text NOT LIKE N'%"NServiceBus.FailedQ":%'
   AND text NOT LIKE N'%"NServiceBus.ExceptionInfo.ExceptionType":%'

-- name: check_queue
-- Finds what is wrong with a queue's table. @last is the highest RowVersion, or null if it is not known.
-- @expiring says whether messages expire. Only the catalogue is read, which a login with any right on the
-- table may read. If the table's name has more than 128 characters, HAS_PERMS_BY_NAME returns null, and
-- the right counts as granted. A fix may be a GRANT. It does not name the user if the login has its
-- access by a group, or if the queue is in another database.
-- Returns: name, severity (error, warning, note), found, fix; a row for each finding
DECLARE @table int = OBJECT_ID({queue_text}, N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @grantee nvarchar(258) = IIF(ISNULL(DATABASE_PRINCIPAL_ID(), 0) = 0
                                     OR ISNULL(DB_ID(PARSENAME({queue_text}, 3)), DB_ID()) <> DB_ID(),
                                     N'the_user', @login);
DECLARE @named nvarchar(776) = {queue_text}, @delayed bit = 0;
DECLARE @given bigint, @highest bigint;
DECLARE @columns TABLE (name sysname COLLATE DATABASE_DEFAULT, type sysname COLLATE DATABASE_DEFAULT);
DECLARE @indexed TABLE (first_column sysname COLLATE DATABASE_DEFAULT NULL);
INSERT INTO @columns (name, type)
SELECT c.name, t.name
  FROM {queue_catalog}sys.columns AS c
  JOIN {queue_catalog}sys.types AS t ON t.user_type_id = c.system_type_id
 WHERE c.object_id = @table;
SELECT @given = CAST(ISNULL(i.last_value, 0) AS bigint),
       @highest = CASE t.name WHEN N'int' THEN 2147483647 ELSE 9223372036854775807 END
  FROM {queue_catalog}sys.identity_columns AS i
  JOIN {queue_catalog}sys.types AS t ON t.user_type_id = i.user_type_id
 WHERE i.object_id = @table AND i.name = N'RowVersion';
INSERT INTO @indexed (first_column)
SELECT INDEX_COL(@named, i.index_id, 1)
  FROM {queue_catalog}sys.indexes AS i
 WHERE i.object_id = @table AND i.type IN (1, 2) AND i.is_disabled = 0
   AND (i.has_filter = 0 OR INDEX_COL(@named, i.index_id, 1) = N'Expires');
IF EXISTS (SELECT 1 FROM @columns WHERE name = N'Due')
   AND NOT EXISTS (SELECT 1 FROM @columns WHERE name = N'Id')
    SET @delayed = 1;
SELECT N'column' AS name, N'error' AS severity,
       CONCAT(N'column ', wanted.name, N' is missing: the transport and this source name it')
           COLLATE DATABASE_DEFAULT AS found,
       CONCAT(N'ALTER TABLE ', @named, N' ADD ', wanted.name, N' ', wanted.type)
           COLLATE DATABASE_DEFAULT AS fix
  FROM (VALUES (N'Id', N'uniqueidentifier NOT NULL DEFAULT NEWID()'),
               (N'Expires', N'datetime NULL'),
               (N'Headers', N'nvarchar(max) NOT NULL DEFAULT N''{}'''),
               (N'Body', N'varbinary(max) NULL'),
               (N'RowVersion', N'bigint IDENTITY(1,1) NOT NULL')) AS wanted (name, type)
 WHERE @table IS NOT NULL AND @delayed = 0
   AND NOT EXISTS (SELECT 1 FROM @columns AS c WHERE c.name = wanted.name COLLATE DATABASE_DEFAULT)
UNION ALL
SELECT N'column_type', N'error',
       CONCAT(N'column ', k.name, N' is ', c.type, N': expected ', k.wanted) COLLATE DATABASE_DEFAULT,
       CONCAT(N'-- drop the indexes that have ', k.name, N', and create them again afterwards', CHAR(10),
              N'ALTER TABLE ', @named, N' ALTER COLUMN ', k.name, N' ', k.wanted) COLLATE DATABASE_DEFAULT
  FROM @columns AS c
  JOIN ({queue_types}) AS k ON k.name = c.name COLLATE DATABASE_DEFAULT
 WHERE k.name <> N'Due' AND @delayed = 0
 GROUP BY k.name, k.wanted, c.type
HAVING MAX(CASE WHEN k.kind = c.type COLLATE DATABASE_DEFAULT THEN 1 ELSE 0 END) = 0
UNION ALL
SELECT law.name COLLATE DATABASE_DEFAULT, law.severity COLLATE DATABASE_DEFAULT,
       law.found COLLATE DATABASE_DEFAULT, law.fix COLLATE DATABASE_DEFAULT
  FROM (SELECT COALESCE(HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'SELECT')
                        * HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'DELETE'), 1) AS may_receive,
               COALESCE(HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'INSERT'), 1) AS may_send,
               (SELECT MAX(c.type) FROM @columns AS c WHERE c.name = N'Headers') AS headers,
               (SELECT MAX(c.type) FROM @columns AS c WHERE c.name = N'RowVersion') AS seq
       ) AS f
 CROSS APPLY (VALUES
    (N'delayed_table', N'error',
     CASE WHEN @delayed = 1 THEN 1 END,
     N'a table of delayed messages, and no queue',
     N'name its queue; `sqlqueue move-due` moves what is due into that'),
    (N'expires_index', N'warning',
     CASE WHEN @expiring = 1 AND NOT EXISTS (
                    SELECT 1 FROM @indexed AS i WHERE i.first_column = N'Expires')
          THEN 1 END,
     N'messages expire, and no index on Expires finds them: a purge reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_Expires ON ', @named,
            N' (Expires) INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL')),
    (N'headers_type', N'warning',
     CASE WHEN f.headers = N'varchar' THEN 1 END,
     CONCAT(N'column Headers is ', f.headers, N': characters beyond its code page are lost'),
     CONCAT(N'ALTER TABLE ', @named, N' ALTER COLUMN Headers nvarchar(max) NOT NULL')),
    (N'seq_index', N'error',
     CASE WHEN f.seq IS NOT NULL AND @delayed = 0 AND NOT EXISTS (
                    SELECT 1 FROM @indexed AS i WHERE i.first_column = N'RowVersion')
          THEN 1 END,
     N'RowVersion has no index: nothing can be received, and every peek reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_RowVersion ON ', @named, N' (RowVersion)')),
    (N'seq_end', N'warning',
     CASE WHEN f.seq = N'int' AND ISNULL(@given, @last) >= 0.8 * 2147483647 THEN 1 END,
     CONCAT(N'RowVersion has come to ', ISNULL(@given, @last),
            N' of 2147483647: at the end every INSERT fails'),
     CONCAT(N'-- drop the indexes that have RowVersion, and create them again afterwards', CHAR(10),
            N'ALTER TABLE ', @named, N' ALTER COLUMN RowVersion bigint NOT NULL')),
    -- this happens if rows were copied with their RowVersions, or if the identity was set back
    (N'sequence_behind', CASE WHEN @last >= 0.8 * @highest THEN N'warning' ELSE N'error' END,
     CASE WHEN @last > @given THEN 1 END,
     CONCAT(N'the highest RowVersion is ', @last, N', but the identity has given no more than ', @given,
            N': RowVersion repeats where the identity meets one that is taken'),
     CASE WHEN @last >= 0.8 * @highest
          THEN CONCAT(N'SELECT Id, Expires, RowVersion FROM ', @named, N' WHERE RowVersion = ', @last)
          ELSE CONCAT(N'DBCC CHECKIDENT (N''', REPLACE(@named, N'''', N''''''), N''', RESEED, ', @last,
                      N')') END),
    (N'receive_right', CASE WHEN f.may_send = 1 THEN N'note' ELSE N'error' END,
     CASE WHEN f.may_receive = 0 AND @delayed = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not receive from it'),
     CONCAT({queue_use}, N'GRANT SELECT, DELETE ON ', {queue_here}, N' TO ', @grantee)),
    (N'send_right', CASE WHEN f.may_receive = 1 THEN N'note' ELSE N'error' END,
     CASE WHEN f.may_send = 0 AND @delayed = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not send to it'),
     CONCAT({queue_use}, N'GRANT INSERT ON ', {queue_here}, N' TO ', @grantee))
    ) AS law (name, severity, broken, found, fix)
 WHERE @table IS NOT NULL AND law.broken = 1
UNION ALL
SELECT N'altered_by_others', N'note',
       CONCAT(N'user ', QUOTENAME(USER_NAME(p.grantee_principal_id)),
              N' may alter it, and so add code that runs as whoever uses it'),
       CONCAT(N'REVOKE ', p.permission_name COLLATE DATABASE_DEFAULT, N' ON ',
              CASE p.class WHEN 1 THEN @named
                           ELSE CONCAT(N'SCHEMA::', QUOTENAME(SCHEMA_NAME(p.major_id))) END,
              N' FROM ', QUOTENAME(USER_NAME(p.grantee_principal_id)))
  FROM {queue_catalog}sys.database_permissions AS p
 WHERE @table IS NOT NULL
   AND p.type IN (N'AL', N'CL', N'TO')
   AND p.state IN (N'G', N'W')
   AND (p.class = 1 AND p.major_id = @table
        OR p.class = 3 AND p.major_id = OBJECTPROPERTY(@table, N'SchemaId'))
   AND USER_NAME(p.grantee_principal_id) IS NOT NULL
UNION ALL
SELECT N'trigger',
       CASE WHEN HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'DELETE') = 0 THEN N'note' ELSE N'error' END,
       CONCAT(N'its trigger ', QUOTENAME(g.name COLLATE DATABASE_DEFAULT),
              N' runs on DELETE: with it neither .NET endpoints nor a stream can receive'),
       CONCAT(N'ALTER TABLE ', @named, N' DISABLE TRIGGER ',
              QUOTENAME(g.name COLLATE DATABASE_DEFAULT))
  FROM {queue_catalog}sys.triggers AS g
 WHERE g.parent_id = @table AND g.is_disabled = 0 AND @delayed = 0
   AND EXISTS (SELECT 1
                 FROM {queue_catalog}sys.trigger_events AS e
                WHERE e.object_id = g.object_id AND e.type_desc = N'DELETE')

-- name: check_delayed
-- Finds what is wrong with a table of delayed messages. If the table is absent, it finds nothing. It
-- reads only the catalogue. If the login has no right on the table, it probably does not use the table,
-- and missing rights are no findings. Due messages are moved by OUTPUT INTO the queue, which the server
-- refuses if the queue has a trigger, a CHECK, or a foreign key on either side (errors 331 to 333).
-- Returns: the columns of check_queue
DECLARE @table int = OBJECT_ID({delayed_text}, N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @grantee nvarchar(258) = IIF(ISNULL(DATABASE_PRINCIPAL_ID(), 0) = 0
                                     OR ISNULL(DB_ID(PARSENAME({delayed_text}, 3)), DB_ID()) <> DB_ID(),
                                     N'the_user', @login);
DECLARE @into int = OBJECT_ID({queue_text}, N'U');
DECLARE @named nvarchar(776) = {delayed_text};
SELECT N'delayed_column' AS name, N'error' AS severity,
       CONCAT(N'column ', wanted.name, N' is missing: messages cannot be delayed or moved')
           COLLATE DATABASE_DEFAULT AS found,
       CONCAT(N'ALTER TABLE ', @named, N' ADD ', wanted.name, N' ', wanted.type)
           COLLATE DATABASE_DEFAULT AS fix
  FROM (VALUES (N'Headers', N'nvarchar(max) NOT NULL DEFAULT N''{}'''),
               (N'Body', N'varbinary(max) NULL'),
               (N'Due', N'datetime NOT NULL DEFAULT GETUTCDATE()')) AS wanted (name, type)
 WHERE @table IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM {delayed_catalog}sys.columns AS c
                    WHERE c.object_id = @table
                      AND c.name = wanted.name COLLATE DATABASE_DEFAULT)
UNION ALL
SELECT N'delayed_type', N'error',
       CONCAT(N'column ', k.name, N' is ', c.type, N': expected ', k.wanted) COLLATE DATABASE_DEFAULT,
       CONCAT(N'-- drop the indexes that have ', k.name, N', and create them again afterwards', CHAR(10),
              N'ALTER TABLE ', @named, N' ALTER COLUMN ', k.name, N' ', k.wanted) COLLATE DATABASE_DEFAULT
  FROM (SELECT c.name COLLATE DATABASE_DEFAULT AS name, t.name COLLATE DATABASE_DEFAULT AS type
          FROM {delayed_catalog}sys.columns AS c
          JOIN {delayed_catalog}sys.types AS t ON t.user_type_id = c.system_type_id
         WHERE c.object_id = @table) AS c
  JOIN ({queue_types}) AS k ON k.name = c.name
 WHERE k.name IN (N'Headers', N'Body', N'Due')
 GROUP BY k.name, k.wanted, c.type
HAVING MAX(CASE WHEN k.kind = c.type THEN 1 ELSE 0 END) = 0
UNION ALL
SELECT law.name COLLATE DATABASE_DEFAULT, law.severity COLLATE DATABASE_DEFAULT,
       law.found COLLATE DATABASE_DEFAULT, law.fix COLLATE DATABASE_DEFAULT
  FROM (SELECT COALESCE(HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'SELECT'), 1) AS may_select,
               COALESCE(HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'DELETE'), 1) AS may_delete,
               COALESCE(HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'INSERT'), 1) AS may_insert
       ) AS f
 CROSS APPLY (VALUES
    (N'due_index', N'warning',
     CASE WHEN NOT EXISTS (
                    {due_index})
          THEN 1 END,
     N'Due has no index: every look for what is due reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_Due ON ', @named, N' (Due)')),
    (N'move_right', CASE WHEN f.may_delete = 1 THEN N'error' ELSE N'note' END,
     CASE WHEN f.may_select * f.may_delete = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not move what is due'),
     CONCAT({delayed_use}, N'GRANT SELECT, DELETE ON ', {delayed_here}, N' TO ', @grantee)),
    (N'delay_right', N'note',
     CASE WHEN f.may_insert = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not delay messages'),
     CONCAT({delayed_use}, N'GRANT INSERT ON ', {delayed_here}, N' TO ', @grantee))
    ) AS law (name, severity, broken, found, fix)
 WHERE @table IS NOT NULL AND law.broken = 1
UNION ALL
SELECT law.name COLLATE DATABASE_DEFAULT,
       CASE WHEN HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'DELETE') = 0
            THEN N'note' ELSE N'error' END,
       CONCAT(law.found, N': with it neither .NET endpoints nor a stream can move what is due into it')
           COLLATE DATABASE_DEFAULT,
       law.fix COLLATE DATABASE_DEFAULT
  FROM (SELECT N'move_trigger' AS name,
               CONCAT(N'its trigger ', QUOTENAME(g.name COLLATE DATABASE_DEFAULT), N' is enabled') AS found,
               CONCAT(N'ALTER TABLE ', {queue_text}, N' DISABLE TRIGGER ',
                      QUOTENAME(g.name COLLATE DATABASE_DEFAULT)) AS fix
          FROM {queue_catalog}sys.triggers AS g
         WHERE g.parent_id = @into AND g.is_disabled = 0
        UNION ALL
        SELECT N'move_foreign_key',
               CONCAT(N'foreign key ', QUOTENAME(k.name COLLATE DATABASE_DEFAULT),
                      CASE WHEN k.parent_object_id = @into
                           THEN N' is on it' ELSE N' refers to it' END),
               CONCAT({queue_use}, N'ALTER TABLE ', QUOTENAME(s.name COLLATE DATABASE_DEFAULT), N'.',
                      QUOTENAME(o.name COLLATE DATABASE_DEFAULT), N' DROP CONSTRAINT ',
                      QUOTENAME(k.name COLLATE DATABASE_DEFAULT))
          FROM {queue_catalog}sys.foreign_keys AS k
          JOIN {queue_catalog}sys.objects AS o ON o.object_id = k.parent_object_id
          JOIN {queue_catalog}sys.schemas AS s ON s.schema_id = o.schema_id
         WHERE @into IN (k.parent_object_id, k.referenced_object_id)
        UNION ALL
        SELECT N'move_check',
               CONCAT(N'its constraint ', QUOTENAME(k.name COLLATE DATABASE_DEFAULT), N' is a CHECK'),
               CONCAT(N'ALTER TABLE ', {queue_text}, N' NOCHECK CONSTRAINT ',
                      QUOTENAME(k.name COLLATE DATABASE_DEFAULT))
          FROM {queue_catalog}sys.check_constraints AS k
         WHERE k.parent_object_id = @into AND k.is_disabled = 0) AS law
 WHERE @table IS NOT NULL

-- part: sees_sessions
-- Whether this login sees the sessions of others. Other statements contain this part. For that it needs a
-- right on the server, or on Azure SQL Database (EngineEdition 5) and Fabric (12) a right on the
-- database. On SQL Server 2022 and Azure the narrower right VIEW … PERFORMANCE STATE is enough too. A
-- server that does not know this right returns null for it.
(1 IN (HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE'),
       HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE'))
 OR SERVERPROPERTY(N'EngineEdition') IN (5, 12)
    AND 1 IN (HAS_PERMS_BY_NAME(QUOTENAME(DB_NAME()), N'DATABASE', N'VIEW DATABASE STATE'),
              HAS_PERMS_BY_NAME(QUOTENAME(DB_NAME()), N'DATABASE', N'VIEW DATABASE PERFORMANCE STATE')))

-- name: check_server
-- Finds transactions that are open for more than @seconds seconds, because they may hold messages of any
-- queue of this database. Also finds a compatibility level without JSON, and a Fabric database, which
-- mirrors its tables. In Azure's small tiers and elastic pools, VIEW DATABASE STATE is not enough for the
-- view of transactions, and the server refuses this statement. The caller then runs it again with a null
-- for @seconds, which leaves the transactions out.
-- Returns: the columns of check_queue
SELECT N'level' AS name, N'error' AS severity,
       CONCAT(N'compatibility level ', d.compatibility_level,
              N': messages are sent as JSON, which needs 130') AS found,
       N'ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 130' AS fix
  FROM sys.databases AS d
 WHERE d.name = DB_NAME() AND d.compatibility_level < 130
UNION ALL
SELECT N'fabric', N'error',
       N'this is a Fabric SQL database: it mirrors every table, also the bodies in receipts, and drops grants',
       N'move the queues and the state tables to Azure SQL Database or SQL Server'
 WHERE SERVERPROPERTY(N'EngineEdition') = 12;
IF @seconds IS NULL
    RETURN;
IF {sees_sessions}
    SELECT N'old_transaction' AS name, N'warning' AS severity,
           CONCAT(N'session ', s.session_id, N' (', s.status COLLATE DATABASE_DEFAULT, N', application ',
                  s.program_name COLLATE DATABASE_DEFAULT, N') has had a transaction open for ',
                  DATEDIFF(second, t.transaction_begin_time, GETDATE()),
                  N' s: what it has locked no one receives') AS found,
           CONCAT(N'KILL ', s.session_id) AS fix
      FROM sys.dm_tran_active_transactions AS t
      JOIN sys.dm_tran_session_transactions AS x ON x.transaction_id = t.transaction_id
      JOIN sys.dm_exec_sessions AS s ON s.session_id = x.session_id
     WHERE x.is_user_transaction = 1
       AND s.database_id = DB_ID()
       AND s.session_id <> @@SPID
       AND t.transaction_begin_time < DATEADD(second, -CAST(@seconds AS float), GETDATE())
ELSE
    SELECT N'sessions_right' AS name, N'note' AS severity,
           CONCAT(N'login ', QUOTENAME(SUSER_SNAME()),
                  N' may not see how old the transactions of other logins are') AS found,
           CASE WHEN SERVERPROPERTY(N'EngineEdition') IN (5, 12)
                THEN CONCAT(N'GRANT VIEW DATABASE STATE TO ',
                            IIF(ISNULL(DATABASE_PRINCIPAL_ID(), 0) = 0, N'the_user', QUOTENAME(USER_NAME())))
                ELSE CONCAT(N'USE master; GRANT VIEW SERVER STATE TO ',
                            IIF(SUSER_ID(SUSER_SNAME()) IS NULL, N'the_login', QUOTENAME(SUSER_SNAME()))) END
           AS fix

-- name: check_state
-- Finds what is wrong with the settings of the state tables. It reads only the catalogue.
-- Returns: the columns of check_queue
SELECT N'state_unlogged' AS name, N'error' AS severity,
       CONCAT(N'state table ', QUOTENAME(s.name), N'.', QUOTENAME(t.name),
              N' is SCHEMA_ONLY: a restart of the server loses messages in receipts') AS found,
       CONCAT(N'stop the streams and sinks, return the receipts, drop ', QUOTENAME(s.name), N'.',
              QUOTENAME(t.name), N', and run `sqlqueue install`') AS fix
  FROM sys.tables AS t
  JOIN sys.schemas AS s ON s.schema_id = t.schema_id
 WHERE s.name = @state_name
   AND t.durability_desc = N'SCHEMA_ONLY'

-- name: state_schemas
-- Lists the schemas that seem to have state tables: those with at least two tables of three well-known
-- names, because one table may be missing. If @schema_name is not null, only that schema is looked at.
-- The server shows a login only the tables on which it has a right. So a schema is also listed if it has
-- a name that `script --domain` makes. Roles are not listed, because the server shows a login only its
-- own.
-- Returns: schema, may_enter bit (whether this login may read the version), roles (always empty)
SELECT s.name AS [schema],
       CAST(COALESCE(HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.version', N'OBJECT', N'SELECT'), 0)
            AS bit) AS may_enter,
       N'' AS roles
  FROM sys.schemas AS s
 WHERE s.name = ISNULL(@schema_name, s.name)
   AND (s.name = N'sqlqueue' OR s.name LIKE N'sqlqueue[_]%'
        OR 1 < (SELECT COUNT(*)
                  FROM sys.objects AS o
                 WHERE o.schema_id = s.schema_id
                   AND o.name IN (N'receipt_page', N'staging_page', N'dispatch_log')))
 ORDER BY s.name

-- name: blockers
-- Finds transactions that have locked a whole table of this database, or that wait for such a lock. Also
-- finds transactions that have held locks on messages for more than @seconds seconds. A login that may not
-- see the sessions of others gets no row. For maintainers:
-- - The locks of a session on a table become one row. With 16 processors and more, the server shows a
--   table lock as several locks, one for each processor.
-- - A lock of any mode but IS, IX, IU and Sch-S keeps receivers and senders out.
-- - The list of locks is long, so it is read only if some transaction is older than 10 s. The search for
--   such a transaction leaves out two transactions of the server itself, which may stay open for ever.
-- - Session -2 stands for distributed transactions whose sessions are gone.
-- - The table's name is read from the catalogue with NOLOCK. OBJECT_NAME would wait for a Sch-M lock,
--   which this statement must report. With NOLOCK the name can be read while another session changes the
--   table, although the server does not promise that.
-- Locks:   keeps none, waits for no row.
-- Returns: schema_name, table_name, name, severity, found, fix
IF {sees_sessions}
   AND EXISTS (SELECT 1
                 FROM sys.dm_tran_active_transactions AS t
                WHERE t.transaction_begin_time < DATEADD(second, -10, GETDATE())
                  AND t.name NOT IN (N'worktable', N'LobStorageProviderSession'))
    SELECT TOP (1000)
           n.name AS schema_name, o.name AS table_name, law.name,
           CASE law.name WHEN N'locked' THEN N'error' ELSE N'warning' END AS severity,
           CONCAT(CASE WHEN l.session_id = -2 THEN N'a distributed transaction without a session'
                       ELSE CONCAT(N'session ', l.session_id, N' (', s.status COLLATE DATABASE_DEFAULT,
                                   N', application ', s.program_name COLLATE DATABASE_DEFAULT, N')') END,
                  CASE WHEN law.name = N'locked_messages' THEN N' has locked messages of it'
                       WHEN l.waits = 0 THEN N' has locked the whole table'
                       ELSE N' waits to lock the whole table, and all others wait behind it' END,
                  N' for ' + CAST(DATEDIFF(second, l.began, GETDATE()) AS nvarchar(20)) + N' s') AS found,
           CASE WHEN l.session_id = -2 THEN CONCAT(N'KILL ''', l.unit_of_work, N'''')
                ELSE CONCAT(N'KILL ', l.session_id) END AS fix
      FROM (SELECT k.request_session_id AS session_id, k.resource_associated_entity_id AS table_id,
                   CAST(k.request_owner_guid AS nvarchar(36)) AS unit_of_work,
                   MIN(t.transaction_begin_time) AS began,
                   MAX(CASE WHEN k.request_mode IN (N'IX', N'IU') THEN 1 ELSE 0 END) AS has_rows,
                   MAX(w.is_whole) AS has_table,
                   MAX(CASE WHEN k.request_status <> N'GRANT' THEN w.is_whole ELSE 0 END) AS waits
              FROM sys.dm_tran_locks AS k
              LEFT JOIN sys.dm_tran_active_transactions AS t
                ON t.transaction_id = k.request_owner_id AND k.request_owner_type = N'TRANSACTION'
             CROSS APPLY (SELECT CASE WHEN k.request_mode IN (N'IS', N'IX', N'IU', N'Sch-S')
                                      THEN 0 ELSE 1 END AS is_whole) AS w
             WHERE k.resource_type = N'OBJECT'
               AND k.resource_database_id = DB_ID()
               AND (k.request_session_id > 0 AND k.request_session_id <> @@SPID
                    OR k.request_session_id = -2)
             GROUP BY k.request_session_id, k.resource_associated_entity_id, k.request_owner_guid) AS l
      JOIN sys.objects AS o WITH (NOLOCK) ON o.object_id = l.table_id
      JOIN sys.schemas AS n WITH (NOLOCK) ON n.schema_id = o.schema_id
      LEFT JOIN sys.dm_exec_sessions AS s ON s.session_id = l.session_id
     CROSS APPLY (SELECT CASE WHEN l.has_table = 1 THEN N'locked'
                              ELSE N'locked_messages' END AS name) AS law
     WHERE l.has_table = 1
        OR l.has_rows = 1 AND l.began < DATEADD(second, -CAST(@seconds AS float), GETDATE())
