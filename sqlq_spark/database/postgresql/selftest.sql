-- name: selftest_facts
-- What a report of `sqlqueue selftest` is of no use without. Names that begin with `may` are rights.
-- Returns: name text, value text; null where the server does not say
SELECT name, setting AS value
  FROM pg_catalog.pg_settings
 WHERE name ~ '^(server_(version|encoding)|default_transaction_isolation|TimeZone|synchronous_commit|\w+_timeout)$'
UNION ALL
VALUES ('version', version()), ('session', pg_backend_pid()::text),
       ('collation', (SELECT datcollate::text FROM pg_catalog.pg_database WHERE datname = current_database())),
       ('may CREATE in the database', has_database_privilege(current_database(), 'CREATE')::text),
       ('may CREATEROLE', (SELECT (rolsuper OR rolcreaterole)::text FROM pg_catalog.pg_roles WHERE rolname = current_user))

-- name: selftest_locks
-- Returns: mode text of each lock of this session on a table that keeps others from single rows
SELECT DISTINCT mode
  FROM pg_catalog.pg_locks
 WHERE pid = pg_backend_pid() AND relation = '{queue_escaped}'::regclass
   AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')

-- name: selftest_end
-- Ends a session of this login, as a network that breaks does.
-- Returns: ended boolean
SELECT pg_terminate_backend(:session::text::int) AS ended

-- name: selftest_remains
-- Statements that drop what `selftest` has made, by its names: schemas before the roles that have rights
-- there.
-- Returns: text
SELECT format('DROP %s %I %s', kind, name, more) AS text
  FROM (SELECT 'SCHEMA', nspname, 'CASCADE' FROM pg_catalog.pg_namespace
        UNION ALL
        SELECT 'ROLE', rolname, '' FROM pg_catalog.pg_roles) AS made (kind, name, more)
 WHERE name COLLATE "C" BETWEEN :lowest::text AND :highest::text
 ORDER BY text DESC
