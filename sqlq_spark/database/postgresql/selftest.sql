-- name: selftest_facts
-- What a report of `sqlqueue selftest` is of no use without. Names that begin with `may` are rights.
-- Returns: name text, value text; null where the server does not say
SELECT name, setting
  FROM pg_catalog.pg_settings
 WHERE name ~ '^(server_(version|encoding)|default_transaction_isolation|TimeZone|synchronous_commit'
              '|wal_level|shared_buffers|max_connections|autovacuum|jit|\w+_timeout)$'
UNION ALL
SELECT f.name, f.value
  FROM pg_catalog.pg_database AS d
  JOIN pg_catalog.pg_roles AS r ON r.rolname = current_user
 CROSS JOIN LATERAL (VALUES
        ('version', version()), ('database', d.datname::text), ('collation', d.datcollate::text),
        ('ignores_case', 'false'), ('session', pg_backend_pid()::text),
        ('may CREATE in the database', has_database_privilege(d.oid, 'CREATE')::text),
        ('may CREATEROLE', (r.rolsuper OR r.rolcreaterole)::text)) AS f (name, value)
 WHERE d.datname = current_database()

-- name: selftest_locks
-- Returns: mode text of each lock that this session has on a table
SELECT DISTINCT mode
  FROM pg_catalog.pg_locks
 WHERE pid = pg_backend_pid() AND relation = '{queue_escaped}'::regclass

-- name: selftest_end
-- Ends a session of this login, as a network that breaks does.
-- Returns: one row
SELECT pg_terminate_backend(:session::bigint::int)

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
