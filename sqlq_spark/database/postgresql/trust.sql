-- name: code_parts
-- The one list of code that can run where a table is used; other statements contain it. `tables` is a
-- list of tables by id. `parts` is what hangs on them and on their types: defaults, generated columns,
-- constraints, indexes, statistics, rules, policies, triggers, domains. The normal dependencies of a
-- part (n) are what it uses; the catalogue lists no use of the server's own functions.
-- Index:   those of pg_depend.
parts (id, class, part) AS (
    SELECT t.id, 'pg_class'::regclass::oid, t.id FROM tables AS t
    UNION
    SELECT p.id, d.class, d.part
      FROM parts AS p
     CROSS JOIN LATERAL (
            SELECT classid, objid FROM pg_depend
             WHERE refclassid = p.class AND refobjid = p.part AND deptype <> 'n'
            UNION ALL
            SELECT refclassid, refobjid FROM pg_depend
             WHERE classid = p.class AND objid = p.part AND refclassid = 'pg_type'::regclass
           ) AS d (class, part)
)

-- name: source_owner
-- The owner of the queue that is read, if one is; other statements contain it.
SELECT s.relowner AS owner
  FROM parse_ident(:source_table::text) AS source (name)
  JOIN pg_namespace AS m ON m.nspname = source.name[1]
  JOIN pg_class AS s ON s.relnamespace = m.oid AND s.relname = source.name[2]

-- name: state_faults
-- Finds what another login than this one, a superuser or the owner of the database owns in the state
-- schema, and what runs code there. Reads only the catalogue, because a view runs code when it is read.
-- Returns: fault text; a row for each thing that is wrong
WITH RECURSIVE tables (named, id, owner, kind) AS (
    SELECT 'the schema', 0::oid, nspowner, 'r'::"char"
      FROM pg_namespace WHERE nspname = {state_name}
    UNION ALL
    SELECT 'table ' || oid::regclass, oid, relowner, relkind
      FROM pg_class
     WHERE relnamespace = to_regnamespace('{state_escaped}') AND relkind NOT IN ('i', 'S')
), {code_parts}
SELECT format('%s belongs to %I', named, pg_get_userbyid(owner)) AS fault
  FROM tables
 WHERE owner NOT IN (SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
                     UNION SELECT datdba FROM pg_database WHERE datname = current_database())
UNION ALL
SELECT format('%s is no plain table', named) FROM tables WHERE kind <> 'r'
UNION ALL
SELECT format('%s has the %s', named, pg_describe_object(class, part, 0))
  FROM tables JOIN parts USING (id) WHERE class IN ('pg_trigger'::regclass, 'pg_rewrite'::regclass)
UNION ALL
SELECT format('%s uses %s', named, pg_describe_object(refclassid, refobjid, 0))
  FROM tables JOIN parts USING (id)
  JOIN pg_depend ON classid = class AND objid = part AND deptype = 'n'
 WHERE refclassid IN ('pg_proc'::regclass, 'pg_type'::regclass, 'pg_operator'::regclass)

-- name: lock_destination
-- Keeps the code that an INSERT runs as it is: until commit no trigger, rule, default or policy can be
-- added, and the table cannot be renamed or replaced. The right to INSERT is enough.
-- Locks:   the table, as an INSERT does, until commit.
LOCK TABLE {queue} IN ROW EXCLUSIVE MODE

