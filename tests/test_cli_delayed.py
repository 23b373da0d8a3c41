"""The command line's part in delayed delivery: tables, sending, moving."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import test_cli
from waiting import until

from sqlq_spark.wire.headers import DELIVER_AT, FORWARD_DESTINATION

if TYPE_CHECKING:
    from conftest import Place

run = test_cli.run


@pytest.fixture
def orders(place: Place, run: Any) -> str:
    """Give the address of a new queue whose messages can be delayed."""
    queue = f'"{place.schema}"."Shop.Orders"'
    for _ in range(2):  # it may be run again
        assert run("create", queue, "--delayed")[0] == 0
    return queue


def table(place: Place) -> str:
    """The table of delayed messages."""
    return f'"{place.schema}"."Shop.Orders.Delayed"'


def store(place: Place, body: str, seconds: float) -> None:
    """Delay a message, on a server in UTC."""
    place.sql(
        f"INSERT INTO {table(place)} (headers, body, due)"
        " VALUES ('{}', %s::text::bytea, now() + make_interval(secs => %s))",
        body,
        seconds,
    )


def bodies(place: Place, where: str) -> list[str]:
    """What a table holds."""
    found = place.sql(f"SELECT convert_from(body, 'UTF8') FROM {where} ORDER BY 1")
    return [str(body) for (body,) in found]


def test_script_makes_the_same_tables_and_grants_what_they_need(
    run: Any, orders: str, place: Place
) -> None:
    """To the mover and to the sender; a queue without delays gets neither."""
    shape = (
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = %s "
        "UNION ALL SELECT table_name, column_name || data_type || is_nullable ||"
        " coalesce(column_default, '') FROM information_schema.columns"
        " WHERE table_schema = %s ORDER BY 1, 2"
    )
    created = place.sql(shape, place.schema, place.schema)
    place.sql(f"DROP TABLE {orders}, {table(place)}")
    names = {"--reader": f"{place.schema}_r", "--sender": f"{place.schema}_s"}
    roles = [word for pair in names.items() for word in pair]
    words = ("script", orders, "--state-schema", place.state, *roles)
    text = run(*words, "--delayed")[1]

    try:
        for _ in range(2):
            place.connection.execute(text.encode())

        assert place.sql(shape, place.schema, place.schema) == created
        rights = (
            "SELECT has_table_privilege(%s, %s, 'DELETE'), has_table_privilege(%s, %s, 'INSERT')"
        )
        stream, sender = names.values()
        assert place.sql(rights, stream, table(place), stream, orders) == [(True, True)]
        assert place.sql(rights, sender, table(place), sender, table(place)) == [(False, True)]
        assert "Delayed" not in run(*words)[1]
    finally:
        test_cli.drop_roles(place)


def test_lines_may_be_delayed(run: Any, orders: str, place: Place) -> None:
    """By a span, by milliseconds or until a moment; the others are sent at once."""
    told = [
        {"body": "a", "delay": "01:00:00"},
        {"body": "b", "delay": 5000},
        {"body": "c", "deliverAt": "2345-06-07T10:09:10.111213+02:00"},
        {"body": "d"},
    ]

    code, text, _ = run("send", orders, stdin="\n".join(map(json.dumps, told)))

    assert (code, text) == (0, f"4 messages sent to {orders}, 3 of them delayed\n")
    assert bodies(place, orders) == ["d"]
    assert bodies(place, table(place)) == ["a", "b", "c"]
    text = f"SELECT headers, due::text FROM {table(place)} ORDER BY due DESC LIMIT 1"
    headers, due = place.sql(text)[0]
    assert json.loads(headers)[DELIVER_AT] == "2345-06-07 08:09:10:111213 Z"
    assert json.loads(headers)[FORWARD_DESTINATION] == orders
    assert due.startswith("2345-06-07 08:09:10.111213")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"delay": -1}, "delay is neither"),
        ({"delay": 1.5}, "delay is neither"),
        ({"delay": "-00:00:01"}, "delay '-00:00:01' is negative"),
        ({"delay": "1e9"}, "delay '1e9' cannot be read"),
        ({"delay": "9999999.00:00:00"}, "is longer than 365000.00:00:00"),
        ({"deliverAt": "2030-01-01T00:00:00"}, "expected a time with its zone"),
        ({"deliverAt": "soon"}, "expected a time with its zone"),
        ({"deliverAt": 20300101}, "expected a time with its zone"),
        ({"deliverAt": "0001-01-01T00:00:00+14:00"}, "outside of the years 1900 to 9998"),
        ({"deliverAt": "9999-12-31T23:59:59-14:00"}, "outside of the years 1900 to 9998"),
        ({"delay": 1, "deliverAt": "2030-01-01T00:00:00Z"}, "both deliverAt and delay"),
        ({"delay": 1, "timeToBeReceived": 1}, "cannot delay a message that expires"),
    ],
)
def test_a_line_that_cannot_be_delayed_is_told(
    run: Any, orders: str, place: Place, line: dict[str, object], told: str
) -> None:
    """By its number; nothing is sent."""
    lines = [{"body": "good"}, {"body": "bad"} | line]

    code, _, error = run("send", orders, stdin="\n".join(map(json.dumps, lines)))

    assert code == 2
    assert error.startswith("line 2 cannot be sent: ")
    assert told in error
    assert bodies(place, orders) == bodies(place, table(place)) == []


def test_move_due_moves_what_is_due_and_ends(run: Any, orders: str, place: Place) -> None:
    """In transactions of a batch; says how much, and when there is more."""
    for at in range(5):
        store(place, f"due {at}", -1)
    store(place, "later", 1000)

    code, text, _ = run("move-due", orders, "--batch", "2")

    assert code == 0
    assert re.fullmatch(
        rf"5 messages moved into {orders} in total; the next is due in 16 min \d+ s\n", text
    )
    assert len(bodies(place, orders)) == 5
    assert bodies(place, table(place)) == ["later"]
    place.sql(f"DELETE FROM {table(place)}")
    said = run("move-due", orders)[1]
    assert said == f"0 messages moved into {orders} in total; no message waits\n"


def test_move_due_tells_what_others_hold(run: Any, orders: str, place: Place) -> None:
    """Not of a time that has gone by."""
    store(place, "due", -1)
    place.sql(f"BEGIN; SELECT FROM {table(place)} FOR UPDATE")

    text = run("move-due", orders)[1]
    place.sql("ROLLBACK")

    assert text.startswith(f"0 messages moved into {orders} in total; more are due, but another")


def test_move_due_tells_programs(run: Any, orders: str, place: Place) -> None:
    """One JSON line."""
    store(place, "due", -1)

    code, text, _ = run("move-due", orders, "--json")

    told = {"queue": orders, "moved": 1, "nextDueSeconds": None, "total": True}
    assert (code, json.loads(text)) == (0, told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_goes_on_until_it_is_stopped(
    run: Any, orders: str, place: Place, number: signal.Signals
) -> None:
    """It wakes at the next due time, and ends with the totals; the process's handlers are back."""
    handler = signal.getsignal(number)
    store(place, "due", -1)
    store(place, "soon", 1)

    def stop() -> None:
        try:
            until(lambda: bodies(place, orders), ["due", "soon"])
        finally:
            os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    code, text, _ = run("move-due", orders, "--watch", "--json")
    stopper.join()

    *rounds, last = (json.loads(line) for line in text.splitlines())
    assert code == 0
    assert sum(each["moved"] for each in rounds) == 2  # in one round on a machine that is slow
    assert [last["moved"], last["total"]] == [2, True]
    assert bodies(place, orders) == ["due", "soon"]
    assert signal.getsignal(number) is handler


def test_move_due_tells_what_is_missing(run: Any, orders: str, place: Place) -> None:
    """The table, by the command that makes it; a zone that there is not."""
    code, _, error = run("move-due", orders, "--endpoint-time-zone", "Mars/Olympus")
    assert code == 2
    assert error.startswith(
        "option --endpoint-time-zone is 'Mars/Olympus': expected the time zone in "
    )

    place.sql(f"DROP TABLE {table(place)}")
    code, _, error = run("move-due", orders)
    assert code == 3
    assert "Create it with `sqlqueue create QUEUE --delayed`" in error
