"""
Files of a checkpoint, read and written by Spark, for they lie where Spark reaches.

With Spark Connect that is the server's disk, not ours; on Databricks it may be a volume. No JVM of
ours is needed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def literal(path: str) -> str:
    """A path as Spark reads it: without patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def read(spark: SparkSession, path: str, column: str) -> list[str]:
    """One column of a file, or of a folder's files; nothing where none is there."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:  # without Spark Connect the path is looked up by `text`, with it by `collect`
        found = spark.read.text(literal(path), wholetext=True).select(column).distinct()
        return [str(row[0]) for row in found.collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise


def text(spark: SparkSession, path: str) -> str:
    """A text as `write` left it, or that of a file; "" where none is there or none was finished."""
    return "".join(read(spark, path, "value")).strip()


def write(spark: SparkSession, path: str, line: str) -> None:
    """Write a text as a folder of one file; an unfinished one is read as nothing."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    frame = spark.range(1).select(F.lit(line).alias("value")).coalesce(1)
    frame.write.mode("overwrite").text(path)


def names(spark: SparkSession, path: str) -> list[str]:
    """The names of a folder's files."""
    return read(spark, path, "_metadata.file_name")
