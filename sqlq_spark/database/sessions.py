"""
Sessions with the database: opened where Spark calls us, and reopened where that is safe.

The work of `Session.run_with_retries` must consist of whole transactions that may run twice.
Receiving, acknowledging, staging and dispatching may, because each checks what was done before.

A worker's session that ends well leaves its connection to the next session of the process, for IDLE
seconds. Connecting takes 35 ms and more, the task of a small batch 10.

With the option `credentials` a function gives a password at each connect, because some expire. Only
the option's text is stored, sent to executors or shown. One attempt to connect gets the password,
and nothing else does. An error of the function may quote it, so the error says only what was raised
and where. Some databases take a token where others take a password.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Self, TypeVar, cast

from sqlq_spark import database, errors
from sqlq_spark.database.schema import check_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

ATTEMPTS = 7
LONGEST_PAUSE = 5.0  # seconds; all pauses of ATTEMPTS together are about 10
# seconds for which an absent server is waited for, once the url led to a database. A failover of an
# availability group takes 10 to 60 s, and a serverless database resumes in up to a minute.
FAILOVER = 90.0
# what a failover causes: the server, or a database that recovers there, may be absent
ABSENT = (
    errors.ConnectionLost,
    errors.DatabaseNotFound,
    errors.LoginUnclear,
    errors.NotReachable,
)
reached: set[str] = set()  # urls that led to a database in this process
# worth another attempt with the option `credentials`, which then gives another password or token; a
# server that does not speak English refuses a login in words that are not known
EXPIRED = (errors.CredentialsFailed, errors.LoginRefused, errors.ConnectionUnclear)
IDLE = 20.0  # seconds after which a connection that no session takes is closed
UNSENDABLE = re.compile(r"[\0\ud800-\udfff]")  # in a password: NUL, half of a surrogate pair
LONGEST_REASON = 500  # characters of an error of azure-identity or boto3


class Session:
    """A connection that is opened when it is first needed, and again when it broke."""

    def __init__(
        self,
        options: DatabaseOptions,
        application: str,
        *,
        worker: bool = False,
        reached: bool = False,
    ) -> None:
        self.options = options
        self.application = application  # what the DBA sees behind `sqlqueue`
        # whether to keep the connection for the next session of this process, if the `with` block
        # ends well; it must end with no transaction open
        self._worker = worker
        self._reached = reached  # whether another process, as the driver's, has reached the url
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._worker and failed is None and self._connection is not None:
            idle.keep(self._key, self._connection)
            self._connection = None
        self.close()

    def run_with_retries(self, work: Callable[[Connection], T]) -> T:
        """
        Run `work`, and run it again with growing pauses after a failure that may end soon.

        Such failures are a lost connection, a deadlock, a lock that others hold for too long, a
        receipt of another attempt, a full log, and a server that is short of memory or space. If
        the answer to a commit is lost, `work` must find out whether it was done.

        With the option `credentials` a login that was refused is such a failure too: the password
        may have changed since it was given. So is an error of the service that gives it.

        A server that is lost is waited for, for FAILOVER seconds. One that was never reached is
        not, because the url is probably wrong.
        """
        import stamina  # noqa: PLC0415 - brings asyncio, for which `--help` need not wait

        attempts = stamina.retry_context(
            on=self._retry_rule(), attempts=None, timeout=None, wait_max=LONGEST_PAUSE
        )
        try:
            for attempt in attempts:
                with attempt:
                    try:
                        return work(self.open())
                    except errors.ConnectionLost:
                        self.close()
                        raise
        except errors.SqlQueueError as error:
            # Spark prints every frame of the traceback, 25 of them the retries'
            raise error.with_traceback(None) from None
        raise AssertionError  # pragma: no cover - stamina raises the last error itself

    def open(self) -> Connection:
        if self._connection is None:
            kept = idle.take(self._key) if self._worker else None
            self._connection = kept or self._connect()
            self._connection.application = f"sqlqueue {self.application}"
            self._connection.trusted = self.options.trusted
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _key(self) -> object:
        """Sessions with equal keys may share a connection; never beyond a fork."""
        options = self.options
        place = options.url, options.credentials, options.query_timeout
        # whose state schema was accepted when the session was opened
        state = options.state_schema, options.trusted.state_schema, options.trusted_owners
        return os.getpid(), place, state, type(self)

    def _retry_rule(self) -> Callable[[Exception], bool]:
        """Return whether another attempt may follow an error, for all errors of one work."""
        times: dict[bool, list[float]] = {True: [], False: []}  # of the server's absence, of others

        def may_follow(error: Exception) -> bool:
            known = self._reached or self.options.url in reached
            # a standby answers, and the url may name it by mistake
            lost = known and isinstance(error, ABSENT) and not isinstance(error, errors.ReadOnly)
            since = times[lost]
            since.append(time.monotonic())
            if lost and since[-1] - since[0] < FAILOVER:
                log.warning("%s; connecting again, for up to %g s", error, FAILOVER)
                return True
            expired = self.options.credentials is not None and isinstance(error, EXPIRED)
            return len(since) < ATTEMPTS and (expired or isinstance(error, database.TRANSIENT))

        return may_follow

    def _connect(self) -> Connection:
        options = self.options
        credential = None
        if options.credentials is not None:
            credential = ask_credential(options.url, options.credentials)
        connection = database.dialect_of(options.url).connect(
            options.url,
            application=f"sqlqueue {self.application}",
            timeout=options.query_timeout,
            state=options.state_schema,
            credential=credential,
        )
        reached.add(options.url)
        connection.trusted = options.trusted
        return connection


class StateSession(Session):
    """A session that makes sure, after connecting, that the state tables may be used."""

    def _connect(self) -> Connection:
        connection = super()._connect()
        check_state(connection)
        return connection


class Idle:
    """Connections of sessions that ended, one for each database and login; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[object, tuple[Connection, threading.Timer]] = {}

    def take(self, key: object) -> Connection | None:
        with self._lock:
            connection, timer = self._kept.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return connection

    def keep(self, key: object, connection: Connection) -> None:
        """Keep a connection without a transaction; close a second one for the same key."""
        timer = threading.Timer(IDLE, self._close, (key, connection))
        timer.daemon = True
        with self._lock:
            _, kept = self._kept.setdefault(key, (connection, timer))
        if kept is timer:
            timer.start()
        else:
            connection.close()

    def _close(self, key: object, connection: Connection) -> None:
        with self._lock:
            mine = self._kept.get(key, (None, None))[0] is connection
            if mine:
                del self._kept[key]
        if mine:
            connection.close()


