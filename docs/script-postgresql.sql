-- sqlqueue script Shop.Orders --domain orders --instance web1 --error error --audit audit --delayed --body-string --subscription-table SubscriptionRouting --operator clerk --producer endpoints --login spark_orders --database shop
-- printed by release 0.2.0, with state tables of version 5
\set ON_ERROR_STOP on
-- Run this as a superuser. Or run it as the owner of the database, if that login has CREATEROLE,
-- and owns the schemas and queues that exist already, or is a member of the roles that do.
-- Members of the roles below are one team: each can read, change and return what the others received.
-- Roles belong to the server: the same names in two databases are one team. Print another script
-- with --domain for another team.
-- It waits 3 s for a lock. After an error nothing has changed. Then run it again. A second run changes
-- nothing that is in place, and nobody waits for it.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = 3000;
CREATE SCHEMA IF NOT EXISTS "sqlqueue_orders";

-- The owner of the state schema, or of a table that exists in it or in the list below, can run code with
-- the rights of those who use it. A login with the ADMIN option of a role can add members. Trusted are
-- superusers and the roles of --trust. If this login is no superuser, it also trusts itself and the owner
-- of the database.
DO $do$
DECLARE
    faults text;
    known  integer;
BEGIN
    IF current_database() <> 'shop' AND 'shop' <> '' THEN
        RAISE EXCEPTION 'nothing is installed: the database is %, expected %', current_database(),
              'shop' USING HINT = 'Connect to the database that the script is for.';
    END IF;
    WITH RECURSIVE given (owners, named, deletes) AS (
        SELECT '[]'::json, '[]'::json, true
    ), roles AS MATERIALIZED (
        SELECT oid, rolname,
               rolsuper OR rolname IN (SELECT json_array_elements_text(owners) FROM given) AS is_superior,
               bool_or((rolsuper OR rolname IN ('pg_execute_server_program', 'pg_write_server_files'))
                       AND (pg_has_role(current_user, oid, 'MEMBER')
                            OR pg_has_role(session_user, oid, 'MEMBER'))) OVER () AS is_super
          FROM pg_roles
    ), named (owner) AS (
        SELECT unnest(ARRAY[n.nspowner, c.relowner])
          FROM given, json_to_recordset(given.named) AS t (schema_name text, table_name text)
          JOIN pg_namespace AS n ON n.nspname = t.schema_name::name
          LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name::name
    ), trusted (owner) AS MATERIALIZED (
        SELECT r.oid
          FROM roles AS r
          JOIN pg_database AS d ON d.datname = current_database()
          JOIN roles AS o ON o.oid = d.datdba
         WHERE r.is_superior
            OR r.rolname = 'pg_database_owner' AND (o.is_superior OR NOT r.is_super)
            OR NOT r.is_super
               AND (r.rolname = current_user OR r.oid = o.oid OR r.oid IN (SELECT owner FROM named))
    ), asked (place, id, what) AS (
        SELECT 0, c.oid, 'table ' || c.oid::regclass
          FROM pg_class AS c
         WHERE c.relnamespace = to_regnamespace('"sqlqueue_orders"') AND c.relkind NOT IN ('i', 'I', 'S')
            OR c.oid IN (SELECT to_regclass(name)
                           FROM json_array_elements_text('["\"public\".\"Shop.Orders\"", "\"public\".\"Shop.Orders.web1\"", "\"public\".\"error\"", "\"public\".\"audit\"", "\"public\".\"Shop.Orders\"", "\"public\".\"Shop.Orders.Delayed\"", "\"public\".\"SubscriptionRouting\""]'::json) AS made (name))
    ), tables (place, id, what) AS (
        SELECT place, id, what FROM asked
         UNION
        SELECT t.place, i.inhrelid, 'descendant ' || i.inhrelid::regclass
          FROM tables AS t
          JOIN pg_inherits AS i ON i.inhparent = t.id
    ), faults (place, rank, fault, role) AS (
        SELECT t.place, o.rank, format(o.fault, t.what, quote_ident(pg_get_userbyid(o.role))), o.role
          FROM tables AS t
          JOIN pg_class AS c ON c.oid = t.id
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         CROSS JOIN LATERAL (VALUES
            (1, CASE WHEN c.relkind NOT IN ('r', 'p') THEN '%s is no ordinary table' END, NULL::oid),
            (2, '%s belongs to %s', c.relowner),
            (3, 'the schema of %s belongs to %s', n.nspowner)) AS o (rank, fault, role)
         WHERE o.fault IS NOT NULL AND (o.role IS NULL OR o.role NOT IN (SELECT owner FROM trusted))
        UNION ALL
        SELECT t.place, 4,
               format('trigger %I of %s %s', g.tgname, t.what,
                      coalesce('calls a function of ' || quote_ident(pg_get_userbyid(f.proowner)),
                               'has a condition or arguments')), f.proowner
          FROM tables AS t
          JOIN pg_trigger AS g ON g.tgrelid = t.id
          LEFT JOIN pg_proc AS f ON f.oid = g.tgfoid AND f.proowner NOT IN (SELECT owner FROM trusted)
         WHERE g.tgenabled <> 'D' AND (f.proowner IS NOT NULL OR g.tgqual IS NOT NULL OR g.tgnargs > 0)
        UNION ALL
        SELECT t.place, 5,
               format('foreign key %I of %s, which belongs to %s, points at %s', k.conname, c.oid::regclass,
                      quote_ident(pg_get_userbyid(c.relowner)), t.what), c.relowner
          FROM given, tables AS t
          JOIN pg_constraint AS k ON k.confrelid = t.id
          JOIN pg_class AS c ON c.oid = k.conrelid
         WHERE given.deletes AND c.relowner NOT IN (SELECT owner FROM trusted)
    )
    SELECT string_agg(fault, '; ') INTO faults FROM (
        SELECT fault FROM faults
         UNION
        SELECT 'schema ' || nspname || ' belongs to ' || quote_ident(pg_get_userbyid(nspowner))
          FROM pg_namespace
         WHERE nspname = 'sqlqueue_orders' AND nspowner NOT IN (SELECT owner FROM trusted)
         UNION
        SELECT format('role %I gets members by %I', pg_get_userbyid(m.roleid), pg_get_userbyid(m.member))
          FROM pg_auth_members AS m
         WHERE m.admin_option AND m.member NOT IN (SELECT owner FROM trusted)
           AND pg_get_userbyid(m.roleid) IN (SELECT json_array_elements_text('["orders_reader", "orders_sender", "clerk", "endpoints"]'::json))) AS found;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed in schema %: %', '"sqlqueue_orders"', faults
              USING HINT = 'Find out who made this, drop or rename it, or use another schema. If you trust'
                           ' the owner, print the script with --trust.';
    END IF;
    IF to_regclass('"sqlqueue_orders".version') IS NOT NULL THEN
        SELECT max(version) INTO known FROM "sqlqueue_orders".version;
        IF coalesce(known, 0) NOT BETWEEN 3 AND 5 THEN
            RAISE EXCEPTION 'schema % has state tables of version %, expected 3 to 5', '"sqlqueue_orders"', known
                  USING HINT = 'Newer tables need the script of their release. Of older ones, stop the'
                               ' queries, see that receipt and staging are empty, or their messages would'
                               ' be lost, then drop the schema and run this again.';
        END IF;
    END IF;
