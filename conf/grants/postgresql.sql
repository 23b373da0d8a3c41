-- Tables and rights by role, for the endpoint Shop.Orders. A superuser or the database's owner runs
-- it, as often as need be:  psql -v ON_ERROR_STOP=1 -f postgresql.sql shop
--
--   sqlqueue_reader     receives from the queue, moves what is due, diverts to error and audit queue
--   sqlqueue_sender     sends to the queue, also delayed, and publishes
--   sqlqueue_operator   both, with all queues, and subscribes: runs the commands of `sqlqueue`
--   sqlqueue_installer  makes queues: `sqlqueue create`; the state tables are made here
--   sqlqueue_owner      owns the state tables; no login may be a member of it
--
-- For queues of your own, and for a job that reads the error or the audit queue, print another one:
-- sqlqueue script Shop.Orders --error error --audit audit --delayed --subscription-table SubscriptionRouting --operator sqlqueue_operator --installer sqlqueue_installer

BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp;

-- Tables. The login that runs this owns them.

CREATE TABLE IF NOT EXISTS "public"."Shop.Orders" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);

CREATE TABLE IF NOT EXISTS "public"."error" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);

CREATE TABLE IF NOT EXISTS "public"."audit" (
    Id      uuid      PRIMARY KEY,
    Expires timestamp,
    Headers text      NOT NULL,
    Body    bytea,
    Seq     serial    NOT NULL UNIQUE
);

DO $do$
DECLARE
    faults text;
BEGIN
    SELECT string_agg(fault, '; ') INTO faults FROM (WITH state AS (
    SELECT oid, nspname, pg_get_userbyid(nspowner) AS owner
      FROM pg_catalog.pg_namespace
     WHERE nspname = 'sqlqueue'::text
), tables AS (
    SELECT c.oid,
           format('%I.%I', s.nspname, c.relname) AS named,
           pg_get_userbyid(c.relowner) AS owner,
           c.relkind
      FROM state AS s
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
     WHERE c.relname IN ('version', 'reader', 'task', 'receipt', 'receipt_page', 'outbox',
                         'outbox_page', 'dispatched')
), owned AS (
    SELECT format('schema %I', nspname) AS what, owner FROM state
    UNION ALL
    SELECT format('table %s', named), owner FROM tables
)
SELECT format('%s belongs to %I', what, owner) AS fault
  FROM owned
 WHERE owner <> current_user AND owner <> coalesce('sqlqueue_owner'::text, current_user)
UNION ALL
SELECT format('%s is no plain table', named) FROM tables WHERE relkind <> 'r'
UNION ALL
SELECT format('table %s has the trigger %I', t.named, g.tgname)
  FROM tables AS t
  JOIN pg_catalog.pg_trigger AS g ON g.tgrelid = t.oid
 WHERE NOT g.tgisinternal
UNION ALL
SELECT format('table %s has the rule %I', t.named, r.rulename)
  FROM tables AS t
  JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = t.oid
 WHERE t.relkind = 'r'
UNION ALL
SELECT format('table %s has a default, a constraint or a policy that calls %s', t.named,
              d.refobjid::regprocedure)
  FROM tables AS t
  JOIN (SELECT 'pg_catalog.pg_attrdef'::regclass AS class, oid, adrelid AS relation
          FROM pg_catalog.pg_attrdef
        UNION ALL
        SELECT 'pg_catalog.pg_constraint'::regclass, oid, conrelid FROM pg_catalog.pg_constraint
        UNION ALL
        SELECT 'pg_catalog.pg_policy'::regclass, oid, polrelid FROM pg_catalog.pg_policy) AS part
    ON part.relation = t.oid
  JOIN pg_catalog.pg_depend AS d ON d.classid = part.class AND d.objid = part.oid
 WHERE d.refclassid = 'pg_catalog.pg_proc'::regclass
UNION ALL
SELECT format('table %s has a column of the type %s', t.named, d.refobjid::regtype)
  FROM tables AS t
  JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = t.oid
 WHERE d.refclassid = 'pg_catalog.pg_type'::regclass) AS state_faults;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed: %', faults
              USING HINT = 'Whoever owns a state table, or a trigger on it, can run code as those who'
                           ' use it. Find out who made this, drop or rename it, or use another schema.';
    END IF;
