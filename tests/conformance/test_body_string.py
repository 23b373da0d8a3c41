"""The body as text: read where the table has it, kept in receipts, null in those made without."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from sqlq_spark.database import schema, transaction
from sqlq_spark.errors import BodyStringMissing
from sqlq_spark.receive import browse, receipts
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import QUEUE_ROW, record_batches

from .conftest import TIMEOUT, Bench

TEXT = {"text", "nvarchar"}  # a type that is text in one of the databases
SPARK = pa.schema([pa.field("body", pa.binary()), pa.field("bodyString", pa.string())])


@pytest.fixture
def texts(bench: Bench) -> Bench:
    """Give a queue with the column."""
    schema.create_queue(bench.desk, bench.queue, timeout=TIMEOUT, body_string=True)
    return bench


def shown(rows: pa.Table) -> list[str | None]:
    """The column as Spark gets it."""
    batches = [to_read_columns(chunk, SPARK, queue="q") for chunk in record_batches(rows)]
    return [text for batch in batches for text in batch.column("bodyString").to_pylist()]


def send(bench: Bench, *texts: str) -> None:
    """Send bodies of which the column is these texts, as an endpoint that does not name it."""
    bench.dotnet.send_many(bench.queue, [bench.dotnet.dba.shapes.text_body(each) for each in texts])


def test_the_column_is_made_once_and_under_the_lock(bench: Bench) -> None:
    """In a new table and in one that has rows, by two installers at once; the endpoint goes on."""
    new = QueueAddress("new", bench.dotnet.schema)
    bench.dotnet.send(bench.queue, body=b"before")

    def work() -> None:
        connection = bench.open("installer")
        for queue in (new, bench.queue):
            schema.create_queue(connection, queue, timeout=TIMEOUT, body_string=True)

    for done in [bench.thread(work) for _ in range(3)]:
        done.result(timeout=TIMEOUT)

    assert {bench.desk.columns(queue)["bodystring"] for queue in (new, bench.queue)} <= TEXT
    assert bench.bodies() == [b"before"]
    assert bench.dotnet.receive(bench.queue) is not None


def test_a_task_hands_out_the_text_and_its_replay_does_too(texts: Bench) -> None:
    """As the database writes it: bytes that are no ASCII as escapes, or all of them as UTF-16."""
    bodies = texts.dotnet.dba.shapes.texts
    send(texts, *bodies.values())
    task = texts.task(texts.new_stream(), body_string=True)

    got = texts.receive(task)

    assert shown(got) == list(bodies.values())
    assert texts.receive(task).equals(got)
    assert texts.seqs() == []


def test_a_receipt_that_was_made_without_the_text_is_replayed_with_null(texts: Bench) -> None:
    """The option came with a restart; and one made with it serves a stream that went without."""
    send(texts, "1", "2")
    stream = texts.new_stream()
    without = texts.task(stream, batch=1, messages=1)
    with_text = texts.task(stream, batch=2, body_string=True)
    before = [texts.receive(without), texts.receive(with_text)]

    after = [
        texts.receive(texts.task(stream, batch=1, body_string=True)),
        texts.receive(texts.task(stream, batch=2)),
    ]

    assert [shown(rows) for rows in after] == [[None], ["2"]]
    assert [one.equals(two) for one, two in zip(before, after, strict=True)] == [True, True]


def test_a_receipt_with_the_text_is_returned_without_it(texts: Bench) -> None:
    """The table computes it again; the batch after it is empty, and has the column too."""
    send(texts, "1")
    stream, other = texts.new_stream(), texts.new_stream()
    texts.receive(texts.task(stream, body_string=True))

    with transaction(texts.desk, timeout=TIMEOUT):
        receipts.return_(texts.desk, stream, 1, 0, texts.queue)

    assert shown(texts.receive(texts.task(other, body_string=True))) == ["1"]
    nothing = texts.receive(texts.task(other, batch=2, body_string=True))
    assert nothing.schema.names == [*QUEUE_ROW.names, "bodystring"]


def test_the_text_counts_as_weight(texts: Bench) -> None:
    """A byte may be four of its text, or half of it: a task's memory holds both."""
    texts.dotnet.send_many(texts.queue, [b"\xff" * 1000] * 8)
    stream = texts.new_stream()

    light = texts.task(stream, batch=1, bytes=2500)
    heavy = texts.task(stream, batch=2, bytes=2500, body_string=True)

    assert texts.receive(light).num_rows == 3
    assert texts.receive(heavy).num_rows == {"postgresql": 1, "sqlserver": 2}[texts.dotnet.dialect]


def test_poison_and_expired_messages_are_diverted_with_the_column_too(texts: Bench) -> None:
    """The error queue need not have it."""
    texts.dotnet.send(texts.queue, "[]", b"poison")
    texts.dotnet.send(texts.queue, body=b"gone", lives=-1)
    send(texts, "good")

    task = texts.task(texts.new_stream(), body_string=True, errors=texts.errors)

    assert shown(texts.receive(task)) == ["good"]
    assert texts.bodies(texts.errors) == [b"poison"]


def test_a_browse_shows_the_text(texts: Bench) -> None:
    """Only where it is asked for."""
    found = list(texts.dotnet.dba.shapes.texts.values())
    send(texts, *found)
    read = partial(browse.pages, texts.desk, texts.queue, 1, 99, narrow=False, timeout=TIMEOUT)

    (page,) = read(body_string=True)
    (without,) = read()

    assert shown(page) == found
    assert without.schema.equals(QUEUE_ROW)


def test_the_error_of_a_table_without_the_column_has_what_adds_it(bench: Bench) -> None:
    """Nothing is taken; the statement of the error can be run."""
    send(bench, "1")
    task = bench.task(bench.new_stream(), body_string=True)

    with pytest.raises(BodyStringMissing) as caught:
        bench.receive(task)

    assert f"`sqlqueue create '{bench.printed}' --body-string`" in str(caught.value)
    assert len(bench.seqs()) == 1
    bench.dotnet.dba.run(caught.value.args[1])
    assert shown(bench.receive(task)) == ["1"]
