"""The option includeBodyString: a column of a browse and of a stream, only where asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark.stand import Queue, finish
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.columns import columns

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.spark
def test_the_body_as_text_is_read_where_it_is_asked_for(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """The last column of a read, beside all others or alone."""
    queue.create(body_string=True)
    shapes = queue.dba.shapes
    bodies = [shapes.text_body("1"), shapes.text_body("good")]
    for body in bodies:
        queue.put("{}", body)
    got: list[Any] = []

    def keep(frame: DataFrame, _: int) -> None:
        got.extend(frame.collect())

    alone = queue.reader(spark, includeBodyString="TRUE").load().select("bodyString").collect()
    stream = queue.stream(spark, includeBodyString=True, maxConcurrency=1).load()
    finish(stream.writeStream.foreachBatch(keep), tmp_path / "checkpoint")

    texts = ["1", "good"]
    assert sorted(row.bodyString for row in alone) == texts
    assert stream.columns[-1] == "bodyString"
    assert [row.bodyString for row in got] == texts
    assert [bytes(row.body) for row in got] == bodies


@pytest.mark.parametrize("form", ["map", "json"])
def test_a_read_has_no_such_column_by_default(form: str) -> None:
    """With either form of the headers it comes only by the option."""
    raw = {"url": "postgresql://", "queue": "q", "headersFormat": form}

    without = columns(SourceOptions.parse(raw))
    with_it = columns(SourceOptions.parse(raw | {"includeBodyString": "true"}))

    assert "bodyString" not in without
    assert with_it == without | {"bodyString": "string"}
