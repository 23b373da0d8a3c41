"""PostgreSQL, through its ADBC driver."""

from sqlq_spark.database.postgresql.connection import Connection, connect, printed

__all__ = ["Connection", "connect", "printed"]
