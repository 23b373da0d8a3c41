"""
The other side on SQL Server: what its sessions say, and a place for a test; see endpoints.py.

The suite takes it where there is a server, see tests/servers.py.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from . import sqlserver_dba
from .dotnet import DotNet
from .transport_sqlserver import Session
from .transport_sqlserver import SQLServer as Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from .dba import DBA
    from .dotnet import Row

# our sessions say who they are in context_info
_ACTIVE = """
SELECT s.session_id, r.wait_type
  FROM sys.dm_exec_sessions AS s
  LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
 WHERE s.session_id <> @@SPID
   AND CHARINDEX(?, CAST(s.context_info AS varchar(128))) > 0
"""


@contextmanager
def place(url: str) -> Iterator[SQLServer]:
    """Give an endpoint in schemas of its own; they are dropped after."""
    schema, state = (f"{kind}_{secrets.token_hex(6)}" for kind in ("test", "state"))
    with closing(Transport(url, schema).connect()) as connection:
        dotnet = SQLServer(url, schema, state, connection)
        dotnet.execute(f"EXEC (N'CREATE SCHEMA {schema}')")
        try:
            yield dotnet
        finally:
            for each in (schema, state):
                dotnet.dba.drop_schema(each)


@dataclass(frozen=True)
class SQLServer(DotNet):
    """An endpoint of the SQL Server transport."""

    connection: Session
    dialect: ClassVar[str] = "sqlserver"

    @property
    def dba(self) -> DBA:
        """As Endpoint."""
        return sqlserver_dba.SQLServer(self.url, self.state, self.execute, self._executing)

    @contextmanager
    def _executing(self) -> Iterator[Callable[..., list[Row]]]:
        """Run statements in a transaction that is undone."""
        with self.apart() as other:
            yield other.execute

    def execute(self, text: str, *values: object) -> list[Row]:
        """As Endpoint."""
        return self.connection.run(text, *values)

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """As Endpoint."""
        names = ", ".join(f"[{name.strip()}]" for name in columns.split(","))
        return self.execute(f"SELECT {names} FROM [{self.state}].[{table}] ORDER BY {names}")

    def clock(self) -> datetime:
        """As Endpoint."""
        moment: datetime = self.execute("SELECT GETUTCDATE()")[0][0]
        return moment

    def kill(self, application: str) -> int:
        """As Endpoint; waits until they are gone."""
        found = {session for session, _ in self.execute(_ACTIVE, application)}
        for session in found:
            self.execute(f"KILL {int(session)}")
        while self.execute(_ACTIVE, application):
            time.sleep(0.001)
        return len(found)

    def sessions(self, application: str) -> int:
        """As Endpoint."""
        return len({session for session, _ in self.execute(_ACTIVE, application)})

    def waiting_sessions(self, application: str) -> int:
        """As Endpoint."""
        found = self.execute(_ACTIVE, application)
        return len({session for session, wait in found if str(wait or "").startswith("LCK")})
