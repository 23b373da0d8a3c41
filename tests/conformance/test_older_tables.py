"""Tables that another release, or a DBA, made otherwise: columns go by name, and only by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sqlq_spark.admin import checks
from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.database import transaction
from sqlq_spark.errors import NotAQueue, QueueNotFound
from sqlq_spark.receive import browse, receipts
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import dispatch, insert
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench
from .shapes import cases
from .test_send import chunk


def alter(bench: Bench, text: str) -> None:
    """Run statements of the DBA on both queues."""
    for queue in (bench.queue, bench.errors):
        bench.dotnet.dba.on(queue, text)


def browsed(bench: Bench, queue: QueueAddress) -> list[dict[str, Any]]:
    """What a browse shows of a queue."""
    return [
        row
        for _, first, stop in browse.parts(bench.desk, [queue], parts=2)
        for page in browse.pages(bench.desk, queue, first, stop, narrow=False)
        for row in page.to_pylist()
    ]


@pytest.mark.parametrize("otherwise", cases("otherwise"))
def test_a_table_that_was_made_otherwise_is_a_queue(bench: Bench, otherwise: str) -> None:
    """It is planned, received from, diverted into, returned to, browsed, sent to and purged."""
    dotnet = bench.dotnet
    alter(bench, dotnet.dba.shapes.otherwise[otherwise])
    sent = dotnet.send(bench.queue, '{"a":"b"}', b"good", lives=3_600_000)
    dotnet.send(bench.queue, "[]", b"poison")
    dotnet.send(bench.queue, body=b"gone", lives=-1)

    shown = browsed(bench, bench.queue)
    loop = bench.loop(errorQueue=bench.desk.printed(bench.errors), maxConcurrency="1")
    end, (rows,) = bench.batch(loop)
    with transaction(bench.desk, timeout=TIMEOUT):
        receipt = str(end.stream), end.batch, 0
        returned = receipts.return_(bench.desk, receipt, bench.queue)
    with bench.session("sink") as session:
        staged = dispatch.stage(session, [chunk(b"ours", lives=-1)], sink="s", batch=0)
        dispatch.dispatch(bench.desk, [staged], bench.sink())

    assert [row["body"] for row in shown] == [b"good", b"poison", b"gone"]
    assert shown[0]["id"] == sent.bytes
    assert rows["body"].to_pylist() == [b"good"]
    assert rows["headers"].to_pylist() == ['{"a":"b"}']
    assert rows["expires"].to_pylist() == [shown[0]["expires"]]
    assert [row.body for row in dotnet.rows(bench.errors)] == [b"poison"]
    assert returned == 1
    assert bench.bodies() == [b"good", b"ours"]
    assert dotnet.rows(bench.queue)[0].id == sent
    assert list(purge_expired(bench.desk, bench.queue)) == [1]
    got = dotnet.receive(bench.queue)
    assert got is not None
    assert got.body == b"good"


def test_the_doctor_has_nothing_against_a_table_that_works(bare: Bench) -> None:
    """Wider columns, more of them and another order are no fault."""
    shapes = bare.dotnet.dba.shapes
    for name, text in shapes.otherwise.items():
        alter(bare, shapes.plain)
        bare.dotnet.dba.expires_index(bare.queue, there=bare.dotnet.dialect == "sqlserver")
        alter(bare, text)

        found = checks.of_any_queue(bare.desk, bare.queue)

        assert found == [], name


@pytest.mark.parametrize("how", cases("no_queue"))
def test_a_table_that_is_no_queue_is_refused(bench: Bench, how: str) -> None:
    """Names in quotes and capitals are other names, to endpoints too; nothing is taken from it."""
    bench.dotnet.send(bench.queue)
    alter(bench, bench.dotnet.dba.shapes.no_queue[how])

    with pytest.raises(NotAQueue, match="is not a queue: "):
        bench.loop().latest(INITIAL)
    with pytest.raises(NotAQueue):
        bench.receive(bench.task(None))
    with pytest.raises(NotAQueue):
        browsed(bench, bench.queue)


def test_nothing_is_sent_to_a_table_that_is_no_queue(bare: Bench) -> None:
    """A message may name any table of the database as its destination."""
    names = ["id", "expires", "headers", "body"]
    for name in names:
        bare.dotnet.dba.rename(bare.queue, name, "other")
        with bare.session("sink") as session, pytest.raises(NotAQueue) as caught:
            insert.send_now(session, [chunk(b"x")], bare.sink(delivery="atLeastOnce"))
        bare.dotnet.dba.rename(bare.queue, "other", name)

        assert f"is not a queue: it has no column {name}" in str(caught.value)
    assert bare.seqs() == []


def test_a_bulk_insert_distinguishes_a_missing_column_from_a_missing_table(bare: Bench) -> None:
    """The driver gives neither a code."""
    rows = pa.table({"id": [b"0" * 16], "nowhere": ["x"]})
    absent = QueueAddress('column "x" of relation', bare.dotnet.schema)

    with pytest.raises(NotAQueue):
        bare.desk.load(bare.queue, rows)
    with pytest.raises(QueueNotFound):
        bare.desk.load(absent, rows.select(["id"]))
