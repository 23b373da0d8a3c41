"""
What is said differently to each database: tables of other releases, faults, rights, addresses.

A test takes its cases by name from both; a case that one database alone has is marked so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from servers import only

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet


@dataclass(frozen=True)
class Wrong:
    """Something that can be wrong with a queue."""

    name: str
    severity: str
    make: str  # statements of the DBA
    found: str  # in the finding


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """One database's words."""

    columns: set[str]  # of a queue as the transport makes it
    plain: str  # drops a queue and makes it as the transport did without an index on Expires
    older: dict[str, str]  # makes a queue, as another release or a DBA did
    otherwise: dict[str, str]  # changes a queue so that it still is one
    no_queue: dict[str, str]  # changes a queue so that it is none any more
    wrong: dict[str, Wrong]
    hurt: str  # makes something wrong with any queue, which the doctor finds as `hurt_found`
    hurt_found: Wrong
    rights: dict[str, str]  # of a service; each is one that can be missing
    to_receive: tuple[str, ...]
    no_address: dict[str, str]  # text of a message → why it is no address
    due_index: str  # {table} is the delayed one's
    missing_schema: str  # an address in a schema that is not there


_HURT = "ALTER TABLE {queue} SET (autovacuum_enabled = off)"
_AUTOVACUUM_OFF = Wrong("autovacuum", "error", _HURT, "autovacuum is off for this table")
_LAST = "SELECT setval(pg_get_serial_sequence('{queue}', 'seq'), "
_OVER = (
    "INSERT INTO {queue} (id, headers) VALUES (gen_random_uuid(), '');"
    "ALTER TABLE {queue} ALTER COLUMN seq TYPE bigint"
)
_PLAIN = (
    "DROP TABLE {queue};CREATE TABLE {queue} (Id uuid PRIMARY KEY, Expires timestamp,"
    " Headers text NOT NULL, Body bytea, Seq serial NOT NULL UNIQUE)"
)

