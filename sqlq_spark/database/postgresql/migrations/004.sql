-- name: migrate_4
-- State tables of version 3 become those of version 4. Tables of another version are left alone. Columns
-- get the words of the code: `plan` is `stored_plan`, `plan_after` is `plan_high_water`, Spark's number
-- of a batch is `spark_batch`, and a sink's is `sink_batch`. The release of version 3 reads the old
-- names, so its streams and sinks end at their next statement. All rows stay as they are. `version_4` is
-- a column that is always null. The statements of the release of version 4 name it, so they fail when a
-- later step has renamed it. A login that may write `sink_batch` of dispatch_log gets the right to
-- write `destination`. A login that may write `stream` gets the right to use `query_reader`.
-- Locks:   stream, receipt, staging, staging_page and dispatch_log as a whole, until commit. Waits for
--          tasks and drivers that run.
DO $do$
DECLARE
    login text;
BEGIN
    IF to_regclass('{state_escaped}.version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM {state}.version) IS DISTINCT FROM 3 THEN
        RETURN;
    END IF;
    LOCK TABLE {state}.stream, {state}.receipt, {state}.staging, {state}.staging_page, {state}.dispatch_log
      IN ACCESS EXCLUSIVE MODE;

    ALTER TABLE {state}.stream RENAME COLUMN plan TO stored_plan;
    ALTER TABLE {state}.stream RENAME COLUMN plan_after TO plan_high_water;
    ALTER TABLE {state}.stream RENAME COLUMN query_batch TO spark_batch;
    ALTER TABLE {state}.stream ADD COLUMN version_4 boolean;
    ALTER TABLE {state}.receipt RENAME COLUMN query_batch TO spark_batch;
    ALTER TABLE {state}.staging RENAME COLUMN batch TO sink_batch;
    ALTER TABLE {state}.staging_page RENAME COLUMN batch TO sink_batch;
    ALTER TABLE {state}.dispatch_log RENAME COLUMN batch TO sink_batch;
    ALTER TABLE {state}.dispatch_log ADD COLUMN destination text;
    ALTER TABLE {state}.dispatch_log ADD COLUMN version_4 boolean;
    CREATE TABLE {state}.query_reader (
        query_id varchar(36)  NOT NULL,
        queue    text         NOT NULL,
        stream   varchar(36)  NOT NULL,
        run_id   varchar(200) NOT NULL,
        PRIMARY KEY (query_id, queue)
    );

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
        EXECUTE 'GRANT SELECT, INSERT, UPDATE (stream, run_id) ON {state_escaped}.query_reader TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '{state_escaped}.dispatch_log'::regclass AND a.attname = 'sink_batch'
           AND r.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (destination) ON {state_escaped}.dispatch_log TO ' || login;
    END LOOP;
    UPDATE {state}.version SET version = 4;
END
$do$

-- name: revert_4
-- The step back, for the release of version 3. It fails if a write with a name has stored its destination,
-- because that release would send such a write to another destination.
-- Locks:   as migrate_4, and query_reader.
DO $do$
BEGIN
    IF to_regclass('{state_escaped}.version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM {state}.version) IS DISTINCT FROM 4 THEN
        RETURN;
    END IF;
    LOCK TABLE {state}.stream, {state}.receipt, {state}.staging, {state}.staging_page, {state}.dispatch_log,
               {state}.query_reader
      IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM {state}.dispatch_log WHERE destination IS NOT NULL) THEN
        RAISE EXCEPTION 'schema % is not changed: dispatch_log has destinations, which version 3 does not know',
              '{state_escaped}';
    END IF;
    DROP TABLE {state}.query_reader;
    ALTER TABLE {state}.dispatch_log DROP COLUMN version_4;
    ALTER TABLE {state}.dispatch_log DROP COLUMN destination;
    ALTER TABLE {state}.dispatch_log RENAME COLUMN sink_batch TO batch;
    ALTER TABLE {state}.staging_page RENAME COLUMN sink_batch TO batch;
    ALTER TABLE {state}.staging RENAME COLUMN sink_batch TO batch;
    ALTER TABLE {state}.receipt RENAME COLUMN spark_batch TO query_batch;
    ALTER TABLE {state}.stream DROP COLUMN version_4;
    ALTER TABLE {state}.stream RENAME COLUMN spark_batch TO query_batch;
    ALTER TABLE {state}.stream RENAME COLUMN plan_high_water TO plan_after;
    ALTER TABLE {state}.stream RENAME COLUMN stored_plan TO plan;
    UPDATE {state}.version SET version = 3;
END
$do$
