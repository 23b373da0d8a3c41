"""TLS: without a verified certificate nothing is sent to a server on another machine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import trustme
from proxy import HOST, client_words, door, through

from sqlq_spark import errors
from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.database.postgresql.url import WEAK, Target
from sqlq_spark.log import warn_once

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLES = ("PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE", "PGSERVICEFILE", "PGHOST", "PGHOSTADDR")
UNVERIFIED = "could not be verified, so nothing was sent to it"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty home directory, without variables of libpq. No warning has been logged yet."""
    for name in (*VARIABLES, "PGSYSCONFDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    warn_once.cache_clear()
    yield tmp_path
    warn_once.cache_clear()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Give an issuer that this machine does not trust."""
    return trustme.CA()


@pytest.fixture
def issuer(authority: trustme.CA, tmp_path: Path) -> str:
    """Give the file with its certificate."""
    file = tmp_path / "issuer.pem"
    authority.cert_pem.write_to_path(file)
    return str(file)


def answer(url: str) -> int:
    """Connect and run a statement. Return how many rows it gave."""
    with closing(connect(url, application="test", timeout=10, state="sqlqueue")) as connection:
        return len(connection.values("clock"))


def test_a_user_without_a_home_folder_reads_no_file_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run a uid that the list of users lacks, without HOME. libpq goes on too."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    url = "postgresql://db.example/shop"

    assert Target.parse(url, {}).verification()["sslmode"] == "verify-full"
    assert Target.parse(url, {"PGSERVICE": "shop"}).hosts == "db.example"


@pytest.mark.parametrize("way", ["file", "address", "machine", "home"])
def test_a_server_that_is_verified_is_used(
    server: str,
    authority: trustme.CA,
    issuer: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    way: str,
) -> None:
    """The issuers are in a file of the url, of the machine, or of the home directory."""
    host = "203.0.113.7" if way == "address" else HOST
    words = [f"sslrootcert={issuer}"] if way in {"file", "address"} else []
    if way == "machine":
        monkeypatch.setenv("SSL_CERT_FILE", issuer)
    elif way == "home":
        (home / ".postgresql").mkdir()
        Path(issuer).rename(home / ".postgresql" / "root.crt")

    with door(server, authority, host) as made:
        assert answer(through(server, made, *words, host=host)) == 1

    assert (made.encrypted > 0, made.plain) == (True, 0)


@pytest.mark.parametrize("mode", ["", "sslmode=verify-full", "sslmode=verify-ca"])
@pytest.mark.parametrize("attack", ["issuer", "name", "plain"])
def test_a_server_that_is_not_verified_gets_nothing(
    server: str, authority: trustme.CA, issuer: str, mode: str, attack: str
) -> None:
    """It gets neither login nor message. With `verify-ca` any host name is accepted."""
    theirs = {"issuer": trustme.CA(), "name": authority, "plain": None}[attack]
    name = "other.example" if attack == "name" else HOST
    with door(server, theirs, name) as made:
        url = through(server, made, mode, f"sslrootcert={issuer}")
        if (mode, attack) == ("sslmode=verify-ca", "name"):
            assert answer(url) == 1
            return
        with pytest.raises(errors.ServerNotVerified, match=UNVERIFIED) as caught:
            answer(url)

    assert all(text in str(caught.value) for text in (HOST, "sslrootcert"))
    assert (made.encrypted, made.plain) == (0, 0)


def test_a_client_logs_in_with_a_certificate_and_its_password(
    server: str, authority: trustme.CA, issuer: str, tmp_path: Path
) -> None:
    """Other certificates are refused, maybe by a lost connection. No error has a password."""
    clients = trustme.CA()
    certificate, key = client_words(clients, "bo", tmp_path)
    wrong: tuple[list[str], ...] = ([], [certificate], ["sslcert=/not/there.pem", key])

    with door(server, authority, HOST, clients=clients) as made:
        for words in (*wrong, client_words(trustme.CA(), "al", tmp_path)):
            with pytest.raises((errors.CertificateRefused, errors.ConnectionLost)) as caught:
                answer(through(server, made, f"sslrootcert={issuer}", *words))
            assert str(urlsplit(server).password) not in str(caught.value)
        assert (made.encrypted, made.plain) == (0, 0)
        assert answer(through(server, made, f"sslrootcert={issuer}", certificate, key)) == 1

    assert (made.encrypted > 0, made.plain) == (True, 0)


@pytest.mark.parametrize("mode", ["require", "prefer", "allow", "disable", "variable"])
def test_less_is_allowed_where_it_is_written_with_one_warning(
    server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The warning names the mode, the host and the risk. It is not repeated."""
    words = f"sslmode={mode}"
    if mode == "variable":
        words, mode = "", "require"
        monkeypatch.setenv("PGSSLMODE", mode)

    with door(server, trustme.CA(), HOST) as made:
        url = through(server, made, words)
        assert [answer(url), answer(url)] == [1, 1]

    (warned,) = caplog.records
    assert warned.getMessage().startswith(f"sslmode={mode} for {HOST}: {WEAK[mode]}")


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("postgresql://", False),
        ("postgresql://bo@LOCALHOST/shop", False),
        ("postgresql://[::1]:5432/shop", False),
        ("postgresql://%2Frun%2Fpostgresql/shop", False),
        ("postgresql://%40abstract/shop", False),
        ("postgresql://localhost,127.0.0.1,[::1]/shop", False),
        ("postgresql://bo:p%40ss@db.example/shop", True),
        ("postgresql://0.0.0.0", True),
        ("postgresql://localhost:1,db.example:2/shop", True),
        ("postgresql://localhost/shop?%68ost=db.example", True),
        ("postgresql://db.example/shop?host=localhost", False),
        ("postgresql://localhost/shop?hostaddr=10.0.0.7", True),
        ("postgresql://db.example/shop?hostaddr=127.0.0.1", True),
        ("postgresql://localhost.example", True),
        ("postgresql:///shop?service=elsewhere", True),
    ],
)
def test_what_another_machine_is(url: str, *, remote: bool) -> None:
    """It is any host but loopback addresses and sockets. One such host of several is enough."""
    target = Target.parse(url, {})

    assert target.remote is remote
    assert ("sslmode" in target.verification()) is remote


