"""One successful call of each command, and the queues that the calls work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.wire import headers as wire

from .database import STREAM, address, put, received

if TYPE_CHECKING:
    from conftest import Place

STATE = ("--state-schema", "STATE")  # words in capitals stand for the place's own names
TABLE = ("--subscription-table", "TABLE")
OWN = ("--stream", STREAM, "--yes", *STATE)
NAMES = {
    "QUEUE": "Shop.Orders",
    "OTHER": "Shop.Billing",
    "GONE": "Shop.Old",
    "ERROR": "error",
    "TABLE": "Subscriptions",
}

# Ordered so that each call finds what it needs. The demo is left out: it has a test of its own.
CALLS: dict[str, tuple[str, ...]] = {
    "install": STATE,
    "create": ("QUEUE", "--delayed"),
    "script": ("QUEUE", *STATE),
    "send": ("QUEUE",),
    "browse": ("QUEUE",),
    "stats": ("QUEUE", "OTHER", *STATE),
    "move-due": ("QUEUE",),
    "doctor": ("QUEUE", *STATE),
    "report": ("QUEUE", "OTHER", "ERROR", *STATE),
    "purge": ("OTHER", "--yes"),
    "purge-expired": ("QUEUE",),
    "selftest": ("--yes", "--only", "new_sinks", "--file", "/dev/null"),
    "receipts list": STATE,
    "receipts show": (STREAM, "--message", "MESSAGE", *STATE),
    "receipts return": (*OWN, "--batch", "1"),
    "receipts drop": (*OWN, "--batch", "2"),
    "streams list": STATE,
    "streams remove": ("gone", "--yes", *STATE),
    "trail": STATE,
    "subscribe": ("Shop.New", "--endpoint", "Lake", "--queue", "QUEUE", *TABLE),
    "subscribers": TABLE,
    "unsubscribe": ("Shop.New", "--endpoint", "Lake", "--yes", *TABLE),
    "retire": ("GONE", "--yes", *TABLE, *STATE),
    "retry": ("ERROR", "--all", "--yes"),
}


def filled(call: tuple[str, ...], words: dict[str, str]) -> list[str]:
    """Put a test's own names into a call."""
    return [words.get(word, word) for word in call]


def prepare(place: Place) -> dict[str, str]:
    """Make queues with messages, receipts and something to fix. Return the names of the place."""
    words = {word: address(place, name) for word, name in NAMES.items()} | {"STATE": place.state}
    raw = {"url": place.url, "queue": words["QUEUE"], "stateSchema": place.state}
    options = SourceOptions.parse(raw)
    with Session(options, "test") as session:
        connection = session.open()
        schema.install(connection)
        schema.create_delayed(connection, options.address)
        for name in ("QUEUE", "OTHER", "GONE", "ERROR"):
            schema.create_queue(connection, connection.names.parse_address(words[name]))
    failed = wire.dumps({wire.FAILED_Q: words["QUEUE"]})
    put(place, words["QUEUE"], body=b"1", times=4)
    put(place, words["QUEUE"], "corrupt", b"\xff")
    put(place, words["OTHER"], body=b"1", times=4)
    put(place, words["ERROR"], failed, b"1")
    ids = place.sql(f"SELECT id::text FROM {words['QUEUE']} ORDER BY seq")
    words["MESSAGE"] = ids[2][0]  # a message in the receipt that no other call returns or drops
    columns = "(action, queue, messages)"
    place.sql(f"INSERT INTO {place.state}.trail {columns} VALUES ('purge', 'gone', 1)")
    row = f"INSERT INTO {place.state}.stream (stream, queue, driver, query_name, seen)"
    place.sql(f"{row} VALUES ('gone', 'q', 'd', 'gone', now() - interval '1 day')")
    for batch in (1, 2, 3):
        received(place, messages=1, batch=batch)
    place.sql(f"ALTER TABLE {words['QUEUE']} SET (autovacuum_enabled = off)")
    place.sql(f"UPDATE {words['OTHER']} SET seq = 2000000000 + seq")
    return words
