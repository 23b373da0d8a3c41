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

-- name: script_role
-- {literal} is the role's name as text, {role} quoted.
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END
$do$

-- name: script_owner
-- The state tables belong to a role without members, so only a superuser can add code or columns to
-- them.
-- Locks:   each state table exclusively, for a moment.
DO $do$
BEGIN
    IF EXISTS (SELECT
                 FROM pg_catalog.pg_roles
                WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
                  AND pg_has_role(oid, {literal}, 'MEMBER')) THEN
        RAISE EXCEPTION 'role % has a login as a member', {literal}
              USING HINT = 'Revoke that, or name another owner by --owner.';
    END IF;
END
$do$;
ALTER SCHEMA {state} OWNER TO {role};
ALTER TABLE {state}.version OWNER TO {role};
ALTER TABLE {state}.stream OWNER TO {role};
ALTER TABLE {state}.task OWNER TO {role};
ALTER TABLE {state}.receipt OWNER TO {role};
ALTER TABLE {state}.receipt_page OWNER TO {role};
ALTER TABLE {state}.staging OWNER TO {role};
ALTER TABLE {state}.staging_page OWNER TO {role};
ALTER TABLE {state}.dispatch_log OWNER TO {role}

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
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role}

-- name: script_sender
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_sender_state
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging, {state}.staging_page TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (batch, messages, dispatched) ON {state}.dispatch_log TO {role}

-- name: script_share
-- The members of a role share their rows, so a stream may go on under another login of its role. Rows
-- of a superuser are not shared, because a superuser counts as a member of every role. Membership is
-- checked only for another login's row.
-- {literal} is the role's name as text, {role} quoted.
-- Locks:   the whole table, for a moment.
DROP POLICY IF EXISTS {role} ON {table};
CREATE POLICY {role} ON {table} TO {role}
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, {literal}, 'USAGE'))))

-- name: script_all_rows
-- An operator sees and writes all rows.
-- Locks:   the whole table, for a moment.
DROP POLICY IF EXISTS {role} ON {table};
CREATE POLICY {role} ON {table} TO {role} USING (true)

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
