-- name: script_begin
-- Run this by `sqlcmd -b -I -f 65001 -d {database}` as a member of db_owner.
-- Members of the roles below are one team: each can read, change and return what the others received.
-- Print another script with --domain for another team. It waits 3 s for a lock, and then ends with error
-- 1222. After an error nothing has changed, except rights. Then run it again. A second run changes nothing
-- that is in place.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
SET LOCK_TIMEOUT 3000;
-- In the wrong database nothing runs before SET NOEXEC OFF, even if the tool sends more batches.
DECLARE @here sysname = DB_NAME(), @wanted sysname = N'{database_escaped}';
IF @wanted = N'' AND @here IN (N'master', N'tempdb', N'model', N'msdb')
   OR @wanted <> N'' AND ISNULL(DB_ID(@wanted), 0) <> DB_ID()
BEGIN
    IF @wanted = N''
        SET @wanted = N'that of the queues';
    RAISERROR (N'nothing is installed: the database is %s, expected %s', 16, 1, @here, @wanted);
    SET NOEXEC ON;
END
GO
BEGIN TRANSACTION;
IF SCHEMA_ID({state_name}) IS NULL
    EXEC (N'CREATE SCHEMA {state_escaped}')

-- name: script_check
-- The owner of the state schema, or of a table that exists in it or in the list below, can run code with
-- the rights of those who use it. The owner of a role can add members. Trusted are dbo, this user and the
-- principals of --trust. After a fault nothing runs before SET NOEXEC OFF, even if the tool sends more
-- batches. Rights are granted one by one, because each grant waits for the sessions that use the table.
DECLARE @fault nvarchar(2000), @known int, @owners nvarchar(max) = N'{owners_escaped}',
        @named nvarchar(max) = N'[]';
SELECT TOP (1) @fault = CONCAT(N'nothing is installed in schema {state_escaped}: ', f.fault)
  FROM (
        {state_faults}
        UNION ALL
        SELECT CONCAT(N'table ', m.value COLLATE DATABASE_DEFAULT, N' belongs to ', QUOTENAME(USER_NAME(o.id))),
               NULL, NULL
          FROM OPENJSON(N'{made_escaped}') AS m
         CROSS APPLY (SELECT ISNULL(OBJECTPROPERTY(OBJECT_ID(m.value), N'OwnerId'), 0) AS id) AS o
         WHERE OBJECT_ID(m.value) IS NOT NULL
           AND o.id NOT IN (
               {trusted}
               )
        UNION ALL
        SELECT CONCAT(N'user or role ', QUOTENAME(p.name COLLATE DATABASE_DEFAULT),
                      CASE WHEN p.type <> N'R' THEN N' is no role' ELSE N' belongs to '
                           + ISNULL(QUOTENAME(USER_NAME(p.owning_principal_id)), N'an owner that cannot be seen') END),
               NULL, NULL
          FROM sys.database_principals AS p
         WHERE p.name IN (SELECT r.value COLLATE DATABASE_DEFAULT FROM OPENJSON(N'{roles_escaped}') AS r)
           AND (p.type <> N'R' OR ISNULL(p.owning_principal_id, 0) NOT IN (
                {trusted}
                ))
       ) AS f;
IF @fault IS NULL AND OBJECT_ID(N'{state_escaped}.version', N'U') IS NOT NULL
BEGIN
    SELECT @known = MAX(version) FROM {state}.version;
    IF ISNULL(@known, 0) NOT BETWEEN 3 AND 5
        SET @fault = CONCAT(
            N'schema {state_escaped} has state tables of version ', @known, N', expected 3 to 5. Newer tables need ',
            N'the script of their release. Of older ones, stop the queries, see that receipt and staging ',
            N'are empty, or their messages would be lost, then drop the schema and run this again.');
END;
IF @fault IS NOT NULL
BEGIN
    ROLLBACK TRANSACTION;
    RAISERROR (N'%s', 16, 1, @fault);
    SET NOEXEC ON;
    RETURN;
END

-- name: script_roles
{roles};
COMMIT TRANSACTION

-- name: script_role
IF DATABASE_PRINCIPAL_ID(N'{role_name}') IS NULL
    CREATE ROLE {role}

-- name: script_reader
-- Rights of a reader. To give them to the login of its Spark job: ALTER ROLE {role} ADD MEMBER [login].
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.stream TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.query_reader TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.heartbeat TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role};
GRANT INSERT ON {state}.trail TO {role}

-- name: script_sender
-- Rights of a sender. To give them to the login of its Spark job: ALTER ROLE {role} ADD MEMBER [login].
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging_page TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.dispatch_log TO {role}

-- name: script_operator
-- Rights of an operator, who also reads the audit trail. To give them to a login that runs
-- `sqlqueue`: ALTER ROLE {role} ADD MEMBER [login]. No role may change or delete an entry of the trail.
GRANT SELECT ON {state}.trail TO {role}

-- name: script_receive
GRANT SELECT, DELETE ON {queue} TO {role}

-- name: script_send
-- Lets a sink send. It reads only RowVersion, to count the backlog for the option `pauseAboveBacklog`.
GRANT INSERT, SELECT (RowVersion) ON {queue} TO {role}

-- name: script_divert
-- A stream moves messages into its error queue.
GRANT INSERT ON {queue} TO {role}

-- name: script_produce
-- Rights of a producer: an endpoint or ServiceControl, which only sends and is in no team. To give them
-- to its login: ALTER ROLE {role} ADD MEMBER [login].
GRANT INSERT ON {queue} TO {role}

-- name: script_move
-- Lets a stream move due messages into the queue.
GRANT SELECT, DELETE ON {delayed} TO {role}

-- name: script_delay
GRANT INSERT ON {delayed} TO {role}

-- name: script_publish
-- A login that subscribes also needs INSERT, UPDATE and DELETE. Such a login decides where events go.
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscribe
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_member
-- Gives the rights to the login of the Spark job, which must exist already.
ALTER ROLE {role} ADD MEMBER {login}

-- name: script_login
-- Creates a login that is a member of a role. The selftest creates one for each role. On Azure it is a
-- user with a password.
IF SERVERPROPERTY(N'EngineEdition') = 5
    CREATE USER {login} WITH PASSWORD = '{password}';
ELSE
BEGIN
    CREATE LOGIN {login} WITH PASSWORD = '{password}', CHECK_POLICY = OFF;
    CREATE USER {login} FOR LOGIN {login};
END;
ALTER ROLE {role} ADD MEMBER {login}

-- name: script_end
GO
-- After an error the transaction may still be open, if the tool keeps the session.
SET NOEXEC OFF;
IF @@TRANCOUNT > 0
    ROLLBACK TRANSACTION;
GO
