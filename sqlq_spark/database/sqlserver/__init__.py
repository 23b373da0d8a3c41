"""SQL Server, through mssql-python or pyodbc."""

from sqlq_spark.database.sqlserver.calls import LACKS, STATEMENTS, fill_names, join_script
from sqlq_spark.database.sqlserver.connection import Connection, connect
from sqlq_spark.database.sqlserver.drivers import TOKENS

__all__ = ["LACKS", "STATEMENTS", "TOKENS", "Connection", "connect", "fill_names", "join_script"]
