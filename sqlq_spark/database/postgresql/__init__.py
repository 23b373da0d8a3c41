"""PostgreSQL, through its ADBC driver."""

from sqlq_spark.database.postgresql.connection import Connection, connect
from sqlq_spark.database.postgresql.script import write_script
from sqlq_spark.database.postgresql.tokens import TOKENS

__all__ = ["TOKENS", "Connection", "connect", "write_script"]
