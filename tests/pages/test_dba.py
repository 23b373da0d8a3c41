"""docs/dba.md: locks as the server shows them, rights as the script grants them."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from recorded_connection import RecordedConnection

from sqlq_spark import database as dialects
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SinkOptions
from sqlq_spark.receive import browse
from sqlq_spark.send import dispatch
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.address import QueueAddress

from . import locks
from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from .shop import Shop

QUEUE, DELAYED = '"Shop.Orders"', '"Shop.Orders.Delayed"'
SCRIPT = ["script", "Shop.Orders", "--delayed", "--error", "error"]
SCRIPT += ["--subscription-table", "SubscriptionRouting", "--domain"]
# object of a GRANT in the script → second part of the row's id, as in `reader:error`
PLACES = {
    "Shop.Orders": "queue",
    "error_seq_seq": "error-sequence",
    "Shop.Orders.Delayed": "delayed",
    "Shop.Orders_seq_seq": "queue-sequence",
    "SubscriptionRouting": "subscriptions",
}
HELD = """
SELECT c.relname, l.mode
  FROM pg_locks AS l
  JOIN pg_class AS c ON c.oid = l.relation
  JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE a.application_name LIKE 'sqlqueue%' AND c.relkind = 'r' AND c.relname LIKE 'Shop%'
   AND a.datname = current_database()
"""
CATALOGUE = """
SELECT oid::regclass::text, reloptions::text,
       (SELECT string_agg(acl::text, ' ') FROM aclexplode(relacl) AS acl WHERE grantee <> relowner)
  FROM pg_class
 WHERE relnamespace::regnamespace::text NOT LIKE 'pg\\_%'
UNION ALL SELECT nspname, 'schema', nspacl::text FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
UNION ALL SELECT attname, attrelid::regclass::text, atttypid::regtype::text FROM pg_attribute
 WHERE attrelid >= 16384
UNION ALL SELECT proname, 'function', proacl::text FROM pg_proc WHERE oid >= 16384
UNION ALL SELECT tgname, 'trigger', tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT extname, 'extension', '' FROM pg_extension
UNION ALL SELECT rolname, 'role', '' FROM pg_roles
ORDER BY 1, 2, 3
"""

# ---------------------------------------------------------------- tables and locks


def test_the_locks_of_statements_are_those_of_their_comments() -> None:
    """`python -m tests.pages.locks` prints the table."""
    found = re.search("<!-- locks -->\n(.*)<!-- /locks -->", read("docs/dba.md"), flags=re.DOTALL)

    assert found is not None
    assert found[1] == locks.table()


def test_the_modes_on_the_page_are_those_that_the_server_shows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind of transaction, just before it commits."""
    held: set[tuple[Any, ...]] = set()
    seen: dict[str, set[tuple[Any, ...]]] = {}
    shop.fill(QUEUE, 10)
    shop.sql(f"INSERT INTO {DELAYED} (headers, body, due) VALUES ('', '', now())")
    postgresql = dialects.of(shop.url)
    connect = postgresql.connect

    class Watched(RecordedConnection):
        """Reads the locks before each commit."""

        def around(self, statement: str, call: Callable[[], Any]) -> Any:
            held.update(shop.sql(HELD) if statement == "commit" else ())
            return call()

    monkeypatch.setattr(postgresql, "connect", lambda *a, **k: Watched(connect(*a, **k)))

    def noted(what: str) -> None:
        seen[what] = {*held}
        held.clear()

    with closing(shop.stream()) as stream:
        stream.loop.acknowledge(stream.offset)  # what is looked at once, at a start
        held.clear()
        stream.offset = stream.loop.latest(stream.offset)
        noted("acknowledge")
        assert len(stream.received()) == 10
        noted("receive")
    sink = SinkOptions.parse({"url": shop.url, "queue": "Shop.Orders"})
    with StateSession(sink, "sink") as session:
        message = pa.record_batch({"body": pa.array([b"{}"])})
        chunks = Sender(options=sink, partition=0).chunks([message])
        staged = dispatch.stage(session, chunks, sink="dba", batch=0)
        held.clear()
        session.run_with_retries(lambda connection: dispatch.dispatch(connection, [staged], sink))
        noted("dispatch")
        mover = Mover(QueueAddress("Shop.Orders", "public"), sink)
        session.run_with_retries(lambda connection: mover.move(connection, 10))
        noted("move")
        pages = browse.pages(session.open(), mover.queue, 0, 2**31, narrow=False)
        assert sum(page.num_rows for page in pages) == 2
        noted("browse")

    page = table("docs/dba.md", "locks")
    assert seen == {
        row_id: {
            (name, mode)
            for name, cell in zip(("Shop.Orders", "Shop.Orders.Delayed"), row[1:], strict=True)
            for mode in re.findall(r"`(\w+)`", cell)
        }
        for row_id, row in zip(page.ids, page.rows, strict=True)
    }