-- name: destinations
-- For tables that messages are to go to: whether they are queues, and their owners. It casts no name to
-- a table, because the cast fails without USAGE on the schema. It prints no expression, because that
-- waits for the table's lock. Trusted are this login, superusers, and the owner of the queue that is
-- read, if any.
-- Returns: for each table that is there: place bigint, in the list that was given; identity bigint;
--          catalog, here (in this database), schema and table; missing text, what is wrong with its
--          first column that is absent or of another type, or null; may_insert bool; owner text; same_owner bool, as the queue that is read;
--          trusted bool: its schema's owner is
SELECT t.place, c.oid::bigint AS identity, NULL::text AS catalog, true AS here,
       n.nspname::text, c.relname::text,
       (SELECT min({column_fault})
          FROM json_array_elements_text(t.columns) AS w (name)
          JOIN ({queue_types}) AS k ON k.name = lower(w.name)
          LEFT JOIN pg_catalog.pg_attribute AS a
            ON a.attrelid = c.oid AND NOT a.attisdropped AND a.attname = k.name::name) AS missing,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT') AS may_insert,
       pg_get_userbyid(c.relowner)::text AS owner,
       coalesce(c.relowner = source.owner, false) AS same_owner,
       coalesce((SELECT r.rolsuper OR r.rolname = current_user OR r.oid = source.owner
                   FROM pg_catalog.pg_roles AS r
                  WHERE r.oid = CASE WHEN pg_get_userbyid(n.nspowner) = 'pg_database_owner'
                                     THEN (SELECT datdba FROM pg_catalog.pg_database
                                            WHERE datname = current_database())
                                     ELSE n.nspowner END), false) AS trusted
  FROM json_to_recordset(:places::text::json)
       AS t(place bigint, schema_name text, table_name text, columns json)
  JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema_name::name
  JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name::name
  LEFT JOIN ({source_owner}) AS source ON true
 WHERE c.relkind IN ('r', 'p') OR :source_table::text IS NULL AND c.relkind IN ('v', 'm', 'f')

