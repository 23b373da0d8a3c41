-- part: trusted
-- The roles that this session trusts: it may use their tables. Other statements contain this part. The
-- caller defines `given`, which has two lists: names of trusted roles, and tables and schemas that the
-- user has named in the options. The owners of those tables and schemas are trusted too. A session that
-- can become a superuser trusts only superusers and the roles of the first list. Such a session does not
-- trust the database's owner: code that the owner adds to a table would run with the rights of the
-- session, and could make the owner a superuser.
roles AS MATERIALIZED (
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
)

-- part: faults
-- Why tables must not be used. Other statements contain this part. The caller defines `asked`, a list of
-- tables: the place of each table in the list, its id and its description. The owner of a table can add
-- any code to it. Other logins can add only triggers and foreign keys, and only if they have the right to
-- do so. So this part checks owners, triggers and foreign keys. Any other code that a table runs was
-- added by its owner, and the owner is checked. A trigger with a condition or with arguments is a fault
-- too, because a condition or an argument can run any text as code.
tables (place, id, what) AS (
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

-- name: table_owners
-- Reads, for each of some tables, who owns it, why it must not be used, and whether it is a queue. The
-- names are looked up in the catalogue, because a cast of a name to a table would fail without USAGE on
-- the schema. :deletes says whether the caller will delete rows.
-- Returns: for each table that is there, the fields of `TableFacts` in trust.py
WITH RECURSIVE given (owners, named, deletes) AS (
    SELECT :owners::text::json, :named::text::json, :deletes::boolean
), {trusted}, asked AS (
    SELECT t.place, t.columns, c.oid AS id, 'it' AS what, n.nspname, n.oid AS schema,
           c.relname, c.relkind, c.relowner
      FROM json_to_recordset(:places::text::json)
           AS t (place bigint, schema_name text, table_name text, columns json)
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema_name::name
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name::name
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
), {faults}
SELECT t.place, t.id::bigint AS identity, NULL::text AS catalog, true AS here,
       t.nspname::text AS schema, t.relname::text AS table,
       (SELECT min({column_fault})
          FROM json_array_elements_text(t.columns) AS w (name)
          JOIN ({queue_types}) AS k ON k.name = lower(w.name)
          LEFT JOIN pg_catalog.pg_attribute AS a
            ON a.attrelid = t.id AND NOT a.attisdropped AND a.attname = k.name::name) AS missing,
       t.relkind IN ('r', 'p') AND has_schema_privilege(t.schema, 'USAGE')
       AND has_table_privilege(t.id, 'INSERT') AS may_insert,
       pg_get_userbyid(t.relowner)::text AS owner, f.fault, pg_get_userbyid(f.role)::text AS role,
       (SELECT is_super FROM roles LIMIT 1) AS is_super
  FROM asked AS t
  LEFT JOIN LATERAL (SELECT fault, role FROM faults WHERE faults.place = t.place
                      ORDER BY rank, fault LIMIT 1) AS f ON true

-- name: find_other_case
-- Finds a queue whose schema and name are :schema_name and :table_name in other upper and lower case. It
-- runs after a queue that an option or an argument names was not found. It finds only tables that have
-- the columns of a queue and that this login may read or insert into. Only the catalogue is read.
-- Locks:   nothing. Waits for no lock.
-- Returns: schema, table text: at most one row, the first by schema and name
SELECT n.nspname::text AS schema, c.relname::text AS table
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p')
   AND lower(n.nspname::text COLLATE "default") = lower(:schema_name::text)
   AND lower(c.relname::text COLLATE "default") = lower(:table_name::text)
   AND (n.nspname <> :schema_name::text OR c.relname <> :table_name::text)
   AND 5 = (SELECT count(*)
              FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid = c.oid
               AND NOT a.attisdropped
               AND a.attname IN ('id', 'expires', 'headers', 'body', 'seq'))
   AND has_schema_privilege(c.relnamespace, 'USAGE')
   AND has_any_column_privilege(c.oid, 'SELECT, INSERT')
 ORDER BY n.nspname, c.relname
 LIMIT 1
