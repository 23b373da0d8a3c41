"""`open_batch`: which batch the next start of a query repeats, on every path that Spark reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqlq_spark import open_batch
from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def log(folder: Path, *batches: int) -> None:
    """Write a log of a checkpoint as Spark does, with its files of checksums."""
    folder.mkdir(parents=True)
    for batch in batches:
        for name in (f"{batch}", f".{batch}.crc"):
            (folder / name).write_text("v1")


@pytest.fixture(params=["file", "viewfs"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> str:
    """Give a folder by its local path, and by a scheme that another class of Hadoop answers."""
    if request.param == "file":
        return str(tmp_path)
    mount = tmp_path.name
    java = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way to set it
    java.set("fs.viewfs.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystem")
    java.set(f"fs.viewfs.mounttable.{mount}.link./lake", tmp_path.as_uri())
    return f"viewfs://{mount}/lake"


@pytest.mark.spark
def test_a_batch_is_open_if_it_was_planned_and_not_committed(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    """By number, not by text; without commits no batch is committed."""
    for name, offsets, commits in (
        ("open", (8, 9, 10), (8, 9)),
        ("closed", (8, 9, 10), (9, 10)),
        ("first", (0,), ()),
        ("idle", (), ()),
    ):
        log(tmp_path / name / "offsets", *offsets)
        if commits:
            log(tmp_path / name / "commits", *commits)

    found = {
        name: open_batch(spark, f"{place}/{name}/") for name in ("open", "closed", "first", "idle")
    }

    assert found == {"open": 10, "closed": None, "first": 0, "idle": None}


@pytest.mark.spark
def test_a_folder_that_is_no_checkpoint_is_refused(spark: SparkSession, place: str) -> None:
    """A typo in the path must not read as "no batch is open"."""
    with pytest.raises(BadOption, match="expected the checkpointLocation of a query"):
        open_batch(spark, f"{place}/absent")