idle = Idle()


# ---------------------------------------------------------------- the option `credentials`


def ask_credential(url: str, credentials: str) -> str:
    """
    Return the password or token that the option `credentials` gives for a url.

    Raises:
        BadOption: there is no such function, or it returns no password.
        MissingPackage: an extra is not installed.
        CredentialsFailed: the function raised an error. Another attempt may succeed.
    """
    tokens = database.dialect_of(url).TOKENS
    function = tokens.get(credentials) or find_function(credentials)
    try:
        credential = function(url)
    except errors.SqlQueueError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's function or of a cloud's package
        reason = describe_error(error) if credentials in tokens else locate_error(error)
        raise errors.CredentialsFailed(
            option="credentials", credentials=credentials, reason=reason
        ) from None
    # a text that a url can hold and a server can get
    if not isinstance(credential, str) or credential == "" or UNSENDABLE.search(credential):
        expected = "a function that returns the password, a text that is not empty"
        raise errors.BadOption(
            option="credentials",
            found=credentials,
            expected=f"{expected}, but found {describe_value(credential)}",
        )
    return credential


def find_function(credentials: str) -> Callable[[str], object]:
    """Import the function of `package.module:function`. Raises BadOption."""
    module, _, name = credentials.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        own = isinstance(error, (ImportError, AttributeError))  # these quote names only
        reason = describe_error(error) if own else locate_error(error)
        expected = f"a function that every driver and executor can import ({reason})"
        raise errors.BadOption(option="credentials", found=credentials, expected=expected) from None
    if not callable(found):
        expected = f"a function, but found {describe_value(found)}"
        raise errors.BadOption(option="credentials", found=credentials, expected=expected)
    return cast("Callable[[str], object]", found)


def describe_value(found: object) -> str:
    """Return what a value is, without the value."""
    if isinstance(found, str):
        return "a text that cannot be sent" if found else "an empty text"
    return type(found).__qualname__


def describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    cut = "…" if len(text) > LONGEST_REASON else ""
    return f"{type(error).__qualname__}: {text[:LONGEST_REASON]}{cut}"


def locate_error(error: Exception) -> str:
    """Return the error's class and the line that raised it, without its text."""
    last = extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__qualname__} in {place}; its text is not shown, it may hold a secret"