POSTGRESQL = Shapes(
    columns={"id", "expires", "headers", "body", "seq"},
    plain=_PLAIN,
    older={
        "no unique seq, no primary key": (
            "CREATE TABLE {queue}"
            " (Id uuid, Expires timestamp, Headers text, Body bytea, Seq serial)"
        ),
        "bigint seq": (
            "CREATE TABLE {queue} (Id uuid PRIMARY KEY, Expires timestamp, Headers text NOT NULL,"
            " Body bytea, Seq bigserial NOT NULL UNIQUE)"
        ),
        "extra columns in another order": (
            "CREATE TABLE {queue} (Seq serial NOT NULL UNIQUE, Note text DEFAULT 'x', Body bytea,"
            " BodyString text GENERATED ALWAYS AS (encode(Body, 'escape')) STORED,"
            " Headers text NOT NULL, Id uuid PRIMARY KEY, Expires timestamp)"
        ),
    },
    otherwise={
        "as it is": "",
        "body string": (
            "ALTER TABLE {queue} ADD COLUMN BodyString text"
            " GENERATED ALWAYS AS (encode(Body, 'escape')) STORED"
        ),
        "expires index": "CREATE INDEX ON {queue} (Expires) INCLUDE (Id, Seq)",
        "bigint seq": (
            "ALTER TABLE {queue} ALTER COLUMN Seq TYPE bigint;"
            "ALTER SEQUENCE {sequence} AS bigint;SELECT setval('{sequence}', 5000000000)"
        ),
        "identity seq": (
            "ALTER TABLE {queue} DROP COLUMN Seq;"
            "ALTER TABLE {queue} ADD COLUMN Seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
        ),
        "extra columns": (
            "ALTER TABLE {queue} ADD COLUMN note text,"
            " ADD COLUMN shard int NOT NULL DEFAULT 7,"
            ' ADD COLUMN "Made On" timestamptz NOT NULL DEFAULT now()'
        ),
        "recoverable": "ALTER TABLE {queue} ADD COLUMN Recoverable boolean NOT NULL DEFAULT true",
        "version 1 columns": (
            "DROP TABLE {queue};CREATE TABLE {queue} (Id uuid PRIMARY KEY,"
            " CorrelationId varchar(255), ReplyToAddress varchar(255),"
            " Recoverable boolean DEFAULT true, Expires timestamp, Headers text NOT NULL,"
            " Body bytea, Seq serial NOT NULL UNIQUE)"
        ),
        "another order": (
            "DROP TABLE {queue};CREATE TABLE {queue} (Seq bigserial NOT NULL UNIQUE, Body bytea,"
            " Headers varchar NOT NULL, Expires timestamp(3), Id uuid PRIMARY KEY)"
        ),
        "a column was dropped": (
            "ALTER TABLE {queue} ADD COLUMN old text, ADD COLUMN note text;"
            "ALTER TABLE {queue} DROP COLUMN old, DROP COLUMN Expires;"
            "ALTER TABLE {queue} ADD COLUMN Expires timestamp"
        ),
        "no key": "ALTER TABLE {queue} DROP CONSTRAINT {table}_pkey",
    },
    no_queue={
        "quoted names": (
            'DROP TABLE {queue};CREATE TABLE {queue} ("Id" uuid, "Expires" timestamp,'
            ' "Headers" text, "Body" bytea, "Seq" serial)'
        ),
        "no seq": "ALTER TABLE {queue} DROP COLUMN seq",
        "no headers": "ALTER TABLE {queue} DROP COLUMN headers",
    },
    wrong={
        "headers_type": Wrong(
            "headers_type",
            "error",
            "ALTER TABLE {queue} ALTER COLUMN headers TYPE varchar(3000)",
            "column headers is character varying(3000)",
        ),
        "seq_index": Wrong(
            "seq_index",
            "error",
            "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key;CREATE INDEX ON {queue} (seq)",
            "seq has no unique index",
        ),
        "seq_end": Wrong(
            "seq_end",
            "warning",
            f"{_LAST} 1900000000)",
            "88% of the seqs are used up (1900000000 of 2147483647)",
        ),
        "seq_end of the sequence": Wrong(
            "seq_end",
            "warning",
            f"{_LAST} 2147483640);{_OVER}",
            "99% of the seqs are used up",  # the column has room, its sequence has not
        ),
        "autovacuum": _AUTOVACUUM_OFF,
        "autovacuum of large values": Wrong(
            "autovacuum",
            "error",
            "ALTER TABLE {queue} SET (toast.autovacuum_enabled = 0)",
            "autovacuum is off for this table",
        ),
        "autovacuum far away": Wrong(
            "late_autovacuum",
            "warning",
            "ALTER TABLE {queue} SET (autovacuum_vacuum_threshold = 100000000)",
            "autovacuum waits for 100000000 dead rows",
        ),
        "dead rows": Wrong(
            "dead_rows",
            "warning",
            (
                "ALTER TABLE {queue} SET (autovacuum_vacuum_threshold = 90000);"
                "INSERT INTO {queue} (id, headers) SELECT gen_random_uuid(), '{{}}'"
                " FROM generate_series(1, 20000);"
                "DELETE FROM {queue};SELECT pg_stat_force_next_flush()"
            ),
            found="20000 of 20000 rows are dead, last vacuum never",
        ),
        "unlogged": Wrong(
            "unlogged", "error", "ALTER TABLE {queue} SET UNLOGGED", "it is UNLOGGED"
        ),
        "no expires": Wrong(
            "column",
            "error",
            "ALTER TABLE {queue} DROP COLUMN expires",
            "column expires is missing",
        ),
        "headers in capitals": Wrong(
            "column",
            "error",
            'ALTER TABLE {queue} RENAME COLUMN headers TO "Headers"',
            "column headers is missing",
        ),
    },
    hurt=_HURT,
    hurt_found=_AUTOVACUUM_OFF,
    rights={
        "schema": "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "input": "GRANT SELECT ON {input} TO {role}",
        "delete": "GRANT DELETE ON {input} TO {role}",
        "update": "GRANT UPDATE (seq) ON {input} TO {role}",
        "errors": "GRANT INSERT ON {errors} TO {role}",
        "error sequence": "GRANT USAGE ON SEQUENCE {errors_sequence} TO {role}",
        "destination": "GRANT INSERT ON {output} TO {role}",
        "sequence": "GRANT USAGE ON SEQUENCE {output_sequence} TO {role}",
        "delayed": "GRANT SELECT ON {delayed} TO {role}",
        "delayed delete": "GRANT DELETE ON {delayed} TO {role}",
        "delayed update": "GRANT UPDATE (due) ON {delayed} TO {role}",
        "delayed insert": "GRANT INSERT ON {delayed} TO {role}",
        "move": "GRANT INSERT ON {input} TO {role}",
        "move sequence": "GRANT USAGE ON SEQUENCE {input_sequence} TO {role}",
        "state": "GRANT USAGE ON SCHEMA {state} TO {role}",
        "state tables": (
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {state} TO {role}"
        ),
    },
    to_receive=("SELECT", "DELETE", "UPDATE (seq)"),
    no_address={
        '"a"."b"."c"': "it has 3 parts",
        '"unclosed': "is not closed",
        "": "the table is empty",
        "\0": "NUL",
        "x" * 300: "300 UTF-8 bytes",
        'orders"; DROP TABLE orders; --': "double those inside",
    },
    due_index="{table}_Due",
    missing_schema='"no such schema"."orders"',
)

_COLUMNS = (
    "Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),"
    " Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL,"
    " Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL"
)
_INDEX = "CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion)"
_CLUSTERED = "CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion)"
_OLD_HEADERS = Wrong(
    "headers_type",
    "warning",
    "ALTER TABLE {queue} ALTER COLUMN Headers varchar(max) NOT NULL",
    "column Headers is varchar",
)

