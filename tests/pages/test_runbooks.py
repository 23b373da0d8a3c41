"""The DBA's pages on a real database: set up, isolation, retention, restore, stop, upgrade."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from sqlq_spark import errors
from sqlq_spark.database.sessions import Session

from .page import blocks, table
from .shop import bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .page import Block
    from .shop import Shop

STREAM = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c11"
MESSAGE = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"
ROLES = ("sqlqueue_reader", "sqlqueue_sender", "spark_orders")


@pytest.fixture
def tenant(shop: Shop) -> Iterator[str]:
    """Give the url of a login that has the roles of the script."""
    shop.words = {name: f"{name}_{secrets.token_hex(4)}" for name in ROLES}
    reader, sender, login = shop.words.values()
    shop.sql(shop.sqlqueue("script", "Shop.Orders", "--reader", reader, "--sender", sender))
    shop.sql(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE {reader}, {sender}")
    parts = urlsplit(shop.url)
    host = parts.netloc.rpartition("@")[2]
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}:x@{host}"))
    finally:
        names = f"{reader}, {sender}, {login}"
        shop.sql(f"DROP OWNED BY {names}")
        shop.sql(f"DROP ROLE {names}")


def only(page: str, group: str) -> list[Block]:
    """The blocks of one group, in their order."""
    return blocks(f"docs/{page}.md", group)


# ---------------------------------------------------------------- set up


def test_a_login_of_the_dba_receives_with_the_printed_script(shop: Shop) -> None:
    """The statements of the page give it all that a stream needs, and doctor finds nothing."""
    PAGE = "docs/for-the-dba.md"  # noqa: N806
    script, login = blocks(PAGE, "setup")
    names = ("orders_reader", "orders_sender", "spark_orders")
    shop.words = {name: f"{name}_{secrets.token_hex(4)}" for name in names}
    user = shop.words["spark_orders"]
    shop.fill('"Shop.Orders"', 3)

    shop.run(script)
    shop.sql(shop.printed)
    shop.run(login)
    try:
        shop.sql(f"ALTER ROLE {user} PASSWORD 'x'")
        parts = urlsplit(shop.url)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{user}:x@{host}"))
        with closing(shop.stream(url=url, errorQueue="error")) as stream:
            assert len(stream.bodies()) == 3
        assert "no problems found" in shop.sqlqueue("doctor", "Shop.Orders", "--url", url)
    finally:
        made = ", ".join(shop.words.values())
        shop.sql(f"DROP OWNED BY {made}")
        shop.sql(f"DROP ROLE {made}")


# ---------------------------------------------------------------- isolation


def test_isolation_is_seen_and_checked(shop: Shop, tenant: str) -> None:
    """The policies are listed, no table is open, and the login sees nothing of another's rows."""
    PAGE = "docs/isolation.md"  # noqa: N806 - as the tests of the pages look for it
    off, policies, everyone, login, reset = blocks(PAGE, "check")
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        stream.batch()

    shop.run(off)
    assert shop.rows == []
    shop.run(policies)
    named = {(row[0], row[1]) for row in shop.rows}
    shop.run(everyone)
    all_rows = {row[0] for row in shop.rows}
    shop.run(login)
    seen = shop.rows
    shop.run(reset)
    [script] = blocks(PAGE, "domain")
    shop.run(script)

    assert {("receipt", "own rows"), ("receipt", shop.words["sqlqueue_reader"])} <= named
    assert shop.words["spark_orders"] not in all_rows
    assert seen == []
    assert shop.count("sqlqueue.stream") == 1
    assert '"sqlqueue_billing"' in shop.printed
    assert urlsplit(tenant).username == shop.words["spark_orders"]


# ---------------------------------------------------------------- retention


def test_one_message_is_shown_and_deleted(shop: Shop) -> None:
    """In a queue, in a receipt that is kept, and in one that is returned without it."""
    PAGE = "docs/retention.md"  # noqa: N806
    shop.fill('"Shop.Orders"', 3)
    shop.sql(
        f"INSERT INTO \"Shop.Orders\" (id, headers, body) VALUES ('{MESSAGE}', '{{}}', 'secret')"
    )
    in_queue, in_receipt = blocks(PAGE, "one")
    from_queue, from_receipt, vacuum = blocks(PAGE, "delete")

    shop.run(in_queue)
    assert [row[4] for row in shop.rows] == ["secret"]
    with closing(shop.stream()) as stream:
        assert len(stream.bodies()) == 4
    shop.words = {STREAM: stream.id}
    shop.run(*blocks(PAGE, "kept"))
    assert shop.rows == []
    shop.run(in_receipt)
    assert "body: secret" in shop.printed
    shop.run(from_receipt)
    assert "3 messages returned" in shop.printed
    shop.run(from_queue, vacuum)

    assert (shop.count('"Shop.Orders"'), shop.count("sqlqueue.receipt")) == (3, 0)


def test_what_a_stopped_stream_keeps_is_shown(shop: Shop) -> None:
    """Its receipts, until it starts once more."""
    first, _ = only("retention", "kept")
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        stream.batch()
    shop.run(first)
    kept = [row[3:5] for row in shop.rows]
    with closing(stream.again()) as again:
        again.batch()
    shop.run(first)

    assert kept == [(1, 3)]
    assert shop.rows == []


def test_a_publication_of_all_tables_has_the_state_tables(shop: Shop) -> None:
    """And one of schemas leaves them out."""
    PAGE = "docs/retention.md"  # noqa: N806
    shown, schemas = blocks(PAGE, "publications")
    shop.sql("CREATE PUBLICATION everything FOR ALL TABLES")

    shop.run(shown)
    published = {row[2] for row in shop.rows}
    shop.run(schemas, shown)

    assert {"receipt", "receipt_page", "staging", "staging_page"} <= published
    assert shop.rows == []
    queues = shop.sql("SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop'")
    assert ("Shop.Orders",) in queues


