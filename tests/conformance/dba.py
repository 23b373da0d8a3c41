"""
The DBA beside an endpoint: what someone with all rights does to queues, state tables and logins.

Each method is one thing that a test needs, so that a test reads the same for every database. The
texts that differ between databases are those of the transports, or are in shapes.py.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    import uuid
    from datetime import datetime

    from .shapes import Shapes
    from .transport import DotNet, Row


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user of the database, and how it connects."""

    name: str
    password: str
    url: str


def as_login(url: str, name: str, password: str) -> Login:
    """The url of the same database for another login."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    user = f"{name}:{quote(password, safe='')}"
    there = parts._replace(netloc=f"{user}@{place}").geturl()
    return Login(name=name, password=password, url=there)


@dataclass(frozen=True)
class DBA:
    """Someone with all rights."""

    dotnet: DotNet

    @property
    def shapes(self) -> Shapes:
        """Tables that another release, or a DBA, made otherwise, in this database's words."""
        return self.dotnet.shapes

    def run(self, text: str) -> None:
        """Execute statements, one or more to a line, as an error or a finding has them."""
        for statement in text.split(";\n"):
            self.dotnet.execute(statement)

    def on(self, queue: QueueAddress, text: str) -> None:
        """Execute statements of `shapes`, which end with `;`; `{queue}` is the table."""
        words = self.dotnet.words(queue)
        for statement in filter(str.strip, text.split(";")):
            self.dotnet.execute(re.sub(r"\{(\w+)\}", lambda found: words[found[1]], statement))

    def do(
        self, verb: str, queue: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> list[Row]:
        """Run one of the texts."""
        text = self.dotnet.texts[verb]
        if values:
            return self.dotnet.ask(text, queue, **values)
        return self.dotnet.execute(text.format(**self.dotnet.words(queue, to)))

    def count(self, table: QueueAddress) -> int:
        return int(self.do("count", table)[0][0])

    def empty(self, queue: QueueAddress) -> None:
        self.on(queue, "DELETE FROM {queue}")

    def drop(self, queue: QueueAddress) -> None:
        self.on(queue, "DROP TABLE {queue}")

    def fill(self, queue: QueueAddress, first: int, stop: int) -> None:
        """Send messages `m-<first>` … `m-<stop - 1>` at once, their numbers in the order of seq."""
        self.do("fill", queue, before=first - 1, many=max(0, stop - first))

    def poison(self, queue: QueueAddress, messages: int, *, expired: int) -> None:
        """Send messages that no one can read at once; the first ones have expired."""
        self.do("poison", queue, before=0, many=messages, expired=expired)

    def set_expires(self, queue: QueueAddress, row: uuid.UUID, moment: datetime) -> None:
        """Set a message's expiry to a moment in UTC."""
        self.do("set_expires", queue, moment=moment.isoformat(sep=" "), row=str(row))

    def lifetimes(self, queue: QueueAddress) -> list[float | None]:
        """The seconds that each message has left to live, by seq."""
        return [row[0] for row in self.do("lifetimes", queue)]

    def closed(self, queue: QueueAddress) -> Any:
        """Lock a queue against all who would send to it, as long as the block lasts."""
        return self.dotnet.holding("closed", queue)

    def _state(self, text: str, table: str, values: dict[str, Any], link: str = ", ") -> None:
        marks = {name: self.dotnet.mark.format(name) for name in values}
        pairs = link.join(f'"{name}" = {mark}' for name, mark in marks.items())
        named = text.replace("[pairs]", pairs or "1 = 1")
        self.dotnet.ask(named, QueueAddress(table, self.dotnet.state), **values)

    def change(self, table: str, **values: Any) -> None:
        """Set columns in all rows of a state table."""
        self._state("UPDATE {queue} SET [pairs]", table, values)

    def forget(self, table: str, **where: Any) -> None:
        """Delete the rows of a state table that have these values."""
        self._state("DELETE FROM {queue} WHERE [pairs]", table, where, " AND ")

    def insert(self, table: str, **values: Any) -> None:
        """Insert a row into a state table."""
        columns = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(self.dotnet.mark.format(name) for name in values)
        self._state(f"INSERT INTO {{queue}} ({columns}) VALUES ({marks})", table, values)

    def age(self, table: str, column: str, *, hours: int) -> None:
        """Move the times in a column of a state table back by some hours."""
        earlier = self.dotnet.earlier.format(column, hours)
        self._state(f"UPDATE {{queue}} SET {column} = {earlier}", table, {})

    def drop_schema(self, name: str) -> None:
        self.dotnet.drop_schema(name)

    def login(self, **more: str) -> Login:
        """
        Make a login without rights.

        `more` may have its `password`, and `all` to give it all rights.
        """
        name, password = f"role_{secrets.token_hex(4)}", more.get("password", "secret-A1")
        literal = "'" + password.replace("'", "''") + "'"
        self.run(self.shapes.login.format(name=name, literal=literal))
        if "all" in more:
            self.run(self.shapes.may_all.format(name=name))
        return as_login(self.dotnet.url, name, password)

    def admit(self, login: Login, schema: str) -> None:
        """Let a login see what is in a schema, where the database has a right for that."""
        if "schema" in self.shapes.rights:
            self.run(self.shapes.rights["schema"].format(schema=schema, role=login.name))

    def enlist(self, login: Login) -> None:
        """Give a login the rights of the team to which the state schema belongs."""
        text = self.shapes.rights["state tables"]
        self.run(text.format(state=self.dotnet.state, role=login.name))

    def grant(self, login: Login, right: str, queue: QueueAddress) -> None:
        """Give a right on a queue, and what this database asks for in addition."""
        self.on(queue, f"GRANT {right} ON {{queue}} TO {login.name}")
        self.admit(login, str(queue.schema))
        if right == "INSERT" and "use_numbers" in self.dotnet.texts:
            self.on(queue, self.dotnet.texts["use_numbers"].replace("[login]", login.name))

    def drop_login(self, login: Login) -> None:
        """Drop the login with its rights."""
        self.run(self.shapes.drop_login.format(name=login.name))