END
$do$;

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
    IF to_regclass('"sqlqueue_orders".version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM "sqlqueue_orders".version) IS DISTINCT FROM 3 THEN
        RETURN;
    END IF;
    LOCK TABLE "sqlqueue_orders".stream, "sqlqueue_orders".receipt, "sqlqueue_orders".staging, "sqlqueue_orders".staging_page, "sqlqueue_orders".dispatch_log
      IN ACCESS EXCLUSIVE MODE;

    ALTER TABLE "sqlqueue_orders".stream RENAME COLUMN plan TO stored_plan;
    ALTER TABLE "sqlqueue_orders".stream RENAME COLUMN plan_after TO plan_high_water;
    ALTER TABLE "sqlqueue_orders".stream RENAME COLUMN query_batch TO spark_batch;
    ALTER TABLE "sqlqueue_orders".stream ADD COLUMN version_4 boolean;
    ALTER TABLE "sqlqueue_orders".receipt RENAME COLUMN query_batch TO spark_batch;
    ALTER TABLE "sqlqueue_orders".staging RENAME COLUMN batch TO sink_batch;
    ALTER TABLE "sqlqueue_orders".staging_page RENAME COLUMN batch TO sink_batch;
    ALTER TABLE "sqlqueue_orders".dispatch_log RENAME COLUMN batch TO sink_batch;
    ALTER TABLE "sqlqueue_orders".dispatch_log ADD COLUMN destination text;
    ALTER TABLE "sqlqueue_orders".dispatch_log ADD COLUMN version_4 boolean;
    CREATE TABLE "sqlqueue_orders".query_reader (
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
         WHERE c.oid = '"sqlqueue_orders".stream'::regclass
           AND r.privilege_type = 'UPDATE' AND r.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT SELECT, INSERT, UPDATE (stream, run_id) ON "sqlqueue_orders".query_reader TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '"sqlqueue_orders".dispatch_log'::regclass AND a.attname = 'sink_batch'
           AND r.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (destination) ON "sqlqueue_orders".dispatch_log TO ' || login;
    END LOOP;
    UPDATE "sqlqueue_orders".version SET version = 4;
END
$do$;

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
    IF to_regclass('"sqlqueue_orders".version') IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT max(version) FROM "sqlqueue_orders".version) IS DISTINCT FROM 4 THEN
        RETURN;
    END IF;
    LOCK TABLE "sqlqueue_orders".stream, "sqlqueue_orders".receipt, "sqlqueue_orders".dispatch_log IN ACCESS EXCLUSIVE MODE;

    ALTER TABLE "sqlqueue_orders".stream RENAME COLUMN version_4 TO version_5;
    ALTER TABLE "sqlqueue_orders".stream ADD COLUMN query_name varchar(200), ADD COLUMN removed timestamptz;
    ALTER TABLE "sqlqueue_orders".receipt ADD COLUMN query_name varchar(200);
    ALTER TABLE "sqlqueue_orders".dispatch_log RENAME COLUMN version_4 TO version_5;
    CREATE TABLE "sqlqueue_orders".heartbeat (
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
         WHERE c.oid = '"sqlqueue_orders".stream'::regclass
           AND r.privilege_type = 'UPDATE' AND r.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT SELECT, DELETE, UPDATE (stream, beat),'
                ' INSERT (driver, stream, name, queue, host, process, shared) ON "sqlqueue_orders".heartbeat TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '"sqlqueue_orders".stream'::regclass AND a.attname = 'acked_batch'
           AND r.privilege_type = 'UPDATE'
    LOOP
        EXECUTE 'GRANT UPDATE (query_name, removed) ON "sqlqueue_orders".stream TO ' || login;
    END LOOP;
    FOR login IN
        SELECT DISTINCT CASE WHEN r.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
          FROM pg_catalog.pg_attribute AS a
         CROSS JOIN LATERAL aclexplode(a.attacl) AS r
         WHERE a.attrelid = '"sqlqueue_orders".receipt'::regclass AND a.attname = 'spark_batch'
           AND r.privilege_type = 'INSERT'
    LOOP
        EXECUTE 'GRANT INSERT (query_name) ON "sqlqueue_orders".receipt TO ' || login;
    END LOOP;
    UPDATE "sqlqueue_orders".version SET version = 5;
END
$do$;

-- All state tables, once.
DO $do$
BEGIN
    IF to_regclass('"sqlqueue_orders".version') IS NOT NULL THEN
        RETURN;
    END IF;

    -- a row for each checkpoint, updated twice in a batch
    CREATE TABLE "sqlqueue_orders".stream (
        stream      varchar(36) PRIMARY KEY,
        login       name        NOT NULL DEFAULT current_user,
        queue       text        NOT NULL,
        driver      varchar(36) NOT NULL,
        acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
        plan_batch  bigint      CHECK (plan_batch > acked_batch),
        stored_plan text        CHECK ((stored_plan IS NULL) = (plan_batch IS NULL)),
        plan_high_water text,
        query_id    varchar(36),
        spark_batch bigint      CHECK ((query_id IS NULL) = (spark_batch IS NULL)),
        query_name  varchar(200),
        removed     timestamptz,
        messages    bigint      NOT NULL DEFAULT 0,
        expired     bigint      NOT NULL DEFAULT 0,
        diverted    bigint      NOT NULL DEFAULT 0,
        forwarded   bigint      NOT NULL DEFAULT 0,
        created     timestamptz NOT NULL DEFAULT now(),
        seen        timestamptz NOT NULL DEFAULT now(),
        version_5   boolean
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    CREATE INDEX stream_query ON "sqlqueue_orders".stream (query_id);

    -- the one stream of a query that may receive from a queue, and the run in which it began
    CREATE TABLE "sqlqueue_orders".query_reader (
        query_id varchar(36)  NOT NULL,
        queue    text         NOT NULL,
        stream   varchar(36)  NOT NULL,
        run_id   varchar(200) NOT NULL,
        PRIMARY KEY (query_id, queue)
    );

    -- the process that runs a stream, and when it last wrote that it does
    CREATE TABLE "sqlqueue_orders".heartbeat (
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

    -- what one task received, until its batch is acknowledged
    CREATE TABLE "sqlqueue_orders".receipt (
        stream      varchar(36) NOT NULL,
        login       name        NOT NULL DEFAULT current_user,
        batch       bigint      NOT NULL CHECK (batch > 0),
        task        integer     NOT NULL CHECK (task >= 0),
        queue       text        NOT NULL,
        messages    bigint      NOT NULL CHECK (messages >= 0),
        expired     bigint      NOT NULL CHECK (expired >= 0),
        diverted    bigint      NOT NULL CHECK (diverted >= 0),
        forwarded   bigint      NOT NULL CHECK (forwarded >= 0),
        bytes       bigint      NOT NULL CHECK (bytes >= 0),
        query_id    varchar(36),
        spark_batch bigint,
        query_name  varchar(200),
        settled     boolean     NOT NULL DEFAULT false,
        unpacked    bigint      NOT NULL CHECK (unpacked >= 0),
        payload     bytea       NOT NULL,
        created     timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (stream, batch, task)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    CREATE INDEX receipt_query ON "sqlqueue_orders".receipt (query_id, spark_batch);
    ALTER TABLE "sqlqueue_orders".receipt ALTER COLUMN payload SET STORAGE EXTERNAL;

    -- the payload of a large receipt, cut so that each row fills a page of the table
    CREATE TABLE "sqlqueue_orders".receipt_page (
        stream  varchar(36) NOT NULL,
        batch   bigint      NOT NULL,
        task    integer     NOT NULL,
        page    integer     NOT NULL,
        payload bytea       NOT NULL,
        PRIMARY KEY (stream, batch, task, page)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE "sqlqueue_orders".receipt_page ALTER COLUMN payload SET STORAGE PLAIN;

    -- messages that tasks stage for a sink, until the driver dispatches or discards them
    CREATE TABLE "sqlqueue_orders".staging (
        sink       varchar(200) NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt    varchar(36)  NOT NULL,
        chunk      integer      NOT NULL,
        messages   bigint       NOT NULL CHECK (messages > 0),
        payload    bytea        NOT NULL,
        created    timestamptz  NOT NULL DEFAULT now(),
        PRIMARY KEY (sink, sink_batch, attempt, chunk)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE "sqlqueue_orders".staging ALTER COLUMN payload SET STORAGE EXTERNAL;

    -- the payload of a large chunk, cut in the same way
    CREATE TABLE "sqlqueue_orders".staging_page (
        sink       varchar(200) NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt    varchar(36)  NOT NULL,
        chunk      integer      NOT NULL,
        page       integer      NOT NULL,
        payload    bytea        NOT NULL,
        PRIMARY KEY (sink, sink_batch, attempt, chunk, page)
    ) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
    ALTER TABLE "sqlqueue_orders".staging_page ALTER COLUMN payload SET STORAGE PLAIN;

    -- the last batch that each sink has sent
    CREATE TABLE "sqlqueue_orders".dispatch_log (
        sink        varchar(200) PRIMARY KEY,
        login       name         NOT NULL DEFAULT current_user,
        sink_batch  bigint,
        messages    bigint       NOT NULL DEFAULT 0,
        dispatched  timestamptz  NOT NULL DEFAULT now(),
        destination text,
        version_5   boolean
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

    -- the audit trail: who purged, returned, dropped or retired messages
    CREATE TABLE "sqlqueue_orders".trail (
        entry         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at            timestamptz NOT NULL DEFAULT now(),
        login         name        NOT NULL DEFAULT current_user,
        session_login name        NOT NULL DEFAULT session_user,
        action        text        NOT NULL CHECK (action IN ('purge', 'return', 'drop', 'retire')),
        queue         text        NOT NULL,
        messages      bigint      NOT NULL CHECK (messages >= 0),
        stream        varchar(36),
        batch         bigint,
        task          integer
    );

    CREATE TABLE "sqlqueue_orders".version (version integer PRIMARY KEY);
    INSERT INTO "sqlqueue_orders".version (version) VALUES (5);
END
$do$;

-- Queues, as the transport creates them.
CREATE TABLE IF NOT EXISTS "public"."Shop.Orders" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass('"public"."Shop.Orders"')
                      AND attname = 'bodystring' AND NOT attisdropped) THEN
        ALTER TABLE "public"."Shop.Orders"
          ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED;
    END IF;
END
$do$;
CREATE TABLE IF NOT EXISTS "public"."Shop.Orders.web1" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass('"public"."Shop.Orders.web1"')
                      AND attname = 'bodystring' AND NOT attisdropped) THEN
        ALTER TABLE "public"."Shop.Orders.web1"
          ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED;
    END IF;
END
$do$;
CREATE TABLE IF NOT EXISTS "public"."error" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass('"public"."error"')
                      AND attname = 'bodystring' AND NOT attisdropped) THEN
        ALTER TABLE "public"."error"
          ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED;
    END IF;
END
$do$;
CREATE TABLE IF NOT EXISTS "public"."audit" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute
                    WHERE attrelid = to_regclass('"public"."audit"')
                      AND attname = 'bodystring' AND NOT attisdropped) THEN
        ALTER TABLE "public"."audit"
          ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED;
    END IF;
END
$do$;
DO $do$
BEGIN
    IF to_regclass('"public"."Shop.Orders.Delayed_Due"') IS NULL THEN
        CREATE TABLE IF NOT EXISTS "public"."Shop.Orders.Delayed" (
            Id      uuid        DEFAULT gen_random_uuid() PRIMARY KEY,
            Headers text        NOT NULL,
            Body    bytea,
            Due     timestamptz NOT NULL
        ) WITH (fillfactor = 100);
        CREATE INDEX "Shop.Orders.Delayed_Due" ON "public"."Shop.Orders.Delayed" (Due);
    END IF;
END
$do$;
CREATE TABLE IF NOT EXISTS "public"."SubscriptionRouting" (
    QueueAddress varchar(200) NOT NULL,
    Endpoint     varchar(200) NOT NULL,
    Topic        varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
) WITH (fillfactor = 100);

DO $do$
BEGIN
    IF to_regrole('"orders_reader"') IS NULL THEN CREATE ROLE "orders_reader" NOLOGIN; END IF;
    IF NOT has_database_privilege('orders_reader', current_database(), 'CONNECT') THEN  -- PUBLIC lacks it
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'orders_reader');
    END IF;
    IF to_regrole('"orders_sender"') IS NULL THEN CREATE ROLE "orders_sender" NOLOGIN; END IF;
    IF NOT has_database_privilege('orders_sender', current_database(), 'CONNECT') THEN  -- PUBLIC lacks it
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'orders_sender');
    END IF;
    IF to_regrole('"clerk"') IS NULL THEN CREATE ROLE "clerk" NOLOGIN; END IF;
    IF NOT has_database_privilege('clerk', current_database(), 'CONNECT') THEN  -- PUBLIC lacks it
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'clerk');
    END IF;
    IF to_regrole('"endpoints"') IS NULL THEN CREATE ROLE "endpoints" NOLOGIN; END IF;
    IF NOT has_database_privilege('endpoints', current_database(), 'CONNECT') THEN  -- PUBLIC lacks it
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'endpoints');
    END IF;
