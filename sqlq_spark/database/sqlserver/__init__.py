"""SQL Server, through mssql-python or pyodbc."""

from sqlq_spark.database.sqlserver.connection import Connection, connect, printed
from sqlq_spark.database.sqlserver.script import write_script

__all__ = ["Connection", "connect", "printed", "write_script"]
