"""One query that reads a queue by two streams fails, because each would get a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


def by_columns(queue: SparkQueue) -> DataFrame:
    """Join a stream with itself by a column of its name."""
    audit = queue.stream().load().select("seq", "headers")
    return audit.join(audit, "seq")


def by_alias(queue: SparkQueue) -> DataFrame:
    """Join a stream with itself by two aliases."""
    audit = queue.stream().load().select("seq", "headers")
    joined = audit.alias("a").join(audit.alias("b"), F.expr("a.seq = b.seq"))
    return joined.select("a.seq", "b.headers")


def by_sql(queue: SparkQueue) -> DataFrame:
    """Join a view of a stream with itself."""
    queue.stream().load().createOrReplaceTempView("audit")
    return queue.spark.sql("SELECT a.seq, b.headers FROM audit a JOIN audit b ON a.seq = b.seq")


def two_loads(queue: SparkQueue) -> DataFrame:
    """Unite two reads of one queue, one of which reads another queue too."""
    names = f"{queue.name},{queue.beside('other').name}"
    reader = queue.spark.readStream.format("sqlqueue").options(**queue.database_options)
    both = reader.option("queues", names).load()
    return queue.stream().load().select("seq", "headers").union(both.select("seq", "headers"))


@pytest.mark.parametrize("make", [by_columns, by_alias, by_sql, two_loads])
def test_two_streams_on_one_queue_are_an_error(
    queue: SparkQueue, make: Callable[[SparkQueue], DataFrame]
) -> None:
    """No row reaches the sink, a second start fails as well, and no message is lost."""
    queue.another("other")
    queue.fill(0, 10)
    seen: list[str] = []
    writer = make(queue).writeStream.foreachBatch(lambda rows, _: seen.extend(message_ids(rows)))

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"reads queue .* by two streams"):
            finish(writer, queue.checkpoint)

    held = queue.dotnet.state_rows("receipt", "messages")
    assert seen == []
    assert queue.count() + sum(messages for (messages,) in held) == 10


@pytest.mark.parametrize("form", ["renamed", "union", "cte"])
def test_a_stream_that_spark_keeps_as_one_is_received_once(queue: SparkQueue, form: str) -> None:
    """Such are a join of renamed sides, a union with itself, and a common expression."""
    queue.fill(0, 10)
    audit = queue.stream().load()
    if form == "renamed":
        left = audit.select(F.col("seq").alias("left_seq"), "headers")
        right = audit.select(F.col("seq").alias("right_seq"))
        rows = left.join(right, F.expr("left_seq = right_seq"))
        copies = 1
    elif form == "union":
        rows = audit.union(audit)
        copies = 2
    else:
        audit.createOrReplaceTempView("audit")
        rows = queue.spark.sql(
            "WITH t AS (SELECT * FROM audit) SELECT * FROM t UNION ALL SELECT * FROM t"
        )
        copies = 2
    seen: list[str] = []

    finish(
        rows.writeStream.foreachBatch(lambda batch, _: seen.extend(message_ids(batch))),
        queue.checkpoint,
    )

    assert sorted(seen) == sorted(numbered(0, 10) * copies)
    assert [queue.count(), queue.state("receipt")] == [0, 0]
