"""The database in which the documents' code is run, in the place of their `shop`."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from cli.database import own_database
from conftest import Database

from sqlq_spark.admin import doctor
from sqlq_spark.cli import main
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.rows import NO_SPARK_BATCH

from . import programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg
    from pyspark.sql import SparkSession

    from sqlq_spark.receive.batch import Offset

    from .page import Block

URL = "postgresql://user@host:5432/shop"  # as the documents write it
PASSWORD = r'\n *\.option\("password", "…"\)|, password="…"'  # noqa: S105 - the documents' dots


@dataclass
class Shop(Database):
    """A database with the documents' queues, and the output of what ran in it."""

    url: str
    folder: Path
    connection: psycopg.Connection[tuple[Any, ...]]
    capture: pytest.CaptureFixture[str]
    names: dict[str, Any] = field(default_factory=dict)  # the variables of the page's Python
    words: dict[str, str] = field(default_factory=dict)  # word of a page → ours
    printed: str = ""  # what the last command printed
    rows: list[Any] = field(default_factory=list)  # the rows of the last SQL
    seen: str = ""  # all that blocks printed or returned

    def count(self, *tables: str) -> list[int]:
        """How many rows tables have."""
        return [self.sql(f"SELECT count(*) FROM {each}")[0][0] for each in tables]

    def fill(self, queue: str, messages: int, body: str = "", **headers: str) -> None:
        """Send messages as an endpoint does, `m-1` and so on."""
        known = {"MessageIntent": "Send", "EnclosedMessageTypes": "Shop.PlaceOrder"}
        more = "".join(f',"NServiceBus.{key}":"{text}"' for key, text in (known | headers).items())
        self.sql(
            f"INSERT INTO {queue} (id, headers, body) SELECT gen_random_uuid(), "
            """'{"NServiceBus.MessageId":"m-' || n || '"' || %s || '}', """
            "convert_to(coalesce(nullif(%s, ''), '{\"number\":' || n || '}'), 'UTF8') "
            "FROM generate_series(1, %s) AS n",
            more,
            body,
            messages,
        )

    def headers(self, queue: str) -> list[dict[str, str]]:
        """The headers of what waits, by seq."""
        return [json.loads(row[0]) for row in self.sql(f"SELECT headers FROM {queue} ORDER BY seq")]

    # ------------------------------------------------------------ the text of a page

    def run(self, *given: Block, spark: SparkSession | None = None) -> None:
        """
        Run blocks in their order, except those with a reason not to.

        Spark runs SQL if it is given.
        """
        for each in given:
            if each.unrun is None:
                self.do(each.language, each.text, spark)
                self.seen += f"{self.printed}{self.rows}"

    def ours(self, text: str) -> str:
        """Replace words of a text by our database, our folders, and what a test gives."""
        text = re.sub(PASSWORD, "", text).replace(URL, self.url)
        for word, ours in self.words.items():
            text = text.replace(word, ours)
        return text.replace("/lake/", f"{self.folder}/")

    def do(self, language: str, text: str, spark: SparkSession | None) -> None:
        """Run one text of a page."""
        text = self.ours(text)
        if language == "python":
            exec(compile(text, "a page", "exec"), self.names)  # noqa: S102
        elif language == "sql" and spark is not None:
            for each in filter(str.strip, re.split(r";(?:\n|$)", text)):
                self.rows = spark.sql(each).collect()
        elif language == "sql":
            self.rows = self.sql(text)
        elif language == "sh":
            for each in programs.lines(text):
                code = re.search(r"# exit code (\d+)", each)
                self.command(programs.split(each), int(code[1]) if code else 0)
        else:
            assert language in {"csharp", "mermaid", "json", "text"}, language

    def command(self, words: list[str], code: int) -> None:
        """
        Run our command, which may read a word from `echo`.

        One that would not end is only checked.
        """
        given = words.index("|") + 1 if words[0] == "echo" else 0
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(words[1].encode()))):
            if words[given] == "sqlqueue" and "--watch" not in words:
                self.sqlqueue(*words[given + 1 :], code=code)
            else:
                programs.check(words)

    def sqlqueue(self, *words: str, code: int = 0) -> str:
        """Run the command line in this process. Return what it printed on both outputs."""
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        self.printed = "".join(self.capture.readouterr())
        assert int(ended.value.code or 0) == code, f"{words}: {self.printed}"
        return self.printed

    def stream(self, **options: str) -> Stream:
        """Give a stream, which has the driver and the tasks as Spark calls them."""
        return Stream({"url": self.url, "queue": "Shop.Orders", **options})


class Stream:
    """A stream without Spark: its checkpoint is `offset`."""

    def __init__(self, raw: dict[str, str], offset: Offset = INITIAL) -> None:
        self.raw = raw
        self.options = SourceOptions.parse(raw)
        self.offset = offset
        self.loop = StreamDriver(self.options, time.monotonic, doctor.at_start)

    def again(self, **options: str) -> Stream:
        """Start again on the same checkpoint, as another process does. Options may change."""
        self.close()
        return Stream(self.raw | options, self.offset)

    def batch(self) -> list[bytes]:
        """Acknowledge the last batch, and receive the bodies of the next."""
        end = self.loop.latest(self.offset)
        if end == self.offset:
            return []
        self.offset = end
        return self.received()

    def received(self) -> list[bytes]:
        """The bodies that the tasks of the open batch return."""
        connection = self.loop._session.open()  # noqa: SLF001
        tasks = self.loop.tasks(self.offset)
        results = (receive(connection, task, spark_batch=NO_SPARK_BATCH) for task in tasks)
        return [body for each in results for body in each.rows["body"].to_pylist()]

    @property
    def id(self) -> str:
        """The stream's id, as `sqlqueue receipts list` shows it."""
        return str(self.offset.stream)

    def close(self) -> None:
        """End the session."""
        self.loop.close()


@pytest.fixture
def shop(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    """Give a database of its own, with the state tables and the documents' queues."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # pytest would keep all its lines
    with (
        own_database(server) as place,
        mock.patch.dict(os.environ, {"SQLQUEUE_URL": place.url}),
    ):
        made = Shop(place.url, tmp_path, place.connection, capsys)
        made.sqlqueue("install")
        made.sqlqueue("create", "Shop.Orders", "--error", "error", "--delayed")
        yield made