END
$do$;

-- Rights of a reader. To give them to the login of its Spark job: GRANT "orders_reader" TO "login".
-- A row lock needs UPDATE of one column. The server writes the login of a receipt.
GRANT USAGE ON SCHEMA "sqlqueue_orders" TO "orders_reader";
GRANT SELECT ON "sqlqueue_orders".version TO "orders_reader";
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, stored_plan, plan_high_water, query_id, spark_batch,
              query_name, removed, messages, expired, diverted, forwarded, seen)
   ON "sqlqueue_orders".stream TO "orders_reader";
GRANT SELECT, INSERT, UPDATE (stream, run_id) ON "sqlqueue_orders".query_reader TO "orders_reader";
GRANT SELECT, DELETE, UPDATE (stream, beat), INSERT (driver, stream, name, queue, host, process, shared)
   ON "sqlqueue_orders".heartbeat TO "orders_reader";
GRANT SELECT, DELETE, UPDATE (settled),
      INSERT (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes, query_id,
              spark_batch, query_name, settled, unpacked, payload)
   ON "sqlqueue_orders".receipt TO "orders_reader";
GRANT SELECT, INSERT, DELETE ON "sqlqueue_orders".receipt_page TO "orders_reader";
GRANT INSERT (action, queue, messages, stream, batch, task) ON "sqlqueue_orders".trail TO "orders_reader";
GRANT USAGE ON SCHEMA "public" TO "orders_reader";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "orders_reader";
GRANT SELECT ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "orders_reader";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders.web1" TO "orders_reader";
GRANT SELECT ON SEQUENCE "public"."Shop.Orders.web1_seq_seq" TO "orders_reader";
GRANT INSERT, SELECT (seq) ON "public"."error" TO "orders_reader";
GRANT USAGE ON SEQUENCE "public"."error_seq_seq" TO "orders_reader";
GRANT INSERT, SELECT (seq) ON "public"."audit" TO "orders_reader";
GRANT USAGE ON SEQUENCE "public"."audit_seq_seq" TO "orders_reader";
GRANT SELECT, DELETE, UPDATE (due) ON "public"."Shop.Orders.Delayed" TO "orders_reader";
GRANT INSERT ON "public"."Shop.Orders" TO "orders_reader";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "orders_reader";

