"""The pages of operators and DBAs, followed on a real database in the state that they are for."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from waiting import until

from sqlq_spark import errors
from sqlq_spark.wire.rows import Origin

from .page import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .shop import Shop, Stream

ORDERS, RECEIPTS = '"Shop.Orders"', "sqlqueue.receipt"
STREAM = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c11"  # as the pages name one
MESSAGE = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"
# of a read: another value than the default
CHANGES = {
    "url": "{other}",
    "headersFormat": "json",
    "peekDelay": "100ms",
    "minMessagesPerTrigger": "2",
    "maxTriggerDelay": "1s",
    "minConcurrency": "2",
    "warnIfShared": "false",
    "delayedDelivery": "true",
    "endpointTimeZone": "Europe/Berlin",
    "allowedDestinations": "Shop.*",
    "failOnDataLoss": "false",
    "failOnMissingReceipts": "true",
    "queryTimeout": "20s",
    "errorQueue": "error",
    "maxBytesPerTrigger": "1m",
    "maxConcurrency": "3",
    "maxMessagesPerTrigger": "2",
    "transactionMode": "none",
}
EXPIRED = "UPDATE \"Shop.Orders\" SET expires = '2020-01-01'"
POISON = f"INSERT INTO error (id, headers, body) VALUES ('{MESSAGE}', '[oops', 'x')"
FAILED = """
INSERT INTO error (id, headers) SELECT gen_random_uuid(), json_build_object(
    'NServiceBus.FailedQ', '"public"."Shop.Orders"',
    'NServiceBus.ExceptionInfo.ExceptionType', kind)
FROM unnest(ARRAY['System.InvalidOperationException', 'System.InvalidOperationException',
                  'System.TimeoutException']) AS kind
"""


@pytest.fixture
def stream(shop: Shop) -> Iterator[Stream]:
    """Give a stream that has received 3 messages; its batch is open, and it is the pages' one."""
    shop.fill(ORDERS, 3)
    with closing(shop.stream()) as made:
        made.batch(Origin(query_id="8d2e", query_batch=4))
        shop.words = {STREAM: made.id}
        yield made


# ---------------------------------------------------------------- docs/operations.md


@pytest.mark.parametrize(
    ("group", "before", "said"),
    [
        ("look-first", "SELECT", "report.html"),
        ("receipts-left", "SELECT", "{stream}"),
        ("taken-over", "SELECT", "{stream}"),
        ("poison", POISON, "[]"),
        ("failed", FAILED, "2 messages returned"),
        ("backlog", EXPIRED, "2 expired messages deleted"),
        ("disk-full", EXPIRED, "2 expired messages deleted"),
        ("seq", "SELECT setval('\"Shop.Orders_seq_seq\"', 2000000000)", "no problems found"),
        ("dropped-queue", 'DROP TABLE "Shop.Orders"', "Shop.Orders"),
    ],
)
def test_the_commands_of_a_runbook(
    shop: Shop, stream: Stream, group: str, before: str, said: str
) -> None:
    """Each ends as the page says; the last one says what it found or did."""
    shop.fill(ORDERS, 2)
    shop.sql(before)

    shop.run(*blocks("docs/operations.md", group))

    assert said.format(stream=stream.id) in f"{shop.printed}{shop.rows}"
    assert shop.count("error") == [before == FAILED]  # one of another exception


def test_checkpoint_lost(shop: Shop, stream: Stream) -> None:
    """The messages of its receipts are shown, returned or dropped, and the stream is deleted."""
    listed, asked, returned, dropped, deleted = blocks("docs/operations.md", "checkpoint-lost")

    shop.run(listed, asked)
    assert stream.id in shop.printed
    assert [row[:4] for row in shop.rows] == [(stream.id, 1, 0, 3)]
    shop.run(returned)
    assert "3 messages returned" in shop.printed
    assert shop.count(ORDERS, RECEIPTS) == [3, 0]

    with closing(shop.stream()) as again:
        assert len(again.batch()) == 3
    shop.words = {STREAM: again.id}
    shop.run(dropped, deleted)
    assert "3 messages dropped" in shop.printed
    assert shop.count(ORDERS, RECEIPTS) == [0, 0]
    assert shop.sql("SELECT stream FROM sqlqueue.stream") == [(stream.id,)]


def test_snapshot_pinned(shop: Shop) -> None:
    """The session that pins is shown on both pages, and ended."""
    shown, ended = blocks("docs/operations.md", "snapshot")
    with closing(psycopg.connect(shop.url)) as other:
        other.execute("SET application_name = 'left open'")
        other.execute(f"SELECT pg_current_xact_id(), count(*) FROM {ORDERS}".encode())
        for each in (shown, blocks("docs/dba.md", "watch")[-1]):
            shop.run(each)
            [pid] = [row[0] for row in shop.rows if "left open" in row]
        shop.words = {"4711": str(pid)}
        shop.run(ended)

        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


# ---------------------------------------------------------------- docs/guide/changing-options.md


def test_options_of_a_read_hold_from_the_next_batch_on(shop: Shop) -> None:
    """The open batch keeps its messages, whatever changed: limits, columns, poison, receipts."""
    shop.fill(ORDERS, 3)
    stream = shop.stream()
    received = stream.batch()
    for name, value in CHANGES.items():
        shop.fill(ORDERS, 4)
        other = shop.url.replace("127.0.0.1", "localhost")
        stream = stream.again(**{name: value.format(other=other)})

        assert stream.received() == received, name
        received = stream.batch()
        assert len(received) == (2 if "maxMessagesPerTrigger" in stream.raw else 4), name
    stream.loop.latest(stream.offset)
    stream.close()

    assert shop.count(RECEIPTS) == [0]


