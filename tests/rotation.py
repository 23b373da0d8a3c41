"""A login whose password changes, and the function that gives the published password."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

CREDENTIALS = "tests.rotation:password"  # Spark's workers import it too


def password(url: str) -> str:
    """Return the password that was published last, and record the call. The url names its file."""
    file = Path(parse_qs(urlsplit(url).query)["passfile"][0])
    with file.with_name("calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{os.getpid()} {url}\n")
    return file.read_text(encoding="utf-8")


@dataclass
class Rotation:
    """The login, and the folder with the password that the function gives."""

    place: Place
    folder: Path
    user: str = field(default_factory=lambda: f"role_{secrets.token_hex(4)}")
    passwords: list[str] = field(default_factory=list)  # all that there were

    @property
    def url(self) -> str:
        """The place's url with this login and without a password. It names no file of passwords."""
        parts = urlsplit(self.place.url)
        query = f"passfile={quote(str(self.folder / 'password'), safe='')}"
        place = f"{self.user}@{parts.netloc.rpartition('@')[2]}"
        return parts._replace(netloc=place, query=query).geturl()

    @property
    def options(self) -> dict[str, str]:
        """What a read, a write or a command needs to log in."""
        return {"url": self.url, "credentials": CREDENTIALS}

    @property
    def calls(self) -> list[str]:
        """Process and url of each call."""
        file = self.folder / "calls"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def change(self) -> str:
        """Set another password, as long as a token, on the server. It is not published yet."""
        self.passwords.append(f"pA55 &w%rd'@/:{secrets.token_hex(1000)}")
        role, text = sql.Identifier(self.user), sql.Literal(self.passwords[-1])
        self.place.connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, text))
        return self.passwords[-1]

    def publish(self) -> None:
        """Let the function return the password that the server accepts."""
        (self.folder / "new").write_text(self.passwords[-1], encoding="utf-8")
        (self.folder / "new").replace(self.folder / "password")

    def withdraw(self) -> None:
        """Let the function fail."""
        (self.folder / "password").unlink()

    def end_sessions(self) -> None:
        """End every session of the login."""
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        self.place.sql(text, self.user)

    def shown_in(self, text: str) -> list[str]:
        """The lines that give a password away."""
        return [line for line in text.splitlines() if "pA55" in line]


@contextmanager
def rotation(place: Place, folder: Path) -> Iterator[Rotation]:
    """Give a login with the rights of the place's login. The function gives its first password."""
    made = Rotation(place, folder)
    role, owner = sql.Identifier(made.user), sql.Identifier(urlsplit(place.url).username or "")
    place.connection.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(role, owner))
    made.change()
    made.publish()
    yield made
    made.end_sessions()
    place.connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
    place.connection.execute(sql.SQL("DROP ROLE {}").format(role))
