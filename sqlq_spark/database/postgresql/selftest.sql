-- name: selftest_facts
-- Reads facts about the server for the report of `sqlqueue selftest`. A name that begins with `may` is a
-- right of this login.
-- Returns: name text, value text; the value is null if the server does not report it
SELECT name, setting AS value
  FROM pg_catalog.pg_settings
 WHERE name ~ '^(server_(version|encoding)|default_transaction_isolation|TimeZone|synchronous_commit|\w+_timeout)$'
UNION ALL
VALUES ('version', version()), ('session', pg_backend_pid()::text),
       ('collation', (SELECT datcollate::text FROM pg_catalog.pg_database WHERE datname = current_database())),
       ('may CREATE in the database', has_database_privilege(current_database(), 'CREATE')::text),
       ('may CREATEROLE', (SELECT (rolsuper OR rolcreaterole)::text FROM pg_catalog.pg_roles WHERE rolname = current_user))

-- name: selftest_locks
-- Lists the locks of this session on a table that could stop other sessions from using single rows.
-- Returns: mode text of each lock
SELECT DISTINCT mode
  FROM pg_catalog.pg_locks
 WHERE pid = pg_backend_pid() AND relation = '{queue_escaped}'::regclass
   AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')

-- name: selftest_end
-- Ends a session of this login, as a broken network would.
-- Returns: ended boolean
SELECT pg_terminate_backend(:session::text::int) AS ended

-- name: selftest_remains
-- Writes the statements that drop what the selftest has created. It recognises that by the names. Schemas
-- are dropped before the roles that have rights in them.
-- Returns: text
SELECT format('DROP %s %I %s', kind, name, more) AS text
  FROM (SELECT 'SCHEMA', nspname, 'CASCADE' FROM pg_catalog.pg_namespace
        UNION ALL
        SELECT 'ROLE', rolname, '' FROM pg_catalog.pg_roles) AS made (kind, name, more)
 WHERE name COLLATE "C" BETWEEN :lowest::text AND :highest::text
 ORDER BY text DESC
