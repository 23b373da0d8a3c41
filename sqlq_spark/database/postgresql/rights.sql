-- name: script_begin
-- Waits for a lock no longer than {milliseconds} ms, because streams wait behind this script. Notes what is in
-- place: {done} is the statement install_done.
SET LOCAL lock_timeout = {milliseconds};
CREATE TEMPORARY TABLE sqlqueue_done ON COMMIT DROP AS
{done}

-- name: script_state_check
-- {faults} is the statement state_faults.
DO $do$
DECLARE
    faults text;
BEGIN
    SELECT string_agg(fault, '; ') INTO faults FROM ({faults}) AS state_faults;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed: %', faults
              USING HINT = 'Whoever owns a state table, or a trigger on it, can run code as those who'
                           ' use it. Find out who made this, drop or rename it, or use another schema.';
    END IF;
END
$do$

-- name: script_join
-- Where an earlier run has given the state tables to a role ({literal} as text, {role} quoted), a login
-- that is no superuser joins that role until script_leave.
DO $do$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace
                WHERE nspname = {state_name} AND pg_get_userbyid(nspowner) = {literal})
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper)
       AND current_user <> {literal} THEN
        GRANT {role} TO CURRENT_USER;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the state tables belong to role %, which % may not join', {literal}, current_user
              USING HINT = 'Run this script as a superuser, or let one grant the role to this login WITH'
                           ' ADMIN OPTION. Before PostgreSQL 16 CREATEROLE is enough.';
END
$do$

-- name: script_role
-- {literal} is the role's name as text, {role} quoted.
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role % does not exist, and % may not create it', {literal}, current_user
              USING HINT = 'Run this script as a login with CREATEROLE, or let one create the role'
                           ' first.';
END
$do$

-- name: script_owner
-- The state tables belong to a role without members, so only a superuser can add code or columns to
-- them. A login that is no superuser must be a member to give the schema away: it joins the role until
-- script_leave. From PostgreSQL 16 on, who creates a role can administer it, without its rights.
DO $do$
BEGIN
    IF EXISTS (SELECT
                 FROM pg_catalog.pg_roles
                WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
                  AND (pg_has_role(oid, {literal}, 'USAGE')
                       OR pg_has_role(oid, {literal},
                                      CASE WHEN current_setting('server_version_num')::integer >= 160000
                                           THEN 'SET' ELSE 'MEMBER' END))) THEN
        RAISE EXCEPTION 'role % has a login as a member', {literal}
              USING HINT = 'Revoke that, or name another owner by --owner.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace
                    WHERE nspname = {state_name} AND pg_get_userbyid(nspowner) = {literal}) THEN
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper) THEN
            GRANT {role} TO CURRENT_USER;
        END IF;
        ALTER SCHEMA {state} OWNER TO {role};
    END IF;
END
$do$

-- name: script_adopt
-- Gives the tables to the owner of their schema, where an earlier run or this one made that {literal}.
-- Locks:   exclusively, for a moment, each table that does not belong to it yet.
DO $do$
DECLARE
    adopted text;
BEGIN
    FOR adopted IN
        SELECT c.relname
          FROM pg_catalog.pg_namespace AS n
          JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid
         WHERE n.nspname = {state_name} AND pg_get_userbyid(n.nspowner) = {literal}
           AND c.relkind = 'r' AND pg_get_userbyid(c.relowner) <> {literal}
           AND c.relname IN ('version', 'stream', 'task', 'receipt', 'receipt_page', 'staging',
                             'staging_page', 'dispatch_log', 'trail')
    LOOP
        EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', {state_name}, adopted, {literal});
    END LOOP;
END
$do$

-- name: script_leave
-- No login stays a member of the role that owns the state tables.
DO $do$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_namespace
                WHERE nspname = {state_name} AND pg_get_userbyid(nspowner) = {literal})
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper)
       AND current_user <> {literal} THEN
        REVOKE {role} FROM CURRENT_USER;
    END IF;
END
$do$

-- name: script_reader
-- FOR UPDATE SKIP LOCKED needs UPDATE of one column.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, DELETE, UPDATE (seq) ON {queue} TO {role}

-- name: script_reader_state
-- A row lock needs UPDATE of one column. No role may change the login of a row.
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, plan, plan_after, query_id, query_batch,
              messages, expired, diverted, forwarded, seen)
   ON {state}.stream TO {role};
GRANT SELECT, INSERT, UPDATE (task) ON {state}.task TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (settled) ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role};
GRANT INSERT (action, queue, messages, stream, batch, task) ON {state}.trail TO {role}

-- name: script_sender
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_sender_state
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging, {state}.staging_page TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (batch, messages, dispatched) ON {state}.dispatch_log TO {role}

-- name: script_operator_state
-- An operator reads the audit trail. No role may change or delete an entry, or write another login.
GRANT SELECT ON {state}.trail TO {role}

-- name: script_mover
-- For a reader that also moves due messages into its queue.
GRANT SELECT, DELETE, UPDATE (due) ON {delayed} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_delayer
GRANT INSERT ON {delayed} TO {role}

-- name: script_errors
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_publisher
-- A login that subscribes also needs INSERT, UPDATE and DELETE, and decides where events go.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscriber
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_creator
-- For a login that creates queues; it owns the queues that it creates.
GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}
