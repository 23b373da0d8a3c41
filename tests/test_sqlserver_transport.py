"""
Our T-SQL beside the transport's: the same parts in the same order, and nothing of either unparsed.

The transport's texts are those that the conformance suite's endpoints run; the facts of it are the
parts. A change on one side alone fails here, without a server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

import pytest
import sqlserver_texts
from bench import sqlserver as bench
from conformance import shapes, transport_sqlserver
from sqlserver_lint import UNKNOWN
from test_sqlserver import faults, plain

from sqlq_spark.database import statements
from sqlq_spark.database.sqlserver import calls
from sqlq_spark.database.sqlserver import connection as dialect

if TYPE_CHECKING:
    from collections.abc import Iterable

OURS = sqlserver_texts.rendered()
QUEUE, LITERAL = "[sales].[Shop.Orders]", "[sales].[Shop.Orders]"
WORDS = {
    "queue": QUEUE,
    "text": LITERAL,
    "to": QUEUE,
    "view": "[sales].[v]",
    "schema": "sales",
    "state": "sqlqueue",
    "there": f"OBJECT_ID(N'{LITERAL}', N'U') IS NOT NULL",
    "lock": f"[shop].{LITERAL}_lock",
    "make": "SELECT 1",
    "messages": "100",
    "first": "1",
    "stop": "9",
    "recoverable": "Recoverable, ",
    "one": "1, ",
    "column": "Headers",
    "expired": "3",
    "numbers": "(SELECT 1 AS n)",
}
VALUES = {
    **dict.fromkeys(("row", "headers", "body", "endpoint", "address", "topic"), "x"),
    **dict.fromkeys(("moment", "name"), "x"),
    **dict.fromkeys(("many", "before", "expired", "types", "at", "seq", "seconds"), 1),
    "lives": None,
    "most": 100,
    "delay": 5000,
    "seqs": [1],
    "bodies": [b"x"],
    "topics": ["t"],
}


def filled(text: str) -> str:
    """A text of the transport with its words put in, its question marks as parameters."""
    marked = transport_sqlserver.parameters(text, VALUES)[0]
    named = re.sub(r"\{(\w+)\}", lambda match: WORDS[match[1]], marked)
    named = named.replace("{{", "{").replace("}}", "}")
    return re.sub(r"(?<=\W)\?(?=\W|$)", "@value", named)


def installer(make: str) -> str:
    """The transport's installer of a table, whole."""
    return transport_sqlserver._INSTALL.replace("{make}", make)  # noqa: SLF001


TRANSPORT = transport_sqlserver.SQLServer.texts
THEIRS = {
    **{name: TRANSPORT[name] for name in ("receive", "peek", "purge_expired", "subscribe")},
    "move_due": TRANSPORT["move"],
    "load": TRANSPORT["send"],
    "create_queue": installer(TRANSPORT["create"]),
    "create_delayed": installer(TRANSPORT["create_delayed"]),
    "create_subscriptions": installer(TRANSPORT["create_subscriptions"]),
}
# what both say, in this order
PARTS = {
    "receive": (
        *("WITH", "SELECT TOP", "UPDLOCK, READPAST, ROWLOCK", "ORDER BY RowVersion"),
        *("DELETE FROM message OUTPUT", "deleted.Id", "deleted.Expires", "GETUTCDATE()"),
        *("deleted.Headers", "deleted.Body"),
    ),
    "peek": ("SELECT", "WITH (READPAST"),
    "purge_expired": ("TOP (", "READPAST", "WHERE Expires <", "GETUTCDATE()"),
    "move_due": (
        *("WITH message AS (", "SELECT TOP", "UPDLOCK, READPAST, ROWLOCK", "WHERE Due <"),
        *("DELETE FROM message OUTPUT NEWID(),", "1,", "deleted.Headers,", "deleted.Body"),
        *("INTO [sales].[Shop.Orders] (Id,", "Recoverable,", "Headers, Body)"),
    ),
    "load": ("INSERT INTO [sales].[Shop.Orders] (",),
    "subscribe": ("HOLDLOCK", "QueueAddress"),
}


def first_missing(text: str, parts: Iterable[str]) -> str | None:
    """The first part that is not found behind the ones before it."""
    text, at = plain(text), 0
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            return part
        at = found + len(part)
    return None


# ---------------------------------------------------------------- complete


