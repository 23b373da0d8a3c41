-- name: script_begin
-- Waits for a lock no longer than {milliseconds} ms, because streams wait behind this script.
SET LOCK_TIMEOUT {milliseconds}

-- name: script_state_check
-- {faults} is the statement state_faults.
DECLARE @found nvarchar(2000);
SELECT TOP (1) @found = N'nothing is installed: ' + f.fault
  FROM ({faults}) AS f;
IF @found IS NOT NULL
BEGIN;
    THROW 51902, @found, 1;
END

-- name: script_join
-- Does nothing: a member of db_owner needs no other role.
SELECT 0 AS joined

-- name: script_role
-- {role_name} is the role's name as text, {role} quoted.
IF DATABASE_PRINCIPAL_ID({role_name}) IS NULL
    CREATE ROLE {role}

-- name: script_owner
-- The state tables belong to a role without members, so only members of db_owner can add code or
-- columns to them.
IF EXISTS (SELECT 1
             FROM sys.database_role_members AS m
            WHERE m.role_principal_id = DATABASE_PRINCIPAL_ID({role_name}))
BEGIN;
    THROW 51902, N'the owner of the state tables has members: take them out, or name another', 1;
END;
IF USER_NAME((SELECT s.principal_id FROM sys.schemas AS s WHERE s.name = {state_name})) <> {role_name}
    ALTER AUTHORIZATION ON SCHEMA::{state} TO {role}

-- name: script_adopt
-- Does nothing: the owner of a schema owns its tables.
SELECT 0 AS joined

-- name: script_leave
-- Does nothing, as script_join.
SELECT 0 AS joined

-- name: script_reader
GRANT SELECT, DELETE ON {queue} TO {role}

-- name: script_reader_state
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.stream TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.task TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role};
GRANT INSERT ON {state}.trail TO {role}

-- name: script_sender
GRANT INSERT ON {queue} TO {role}

-- name: script_sender_state
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging_page TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.dispatch_log TO {role}

-- name: script_operator_state
-- An operator reads the audit trail. No role may change or delete an entry.
GRANT SELECT ON {state}.trail TO {role}

-- name: script_mover
-- For a reader that also moves due messages into its queue.
GRANT SELECT, DELETE ON {delayed} TO {role};
GRANT INSERT ON {queue} TO {role}

-- name: script_delayer
GRANT INSERT ON {delayed} TO {role}

-- name: script_errors
GRANT INSERT ON {queue} TO {role}

-- name: script_publisher
-- A login that subscribes also needs INSERT, UPDATE and DELETE, and decides where events go.
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscriber
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_creator
-- For a login that creates queues; the owner of their schema owns them. VIEW DEFINITION lets it see
-- whether a table is there, as the transport's installer does.
GRANT ALTER ON SCHEMA::{schema} TO {role};
GRANT CREATE TABLE, VIEW DEFINITION TO {role}
