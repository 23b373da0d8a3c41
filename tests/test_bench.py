"""The bench's databases: the same url in the words of JDBC, and even ranges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bench import sqlserver
from bench.database import edges

URL = "sqlserver://sa:s%7Dcret@db:1444/shop?encrypt=no&trustServerCertificate=yes"


def test_jdbc_gets_the_same_connection_and_the_password_apart() -> None:
    """Spark shows a url, and hides a password."""
    found = sqlserver.SQLServer(URL, connection=None).jdbc()  # type: ignore[arg-type]

    assert found == {
        "url": (
            "jdbc:sqlserver://db:1444"
            ";databaseName={shop};encrypt={false};trustServerCertificate={true}"
        ),
        "user": "sa",
        "password": "s}cret",
        "driver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    }


def test_the_benchs_own_database_is_on_the_server_that_was_named() -> None:
    """With its user and its parameters."""
    assert sqlserver.at(URL, "sqlq_bench") == URL.replace("/shop?", "/sqlq_bench?")


@pytest.mark.parametrize(("bounds", "parts"), [((1, 101), 4), ((7, 8), 2), ((5, 5), 3)])
def test_edges_cut_all_of_it_evenly(bounds: tuple[int, int], parts: int) -> None:
    """Half-open ranges, one behind the other."""
    found = edges(bounds, parts)

    sizes = [stop - first for first, stop in pairwise(found)]
    assert (found[0], found[-1]) == bounds
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
