"""
The ADBC driver: one connection, its protection and its search path.

The driver reads the catalogue before any statement of ours, so the search path is a parameter of
the connection. A pooler may refuse that parameter. That costs one attempt for each process.
"""

from __future__ import annotations

import logging
import os
import re
from functools import cache
from urllib.parse import quote

from adbc_driver_manager import Error
from adbc_driver_postgresql import dbapi

from sqlq_spark import errors
from sqlq_spark.database.postgresql.errors import connection_error, sentence
from sqlq_spark.database.postgresql.url import Target

log = logging.getLogger("sqlq_spark")

OLDEST = 13  # the first version with gen_random_uuid; older ones are not tested

# words of a pooler that takes no settings when a session starts: PgBouncer, RDS Proxy
NO_OPTIONS = r"unsupported startup parameter|command-line options"
WITHOUT_OPTIONS: set[str] = set()  # servers that refused them in this process
SEARCH_PATH = "-c search_path=pg_catalog,pg_temp"


def connect(url: str, server: str, application: str, timeout: float) -> dbapi.Connection:
    """
    Open a connection of the driver.

    Args:
        url: a libpq URI.
        server: the url without secrets.
        application: shown in pg_stat_activity between transactions.
        timeout: seconds to wait for the server.

    Raises:
        DatabaseFailure: of `connection_error`.
        ServerTooOld: it lacks what the statements use.
    """
    raw = _open(url, server, application, timeout)
    major, minor = divmod(int(raw.adbc_get_info()["vendor_version"]), 10_000)  # of 180006
    if major < OLDEST:
        raw.close()
        raise errors.ServerTooOld(server=server, found=f"{major}.{minor}", needed=OLDEST)
    return raw


def _open(url: str, server: str, application: str, timeout: float) -> dbapi.Connection:
    target = Target.parse(url, os.environ)
    weak = target.weakness()
    if weak is not None:
        warn_once(target.hosts, *weak)
    parameters = {
        "application_name": application[:63],
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, int(timeout))),
        **target.verification(),
    }
    url = _with_defaults(url, timeout)
    if server not in WITHOUT_OPTIONS:
        try:
            options = {"options": target.options(SEARCH_PATH)}
            return dbapi.connect(_with_parameters(url, parameters | options), autocommit=True)
        except Error as error:
            text = sentence(error)
            if not re.search(NO_OPTIONS, text):
                raise connection_error(server, text) from None
            WITHOUT_OPTIONS.add(server)
    try:
        return dbapi.connect(_with_parameters(url, parameters), autocommit=True)
    except Error as error:
        raise connection_error(server, sentence(error)) from None


def _with_defaults(url: str, timeout: float) -> str:
    """Notice a server that vanished within the limit of a statement, unless the url says more."""
    place, _, query = url.partition("?")
    limits = {
        "tcp_user_timeout": timeout * 1000,
        "keepalives_idle": timeout / 3,
        "keepalives_interval": timeout / 10,
    }
    given = [f"{name}={max(1, int(value))}" for name, value in limits.items()]
    return f"{place}?{'&'.join(filter(None, [*given, query]))}"


def _with_parameters(url: str, parameters: dict[str, str]) -> str:
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
    return url + ("&" if "?" in url else "?") + query


@cache
def warn_once(hosts: str, mode: str, consequence: str) -> None:
    """Log how a connection is less protected than it would be by default."""
    log.warning(
        "sslmode=%s for %s: %s; sslmode=verify-full, the default, prevents this",
        mode,
        hosts,
        consequence,
    )