def test_the_settings_and_the_key_of_the_pages_are_taken(shop: Shop) -> None:
    """A limit of waits, options of a queue; whoever holds the key keeps an installer waiting."""
    shop.run(*blocks("docs/load.md", "waits"), *blocks("docs/load.md", "vacuum"))
    assert shop.sql("SHOW lock_timeout") == [("2s",)]
    [[options]] = shop.sql(f"SELECT reloptions FROM pg_class WHERE oid = '{QUEUE}'::regclass")
    assert "vacuum_truncate=off" in options

    shop.run(*blocks("docs/dba.md", "advisory"))
    with closing(psycopg.connect(shop.url)) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", shop.rows[0])
        said = shop.sqlqueue("install", "--query-timeout", "1s", code=3)
    assert "1s" in said or "1 s" in said


# ---------------------------------------------------------------- rights, and the end


def test_the_rights_on_the_page_are_those_that_the_script_grants(shop: Shop) -> None:
    """By role, right and place; a row's id names the role and the place."""
    text = shop.sqlqueue(*SCRIPT, "orders")
    granted = set()
    for rights, places, role in re.findall(
        r"^GRANT ([^;]+?)\s+ON ([^;]+?) TO \"orders_(\w+)\"", text, flags=re.MULTILINE
    ):
        for place in places.split(", "):
            name = re.sub(r'^(SEQUENCE )?"\w+"\.', "", place).strip('"')
            called = "schemas" if place.startswith("SCHEMA") else PLACES.get(name, name)
            granted.add((role, " ".join(rights.split()), called))
    installed = shop.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'sqlqueue'")
    state = {name for (name,) in installed}

    page = table("docs/dba.md", "rights")
    listed = set()
    for row_id, (_, right, on) in zip(page.ids, page.rows, strict=True):
        role, _, place = str(row_id).partition(":")
        names = {*re.findall(r"`(\w+)`", on)} & state or {place}
        listed |= {(role.partition("-")[0], right.strip("`"), name) for name in names}
    assert listed == granted
    assert {each.strip("`") for each in table("docs/dba.md", "state-tables").column()} == state


def test_what_the_page_removes_leaves_no_trace(shop: Shop) -> None:
    """The catalogue is as it was before us: relations, columns, grants, roles, all."""
    name = f"team_{secrets.token_hex(4)}"
    shop.sql("DROP SCHEMA sqlqueue CASCADE")
    shop.sql('CREATE TABLE "SubscriptionRouting" (queueaddress varchar(200) NOT NULL, '
             "endpoint varchar(200) NOT NULL, topic varchar(200) NOT NULL, "
             "PRIMARY KEY (endpoint, topic)) WITH (fillfactor = 100)")  # fmt: skip
    before = shop.sql(CATALOGUE)
    shop.sql(shop.sqlqueue(*SCRIPT, name))
    shop.sqlqueue("create", "Lake")
    shop.sqlqueue("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", "Lake")
    shop.fill(QUEUE, 10)
    with closing(shop.stream(stateSchema=f"sqlqueue_{name}")) as stream:
        while stream.batch():
            pass
    during = shop.sql(CATALOGUE)

    shop.words = {"sqlqueue_orders": f"sqlqueue_{name}", "orders_": f"{name}_"}
    first, last = blocks("docs/dba.md", "remove")
    shop.run(first)
    assert "no receipts" in shop.printed
    shop.run(last)

    assert len(during) > len(before) + 20
    assert shop.sql(CATALOGUE) == before
    assert shop.count('"SubscriptionRouting"') == [0]
