"""The gate before a job's database: nothing is heard after the moment, however late one looks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from waiting import PATIENCE, until

from . import gate

if TYPE_CHECKING:
    from conftest import Place


def test_a_statement_is_done_and_its_answer_is_not_heard(place: Place) -> None:
    """So a job that was to be killed there stands there; all before it came through."""
    table = f"{place.schema}.done"
    place.sql(f"CREATE TABLE {table} (n int)")

    with ThreadPoolExecutor(1) as beside:
        with gate.opened(place.url, lambda: place.sql(f"SELECT FROM {table}")) as way:
            job = psycopg.connect(way.url, autocommit=True)
            before = job.execute("SELECT 1").fetchone()
            unheard = beside.submit(job.execute, f"INSERT INTO {table} VALUES (7)".encode())
            until(way.shut.is_set)
            found, heard = place.sql(f"SELECT n FROM {table}"), unheard.done()
        with pytest.raises(psycopg.OperationalError):
            unheard.result(timeout=PATIENCE)
    job.close()

    assert (before, found, heard) == ((1,), [(7,)], False)
