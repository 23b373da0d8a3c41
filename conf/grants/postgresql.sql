-- Tables and rights by role, for the endpoint Shop.Orders. A superuser or the database's owner runs
-- it, as often as need be:  psql -v ON_ERROR_STOP=1 -f postgresql.sql shop
--
--   sqlqueue_reader     receives from the queue, moves what is due, diverts to error and audit queue
--   sqlqueue_sender     sends to the queue, also delayed, and publishes
--   sqlqueue_operator   both, with all queues, and subscribes: runs the commands of `sqlqueue`
--   sqlqueue_installer  makes queues and the state tables: `sqlqueue create`, `sqlqueue install`
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

CREATE SCHEMA IF NOT EXISTS "sqlqueue";

CREATE TABLE IF NOT EXISTS "sqlqueue".version (
    version integer NOT NULL PRIMARY KEY
);

INSERT INTO "sqlqueue".version (version)
SELECT 3::integer
 WHERE NOT EXISTS (SELECT FROM "sqlqueue".version WHERE version >= 3::integer);

CREATE TABLE IF NOT EXISTS "sqlqueue".reader (
    reader      varchar(36) PRIMARY KEY,
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
    seen        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".reader ADD COLUMN IF NOT EXISTS forwarded bigint NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS "sqlqueue".receipt (
    reader      varchar(36) NOT NULL,
    batch       bigint      NOT NULL CHECK (batch > 0),
    task        integer     NOT NULL CHECK (task >= 0),
    queue       text        NOT NULL,
    messages    bigint      NOT NULL CHECK (messages >= 0),
    expired     bigint      NOT NULL CHECK (expired >= 0),
    diverted    bigint      NOT NULL CHECK (diverted >= 0),
    forwarded   bigint      NOT NULL DEFAULT 0 CHECK (forwarded >= 0),
    bytes       bigint      NOT NULL CHECK (bytes >= 0),
    query_id    varchar(36),
    query_batch bigint,
    settled     boolean     NOT NULL DEFAULT false,
    payload     bytea       NOT NULL,
    created     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, batch, task)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".receipt
  ADD COLUMN IF NOT EXISTS forwarded bigint NOT NULL DEFAULT 0 CHECK (forwarded >= 0);

ALTER TABLE "sqlqueue".receipt ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS "sqlqueue".receipt_page (
    reader  varchar(36) NOT NULL,
    batch   bigint      NOT NULL,
    task    integer     NOT NULL,
    page    integer     NOT NULL,
    payload bytea       NOT NULL,
    PRIMARY KEY (reader, batch, task, page)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".receipt_page ALTER COLUMN payload SET STORAGE PLAIN;

CREATE TABLE IF NOT EXISTS "sqlqueue".outbox (
    sink     varchar(200) NOT NULL,
    batch    bigint       NOT NULL,
    attempt  varchar(36)  NOT NULL,
    parcel   integer      NOT NULL,
    messages bigint       NOT NULL CHECK (messages > 0),
    payload  bytea        NOT NULL,
    created  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, batch, attempt, parcel)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".outbox ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS "sqlqueue".outbox_page (
    sink    varchar(200) NOT NULL,
    batch   bigint       NOT NULL,
    attempt varchar(36)  NOT NULL,
    parcel  integer      NOT NULL,
    page    integer      NOT NULL,
    payload bytea        NOT NULL,
    PRIMARY KEY (sink, batch, attempt, parcel, page)
) WITH (autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

ALTER TABLE "sqlqueue".outbox_page ALTER COLUMN payload SET STORAGE PLAIN;

CREATE TABLE IF NOT EXISTS "sqlqueue".dispatched (
    sink       varchar(200) PRIMARY KEY,
    batch      bigint       NOT NULL,
    messages   bigint       NOT NULL,
    dispatched timestamptz  NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

DELETE FROM "sqlqueue".version WHERE version < 3::integer;

-- Rights of a reader: GRANT "sqlqueue_reader" TO the login of its Spark job.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_reader') THEN
        CREATE ROLE "sqlqueue_reader" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_reader";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "sqlqueue_reader";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_reader";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".reader, "sqlqueue".receipt, "sqlqueue".receipt_page TO "sqlqueue_reader";

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

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_sender";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_sender";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_sender";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_sender";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".outbox, "sqlqueue".outbox_page, "sqlqueue".dispatched TO "sqlqueue_sender";

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

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".reader, "sqlqueue".receipt, "sqlqueue".receipt_page TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".outbox, "sqlqueue".outbox_page, "sqlqueue".dispatched TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."error" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".reader, "sqlqueue".receipt, "sqlqueue".receipt_page TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT INSERT ON "public"."error" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."error_seq_seq" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".outbox, "sqlqueue".outbox_page, "sqlqueue".dispatched TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT SELECT, DELETE, UPDATE (seq) ON "public"."audit" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".reader, "sqlqueue".receipt, "sqlqueue".receipt_page TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public", "sqlqueue" TO "sqlqueue_operator";
GRANT INSERT ON "public"."audit" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."audit_seq_seq" TO "sqlqueue_operator";
GRANT SELECT ON "sqlqueue".version TO "sqlqueue_operator";
GRANT SELECT, INSERT, UPDATE, DELETE 
   ON "sqlqueue".outbox, "sqlqueue".outbox_page, "sqlqueue".dispatched TO "sqlqueue_operator";

GRANT SELECT, DELETE, UPDATE (due) ON "public"."Shop.Orders.Delayed" TO "sqlqueue_operator";
GRANT INSERT ON "public"."Shop.Orders" TO "sqlqueue_operator";
GRANT USAGE ON SEQUENCE "public"."Shop.Orders_seq_seq" TO "sqlqueue_operator";

GRANT INSERT ON "public"."Shop.Orders.Delayed" TO "sqlqueue_operator";

GRANT USAGE ON SCHEMA "public" TO "sqlqueue_operator";
GRANT SELECT ON "public"."SubscriptionRouting" TO "sqlqueue_operator";

GRANT INSERT, UPDATE, DELETE ON "public"."SubscriptionRouting" TO "sqlqueue_operator";

-- Rights of an installer: GRANT "sqlqueue_installer" TO whoever makes the tables.

DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'sqlqueue_installer') THEN
        CREATE ROLE "sqlqueue_installer" NOLOGIN;
    END IF;
END
$do$;

GRANT USAGE, CREATE ON SCHEMA "public" TO "sqlqueue_installer";

DO $do$
BEGIN
    EXECUTE format('GRANT CREATE ON DATABASE %I TO %I', current_database(), 'sqlqueue_installer');
END
$do$;
ALTER SCHEMA "sqlqueue" OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".version OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".reader OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".receipt OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".receipt_page OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".outbox OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".outbox_page OWNER TO "sqlqueue_installer";
ALTER TABLE "sqlqueue".dispatched OWNER TO "sqlqueue_installer";

COMMIT;
