"""
Passwords that expire: a function gives one at each connect.

Only the option's text is stored, sent to executors or shown. The password is in the url of one
attempt to connect, and nowhere else. An error of the function may quote it, so the error says only
what was raised and where.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import quote

from sqlq_spark import database
from sqlq_spark.errors import BadOption, CredentialsFailed, SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_REASON = 500  # characters of an error of azure-identity or boto3


def log_in(url: str, credentials: str | None) -> str:
    """
    Return the url with a password of the option `credentials`; unchanged without the option.

    Raises:
        BadOption: there is no such function, or it returns no password.
        MissingPackage: an extra is not installed.
        CredentialsFailed: the function raised an error. Another attempt may succeed.
    """
    if credentials is None:
        return url
    password = ask(url, credentials)
    return f"{url}{'&' if '?' in url else '?'}password={quote(password, safe='')}"


def ask(url: str, credentials: str) -> str:
    """Call the function with the url, and return its password. Raises as `log_in`."""
    tokens = database.of(url).TOKENS
    function = tokens.get(credentials) or find_function(credentials)
    try:
        password = function(url)
    except SqlQueueError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's function or of a cloud's package
        reason = words_of(error) if credentials in tokens else place_of(error)
        raise CredentialsFailed(credentials=credentials, reason=reason) from None
    if not is_password(password):
        expected = "a function that returns the password, a text that is not empty"
        raise BadOption(
            option="credentials",
            found=credentials,
            expected=f"{expected}, but found {kind_of(password)}",
        )
    return password


def find_function(credentials: str) -> Callable[[str], object]:
    """Import the function of `package.module:function`. Raises BadOption."""
    module, _, name = credentials.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        own = isinstance(error, (ImportError, AttributeError))  # these quote names only
        reason = words_of(error) if own else place_of(error)
        expected = f"a function that every driver and executor can import ({reason})"
        raise BadOption(option="credentials", found=credentials, expected=expected) from None
    if not callable(found):
        expected = f"a function, but found {kind_of(found)}"
        raise BadOption(option="credentials", found=credentials, expected=expected)
    function: Callable[[str], object] = found
    return function


def is_password(found: object) -> TypeGuard[str]:
    """Whether this is a text that a url can hold and a server can get."""
    if not isinstance(found, str) or not found or "\0" in found:
        return False
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def kind_of(found: object) -> str:
    """Return what a value is, without the value."""
    if isinstance(found, str):
        return "a text that cannot be sent" if found else "an empty text"
    return type(found).__qualname__


def words_of(error: Exception) -> str:
    """Return the error's class and sentence in one line."""
    text = " ".join(str(error).split())
    cut = "…" if len(text) > LONGEST_REASON else ""
    return f"{type(error).__qualname__}: {text[:LONGEST_REASON]}{cut}"


def place_of(error: Exception) -> str:
    """Return the error's class and the line that raised it, without its text."""
    last = extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__qualname__} in {place}; its text is not shown, it may hold a secret"
