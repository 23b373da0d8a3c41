"""SQL Server, through mssql-python or pyodbc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database.sqlserver.connection import Connection, connect
from sqlq_spark.database.sqlserver.script import write_script

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS: dict[str, Callable[[str], str]] = {}  # `authentication` in the url replaces them

__all__ = ["TOKENS", "Connection", "connect", "write_script"]
