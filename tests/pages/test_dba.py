"""docs/dba.md: its locks are those that the server shows, its rights those of the script."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from recorded_connection import RecordedConnection
from waiting import until

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
    from collections.abc import Callable, Iterator

    from .shop import Shop

PAGE = "docs/dba.md"
QUEUE = QueueAddress("Shop.Orders", "public")
MESSAGE = pa.record_batch({"body": pa.array([b"{}"])})
SCRIPT = ["script", "Shop.Orders", "--delayed", "--error", "error"]
SCRIPT += ["--subscription-table", "SubscriptionRouting", "--domain"]

# object of a GRANT in the script → second part of the row's id, as in `reader:error`
PLACES = {
    "SCHEMA": "schemas",
    '"public"."Shop.Orders"': "queue",
    '"public"."error"': "error",
    '"public"."error_seq_seq"': "error-sequence",
    '"public"."Shop.Orders.Delayed"': "delayed",
    '"public"."Shop.Orders_seq_seq"': "queue-sequence",
    '"public"."SubscriptionRouting"': "subscriptions",
}
HELD = """
SELECT c.relname, l.mode
  FROM pg_locks AS l
  JOIN pg_class AS c ON c.oid = l.relation
  JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE a.application_name LIKE 'sqlqueue%' AND c.relkind = 'r' AND c.relname LIKE 'Shop%'
   AND a.datname = current_database()
"""
# the catalogue, without the names that the server gives
CATALOGUE = """
SELECT 'relation', n.nspname || '.' || c.relname,
       c.relkind::text || coalesce(c.reloptions::text, '')
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
UNION ALL SELECT 'column', attrelid::regclass::text || '.' || attname, atttypid::regtype::text
  FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
 WHERE c.relnamespace = 'public'::regnamespace AND attnum > 0
UNION ALL SELECT 'schema', nspname, '' FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
UNION ALL SELECT 'function', oid::text, '' FROM pg_proc WHERE oid >= 16384
UNION ALL SELECT 'trigger', tgname, '' FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'extension', extname, '' FROM pg_extension
UNION ALL SELECT 'role', rolname, '' FROM pg_roles
UNION ALL SELECT 'grant', c.relname, grantee::text || privilege_type
  FROM pg_class AS c, aclexplode(c.relacl) WHERE grantee <> c.relowner
UNION ALL SELECT 'grant', n.nspname, grantee::text || privilege_type
  FROM pg_namespace AS n, aclexplode(n.nspacl) WHERE grantee <> n.nspowner
ORDER BY 1, 2, 3
"""


@pytest.fixture
def held(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Give the modes in which tables are locked just before the commits of our sessions."""
    found: dict[str, set[str]] = {}
    postgresql = dialects.of(shop.url)
    connect = postgresql.connect

    class Watched(RecordedConnection):
        """Reads the locks before each commit."""

        def around(self, statement: str, call: Callable[[], Any]) -> Any:
            if statement == "commit":
                for name, mode in shop.sql(HELD):
                    found.setdefault(name, set()).add(mode)
            return call()

    monkeypatch.setattr(postgresql, "connect", lambda *a, **k: Watched(connect(*a, **k)))
    return found


# ---------------------------------------------------------------- tables and locks


def test_the_page_names_the_tables_that_are_installed(shop: Shop) -> None:
    """All of them, and no others."""
    named = table(PAGE, "state-tables").column()

    found = shop.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'sqlqueue'")

    assert {name.strip("`") for name in named} == {name for (name,) in found}


def test_the_locks_of_statements_are_those_of_their_comments() -> None:
    """`python -m tests.pages.locks` prints the table."""
    found = re.search("<!-- locks -->\n(.*)<!-- /locks -->", read(PAGE), flags=re.DOTALL)

    assert found is not None
    assert found[1] == locks.table()


