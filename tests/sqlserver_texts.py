"""
The T-SQL that the package sends, with its names filled in, for tests.

    python tests/sqlserver_texts.py > tests/golden/sqlserver.sql
"""

from __future__ import annotations

import sys

from sqlq_spark.database.sqlserver import calls
from sqlq_spark.database.sqlserver.calls import build_insert
from sqlq_spark.wire.address import QueueAddress

TABLES = {
    "queue": QueueAddress("Shop.Orders", "sales"),
    "errors": QueueAddress("error"),
    "delayed": QueueAddress("Shop.Orders.Delayed", "sales"),
    "subscriptions": QueueAddress("SubscriptionRouting"),
    "table": QueueAddress("Shop.Orders", "sales"),
}
WORDS = {
    "{milliseconds}": "30000",
    "{application}": "0x73716C7175657565",
    "{login}": "[lake]",
    "{password}": "secret",
    "{role}": "[sqlqueue_reader]",
    "{schema}": "[sales]",
    "{role_name}": "sqlqueue_reader",
    "{roles}": "CREATE ROLE [sqlqueue_reader]",
    "{owners_escaped}": "[]",
    "{made_escaped}": "[]",
    "{roles_escaped}": "[]",
    "{database}": "shop",
    "{database_escaped}": "shop",
}
# Statements that take, move or delete messages, or decide whether that may be done. A mistake in
# one of them loses or repeats messages, so a change of their text must be seen in tests/golden.
REVIEWED = (
    *("fence", "receive", "take", "divert_large", "begin_receipt", "save_receipt"),
    *("lock_stream", "acknowledge", "delete_receipts", "table_owners", "state_faults"),
    *("sink_close", "advance", "settle", "load", "move_due", "purge_expired"),
)
SENT = ["headers", "body", "expires", "id"]
QUEUE = {"id": "", "recoverable": "", "headers": "", "body": "", "expires": ""}


def rendered() -> dict[str, str]:
    """Every statement by its name, and the bulk insert."""
    known = {**calls.STATEMENTS, "load": build_insert(SENT, QUEUE)}
    return {name: named(text) for name, text in known.items()}


def named(text: str, **words: str) -> str:
    """A text with its names."""
    return filled(calls.fill_names(text, "sqlqueue", TABLES, **words))


def filled(text: str) -> str:
    """A text with the words that do not come from tables."""
    for word, value in WORDS.items():
        text = text.replace(word, value)
    return text


def golden() -> str:
    """The file tests/golden/sqlserver.sql: the reviewed statements, and inserts into old tables."""
    old = {"id": "", "headers": "varchar COLLATE Latin1_General_CI_AS"}
    legacy = dict.fromkeys(("correlationid", "replytoaddress", *QUEUE), "")
    inserts = {
        "load of an old table, with bodies that are null": build_insert(
            ["headers", "body", "correlationid", "id"], old, null_bodies=True
        ),
        "load with columns of version 1": build_insert(
            ["headers", "correlationid", "replytoaddress", "id"], legacy
        ),
    }
    moves = {
        "move_due into an old table": named(
            calls.STATEMENTS["move_due"], headers_fit=calls.headers_fit(old)
        )
    }
    texts = rendered() | {name: named(text) for name, text in inserts.items()} | moves
    return "\n".join(f"-- {name}\n{texts[name]};\nGO\n" for name in (*REVIEWED, *inserts, *moves))


if __name__ == "__main__":
    sys.stdout.write(golden())