def test_every_statement_of_the_file_is_reviewed_and_parsed() -> None:
    """What is rendered is what stands in the file, each with a text, and the bulk insert."""
    text = "\n".join(statements.sql("sqlserver", each) for each in statements.FILES)
    written = re.findall(r"^-- name: *(\w+)", text, flags=re.MULTILINE)

    assert len(written) > 60
    parts = {each for each in written if f"{{{each}}}" in text}  # in others
    parts -= {*get_args(statements.StatementName)}
    assert [*OURS] == [*(name for name in written if name not in parts), "load"]
    assert [name for name, each in OURS.items() if len(plain(each)) < 10] == []


def test_no_statement_is_hidden_from_the_parser() -> None:
    """It is not told to pass over more than the one clause that it does not know."""
    hidden = {name for name, text in OURS.items() if plain(UNKNOWN.sub("", text)) != plain(text)}

    assert {name.partition("_")[0] for name in hidden} == {"install"}
    for name in hidden:
        assert "CREATE TABLE" in UNKNOWN.sub("", OURS[name]), name


# what is sent beside the statements of the file
BESIDE = {
    "settings": dialect.SETTINGS,
    "undo": dialect.UNDO,
    "guard": calls.GUARD,
    "a call": calls.build_call(
        "divert_large",
        calls.STATEMENTS["divert_large"],
        {"seqs": "[1]", "renamed": False},
        guarded=True,
    )[0],
    "a call without values": calls.build_call("clock", "SELECT 1", {}, guarded=True)[0],
    "a load of an old table": calls.fill_names(
        calls.build_insert(["headers", "body", "id"], {}), "sqlqueue", sqlserver_texts.TABLES
    ),
    "a look for an index": calls.fill_names(dialect.DUE_INDEX, "sqlqueue", sqlserver_texts.TABLES),
    "a load of delays": calls.fill_names(
        calls.build_insert(["headers", "body", "due"], {}),
        "sqlqueue",
        sqlserver_texts.TABLES,
    ),
    **{
        f"{name} without Recoverable": sqlserver_texts.filled(
            calls.fill_names(
                calls.STATEMENTS[name], "sqlqueue", sqlserver_texts.TABLES, recoverable="", one=""
            )
        )
        for name in ("divert_large", "move_due")
    },
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_sent_beside_the_file_parses_too(name: str) -> None:
    """Settings, what undoes, and the call that carries a statement."""
    assert faults(re.sub(r"(?<=\W)\?(?=\W|$)", "@value", BESIDE[name])) == []


ENDPOINTS = {f"transport.{name}": text for name, text in TRANSPORT.items()} | {
    f"{module.__name__.rpartition('.')[2]}.{name}": text
    for module in (transport_sqlserver, bench)
    for name, text in vars(module).items()
    if name.startswith("_")
    and name.isupper()
    and isinstance(text, str)
    and name not in {"_BEFORE", "_AFTER", "_NUMBERS", "_SESSION"}
}


@pytest.mark.parametrize("name", ENDPOINTS)
def test_statements_of_the_endpoints_and_the_dba_parse(name: str) -> None:
    """They wait for a server as ours do."""
    assert len(ENDPOINTS) > 20
    assert faults(filled(ENDPOINTS[name])) == []


@pytest.mark.parametrize("kind", ["otherwise", "no_queue", "wrong", "rights"])
def test_statements_of_the_dbas_shapes_parse(kind: str) -> None:
    """Each by itself, as they are executed."""
    names = {"role": "r", "input": QUEUE, "errors": QUEUE, "output": QUEUE, "delayed": QUEUE}
    for name, found in getattr(shapes.SQLSERVER, kind).items():
        text = found.make if kind == "wrong" else found
        for statement in filter(None, text.split(";")):
            named = statement.replace("{queue}", QUEUE).replace("{text}", LITERAL)
            for word, value in {**names, "state": "sqlqueue"}.items():
                named = named.replace(f"{{{word}}}", value)

            assert faults(named + ";") == [], name


# ---------------------------------------------------------------- part by part


@pytest.mark.parametrize("name", PARTS)
def test_ours_says_what_the_transports_says(name: str) -> None:
    """The parts that are facts of the wire, in their order, on both sides."""
    assert first_missing(filled(THEIRS[name]), PARTS[name]) is None
    ours = OURS[name].replace("Shop.Orders.Delayed", "Delayed")
    assert first_missing(ours, PARTS[name]) is None


def test_a_part_that_is_missing_would_be_found() -> None:
    """A hint, an order, a column."""
    for name, part in (
        ("receive", "READPAST, "),
        ("receive", "ORDER BY RowVersion"),
        ("move_due", "NEWID(), "),
    ):
        broken = OURS[name].replace(part, "")

        assert broken != OURS[name]
        assert first_missing(broken, PARTS[name]) is not None, part


@pytest.mark.parametrize("name", ["receive", "move_due", "purge_expired", "peek"])
def test_ours_has_every_hint_of_the_transports(name: str) -> None:
    """And of its own only those that hold where row versions are read, or that find the index."""
    theirs, ours = (
        {hint for each in re.findall(r"WITH \(([A-Z, ]+)\)", text) for hint in each.split(", ")}
        for text in (THEIRS[name], OURS[name])
    )

    assert "READPAST" in theirs
    assert theirs <= ours
    assert ours - theirs <= {"READCOMMITTEDLOCK", "FORCESEEK", "UPDLOCK", "ROWLOCK"}


def test_a_subscription_is_entered_as_the_transports_merge_enters_it() -> None:
    """The key is locked; one row by endpoint and topic; no write where the queue is the same."""
    theirs, ours = plain(THEIRS["subscribe"]), plain(OURS["subscribe"])

    assert "MERGE {queue} WITH (HOLDLOCK" in theirs
    for text in (theirs, ours):
        assert re.search(r"(?:Endpoint = (?:source\.|@)\w+) AND (?:target\.)?Topic = ", text)
        assert re.search(r"QueueAddress <> (?:source\.|@)", text)
        assert re.search(r"INSERT [^V]*\(\w+, \w+, \w+\)", text)


def test_row_counts_are_off_and_no_one_elses_setting_is_touched() -> None:
    """The transport saves NOCOUNT and puts it back; our sessions are our own, and it stays on."""
    assert "(512 & @@OPTIONS) = 512" in transport_sqlserver._BEFORE  # noqa: SLF001
    assert "SET NOCOUNT ON" in dialect.SETTINGS
    assert "SET NOCOUNT ON" in OURS["begin"]
    assert not [name for name, text in OURS.items() if "NOCOUNT OFF" in text]


TABLES = {
    "create_queue": "[sales].[Shop.Orders]",
    "create_delayed": "[sales].[Shop.Orders.Delayed]",
    "create_subscriptions": "[dbo].[SubscriptionRouting]",
}


def made_by(create: str, table: str) -> tuple[list[str], list[str]]:
    """The columns and the indexes of a table, as a statement makes them."""
    text = plain(create).replace(table, "T")
    (columns,) = re.findall(r"CREATE TABLE T \( ?(.*?) ?\);", text + ";")
    indexes = re.findall(r"CREATE NONCLUSTERED INDEX .*?;", text + ";")
    return re.split(r", (?![^(]*\))", columns), indexes


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_as_the_transport_makes_it(name: str) -> None:
    """With its columns in their order, and with its indexes under the names that it looks for."""
    theirs, their_indexes = made_by(filled(THEIRS[name]), QUEUE)
    ours, our_indexes = made_by(OURS[name], TABLES[name])

    assert len(theirs) >= 4
    assert [re.sub("(?<!NOT) NULL$", "", column) for column in ours] == theirs
    assert all(column.endswith(("NULL", "(Endpoint, Topic)")) for column in ours)
    assert our_indexes == their_indexes


def test_a_creator_waits_for_the_transports_installer() -> None:
    """The same lock, until the transaction ends. Under it each table is looked for."""
    ours = plain(OURS["create_lock"])

    assert "@Resource = N'{lock}'" in transport_sqlserver._INSTALL  # noqa: SLF001
    assert (
        "DECLARE @name nvarchar(255) = "
        "LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[sales].[Shop.Orders]_lock', 255)"
    ) in ours
    assert "@Resource = @name" in ours
    assert "'Exclusive'" in ours
    for name in TABLES:
        assert OURS[name].startswith("IF OBJECT_ID(N'")


def test_what_we_insert_is_what_the_transports_send_inserts() -> None:
    """No column that an endpoint's table would not have; what is left out is NULL there as well."""
    pattern = r"INSERT INTO \S+ \(([\w, ]+)\)"
    theirs, ours = (
        set(found[1].split(", "))
        for text in (THEIRS["load"], OURS["load"])
        if (found := re.search(pattern, plain(text)))
    )

    assert theirs - ours == {"CorrelationId", "ReplyToAddress"}
    assert ours <= theirs
    assert "NULL, NULL, 1," in plain(THEIRS["load"])


def test_the_same_clock_and_bound_decide_what_has_expired() -> None:
    """The transport hands out what expires later than now, and nothing else."""
    assert "deleted.Expires > GETUTCDATE() THEN 0 ELSE 1" in plain(THEIRS["receive"])
    assert "deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0" in plain(OURS["receive"])
