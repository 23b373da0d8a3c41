"""The package's logger, and warnings that a process gives once."""

from __future__ import annotations

import logging
from functools import cache

log = logging.getLogger("sqlq_spark")
# Spark makes several readers and writers in one process: the same warning would come several times
warn_once = cache(log.warning)
