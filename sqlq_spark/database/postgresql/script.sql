-- name: script_begin
-- Run this as a superuser. Or run it as the owner of the database, if that login has CREATEROLE,
-- and owns the schemas and queues that exist already, or is a member of the roles that do.
-- Members of the roles below are one team: each can read, change and return what the others received.
-- Roles belong to the server: the same names in two databases are one team. Print another script
-- with --domain for another team.
-- It waits 3 s for a lock. After an error nothing has changed. Then run it again. A second run changes
-- nothing that is in place, and nobody waits for it.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = 3000;
CREATE SCHEMA IF NOT EXISTS {state}

-- name: script_check
-- The owner of the state schema, or of a table that exists in it or in the list below, can run code with
-- the rights of those who use it. A login with the ADMIN option of a role can add members. Trusted are
-- superusers and the roles of --trust. If this login is no superuser, it also trusts itself and the owner
-- of the database.
DO $do$
DECLARE
    faults text;
    known  integer;
BEGIN
    IF current_database() <> '{database_escaped}' AND '{database_escaped}' <> '' THEN
        RAISE EXCEPTION 'nothing is installed: the database is %, expected %', current_database(),
              '{database_escaped}' USING HINT = 'Connect to the database that the script is for.';
    END IF;
    WITH RECURSIVE given (owners, named, deletes) AS (
        SELECT '{owners_escaped}'::json, '[]'::json, true
    ), {trusted}, asked (place, id, what) AS (
        SELECT 0, c.oid, 'table ' || c.oid::regclass
          FROM pg_class AS c
         WHERE c.relnamespace = to_regnamespace('{state_escaped}') AND c.relkind NOT IN ('i', 'I', 'S')
            OR c.oid IN (SELECT to_regclass(name)
                           FROM json_array_elements_text('{made_escaped}'::json) AS made (name))
    ), {faults}
    SELECT string_agg(fault, '; ') INTO faults FROM (
        SELECT fault FROM faults
         UNION
        SELECT 'schema ' || nspname || ' belongs to ' || quote_ident(pg_get_userbyid(nspowner))
          FROM pg_namespace
         WHERE nspname = {state_name} AND nspowner NOT IN (SELECT owner FROM trusted)
         UNION
        SELECT format('role %I gets members by %I', pg_get_userbyid(m.roleid), pg_get_userbyid(m.member))
          FROM pg_auth_members AS m
         WHERE m.admin_option AND m.member NOT IN (SELECT owner FROM trusted)
           AND pg_get_userbyid(m.roleid) IN (SELECT json_array_elements_text('{roles_escaped}'::json))) AS found;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed in schema %: %', '{state_escaped}', faults
              USING HINT = 'Find out who made this, drop or rename it, or use another schema. If you trust'
                           ' the owner, print the script with --trust.';
    END IF;
    IF to_regclass('{state_escaped}.version') IS NOT NULL THEN
        SELECT max(version) INTO known FROM {state}.version;
        IF coalesce(known, 0) NOT BETWEEN 3 AND 5 THEN
            RAISE EXCEPTION 'schema % has state tables of version %, expected 3 to 5', '{state_escaped}', known
                  USING HINT = 'Newer tables need the script of their release. Of older ones, stop the'
                               ' queries, see that receipt and staging are empty, or their messages would'
                               ' be lost, then drop the schema and run this again.';
        END IF;
    END IF;
END
$do$

-- name: script_roles
DO $do$
BEGIN
{roles};
END
$do$

-- name: script_role
    IF to_regrole('{role_escaped}') IS NULL THEN CREATE ROLE {role} NOLOGIN; END IF;
    IF NOT has_database_privilege('{role_name}', current_database(), 'CONNECT') THEN  -- PUBLIC lacks it
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), '{role_name}');
    END IF

-- name: script_reader
-- Rights of a reader. To give them to the login of its Spark job: GRANT {role} TO "login".
-- A row lock needs UPDATE of one column. The server writes the login of a receipt.
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, stored_plan, plan_high_water, query_id, spark_batch,
              query_name, removed, messages, expired, diverted, forwarded, seen)
   ON {state}.stream TO {role};
GRANT SELECT, INSERT, UPDATE (stream, run_id) ON {state}.query_reader TO {role};
GRANT SELECT, DELETE, UPDATE (stream, beat), INSERT (driver, stream, name, queue, host, process, shared)
   ON {state}.heartbeat TO {role};
GRANT SELECT, DELETE, UPDATE (settled),
      INSERT (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes, query_id,
              spark_batch, query_name, settled, unpacked, payload)
   ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role};
GRANT INSERT (action, queue, messages, stream, batch, task) ON {state}.trail TO {role}

-- name: script_sender
-- Rights of a sender. To give them to the login of its Spark job: GRANT {role} TO "login".
GRANT USAGE ON SCHEMA {state} TO {role};
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.staging, {state}.staging_page TO {role};
GRANT SELECT, INSERT, DELETE, UPDATE (sink_batch, messages, dispatched, destination)
   ON {state}.dispatch_log TO {role}

-- name: script_operator
-- Rights of an operator, who also reads the audit trail. To give them to a login that runs
-- `sqlqueue`: GRANT {role} TO "login". No role may change or delete an entry of the trail, or write
-- another login into it.
GRANT SELECT ON {state}.trail TO {role}

-- name: script_receive
-- With the trigger `availableNow` a stream reads the sequence, to know where it has to end.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, DELETE, UPDATE (seq) ON {queue} TO {role};
GRANT SELECT ON SEQUENCE {sequence} TO {role}

-- name: script_send
-- Lets a sink send. It reads only seq, to count the backlog for the option `pauseAboveBacklog`.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT, SELECT (seq) ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_divert
-- A stream moves messages into its error queue. It reads seq to skip seqs that others have taken.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT, SELECT (seq) ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_produce
-- Rights of a producer: an endpoint or ServiceControl, which only sends and is in no team. To give them
-- to its login: GRANT {role} TO "login".
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT ON {queue} TO {role};
GRANT USAGE ON SEQUENCE {sequence} TO {role}

-- name: script_move
-- Lets a stream move due messages into the queue.
GRANT SELECT, DELETE, UPDATE (due) ON {delayed} TO {role}

-- name: script_delay
GRANT INSERT ON {delayed} TO {role}

-- name: script_publish
-- A login that subscribes also needs INSERT, UPDATE and DELETE. Such a login decides where events go.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscribe
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_member
-- Gives the rights to the login of the Spark job, which must exist already.
GRANT {role} TO {login}

-- name: script_login
-- Creates a login that is a member of a role. The selftest creates one for each role.
CREATE ROLE {login} LOGIN PASSWORD '{password}';
GRANT {role} TO {login}

-- name: script_end
COMMIT