SQLSERVER = Shapes(
    columns={
        *("id", "correlationid", "replytoaddress", "recoverable", "expires"),
        *("headers", "body", "rowversion"),
    },
    plain=f"DROP TABLE {{queue}};CREATE TABLE {{queue}} ({_COLUMNS});{_INDEX}",
    older={
        "bigint seq": f"CREATE TABLE {{queue}} ({_COLUMNS});{_CLUSTERED}",
        "extra columns in another order": (
            "CREATE TABLE {queue} (RowVersion bigint IDENTITY(1,1) NOT NULL,"
            " Note nvarchar(10) DEFAULT N'x', Body varbinary(max),"
            " BodyString AS CAST(Body AS nvarchar(max)), Headers nvarchar(max) NOT NULL,"
            f" Id uniqueidentifier NOT NULL, Expires datetime);{_INDEX}"
        ),
    },
    otherwise={
        "as it is": "",
        "body string": "ALTER TABLE {queue} ADD BodyString AS CAST(Body AS nvarchar(max))",
        "expires index": (
            "DROP INDEX IF EXISTS Index_Expires ON {queue};"
            "CREATE INDEX another ON {queue} (Expires)"
        ),
        "bigint seq": "DBCC CHECKIDENT (N'{text}', RESEED, 5000000000) WITH NO_INFOMSGS",
        "extra columns": (
            "ALTER TABLE {queue} ADD note nvarchar(max),"
            " shard int NOT NULL CONSTRAINT shard_7 DEFAULT 7,"
            " [Made On] datetime2 NOT NULL DEFAULT SYSUTCDATETIME()"
        ),
        "recoverable": "ALTER TABLE {queue} DROP COLUMN Recoverable",
        "version 1 columns": (
            f"DROP TABLE {{queue}};CREATE TABLE {{queue}} ({_COLUMNS});{_CLUSTERED};"
            "CREATE INDEX Index_Expires ON {queue} (Expires) WHERE Expires IS NOT NULL"
        ),
        "another order": (
            "DROP TABLE {queue};CREATE TABLE {queue} (RowVersion bigint IDENTITY(1,1) NOT NULL,"
            " Body varbinary(max), Headers nvarchar(max) NOT NULL, Expires datetime2(3),"
            f" Id uniqueidentifier NOT NULL, Recoverable bit NOT NULL);{_INDEX};"
            "CREATE INDEX Index_Expires ON {queue} (Expires)"
        ),
        "a column was dropped": (
            "ALTER TABLE {queue} ADD old int, note nvarchar(max);"
            "DROP INDEX Index_Expires ON {queue};"
            "ALTER TABLE {queue} DROP COLUMN old, Expires;"
            "ALTER TABLE {queue} ADD Expires datetime;"
            "CREATE INDEX Index_Expires ON {queue} (Expires)"
        ),
        "clustered": (
            "DROP INDEX Index_RowVersion ON {queue};"
            "CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion)"
        ),
    },
    no_queue={
        "no seq": (
            "DROP INDEX Index_Expires ON {queue};DROP INDEX Index_RowVersion ON {queue};"
            "ALTER TABLE {queue} DROP COLUMN RowVersion"
        ),
        "no headers": "ALTER TABLE {queue} DROP COLUMN Headers",
    },
    wrong={
        "headers_type": _OLD_HEADERS,
        "seq_index": Wrong(
            "seq_index",
            "error",
            "DROP INDEX Index_RowVersion ON {queue}",
            "RowVersion has no index",
        ),
        "no expires": Wrong(
            "column",
            "error",
            ("DROP INDEX Index_Expires ON {queue};ALTER TABLE {queue} DROP COLUMN Expires"),
            "column Expires is missing",
        ),
    },
    hurt=_OLD_HEADERS.make,
    hurt_found=_OLD_HEADERS,
    rights={
        "input": "GRANT SELECT ON {input} TO {role}",
        "delete": "GRANT DELETE ON {input} TO {role}",
        "errors": "GRANT INSERT ON {errors} TO {role}",
        "destination": "GRANT INSERT ON {output} TO {role}",
        "delayed": "GRANT SELECT ON {delayed} TO {role}",
        "delayed delete": "GRANT DELETE ON {delayed} TO {role}",
        "delayed insert": "GRANT INSERT ON {delayed} TO {role}",
        "move": "GRANT INSERT ON {input} TO {role}",
        "state tables": ("GRANT SELECT, INSERT, UPDATE, DELETE ON SCHEMA::{state} TO {role}"),
    },
    to_receive=("SELECT", "DELETE"),
    no_address={
        "a@[b]@[c]@[d]": "it has 4 parts",
        "[unclosed": "is not closed",
        "": "the table is empty",
        "x" * 300: "300 ",
        "[orders]; DROP TABLE orders; --": "text follows the bracket",
    },
    due_index="Index_Due",
    missing_schema="orders@[no such schema]",
)

_ALL = {"postgresql": POSTGRESQL, "sqlserver": SQLSERVER}


def cases(kind: str) -> list[str | ParameterSet]:
    """The names of one kind of shapes, in both; those that one database alone has are marked."""
    having: dict[str, list[str]] = {}
    for dialect, shapes in _ALL.items():
        for name in getattr(shapes, kind):
            having.setdefault(name, []).append(dialect)
    reason = f"{kind.replace('_', ' ')} that the other has not"
    return [
        name if len(found) == len(_ALL) else pytest.param(name, marks=only(found[0], reason))
        for name, found in having.items()
    ]
