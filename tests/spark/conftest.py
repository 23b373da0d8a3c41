"""What the Spark tests share: an installed queue, and messages as .NET endpoints write them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from wire import messages

from spark.stand import Elsewhere, Queue

if TYPE_CHECKING:
    from conformance.dotnet import DotNet
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    """Give the session, with a Delta that does not read its small log in 50 partitions."""
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    return spark


@pytest.fixture
def queue(request: pytest.FixtureRequest, dotnet: DotNet) -> Queue:
    """Give an empty queue with its state tables, on each database in turn."""
    here = dotnet.dialect == "postgresql"
    made = Queue(request.getfixturevalue("place") if here else Elsewhere(dotnet), "orders")
    made.install()
    made.create()
    return made


@pytest.fixture(scope="session")
def wire() -> list[tuple[str, bytes]]:
    """Give headers and body of the rows of tests/wire that any stream of JSON understands."""
    return messages()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J tells every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
