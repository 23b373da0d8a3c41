"""PostgreSQL, through its ADBC driver."""

from sqlq_spark.database.postgresql.calls import fill_names
from sqlq_spark.database.postgresql.connection import Connection, connect
from sqlq_spark.database.postgresql.tokens import TOKENS

__all__ = ["TOKENS", "Connection", "connect", "fill_names"]
