"""
What differs between the databases: tables of other releases, faults, rights, addresses.

A test takes its cases by name from both. A case that only one database has is marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Wrong(NamedTuple):
    """Something that can be wrong with a queue."""

    severity: str
    make: str  # the SQL by which a DBA causes it
    found: str  # a part of the finding's text


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """One database's words."""

    otherwise: dict[str, str]  # changes a queue so that it still is one
    no_queue: dict[str, str]  # changes a queue so that it is none any more
    wrong: dict[str, Wrong]  # the key begins with the finding's name, up to a comma
    hurt: str  # a key of `wrong` for a fault that any queue can have
    swell: str  # sends so much that it is no small table any more, where that makes a difference
    rights: dict[str, str]  # name → statements that grant it: rights other than those on queues
    no_address: dict[str, str]  # text of a message → why it is no address
    missing_schema: str  # an address in a schema that is not there
    login: str  # makes a login
    may_all: str
    give: str  # a table to a login
    drop_login: str


_COLUMNS = "Expires timestamp, Headers text NOT NULL, Body bytea"
_LAST = "SELECT setval(pg_get_serial_sequence('{queue}', 'seq'), "
_SET = "ALTER TABLE {queue} SET"
_OFF = "autovacuum is off for this table"
_NO_EXPIRES = "ALTER TABLE {queue} DROP COLUMN Expires"
_INSERT = "INSERT INTO {queue} (id, headers) SELECT gen_random_uuid(), ''"
_COPIED = "INSERT INTO {queue} (id, headers, seq) SELECT gen_random_uuid(), '{}', n"

# Types that other software gives the columns. Some can be read, but mean something else.
_WRONG_TYPES = [
    ("id", "text"),
    ("id", "char(36)"),
    ("id", "bytea"),
    ("expires", "text"),
    ("expires", "timestamptz"),
    ("headers", "json"),
    ("headers", "jsonb"),
    ("headers", "char(3000)"),
    ("body", "jsonb"),
    ("seq", "text"),
    ("seq", "double precision"),
    ("seq", "smallint"),
]
_PRINTED = {
    "timestamptz": "timestamp with time zone",
    "char(36)": "character(36)",
    "char(3000)": "character(3000)",
}
_VALUES = {"bytea": "uuid_send(id)", "jsonb": "'{}'", "json": "'{}'"}


def _retype(column: str, kind: str) -> str:
    value = _VALUES.get(kind, f"{column}::{kind}")
    return f"ALTER TABLE {{queue}} ALTER COLUMN {column} TYPE {kind} USING {value}"


