"""
Sessions with the database. They open a connection when it is needed, and again when it has broken.

`Session.run_with_retries` runs a function again after a failure that may pass. The function must
consist of whole transactions that may run twice. Receiving, acknowledging, staging and dispatching
may run twice, because each of them first checks what has been done before.

A session that ends without an error can leave its connection to the next session of the same
process, for IDLE seconds. This saves time: connecting takes 35 ms or more, and the task of a small
batch takes only 10 ms.

The option `credentials` names a function that returns a password or a token for each attempt to
connect, because some passwords expire. Only the text of the option is stored, sent to executors or
shown. What the function returns is used for that attempt and nowhere else. If the function raises
an error, the text of that error may quote the password. So our error says only what was raised and
where.
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
from sqlq_spark.log import silence_retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

ATTEMPTS = 7  # how often the work is tried
LONGEST_PAUSE = 5.0  # seconds; the pauses between all ATTEMPTS add up to about 10
# How many seconds a session waits for a server that was reached before and is now absent. A
# failover of an availability group takes 10 to 60 s. A serverless database resumes within a minute.
FAILOVER = 90.0
# errors during a failover: the server is absent, or its database is still recovering
ABSENT = (
    errors.ConnectionLost,
    errors.DatabaseNotFound,
    errors.LoginUnclear,
    errors.NotReachable,
)
reached_urls: set[str] = set()  # urls that led to a database in this process
# After these errors another attempt may succeed if the option `credentials` is set, because it gets
# a new password or token. ConnectionUnclear is among them, because it may be a refused login: if a
# server does not speak English, the words in which it refuses a login are not known.
EXPIRED = (errors.CredentialsFailed, errors.LoginRefused, errors.ConnectionUnclear)
IDLE = 20.0  # seconds after which a kept connection is closed, if no session takes it
UNSENDABLE = re.compile(r"[\0\ud800-\udfff]")  # in a password: NUL, or half a surrogate pair
LONGEST_REASON = 500  # how many characters of an error of azure-identity or boto3 are shown


class Session:
    """A connection that is opened when it is first needed, and opened again after it broke."""

    def __init__(
        self,
        options: DatabaseOptions,
        application: str,
        *,
        keep_connection: bool = False,
        was_reached: bool = False,
    ) -> None:
        self.options = options
        self.application = application  # the name that a DBA sees after `sqlqueue`
        # whether the next session of this process may take the connection if the `with` block ends
        # without an error; no transaction may be open at its end then
        self._keep_connection = keep_connection
        # whether another process has reached the url, as Spark's driver has before its tasks run
        self._was_reached = was_reached
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._keep_connection and failed is None and self._connection is not None:
            idle_connections.keep(self._key, self._connection)
            self._connection = None
        self.close()

    def run_with_retries(self, work: Callable[[Connection], T]) -> T:
        """
        Run `work`, and run it again with growing pauses after a failure that may pass.

        Failures that may pass are a lost connection, a deadlock, a lock that others hold for too
        long, a receipt of another attempt, a full log, and a server that is short of memory or
        space. If the answer to a commit was lost, the next run of `work` must find out whether the
        commit was done.

        With the option `credentials` two more failures may pass: a refused login, because the
        password may have expired, and an error of the service that returns the password.

        If the server was reached before and is absent now, attempts are made for FAILOVER seconds.
        If it was never reached, they end earlier, because the url is probably wrong.

        Raises:
            StateTooOld, StateTooNew: a statement found that the state tables have another version.
        """
        import stamina  # noqa: PLC0415 - it imports asyncio, which would slow down `--help`

        silence_retries()
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
                    except errors.StateChanged:
                        # the state tables have another version: a statement names the version's
                        # column, which is renamed
                        check_state(self.open())
                        raise
        except errors.SqlQueueError as error:
            # Spark prints every frame of the traceback, and the retries alone have 25 frames
            raise error.with_traceback(None) from None
        raise AssertionError  # pragma: no cover - stamina has raised the last error before

    def open(self) -> Connection:
        if self._connection is None:
            kept = idle_connections.take(self._key) if self._keep_connection else None
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
        """Sessions with equal keys may share a connection. A forked process has other keys."""
        options = self.options
        place = options.url, options.credentials, options.query_timeout
        # these options decide whether the state schema is accepted when a session is opened
        state = options.state_schema, options.trusted.state_schema, options.trusted_owners
        return os.getpid(), place, state, type(self)

    def _retry_rule(self) -> Callable[[Exception], bool]:
        """Return a function that says whether `work` may run again after an error."""
        absences: list[float] = []  # when the server was absent, by this process's clock
        failures: list[float] = []  # when any other failure occurred, by the same clock

        def may_follow(error: Exception) -> bool:
            is_known = self._was_reached or self.options.url in reached_urls
            # a server that is read-only answers, so it is not absent: perhaps the url names a
            # standby by mistake
            is_absent = isinstance(error, ABSENT) and not isinstance(error, errors.ReadOnly)
            is_lost = is_known and is_absent
            times = absences if is_lost else failures
            times.append(time.monotonic())
            if is_lost and times[-1] - times[0] < FAILOVER:
                log.warning("%s; connecting again, for up to %g s", error, FAILOVER)
                return True
            is_expired = self.options.credentials is not None and isinstance(error, EXPIRED)
            may_pass = is_expired or isinstance(error, database.TRANSIENT)
            if not may_pass or len(times) >= ATTEMPTS:
                return False
            log.info("%s; trying again", error)
            return True

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
        reached_urls.add(options.url)
        connection.trusted = options.trusted
        return connection


class StateSession(Session):
    """A session that checks, after each connect, that the state tables may be used."""

    def _connect(self) -> Connection:
        connection = super()._connect()
        check_state(connection)
        return connection


class Idle:
    """The kept connections of sessions that ended, one for each key. Threads may share this."""

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
        """Keep a connection that has no transaction open. Close it if the key has one already."""
        timer = threading.Timer(IDLE, self._close, (key, connection))
        timer.daemon = True
        with self._lock:
            is_kept = key not in self._kept
            if is_kept:
                self._kept[key] = (connection, timer)
        if is_kept:
            timer.start()
        else:
            connection.close()

    def _close(self, key: object, connection: Connection) -> None:
        """Close a connection that no session has taken since it was kept."""
        with self._lock:
            kept, _ = self._kept.get(key, (None, None))
            if kept is connection:
                del self._kept[key]
        if kept is connection:
            connection.close()


idle_connections = Idle()


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
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        reason = describe_error(error) if credentials in tokens else locate_error(error)
        raise errors.CredentialsFailed(
            option="credentials", credentials=credentials, reason=reason
        ) from None
    # the password must be a text that can be put into a url and sent to a server
    if not isinstance(credential, str) or credential == "" or UNSENDABLE.search(credential):
        expected = "a function that returns the password, a text that is not empty"
        raise errors.BadOption(
            option="credentials",
            found=credentials,
            expected=f"{expected}, but found {describe_value(credential)}",
        )
    return credential


def find_function(credentials: str) -> Callable[[str], object]:
    """Import the function that a text `package.module:function` names. Raises BadOption."""
    module, _, name = credentials.partition(":")
    try:
        function = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        # an ImportError and an AttributeError quote only names of modules and functions
        is_harmless = isinstance(error, (ImportError, AttributeError))
        reason = describe_error(error) if is_harmless else locate_error(error)
        expected = f"a function that every driver and executor can import ({reason})"
        raise errors.BadOption(option="credentials", found=credentials, expected=expected) from None
    if not callable(function):
        expected = f"a function, but found {describe_value(function)}"
        raise errors.BadOption(option="credentials", found=credentials, expected=expected)
    return cast("Callable[[str], object]", function)


def describe_value(value: object) -> str:
    """Return what kind of value a function has returned, without showing the value."""
    if isinstance(value, str):
        return "a text that cannot be sent" if value else "an empty text"
    return type(value).__qualname__


def describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    cut = "…" if len(text) > LONGEST_REASON else ""
    return f"{type(error).__qualname__}: {text[:LONGEST_REASON]}{cut}"


def locate_error(error: Exception) -> str:
    """Return an error's class and the line that raised it, without the error's text."""
    last = extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__qualname__} in {place}; its text is not shown, it may hold a secret"
