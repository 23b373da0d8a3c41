"""What the Spark tests share: an installed queue, and messages as .NET endpoints write them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from conformance import sqlserver
from wire import messages

from spark.stand import Elsewhere, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(spark: SparkSession) -> SparkSession:
    """Give the session, with a Delta that does not read its small log in 50 partitions."""
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    return spark


@pytest.fixture
def queue(request: pytest.FixtureRequest, dialect: str) -> Iterator[Queue]:
    """Give an empty queue with its state tables, on each database in turn."""
    if dialect == "sqlserver":
        with sqlserver.place(request.getfixturevalue("sqlserver_server")) as peer:
            yield made(Queue(Elsewhere(peer), "orders"))
        return
    yield made(Queue(request.getfixturevalue("place"), "orders"))


def made(queue: Queue) -> Queue:
    """Make its tables."""
    queue.install()
    queue.create()
    return queue


@pytest.fixture(scope="session")
def wire() -> list[tuple[str, bytes]]:
    """Give headers and body of the rows of tests/wire that any reader of JSON understands."""
    return messages()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J tells every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