# ---------------------------------------------------------------- restore


@pytest.fixture
def restored(shop: Shop) -> Iterator[Shop]:
    """
    Give a copy of the database, made between two batches of a stream.

    The stream has received one batch before the copy and one after it; its end is in `words`.
    """
    shop.fill('"Shop.Orders"', 4)
    stream = shop.stream(maxMessagesPerTrigger="2")
    stream.batch()
    stream.loop.acknowledge(stream.offset)
    stream.close()
    name = f"shop_{secrets.token_hex(6)}"
    database = urlsplit(shop.url).path[1:]
    with psycopg.connect(
        urlunsplit(urlsplit(shop.url)._replace(path="/postgres")), autocommit=True
    ) as admin:
        shop.connection.close()
        words = map(sql.Identifier, (name, database))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*words))
        try:
            url = urlunsplit(urlsplit(shop.url)._replace(path=f"/{name}"))
            with psycopg.connect(url, autocommit=True) as connection:
                copy = type(shop)(url, shop.folder, connection, capture=shop.capture)
                later = stream.again()
                later.batch()
                copy.names["end"] = later.offset
                later.loop.acknowledge(later.offset)
                later.close()
                yield copy
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_after_a_restore_a_stream_raises_and_continues(restored: Shop) -> None:
    """The page's queries show both sides; what the sink has is deleted before it continues."""
    PAGE = "docs/restore.md"  # noqa: N806
    streams, _, _, sinks = blocks(PAGE, "compare")
    end = restored.names["end"]

    restored.run(streams)
    before = [row[3] for row in restored.rows]
    restored.run(sinks)
    with closing(restored.stream()) as stream:
        stream.offset = end
        with pytest.raises(errors.DatabaseRolledBack):
            stream.batch()
    again = restored.count('"Shop.Orders"')
    restored.sql('DELETE FROM "Shop.Orders"')
    restored.fill('"Shop.Orders"', 1)
    with closing(restored.stream(failOnDataLoss="false")) as stream:
        stream.offset = end
        received = stream.bodies()
    restored.run(streams)

    assert (before, again, len(received)) == ([1], 2, 1)
    assert [row[3] for row in restored.rows] == [end.batch]


# ---------------------------------------------------------------- emergency


def test_a_stream_is_stopped_and_continues(shop: Shop, tenant: str) -> None:
    """Without its right it fails; without its login it cannot connect; then it has all."""
    PAGE = "docs/emergency.md"  # noqa: N806
    revoke, no_send = blocks(PAGE, "stop")
    find, no_login, end = blocks(PAGE, "all")
    [allowed] = blocks(PAGE, "continue")
    shop.fill('"Shop.Orders"', 4)
    stream = shop.stream(url=tenant, maxMessagesPerTrigger="2")
    with closing(stream):
        first = stream.bodies()
        stream.offset = stream.loop.latest(stream.offset)
        shop.run(find)
        logins = shop.rows
        shop.run(revoke, no_send)
        with pytest.raises(errors.RightMissing):
            stream.received()
        with Session(stream.options, "driver of another stream") as other:
            other.open()
            shop.run(no_login, end)
        assert [row[1] for row in shop.rows] == [shop.words["spark_orders"]]
    with closing(stream.again()) as refused, pytest.raises(errors.LoginRefused):
        refused.batch()

    shop.run(end)
    ended = shop.rows
    shop.run(allowed)
    with closing(stream.again()) as restarted:
        replayed = bodies(restarted.received())
        rest = restarted.bodies()

    assert logins == [(shop.words["spark_orders"],)]
    assert ended == []
    assert {*first, *replayed, *rest} == {b'{"number":%d}' % n for n in range(1, 5)}
    assert shop.count('"Shop.Orders"') == 0


def test_what_may_be_deleted_by_hand(shop: Shop) -> None:
    """A stopped stream continues without its rows of `task`, and not without its own row."""
    shop.fill('"Shop.Orders"', 4)
    with closing(shop.stream(maxMessagesPerTrigger="2")) as stream:
        stream.batch()
    shop.sql("DELETE FROM sqlqueue.task")
    with closing(stream.again()) as again:
        assert len(again.bodies()) == 2
    shop.sql("DELETE FROM sqlqueue.stream")
    with closing(again.again()) as lost, pytest.raises(errors.StreamNotFound):
        lost.batch()

    assert "never" in table("docs/emergency.md", "by-hand").row("receipt")[1]


# ---------------------------------------------------------------- upgrade


def test_releases_refuse_state_tables_of_another_version(shop: Shop) -> None:
    """Older tables ask for `install`, newer ones for a newer release."""
    PAGE = "docs/upgrade.md"  # noqa: N806
    [shown] = blocks(PAGE, "version")
    [beside] = blocks(PAGE, "beside")
    options = shop.stream().options

    def opened() -> None:
        with Session(options, "test") as session:
            session.open()

    shop.run(beside, shown)
    assert shop.rows == [(1,)]
    shop.sql("UPDATE sqlqueue.version SET version = 2")
    with pytest.raises(errors.StateTooNew):
        opened()
    shop.sqlqueue("install", code=3)
    assert shop.sql("SELECT version FROM sqlqueue.version") == [(2,)]
    shop.sql("UPDATE sqlqueue.version SET version = 0")
    with pytest.raises(errors.StateNotInstalled):
        opened()
    shop.sqlqueue("install")
    opened()
