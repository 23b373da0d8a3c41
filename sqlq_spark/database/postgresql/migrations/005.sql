-- name: migrate_5
-- State tables of version 4 become those of version 5. Tables of another version are left alone.
-- Adds the table `heartbeat`, the names of queries, and `stream.removed`. All rows stay as they are.
-- It renames `version_4` to `version_5`. The statements of the old release name `version_4`, so they fail
-- after this step. Logins that may update `acked_batch` get the right to update the new columns of
-- `stream`. Logins that may insert `spark_batch` get the right to insert the new column of `receipt`. A
-- login that may write `stream` may use `heartbeat`.
-- Locks:   stream, receipt and dispatch_log as a whole, until commit. Waits for tasks and drivers that run.
DO $do$
DECLARE
    login text;
BEGIN
    IF to_regclass('{state_escaped}.version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM {state}.version) IS DISTINCT FROM 4 THEN
        RETURN;
    END IF;
    LOCK TABLE {state}.stream, {state}.receipt, {state}.dispatch_log IN ACCESS EXCLUSIVE MODE;

    ALTER TABLE {state}.stream RENAME COLUMN version_4 TO version_5;
    ALTER TABLE {state}.stream ADD COLUMN query_name varchar(200), ADD COLUMN removed timestamptz;
    ALTER TABLE {state}.receipt ADD COLUMN query_name varchar(200);
    ALTER TABLE {state}.dispatch_log RENAME COLUMN version_4 TO version_5;
    CREATE TABLE {state}.heartbeat (
        driver  varchar(36)  PRIMARY KEY,
        stream  varchar(36),
        login   name         NOT NULL DEFAULT current_user,
        name    varchar(200),
        queue   text         NOT NULL,
        host    varchar(255) NOT NULL,
        process bigint       NOT NULL,
        shared  boolean      NOT NULL,
        started timestamptz  NOT NULL DEFAULT now(),
        beat    timestamptz  NOT NULL DEFAULT now()
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_class AS c
          JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'acked_batch'
         CROSS JOIN LATERAL (
                SELECT grantee, privilege_type FROM aclexplode(c.relacl)
                 UNION ALL
                SELECT grantee, privilege_type FROM aclexplode(a.attacl)) AS r
         WHERE c.oid = '{state_escaped}.stream'::regclass
           AND r.privilege_type = 'UPDATE' AND r.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT SELECT, DELETE, UPDATE (stream, beat),'
                ' INSERT (driver, stream, name, queue, host, process, shared) ON {state_escaped}.heartbeat TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '{state_escaped}.stream'::regclass AND a.attname = 'acked_batch'
           AND r.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (query_name, removed) ON {state_escaped}.stream TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '{state_escaped}.receipt'::regclass AND a.attname = 'spark_batch'
           AND r.privilege_type = 'INSERT'
    LOOP
        EXECUTE 'GRANT INSERT (query_name) ON {state_escaped}.receipt TO ' || login;
    END LOOP;
    UPDATE {state}.version SET version = 5;
END
$do$

-- name: revert_5
-- The step back, for the release of version 4. It drops the names of queries, the heartbeats, and the marks
-- of removed streams: no message depends on them.
-- Locks:   as migrate_5, and heartbeat.
DO $do$
BEGIN
    IF to_regclass('{state_escaped}.version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM {state}.version) IS DISTINCT FROM 5 THEN
        RETURN;
    END IF;
    LOCK TABLE {state}.stream, {state}.receipt, {state}.dispatch_log, {state}.heartbeat
      IN ACCESS EXCLUSIVE MODE;
    DROP TABLE {state}.heartbeat;
    ALTER TABLE {state}.dispatch_log RENAME COLUMN version_5 TO version_4;
    ALTER TABLE {state}.receipt DROP COLUMN query_name;
    ALTER TABLE {state}.stream DROP COLUMN query_name, DROP COLUMN removed;
    ALTER TABLE {state}.stream RENAME COLUMN version_5 TO version_4;
    UPDATE {state}.version SET version = 4;
END
$do$
