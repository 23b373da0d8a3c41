"""
Jobs in one session of Spark Connect, as a program: `python -m jobs.connected '[["relay", …], …]'`.

SPARK_REMOTE names the server; `local[2]` starts one in this process. Each item is a job and its
flags; each job prints its totals as a line.
"""

from __future__ import annotations

import json
import sys

from sqlq_spark.jobs import streams
from sqlq_spark.jobs.settings import Settings

from .submit import module


def run(orders: list[list[str]]) -> int:
    """Run jobs one after the other, up to the first that fails."""
    with streams.session("tests", Settings(log_level="ERROR")) as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
        for name, *flags in orders:
            if code := int(module(name).main.main(flags)):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
