"""
Tokens of cloud services. A login uses a token instead of a password.

The packages of these services belong to the extras `azure` and `aws`. They are imported when a
session connects.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from sqlq_spark import errors


def azure_token(scope: str) -> str:
    """Return a token of Microsoft Entra. `scope` names the kind of database that it is for."""
    token: str = azure_credential().get_token(scope).token
    return token


@cache
def azure_credential() -> Any:  # noqa: ANN401 - of a package of an extra
    """Return the credential of this process. It keeps a token until shortly before it expires."""
    return import_extra("azure.identity", "azure-identity", "azure").DefaultAzureCredential()


def import_extra(module: str, package: str, extra: str) -> Any:  # noqa: ANN401
    """Import a package of an extra. Raises MissingPackage."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise errors.MissingPackage(package=package, extra=extra) from None
