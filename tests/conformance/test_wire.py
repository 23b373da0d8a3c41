"""
Every row of tests/golden, through the real source and the real sink.

All rows of one kind of table are in it together, so that a row that spoils others is found too.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only
from strict_headers import loads
from wire import Case, cases

from sqlq_spark.receive import browse
from sqlq_spark.receive.forward import find_marked
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire import headers
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import NO_SPARK_BATCH, record_batches

from .shapes import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.receive.batch import TaskResult

    from .conftest import Bench

ALONE_THERE = only("postgresql", "a table that the other has not")
TABLES = [  # None: today's
    pytest.param(table, marks=[] if table in {None, *SQLSERVER.otherwise} else [ALONE_THERE])
    for table in sorted({case.table for case in cases()}, key=str)
]
FIELDS = {
    "id": pa.string(),
    "correlationId": pa.string(),
    "replyToAddress": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "corruptHeaders": pa.string(),
    "body": pa.binary(),
}
MAPS = pa.schema(FIELDS.items())
# If only these columns are read, headers are searched for as text, and no map is made.
ALONE = pa.schema([(name, FIELDS[name]) for name in ("id", "correlationId", "replyToAddress")])
JSON = pa.schema([("id", pa.string()), ("headers", pa.string())])

# what a message must have, and our sink adds where a row does not bring it
ADDED = {
    headers.MESSAGE_ID,
    headers.MESSAGE_INTENT,
    headers.CONVERSATION_ID,
    headers.CORRELATION_ID,
    headers.TIME_SENT,
}

SOUND = [case for case in cases() if not case.poison]


def put(bench: Bench, table: str | None, *, elsewhere: bool = True) -> list[Case]:
    """
    Make a table of a kind, and insert its rows.

    Without `elsewhere` rows for another queue are left out.
    """
    if table is not None:
        bench.dotnet.dba.on(bench.queue, bench.dotnet.dba.shapes.otherwise[table])
    rows = [case for case in cases() if case.table == table or (table is None and case.headers)]
    if not elsewhere:
        rows = [case for case in rows if headers.FORWARD_DESTINATION not in (case.read or {})]
    for case in rows:
        bench.dotnet.send(bench.queue, case.headers, case.body, lives=case.lives, row=case.id)
    return rows


def read(tables: Iterable[pa.Table], schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Columns of rows as Spark gets them, by the row's id."""
    found = [
        row
        for table in tables
        for chunk in record_batches(table)
        for row in to_read_columns(chunk, schema, queue="q").to_pylist()
    ]
    return {row.pop("id"): row for row in found}


def expected(rows: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """The columns that the golden files expect, by the row's id."""
    return {
        str(case.id): {
            **case.columns,
            "headers": None if case.read is None else list(case.read.items()),
            "corruptHeaders": case.headers if case.poison else None,
            "body": case.body,
        }
        for case in rows
    }


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_browsed_and_received_as_it_should(bench: Bench, table: str | None) -> None:
    """Poison is marked. A browse changes nothing, and also shows what has expired."""
    rows = put(bench, table)
    before = bench.dotnet.rows(bench.queue)
    first, stop = (before[0].seq, before[-1].seq + 1) if before else (0, 0)

    pages = browse.read_pages(bench.connection, bench.queue, first, stop, narrow=False)
    assert read(pages, MAPS) == expected(rows)
    assert bench.dotnet.rows(bench.queue) == before

    rows = [case for case in rows if not case.expired]
    tables = [bench.receive(bench.task(bench.new_stream()))]
    assert read(tables, MAPS) == expected(rows)
    assert read(tables, JSON) == {str(case.id): {"headers": case.headers} for case in rows}
    sound = {str(case.id): case.columns for case in rows if not case.poison}
    found = read(tables, ALONE)  # without a map: the same values
    assert {name: found[name] for name in sound} == sound
    assert bench.waiting_seqs() == []


def test_the_search_for_poison_parses_the_headers_for_the_read(bench: Bench) -> None:
    """
    With an error queue the columns come from that parse, and are the same as from another one.

    Where poison was moved away, the rows are not those that were parsed.
    """

    def take() -> TaskResult:
        task = bench.task(bench.new_stream(), error_address=bench.error_queue)
        return receive(bench.connection, task, spark_batch=NO_SPARK_BATCH)

    texts = [case.headers for case in put(bench, None, elsewhere=False) if not case.poison]
    first = take()
    for text in texts:
        if find_marked(pa.chunked_array([[text]], pa.string())) is None:
            bench.dotnet.send(bench.queue, text, b"{}")
    result = take()

    assert first.diverted > 0
    assert first.headers is None
    assert result.headers is not None
    for schema in (MAPS, JSON, ALONE):
        for rows, parsed in zip(record_batches(result.rows), result.headers, strict=True):
            found = to_read_columns(rows, schema, queue="q", headers=parsed)
            assert found.equals(to_read_columns(rows, schema, queue="q"))


def sent(bench: Bench, column: pa.Array, bodies: list[bytes]) -> list[tuple[str, bytes | None]]:
    """Headers and bodies as they are in the queue after they went through the staging."""
    frame = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), "headers": column})
    sender = Sender(
        options=bench.sink_options(),
        partition=0,
        seed=bytes(16),
        sent=datetime(2026, 6, 30, 17, 5, 9, 123456, UTC),
    )
    staged = dispatch.stage(bench.new_session(), sender.chunks([frame]), sink="sink", sink_batch=0)
    dispatch.dispatch(bench.connection, [staged], bench.sink_options())
    return [(row.headers or "", row.body) for row in bench.dotnet.rows(bench.queue)]


def repeats_a_name(text: str | None) -> bool:
    """Whether endpoints up to 9.0 fail on a header text."""
    names = [name for name, _ in json.loads(text or "{}", object_pairs_hook=list)]
    return len(names) > len(set(names))


@pytest.mark.parametrize("kind", ["map", "json"])
def test_every_row_is_written_so_that_an_endpoint_reads_the_same(bench: Bench, kind: str) -> None:
    """
    The bytes are those of the 9.1 writer, alone or after added headers.

    JSON in which each name is there once stays as it is.
    """
    maps = [list((case.read or {}).items()) for case in SOUND]
    column = {
        "map": pa.array(maps, FIELDS["headers"]),
        "json": pa.array([case.headers for case in SOUND], pa.string()),
    }[kind]

    found = sent(bench, column, [case.body or b"" for case in SOUND])

    for case, (text, body) in zip(SOUND, found, strict=True):
        written = loads(text)
        assert {name: written[name] for name in case.read or {}} == case.read, case.name
        assert body == (case.body or b""), case.name  # never NULL
        if case.whole:
            assert text == case.headers, case.name
        elif case.whole is not None or (kind == "json" and not repeats_a_name(case.headers)):
            inside = (case.headers or "{}").strip()[1:-1]
            assert text.endswith(inside + "}"), case.name
        if case.whole is False and kind == "map":
            # a message with TimeSent comes from another sender, who decides about its trace
            is_ours = headers.TIME_SENT not in (case.read or {})
            added = ADDED | ({headers.START_NEW_TRACE} if is_ours else set())
            assert set(written) == added | set(case.read or {}), case.name
