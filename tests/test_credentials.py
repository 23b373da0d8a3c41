"""The option `credentials`: what gives the password, when it is asked, and what is never shown."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from rotation import CREDENTIALS, rotation

from sqlq_spark.cli import main
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.postgresql.url import Target
from sqlq_spark.database.sessions import StateSession, ask_password, log_in
from sqlq_spark.errors import BadOption, CredentialsFailed, MissingPackage
from sqlq_spark.jobs import relay
from sqlq_spark.jobs.settings import load
from sqlq_spark.options.connection import DatabaseOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Place
    from rotation import Rotation

URL = "postgresql://bo@db.example/shop"
RDS = "postgresql://bo@shop.c1.eu-central-1.rds.amazonaws.com:5433/shop"
SECRET = "s3cret"  # noqa: S105 - looked for in errors

MODULE = f"""
class Silent:
    __repr__ = lambda self: "{SECRET}"
nothing = lambda url: None
empty = lambda url: ""
half = lambda url: "{SECRET}\\ud800"
nul = lambda url: "{SECRET}\\0"
other = lambda url: Silent()
given = lambda url: "p&a=s s/" + url.partition("@")[2]
text = "{SECRET}"
def fails(url):
    raise ValueError("{SECRET}")
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with functions of many kinds, no client of another test, and no region."""
    (tmp_path / "shop_login.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_login.py").write_text(f'raise ValueError("{SECRET}")', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_login", raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "PGUSER", "PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    drivers.aws_client.cache_clear()
    drivers.azure_credential.cache_clear()


@pytest.fixture
def rotating(place: Place, tmp_path: Path) -> Iterator[Rotation]:
    """Give a login with a password that changes."""
    with rotation(place, tmp_path) as made:
        yield made


# ---------------------------------------------------------------- the option


BESIDE = "expected no password beside it"
REFUSED: list[tuple[dict[str, str], str]] = [
    # it may be a password, which someone took for the option's value
    *(
        ({"credentials": text}, "is '…': expected azure, aws or package.module:function")
        for text in (SECRET, f"{SECRET}!:f", "login:", ":f", "a b:c", "a.:b", " ")
    ),
    # one of the two would be ignored
    ({"url": "postgresql://bo:s3cret@db/shop"}, BESIDE),
    ({"url": "postgresql://db/shop?p%61ssword=s3cret"}, BESIDE),
    ({"password": SECRET}, BESIDE),
    ({"url": "sqlserver://bo@db/shop"}, "authentication=ActiveDirectoryDefault"),
]


def test_a_password_in_it_or_beside_it_is_refused() -> None:
    """And not shown."""
    for raw, expected in REFUSED:
        with pytest.raises(BadOption, match=expected) as caught:
            DatabaseOptions.parse({"url": URL, "credentials": "aws"} | raw)

        assert SECRET not in str(caught.value)


# ---------------------------------------------------------------- functions


def test_the_password_is_percent_encoded_in_the_url_of_one_attempt() -> None:
    """The function gets the url as the user wrote it."""
    found = log_in(f"{URL}?sslmode=require", "shop_login:given")

    assert found.startswith(f"{URL}?sslmode=require&password=")
    assert parse_qs(urlsplit(found).query)["password"] == [
        "p&a=s s/db.example/shop?sslmode=require"
    ]
    assert log_in(URL, None) == URL


WRONG = {
    "shop_login:nothing": "but found NoneType",
    "shop_login:empty": "but found an empty text",
    "shop_login:other": "but found Silent",
    "shop_login:half": "but found a text that cannot be sent",
    "shop_login:nul": "but found a text that cannot be sent",
    "shop_login:text": "a function, but found a text",
    "shop_login:missing": "has no attribute 'missing'",
    "shop_login:fails": "but it gave no password: ValueError in shop_login.py, line 12",
    "not_there:f": "No module named 'not_there'",
    "broken_login:f": "ValueError in broken_login.py, line 1",
}


def test_what_gives_no_password_is_an_error_without_its_text() -> None:
    """The error says what was found instead, or the class and the line of what was raised."""
    for text, said in WRONG.items():
        with pytest.raises((BadOption, CredentialsFailed), match=said) as caught:
            ask_password(URL, text)

        assert text in str(caught.value)
        assert isinstance(caught.value, CredentialsFailed) == text.endswith("fails")
        assert SECRET not in "".join(traceback.format_exception(caught.value))


# ---------------------------------------------------------------- clouds


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain installation has neither."""
    for service, module in (("aws", "boto3"), ("azure", "azure.identity")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingPackage, match=rf"pip install 'sqlq-spark\[{service}\]'"):
            ask_password(RDS, service)