def test_where_host_mode_and_options_are_written(tmp_path: Path) -> None:
    """The url goes before a service, and that before the environment. No repr has a password."""
    file = tmp_path / "services"
    file.write_text("# of tests\n[shop]\nhost = db.example\nsslmode=require\noptions=-c a=b\n")
    environ = {"PGSERVICEFILE": str(file), "PGSERVICE": "shop", "PGSSLMODE": "prefer"}

    found = Target.parse("postgresql:///shop", environ)
    own = Target.parse("postgresql://localhost/shop?sslmode=verify-full&options=-c%20x=y", environ)
    verifies = Target.parse("postgresql://db/shop?sslmode=verify-ca&sslrootcert=a.pem", {})

    assert (found.remote, found.mode) == (True, "require")
    assert found.options("-c c=d") == "-c a=b -c c=d"
    assert (own.remote, own.mode) == (False, "verify-full")
    assert own.options("-c c=d") == "-c x=y -c c=d"
    assert (verifies.verification(), verifies.weakness()) == ({}, None)
    assert Target.parse("postgresql:///shop", {"PGHOSTADDR": "10.0.0.7"}).remote
    assert not Target.parse("postgresql://localhost", {"PGHOST": "db.example"}).remote
    assert Target.parse("postgresql://db/shop?ssl=true", {}).mode == "require"  # as of JDBC
    assert "s3cret" not in repr(Target.parse("postgresql://a:s3cret@db/?password=s3cret", {}))
