"""Who answers for a server on another machine: without its certificate nothing is sent to it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import trustme
from proxy import HOST, client_words, door, through

from sqlq_spark import errors
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.database.postgresql.url import WEAK, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLES = ("PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE", "PGSERVICEFILE", "PGHOST", "PGHOSTADDR")
UNVERIFIED = "could not be verified, so nothing was sent to it"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty home directory and no variables of libpq's; nothing was warned of yet."""
    for name in (*VARIABLES, "PGSYSCONFDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    drivers.warn_once.cache_clear()
    yield tmp_path
    drivers.warn_once.cache_clear()


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
    """Connect and ask for something."""
    with closing(connect(url, application="test", timeout=10, state="sqlqueue")) as connection:
        return len(connection.rows("clock"))


@pytest.mark.parametrize("way", ["file", "address", "machine", "machine, in full", "home"])
def test_a_server_that_is_verified_is_used(
    server: str,
    authority: trustme.CA,
    issuer: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    way: str,
) -> None:
    """
    By default, with the issuer's certificate in a file that the url names.

    Its address may stand in the certificate instead of a name. Without a word in the url the
    issuers count that the machine trusts, or, as for libpq, those in the home directory.
    """
    host = "203.0.113.7" if way == "address" else HOST
    words = [f"sslrootcert={issuer}"] if way in {"file", "address"} else []
    if way.startswith("machine"):
        monkeypatch.setenv("SSL_CERT_FILE", issuer)
        words = ["sslmode=verify-full"] if way.endswith("full") else []
    elif way == "home":
        (home / ".postgresql").mkdir()
        Path(issuer).rename(home / ".postgresql" / "root.crt")

    with door(server, authority, host) as made:
        assert answer(through(server, made, *words, host=host)) == 1

    assert (made.encrypted > 0, made.plain) == (True, 0)


@pytest.mark.parametrize("attack", ["issuer", "name", "plain"])
def test_a_server_that_is_not_verified_gets_nothing(
    server: str, authority: trustme.CA, issuer: str, attack: str
) -> None:
    """One of another issuer, of another name, or without TLS: no login, no message."""
    theirs = {"issuer": trustme.CA(), "name": authority, "plain": None}[attack]
    name = "other.example" if attack == "name" else HOST
    with door(server, theirs, name) as made, pytest.raises(errors.ServerNotVerified) as caught:
        answer(through(server, made, f"sslrootcert={issuer}"))

    assert UNVERIFIED in str(caught.value)
    assert HOST in str(caught.value)
    assert "sslrootcert" in str(caught.value)
    assert (made.encrypted, made.plain) == (0, 0)


def test_a_client_logs_in_with_a_certificate_and_its_password(
    server: str, authority: trustme.CA, issuer: str, tmp_path: Path
) -> None:
    """A server that asks for both is verified too."""
    clients = trustme.CA()
    words = client_words(clients, "bo", tmp_path)

    with door(server, authority, HOST, clients=clients) as made:
        assert answer(through(server, made, f"sslrootcert={issuer}", *words)) == 1

    assert (made.encrypted > 0, made.plain) == (True, 0)


@pytest.mark.parametrize("given", ["none", "other issuer", "no key", "no file"])
def test_a_client_without_the_right_certificate_is_refused(
    server: str, authority: trustme.CA, issuer: str, tmp_path: Path, given: str
) -> None:
    """
    The server refuses it, or libpq cannot read it; no password is in the error.

    A server that closes the connection may do so before its reason has arrived.
    """
    clients = trustme.CA()
    right = client_words(clients, "bo", tmp_path)
    words = {
        "none": [],
        "other issuer": client_words(trustme.CA(), "al", tmp_path),
        "no key": right[:1],
        "no file": ["sslcert=/not/there.pem", right[1]],
    }[given]

    with door(server, authority, HOST, clients=clients) as made:
        url = through(server, made, f"sslrootcert={issuer}", *words)
        with pytest.raises((errors.CertificateRefused, errors.ConnectionLost)) as caught:
            answer(url)

    assert (made.encrypted, made.plain) == (0, 0)
    assert str(urlsplit(server).password) not in str(caught.value)


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
@pytest.mark.parametrize("attack", ["issuer", "name", "plain"])
def test_a_mode_that_is_written_verifies_as_much_as_it_says(
    server: str, authority: trustme.CA, issuer: str, mode: str, attack: str
) -> None:
    """`verify-full` refuses another issuer and another name; `verify-ca` accepts any name."""
    theirs = {"issuer": trustme.CA(), "name": authority, "plain": None}[attack]
    name = "other.example" if attack == "name" else HOST
    with door(server, theirs, name) as made:
        url = through(server, made, f"sslmode={mode}", f"sslrootcert={issuer}")
        if (mode, attack) == ("verify-ca", "name"):
            assert answer(url) == 1
            return
        with pytest.raises(errors.ServerNotVerified, match=UNVERIFIED):
            answer(url)

    assert (made.encrypted, made.plain) == (0, 0)


@pytest.fixture(params=["url", "variable", "service"])
def write(
    request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """Give a way to write a mode somewhere; it returns what to put into the url."""

    def write(mode: str) -> list[str]:
        if request.param == "url":
            return [f"sslmode={mode}"]
        if request.param == "variable":
            monkeypatch.setenv("PGSSLMODE", mode)
            return []
        text = f"[other]\nsslmode=verify-full\n[shop]\nsslmode={mode}\n"
        (home / ".pg_service.conf").write_text(text)
        return ["service=shop"]

    return write


@pytest.mark.parametrize("mode", ["require", "prefer", "allow", "disable"])
def test_less_is_allowed_where_it_is_written_with_one_warning(
    server: str,
    write: Callable[[str], list[str]],
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    """It names the mode, the host and what may happen; the next connection repeats nothing."""
    with door(server, trustme.CA(), HOST) as made:
        url = through(server, made, *write(mode))
        assert [answer(url), answer(url)] == [1, 1]

    (warned,) = [record.getMessage() for record in caplog.records]
    assert warned.startswith(f"sslmode={mode} for {HOST}: {WEAK[mode]}")


def test_a_server_on_this_machine_needs_no_certificate(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is there a warning."""
    assert answer(server) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("postgresql:///shop", False),
        ("postgresql://", False),
        ("postgresql://bo@localhost/shop", False),
        ("postgresql://LOCALHOST", False),
        ("postgresql://127.0.0.1:5432", False),
        ("postgresql://127.9.9.9", False),
        ("postgresql://[::1]:5432/shop", False),
        ("postgresql://%2Frun%2Fpostgresql/shop", False),
        ("postgresql://%40abstract/shop", False),
        ("postgresql:///shop?host=%2Frun", False),
        ("postgresql:///shop?host=", False),
        ("postgresql://localhost,127.0.0.1,[::1]/shop", False),
        ("postgresql://db.example/shop", True),
        ("postgresql://bo:p%40ss@db.example/shop", True),
        ("postgresql://10.0.0.7", True),
        ("postgresql://0.0.0.0", True),
        ("postgresql://[2001:db8::1]:5432/shop", True),
        ("postgresql://localhost:1,db.example:2/shop", True),
        ("postgresql://localhost/shop?host=db.example", True),
        ("postgresql://localhost/shop?%68ost=db.example", True),
        ("postgresql://db.example/shop?host=localhost", False),
        ("postgresql://localhost/shop?hostaddr=10.0.0.7", True),
        ("postgresql://db.example/shop?hostaddr=127.0.0.1", True),
        ("postgresql:///shop?hostaddr=127.0.0.1", False),
        ("postgresql://localhost.example", True),
        ("postgresql:///shop?service=elsewhere", True),
    ],
)
def test_what_another_machine_is(url: str, *, remote: bool) -> None:
    """Any host but this machine's loopback addresses and sockets; several, if one of them is."""
    target = Target.parse(url, {})

    assert target.remote is remote
    assert ("sslmode" in target.verification()) is remote


def test_the_environment_may_name_the_host() -> None:
    """Where the url names none."""
    assert Target.parse("postgresql:///shop", {"PGHOST": "db.example"}).remote
    assert Target.parse("postgresql:///shop", {"PGHOSTADDR": "10.0.0.7"}).remote
    assert not Target.parse("postgresql://localhost", {"PGHOST": "db.example"}).remote


def test_a_service_may_name_host_mode_and_options(tmp_path: Path) -> None:
    """It goes before the environment, and the url before it."""
    file = tmp_path / "services"
    file.write_text("# of tests\n[shop]\nhost = db.example\nsslmode=require\noptions=-c a=b\n")
    environ = {"PGSERVICEFILE": str(file), "PGSERVICE": "shop", "PGSSLMODE": "prefer"}

    found = Target.parse("postgresql:///shop", environ)
    own = Target.parse("postgresql://localhost/shop?sslmode=verify-full&options=-c%20x=y", environ)

    assert (found.remote, found.mode, found.options("-c c=d")) == (
        True,
        "require",
        "-c a=b -c c=d",
    )
    assert (own.remote, own.mode, own.options("-c c=d")) == (False, "verify-full", "-c x=y -c c=d")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_mode_that_verifies_is_left_as_it_is(mode: str) -> None:
    """Its issuers are the user's, or this machine's where none are named."""
    target = Target.parse(f"postgresql://db/shop?sslmode={mode}&sslrootcert=a.pem", {})

    assert (target.verification(), target.weakness()) == ({}, None)


def test_the_parameter_of_jdbc_is_a_mode_that_is_written() -> None:
    """`ssl=true` is `sslmode=require` to libpq."""
    assert Target.parse("postgresql://db/shop?ssl=true", {}).mode == "require"


def test_no_password_stays_in_what_was_read() -> None:
    """An error's frames may be printed with their values."""
    assert "s3cret" not in repr(Target.parse("postgresql://a:s3cret@db/?password=s3cret", {}))
