"""PostgreSQL, through its ADBC driver."""

from sqlq_spark.database.postgresql.connection import Connection, connect, printed
from sqlq_spark.database.postgresql.script import write_script

__all__ = ["Connection", "connect", "printed", "write_script"]