def test_the_modes_on_the_page_are_those_that_the_server_shows(
    shop: Shop, held: dict[str, set[str]]
) -> None:
    """Of each kind of transaction, just before it commits."""
    shop.fill('"Shop.Orders"', 10)
    shop.sql("INSERT INTO \"Shop.Orders.Delayed\" (headers, body, due) VALUES ('', '', now())")
    seen: dict[str, dict[str, set[str]]] = {}

    def noted(what: str) -> None:
        seen[what] = dict(held)
        held.clear()

    with closing(shop.stream()) as stream:
        stream.loop.acknowledge(stream.offset)  # what is looked at once, at a start
        held.clear()
        stream.offset = stream.loop.latest(stream.offset)
        noted("acknowledge")
        received = stream.received()
        noted("receive")
    sink = SinkOptions.parse({"url": shop.url, "queue": "Shop.Orders"})
    with StateSession(sink, "sink") as session:
        chunks = Sender(options=sink, partition=0).chunks([MESSAGE])
        staged = dispatch.stage(session, chunks, sink="dba", batch=0)
        held.clear()
        session.run_with_retries(lambda connection: dispatch.dispatch(connection, [staged], sink))
        noted("dispatch")
        mover = Mover(QUEUE, sink)
        moved = session.run_with_retries(lambda connection: mover.move(connection, 10))
        noted("move")
        pages = browse.pages(session.open(), QUEUE, 0, 2**31, narrow=False)
        shown = sum(page.num_rows for page in pages)
        noted("browse")

    page = table(PAGE, "locks")
    listed = {
        row_id: {
            name: set(re.findall(r"`(\w+)`", cell))
            for name, cell in zip(("Shop.Orders", "Shop.Orders.Delayed"), row[1:], strict=True)
            if "`" in cell
        }
        for row_id, row in zip(page.ids, page.rows, strict=True)
    }
    assert [each.num_rows for each in received] == [10]
    assert (moved.messages, shown) == (1, 2)
    assert listed == seen


def test_no_transaction_is_open_while_spark_works(shop: Shop) -> None:
    """When a task hands out its rows, and until the next batch, no session of ours has any."""
    shop.fill('"Shop.Orders"', 10)
    with closing(shop.stream()) as stream:
        received = stream.batch()

        held = shop.sql(HELD)
        opened = shop.sql(
            "SELECT application_name FROM pg_stat_activity WHERE xact_start IS NOT NULL "
            "AND application_name LIKE 'sqlqueue%' AND datname = current_database()"
        )

    assert sum(each.num_rows for each in received) == 10
    assert (held, opened) == ([], [])


def test_the_key_of_the_page_is_that_of_the_installers_lock(shop: Shop) -> None:
    """Whoever holds it keeps an installer waiting; pg_locks shows its halves."""
    [key] = blocks(PAGE, "advisory")
    shop.run(key)
    [(number,)] = shop.rows
    with shop.other() as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        shown = shop.sql(
            "SELECT (classid::bigint << 32) | objid::bigint, objsubid FROM pg_locks "
            "WHERE locktype = 'advisory' AND granted"
        )
        said = shop.sqlqueue("install", "--query-timeout", "1s", code=3)

    assert (number, 1) in shown
    assert "1s" in said or "1 s" in said


# ---------------------------------------------------------------- rights


def test_the_rights_on_the_page_are_those_that_the_script_grants(shop: Shop) -> None:
    """By role, right and place; a row's id names the role and the place."""
    text = shop.sqlqueue(*SCRIPT, "orders")
    granted: set[tuple[str, str, str]] = set()
    for rights, places, role in re.findall(
        r"^GRANT ([^;]+?)\s+ON ([^;]+?) TO \"orders_(\w+)\"", text, flags=re.MULTILINE
    ):
        for place in places.split(", "):
            granted.add((role, " ".join(rights.split()), called(place)))

    page = table(PAGE, "rights")
    listed = {
        (role.partition("-")[0], row[1].strip("`"), each)
        for row_id, row in zip(page.ids, page.rows, strict=True)
        for role, _, place in [str(row_id).partition(":")]
        for each in places_of(place, row)
    }
    assert listed == granted


def places_of(place: str, row: list[str]) -> Iterator[str]:
    """What a row's right is on: the place in its id, or the state tables that it names."""
    if place in {"version", "stream", "task", "receipt", "receipt-page", "staging", "log"}:
        yield from re.findall(r"`(\w+)`", row[2])
    else:
        yield place


