"""
Reads and writes files of a checkpoint with Spark, because only Spark may reach them.

They may be in object storage, in HDFS or in a volume. With Spark Connect they are on the server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row, SparkSession


def open_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """
    Find the batch that a query has planned and not committed: its next start repeats it.

    Args:
        spark: a session, classic or Spark Connect, that reaches the checkpoint.
        checkpoint: the query's checkpointLocation, on any storage that Spark reads.

    Returns:
        The number that Spark gave the batch; None if no batch is open.

    Raises:
        BadOption: the folder has no folder `offsets`, so it is no checkpoint.
    """
    folder = checkpoint.rstrip("/")
    planned = names(spark, f"{folder}/offsets")
    if planned is None:
        expected = "the checkpointLocation of a query, which has a folder offsets"
        raise BadOption(option="checkpoint", found=checkpoint, expected=expected)
    last = newest(planned)
    return last if last > newest(names(spark, f"{folder}/commits")) else None


def newest(batches: list[str] | None) -> int:
    """Return the last batch in a log of a checkpoint; -1 if there is none."""
    return max((int(name) for name in batches or () if name.isdecimal()), default=-1)


def literal(path: str) -> str:
    """Escape a path, so that Spark reads no wildcards in it."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def first_column(work: Callable[[], list[Row]]) -> list[str] | None:
    """Return the first column of rows; None if the files do not exist."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        return [str(row[0]) for row in work()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def text(spark: SparkSession, path: str) -> str:
    """Read the text of a file or of `write`; "" if it does not exist or is unfinished."""
    texts = first_column(lambda: spark.read.text(literal(path), wholetext=True).collect())
    return "".join(texts or ()).strip()


def write(spark: SparkSession, path: str, line: str) -> None:
    """Write a text as a folder of one file."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    frame = spark.range(1).select(F.lit(line).alias("value")).coalesce(1)
    frame.write.mode("overwrite").text(path)


def names(spark: SparkSession, path: str) -> list[str] | None:
    """
    List the files of a folder; None if it does not exist.

    Spark lists no empty file, and none whose name begins with a dot or an underscore.
    """
    files = spark.read.format("binaryFile")
    paths = first_column(lambda: files.load(literal(path)).select("path").collect())
    return None if paths is None else [each.rpartition("/")[2] for each in paths]
