"""
Reads and writes files of a checkpoint with Spark, because only Spark may reach them.

With Spark Connect they are on the server's disk, and on Databricks they may be in a volume.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row, SparkSession


def literal(path: str) -> str:
    """Escape a path, so that Spark reads no wildcards in it."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def first_column(work: Callable[[], list[Row]]) -> list[str]:
    """The first column of rows; nothing if the files do not exist."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        return [str(row[0]) for row in work()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise


def text(spark: SparkSession, path: str) -> str:
    """Read the text of a file or of `write`; "" if it does not exist or is unfinished."""
    texts = first_column(lambda: spark.read.text(literal(path), wholetext=True).collect())
    return "".join(texts).strip()


def write(spark: SparkSession, path: str, line: str) -> None:
    """Write a text as a folder of one file."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    frame = spark.range(1).select(F.lit(line).alias("value")).coalesce(1)
    frame.write.mode("overwrite").text(path)


def names(spark: SparkSession, path: str) -> list[str]:
    """The names of a folder's files, without empty files, which Spark does not list."""
    files = spark.read.format("binaryFile")
    paths = first_column(lambda: files.load(literal(path)).select("path").collect())
    return [each.rpartition("/")[2] for each in paths]
