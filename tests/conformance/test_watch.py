"""Looks at a queue beside its endpoint: what waits, is delayed, flows; and what a purge leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark.admin import checks, inspect, purge, report, watch
from sqlq_spark.database import schema, transaction
from sqlq_spark.wire.headers import dumps, wire_time

from .conftest import TIMEOUT, Bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.problems import Finding

MESSAGE = {"headers": pa.string(), "body": pa.binary(), "due": pa.timestamp("us", "UTC")}
DELAYED = pa.schema(list(MESSAGE.items()))


def look(bench: Bench) -> watch.QueueLook:
    """Look at the queue."""
    return watch.look_at(bench.desk, bench.queue, bench.source(), {})


def counts(before: watch.QueueLook, now: watch.QueueLook) -> tuple[int | None, int | None]:
    """How many messages came and went between two looks."""
    assert before.at is not None
    assert now.at is not None
    its, seconds = watch.flow(before, now), (now.at - before.at).total_seconds()
    rates = (its.incoming, its.outgoing)
    came, went = (None if rate is None else round(rate * seconds) for rate in rates)
    return came, went


def delay(bench: Bench, seconds: Sequence[float] = ()) -> None:
    """Make the table of delayed messages, and let some wait, who are due in so many seconds."""
    schema.create_delayed(bench.desk, bench.queue)
    table = schema.delayed_of(bench.queue)
    for at, each in enumerate(seconds):
        due = bench.dotnet.clock().replace(tzinfo=UTC) + timedelta(seconds=each)
        row = {"headers": "{}", "body": b"%d" % at, "due": due}
        with transaction(bench.desk, timeout=TIMEOUT):
            bench.desk.load(table, pa.Table.from_pylist([row], DELAYED))


def test_what_came_and_went_between_two_looks_is_counted(bare: Bench) -> None:
    """Also where all that came is gone, and where nothing ever waited at a look."""
    first = look(bare)
    bare.dotnet.send_many(bare.queue, [b"x"] * 5)
    second = look(bare)
    for _ in range(3):
        bare.dotnet.receive(bare.queue)
    bare.dotnet.send_many(bare.queue, [b"y"] * 4)
    third = look(bare)
    while bare.dotnet.receive(bare.queue):
        pass
    bare.dotnet.send(bare.queue)
    bare.dotnet.receive(bare.queue)
    fourth = look(bare)

    assert counts(first, second) == (None, None)  # no seq was ever given out before
    assert counts(second, third) == (4, 3)
    assert counts(third, fourth) == (1, 7)
    assert watch.flow(None, first) == first


def test_a_look_finds_since_when_the_lowest_waits(bare: Bench) -> None:
    """By the database's clock and the header; nothing where that cannot be read."""
    sent = bare.dotnet.clock().replace(tzinfo=UTC) - timedelta(seconds=90)
    assert look(bare).oldest is None

    bare.dotnet.send(bare.queue, dumps({"NServiceBus.TimeSent": wire_time(sent)}))
    bare.dotnet.send(bare.queue, "{}")

    assert 85 < (look(bare).oldest or 0) < 120
    bare.dotnet.receive(bare.queue)
    assert look(bare).oldest is None


def delayed_findings(bench: Bench) -> list[Finding]:
    """What the doctor finds in the table of delayed messages."""
    found = checks.of_any_queue(bench.desk, bench.queue)
    return [each for each in found if each.where.count(".Delayed")]


@only("postgresql", "the DBA's statements")
@pytest.mark.parametrize(
    ("make", "name", "severity"),
    [
        ('DROP INDEX "{schema}"."orders.Delayed_Due"', "due_index", "warning"),
        ("ALTER TABLE {table} DROP COLUMN body", "delayed_column", "error"),
        ("ALTER TABLE {table} SET (autovacuum_enabled = off)", "delayed_autovacuum", "error"),
    ],
)
def test_what_is_wrong_with_delayed_messages_is_found_and_its_fix_works(
    bare: Bench, make: str, name: str, severity: str
) -> None:
    """Nothing is wrong without the table, and with one as we make it."""
    assert delayed_findings(bare) == []
    delay(bare)
    assert delayed_findings(bare) == []
    table = bare.desk.printed(schema.delayed_of(bare.queue))
    bare.dotnet.dba.run(make.format(table=table, schema=bare.dotnet.schema))

    (found,) = delayed_findings(bare)

    assert (found.name, found.severity, found.where) == (name, severity, table)
    bare.dotnet.dba.run(found.fix)
    assert delayed_findings(bare) == []


def test_a_purge_in_batches_deletes_what_was_measured(bare: Bench) -> None:
    """In whole batches; what is sent meanwhile stays; of an empty queue there is none."""
    empty = look(bare).depth
    assert list(purge.purge_parts(bare.desk, bare.queue, empty)) == []
    bare.dotnet.send_many(bare.queue, [b"x"] * 25)
    with transaction(bare.desk, timeout=TIMEOUT):
        depth = inspect.depth(bare.desk, bare.queue)
    bare.dotnet.send(bare.queue, body=b"new")

    batches = purge.purge_parts(bare.desk, bare.queue, depth, batch=10)
    first = next(batches)
    left = len(bare.seqs())

    assert (first, left) == (9, 17)
    assert first + sum(batches) == 25
    assert bare.bodies() == [b"new"]


def test_failures_are_grouped_by_exception(bare: Bench) -> None:
    """With where, when first and last, and an example of what was said."""
    moments = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (2, 1, 3)]
    for moment, kind in zip(moments, ("A.X", "A.X", "A.Y"), strict=True):
        failure = {
            "NServiceBus.ExceptionInfo.ExceptionType": kind,
            "NServiceBus.ExceptionInfo.Message": "no stock",
            "NServiceBus.FailedQ": "Shop",
            "NServiceBus.TimeOfFailure": wire_time(moment),
        }
        bare.dotnet.send(bare.errors, dumps(failure))
    bare.dotnet.send(bare.errors)

    look = watch.look(bare.desk, [bare.printed, bare.desk.printed(bare.errors)], bare.source())
    (found,) = report.find_failures(bare.desk, look, are_named=True)

    x, y, none = found["groups"]
    assert (x["exception"], x["messages"], x["queues"]) == ("A.X", 2, {"Shop": 2})
    assert (x["first"], x["last"], x["example"]) == (moments[1], moments[0], "no stock")
    assert (none["exception"], y["exception"]) == ("(none)", "A.Y")
    assert (found["messages"], found["read"]) == (4, 4)
