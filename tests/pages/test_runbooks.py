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
from sqlq_spark.database.sessions import StateSession

from .page import blocks, table
from .shop import bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .page import Block
    from .shop import Shop

STREAM = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c11"
MESSAGE = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"


@pytest.fixture
def team(shop: Shop) -> Iterator[str]:
    """Give the url of the login of a team: the pages' domain `orders`, under a name of its own."""
    name = f"team_{secrets.token_hex(4)}"
    login, roles = f"spark_{name}", f"{name}_reader, {name}_sender"
    shop.words = {
        "--domain orders": f"--domain {name}",
        "sqlqueue_orders": f"sqlqueue_{name}",
        "orders_": f"{name}_",
        "spark_orders": login,
    }
    PAGE = "docs/for-the-dba.md"  # noqa: N806 - as the tests of the pages look for it
    script, made = blocks(PAGE, "setup")
    shop.run(script)
    shop.sql(shop.printed)
    shop.run(made)
    shop.sql(f"ALTER ROLE {login} PASSWORD 'x'")
    parts = urlsplit(shop.url)
    host = parts.netloc.rpartition("@")[2]
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}:x@{host}"))
    finally:
        shop.sql(f"DROP OWNED BY {roles}, {login}")
        shop.sql(f"DROP ROLE {roles}, {login}")


def only(page: str, group: str) -> list[Block]:
    """The blocks of one group, in their order."""
    return blocks(f"docs/{page}.md", group)


# ---------------------------------------------------------------- set up


def test_a_login_of_the_dba_receives_with_the_printed_script(shop: Shop, team: str) -> None:
    """The statements of the page give it all that a stream needs, and doctor finds nothing."""
    state = shop.words["sqlqueue_orders"]
    shop.fill('"Shop.Orders"', 3)

    with closing(shop.stream(url=team, stateSchema=state, errorQueue="error")) as stream:
        received = stream.bodies()

    assert len(received) == 3
    assert shop.count(f"{state}.stream") == 1
    assert "no problems found" in shop.sqlqueue("doctor", "Shop.Orders", "--url", team)


# ---------------------------------------------------------------- isolation


def test_who_has_rights_and_who_is_in_two_domains_is_listed(shop: Shop, team: str) -> None:
    """The login of a team is listed for its own state schema, until it gets rights on another."""
    PAGE = "docs/isolation.md"  # noqa: N806 - as the tests of the pages look for it
    rights, domains = blocks(PAGE, "check")
    login, state = str(urlsplit(team).username), shop.words["sqlqueue_orders"]

    def listed(query: Block) -> list[tuple[object, ...]]:
        shop.run(query)
        return [row for row in shop.rows if login in row]

    assert listed(rights) == [(state, login, False)]
    assert listed(domains) == []
    shop.sql(f"GRANT USAGE ON SCHEMA sqlqueue TO {login}")
    assert listed(domains) == [(login, f"sqlqueue, {state}")]
    [script] = blocks(PAGE, "domain")
    shop.run(script)
    assert f'"{state}"' in shop.printed


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


def test_a_stream_is_stopped_and_continues(shop: Shop, team: str) -> None:
    """Without its right it fails; without its login it cannot connect; then it has all."""
    PAGE = "docs/emergency.md"  # noqa: N806
    revoke, no_send = blocks(PAGE, "stop")
    find, no_login, end = blocks(PAGE, "all")
    [allowed] = blocks(PAGE, "continue")
    shop.fill('"Shop.Orders"', 4)
    state = shop.words["sqlqueue_orders"]
    stream = shop.stream(url=team, stateSchema=state, maxMessagesPerTrigger="2")
    with closing(stream):
        first = stream.bodies()
        stream.offset = stream.loop.latest(stream.offset)
        shop.run(find)
        logins = shop.rows
        shop.run(revoke, no_send)
        with pytest.raises(errors.RightMissing):
            stream.received()
        with StateSession(stream.options, "driver of another stream") as other:
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
    """A stream does not continue without its row."""
    shop.fill('"Shop.Orders"', 4)
    with closing(shop.stream(maxMessagesPerTrigger="2")) as stream:
        stream.batch()
    shop.sql("DELETE FROM sqlqueue.stream")
    with closing(stream.again()) as lost, pytest.raises(errors.StreamNotFound):
        lost.batch()

    assert "never" in table("docs/emergency.md", "by-hand").row("receipt")[1]


# ---------------------------------------------------------------- upgrade


def test_releases_refuse_state_tables_of_another_version(shop: Shop) -> None:
    """Older tables are to be dropped, newer ones need a newer release."""
    PAGE = "docs/upgrade.md"  # noqa: N806
    [shown] = blocks(PAGE, "version")
    [beside] = blocks(PAGE, "beside")
    options = shop.stream().options

    def opened() -> None:
        with StateSession(options, "test") as session:
            session.open()

    shop.run(beside, shown)
    assert shop.rows == [(3,)]
    shop.sql("UPDATE sqlqueue.version SET version = 4")
    with pytest.raises(errors.StateTooNew):
        opened()
    shop.sqlqueue("install", code=3)
    assert shop.sql("SELECT version FROM sqlqueue.version") == [(4,)]
    shop.sql("UPDATE sqlqueue.version SET version = 1")
    with pytest.raises(errors.StateTooOld):
        opened()
    shop.sql("DROP SCHEMA sqlqueue CASCADE")
    shop.sqlqueue("install")
    opened()
