"""
A function for the option `credentials`, in a module that Spark's workers can import.

The url's parameter `passfile` names a file with the password. (libpq reads none when it has a
password.) Each call adds a line to a file beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

CREDENTIALS = "tests.given_password:password"


def password(url: str) -> str:
    """Give the password that was written last."""
    file = Path(parse_qs(urlsplit(url).query)["passfile"][0])
    with file.with_name("calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{os.getpid()} {url}\n")
    return file.read_text(encoding="utf-8")
