"""
The pictures of docs/images: the live screen and the report, of a database with sample messages.

    PYTHONPATH=tests python -m tests.pages.pictures

writes them again: `watch.svg` by rich, `report.webp` by a headless Chromium.
"""

from __future__ import annotations

import base64
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import browser
import psycopg
from psycopg import sql
from rich.console import Console

from sqlq_spark.admin import watch
from sqlq_spark.cli import queues
from sqlq_spark.database import schema
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.testing import Database, Message, embedded
from sqlq_spark.wire.headers import wire_time
from sqlq_spark.wire.rows import NO_STREAM

from .page import ROOT

if TYPE_CHECKING:
    from sqlq_spark.admin.watch import Look
    from sqlq_spark.testing import Queue

IMAGES = ROOT / "docs" / "images"
COLUMNS, LOOKS, PAUSE = 140, 12, 0.5  # characters; looks of the screen; seconds between them
WIDTH, HEIGHT = 900, 1080  # pixels of the report
ORDERS = '"public"."Shop.Orders"'
TYPES = ["Shop.PlaceOrder", "Shop.CancelOrder", "Shop.ChangeAddress"]
FAULTS = {
    "Shop.CustomerUnknown": "customer 4711 is not known",
    "System.TimeoutException": "The payment service did not answer within 30 seconds.",
}
CHANCE = random.Random(7)  # the same sample in each run


def orders(count: int, oldest: float) -> list[Message]:
    """Messages of several types, sent during the last `oldest` minutes."""
    begin = datetime.now(UTC)
    ages = sorted((CHANCE.random() ** 2 * oldest for _ in range(count)), reverse=True)
    return [
        Message(
            {"OrderId": number, "Lines": "x" * CHANCE.randrange(800)},
            message_type=CHANCE.choices(TYPES, [6, 2, 1])[0],
            headers={"NServiceBus.TimeSent": wire_time(begin - timedelta(minutes=age))},
        )
        for number, age in enumerate(ages)
    ]


def failures(queue: str, count: int) -> list[Message]:
    """Messages that failed, as an endpoint sends them to an error queue."""
    found = []
    for message in orders(count, 240.0):
        kind = CHANCE.choices([*FAULTS], [5, 1])[0]
        failed = {
            "NServiceBus.FailedQ": queue,
            "NServiceBus.ExceptionInfo.ExceptionType": kind,
            "NServiceBus.ExceptionInfo.Message": FAULTS[kind],
            "NServiceBus.TimeOfFailure": wire_time(datetime.now(UTC)),
        }
        headers = {**(message.headers or {}), **failed}
        found.append(Message(message.body, message_type=message.message_type, headers=headers))
    return found


class Sample:
    """A database in use: an endpoint that handles invoices, and a stream that reads orders."""

    def __init__(self, database: Database, stack: ExitStack) -> None:
        self.database = database
        self.orders, self.billing, self.error = map(
            database.queue, ("Shop.Orders", "Shop.Billing", "error")
        )
        self.orders.send(*orders(4000, 500.0))
        self.billing.send(*orders(60, 3.0))
        self.error.send(*failures(ORDERS, 23))
        self.options = SourceOptions.parse(
            {**self.orders.options, "maxMessagesPerTrigger": "120", "maxConcurrency": "2"}
        )
        self.loop = StreamDriver(self.options, time.monotonic, lambda *_: None)
        stack.callback(self.loop.close)
        self.offset = INITIAL

    def batch(self) -> None:
        """Receive a batch, as the stream's tasks do."""
        self.offset = self.loop.latest(self.offset)
        for task in self.loop.tasks(self.offset):
            with self.database.connection() as connection:
                receive(connection, task, timeout=30.0, origin=NO_STREAM)

    def handle(self, queue: Queue, count: int) -> None:
        """Delete the first messages of a queue, as an endpoint does."""
        table = sql.Identifier(queue.name)
        first = sql.SQL("DELETE FROM {0} WHERE seq IN (SELECT seq FROM {0} ORDER BY seq LIMIT %s)")
        with psycopg.connect(self.database.url) as connection:
            connection.execute(first.format(table), [count])

    def looks(self) -> list[Look]:
        """Look at the queues while they are used."""
        found = []
        for number in range(LOOKS):
            with self.database.connection() as connection:
                found.append(watch.look(connection, [], self.options))
            self.orders.send(*orders(CHANCE.randrange(60, 200), 0.1))
            self.billing.send(*orders(90 if 4 < number < 9 else 20, 0.1))
            self.handle(self.billing, 35)
            self.batch()
            time.sleep(PAUSE)
        return found


def screen(looks: list[Look]) -> str:
    """The live screen after the last look, as SVG."""
    before: Look | None = None
    for now in looks:
        before = watch.add_rates(before, now)
    assert before is not None
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False)
    console.print(queues.draw(before, "sqlqueue", "watch"))
    found = console.export_svg(title="sqlqueue stats --watch")
    # nothing is loaded from elsewhere: the font is the one that is there
    return re.sub(r"@font-face \{.*?\}\s*", "", found, flags=re.DOTALL)


def report(sample: Sample, folder: Path) -> bytes:
    """The upper part of the report's page, as WebP."""
    page = folder / "report.html"
    words = ["report", "Shop.Orders", "--html", str(page), "--error-queue", "error"]
    words += ["--url", sample.database.url]
    subprocess.run([sys.executable, "-m", "sqlq_spark", *words], check=True)
    program = browser.program()
    if program is None:
        sys.exit("no browser: set SQLQ_TEST_BROWSER to a Chromium")
    with browser.page(program, folder / "profile") as tab:
        tab.show(page, width=WIDTH)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        picture = {"format": "webp", "quality": 80, "clip": clip, "captureBeyondViewport": True}
        found = tab.do("Page.captureScreenshot", **picture)
    return base64.b64decode(found["data"])


def main() -> None:
    """Write both pictures."""
    IMAGES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = Database(stack.enter_context(embedded.server(tcp=True)).url)
        with database.connection() as connection:
            schema.install(connection, timeout=30.0)
        sample = Sample(database, stack)
        (IMAGES / "watch.svg").write_text(screen(sample.looks()), encoding="utf-8")
        (IMAGES / "report.webp").write_bytes(report(sample, folder))


if __name__ == "__main__":
    main()
