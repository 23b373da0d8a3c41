"""The server of a test run."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlq_spark.demo import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "SQLQ_TEST_POSTGRES"


@contextmanager
def server() -> Iterator[str]:
    """
    Give the url of a PostgreSQL: the one that SQLQ_TEST_POSTGRES names, else a private one.

    A private one listens on a free port of 127.0.0.1, needs a password, and is removed at the end.

    Raises:
        MissingPackage: the extra `demo` is not installed, and the variable is not set.
    """
    if named := os.environ.get(VARIABLE):
        yield named
        return
    with embedded.server(tcp=True) as running:
        yield running.url
