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
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import browser
import psycopg
from rich.console import Console

from sqlq_spark.admin import watch
from sqlq_spark.cli import queues
from sqlq_spark.database import schema
from sqlq_spark.options import SourceOptions
from sqlq_spark.testing import Database, Message, embedded
from sqlq_spark.wire.headers import wire_time

from .page import ROOT
from .shop import Stream

if TYPE_CHECKING:
    from sqlq_spark.admin.watch import Look

IMAGES = ROOT / "docs" / "images"
COLUMNS, LOOKS, PAUSE = 140, 12, 0.5  # characters; looks of the screen; seconds between them
WIDTH, HEIGHT = 900, 1080  # pixels of the report
TYPES = ["Shop.PlaceOrder", "Shop.CancelOrder", "Shop.ChangeAddress"]
FAULTS = {
    "Shop.CustomerUnknown": "customer 4711 is not known",
    "System.TimeoutException": "The payment service did not answer within 30 seconds.",
}
CHANCE = random.Random(7)  # the same sample in each run


def orders(count: int, oldest: float, *, failed: bool = False) -> list[Message]:
    """Messages of several types, sent during the last `oldest` minutes; or those that failed."""
    now = datetime.now(UTC)
    found: list[Message] = []
    for age in sorted((CHANCE.random() ** 2 * oldest for _ in range(count)), reverse=True):
        headers = {"NServiceBus.TimeSent": wire_time(now - timedelta(minutes=age))}
        if failed:
            kind = CHANCE.choices([*FAULTS], [5, 1])[0]
            headers |= {
                "NServiceBus.FailedQ": '"public"."Shop.Orders"',
                "NServiceBus.ExceptionInfo.ExceptionType": kind,
                "NServiceBus.ExceptionInfo.Message": FAULTS[kind],
                "NServiceBus.TimeOfFailure": wire_time(now),
            }
        body = {"OrderId": len(found), "Lines": "x" * CHANCE.randrange(800)}
        message_type = CHANCE.choices(TYPES, [6, 2, 1])[0]
        found.append(Message(body, message_type=message_type, headers=headers))
    return found


def screen(database: Database) -> str:
    """The live screen, as SVG: an endpoint handles invoices, and a stream reads orders."""
    incoming, billing, error = map(database.queue, ("Shop.Orders", "Shop.Billing", "error"))
    incoming.send(*orders(4000, 500.0))
    billing.send(*orders(60, 3.0))
    error.send(*orders(23, 240.0, failed=True))
    limits = {"maxMessagesPerTrigger": "120", "maxConcurrency": "2"}
    stream, options = Stream(incoming.options | limits), SourceOptions.parse(incoming.options)
    handle = 'DELETE FROM "Shop.Billing" WHERE seq IN (SELECT seq FROM "Shop.Billing" LIMIT 35)'
    before: Look | None = None
    for number in range(LOOKS):
        with database.connection() as connection:
            before = watch.add_rates(before, watch.look(connection, [], options))
        incoming.send(*orders(CHANCE.randrange(60, 200), 0.1))
        billing.send(*orders(90 if 4 < number < 9 else 20, 0.1))
        with psycopg.connect(database.url) as endpoint:
            endpoint.execute(handle.encode())
        stream.batch()
        time.sleep(PAUSE)
    stream.close()
    assert before is not None
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False)
    console.print(queues.draw(before, "sqlqueue", "watch"))
    found = console.export_svg(title="sqlqueue stats --watch")
    # nothing is loaded from elsewhere: the font is the one that is there
    return re.sub(r"@font-face \{.*?\}\s*", "", found, flags=re.DOTALL)


def report(url: str, folder: Path) -> bytes:
    """The upper part of the report's page, as WebP."""
    page = folder / "report.html"
    words = ["report", "Shop.Orders", "error", "--html", str(page), "--url", url]
    subprocess.run([sys.executable, "-m", "sqlq_spark", *words], check=True)
    program = browser.program()
    if program is None:
        sys.exit("no browser: set SQLQ_TEST_BROWSER to a Chromium")
    with browser.page(program, folder / "profile") as tab:
        tab.show(page, width=WIDTH)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        picture = {"format": "webp", "quality": 80, "clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(tab.do("Page.captureScreenshot", **picture)["data"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, embedded.server(tcp=True) as server:
        sample = Database(server.url)
        with sample.connection() as connected:
            schema.install(connected)
        (IMAGES / "watch.svg").write_text(screen(sample), encoding="utf-8")
        (IMAGES / "report.webp").write_bytes(report(server.url, Path(place)))
