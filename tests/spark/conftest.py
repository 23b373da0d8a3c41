"""What the Spark tests share: an installed queue, and messages as .NET endpoints write them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.stand import Queue

if TYPE_CHECKING:
    from conftest import Place
    from pyspark.sql import SparkSession

WIRE = Path(__file__).parent.parent / "wire"


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    """Give the session, with a Delta that does not read its small log in 50 partitions."""
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    return spark


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue with its state tables."""
    made = Queue(place, "orders")
    made.install()
    made.create()
    return made


@pytest.fixture(scope="session")
def wire() -> list[tuple[str, bytes]]:
    """Give headers and body of each file of tests/wire, by name; `#` begins a comment."""
    rows = []
    for path in sorted(WIRE.glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        headers, _, *body = (line for line in lines if not line.startswith("#"))
        rows.append((headers, "\n".join(body).encode()))
    return rows


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J tells every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
