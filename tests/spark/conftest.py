"""Fixtures of the Spark tests: a queue with its state tables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import pytest

from spark.stand import SparkQueue

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.transport import DotNet
    from conftest import Place
    from pyspark.sql import SparkSession


@pytest.fixture
def queue(dotnet: DotNet, spark: SparkSession, tmp_path: Path) -> SparkQueue:
    """Give an empty queue with its state tables, on each database in turn."""
    return SparkQueue(cast("Place", dotnet), "orders", spark, tmp_path).prepared()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
