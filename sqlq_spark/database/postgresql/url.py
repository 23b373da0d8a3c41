"""
Find out to which server a libpq URI leads, and how the connection to it is protected.

The answer also depends on the service file and on environment variables, which this module reads as
libpq does.

A server on another machine must prove its identity by a certificate, unless the user sets another
sslmode. libpq's own default, `prefer`, accepts any server, even one without encryption.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from sqlq_spark.errors import BadOption
from sqlq_spark.options.names import MISPLACED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The pattern of a url that can be understood in one way only. The password must not have a raw /,
# ?, @ or blank, because libpq would end it there. Other parts must not have a raw ;, & or =. The
# text after such a character may be a password, as in `/shop;password=…`, and the server's error
# would quote it.
HOST = r"(?:\[[^\[\]@/?\s]*\]|[^\[\]:,@/?#;&=\s]*)(?::[0-9]*)?"
URL_PARAMETER = r"[^=&\s]+=[^=&\s]*"
URL = re.compile(
    rf"(?P<scheme>[a-z0-9_]+)://(?!{MISPLACED})"
    r"(?:[^:@/?;&=\s]*(?::(?P<password>[^@/?\s]*))?@)?"
    rf"(?P<hosts>{HOST}(?:,{HOST})*)(?P<path>/[^@?#;&=\s]*)?"
    rf"(?:\?{URL_PARAMETER}(?:&{URL_PARAMETER})*)?"
)
PARAMETER_NAME = re.compile("[a-z_]+")
SHORTEST = 4  # characters of the shortest password that is also searched inside words
UNCODED = re.compile(r"%(?:00|(?![0-9A-Fa-f]{2}))")

# parameter → the environment variable from which libpq takes its default
VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "options": "PGOPTIONS",
    "port": "PGPORT",
    "service": "PGSERVICE",
    "servicefile": "PGSERVICEFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "user": "PGUSER",
}

# parameters whose values are no secrets: names of servers, databases and files
PLACES = {*VARIABLES} - {"options", "sslmode"} | {
    *("dbname", "sslcert", "sslkey", "sslcrl", "sslcrldir", "passfile"),
}

# values of sslmode that do not verify the server → what may happen with them
WEAK = {
    "disable": "nothing is encrypted, neither the password's proof nor messages",
    "allow": "the connection may be unencrypted, and any server that answers is accepted",
    "prefer": "the connection may be unencrypted, and any server that answers is accepted",
    "require": "the connection is encrypted, but any server that answers is accepted",
}

# Files with trusted issuers that the driver's OpenSSL finds itself (Debian, Alpine, macOS, Fedora).
SYSTEM = ("/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")
# files with trusted issuers that the driver's OpenSSL does not find (RHEL, SUSE)
BUNDLES = (
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
)


@dataclass(frozen=True)
class Target:
    """The parameters of VARIABLES that libpq finds for a url."""

    given: Mapping[str, str]

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a url. It overrides the service file, and the service file overrides `environ`."""
        in_url = dict(_read_url(url))
        defaults = {
            name: environ[variable] for name, variable in VARIABLES.items() if variable in environ
        }
        given = defaults | _read_service(defaults | in_url, environ) | in_url
        return cls({name: text for name, text in given.items() if name in VARIABLES})

    @property
    def remote(self) -> bool:
        """Whether at least one of the servers may be on another machine."""
        lists = [self.given[name] for name in ("host", "hostaddr") if name in self.given]
        if not lists:
            return "service" in self.given  # libpq may find a service that was not found here
        return not all(_is_local(host) for hosts in lists for host in hosts.split(","))

    @property
    def hosts(self) -> str:
        """The hosts, by the names that certificates must have. Empty for a local socket."""
        return self.given.get("host") or self.given.get("hostaddr", "")

    @property
    def port(self) -> str:
        """The port. If there are several hosts, several ports with commas."""
        return self.given.get("port") or "5432"

    @property
    def mode(self) -> str | None:
        return self.given.get("sslmode")

    def verification(self) -> dict[str, str]:
        """Return the parameters to add, so that libpq verifies another machine's certificate."""
        added = {"sslmode": "verify-full"} if self.remote and not self.mode else {}
        if (added or self.mode == "verify-full") and not self._has_root:
            added["sslrootcert"] = find_issuers()
        return added

    def weakness(self) -> tuple[str, str] | None:
        """Return the sslmode that the user set, and its risk. Return None if it has no risk."""
        # with a root certificate libpq treats `require` as `verify-ca`
        verified = self.mode == "require" and self._has_root
        if self.mode not in WEAK or verified or not self.remote:
            return None
        return self.mode, WEAK[self.mode]

    def options(self, last: str) -> str:
        return f"{self.given.get('options', '')} {last}".strip()

    @property
    def _has_root(self) -> bool:
        if "sslrootcert" in self.given:
            return True
        home = _home()
        return home is not None and (home / ".postgresql" / "root.crt").exists()


