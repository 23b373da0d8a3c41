"""Lets Spark find the format `sqlqueue`: it imports every module named `pyspark_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark import versions
from sqlq_spark.errors import UnsupportedVersion

if TYPE_CHECKING:
    from sqlq_spark.datasource import DefaultSource
else:
    try:
        versions.check_versions("pyspark", "pyarrow")
        from sqlq_spark.datasource import DefaultSource
    except UnsupportedVersion as unsupported:
        # Were the import to fail, Spark would hide why, and find no other pyspark_* module either.
        from pyspark.sql.datasource import DataSource

        class DefaultSource(DataSource):
            """The format `sqlqueue`, which says why it cannot be used here."""

            error = unsupported

            def __init__(self, _options: object) -> None:
                raise self.error

            @classmethod
            def name(cls) -> str:
                """The name for `.format(…)`."""
                return "sqlqueue"


__all__ = ["DefaultSource"]
