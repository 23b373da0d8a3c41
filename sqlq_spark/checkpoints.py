"""
Reads files of a checkpoint, with Spark and not with Python.

The files may be in object storage, in HDFS or in a volume. With Spark Connect they are on the
server. So perhaps only Spark can read them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """
    Find the batch that a query has planned but not committed. Its next start repeats the batch.

    Args:
        spark: a session, classic or Spark Connect, that can read the checkpoint.
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
    """Return the number of the last batch in a log, whose files are named by numbers; or -1."""
    names = (path.rpartition("/")[2] for path in files or ())
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def read_text(spark: SparkSession, path: str) -> str:
    """Return the text of a file, or of a folder's files; "" if there is none or it is empty."""
    return "".join(read_files(spark, path, "text", "value") or ()).strip()


def read_files(
    spark: SparkSession, path: str, kind: str = "binaryFile", column: str = "path"
) -> list[str] | None:
    """
    Read the files in a folder, and return one column: by default the paths of the files.

    Returns None if the folder does not exist. Empty files are missing in the result, and so are
    files whose name begins with a dot or an underscore: Spark does not list them.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    files = spark.read.format(kind).option("wholetext", True)  # noqa: FBT003 - Spark's
    literal = re.sub(r"([\\*?\[\]{}])", r"\\\1", path)  # otherwise these would be wildcards
    try:
        return [str(row[0]) for row in files.load(literal).select(column).collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