def redact(url: str) -> str:
    """
    Return a url without its user, password and parameters, which may hold secrets.

    Raises:
        BadOption: libpq would read the url in another way, and its error could quote a part of the
            password.
    """
    parts = URL.fullmatch(url)
    # a second slash: what looks like the host may be the end of a password
    is_unclear = parts is not None and (parts["path"] or "").count("/") > 1
    if parts is None or is_unclear or UNCODED.search(url):
        expected = "postgresql://user@host:5432/database, its parts percent-encoded"
        raise BadOption(option="url", found="postgresql://…", expected=expected)
    return f"{parts['scheme']}://{parts['hosts'] or 'local socket'}{parts['path'] or ''}"


def quotes_secret(text: str, url: str) -> bool:
    """
    Whether a sentence of libpq contains the url, its password, or a parameter's value.

    A password that is also the name of the login or of the database is not treated as a secret.
    """
    parts = URL.fullmatch(url)
    if parts is None or url in text:
        return True
    given = dict(_read_url(url))
    names = {given.get("user"), given.get("dbname"), unquote(parts["path"] or "").strip("/")}
    passwords = {parts["password"] or "", unquote(parts["password"] or ""), given.get("password")}
    values = {value for name, value in given.items() if name not in PLACES}
    values |= {name for name in given if not PARAMETER_NAME.fullmatch(name)}
    # a short password is searched only as a whole word, because it may be a part of any word
    whole = (rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in passwords - names if secret)
    long = (secret for secret in passwords - names if secret and len(secret) >= SHORTEST)
    return (
        any(re.search(pattern, text) for pattern in whole)
        or any(secret in text for secret in long)
        or any(f'"{value}"' in text for value in values - names if value)
    )


def find_issuers() -> str:
    """
    Return the value of sslrootcert for the issuers that this machine trusts: a file or `system`.

    With `system` the driver's OpenSSL uses its default, or SSL_CERT_FILE and SSL_CERT_DIR.
    """
    named = os.environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}
    if named or any(Path(file).exists() for file in SYSTEM):
        return "system"
    return next((file for file in BUNDLES if Path(file).exists()), "system")


def _home() -> Path | None:
    """Return the home folder. Return None if there is none: then libpq reads no file of it."""
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and the user has no entry in the list of users
        return None


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_url(url: str) -> Iterator[tuple[str, str]]:
    """Yield a url's decoded parameters in libpq's order. The last value of a name counts."""
    place, _, query = url.partition("://")[2].partition("?")
    login, _, hosts = place.partition("/")[0].rpartition("@")
    user = unquote(login.partition(":")[0])
    if user:
        yield "user", user
    parts = [_host(host) for host in hosts.split(",")]
    for name, values in zip(("host", "port"), zip(*parts, strict=True), strict=True):
        if any(values):
            yield name, ",".join(values)
    for pair in filter(None, query.split("&")):
        name, value = map(unquote, pair.partition("=")[::2])
        # libpq accepts `ssl=true`, as JDBC urls have it
        yield ("sslmode", "require") if (name, value) == ("ssl", "true") else (name, value)


def _host(text: str) -> tuple[str, str]:
    """Split a host from its port. An IPv6 address loses its brackets."""
    name, _, rest = text[1:].partition("]") if text.startswith("[") else text.partition(":")
    return unquote(name), rest.removeprefix(":")


def _read_service(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of the url's service, from the first file that has it."""
    name = given.get("service")
    if name is None:
        return {}
    home = _home()
    files: list[Path] = []
    if "servicefile" in given:
        files.append(Path(given["servicefile"]))
    elif home is not None:
        files.append(home / ".pg_service.conf")
    if "PGSYSCONFDIR" in environ:
        files.append(Path(environ["PGSYSCONFDIR"], "pg_service.conf"))
    return next(filter(None, (_read_section(file, name) for file in files)), {})


def _read_section(file: Path, name: str) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parameters: dict[str, str] = {}
    is_inside = False
    for line in map(str.strip, lines):
        if line.startswith("["):
            is_inside = line == f"[{name}]"
        elif is_inside and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            parameters.setdefault(key.strip(), value.strip())
    return parameters
