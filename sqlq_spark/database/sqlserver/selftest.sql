-- name: selftest_facts
-- Reads facts about the server for the report of `sqlqueue selftest`. The names that begin with `may` are
-- rights of this login. Each right is asked of the database. If a database cannot have such a right, it
-- is asked of the server.
-- Returns: name, value. The value is null if the server does not know the fact or the right, for example
--          because the server is older
SELECT f.name COLLATE DATABASE_DEFAULT AS name,
       CAST(f.value AS nvarchar(1000)) COLLATE DATABASE_DEFAULT AS value
  FROM sys.databases AS d
 CROSS APPLY (VALUES
        (N'version', CAST(@@VERSION AS sql_variant)), (N'edition', SERVERPROPERTY(N'Edition')),
        (N'update', SERVERPROPERTY(N'ProductUpdateLevel')), (N'session', @@SPID), (N'user_options', @@OPTIONS),
        (N'service_tier', DATABASEPROPERTYEX(DB_NAME(), N'ServiceObjective')), (N'database', DB_NAME()),
        (N'optimized_locking', DATABASEPROPERTYEX(DB_NAME(), N'IsOptimizedLockingOn')),
        (N'level', d.compatibility_level), (N'row_versions', d.is_read_committed_snapshot_on),
        (N'snapshots', d.snapshot_isolation_state_desc), (N'collation', d.collation_name),
        (N'server_collation', SERVERPROPERTY(N'Collation'))) AS f (name, value)
 WHERE d.name = DB_NAME()
UNION ALL
SELECT CONCAT(N'may ', r.name) COLLATE DATABASE_DEFAULT,
       CAST(COALESCE(HAS_PERMS_BY_NAME(QUOTENAME(DB_NAME()), N'DATABASE', r.name),
                     HAS_PERMS_BY_NAME(NULL, NULL, r.name)) AS nvarchar(10))
  FROM (VALUES (N'CREATE SCHEMA'), (N'SHOWPLAN'), (N'VIEW DATABASE STATE'), (N'VIEW SERVER STATE'),
               (N'VIEW DATABASE PERFORMANCE STATE'), (N'VIEW SERVER PERFORMANCE STATE'),
               (N'KILL DATABASE CONNECTION'), (N'ALTER ANY CONNECTION'), (N'ALTER ANY ROLE'),
               (N'ALTER ANY LOGIN'), (N'CREATE ANY DATABASE')) AS r (name)

-- name: selftest_locks
-- Lists the locks of this session on a table that could stop other sessions from using single rows.
-- Returns: mode of each lock
SELECT DISTINCT request_mode AS mode
  FROM sys.dm_tran_locks
 WHERE request_session_id = @@SPID AND resource_type = N'OBJECT' AND resource_database_id = DB_ID()
   AND resource_associated_entity_id = OBJECT_ID({queue_text}, N'U') AND request_mode NOT IN (N'IS', N'IX', N'Sch-S')

-- name: selftest_end
-- Ends a session, as a broken network would.
EXEC (N'KILL ' + @session)

-- name: selftest_remains
-- Writes the statements that drop what the selftest has created. It recognises these objects by their
-- names. Users are dropped before their roles, and tables before their schemas. Each name is quoted,
-- because anybody who may create a schema chooses its name. Names of databases and logins have the
-- server's collation. Other names have the database's collation.
-- Returns: text
SELECT m.text
  FROM (SELECT s.name COLLATE DATABASE_DEFAULT AS name,
               CONCAT(N'DROP TABLE ', QUOTENAME(s.name), N'.', QUOTENAME(t.name)) COLLATE DATABASE_DEFAULT AS text
          FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id
        UNION ALL
        SELECT s.name COLLATE DATABASE_DEFAULT,
               CONCAT(N'DROP SCHEMA ', QUOTENAME(s.name)) COLLATE DATABASE_DEFAULT
          FROM sys.schemas AS s
        UNION ALL
        SELECT p.name COLLATE DATABASE_DEFAULT,
               CONCAT(IIF(p.type = 'R', N'DROP ROLE ', N'DROP USER '), QUOTENAME(p.name),
                      IIF(p.authentication_type = 1, N'; DROP LOGIN ' + QUOTENAME(p.name), NULL))
               COLLATE DATABASE_DEFAULT
          FROM sys.database_principals AS p
        UNION ALL
        SELECT d.name COLLATE DATABASE_DEFAULT,
               CONCAT(N'ALTER DATABASE ', QUOTENAME(d.name COLLATE DATABASE_DEFAULT),
                      N' SET SINGLE_USER WITH ROLLBACK IMMEDIATE; DROP DATABASE ',
                      QUOTENAME(d.name COLLATE DATABASE_DEFAULT)) COLLATE DATABASE_DEFAULT
          FROM sys.databases AS d) AS m
 WHERE m.name COLLATE Latin1_General_100_BIN2 BETWEEN @lowest AND @highest
 ORDER BY m.text DESC

-- name: selftest_costs
-- Reads what the server has measured for each plan of a statement whose text contains @schema_name.
-- Returns: statement; executions bigint; cpu, elapsed (us), reads (pages), max_grant_kb,
--          max_used_grant_kb, max_spills (pages written to tempdb) bigint
SELECT SUBSTRING(t.text, CHARINDEX(N'sqlqueue:', t.text) + 9, 30) AS statement, s.execution_count AS executions,
       s.total_worker_time AS cpu, s.total_elapsed_time AS elapsed, s.total_logical_reads AS reads,
       s.max_grant_kb, s.max_used_grant_kb, s.max_spills
  FROM sys.dm_exec_query_stats AS s
 CROSS APPLY sys.dm_exec_sql_text(s.sql_handle) AS t
 WHERE t.text LIKE N'%sqlqueue:%' AND CHARINDEX(@schema_name, t.text) > 0
