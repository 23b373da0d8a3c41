"""Fixtures of the Spark tests: a queue with state tables, and messages of .NET endpoints."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from wire import messages

from spark.stand import OtherPlace, SparkQueue

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.transport import DotNet
    from pyspark.sql import SparkSession


@pytest.fixture
def queue(
    request: pytest.FixtureRequest, dotnet: DotNet, spark: SparkSession, tmp_path: Path
) -> SparkQueue:
    """Give an empty queue with its state tables, on each database in turn."""
    here = dotnet.dialect == "postgresql"
    place = request.getfixturevalue("place") if here else OtherPlace(dotnet)
    made = SparkQueue(place, "orders", spark, tmp_path)
    made.install()
    made.create()
    return made


@pytest.fixture(scope="session")
def wire() -> list[tuple[str, bytes]]:
    """Give headers and bodies of tests/golden that any JSON parser reads."""
    return messages()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
