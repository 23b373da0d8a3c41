-- name: migrate_4
-- State tables of version 3 become those of version 4. Tables of another version are left alone. Columns
-- get the words of the code: `plan` is `stored_plan`, `plan_after` is `plan_high_water`, Spark's number
-- of a batch is `spark_batch`, and a sink's is `sink_batch`. The release of version 3 reads the old
-- names, so its streams and sinks end at their next statement. All rows stay as they are. `version_4` is
-- a column that is always null. The statements of the release of version 4 name it, so they fail when a
-- later step has renamed it. A login that may write `stream` gets the right to use `query_reader`.
-- Each statement is executed as text, because a batch that names a column which does not exist yet does
-- not compile. A column that a constraint names cannot be renamed, so constraints of `stream` are made
-- again.
-- Locks:   stream, receipt, staging, staging_page and dispatch_log as a whole, until commit. Waits for
--          tasks and drivers that run.
DECLARE @before_4 int, @text_4 nvarchar(max) = N'';
IF OBJECT_ID(N'{state_escaped}.version', N'U') IS NOT NULL
    SELECT @before_4 = MAX(version) FROM {state}.version;
IF @before_4 = 3
BEGIN
    SELECT @text_4 = @text_4 + N'ALTER TABLE {state_escaped}.stream DROP CONSTRAINT ' + QUOTENAME(c.name) + N';'
      FROM sys.check_constraints AS c
     WHERE c.parent_object_id = OBJECT_ID(N'{state_escaped}.stream')
       AND (CHARINDEX(N'[plan]', c.[definition]) > 0 OR CHARINDEX(N'[query_batch]', c.[definition]) > 0);
    EXEC (@text_4);
    EXEC sys.sp_rename N'{state_escaped}.stream.[plan]', N'stored_plan', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.stream.plan_after', N'plan_high_water', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.stream.query_batch', N'spark_batch', N'COLUMN';
    EXEC (N'ALTER TABLE {state_escaped}.stream ADD version_4 bit NULL;');
    EXEC (N'ALTER TABLE {state_escaped}.stream ADD
                CHECK ((stored_plan IS NULL AND plan_batch IS NULL)
                       OR (stored_plan IS NOT NULL AND plan_batch IS NOT NULL)),
                CHECK ((query_id IS NULL AND spark_batch IS NULL)
                       OR (query_id IS NOT NULL AND spark_batch IS NOT NULL));');
    EXEC sys.sp_rename N'{state_escaped}.receipt.query_batch', N'spark_batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.staging.batch', N'sink_batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.staging_page.batch', N'sink_batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.dispatch_log.batch', N'sink_batch', N'COLUMN';
    EXEC (N'ALTER TABLE {state_escaped}.dispatch_log ADD destination nvarchar(max) NULL, version_4 bit NULL;');
    EXEC (N'CREATE TABLE {state_escaped}.query_reader (
                query_id nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
                queue    nvarchar(800) COLLATE DATABASE_DEFAULT NOT NULL,
                stream   nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
                run_id   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
                PRIMARY KEY NONCLUSTERED (query_id, queue)
            );
            ALTER TABLE {state_escaped}.query_reader SET (LOCK_ESCALATION = DISABLE);');
    SET @text_4 = N'';
    SELECT @text_4 = @text_4 + N'GRANT SELECT, INSERT, UPDATE ON {state_escaped}.query_reader TO '
                   + QUOTENAME(USER_NAME(grantee_principal_id)) + N';'
      FROM sys.database_permissions
     WHERE class = 1 AND major_id = OBJECT_ID(N'{state_escaped}.stream') AND minor_id = 0
       AND permission_name = N'UPDATE' AND state IN (N'G', N'W');
    EXEC (@text_4);
    EXEC (N'UPDATE {state_escaped}.version SET version = 4;');
END

-- name: revert_4
-- The step back, for the release of version 3. It fails if a write with a name has stored its destination,
-- because that release would send such a write to another destination.
-- Locks:   as migrate_4, and query_reader.
DECLARE @after_4 int, @back_text_4 nvarchar(max) = N'';
IF OBJECT_ID(N'{state_escaped}.version', N'U') IS NOT NULL
    SELECT @after_4 = MAX(version) FROM {state}.version;
IF @after_4 = 4
BEGIN
    EXEC (N'IF EXISTS (SELECT 1 FROM {state_escaped}.dispatch_log WITH (TABLOCKX) WHERE destination IS NOT NULL)
                THROW 51902, N''dispatch_log has destinations, which version 3 does not know'', 1;');
    EXEC (N'DROP TABLE {state_escaped}.query_reader;');
    EXEC (N'ALTER TABLE {state_escaped}.dispatch_log DROP COLUMN version_4, destination;');
    EXEC sys.sp_rename N'{state_escaped}.dispatch_log.sink_batch', N'batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.staging_page.sink_batch', N'batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.staging.sink_batch', N'batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.receipt.spark_batch', N'query_batch', N'COLUMN';
    SELECT @back_text_4 = @back_text_4 + N'ALTER TABLE {state_escaped}.stream DROP CONSTRAINT '
                          + QUOTENAME(c.name) + N';'
      FROM sys.check_constraints AS c
     WHERE c.parent_object_id = OBJECT_ID(N'{state_escaped}.stream')
       AND (CHARINDEX(N'[stored_plan]', c.[definition]) > 0 OR CHARINDEX(N'[spark_batch]', c.[definition]) > 0);
    EXEC (@back_text_4);
    EXEC (N'ALTER TABLE {state_escaped}.stream DROP COLUMN version_4;');
    EXEC sys.sp_rename N'{state_escaped}.stream.spark_batch', N'query_batch', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.stream.plan_high_water', N'plan_after', N'COLUMN';
    EXEC sys.sp_rename N'{state_escaped}.stream.stored_plan', N'plan', N'COLUMN';
    EXEC (N'ALTER TABLE {state_escaped}.stream ADD
                CHECK (([plan] IS NULL AND plan_batch IS NULL)
                       OR ([plan] IS NOT NULL AND plan_batch IS NOT NULL)),
                CHECK ((query_id IS NULL AND query_batch IS NULL)
                       OR (query_id IS NOT NULL AND query_batch IS NOT NULL));');
    EXEC (N'UPDATE {state_escaped}.version SET version = 3;');
END
