"""
Keeping a Delta table in order: small files are packed, old rows deleted, unused files removed.

Each step is one commit of Delta's, or only removes files that no version of the table needs: a
kill at any moment leaves a whole table, and the next round does what is left. Appends of a stream
are never in the way of these steps, nor they in theirs.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlq_spark.jobs.spark import has_table, parallelism, quoted, set_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Row, SparkSession

log = logging.getLogger("sqlq_spark")

# Delta 4.4 heeds no other time of VACUUM than 0: the table says how long it needs its files.
KEPT = "deletedFileRetentionDuration"
# VACUUM lists the table in so many tasks, 10,000 of them unless told.
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


@dataclass(kw_only=True)
class Upkeep:
    """The steps that are asked for, and what they came to."""

    spark: SparkSession
    table: str  # a name, or a path with a slash in it
    date: str  # its partition column
    received: str  # the column that says when a row came
    optimize: bool = False
    retention_days: float | None = None  # None: rows stay
    vacuum_hours: float | None = None  # None: files stay; else the table keeps the number
    clock: Callable[[], datetime] = now
    totals: dict[str, int] = field(default_factory=dict)
    failure: Exception | None = None

    def prepare(self) -> None:
        """
        Set how long files are kept, before a stream begins: a change would fail its batch.

        A table that is there keeps it as its property, one that is made by this session too.
        """
        if self.vacuum_hours is None:
            return
        made = f"spark.databricks.delta.properties.defaults.{KEPT}"
        if not set_conf(self.spark, made, self._kept):
            log.info("%s is not to be set here: a table that is made gets it after its run", made)
        set_conf(self.spark, LISTING, str(4 * (parallelism(self.spark) or 1)))
        if has_table(self.spark, self.table):
            self._keep()

    @property
    def _kept(self) -> str:
        return f"interval {round((self.vacuum_hours or 0) * 3600)} seconds"

    def _keep(self) -> None:
        """Set how long the table keeps its files, where it says otherwise."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {quoted(self.table)}").collect()
        if ("delta." + KEPT, self._kept) not in {(row.key, row.value) for row in rows}:
            said = f"SET TBLPROPERTIES ('delta.{KEPT}' = '{self._kept}')"
            self.spark.sql(f"ALTER TABLE {quoted(self.table)} {said}")

    def once(self) -> None:
        """
        Do one round: delete first, so that nothing is packed that goes; remove files last.

        A table that no message has made yet needs none.
        """
        if not has_table(self.spark, self.table):
            return
        if self.retention_days is not None:
            self._add("deletedMessages", self._delete(self.retention_days))
        if self.optimize:
            metrics = self._sql(f"OPTIMIZE {quoted(self.table)}")["metrics"]
            self._add("packedFiles", metrics["numFilesRemoved"])
        if self.vacuum_hours is not None:
            self._keep()
            self._sql(f"VACUUM {quoted(self.table)}")
            self._add("vacuums", 1)

    @contextmanager
    def beside(self, seconds: float) -> Iterator[None]:
        """
        Do a round every so many seconds, as long as the block lasts.

        A failure is logged and does not end the block: the table is whole, and the next round may
        do. The last round's failure is raised at the end.
        """
        done = threading.Event()

        def rounds() -> None:
            while not done.wait(seconds):
                try:
                    self.once()
                    self.failure = None
                except Exception as error:  # noqa: BLE001 - kept, and raised below
                    log.warning("%s: upkeep failed, and will be tried again: %s", self.table, error)
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
        Delete what is older, by its date and by its coming; returns how many rows.

        The date finds the partitions. It is an endpoint's word: where its clock is behind, or a
        backlog was old, a row still stays that long after it came.
        """
        end = self.clock() - timedelta(days=days)
        found = self._sql(
            f"DELETE FROM {quoted(self.table)} WHERE {self.date} < DATE '{end:%Y-%m-%d}'"  # noqa: S608 - no value of others
            f" AND {self.received} < TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}Z'"
        )
        return int(found["num_affected_rows"])

    def _sql(self, text: str) -> Row:
        found: Row = self.spark.sql(text).collect()[0]
        return found

    def _add(self, name: str, number: int) -> None:
        self.totals[name] = self.totals.get(name, 0) + number
