"""
The plugin of pytest with the fixtures of this package.

A fixture imports what it needs when a test first uses the fixture. With pytest-xdist each process
has a server of its own. If SQLQ_TEST_POSTGRES names a server, all processes share it. Each test has
a database of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.testing import Database, Queue


@pytest.fixture(scope="session")
def sqlqueue_server() -> Iterator[str]:
    """Give the url of a PostgreSQL server: the one in SQLQ_TEST_POSTGRES, or a private one."""
    from sqlq_spark.testing import server  # noqa: PLC0415

    with server() as url:
        yield url


@pytest.fixture
def sqlqueue_database(sqlqueue_server: str) -> Iterator[Database]:
    """Give a database with state tables, for one test."""
    from sqlq_spark.testing import new_database  # noqa: PLC0415

    with new_database(sqlqueue_server) as made:
        yield made


@pytest.fixture
def sqlqueue_queue(sqlqueue_database: Database) -> Queue:
    """Give an empty queue `Shop.Orders` in the test's database."""
    return sqlqueue_database.queue("Shop.Orders")
