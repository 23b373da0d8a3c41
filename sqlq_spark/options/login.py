"""User and password, and the url that takes them."""

from __future__ import annotations

import re
from urllib.parse import quote


def encoded(word: str) -> str:
    """Return a pattern of a word of which a url may percent-encode each letter, in any case."""
    return "".join(f"(?:{each}|%{ord(each):x}|%{ord(each.upper()):x})" for each in word)


# a password in a url, before the host or in the query
OWN_PASSWORD = re.compile(rf"(?i)://[^/?@:]*:[^/?]*@|[?&]{encoded('password')}=")


def with_password(url: str, password: str | None) -> str:
    """Put a password of the environment into a url that has none of its own."""
    return url if OWN_PASSWORD.search(url) else with_login(url, None, password)


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Put the options user and password into the url."""
    login = {"user": user, "password": password}
    query = "&".join(
        f"{key}={quote(text, safe='')}" for key, text in login.items() if text is not None
    )
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url