# ---------------------------------------------------------------- the DBA's pages


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
    script, made = blocks("docs/for-the-dba.md", "setup")
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


def test_who_has_rights_and_who_is_in_two_domains_is_listed(shop: Shop, team: str) -> None:
    """The login of a team is listed for its own state schema, until it gets rights on another."""
    rights, domains = blocks("docs/isolation.md", "check")
    login, state = str(urlsplit(team).username), shop.words["sqlqueue_orders"]
    shop.run(rights)
    assert [row for row in shop.rows if login in row] == [(state, login, False)]
    shop.run(domains)
    assert shop.rows == []

    shop.sql(f"GRANT USAGE ON SCHEMA sqlqueue TO {login}")
    shop.run(domains)
    assert shop.rows == [(login, f"sqlqueue, {state}")]
    shop.run(*blocks("docs/isolation.md", "domain"))
    assert f'"{state}"' in shop.printed


def test_a_stream_is_stopped_and_continues(shop: Shop, team: str) -> None:
    """Without its right it fails; without its login it cannot connect; then it has all."""
    shop.fill(ORDERS, 4)
    state = shop.words["sqlqueue_orders"]
    limits = {"stateSchema": state, "maxMessagesPerTrigger": "2", "errorQueue": "error"}
    with closing(shop.stream(url=team, **limits)) as stream:
        first = stream.batch()
        stream.offset = stream.loop.latest(stream.offset)
        assert "no problems found" in shop.sqlqueue("doctor", "Shop.Orders", "--url", team)
        shop.run(*blocks("docs/emergency.md", "stop"))
        with pytest.raises(errors.RightMissing):
            stream.received()
        find, no_login, end = blocks("docs/emergency.md", "all")
        with closing(psycopg.connect(team, application_name="sqlqueue driver of another")):
            shop.run(find)
            assert shop.rows == [(shop.words["spark_orders"],)]
            shop.run(no_login, end)
            assert "sqlqueue driver of another" in [row[2] for row in shop.rows]
    with closing(stream.again()) as refused, pytest.raises(errors.LoginRefused):
        refused.batch()

    shop.run(*blocks("docs/emergency.md", "continue"))
    with closing(stream.again()) as restarted:
        rest = [*restarted.received(), *restarted.batch()]
    assert {*first, *rest} == {b'{"number":%d}' % n for n in range(1, 5)}


def test_one_message_is_shown_and_deleted(shop: Shop) -> None:
    """In a queue, and in a receipt that is returned without it."""
    in_queue, in_receipt = blocks("docs/retention.md", "one")
    from_queue, from_receipt, vacuum = blocks("docs/retention.md", "delete")
    kept = blocks("docs/retention.md", "kept")
    shop.fill(ORDERS, 3)
    shop.sql(f"INSERT INTO {ORDERS} (id, headers, body) VALUES ('{MESSAGE}', '{{}}', 'secret')")

    shop.run(in_queue)
    assert [row[4] for row in shop.rows] == ["secret"]
    with closing(shop.stream()) as stream:
        stream.batch()
    shop.words = {STREAM: stream.id}
    shop.run(*kept, kept[0])
    assert [row[3:5] for row in shop.rows] == [(1, 4)]
    shop.run(in_receipt)
    assert "body: secret" in shop.printed
    shop.run(from_receipt, from_queue, vacuum)
    assert shop.count(ORDERS, RECEIPTS) == [3, 0]


def test_a_publication_of_all_tables_has_the_state_tables(shop: Shop) -> None:
    """And one of schemas leaves them out."""
    shown, schemas = blocks("docs/retention.md", "publications")
    shop.sql("CREATE PUBLICATION everything FOR ALL TABLES")

    shop.run(shown)
    published = {row[2] for row in shop.rows}
    shop.run(schemas, shown)

    assert {"receipt", "receipt_page", "staging", "staging_page"} <= published
    assert shop.rows == []


def test_the_queries_of_a_restore_an_upgrade_and_a_watch(shop: Shop, stream: Stream) -> None:
    """Each shows the stream, the version or the queue that it is about."""
    shop.run(*blocks("docs/upgrade.md"))
    assert shop.rows == [(3,)]
    streams, *others = blocks("docs/restore.md", "compare")
    shop.run(*others, streams)
    assert [row[3:5] for row in shop.rows] == [(0, 1)]

    sessions, sizes, watched, sequences, _ = blocks("docs/dba.md", "watch")
    shop.run(sizes)
    assert {"Shop.Orders", "stream", "receipt"} <= {row[0] for row in shop.rows}
    shop.run(watched)
    assert [row[5:] for row in shop.rows] == [(1, 3)]
    shop.run(sequences)
    assert ('"Shop.Orders_seq_seq"', 3) in [row[:2] for row in shop.rows]

    def open_for() -> list[tuple[str, object]]:
        shop.run(sessions)
        return [(row[1], row[4]) for row in shop.rows]

    # no transaction is open while Spark works; a session that has ended may be there for a moment
    until(open_for, [("sqlqueue driver Shop.Orders", None)])
    stream.loop.acknowledge(stream.offset)
    shop.run(*blocks("docs/operations.md", "files-lost"))
    assert shop.rows == [("8d2e", 4, 1)]
