"""The script that `sqlqueue script` prints: enough for each role to do its work, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import dispatch
from sqlq_spark.send.sender import Sender
from sqlq_spark.send.throttle import find_backlog

from .database import STREAM, address, as_role, executed, received

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

ROLES = ("reader", "sender", "operator", "producer")
ERRORS = 'Er"ror; --'


@dataclass(frozen=True, kw_only=True)
class Granted:
    """What the script made: tables, and a url for each role."""

    queue: str
    errors: str  # a hostile name
    subscriptions: str
    urls: dict[str, str]


@pytest.fixture
def granted(place: Place, run: Run, state: tuple[str, str]) -> Iterator[Granted]:
    """Execute the script."""
    names = ("Shop.Orders", ERRORS.replace('"', '""'), "SubscriptionRouting")
    queue, errors, table = (address(place, name) for name in names)
    roles = {each: f"{place.schema}_{each}" for each in ROLES}
    queues = ("--error", errors, "--audit", address(place, "audit"), "--delayed")
    flags = (word for name, role in roles.items() for word in (f"--{name}", role))
    script = run("script", queue, *queues, "--subscription-table", table, *state, *flags)
    urls = {name: as_role(place.url, role) for name, role in roles.items()}
    with executed(place, script.out, *roles.values()):
        yield Granted(queue=queue, errors=errors, subscriptions=table, urls=urls)


def test_a_reader_receives_and_moves_poison(place: Place, granted: Granted) -> None:
    """From its queue, poison into the error queue."""
    put = f"INSERT INTO {granted.queue} (id, headers, body) VALUES (gen_random_uuid(), %s, '')"
    for headers in ("{}", "poison"):
        place.sql(put, headers)

    assert received(place, messages=10, url=granted.urls["reader"], errors=ERRORS) == [b""]
    assert place.sql(f"SELECT headers FROM {granted.errors}") == [("poison",)]


def test_a_sender_sends_exactly_once_and_publishes(
    place: Place, granted: Granted, run: Run
) -> None:
    """Through the staging, to a queue and to a subscriber; it may neither browse nor subscribe."""
    subscription = ("Shop.Placed", "--endpoint", "Lake", "--queue", granted.queue)
    words = ("subscribe", *subscription, "--subscription-table", granted.subscriptions)
    assert run(*words).code == 0
    given = {
        "url": granted.urls["sender"],
        "stateSchema": place.state,
        "subscriptionTable": granted.subscriptions,
    }
    batch = pa.RecordBatch.from_pydict({"body": [b"x"]})
    for which, to in enumerate(({"queue": granted.queue}, {"topics": "Shop.Placed"})):
        options = SinkOptions.parse(given | to)
        with StateSession(options, "sender") as session:
            chunks = Sender(options=options, partition=0).chunks([batch])
            staged = dispatch.stage(session, chunks, sink=f"app:{which}", batch=0)
            dispatch.dispatch(session.open(), [staged], options)

    url = ("--url", granted.urls["sender"])
    refused = run(*words, *url)
    assert place.sql(f"SELECT body FROM {granted.queue}") == [(b"x",)] * 2
    assert run("send", granted.queue, *url, stdin='{"body": "1"}').code == 0
    assert run("browse", granted.queue, *url).code == 3
    assert refused.code == 3
    assert f"GRANT SELECT, INSERT, UPDATE ON {granted.subscriptions} TO the_user" in refused.err


def test_a_sender_counts_what_waits_and_a_producer_only_sends(
    place: Place, granted: Granted
) -> None:
    """`pauseAboveBacklog` reads no column but seq; an endpoint needs to read nothing."""
    given = {"url": granted.urls["sender"], "stateSchema": place.state}
    options = SinkOptions.parse(given)
    put = f"INSERT INTO {granted.queue} (id, headers) VALUES (gen_random_uuid(), '{{}}')"
    with psycopg.connect(granted.urls["producer"], autocommit=True) as producer:
        producer.execute(put.encode())
        for table in (granted.queue, f'"{place.state}".version'):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                producer.execute(f"SELECT FROM {table}".encode())

    with StateSession(options, "sender") as session:
        found = find_backlog(session.open(), options, {("queue", granted.queue)})

    assert str(found).startswith("1 messages wait in ")
    with psycopg.connect(granted.urls["sender"]) as sender:
        sender.execute(f"SELECT seq FROM {granted.queue}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sender.execute(f"SELECT headers FROM {granted.queue}".encode())


def test_doctor_finds_all_rights_of_a_stream_and_of_a_sender(
    run: Run, place: Place, granted: Granted, state: tuple[str, str]
) -> None:
    """What only the other may do is a note."""
    notes = {"reader": "may not delay messages", "sender": "may not receive from it"}
    for role, note in notes.items():
        found = run("doctor", granted.queue, *state, "--url", granted.urls[role])

        assert found.code == 0
        assert f": login {place.schema}_{role} {note}" in found.out
        assert "no problems found" in found.out


def test_an_operator_may_run_the_commands(
    place: Place, granted: Granted, state: tuple[str, str], run: Run
) -> None:
    """All but those that create tables."""
    url = ("--url", granted.urls["operator"])
    subscriptions = ("--subscription-table", granted.subscriptions)
    line, delayed = '{"body": "1"}\n', '{"body": "2", "delay": "00:00:00"}'
    topic = ("Shop.Placed", "--endpoint", "Lake")
    assert run("send", granted.errors, *url, stdin=line).code == 0
    assert run("send", granted.queue, *url, stdin=line + delayed).code == 0
    assert run("move-due", granted.queue, *url).code == 0
    received(place, messages=2)

    ends = [
        run(*words, *url).code
        for words in (
            ("stats", granted.queue, *state),
            ("browse", granted.errors),
            ("receipts", "list", *state),
            ("receipts", "return", "--stream", STREAM, "--yes", *state),
            ("purge-expired", granted.queue),
            ("purge", granted.queue, "--yes"),
            ("subscribe", *topic, "--queue", granted.queue, *subscriptions),
            ("unsubscribe", *topic, "--yes", *subscriptions),
            ("doctor", granted.queue, granted.errors, *state),
        )
    ]

    assert ends == [0] * len(ends)
    assert run("create", address(place, "other"), *url).code == 3


def test_the_server_writes_the_login_of_a_receipt(place: Place, granted: Granted) -> None:
    """A reader may not, and so no receipt can claim the rights of another login."""
    columns = "stream, batch, task, queue, messages, expired, diverted, forwarded, bytes, unpacked"
    values = "'s', 1, 1, 'q', 0, 0, 0, 0, 0, 0, ''"
    with psycopg.connect(granted.urls["reader"], autocommit=True) as reader:
        receipt = f'"{place.state}".receipt ({columns}, payload'

        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(f"INSERT INTO {receipt}, login) VALUES ({values}, 'dba')".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(f"UPDATE \"{place.state}\".receipt SET login = 'dba'".encode())

        reader.execute(f"INSERT INTO {receipt}) VALUES ({values})".encode())


def test_an_install_by_a_reader_changes_nothing(
    place: Place, granted: Granted, state: tuple[str, str], run: Run
) -> None:
    """A superuser owns the tables, so it succeeds."""
    before = place.sql("SELECT oid, xmin::text FROM pg_class WHERE relkind = 'r'")

    installed = run("install", *state, "--url", granted.urls["reader"])

    assert (installed.code, installed.err) == (0, "")
    assert place.sql("SELECT oid, xmin::text FROM pg_class WHERE relkind = 'r'") == before
