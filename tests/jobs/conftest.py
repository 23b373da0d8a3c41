"""Fixtures of the tests of jobs: a queue with state tables, and a folder to submit from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.stand import Queue

from jobs.submit import Desk

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue with its state tables."""
    made = Queue(place, "orders")
    made.install()
    made.create()
    return made


@pytest.fixture
def desk(tmp_path: Path, place: Place) -> Desk:
    """Give a folder to submit jobs from, which use the test's database."""
    return Desk(tmp_path, {"SQLQUEUE_URL": place.url})
