"""
The ADBC driver, which opens connections, and the passwords that cloud services give.

When the driver connects, it reads the catalogue before this package can send a statement. It must
not find objects of other logins there, so the search path is set by a parameter of the connection.
The same parameter sets how the catalogue quotes names. Some poolers refuse that parameter. Then the
first connect of each process fails, and the next one leaves the parameter out.

PostgreSQL in a cloud accepts tokens of the cloud's services as passwords.
Azure: https://learn.microsoft.com/azure/postgresql/flexible-server/security-entra-configure
AWS: https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from adbc_driver_manager import Error
from adbc_driver_postgresql import dbapi

from sqlq_spark import errors
from sqlq_spark.database.postgresql.errors import connection_error, cut_sentence
from sqlq_spark.database.postgresql.rows import cut_name
from sqlq_spark.database.postgresql.url import Target, quotes_secret
from sqlq_spark.database.tokens import azure_token, import_extra
from sqlq_spark.log import warn_once
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Callable


OLDEST = 13  # the first version with gen_random_uuid; older versions are not tested

# errors of poolers that refuse the parameter `options`: PgBouncer, RDS Proxy
NO_OPTIONS = r"unsupported startup parameter|command-line options"
WITHOUT_OPTIONS: set[str] = set()  # servers that have refused `options` in this process
# With quote_all_identifiers = on, the driver's look at the catalogue finds no type.
SETTINGS = "-c search_path=pg_catalog,pg_temp -c quote_all_identifiers=off"

# this is shown instead of a sentence that quotes the url
HIDDEN_SENTENCE = "the driver's sentence is not shown, because it quotes a part of the url"

AZURE_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
# the host name of an RDS server contains its region
RDS_HOST = re.compile(r"(?i)[^,]+\.([a-z0-9-]+)\.rds\.amazonaws\.com(?:\.cn)?\.?")


def open_session(url: str, server: str, application: str, timeout: float) -> dbapi.Connection:
    """Open a connection of the driver. `server` is the url without secrets."""
    raw = _open(url, server, application, timeout)
    # 180006 is version 18.6
    major, minor = divmod(int(raw.adbc_get_info()["vendor_version"]), 10_000)
    if major < OLDEST:
        raw.close()
        raise errors.ServerTooOld(
            server=server, database=POSTGRESQL.database, found=f"{major}.{minor}", needed=OLDEST
        )
    return raw


def _open(url: str, server: str, application: str, timeout: float) -> dbapi.Connection:
    target = Target.parse(url, os.environ)
    weakness = target.weakness()
    if weakness is not None:
        mode, risk = weakness
        warn_once(
            "sslmode=%s for %s: %s; sslmode=verify-full, the default, prevents this",
            mode,
            target.hosts,
            risk,
        )
    parameters = {
        "application_name": cut_name(application),
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, int(timeout))),
        **target.verification(),
    }
    if server not in WITHOUT_OPTIONS:
        parameters["options"] = target.options(SETTINGS)
    try:
        return dbapi.connect(_with_parameters(url, parameters, timeout), autocommit=True)
    except Error as error:
        text = cut_sentence(error)
        if "options" not in parameters or not re.search(NO_OPTIONS, text):
            shown = HIDDEN_SENTENCE if quotes_secret(text, url) else text
            raise connection_error(server, text, shown) from None
    WITHOUT_OPTIONS.add(server)
    return _open(url, server, application, timeout)


def _with_parameters(url: str, parameters: dict[str, str], timeout: float) -> str:
    """
    Return the url with more parameters. If a name comes twice, libpq uses the last value.

    `parameters` are put after the url's own parameters, so they override those. The limits below
    are put before them, so the url can override the limits. Because of the limits, a server that
    has vanished is noticed within the time limit of a statement.
    """
    place, _, query = url.partition("?")
    limits = {
        "tcp_user_timeout": timeout * 1000,
        "keepalives_idle": timeout / 3,
        "keepalives_interval": timeout / 10,
    }
    first = [f"{name}={max(1, int(value))}" for name, value in limits.items()]
    last = [f"{name}={quote(value)}" for name, value in parameters.items()]
    return f"{place}?{'&'.join(filter(None, [*first, query, *last]))}"


# ---------------------------------------------------------------- tokens


def aws_token(url: str) -> str:
    """Return a token of RDS IAM. boto3 signs it in this process, for one host, port and user."""
    target = Target.parse(url, os.environ)
    host = target.hosts
    user = target.given.get("user")
    port = target.port
    if not host or "," in host or "," in port or host.startswith(("/", "@")):
        raise _bad_aws("one host in the url, because a token is for one")
    if not user:
        raise _bad_aws("the user in the url, the option user or PGUSER")
    rds_host = RDS_HOST.fullmatch(host)
    # if the region is None, boto3 uses its own settings
    client = aws_client(rds_host[1].lower() if rds_host else os.environ.get("AWS_REGION"))
    token: str = client.generate_db_auth_token(DBHostname=host, Port=int(port), DBUsername=user)
    return token


@cache
def aws_client(region: str | None) -> Any:  # noqa: ANN401 - of a package of an extra
    """Return the client for a region. There is one for each region in a process."""
    session = import_extra("boto3", "boto3", "aws").session.Session(region_name=region)
    if session.region_name is None:
        raise _bad_aws("a region: set AWS_REGION")
    return session.client("rds")


def _bad_aws(expected: str) -> errors.BadOption:
    return errors.BadOption(option="credentials", found="aws", expected=expected)


# value of the option `credentials` → function that returns a password for a url
TOKENS: dict[str, Callable[[str], str]] = {
    "azure": lambda _url: azure_token(AZURE_SCOPE),
    "aws": aws_token,
}