-- name: table_code
-- The first code of an owner who is not trusted that an action would run on tables: 'insert' (all code,
-- because a DELETE or an UPDATE may follow), or 'select' (the planner calls functions of constraints,
-- indexes and statistics; triggers, rules and defaults do not run). Trusted are this login, superusers,
-- and the owner of the queue that is read, if any. A table of theirs may run what they own. One of
-- another owner must run no code at all: its expressions may call only immutable functions of the server
-- and a few that read a clock or a sequence. Tables that inherit from it count too, because a DELETE
-- reaches them.
-- Returns: identity bigint, code text with its owner; no row where all code is trusted
WITH RECURSIVE trusted (owner) AS MATERIALIZED (
    SELECT r.oid FROM pg_roles AS r WHERE r.rolsuper OR r.rolname = current_user
    UNION ALL
    {source_owner}
), tables (root, id) AS (
    SELECT c.oid, c.oid
      FROM json_to_recordset(:places::text::json) AS a (identity bigint)
      JOIN pg_class AS c ON c.oid = a.identity::oid
     WHERE :action::text = 'insert' OR c.relowner NOT IN (SELECT owner FROM trusted)
    UNION
    SELECT t.root, i.inhrelid FROM tables AS t JOIN pg_inherits AS i ON i.inhparent = t.id
), {code_parts}, asked AS (
    SELECT t.*, c.relkind AS kind, c.relowner AS owner,
           c.relowner IN (SELECT owner FROM trusted) AS is_trusted
      FROM tables AS t
      JOIN pg_class AS c ON c.oid = t.id
), runs AS (
    SELECT a.*, p.class, p.part, split_part(pg_describe_object(p.class, p.part, 0), ' on table ', 1) AS what
      FROM asked AS a
      JOIN parts AS p ON p.id = a.id
     WHERE CASE WHEN p.class = 'pg_trigger'::regclass
                THEN :action::text = 'insert'
                     AND EXISTS (SELECT FROM pg_trigger AS g
                                  WHERE g.oid = p.part AND g.tgenabled <> 'D' AND NOT g.tgisinternal)
                WHEN :action::text = 'insert' THEN true
                WHEN p.class = 'pg_attrdef'::regclass
                THEN EXISTS (SELECT FROM pg_attrdef AS d JOIN pg_attribute AS c
                                 ON c.attrelid = d.adrelid AND c.attnum = d.adnum
                              WHERE d.oid = p.part AND c.attgenerated = 'v')
                ELSE p.class NOT IN ('pg_rewrite'::regclass, 'pg_policy'::regclass) END
), found AS (
    SELECT a.root, 1 AS rank, a.owner,
           CASE a.kind WHEN 'v' THEN 'it is a view' WHEN 'm' THEN 'it is a materialized view'
                WHEN 'f' THEN 'it is, or leads to, a foreign table'
                WHEN 'p' THEN 'it is a partitioned table' ELSE 'a table inherits from it' END AS what
      FROM asked AS a
     WHERE a.kind IN ('v', 'm', 'f')
        OR NOT a.is_trusted AND (a.kind = 'p' OR :action::text = 'select' AND a.id <> a.root)
    UNION ALL
    SELECT r.root, 2, o.owner,
           format('%s %s %s', r.what,
                  CASE u.refclassid WHEN 'pg_proc'::regclass THEN 'calls' ELSE 'uses' END,
                  pg_describe_object(u.refclassid, u.refobjid, 0))
      FROM runs AS r
      JOIN pg_depend AS u ON u.classid = r.class AND u.objid = r.part AND u.deptype = 'n'
     CROSS JOIN LATERAL (SELECT CASE u.refclassid
            WHEN 'pg_proc'::regclass THEN (SELECT proowner FROM pg_proc WHERE oid = u.refobjid)
            WHEN 'pg_type'::regclass THEN (SELECT typowner FROM pg_type WHERE oid = u.refobjid)
            WHEN 'pg_operator'::regclass THEN (SELECT oprowner FROM pg_operator WHERE oid = u.refobjid)
            WHEN 'pg_opclass'::regclass THEN (SELECT opcowner FROM pg_opclass WHERE oid = u.refobjid)
            WHEN 'pg_class'::regclass THEN (SELECT relowner FROM pg_class WHERE oid = u.refobjid
                AND u.classid IN ('pg_rewrite'::regclass, 'pg_policy'::regclass)) END) AS o (owner)
     WHERE (NOT r.is_trusted AND o.owner IS NOT NULL OR o.owner NOT IN (SELECT owner FROM trusted))
       AND (:action::text = 'insert' OR u.objsubid = 0
            OR EXISTS (SELECT FROM pg_attribute AS c
                        WHERE c.attrelid = u.objid AND c.attnum = u.objsubid
                          AND c.attname IN ('id', 'expires', 'headers', 'body', 'seq', 'due',
                                            'topic', 'endpoint', 'queueaddress')))
    UNION ALL
    SELECT r.root, 3, r.owner, r.what
      FROM runs AS r
     WHERE NOT r.is_trusted
       AND (r.class IN ('pg_trigger'::regclass, 'pg_rewrite'::regclass)
            OR r.class = 'pg_constraint'::regclass AND :action::text = 'insert'
               AND EXISTS (SELECT FROM pg_constraint AS k WHERE k.oid = r.part AND k.contype = 'f'))
    UNION ALL
    SELECT a.root, 4, a.owner, 'row security applies to this login'
      FROM asked AS a
     WHERE NOT a.is_trusted AND row_security_active(a.id)
    UNION ALL
    SELECT r.root, 5, r.owner, format('%s calls function %s', r.what, f.oid::regprocedure)
      FROM runs AS r
     CROSS JOIN LATERAL regexp_matches(CASE r.class
            WHEN 'pg_attrdef'::regclass THEN (SELECT adbin::text FROM pg_attrdef WHERE oid = r.part)
            WHEN 'pg_constraint'::regclass THEN (SELECT conbin::text FROM pg_constraint WHERE oid = r.part)
            END, 'funcid (\d+)', 'g') AS called (id)
      JOIN pg_proc AS f ON f.oid = called.id[1]::oid
     WHERE NOT r.is_trusted AND :action::text = 'insert' AND f.provolatile <> 'i'
       AND f.proname NOT IN ('nextval', 'gen_random_uuid', 'now', 'clock_timestamp',
                             'statement_timestamp', 'transaction_timestamp', 'pg_trigger_depth')
)
SELECT DISTINCT ON (f.root) f.root::bigint, format('%s, of %I', f.what, pg_get_userbyid(f.owner)) AS code
  FROM found AS f
 ORDER BY f.root, f.rank, f.what

-- name: destination_locks
-- Whether tables are still those that this transaction locked by their names. It runs where the owner
-- of a schema is not trusted and may rename it. If another schema gets the name, the transaction holds
-- a lock on a second table of the same name. :places are identities.
-- Returns: identity bigint, kept bool, locks text
SELECT c.oid::bigint, c.oid = ANY (array_agg(l.relation)), array_agg(l.relation ORDER BY l.relation)::text
  FROM json_array_elements_text(:places::text::json) AS t (id)
  JOIN pg_catalog.pg_class AS c ON c.oid = t.id::oid
  JOIN pg_catalog.pg_class AS named ON named.relname = c.relname
  JOIN pg_catalog.pg_locks AS l ON l.relation = named.oid
 WHERE l.locktype = 'relation'
   AND l.pid = pg_backend_pid()
   AND l.mode = 'RowExclusiveLock'
 GROUP BY c.oid