POSTGRESQL = Shapes(
    otherwise={
        "expires index": "CREATE INDEX ON {queue} (Expires) INCLUDE (Id, Seq)",
        "identity seq": (
            "ALTER TABLE {queue} DROP COLUMN Seq;"
            "ALTER TABLE {queue} ADD COLUMN Seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
        ),
        "extra columns": (
            "ALTER TABLE {queue} ADD COLUMN note text,"
            " ADD COLUMN shard int NOT NULL DEFAULT 7,"
            ' ADD COLUMN "Made On" timestamptz NOT NULL DEFAULT now(),'
            " ADD COLUMN BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED"
        ),
        "version 1 columns": (
            "DROP TABLE {queue};CREATE TABLE {queue} (Id uuid PRIMARY KEY,"
            " CorrelationId varchar(255), ReplyToAddress varchar(255), Recoverable boolean"
            f" DEFAULT true, {_COLUMNS}, Seq serial NOT NULL UNIQUE)"
        ),
        "another order": (
            "DROP TABLE {queue};CREATE TABLE {queue} (Seq bigserial NOT NULL UNIQUE, Body bytea,"
            " Headers varchar NOT NULL, Expires timestamp(3), Id uuid PRIMARY KEY);"
            "SELECT setval('{sequence}', 5000000000)"
        ),
        "a column was dropped": (
            "ALTER TABLE {queue} ADD COLUMN old text, ADD COLUMN note text;"
            "ALTER TABLE {queue} DROP COLUMN old, DROP COLUMN Expires;"
            "ALTER TABLE {queue} ADD COLUMN Expires timestamp"
        ),
        "numeric seq": (
            "ALTER TABLE {queue} ALTER COLUMN Headers TYPE varchar, ALTER COLUMN Seq TYPE numeric"
        ),
        "no key": (
            "ALTER TABLE {queue} DROP CONSTRAINT {table}_pkey;"
            "ALTER TABLE {queue} ALTER COLUMN Headers DROP NOT NULL"
        ),
    },
    no_queue={
        "quoted names": (
            'DROP TABLE {queue};CREATE TABLE {queue} ("Id" uuid, "Expires" timestamp,'
            ' "Headers" text, "Body" bytea, "Seq" serial)'
        ),
        "no seq": "ALTER TABLE {queue} DROP COLUMN seq",
        **{f"{column} {kind}": _retype(column, kind) for column, kind in _WRONG_TYPES},
    },
    wrong={
        "headers_type": Wrong(
            "error",
            "ALTER TABLE {queue} ALTER COLUMN headers TYPE varchar(3000)",
            "column headers is character varying(3000)",
        ),
        "seq_index": Wrong(
            "error",
            "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key;"
            "CREATE INDEX ON {queue} (seq) WHERE seq > 0;CREATE INDEX ON {queue} (expires, seq)",
            "seq has no index: every receive",
        ),
        "seq_repeats": Wrong(
            "warning",
            "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key;CREATE INDEX ON {queue} (seq)",
            "seq may repeat, because its index is not unique; the index serves receives",
        ),
        "sequence_behind": Wrong(
            "error",
            f"{_COPIED} FROM generate_series(1, 500) AS n",
            "the highest seq is 500, but the sequence has given no more than 0: a send fails",
        ),
        "sequence_behind, set back": Wrong(
            "error",
            f"{_INSERT} FROM generate_series(1, 500);{_LAST} 7)",
            "the highest seq is 500, but the sequence has given no more than 7: a send fails",
        ),
        **{
            f"column_type, {column} {kind}": Wrong(
                "error",
                _retype(column, kind),
                f"column {column} is {_PRINTED.get(kind, kind)}: expected",
            )
            for column, kind in _WRONG_TYPES
            if (column, kind) != ("seq", "text")  # whose default a DBA must set again
        },
        "seq_end": Wrong(
            "warning", f"{_LAST} 1900000000)", "88% of the seqs are used up (1900000000 of "
        ),
        # the column has room, its sequence has not
        "seq_end, of the sequence": Wrong(
            "warning",
            f"{_LAST} 2147483640);{_INSERT};ALTER TABLE {{queue}} ALTER COLUMN seq TYPE bigint",
            "99% of the seqs are used up",
        ),
        "autovacuum": Wrong("error", f"{_SET} (autovacuum_enabled = off)", _OFF),
        "autovacuum, of large values": Wrong(
            "error", f"{_SET} (toast.autovacuum_enabled = 0)", _OFF
        ),
        "late_autovacuum": Wrong(
            "warning",
            f"{_SET} (autovacuum_vacuum_threshold = 100000000)",
            "autovacuum waits for 100000000 dead rows",
        ),
        "dead_rows": Wrong(
            "warning",
            f"{_SET} (autovacuum_vacuum_threshold = 90000);"
            f"{_INSERT} FROM generate_series(1, 20000);"
            "DELETE FROM {queue};SELECT pg_stat_force_next_flush()",
            "20000 of 20000 rows are dead, last vacuum never",
        ),
        "unlogged": Wrong("error", f"{_SET} UNLOGGED", "it is UNLOGGED"),
        "column": Wrong("error", _NO_EXPIRES, "column expires is missing"),
    },
    hurt="autovacuum",
    swell=(
        f"{_SET} (fillfactor = 10);"
        "INSERT INTO {queue} (id, headers, body) SELECT gen_random_uuid(), '{}',"
        " repeat('x', 900)::bytea FROM generate_series(1, 8192);VACUUM {queue}"
    ),
    rights={
        "schema": "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "sight": "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "state": "GRANT USAGE ON SCHEMA {state} TO {role}",
        "state tables": (
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {state} TO {role}"
        ),
    },
    no_address={
        '"a"."b"."c"': "it has 3 parts",
        '"unclosed': "is not closed",
        "": "the table is empty",
        "\0": "NUL",
        "x" * 300: "300 UTF-8 bytes",
        'orders"; DROP TABLE orders; --': "double those inside",
    },
    missing_schema='"no such schema"."orders"',
    login="CREATE ROLE {name} LOGIN PASSWORD {literal}",
    may_all="GRANT sqlq_tests TO {name}",
    give="ALTER TABLE {{queue}} OWNER TO {name}",
    drop_login="DROP OWNED BY {name};\nDROP ROLE {name}",
)

