"""PostgreSQL, through its ADBC driver."""

from sqlq_spark.database.postgresql.connection import Connection, connect
from sqlq_spark.database.postgresql.drivers import TOKENS
from sqlq_spark.database.postgresql.rows import LACKS, STATEMENTS, fill_names, join_script

__all__ = ["LACKS", "STATEMENTS", "TOKENS", "Connection", "connect", "fill_names", "join_script"]
