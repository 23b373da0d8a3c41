"""
Checks queues and the server, and proposes the statement that fixes each problem. Reads only.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` checks
everything.
"""

from sqlq_spark.admin.checks.doctor import everything, of_any_queue, of_owners
from sqlq_spark.admin.checks.finding import Finding, Severity, finding, of_error
from sqlq_spark.admin.checks.queue import (
    lifetime,
    of_delayed,
    of_owner,
    of_queue,
    of_table,
    short_lifetimes,
)
from sqlq_spark.admin.checks.server import (
    of_any_server,
    of_any_streams,
    of_server,
    of_state,
    of_streams,
)
from sqlq_spark.admin.checks.start import at_start, check_spellings

__all__ = [
    "Finding",
    "Severity",
    "at_start",
    "check_spellings",
    "everything",
    "finding",
    "lifetime",
    "of_any_queue",
    "of_any_server",
    "of_any_streams",
    "of_delayed",
    "of_error",
    "of_owner",
    "of_owners",
    "of_queue",
    "of_server",
    "of_state",
    "of_streams",
    "of_table",
    "short_lifetimes",
]
