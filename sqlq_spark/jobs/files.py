"""
Files of a checkpoint, read and written by Spark, for they lie where Spark reaches.

With Spark Connect that is the server's disk, not ours; on Databricks it may be a volume. No JVM of
ours is needed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row, SparkSession


def literal(path: str) -> str:
    """A path as Spark reads it: without patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def found(work: Callable[[], list[Row]]) -> list[str]:
    """The first column of rows; nothing where their files are not there."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        return [str(row[0]) for row in work()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise


def text(spark: SparkSession, path: str) -> str:
    """A text as `write` left it, or that of a file; "" where none is there or none was finished."""
    texts = found(lambda: spark.read.text(literal(path), wholetext=True).collect())
    return "".join(texts).strip()


def write(spark: SparkSession, path: str, line: str) -> None:
    """Write a text as a folder of one file; an unfinished one is read as nothing."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    frame = spark.range(1).select(F.lit(line).alias("value")).coalesce(1)
    frame.write.mode("overwrite").text(path)


def names(spark: SparkSession, path: str) -> list[str]:
    """The names of a folder's files; Spark shows no empty ones."""
    files = spark.read.format("binaryFile")
    paths = found(lambda: files.load(literal(path)).select("path").collect())
    return [each.rpartition("/")[2] for each in paths]
