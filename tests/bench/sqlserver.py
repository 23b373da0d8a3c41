"""SQL Server for the bench, by whichever of our drivers is there; JDBC is Microsoft's."""

from __future__ import annotations

import secrets
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conformance.transport_sqlserver import Session
from conformance.transport_sqlserver import SQLServer as Transport

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

from .postgresql import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RECEIVE = f"SET NOCOUNT ON;{Transport.texts['receive'].format(queue='orders')}"
# bodies that hardly compress: 1 kB of random hexadecimal digits
_HARD = """
SELECT RowVersion, Id, Headers,
       CONVERT(varbinary(max), CONVERT(varchar(1000), CRYPT_GEN_RANDOM(500), 2)) AS body
  INTO hard
  FROM store
"""
_SETTINGS = """
SELECT 'version', CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(100))
UNION ALL SELECT 'edition', CAST(SERVERPROPERTY('Edition') AS nvarchar(100))
"""


def connect(url: str) -> Session:
    """Open a session that commits each statement."""
    return Session(drivers.connect(Target.parse(url), "sqlq bench", 30)[1])


def at(server: str, database: str) -> str:
    """Name another database of a server."""
    return urlsplit(server)._replace(path=f"/{database}").geturl()


@contextmanager
def opened(server: str) -> Iterator[SQLServer]:
    """Make a database on the server with this url, open it, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with closing(connect(at(server, "master"))) as desk:
        desk.run(f"CREATE DATABASE {name}")
        try:
            with closing(connect(at(server, name))) as connection:
                yield SQLServer(at(server, name), connection)
        finally:
            desk.run(f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            desk.run(f"DROP DATABASE {name}")


@dataclass(frozen=True)
class SQLServer(Database):
    """See Database."""

    connection: Session

    jar = "com.microsoft.sqlserver:mssql-jdbc:12.10.1.jre11"
    seq = "RowVersion"
    rewriting = ";useBulkCopyForBatchInsert=true"
    analyze = "UPDATE STATISTICS"
    new_id = "NEWID()"
    settings = _SETTINGS
    hard = _HARD
    created = "ALTER TABLE {queue} ADD DEFAULT 1 FOR Recoverable"  # which JDBC does not name

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """As Database, in T-SQL."""
        return self.connection.run(text)

    def jdbc(self) -> dict[str, str]:
        """As Database, in T-SQL."""
        target = Target.parse(self.url)
        encrypt = {"yes": "true", "no": "false"}.get(target.encrypt, target.encrypt)
        trust = str(target.trust_server_certificate == "yes").lower()
        return {
            "url": f"jdbc:sqlserver://{target.host}:{target.port};databaseName={{{target.database}}}"
            f";encrypt={encrypt};trustServerCertificate={trust}",
            "user": target.user,
            "password": target.password,
            "driver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        }

    @contextmanager
    def receiving(self) -> Iterator[Callable[[], object]]:
        """As Database, in T-SQL."""
        with closing(connect(self.url)) as connection:
            yield lambda: connection.run(_RECEIVE)
