"""
Reads files of a checkpoint with Spark, because only Spark may reach them.

They may be in object storage, in HDFS or in a volume. With Spark Connect they are on the server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """
    Find the batch that a query has planned and not committed. Its next start repeats that batch.

    Args:
        spark: a session, classic or Spark Connect, that reaches the checkpoint.
        checkpoint: the query's checkpointLocation, on any storage that Spark reads.

    Returns:
        The number that Spark gave the batch; None if no batch is open.

    Raises:
        BadOption: the folder is no checkpoint, because it has no folder `offsets`.
    """
    folder = checkpoint.rstrip("/")
    planned = read_files(spark, f"{folder}/offsets")
    if planned is None:
        expected = "the checkpointLocation of a query, which has a folder offsets"
        raise BadOption(option="checkpoint", found=checkpoint, expected=expected)
    last = newest(planned)
    return last if last > newest(read_files(spark, f"{folder}/commits")) else None


def newest(files: list[str] | None) -> int:
    """Return the last batch that the files of a log name; -1 if there is none."""
    names = (path.rpartition("/")[2] for path in files or ())
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def read_text(spark: SparkSession, path: str) -> str:
    """Read the text of a file, or of a folder; "" if it does not exist or is unfinished."""
    return "".join(read_files(spark, path, "text", "value") or ()).strip()


def read_files(
    spark: SparkSession, path: str, kind: str = "binaryFile", column: str = "path"
) -> list[str] | None:
    """
    Return a column of the files in a folder, by default their paths; None if it does not exist.

    Spark lists no empty file, and none whose name begins with a dot or an underscore.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    files = spark.read.format(kind).option("wholetext", True)  # noqa: FBT003 - Spark's
    literal = re.sub(r"([\\*?\[\]{}])", r"\\\1", path)  # otherwise Spark reads wildcards in it
    try:
        return [str(row[0]) for row in files.load(literal).select(column).collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