_THEIRS = (
    "Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),"
    " Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL,"
    " Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL"
)
_INDEX = "CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion)"
_CLUSTERED = "CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion)"
_EXPIRES = "CREATE INDEX Index_Expires ON {queue} (Expires)"

SQLSERVER = Shapes(
    otherwise={
        "expires index": (
            "DROP INDEX IF EXISTS Index_Expires ON {queue};"
            "CREATE INDEX another ON {queue} (Expires)"
        ),
        "bigint seq": "DBCC CHECKIDENT (N'{text}', RESEED, 5000000000) WITH NO_INFOMSGS",
        "extra columns": (
            "ALTER TABLE {queue} ADD note nvarchar(max),"
            " shard int NOT NULL CONSTRAINT shard_7 DEFAULT 7,"
            " [Made On] datetime2 NOT NULL DEFAULT SYSUTCDATETIME(),"
            " BodyString AS CAST(Body AS nvarchar(max))"
        ),
        "recoverable": "ALTER TABLE {queue} DROP COLUMN Recoverable",
        "version 1 columns": (
            f"DROP TABLE {{queue}};CREATE TABLE {{queue}} ({_THEIRS});{_CLUSTERED};"
            f"{_EXPIRES} WHERE Expires IS NOT NULL"
        ),
        "another order": (
            "DROP TABLE {queue};CREATE TABLE {queue} (RowVersion bigint IDENTITY(1,1) NOT NULL,"
            " Body varbinary(max), Headers nvarchar(max) NOT NULL, Expires datetime2(3),"
            f" Id uniqueidentifier NOT NULL, Recoverable bit NOT NULL);{_INDEX};{_EXPIRES}"
        ),
        "a column was dropped": (
            "ALTER TABLE {queue} ADD old int, note nvarchar(max);"
            "DROP INDEX Index_Expires ON {queue};"
            "ALTER TABLE {queue} DROP COLUMN old, Expires;"
            f"ALTER TABLE {{queue}} ADD Expires datetime;{_EXPIRES}"
        ),
    },
    no_queue={
        "no seq": (
            "DROP INDEX Index_Expires ON {queue};DROP INDEX Index_RowVersion ON {queue};"
            "ALTER TABLE {queue} DROP COLUMN RowVersion"
        ),
    },
    wrong={
        "headers_type": Wrong(
            "warning",
            "ALTER TABLE {queue} ALTER COLUMN Headers varchar(max) NOT NULL",
            "column Headers is varchar",
        ),
        "seq_index": Wrong(
            "error", "DROP INDEX Index_RowVersion ON {queue}", "RowVersion has no index"
        ),
        "column": Wrong(
            "error",
            f"DROP INDEX Index_Expires ON {{queue}};{_NO_EXPIRES}",
            "column Expires is missing",
        ),
    },
    hurt="headers_type",
    swell="",
    rights={
        # a login does not see a table to which it has no right
        "sight": "GRANT VIEW DEFINITION ON SCHEMA::{schema} TO {role}",
        "state tables": "GRANT SELECT, INSERT, UPDATE, DELETE ON SCHEMA::{state} TO {role}",
    },
    no_address={
        "a@[b]@[c]@[d]": "it has 4 parts",
        "orders@[unclosed": "is not closed",
        "": "the table is empty",
        "x" * 300: "300 ",
        "orders@[dbo]; DROP TABLE orders; --": "text follows the bracket",
    },
    missing_schema="orders@[no such schema]",
    login=(
        "CREATE LOGIN {name} WITH PASSWORD = {literal}, CHECK_POLICY = OFF;\n"
        "CREATE USER {name} FOR LOGIN {name}"
    ),
    may_all="ALTER ROLE db_owner ADD MEMBER {name}",
    give="ALTER AUTHORIZATION ON OBJECT::{{queue}} TO {name}",
    drop_login="DROP USER {name};\nDROP LOGIN {name}",
)
