"""The package's logger, and warnings that a process logs only once."""

from __future__ import annotations

import logging
from functools import cache

log = logging.getLogger("sqlq_spark")
# Spark makes several readers and writers in one process, and each of them would log the warning.
warn_once = cache(log.warning)
