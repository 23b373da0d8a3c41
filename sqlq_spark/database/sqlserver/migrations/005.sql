-- name: migrate_5
-- State tables of version 4 become those of version 5. Tables of another version are left alone.
-- Adds the table `heartbeat`, the names of queries, and `stream.removed`. All rows stay as they are.
-- It renames `version_4` to `version_5`. The statements of the old release name `version_4`, so they fail
-- after this step. A login that may write `stream` may use `heartbeat`. Each statement is executed as
-- text, as in migrate_4.
-- Locks:   stream, receipt and dispatch_log as a whole, until commit. Waits for tasks and drivers that run.
DECLARE @before_5 int, @text_5 nvarchar(max) = N'';
IF OBJECT_ID(N'{state_escaped}.version', N'U') IS NOT NULL
    SELECT @before_5 = MAX(version) FROM {state}.version;
IF @before_5 = 4
BEGIN
    EXEC sys.sp_rename N'{state_escaped}.stream.version_4', N'version_5', N'COLUMN';
    EXEC (N'ALTER TABLE {state_escaped}.stream ADD
                query_name nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL, removed datetime2(3) NULL;');
    EXEC (N'ALTER TABLE {state_escaped}.receipt ADD
                query_name nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL;');
    EXEC sys.sp_rename N'{state_escaped}.dispatch_log.version_4', N'version_5', N'COLUMN';
    EXEC (N'CREATE TABLE {state_escaped}.heartbeat (
                driver  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
                stream  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NULL,
                login   nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
                name    nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL,
                queue   nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
                host    nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL,
                process bigint        NOT NULL,
                shared  bit           NOT NULL,
                started datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
                beat    datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
            );
            ALTER TABLE {state_escaped}.heartbeat SET (LOCK_ESCALATION = DISABLE);');
    SELECT @text_5 = @text_5 + N'GRANT SELECT, INSERT, UPDATE, DELETE ON {state_escaped}.heartbeat TO '
                   + QUOTENAME(USER_NAME(grantee_principal_id)) + N';'
      FROM sys.database_permissions
     WHERE class = 1 AND major_id = OBJECT_ID(N'{state_escaped}.stream') AND minor_id = 0
       AND permission_name = N'UPDATE' AND state IN (N'G', N'W');
    EXEC (@text_5);
    EXEC (N'UPDATE {state_escaped}.version SET version = 5;');
END

-- name: revert_5
-- The step back, for the release of version 4. It drops the names of queries, the heartbeats, and the marks
-- of removed streams: no message depends on them.
-- Locks:   as migrate_5, and heartbeat.
DECLARE @after_5 int;
IF OBJECT_ID(N'{state_escaped}.version', N'U') IS NOT NULL
    SELECT @after_5 = MAX(version) FROM {state}.version;
IF @after_5 = 5
BEGIN
    EXEC (N'DROP TABLE {state_escaped}.heartbeat;');
    EXEC sys.sp_rename N'{state_escaped}.dispatch_log.version_5', N'version_4', N'COLUMN';
    EXEC (N'ALTER TABLE {state_escaped}.receipt DROP COLUMN query_name;');
    EXEC (N'ALTER TABLE {state_escaped}.stream DROP COLUMN query_name, removed;');
    EXEC sys.sp_rename N'{state_escaped}.stream.version_5', N'version_4', N'COLUMN';
    EXEC (N'UPDATE {state_escaped}.version SET version = 4;');
END
