"""What the tests of the documents share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .shop import Shop, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    """Give a database of its own, with the state tables and the documents' queues."""
    with opened(server, tmp_path, capsys) as made:
        made.sqlqueue("install")
        made.sqlqueue("create", "Shop.Orders", "--error", "error", "--delayed")
        yield made
