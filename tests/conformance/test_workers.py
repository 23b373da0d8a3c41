"""What each kind of task leaves behind in Spark's worker, which runs many tasks."""

from __future__ import annotations

import gc
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from sqlq_spark import spark_api
from sqlq_spark.datasource.browse import BrowseReader
from sqlq_spark.datasource.stream import StreamReader
from sqlq_spark.datasource.write import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench

BODY = StructType([StructField("body", BinaryType())])


def receive(bench: Bench) -> None:
    reader = StreamReader(bench.source_options(), BODY)
    with closing(reader.driver):
        end = reader.latestOffset(reader.initialOffset())
        (partition,) = reader.partitions(reader.initialOffset(), end)
    assert [batch.num_rows for batch in reader.read(partition)] == [1]


def browse(bench: Bench) -> None:
    reader = BrowseReader(bench.source_options(), BODY)
    (partition,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(partition)] == [1]


def write(bench: Bench, **options: str) -> None:
    writer = BatchWriter(bench.sink_options(**options), BODY)
    writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"2"]})]))


def write_at_least_once(bench: Bench) -> None:
    write(bench, delivery="atLeastOnce")


@pytest.mark.parametrize("task", [receive, browse, write, write_at_least_once])
def test_a_task_spares_the_modules_that_it_has_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, task: Callable[[Bench], None]
) -> None:
    """Otherwise the worker would look at all of them after each task."""
    bench.dotnet.send_many(bench.queue, [b"1"])
    spared: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: spared.append(None))
    spark_api.spare_modules.cache_clear()

    task(bench)

    assert len(spared) == 1
