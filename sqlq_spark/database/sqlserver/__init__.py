"""SQL Server, through mssql-python or pyodbc."""

from sqlq_spark.database.sqlserver.connection import Connection, connect, printed

__all__ = ["Connection", "connect", "printed"]
