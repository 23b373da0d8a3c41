"""The fixture of the tests of jobs: a queue with state tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.stand import Queue

if TYPE_CHECKING:
    from conftest import Place


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue with its state tables."""
    made = Queue(place, "orders")
    made.install()
    made.create()
    return made
