"""The option legacyColumns: taken on PostgreSQL too, where it does nothing, and says so once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from sqlq_spark import datasource
from sqlq_spark.options import SinkOptions

if TYPE_CHECKING:
    import pytest


def test_the_log_tells_once_why_nothing_is_filled(caplog: pytest.LogCaptureFixture) -> None:
    """Spark makes a writer for each micro-batch; without the option nothing is said."""
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    datasource.warn_of_legacy_columns.cache_clear()
    frame = StructType().add("body", "binary")
    raw = {"url": "postgresql://", "queue": "q"}

    datasource.StreamWriter(SinkOptions.parse(raw), frame, overwrite=False)
    assert caplog.records == []
    for _ in range(3):
        options = SinkOptions.parse(raw | {"legacyColumns": "true"})
        datasource.StreamWriter(options, frame, overwrite=False)

    (record,) = caplog.records
    assert record.getMessage().startswith("legacyColumns=true has no effect. Queues of PostgreSQL")
