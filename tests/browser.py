"""
A headless browser for tests of a page: spoken to by its debugging pipe, without a driver.

SQLQ_TEST_BROWSER names a Chromium; without it the one on PATH is taken, if there is one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader, BufferedWriter
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str | None:
    """The browser to start; None where there is none."""
    named = os.environ.get("SQLQ_TEST_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab, as a phone or a screen of some width shows it."""

    def __init__(self, send: BufferedWriter, receive: BufferedReader) -> None:
        self._send = send
        self._receive = receive
        self._calls = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        attached = self.do("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method, and keep the events that come before its answer."""
        self._calls += 1
        session = {} if self._session is None else {"sessionId": self._session}
        call = {"id": self._calls, "method": method, "params": values, **session}
        self._send.write(json.dumps(call).encode() + b"\0")
        self._send.flush()
        while True:
            said = self._next()
            if said.get("id") == self._calls:
                assert "error" not in said, said
                found: dict[str, Any] = said["result"]
                return found
            self.events.append(said)

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        found: dict[str, Any] = json.loads(text)
        return found

    def show(self, file: Path, *, width: int, dark: bool = False) -> None:
        """Load a file."""
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.do("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.do("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.do("Page.navigate", url=file.as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._next())

    def ask(self, expression: str) -> Any:
        """Evaluate an expression in the page."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


@contextmanager
def page(browser: str, folder: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own, and give its tab."""
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    words = [
        *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-dev-shm-usage", f"--user-data-dir={folder}", "--remote-debugging-pipe"),
    ]
    line = f"exec {shlex.join(words)} 3<&{to_browser} 4>&{to_us}"
    with (
        open(from_us, "wb") as send,  # noqa: PTH123 - of a descriptor
        open(from_browser, "rb") as receive,  # noqa: PTH123
        subprocess.Popen(
            ["bash", "-c", line],
            pass_fds=(to_browser, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        os.close(to_browser)
        os.close(to_us)
        try:
            yield Page(send, receive)
        finally:
            process.kill()
