"""SQL Server, through mssql-python or pyodbc."""

from typing import Any

from sqlq_spark.database.sqlserver.calls import LACKS, STATEMENTS, fill_names, join_script
from sqlq_spark.database.sqlserver.connection import Connection, connect

TOKENS: dict[str, Any] = {}  # none: the url's parameter `authentication` does this here

__all__ = ["LACKS", "STATEMENTS", "TOKENS", "Connection", "connect", "fill_names", "join_script"]
