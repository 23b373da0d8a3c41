"""
Tokens of cloud services, which PostgreSQL there accepts as passwords.

Azure: https://learn.microsoft.com/azure/postgresql/flexible-server/security-entra-configure
AWS: https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html

The packages are of the extras `azure` and `aws`, and imported when a session connects.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlq_spark.database.postgresql.url import Target
from sqlq_spark.errors import BadOption, MissingPackage

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
# an RDS host's name has its region
RDS_HOST = re.compile(r"(?i)[^,]+\.([a-z0-9-]+)\.rds\.amazonaws\.com(?:\.cn)?\.?")


def azure_token(_url: str) -> str:
    """Return a token of Microsoft Entra for Azure Database for PostgreSQL."""
    token: str = azure_credential().get_token(SCOPE).token
    return token


def aws_token(url: str) -> str:
    """
    Return a token of RDS IAM. It is signed here, for one host, port and user.

    Raises:
        BadOption: the url and the environment do not say which.
    """
    target = Target.parse(url, os.environ)
    host, user, port = target.hosts, target.user, target.port
    if not host or "," in host or "," in port or host.startswith(("/", "@")):
        raise BadOption(
            option="credentials",
            found="aws",
            expected="one host in the url, because a token is for one",
        )
    if not user:
        raise BadOption(
            option="credentials",
            found="aws",
            expected="the user in the url, the option user or PGUSER",
        )
    client = aws_client(region_of(host))
    token: str = client.generate_db_auth_token(DBHostname=host, Port=int(port), DBUsername=user)
    return token


def region_of(host: str) -> str | None:
    """Return the region of an RDS host, or AWS_REGION; None leaves it to boto3's settings."""
    found = RDS_HOST.fullmatch(host)
    return found[1].lower() if found else os.environ.get("AWS_REGION")


@cache
def azure_credential() -> Any:  # noqa: ANN401 - of a package of an extra
    """Return one credential for each process: it keeps a token until shortly before its end."""
    return imported("azure.identity", "azure-identity", "azure").DefaultAzureCredential()


@cache
def aws_client(region: str | None) -> Any:  # noqa: ANN401 - of a package of an extra
    """
    Return one client for each process and region.

    Raises:
        BadOption: there is no region.
    """
    session = imported("boto3", "boto3", "aws").session.Session(region_name=region)
    if session.region_name is None:
        raise BadOption(option="credentials", found="aws", expected="a region: set AWS_REGION")
    return session.client("rds")


def imported(module: str, package: str, extra: str) -> Any:  # noqa: ANN401
    """Import a module of an extra. Raises MissingPackage."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingPackage(package=package, extra=extra) from None


# option → what gives a password for a url
TOKENS: dict[str, Callable[[str], str]] = {"azure": azure_token, "aws": aws_token}
