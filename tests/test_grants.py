"""The script that `sqlqueue script` prints: enough for each role to do its work, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from psycopg import sql
from test_cli import STREAM, as_role, received, run
from typer.testing import CliRunner

from sqlq_spark.cli import main
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import dispatch, staging
from sqlq_spark.send.messages import Sender

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

__all__ = ["run"]  # the fixture

SCRIPT = [
    *("script", "Shop.Orders", "--error", "error", "--audit", "audit", "--delayed"),
    *("--subscription-table", "SubscriptionRouting"),
    *("--operator", "sqlqueue_operator", "--installer", "sqlqueue_installer"),
]
ROLES = ("reader", "sender", "operator", "installer")


@pytest.fixture
def granted(place: Place) -> Iterator[dict[str, str]]:
    """Execute the script, its names moved into the test's place; gives role → url."""
    names = {
        '"public"': f'"{place.schema}"',
        '"sqlqueue"': f'"{place.state}"',
        "'sqlqueue'": f"'{place.state}'",
        "sqlqueue_": f"{place.schema}_",
    }
    text = CliRunner().invoke(main.app, SCRIPT).stdout
    for name, own in names.items():
        text = text.replace(name, own)
    try:
        for _ in range(2):  # it may be run again
            place.connection.execute(text.encode())
        yield {each: as_role(place.url, f"{place.schema}_{each}") for each in ROLES}
    finally:
        for each in (*ROLES, "owner"):
            role = sql.Identifier(f"{place.schema}_{each}")
            place.connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            place.connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def queue(place: Place) -> str:
    """Give the address of the queue that the script makes."""
    return f'"{place.schema}"."Shop.Orders"'


def test_a_reader_receives_and_diverts(place: Place, granted: dict[str, str], queue: str) -> None:
    """From its queue, poison into the error queue; it may not purge what others subscribe to."""
    put = f"INSERT INTO {queue} (id, headers, body) VALUES (gen_random_uuid(), %s, '')"
    for headers in ("{}", "poison"):
        place.sql(put, headers)

    got = received(place, messages=10, url=granted["reader"], errors="error")

    assert len(got) == 1
    assert place.sql(f'SELECT headers FROM "{place.schema}".error') == [("poison",)]


def test_a_sender_sends_exactly_once_and_publishes(
    place: Place, granted: dict[str, str], queue: str, run: Any
) -> None:
    """Through the staging, to a queue and to a subscriber; it may not look at what waits."""
    table = f'"{place.schema}"."SubscriptionRouting"'
    place.sql(f"INSERT INTO {table} VALUES (%s, 'Lake', 'Shop.Placed')", queue)
    given = {"url": granted["sender"], "stateSchema": place.state, "subscriptionTable": table}
    batch = pa.RecordBatch.from_pydict({"body": [b"x"]})
    for which, to in enumerate(({"queue": queue}, {"topics": "Shop.Placed"})):
        options = SinkOptions.parse(given | to)
        with Session(options, "sender") as session:
            chunks = Sender(options=options, partition=0).chunks([batch])
            staged = staging.stage(session, chunks, sink=f"app:{which}", batch=0)
            dispatch.dispatch(session.open(), [staged], options)

    assert place.sql(f"SELECT body FROM {queue}") == [(b"x",)] * 2
    assert run("browse", queue, "--url", granted["sender"])[0] == 3


def test_an_operator_may_run_the_commands(
    place: Place, granted: dict[str, str], queue: str, run: Any
) -> None:
    """All but those that make tables."""
    url = ("--url", granted["operator"])
    state = ("--state-schema", place.state)
    table = ("--subscription-table", f'"{place.schema}"."SubscriptionRouting"')
    error = f'"{place.schema}"."error"'
    assert run("send", error, *url, stdin='{"body": "1"}')[0] == 0
    assert run("send", queue, *url, stdin='{"body": "1"}\n{"body": "2", "delay": 0}')[0] == 0
    assert run("move-due", queue, *url)[0] == 0
    received(place, messages=2)
    returned = ("receipts", "return", "--stream", STREAM, "--yes")
    topic = ("Shop.Placed", "--endpoint", "Lake")

    ends = [
        run(*words, *url)[0]
        for words in (
            ("stats", queue, *state),
            ("browse", error),
            ("receipts", "list", *state),
            (*returned, *state),
            ("purge-expired", queue),
            ("purge", queue, "--yes"),
            ("subscribe", *topic, "--queue", queue, *table),
            ("unsubscribe", *topic, *table),
            ("doctor", queue, error, *state),
        )
    ]

    assert ends == [0] * len(ends)
    assert run("create", f'"{place.schema}"."other"', *url)[0] == 3


def test_an_installer_makes_queues_and_is_told_that_the_state_tables_are_there(
    place: Place, granted: dict[str, str], queue: str, run: Any
) -> None:
    """Queues beside those that are there; what waits is none of its business."""
    url = ("--url", granted["installer"])
    other = f'"{place.schema}"."other"'

    code, _, error = run("install", "--state-schema", place.state, *url)
    assert code == 3
    assert f"belongs to {place.schema}_owner" in error
    assert "If a DBA's script created these tables, you need not install anything" in error
    for words in (
        ("create", queue),
        ("create", other, "--delayed", "--body-string"),
        ("create", other, "--delayed", "--body-string"),
    ):
        code, _, error = run(*words, *url)
        assert (code, error) == (0, "")
    assert run("browse", queue, *url)[0] == 3
