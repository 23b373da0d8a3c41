"""The commands that subscribe, and what the script grants to a publisher."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from test_cli import as_role, drop_roles, run

from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import dispatch, staging
from sqlq_spark.send.messages import Sender

if TYPE_CHECKING:
    from conftest import Place

__all__ = ["run"]  # a fixture
TABLE = "--subscription-table"


@pytest.fixture
def queue(place: Place, run: Any) -> str:
    """Give the address of a new queue."""
    made = f'"{place.schema}"."Shop.Web"'
    assert run("create", made)[0] == 0
    return made


@pytest.fixture
def table(place: Place) -> str:
    """Give the address of a table of subscriptions that is not there yet."""
    return f'"{place.schema}"."SubscriptionRouting"'


def test_subscribe_makes_the_table_and_can_be_run_again(
    run: Any,
    place: Place,
    table: str,
    queue: str,
) -> None:
    """An operator need not know whether it was done before; a newer queue takes the place."""
    other = f'"{place.schema}"."other"'
    run("create", other)
    words = ("subscribe", "Shop.Placed", "--endpoint", "Shop.Web", TABLE, table, "--queue")

    first, again, newer = run(*words, other), run(*words, queue), run(*words, queue)

    assert [first[0], again[0], newer[0]] == [0, 0, 0]
    assert newer[1] == f"Shop.Web is subscribed to Shop.Placed with {queue}\n"
    assert place.sql(f"SELECT topic, endpoint, queueaddress FROM {table}") == [
        ("Shop.Placed", "Shop.Web", queue)
    ]


def test_subscribers_are_listed_for_people_and_for_programs(
    run: Any,
    place: Place,
    table: str,
    queue: str,
) -> None:
    """All, or those of one topic; strangers' names are shown without control characters."""
    words = ("--endpoint", "Shop.Web", TABLE, table, "--queue", queue)
    run("subscribe", "Shop.Placed", *words)
    place.sql(f"INSERT INTO {table} VALUES ('x', E'odd\\x1b[31m', 'Shop.IEvent')")

    _, shown, _ = run("subscribers", TABLE, table)
    _, lines, _ = run("subscribers", "Shop.Placed", "--json", TABLE, table)
    _, none, _ = run("subscribers", "Shop.Nothing", TABLE, table)

    assert "odd·[31m" in shown
    assert "Shop.Placed" in shown
    assert json.loads(lines) == {"topic": "Shop.Placed", "endpoint": "Shop.Web", "address": queue}
    assert none == "no subscriptions\n"


def test_unsubscribe_says_whether_there_was_a_subscription(
    run: Any,
    place: Place,
    table: str,
    queue: str,
) -> None:
    """A misspelt topic or endpoint must not pass for done."""
    words = ("--endpoint", "Shop.Web", TABLE, table)
    run("subscribe", "Shop.Placed", *words, "--queue", queue)

    wrong, right = (
        run("unsubscribe", "Shop.placed", *words),
        run("unsubscribe", "Shop.Placed", *words),
    )

    assert wrong[0] == 1
    assert wrong[2].startswith("Shop.Web is not subscribed to Shop.placed")
    assert right[:2] == (
        0,
        "Shop.Web is no longer subscribed to Shop.Placed; publishers stop within 5 seconds\n",
    )
    assert place.sql(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("subscribers",), 3, "the subscription table"),
        (("unsubscribe", "a", "--endpoint", "b"), 3, "the subscription table"),
        (("subscribe", "a", "--endpoint", "b", "--queue", "no where"), 3, "sqlqueue create"),
        (("subscribe", "a, b", "--endpoint", "b", "--queue", "q"), 2, "a type's full name, as a"),
        (("subscribe", "a", "--endpoint", "", "--queue", "q"), 2, "option endpoint is ''"),
        (("subscribe", "a", "--endpoint", "b", "--queue", '"q'), 2, "option --queue is '\"q'"),
        (("subscribe", "a", "--endpoint", "b"), 2, "--queue"),
        (("subscribers", TABLE, ""), 2, "option --subscription-table is ''"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(
    run: Any,
    table: str,
    words: tuple[str, ...],
    code: int,
    sentence: str,
) -> None:
    """2 for what we were given, 3 for what the database said; nothing is made."""
    found, _, error = run(*words, *(() if TABLE in words else (TABLE, table)))

    assert found == code
    assert sentence in error
    assert "Traceback" not in error


def test_the_scripts_rights_are_enough_to_publish(run: Any, place: Place, table: str) -> None:
    """It makes the table as `subscribe` does; a sender reads it, and cannot subscribe."""
    queue, sender = f'"{place.schema}"."Shop.Web"', f"{place.schema}_s"
    roles = ("--reader", f"{place.schema}_r", "--sender", sender)
    words = (queue, TABLE, table, "--state-schema", place.state, *roles)
    text = run("script", *words)[1]
    try:
        for _ in range(2):  # it may be run again
            place.connection.execute(text.encode())
        subscribed = ("Shop.Placed", "--endpoint", "web", "--queue", queue, TABLE, table)
        assert run("subscribe", *subscribed)[0] == 0
        given = {
            "url": as_role(place.url, sender),
            "stateSchema": place.state,
            "topics": "Shop.Placed",
            "subscriptionTable": table,
        }
        options = SinkOptions.parse(given)
        batch = pa.RecordBatch.from_pydict({"body": [b"x"]})
        with Session(options, "sender") as session:
            chunks = Sender(options=options, partition=0).chunks([batch])
            staged = staging.stage(session, chunks, sink="app:s", batch=0)
            dispatch.dispatch(session.open(), [staged], options)

        assert place.sql(f"SELECT body FROM {queue}") == [(b"x",)]
        code, _, error = run("subscribe", *subscribed, "--url", as_role(place.url, sender))
        assert code == 3
        assert f"GRANT SELECT, INSERT, UPDATE ON {table} TO the_user" in error
        assert "SubscriptionRouting" not in run("script", queue)[1]
    finally:
        drop_roles(place)
