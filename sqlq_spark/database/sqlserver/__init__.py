"""SQL Server, through mssql-python or pyodbc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database.sqlserver.calls import fill_names
from sqlq_spark.database.sqlserver.connection import Connection, connect

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS: dict[str, Callable[[str], str]] = {}  # `authentication` in the url replaces them

__all__ = ["TOKENS", "Connection", "connect", "fill_names"]
