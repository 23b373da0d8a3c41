"""Errors of the machine that runs this package: a package, a driver or Java's jars are missing."""

from __future__ import annotations

from sqlq_spark.errors.root import SqlQueueError


class MissingPackage(SqlQueueError):
    """A package of an extra is not installed."""

    template = "package {0} is not installed. Run: pip install 'sqlq-spark[{1}]'"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)


class UnsupportedVersion(SqlQueueError, ImportError):
    """Python, pyspark or pyarrow is older than this package needs."""

    def __init__(self, what: str, found: str, needed: str) -> None:
        super().__init__(what, found, needed)

    def __str__(self) -> str:
        what, found, needed = self.args
        if what == "Python":
            fix = f"Run it with Python {needed} or newer"
        else:
            fix = f"Run: pip install '{what}>={needed}'"
        if what == "pyspark":
            fix += ", and use a cluster with Spark 4 (Databricks Runtime 17.3 LTS or newer)"
        return f"sqlq_spark needs {what} {needed} or newer, but found {found}. {fix}"


class MissingDelta(SqlQueueError):
    """A job needs Delta tables, but its Spark has no Delta Lake."""

    template = (
        "Delta Lake is not available in this Spark. With spark-submit, add "
        "--properties-file conf/spark-defaults.conf, which names the jar. "
        "With python, run: pip install 'sqlq-spark[delta]'"
    )


class MissingDriver(SqlQueueError):
    """This machine has no driver for SQL Server that can be used."""

    template = (
        "no driver for SQL Server can be used here ({0}). Run: pip install 'sqlq-spark[sqlserver]' "
        "for mssql-python, which needs the system's libltdl and libgssapi-krb5. "
        "Or install unixODBC and Microsoft's ODBC Driver 18 for SQL Server, and use pyodbc"
    )

    def __init__(self, found: str) -> None:
        super().__init__(found)