-- Rights of a sender. To give them to the login of its Spark job: GRANT "orders_sender" TO "login".
GRANT USAGE ON SCHEMA "sqlqueue_orders" TO "orders_sender";
GRANT SELECT ON "sqlqueue_orders".version TO "orders_sender";
GRANT SELECT, INSERT, DELETE ON "sqlqueue_orders".staging, "sqlqueue_orders".staging_page TO "orders_sender";
GRANT SELECT, INSERT, DELETE, UPDATE (sink_batch, messages, dispatched, destination)
   ON "sqlqueue_orders".dispatch_log TO "orders_sender";
GRANT USAGE ON SCHEMA "public" TO "orders_sender";
GRANT INSERT, SELECT (seq) ON "public"."Shop.Orders" TO "orders_sender";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "orders_sender";
GRANT INSERT, SELECT (seq) ON "public"."Shop.Orders.web1" TO "orders_sender";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders.web1_seq_seq" TO "orders_sender";
GRANT INSERT ON "public"."Shop.Orders.Delayed" TO "orders_sender";
GRANT SELECT ON "public"."SubscriptionRouting" TO "orders_sender";

-- Rights of an operator, who also reads the audit trail. To give them to a login that runs
-- `sqlqueue`: GRANT "clerk" TO "login". No role may change or delete an entry of the trail, or write
-- another login into it.
GRANT SELECT ON "sqlqueue_orders".trail TO "clerk";
GRANT USAGE ON SCHEMA "sqlqueue_orders" TO "clerk";
GRANT SELECT ON "sqlqueue_orders".version TO "clerk";
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, stored_plan, plan_high_water, query_id, spark_batch,
              query_name, removed, messages, expired, diverted, forwarded, seen)
   ON "sqlqueue_orders".stream TO "clerk";
