"""The shop of the documents."""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from .shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    """Give a database of its own, with the state tables and the documents' queues."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # of each call, which pytest would keep
    name = f"shop_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            with (
                mock.patch.dict(os.environ, {"SQLQUEUE_URL": url}),
                psycopg.connect(url, autocommit=True) as connection,
            ):
                made = Shop(url, tmp_path, connection, capsys)
                made.sqlqueue("install")
                made.sqlqueue("create", "Shop.Orders", "--error", "error", "--delayed")
                yield made
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
