"""
Maintains a Delta table: compacts small files, deletes old rows, removes unused files.

Each step is one Delta commit, or removes files that no version of the table needs. After a kill the
table is complete, and the next round does the rest. The steps do not conflict with a stream that
appends to the table.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlq_spark.jobs.frame.spark import has_table, parallelism, quote_table, set_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Row, SparkSession

log = logging.getLogger("sqlq_spark")

# Delta 4.4 ignores any time of VACUUM but 0, so the retention is set as a table property.
KEPT = "deletedFileRetentionDuration"
# the number of tasks in which VACUUM lists the table; 10,000 by default
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


@dataclass(kw_only=True)
class Upkeep:
    """The chosen steps, and their totals."""

    spark: SparkSession
    table: str  # a name, or a path with a slash in it
    date: str  # its partition column
    received: str  # the column with the time when a row was received
    optimize: bool = False
    retention_days: float | None = None  # None: no rows are deleted
    vacuum_hours: float | None = None  # None: no files are removed
    clock: Callable[[], datetime] = now
    totals: dict[str, int] = field(default_factory=dict)
    failure: Exception | None = None

    def prepare(self) -> None:
        """
        Set how long files are kept, before a stream starts: a later change fails its batch.

        It becomes a property of the existing table, or of the table that this session creates.
        """
        if self.vacuum_hours is None:
            return
        made = f"spark.databricks.delta.properties.defaults.{KEPT}"
        if not set_conf(self.spark, made, self._retention):
            log.info("%s cannot be set here: a new table gets it after its first run", made)
        set_conf(self.spark, LISTING, str(4 * (parallelism(self.spark) or 1)))
        if has_table(self.spark, self.table):
            self._keep()

    @property
    def _retention(self) -> str:
        return f"interval {round((self.vacuum_hours or 0) * 3600)} seconds"

    def _keep(self) -> None:
        """Set how long the table keeps its files, if its property differs."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {quote_table(self.table)}").collect()
        if ("delta." + KEPT, self._retention) not in {(row.key, row.value) for row in rows}:
            change = f"SET TBLPROPERTIES ('delta.{KEPT}' = '{self._retention}')"
            self.spark.sql(f"ALTER TABLE {quote_table(self.table)} {change}")

    def once(self) -> None:
        """
        Do one round: delete rows, then compact files, then remove files.

        Does nothing if the table does not exist yet.
        """
        if not has_table(self.spark, self.table):
            return
        if self.retention_days is not None:
            self._add("deletedMessages", self._delete(self.retention_days))
        if self.optimize:
            metrics = self._sql(f"OPTIMIZE {quote_table(self.table)}")["metrics"]
            self._add("packedFiles", metrics["numFilesRemoved"])
        if self.vacuum_hours is not None:
            self._keep()
            self._sql(f"VACUUM {quote_table(self.table)}")
            self._add("vacuums", 1)

    @contextmanager
    def beside(self, seconds: float) -> Iterator[None]:
        """
        Do a round every so many seconds until the block ends.

        A failure is logged, and the next round tries again. If the last round failed, its error is
        raised at the end.
        """
        done = threading.Event()

        def rounds() -> None:
            while not done.wait(seconds):
                try:
                    self.once()
                    self.failure = None
                except Exception as error:  # noqa: BLE001 - kept, and raised below
                    log.warning("%s: upkeep failed and will be tried again: %s", self.table, error)
                    self.failure = error

        worker = threading.Thread(target=rounds, name="upkeep", daemon=True)
        worker.start()
        try:
            yield
        finally:
            done.set()
            worker.join()
        if self.failure is not None:
            raise self.failure

    def _delete(self, days: float) -> int:
        """
        Delete rows that are older, by their date and by their receipt; returns how many.

        The date selects the partitions. It comes from an endpoint's clock, which may be wrong, so
        a row also stays for this time after it was received.
        """
        end = self.clock() - timedelta(days=days)
        found = self._sql(
            f"DELETE FROM {quote_table(self.table)} WHERE {self.date} < DATE '{end:%Y-%m-%d}'"  # noqa: S608 - no value of others
            f" AND {self.received} < TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}Z'"
        )
        return int(found["num_affected_rows"])

    def _sql(self, text: str) -> Row:
        found: Row = self.spark.sql(text).collect()[0]
        return found

    def _add(self, name: str, number: int) -> None:
        self.totals[name] = self.totals.get(name, 0) + number
