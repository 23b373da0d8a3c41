"""
Checks queues and the server, and proposes the statement that fixes each problem. Reads only.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` checks
everything.
"""

from sqlq_spark.admin.checks.doctor import everything, not_waited, of_any_queue, of_owners
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
    of_state_tables,
    of_streams,
)
from sqlq_spark.admin.checks.sight import of_look
from sqlq_spark.admin.checks.start import at_start, check_spellings
from sqlq_spark.admin.finding import (
    Finding,
    Severity,
    absent,
    delayed_alone,
    finding,
    of_error,
)

__all__ = [
    "Finding",
    "Severity",
    "absent",
    "at_start",
    "check_spellings",
    "delayed_alone",
    "everything",
    "finding",
    "lifetime",
    "not_waited",
    "of_any_queue",
    "of_any_server",
    "of_any_streams",
    "of_delayed",
    "of_error",
    "of_look",
    "of_owner",
    "of_owners",
    "of_queue",
    "of_server",
    "of_state",
    "of_state_tables",
    "of_streams",
    "of_table",
    "short_lifetimes",
]
