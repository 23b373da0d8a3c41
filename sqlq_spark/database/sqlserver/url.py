"""
Read the url of a SQL Server, and write the connection string for a driver.

    sqlserver://user:password@host:1433/database?encrypt=yes&trustServerCertificate=no

An unknown parameter raises an error, because a misspelt `encrypt` would disable encryption without
a warning. Errors name the wrong part of the url. They never quote its text, which may be a
password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import unquote, urlsplit

from sqlq_spark.errors import BadOption, UnknownOption
from sqlq_spark.options.fields import find_near
from sqlq_spark.options.names import MISPLACED

EXAMPLE = "sqlserver://user@host:1433/database?encrypt=yes"

YES_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
# parameter of the url → its values in lower case → the driver's value; None if any text is allowed
PARAMETERS: dict[str, dict[str, str] | None] = {
    "encrypt": YES_NO | {"mandatory": "yes", "optional": "no", "strict": "strict"},
    "trustServerCertificate": YES_NO,
    "hostNameInCertificate": None,
    "multiSubnetFailover": YES_NO,
    "authentication": {
        value.lower(): value
        for value in (
            "SqlPassword",
            "Integrated",
            "ActiveDirectoryDefault",
            "ActiveDirectoryIntegrated",
            "ActiveDirectoryInteractive",
            "ActiveDirectoryMsi",
            "ActiveDirectoryPassword",
            "ActiveDirectoryServicePrincipal",
        )
    },
    "driver": None,
    "user": None,
    "password": None,
}
# These parameters may come twice in a url, because this package adds the options of the same names
# to the end of it. The last value counts.
LAST_WINS = {"user", "password"}
MIXED = re.compile("[;&=]")  # separators of parameters in connection strings
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The server, the database, the login and the protection that a url names."""

    host: str
    port: int = 1433
    database: str = ""  # if empty, the login's default database is used
    user: str = ""
    password: str = field(default="", repr=False)
    encrypt: str = "yes"
    trust_server_certificate: str = "no"
    host_name_in_certificate: str = ""
    multi_subnet_failover: str = ""
    authentication: str = ""
    driver: str = ""
    token: str = field(default="", repr=False)  # a token of Microsoft Entra ID, not from the url

    @classmethod
    def parse(cls, url: str) -> Self:
        place, _, query = url.partition("?")
        unreadable = BadOption(
            option="url", found="sqlserver://…", expected=f"{EXAMPLE}, its parts percent-encoded"
        )
        try:
            parts = urlsplit(place)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise unreadable from None
        database = parts.path.removeprefix("/")
        # a password may follow a separator, as in `/shop;password=…`
        is_mixed = MIXED.search(f"{parts.username or ''}{host or ''}{database}")
        is_misplaced = re.match(MISPLACED, place.partition("://")[2]) is not None
        is_odd = ";" in parts.netloc or "/" in database or "#" in url
        if not host or is_mixed or is_misplaced or is_odd:
            raise unreadable
        given = {
            "host": host,
            "database": decode_part("database", database),
            "user": decode_part("user", parts.username or ""),
            "password": decode_part("password", parts.password or ""),
        }
        return cls(port=port or cls.port, **(given | parameters(query)))

    @property
    def server(self) -> str:
        """The url without user, password and parameters."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"sqlserver://{host}:{self.port}/{self.database}"

    @property
    def by_token(self) -> bool:
        """Whether the driver logs in with a token of Microsoft Entra ID."""
        return self.token != "" or self.authentication.startswith("ActiveDirectory")

    @property
    def lacks_password(self) -> bool:
        """Whether the url has a user who logs in by a password, and nothing gave one."""
        return self.user != "" and not self.secret and not self.authentication

    @property
    def secret(self) -> str:
        """The token or password, which no error may show."""
        return self.token or self.password

    def with_credential(self, credential: str | None) -> Target:
        """
        Return the target with a password or token that the option `credentials` gave.

        If the url has a user, `credential` is the password of this user. If the url has no user,
        `credential` is a token, which names its user. If `credential` is None, nothing is changed.
        """
        if credential is None:
            return self
        if self.authentication:
            raise BadOption(
                option="url, parameter authentication",
                found=self.authentication,
                expected="none beside the option credentials, which logs in too",
            )
        if self.user:
            return replace(self, password=credential)
        if self.encrypt == "no":
            # somebody who reads a token can use it at every database of the token's user
            raise BadOption(
                option="url, parameter encrypt",
                found=self.encrypt,
                expected="yes or strict beside a token, which is a secret",
            )
        return replace(self, token=credential)

    def connection_string(self, **more: str) -> str:
        """Return the driver's connection string. It begins with the parameters of `more`."""
        login = {"UID": self.user, "PWD": self.password, "Authentication": self.authentication}
        if self.authentication == "Integrated":
            login = {"Trusted_Connection": "yes"}
        values = {
            **more,
            "Server": f"tcp:{self.host},{self.port}",
            "Database": self.database,
            **login,
            "Encrypt": self.encrypt,
            "TrustServerCertificate": self.trust_server_certificate,
            "HostnameInCertificate": self.host_name_in_certificate,
            "MultiSubnetFailover": self.multi_subnet_failover,
            # the driver must not reopen a broken session, whose transaction would be gone
            "ConnectRetryCount": "0",
        }
        return ";".join(f"{key}={in_braces(value)}" for key, value in values.items() if value)


def parameters(query: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, _, text = part.partition("=")
        name = find_parameter(unquote(key))
        if name != "password" and MIXED.search(text):
            raise BadOption(option=f"url, {name}", found="…", expected="percent-encoded text")
        field_name = re.sub("([A-Z])", r"_\1", name).lower()  # the field of Target
        if field_name in fields and name not in LAST_WINS:
            raise BadOption(option="url", found=f"{name} twice", expected="each parameter once")
        fields[field_name] = read_choice(name, decode_part(name, text))
    return {field_name: text for field_name, text in fields.items() if text}


def find_parameter(key: str) -> str:
    """Return the parameter that a key names, in any case. Raise an error for an unknown key."""
    names = {name.lower(): name for name in PARAMETERS}
    if key.lower() in names:
        return names[key.lower()]
    near = find_near(key.lower(), names, likely=0.7)
    if near is not None:
        raise UnknownOption(option="…=… (in url)", near=names[near])
    raise BadOption(
        option="url",
        found="…?…",
        expected=f"only the parameters {', '.join(PARAMETERS)}",
    )


def read_choice(name: str, text: str) -> str:
    values = PARAMETERS[name]
    if values is None:
        return text
    if text.lower() not in values:
        expected = ", ".join(dict.fromkeys(values.values()))
        raise BadOption(option=f"url, parameter {name}", found="…", expected=f"one of {expected}")
    return values[text.lower()]


def decode_part(name: str, text: str) -> str:
    """Decode a part of the url. Refuse control characters."""
    try:
        plain = unquote(text, errors="strict")
    except UnicodeDecodeError:
        plain = "\0"
    if UNPRINTABLE.search(plain):
        raise BadOption(
            option=f"url, {name}", found="…", expected="UTF-8 text without control characters"
        )
    return plain


def in_braces(value: str) -> str:
    """Put a value of a connection string into braces, so that no character in it ends them."""
    return "{" + value.replace("}", "}}") + "}"
