"""
Our T-SQL beside the transport's, which the endpoints of the conformance suite run.

A change on one side alone fails here, without a server.
"""

from __future__ import annotations

import re

import pytest
import sqlserver_texts
from conformance.transport_sqlserver import _BEFORE, _INSTALL, SQLServer
from test_sqlserver import faults, plain

from sqlq_spark.database.sqlserver import connection

OURS = sqlserver_texts.rendered()
QUEUE = "[sales].[Shop.Orders]"


def filled(text: str) -> str:
    """A text of the transport with its words put in, its values as parameters."""
    text = re.sub(r"(?<!:):(\w+)", r"@\1", text.replace("{text}", QUEUE))
    return plain(re.sub(r"\{\w+\}", QUEUE, text).replace("{{", "{").replace("}}", "}"))


THEIRS = {name: filled(text) for name, text in SQLServer.texts.items()}


@pytest.mark.parametrize("name", THEIRS)
def test_statements_of_the_endpoints_parse(name: str) -> None:
    """They wait for a server as ours do."""
    assert faults(THEIRS[name]) == []


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("receive", "receive"),
        ("move_due", "move"),
        ("purge_expired", "purge_expired"),
        ("peek", "peek"),
    ],
)
def test_ours_has_every_hint_of_the_transports(name: str, theirs: str) -> None:
    """And of its own only those that hold where row versions are read, or that find the index."""
    their_hints, our_hints = (
        {hint for each in re.findall(r"WITH \(([A-Z, ]+)\)", text) for hint in each.split(", ")}
        for text in (THEIRS[theirs], OURS[name])
    )

    assert "READPAST" in their_hints <= our_hints
    assert our_hints - their_hints <= {"READCOMMITTEDLOCK", "FORCESEEK", "UPDLOCK", "ROWLOCK"}


TABLES = {
    "create_queue": ("create", QUEUE),
    "create_delayed": ("create_delayed", "[sales].[Shop.Orders.Delayed]"),
    "create_subscriptions": ("create_subscriptions", "[dbo].[SubscriptionRouting]"),
}


def made_by(create: str, table: str) -> tuple[list[str], list[str]]:
    """The columns and the indexes of a table, as a statement makes them."""
    text = plain(create).replace(table, "T") + ";"
    (columns,) = re.findall(r"CREATE TABLE T \( ?(.*?) ?\);", text)
    names = [re.sub("(?<!NOT) NULL$", "", each) for each in re.split(r", (?![^(]*\))", columns)]
    return names, re.findall(r"CREATE NONCLUSTERED INDEX .*?;", text)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_as_the_transport_makes_it(name: str) -> None:
    """With its columns in their order, and with its indexes under the names that it looks for."""
    theirs, table = TABLES[name]

    assert made_by(OURS[name], table) == made_by(THEIRS[theirs], QUEUE)
    assert OURS[name].startswith("IF OBJECT_ID(N'")


def test_a_creator_waits_for_the_transports_installer() -> None:
    """The same lock, until the transaction ends. Under it each table is looked for."""
    ours = plain(OURS["create_lock"])

    assert "@Resource = N'{lock}', @LockMode = 'Exclusive'" in _INSTALL
    named = "LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[sales].[Shop.Orders]_lock', 255)"
    assert f"DECLARE @name nvarchar(255) = {named}" in ours
    assert re.search("@Resource = @name.*'Exclusive'", ours)


def test_what_we_insert_is_what_the_transports_send_inserts() -> None:
    """No column that an endpoint's table would not have; what is left out is NULL there as well."""
    for theirs, ours in ((THEIRS["send"], OURS["load"]), (THEIRS["move"], OURS["move_due"])):
        texts = (theirs, plain(ours).replace(".Delayed", ""))
        found = [re.findall(r"INTO \S+ \(([\w, ]+)\)", text)[-1].split(", ") for text in texts]
        their_columns, our_columns = map(set, found)

        assert our_columns <= their_columns
        assert their_columns - our_columns <= {"CorrelationId", "ReplyToAddress", "Expires"}
    assert "NULL, NULL, 1," in THEIRS["send"]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        # what expires later than now is handed out, and nothing else
        (THEIRS["receive"], r"deleted\.Expires > GETUTCDATE\(\) THEN 0 ELSE 1"),
        (OURS["receive"], r"deleted\.Expires <= GETUTCDATE\(\) THEN 1 ELSE 0"),
        # one row by endpoint and topic; no write where the queue is the same
        (THEIRS["subscribe"], r"Topic = source.Topic .*QueueAddress <> source"),
        (OURS["subscribe"], r"Endpoint = @\w+ AND Topic = @.*QueueAddress <> @"),
        # the transport saves NOCOUNT and puts it back; our sessions are our own
        (_BEFORE, r"\(512 & @@OPTIONS\) = 512"),
        (connection.SETTINGS, "SET NOCOUNT ON"),
        (OURS["begin"], "SET NOCOUNT ON"),
    ],
)
def test_a_fact_of_the_wire_stands_on_both_sides(text: str, pattern: str) -> None:
    """Expiry, subscriptions, row counts."""
    assert re.search(pattern, plain(text))