GRANT SELECT, INSERT, UPDATE (stream, run_id) ON "sqlqueue_orders".query_reader TO "clerk";
GRANT SELECT, DELETE, UPDATE (stream, beat), INSERT (driver, stream, name, queue, host, process, shared)
   ON "sqlqueue_orders".heartbeat TO "clerk";
GRANT SELECT, DELETE, UPDATE (settled),
      INSERT (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes, query_id,
              spark_batch, query_name, settled, unpacked, payload)
   ON "sqlqueue_orders".receipt TO "clerk";
GRANT SELECT, INSERT, DELETE ON "sqlqueue_orders".receipt_page TO "clerk";
GRANT INSERT (action, queue, messages, stream, batch, task) ON "sqlqueue_orders".trail TO "clerk";
GRANT SELECT, INSERT, DELETE ON "sqlqueue_orders".staging, "sqlqueue_orders".staging_page TO "clerk";
GRANT SELECT, INSERT, DELETE, UPDATE (sink_batch, messages, dispatched, destination)
   ON "sqlqueue_orders".dispatch_log TO "clerk";
GRANT USAGE ON SCHEMA "public" TO "clerk";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "clerk";
GRANT SELECT ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "clerk";
GRANT INSERT ON "public"."Shop.Orders" TO "clerk";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "clerk";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders.web1" TO "clerk";
GRANT SELECT ON SEQUENCE "public"."Shop.Orders.web1_seq_seq" TO "clerk";
GRANT INSERT ON "public"."Shop.Orders.web1" TO "clerk";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders.web1_seq_seq" TO "clerk";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."error" TO "clerk";
GRANT SELECT ON SEQUENCE "public"."error_seq_seq" TO "clerk";
GRANT INSERT ON "public"."error" TO "clerk";
GRANT USAGE ON SEQUENCE "public"."error_seq_seq" TO "clerk";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."audit" TO "clerk";
GRANT SELECT ON SEQUENCE "public"."audit_seq_seq" TO "clerk";
GRANT INSERT ON "public"."audit" TO "clerk";
GRANT USAGE ON SEQUENCE "public"."audit_seq_seq" TO "clerk";
GRANT SELECT, DELETE, UPDATE (due) ON "public"."Shop.Orders.Delayed" TO "clerk";
GRANT INSERT ON "public"."Shop.Orders.Delayed" TO "clerk";
GRANT SELECT ON "public"."SubscriptionRouting" TO "clerk";
GRANT INSERT, UPDATE, DELETE ON "public"."SubscriptionRouting" TO "clerk";

-- Rights of a producer: an endpoint or ServiceControl, which only sends and is in no team. To give them
-- to its login: GRANT "endpoints" TO "login".
GRANT USAGE ON SCHEMA "public" TO "endpoints";
GRANT INSERT ON "public"."Shop.Orders" TO "endpoints";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "endpoints";
GRANT INSERT ON "public"."Shop.Orders.web1" TO "endpoints";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders.web1_seq_seq" TO "endpoints";

-- Gives the rights to the login of the Spark job, which must exist already.
GRANT "orders_reader" TO "spark_orders";
GRANT "orders_sender" TO "spark_orders";

COMMIT;
