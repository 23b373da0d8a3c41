"""
TLS of a PostgreSQL that is built with it, by its own programs and with its own rules of login.

The embedded server is built without TLS. SQLQ_TEST_POSTGRES_PROGRAMS names the folder of another
one's programs; without it, those on PATH or of Debian's packages are used, if there are any.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import trustme
from proxy import HOST, client_words

from sqlq_spark import errors
from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.testing import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "SQLQ_TEST_POSTGRES_PROGRAMS"
PASSWORD = "pA55 w%rd"  # noqa: S105 - of logins that exist in this test only
# who may log in, in the server's own order
RULES = """
local   all all          scram-sha-256
host    all postgres     127.0.0.1/32 scram-sha-256
hostssl all certified    127.0.0.1/32 cert
hostssl all twice        127.0.0.1/32 scram-sha-256 clientcert=verify-full
hostssl all all          127.0.0.1/32 scram-sha-256
"""
SETTINGS = """
ssl = on
ssl_cert_file = 'server.crt'
ssl_key_file = 'server.key'
ssl_ca_file = 'clients.crt'
password_encryption = 'scram-sha-256'
"""


def programs() -> Path | None:
    """The programs of a PostgreSQL with TLS, if this machine has one."""
    found = shutil.which("postgres")
    places = [*([Path(found).resolve().parent] if found else [])]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if named := os.environ.get(VARIABLE):
        places = [Path(named)]
    return next((each for each in places if has_tls(each)), None)


def has_tls(place: Path) -> bool:
    """Whether the server can be started here, and is built with TLS."""
    if not all((place / name).exists() for name in ("postgres", "initdb", "pg_ctl", "createdb")):
        return False
    return b"libssl" in (place / "postgres").read_bytes()


@pytest.fixture(scope="module")
def issuers() -> tuple[trustme.CA, trustme.CA]:
    """Give who issues the server's certificate, and who issues the clients'."""
    return trustme.CA(), trustme.CA()


@pytest.fixture(scope="module")
def running(issuers: tuple[trustme.CA, trustme.CA]) -> Iterator[embedded.Server]:
    """Give a server with a certificate, that logs in by password, by certificate, and by both."""
    found = programs()
    if found is None:
        pytest.skip(f"no PostgreSQL with TLS: {VARIABLE} names none, and none is installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_programs", lambda: found)
        with embedded.server(tcp=True) as made:
            with psycopg.connect(made.url, autocommit=True) as connection:
                for name in ("plain", "certified", "twice"):
                    text = f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'"
                    connection.execute(text.encode())
            made.stop()
            configure(made.place / "data", made.account, *issuers)
            made.start()
            yield made


def configure(data: Path, account: str | None, own: trustme.CA, clients: trustme.CA) -> None:
    """Write the certificates, the settings and the rules."""
    issued = own.issue_cert(HOST)
    issued.cert_chain_pems[0].write_to_path(data / "server.crt")
    (data / "server.key").touch(0o600)
    issued.private_key_pem.write_to_path(data / "server.key")
    clients.cert_pem.write_to_path(data / "clients.crt")
    for each in data.glob("*.[ck][re][ty]"):
        if account is not None:
            shutil.chown(each, account, account)
    with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS)
    (data / "pg_hba.conf").write_text(RULES, encoding="utf-8")


@pytest.fixture
def words(issuers: tuple[trustme.CA, trustme.CA], tmp_path: Path) -> list[str]:
    """Give the parameters with which the server is found and verified."""
    issuer = tmp_path / "issuer.pem"
    issuers[0].cert_pem.write_to_path(issuer)
    return ["hostaddr=127.0.0.1", "sslmode=verify-full", f"sslrootcert={issuer}"]


def url(running: embedded.Server, user: str, *parameters: str, host: str = HOST) -> str:
    """The url of a login."""
    return f"postgresql://{user}@{host}:{running.port}/shop?{'&'.join(parameters)}"


def logged_in(url: str) -> bool:
    """Connect and ask for something."""
    with closing(connect(url, application="test", timeout=10, state="sqlqueue")) as connection:
        return len(connection.rows("clock")) == 1


SECRET = "password=pA55%20w%25rd"  # noqa: S105 - as above


@pytest.mark.parametrize("binding", ["prefer", "require", "disable"])
def test_a_verified_server_gets_a_password_by_scram(
    running: embedded.Server, words: list[str], binding: str
) -> None:
    """Also bound to the server's certificate, which no server in between can imitate."""
    assert logged_in(url(running, "plain", *words, SECRET, f"channel_binding={binding}"))

    with pytest.raises(errors.LoginRefused, match="password authentication failed"):
        logged_in(url(running, "plain", *words, "password=another"))


@pytest.mark.parametrize("attack", ["name", "issuer"])
def test_a_server_of_another_name_or_issuer_is_refused(
    running: embedded.Server, words: list[str], tmp_path: Path, attack: str
) -> None:
    """Before anything is sent to it."""
    host = "other.example" if attack == "name" else HOST
    if attack == "issuer":
        trustme.CA().cert_pem.write_to_path(tmp_path / "issuer.pem")

    with pytest.raises(errors.ServerNotVerified, match=f"{host}.* could not be verified"):
        logged_in(url(running, "plain", *words, SECRET, host=host))


def test_a_certificate_logs_in_without_a_password(
    running: embedded.Server,
    words: list[str],
    issuers: tuple[trustme.CA, trustme.CA],
    tmp_path: Path,
) -> None:
    """By sslcert and sslkey of the url; only as the user that it names."""
    mine = client_words(issuers[1], "certified", tmp_path)

    assert logged_in(url(running, "certified", *words, *mine))
    for wrong in ([], client_words(issuers[1], "twice", tmp_path)):
        with pytest.raises(errors.CertificateRefused, match="sslcert and sslkey"):
            logged_in(url(running, "certified", *words, *wrong))


def test_a_certificate_and_a_password_are_both_needed(
    running: embedded.Server,
    words: list[str],
    issuers: tuple[trustme.CA, trustme.CA],
    tmp_path: Path,
) -> None:
    """Where the server's rules ask for both."""
    mine = client_words(issuers[1], "twice", tmp_path)

    assert logged_in(url(running, "twice", *words, *mine, SECRET))
    with pytest.raises(errors.LoginRefused, match="password"):
        logged_in(url(running, "twice", *words, *mine))
    with pytest.raises(errors.CertificateRefused, match="valid client certificate"):
        logged_in(url(running, "twice", *words, SECRET))


def test_a_certificate_of_another_issuer_is_refused(
    running: embedded.Server, words: list[str], tmp_path: Path
) -> None:
    """The server may close the connection before its reason has arrived."""
    wrong = client_words(trustme.CA(), "certified", tmp_path)

    with pytest.raises((errors.CertificateRefused, errors.ConnectionLost)):
        logged_in(url(running, "certified", *words, *wrong))