END
$do$;

CREATE SCHEMA IF NOT EXISTS "sqlqueue";

CREATE TABLE IF NOT EXISTS "sqlqueue".version (
    version integer NOT NULL PRIMARY KEY
);

CREATE TABLE IF NOT EXISTS "sqlqueue".reader (
    reader      varchar(36) NOT NULL,
    login       name        NOT NULL DEFAULT current_user,
    queue       text        NOT NULL,
    driver      varchar(36) NOT NULL,
    acked_batch bigint      NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
    plan_batch  bigint      CHECK (plan_batch > acked_batch),
    plan        text        CHECK ((plan IS NULL) = (plan_batch IS NULL)),
    messages    bigint      NOT NULL DEFAULT 0,
    expired     bigint      NOT NULL DEFAULT 0,
    diverted    bigint      NOT NULL DEFAULT 0,
    forwarded   bigint      NOT NULL DEFAULT 0,
    created     timestamptz NOT NULL DEFAULT now(),
    seen        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, login)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE IF NOT EXISTS "sqlqueue".task (
    reader varchar(36) NOT NULL,
    login  name        NOT NULL DEFAULT current_user,
    task   integer     NOT NULL CHECK (task >= 0),
    PRIMARY KEY (reader, login, task)
);

CREATE TABLE IF NOT EXISTS "sqlqueue".receipt (
    reader      varchar(36) NOT NULL,
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
    query_batch bigint,
    settled     boolean     NOT NULL DEFAULT false,
    payload     bytea       NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, batch, task, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".receipt ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS "sqlqueue".receipt_page (
    reader  varchar(36) NOT NULL,
    login   name        NOT NULL DEFAULT current_user,
    batch   bigint      NOT NULL,
    task    integer     NOT NULL,
    page    integer     NOT NULL,
    payload bytea       NOT NULL,
    PRIMARY KEY (reader, batch, task, page, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".receipt_page ALTER COLUMN payload SET STORAGE PLAIN;

CREATE TABLE IF NOT EXISTS "sqlqueue".outbox (
    sink     varchar(200) NOT NULL,
    login    name         NOT NULL DEFAULT current_user,
    batch    bigint       NOT NULL,
    attempt  varchar(36)  NOT NULL,
    parcel   integer      NOT NULL,
    messages bigint       NOT NULL CHECK (messages > 0),
    payload  bytea        NOT NULL,
    created  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, batch, attempt, parcel, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".outbox ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS "sqlqueue".outbox_page (
    sink    varchar(200) NOT NULL,
    login   name         NOT NULL DEFAULT current_user,
    batch   bigint       NOT NULL,
    attempt varchar(36)  NOT NULL,
    parcel  integer      NOT NULL,
    page    integer      NOT NULL,
    payload bytea        NOT NULL,
    PRIMARY KEY (sink, batch, attempt, parcel, page, login)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".outbox_page ALTER COLUMN payload SET STORAGE PLAIN;

CREATE TABLE IF NOT EXISTS "sqlqueue".dispatched (
    sink       varchar(200) NOT NULL,
    login      name         NOT NULL DEFAULT current_user,
    batch      bigint,
    messages   bigint       NOT NULL DEFAULT 0,
    dispatched timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, login)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

DO $do$
DECLARE
    faults text;
BEGIN
    SELECT string_agg(fault, '; ') INTO faults FROM (WITH state AS (
    SELECT oid, nspname, pg_get_userbyid(nspowner) AS owner
      FROM pg_catalog.pg_namespace
     WHERE nspname = 'sqlqueue'::text
), tables AS (
    SELECT c.oid,
           format('%I.%I', s.nspname, c.relname) AS named,
           pg_get_userbyid(c.relowner) AS owner,
           c.relkind
      FROM state AS s
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
     WHERE c.relname IN ('version', 'reader', 'task', 'receipt', 'receipt_page', 'outbox',
                         'outbox_page', 'dispatched')
), owned AS (
    SELECT format('schema %I', nspname) AS what, owner FROM state
    UNION ALL
    SELECT format('table %s', named), owner FROM tables
)
SELECT format('%s belongs to %I', what, owner) AS fault
  FROM owned
 WHERE owner <> current_user AND owner <> coalesce('sqlqueue_owner'::text, current_user)
UNION ALL
SELECT format('%s is no plain table', named) FROM tables WHERE relkind <> 'r'
UNION ALL
SELECT format('table %s has the trigger %I', t.named, g.tgname)
  FROM tables AS t
  JOIN pg_catalog.pg_trigger AS g ON g.tgrelid = t.oid
 WHERE NOT g.tgisinternal
UNION ALL
SELECT format('table %s has the rule %I', t.named, r.rulename)
  FROM tables AS t
  JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = t.oid
 WHERE t.relkind = 'r'
UNION ALL
SELECT format('table %s has a default, a constraint or a policy that calls %s', t.named,
              d.refobjid::regprocedure)
  FROM tables AS t
  JOIN (SELECT 'pg_catalog.pg_attrdef'::regclass AS class, oid, adrelid AS relation
          FROM pg_catalog.pg_attrdef
        UNION ALL
        SELECT 'pg_catalog.pg_constraint'::regclass, oid, conrelid FROM pg_catalog.pg_constraint
        UNION ALL
        SELECT 'pg_catalog.pg_policy'::regclass, oid, polrelid FROM pg_catalog.pg_policy) AS part
    ON part.relation = t.oid
  JOIN pg_catalog.pg_depend AS d ON d.classid = part.class AND d.objid = part.oid
 WHERE d.refclassid = 'pg_catalog.pg_proc'::regclass
UNION ALL
SELECT format('table %s has a column of the type %s', t.named, d.refobjid::regtype)
  FROM tables AS t
  JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = t.oid
 WHERE d.refclassid = 'pg_catalog.pg_type'::regclass) AS state_faults;
    IF faults IS NOT NULL THEN
        RAISE EXCEPTION 'nothing is installed: %', faults
              USING HINT = 'Whoever owns a state table, or a trigger on it, can run code as those who'
                           ' use it. Find out who made this, drop or rename it, or use another schema.';
    END IF;
END
$do$;

ALTER TABLE "sqlqueue"."version" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."version";

CREATE POLICY "own rows" ON "sqlqueue"."version" FOR SELECT USING (true);

ALTER TABLE "sqlqueue"."reader" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."reader";

CREATE POLICY "own rows" ON "sqlqueue"."reader" USING (login = current_user);

ALTER TABLE "sqlqueue"."task" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."task";

CREATE POLICY "own rows" ON "sqlqueue"."task" USING (login = current_user);

ALTER TABLE "sqlqueue"."receipt" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."receipt";

CREATE POLICY "own rows" ON "sqlqueue"."receipt" USING (login = current_user);

ALTER TABLE "sqlqueue"."receipt_page" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."receipt_page";

CREATE POLICY "own rows" ON "sqlqueue"."receipt_page" USING (login = current_user);

ALTER TABLE "sqlqueue"."outbox" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."outbox";

CREATE POLICY "own rows" ON "sqlqueue"."outbox" USING (login = current_user);

ALTER TABLE "sqlqueue"."outbox_page" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."outbox_page";

CREATE POLICY "own rows" ON "sqlqueue"."outbox_page" USING (login = current_user);

ALTER TABLE "sqlqueue"."dispatched" ENABLE ROW LEVEL SECURITY;

DROP POLICY IF EXISTS "own rows" ON "sqlqueue"."dispatched";

CREATE POLICY "own rows" ON "sqlqueue"."dispatched" USING (login = current_user);

INSERT INTO "sqlqueue".version (version)
SELECT 3::integer
 WHERE NOT EXISTS (SELECT FROM "sqlqueue".version WHERE version >= 3::integer);

DELETE FROM "sqlqueue".version WHERE version < 3::integer;

-- Rights of a reader: GRANT "sqlqueue_reader" TO the login of its Spark job.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_reader') THEN
        CREATE ROLE "sqlqueue_reader" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE ON SCHEMA "sqlqueue" TO "sqlqueue_reader";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_reader";
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, plan, messages, expired, diverted, forwarded,
              seen)
   ON "sqlqueue".reader TO "sqlqueue_reader";
GRANT SELECT, INSERT, UPDATE (task) ON "sqlqueue".task TO "sqlqueue_reader";
GRANT SELECT, INSERT, DELETE, UPDATE (settled) ON "sqlqueue".receipt TO "sqlqueue_reader";
GRANT SELECT, INSERT, DELETE ON "sqlqueue".receipt_page TO "sqlqueue_reader";

DROP POLICY IF EXISTS "sqlqueue_reader" ON "sqlqueue"."reader";
CREATE POLICY "sqlqueue_reader" ON "sqlqueue"."reader" TO "sqlqueue_reader"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_reader', 'USAGE'))));

DROP POLICY IF EXISTS "sqlqueue_reader" ON "sqlqueue"."task";
CREATE POLICY "sqlqueue_reader" ON "sqlqueue"."task" TO "sqlqueue_reader"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_reader', 'USAGE'))));

DROP POLICY IF EXISTS "sqlqueue_reader" ON "sqlqueue"."receipt";
CREATE POLICY "sqlqueue_reader" ON "sqlqueue"."receipt" TO "sqlqueue_reader"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_reader', 'USAGE'))));

DROP POLICY IF EXISTS "sqlqueue_reader" ON "sqlqueue"."receipt_page";
CREATE POLICY "sqlqueue_reader" ON "sqlqueue"."receipt_page" TO "sqlqueue_reader"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_reader', 'USAGE'))));

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_reader";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "sqlqueue_reader";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_reader";
GRANT INSERT, SELECT (id) ON "public"."error" TO "sqlqueue_reader";
GRANT USAGE ON SEQUENCE "public"."error_seq_seq" TO "sqlqueue_reader";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_reader";
GRANT INSERT, SELECT (id) ON "public"."audit" TO "sqlqueue_reader";
GRANT USAGE ON SEQUENCE "public"."audit_seq_seq" TO "sqlqueue_reader";

-- Rights of a sender: GRANT "sqlqueue_sender" TO the login of its Spark job.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_sender') THEN
        CREATE ROLE "sqlqueue_sender" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE ON SCHEMA "sqlqueue" TO "sqlqueue_sender";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_sender";
GRANT SELECT, INSERT, DELETE ON "sqlqueue".outbox, "sqlqueue".outbox_page TO "sqlqueue_sender";
GRANT SELECT, INSERT, DELETE, UPDATE (batch, messages, dispatched) ON "sqlqueue".dispatched TO "sqlqueue_sender";

DROP POLICY IF EXISTS "sqlqueue_sender" ON "sqlqueue"."outbox";
CREATE POLICY "sqlqueue_sender" ON "sqlqueue"."outbox" TO "sqlqueue_sender"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_sender', 'USAGE'))));

DROP POLICY IF EXISTS "sqlqueue_sender" ON "sqlqueue"."outbox_page";
CREATE POLICY "sqlqueue_sender" ON "sqlqueue"."outbox_page" TO "sqlqueue_sender"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_sender', 'USAGE'))));

DROP POLICY IF EXISTS "sqlqueue_sender" ON "sqlqueue"."dispatched";
CREATE POLICY "sqlqueue_sender" ON "sqlqueue"."dispatched" TO "sqlqueue_sender"
 USING (login = current_user
        OR login = ANY (ARRAY (
            SELECT r.rolname
              FROM pg_catalog.pg_roles AS r
             WHERE NOT r.rolsuper AND pg_has_role(r.oid, 'sqlqueue_sender', 'USAGE'))));

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_sender";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_sender";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_sender";

-- Who hears of which topic.

CREATE TABLE IF NOT EXISTS "public"."SubscriptionRouting" (
    QueueAddress varchar(200) NOT NULL,
    Endpoint     varchar(200) NOT NULL,
    Topic        varchar(200) NOT NULL,
    PRIMARY KEY (Endpoint, Topic)
) WITH (fillfactor = 100);

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_sender";
GRANT SELECT ON "public"."SubscriptionRouting" TO "sqlqueue_sender";

-- Delayed messages.

CREATE TABLE IF NOT EXISTS "public"."Shop.Orders.Delayed" (
    Id      uuid        DEFAULT gen_random_uuid() PRIMARY KEY,
    Headers text        NOT NULL,
    Body    bytea,
    Due     timestamptz NOT NULL
) WITH (fillfactor = 100);

CREATE INDEX IF NOT EXISTS "Shop.Orders.Delayed_Due" ON "public"."Shop.Orders.Delayed" (Due);

GRANT SELECT, DELETE, UPDATE (due) ON "public"."Shop.Orders.Delayed" TO "sqlqueue_reader";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_reader";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_reader";

GRANT INSERT ON "public"."Shop.Orders.Delayed" TO "sqlqueue_sender";

-- Rights of an operator: GRANT "sqlqueue_operator" TO whoever runs `sqlqueue`.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_operator') THEN
        CREATE ROLE "sqlqueue_operator" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE ON SCHEMA "sqlqueue" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT,
      UPDATE (queue, driver, acked_batch, plan_batch, plan, messages, expired, diverted, forwarded,
              seen)
   ON "sqlqueue".reader TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE (task) ON "sqlqueue".task TO "sqlqueue_operator";
GRANT SELECT, INSERT, DELETE, UPDATE (settled) ON "sqlqueue".receipt TO "sqlqueue_operator";
GRANT SELECT, INSERT, DELETE ON "sqlqueue".receipt_page TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "sqlqueue" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, DELETE ON "sqlqueue".outbox, "sqlqueue".outbox_page TO "sqlqueue_operator";
GRANT SELECT, INSERT, DELETE, UPDATE (batch, messages, dispatched) ON "sqlqueue".dispatched TO "sqlqueue_operator";

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."reader";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."reader" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."task";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."task" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."receipt";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."receipt" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."receipt_page";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."receipt_page" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."outbox";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."outbox" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."outbox_page";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."outbox_page" TO "sqlqueue_operator" USING (true);

DROP POLICY IF EXISTS "sqlqueue_operator" ON "sqlqueue"."dispatched";
CREATE POLICY "sqlqueue_operator" ON "sqlqueue"."dispatched" TO "sqlqueue_operator" USING (true);

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."error" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT INSERT ON "public"."error" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."error_seq_seq" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."audit" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT INSERT ON "public"."audit" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."audit_seq_seq" TO "sqlqueue_operator";

GRANT SELECT, DELETE, UPDATE (due) ON "public"."Shop.Orders.Delayed" TO "sqlqueue_operator";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_operator";

GRANT INSERT ON "public"."Shop.Orders.Delayed" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT SELECT ON "public"."SubscriptionRouting" TO "sqlqueue_operator";

GRANT INSERT, UPDATE, DELETE ON "public"."SubscriptionRouting" TO "sqlqueue_operator";

-- Owner of the state tables: no login may be a member of it.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_owner') THEN
        CREATE ROLE "sqlqueue_owner" NOLOGIN;
    END IF;
END
$do$;

DO $do$
BEGIN
    IF EXISTS (SELECT
                 FROM pg_catalog.pg_roles
                WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
                  AND pg_has_role(oid, 'sqlqueue_owner', 'MEMBER')) THEN
        RAISE EXCEPTION 'role % has a login as a member', 'sqlqueue_owner'
              USING HINT = 'Revoke that, or name another owner by --owner.';
    END IF;
END
$do$;
ALTER SCHEMA "sqlqueue" OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".version OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".reader OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".task OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".receipt OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".receipt_page OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".outbox OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".outbox_page OWNER TO "sqlqueue_owner";
ALTER TABLE "sqlqueue".dispatched OWNER TO "sqlqueue_owner";

-- Rights of an installer: GRANT "sqlqueue_installer" TO whoever makes queues.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_installer') THEN
        CREATE ROLE "sqlqueue_installer" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE, CREATE ON SCHEMA "public" TO "sqlqueue_installer";

COMMIT;
