"""User, password and what gives it; and the url that takes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from sqlq_spark.wire.address import Names

SERVICES = {"azure", "aws"}
FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


def encoded(word: str) -> str:
    """Return a pattern of a word of which a url may percent-encode each letter, in any case."""
    return "".join(f"(?:{each}|%{ord(each):x}|%{ord(each.upper()):x})" for each in word)


# a password in a url, before the host or in the query
OWN_PASSWORD = re.compile(rf"(?i)://[^/?@:]*:[^/?]*@|[?&]{encoded('password')}=")


def with_password(url: str, password: str | None) -> str:
    """Put a password of the environment into a url that has none of its own."""
    return url if OWN_PASSWORD.search(url) else with_login(url, None, password)


def credentials(text: str) -> str:
    """
    Read `azure`, `aws` or `package.module:function`.

    Raises:
        BadOption: without the text, which may be a password by mistake.
    """
    if text.lower() in SERVICES:
        return text.lower()
    if not FUNCTION.fullmatch(text):
        raise BadOption(
            option="credentials", found="…", expected="azure, aws or package.module:function"
        )
    return text


def refuse_password(url: str, text: str, naming: Names) -> None:
    """
    Refuse the option `credentials` beside a password, and where the database has its own way.

    Raises:
        BadOption.
    """
    if naming.own_credentials is not None:
        expected = (
            f"{naming.own_credentials} instead, with which the driver gets a token at each connect"
        )
        raise BadOption(option="credentials", found=text, expected=expected)
    if OWN_PASSWORD.search(url):
        raise BadOption(
            option="credentials",
            found=text,
            expected="no password beside it, in the url or as an option",
        )


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Put the options user and password into the url."""
    login = {"user": user, "password": password}
    query = "&".join(
        f"{key}={quote(text, safe='')}" for key, text in login.items() if text is not None
    )
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url