def called(place: str) -> str:
    """The name in the ids of the page for an object of the script."""
    bare = place.removeprefix("SEQUENCE ")
    if bare.startswith("SCHEMA") or bare == '"sqlqueue_orders"':
        return PLACES["SCHEMA"]
    return PLACES.get(bare) or bare.replace('"sqlqueue_orders".', "").strip('"')


def test_the_other_roles_can_do_their_work_with_what_the_page_gives_them(shop: Shop) -> None:
    """A login with CREATE makes tables, a browser looks, an operator returns receipts."""
    role = f"clerk_{secrets.token_hex(4)}"
    shop.fill('"Shop.Orders"', 3)
    stream = shop.stream()
    stream.batch()
    stream.close()
    url = f"{shop.url}?options=-c%20role%3D{role}"
    shop.sql(f"CREATE ROLE {role}")
    try:
        database = shop.sql("SELECT current_database()")[0][0]
        shop.sql(f"GRANT CREATE ON DATABASE {database} TO {role}")
        shop.sql(f"GRANT CREATE, USAGE ON SCHEMA public TO {role}")
        shop.sqlqueue("install", "--url", url, "--state-schema", "another")
        shop.sqlqueue("create", "Mine", "--url", url)
        shop.sql(f'GRANT SELECT ON "Shop.Orders" TO {role}')
        shop.sqlqueue("browse", "Shop.Orders", "--url", url)
        words = (part for each in ("reader", "sender", "operator") for part in (f"--{each}", role))
        text = shop.sqlqueue("script", "Shop.Orders", "--state-schema", "sqlqueue", *words)
        shop.sql(text)
        shop.sql(f"GRANT pg_read_all_stats TO {role}")
        said = shop.sqlqueue("receipts", "return", "--stream", stream.id, "--yes", "--url", url)
        looked = shop.sqlqueue("doctor", "Shop.Orders", "--url", url)
    finally:
        shop.sql(f"DROP OWNED BY {role}")
        shop.sql(f"DROP ROLE {role}")

    assert "3 messages returned" in said
    assert "may not see" not in looked
    assert shop.count('"Shop.Orders"') == 3


# ---------------------------------------------------------------- watching, removing


def test_the_queries_of_the_page_show_a_stream(shop: Shop) -> None:
    """Each query of `Watch`, while a stream works."""
    shop.fill('"Shop.Orders"', 3)
    stream = shop.stream()
    stream.batch()
    sessions, sizes, streams, seqs, pinned = blocks(PAGE, "watch")
    with shop.other() as other:
        other.execute('SELECT pg_current_xact_id(), count(*) FROM "Shop.Orders"')
        stream.loop.latest(stream.offset)

        def said() -> list[str]:
            shop.run(sessions)
            return [row[1] for row in shop.rows]

        until(said, ["sqlqueue driver Shop.Orders"])  # one that has ended may be there for a moment
        shop.run(pinned)
        pins = shop.rows
        other.rollback()
    shop.run(sizes)
    kept = {row[0] for row in shop.rows}
    shop.run(streams)
    [row] = shop.rows
    shop.run(seqs)
    stream.close()

    assert len([row for row in pins if row[1] is not None]) == 1  # autovacuum has no user
    assert {"Shop.Orders", "stream", "receipt"} <= kept
    assert row[0] == stream.id
    assert ('"Shop.Orders_seq_seq"', 3) in [row[:2] for row in shop.rows]


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
    shop.fill('"Shop.Orders"', 10)
    stream = shop.stream(stateSchema=f"sqlqueue_{name}")
    while stream.batch():
        pass
    stream.close()
    during = shop.sql(CATALOGUE)

    shop.words = {"sqlqueue_orders": f"sqlqueue_{name}", "orders_": f"{name}_"}
    first, last = blocks(PAGE, "remove")
    shop.run(first)
    printed = shop.printed
    shop.run(last)

    assert "no receipts" in printed
    assert len(during) > len(before) + 20
    assert shop.sql(CATALOGUE) == before
    assert shop.count('"SubscriptionRouting"') == 0
