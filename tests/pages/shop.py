"""
Where the documents' code is run: a database of its own, in the place of the documents' `shop`.

Python runs in one namespace a page, SQL by psycopg, and a line `sqlqueue …` by the command line
itself; of other programs' lines only the words are checked.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from typer.main import get_command

from sqlq_spark.admin import checks
from sqlq_spark.cli import main
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.rows import NO_STREAM, Origin

from . import programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from sqlq_spark.receive.offset import Offset

    from .page import Block

URL = "postgresql://user@host:5432/shop"  # as the documents write it
PASSWORD = r'\n *\.option\("password", "…"\)|, password="…"'  # noqa: S105 - the documents' dots
FOREVER = {"--watch"}  # such a command is parsed only


class CommandFailed(AssertionError):
    """A command of a document ended with another exit code than 0."""


@dataclass
class Shop:
    """A database with the documents' queues, and the output of what ran in it."""

    url: str
    folder: Path
    connection: psycopg.Connection[tuple[Any, ...]]
    names: dict[str, Any] = field(default_factory=dict)  # of the page's Python
    words: dict[str, str] = field(default_factory=dict)  # word of a page → ours
    printed: str = ""  # by the commands of the last block
    rows: list[tuple[Any, ...]] = field(default_factory=list)  # of the last SQL
    capture: pytest.CaptureFixture[str] | None = None

    # ------------------------------------------------------------ by psycopg

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows of the last, if it has any."""
        cursor = self.connection.execute(text.encode(), args or None)
        while cursor.nextset():
            pass
        return [] if cursor.description is None else cursor.fetchall()

    def count(self, table: str) -> int:
        """How many rows a table has."""
        return int(self.sql(f"SELECT count(*) FROM {table}")[0][0])

    def fill(self, queue: str, messages: int, **headers: str) -> None:
        """Send messages as an endpoint does, `m-1` and so on."""
        known = {"MessageIntent": "Send", "EnclosedMessageTypes": "Shop.PlaceOrder"}
        more = "".join(f',"NServiceBus.{key}":"{text}"' for key, text in (known | headers).items())
        self.sql(
            f"INSERT INTO {queue} (id, headers, body) SELECT gen_random_uuid(), "
            f"""'{{"NServiceBus.MessageId":"m-' || n || '"' || %s || '}}', """
            "convert_to('{\"number\":' || n || '}', 'UTF8') FROM generate_series(1, %s) AS n",
            more,
            messages,
        )

    def other(self) -> AbstractContextManager[psycopg.Connection[tuple[Any, ...]]]:
        """Give another session, in a transaction that is rolled back."""
        return contextlib.closing(psycopg.connect(self.url))

    # ------------------------------------------------------------ the text of a page

    def ours(self, text: str) -> str:
        """The text with our database, our folders and what a test puts for a word."""
        text = re.sub(PASSWORD, "", text).replace(URL, self.url)
        for word, mine in self.words.items():
            text = text.replace(word, mine)
        return text.replace("/lake/", f"{self.folder}/")

    def run(self, *given: Block) -> None:
        """Run blocks in their order; one that says why it is not run is passed over."""
        for each in given:
            if each.unrun is None:
                self.do(each.language, each.text)

    def do(self, language: str, text: str) -> None:
        """Run one text."""
        text = self.ours(text)
        if language == "python":
            exec(compile(text, "a page", "exec"), self.names)  # noqa: S102
        elif language == "sql":
            self.rows = self.sql(text)
        elif language == "sh":
            self.printed = "".join(self.command(line) for line in commands(text))
        else:
            pytest.fail(f"nothing runs {language!r}")

    def command(self, line: str) -> str:
        """Run one command; what it printed."""
        words = programs.split(line)
        if words[0] == "echo":  # … | sqlqueue …
            at = words.index("|")
            given = io.TextIOWrapper(io.BytesIO(" ".join(words[1:at]).encode()))
            with mock.patch.object(sys, "stdin", given):
                return self.sqlqueue(*words[at + 2 :])
        if words[0] != "sqlqueue":
            programs.check(words)
            return ""
        if FOREVER & set(words):
            parse(words)
            return ""
        return self.sqlqueue(*words[1:])

    def sqlqueue(self, *words: str, code: int = 0) -> str:
        """Run the command line in this process; what it printed on both outputs."""
        assert self.capture is not None
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        said = "".join(self.capture.readouterr())
        if int(ended.value.code or 0) != code:
            raise CommandFailed(f"{' '.join(words)} ended with {ended.value.code}: {said}")
        return said

    # ------------------------------------------------------------ a stream without Spark

    def stream(self, queue: str = "Shop.Orders", **options: str) -> Stream:
        """Give the driver's and the tasks' side of a stream, as Spark calls them."""
        return Stream(SourceOptions.parse({"url": self.url, "queue": queue, **options}))


class Stream:
    """A stream without Spark: its checkpoint is `offset`."""

    def __init__(self, options: SourceOptions, offset: Offset = INITIAL) -> None:
        self.options = options
        self.offset = offset
        self.loop = StreamDriver(options, time.monotonic, checks.at_start)

    def again(self) -> Stream:
        """Start again on the same checkpoint, as another process does."""
        self.close()
        return Stream(self.options, self.offset)

    def batch(self, origin: Origin = NO_STREAM) -> list[pa.Table]:
        """Acknowledge the last batch, and receive the next; `origin`: what Spark calls it."""
        end = self.loop.latest(self.offset)
        if end == self.offset:
            return []
        self.offset = end
        return self.received(origin)

    def received(self, origin: Origin = NO_STREAM) -> list[pa.Table]:
        """What the tasks of the open batch hand out."""
        options = self.options
        with contextlib.closing(self.loop._session) as session:  # noqa: SLF001 - one is enough
            return [
                receive(session.open(), task, timeout=options.query_timeout, origin=origin)
                for task in self.loop.tasks(self.offset)
            ]

    def bodies(self) -> list[bytes]:
        """The bodies of the next batch."""
        return bodies(self.batch())

    @property
    def id(self) -> str:
        """The stream's, as `sqlqueue receipts list` shows it."""
        return str(self.offset.stream)

    def close(self) -> None:
        """End the session."""
        self.loop.close()


def bodies(tables: list[pa.Table]) -> list[bytes]:
    """The bodies of received messages."""
    return [body for table in tables for body in table["body"].to_pylist()]


def commands(text: str) -> list[str]:
    """The commands of a block, a line each."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def parse(words: list[str]) -> None:
    """Let the command line read the words, and do nothing."""
    command: Any = get_command(main.app)
    _, *rest = words
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(words[0], rest)


@contextlib.contextmanager
def opened(server: str, folder: Path, capture: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    """Make a database of its own on a server; it is dropped afterwards."""
    name = f"shop_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with (
                mock.patch.dict(os.environ, {"SQLQUEUE_URL": url}),
                psycopg.connect(url, autocommit=True) as connection,
            ):
                yield Shop(url, folder, connection, capture=capture)
        finally:
            gone = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            admin.execute(gone.format(sql.Identifier(name)))
