"""
Checks queues and the server, and proposes the statement that fixes each problem. Reads only.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` checks
everything.
"""

from sqlq_spark.admin.checks.doctor import (
    everything,
    names_of_streams,
    not_waited,
    of_any_queue,
)
from sqlq_spark.admin.checks.queue import lifetime, of_delayed, of_table, short_lifetimes
from sqlq_spark.admin.checks.server import (
    of_any_server,
    of_server,
    of_state,
    of_state_tables,
    of_streams,
)
from sqlq_spark.admin.checks.sight import of_look
from sqlq_spark.admin.checks.start import at_start, check_spellings

__all__ = [
    "at_start",
    "check_spellings",
    "everything",
    "lifetime",
    "names_of_streams",
    "not_waited",
    "of_any_queue",
    "of_any_server",
    "of_delayed",
    "of_look",
    "of_server",
    "of_state",
    "of_state_tables",
    "of_streams",
    "of_table",
    "short_lifetimes",
]