def test_a_token_of_aws_is_for_one_host_and_user() -> None:
    """As libpq reads them; a parameter goes before the part of the url."""
    for url, expected in {
        "postgresql://b%40o:x@db/shop": ("db", "5432", "b@o"),
        "postgresql://a@[2001:db8::1]:8/shop?user=bo": ("2001:db8::1", "8", "bo"),
        "postgresql://bo@a,b:5433/shop": ("a,b", ",5433", "bo"),
        "postgresql:///shop": ("", "5432", ""),
    }.items():
        target = Target.parse(url, {})
        assert (target.hosts, target.port, target.user) == expected
    for url, said in {
        "postgresql://bo@a,b/shop": "expected one host in the url",
        "postgresql:///shop?user=bo": "expected one host in the url",
        "postgresql://a.eu-central-1.rds.amazonaws.com/shop": "expected the user in the url",
    }.items():
        with pytest.raises(BadOption, match=said):
            ask_password(url, "aws")


def test_a_token_of_aws_is_signed_for_host_port_user_and_region(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By boto3, without a network; the region is that of the host, or AWS_REGION."""
    pytest.importorskip("boto3", reason="boto3 is of the extra aws")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(BadOption, match="a region: set AWS_REGION"):
        ask_password(URL, "aws")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    for url, region in ((RDS, "eu-central-1"), (URL, "us-west-2")):
        drivers.aws_client.cache_clear()

        token = ask_password(url, "aws")

        host, query = urlsplit(url), parse_qs(token.partition("?")[2])
        assert token.startswith(f"{host.hostname}:{host.port or 5432}/?")
        assert query["DBUser"] == ["bo"]
        assert f"/{region}/rds-db/aws4_request" in query["X-Amz-Credential"][0]
        assert SECRET not in token


# ---------------------------------------------------------------- a server


def test_a_kept_connection_is_not_that_of_another_function(rotating: Rotation) -> None:
    """Nor that of a login without the option."""
    login = {"url": rotating.url}
    given = (login, login | {"credentials": "aws"}, login | {"credentials": CREDENTIALS})
    options = [DatabaseOptions.parse(each) for each in given]

    assert len({StateSession(each, "test", worker=True)._key for each in options}) == 3  # noqa: SLF001


def test_a_command_asks_too(
    rotating: Rotation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a flag or a variable; then a password of the environment is not used."""
    monkeypatch.setenv("SQLQUEUE_URL", rotating.url)
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "another")

    codes = []
    for variable in ("", CREDENTIALS, "another"):
        monkeypatch.setenv("SQLQUEUE_CREDENTIALS", variable)
        flags = [] if variable else ["--credentials", CREDENTIALS]
        with pytest.raises(SystemExit) as ended:
            main.main(["stats", "--json", *flags])
        codes.append(ended.value.code)

    assert codes == [0, 0, 2]
    assert len(rotating.calls) == 2
    assert "option --credentials is '…'" in capsys.readouterr().err


def test_a_job_has_one_for_each_of_its_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a setting, for it is no secret, or as a variable; then no password of one is used."""
    monkeypatch.setenv("SQLQUEUE_PASSWORD", SECRET)
    monkeypatch.setenv("SQLQUEUE_TARGET_CREDENTIALS", "shop.login:password")
    words = ["--source-url", RDS, "--target-url", URL, "--source-credentials", "aws"]
    words += ["--queues", "orders", "--error-queue", "error", "--checkpoint", "/c"]

    settings, _ = load("", relay.Settings, words)

    read, write = settings.read(), settings.write()
    assert (read["url"], read["credentials"]) == (RDS, "aws")
    assert (write["url"], write["credentials"]) == (URL, "shop.login:password")
