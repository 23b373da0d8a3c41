"""A password at any place of a url is in no output. No server is needed."""

from __future__ import annotations

import io
import logging
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from cli.calls import CALLS
from hypothesis import HealthCheck, example, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from sqlq_spark import errors
from sqlq_spark.cli import main
from sqlq_spark.database.postgresql.url import quotes_secret
from sqlq_spark.database.sessions import Session
from sqlq_spark.jobs import settings
from sqlq_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# what people write; {0} is the password. The port has no server.
PLACES = [
    "postgresql://bo:{0}@127.0.0.1:1/shop",
    "PostgreSQL://bo:{0}@127.0.0.1:1/shop",
    "POSTGRES://bo:{0}@127.0.0.1:1/shop",
    "postgresql://:{0}@127.0.0.1:1/shop",
    "postgresql://127.0.0.1:1/shop?user=bo&password={0}",
    "postgresql://127.0.0.1:1/shop&password={0}",
    "postgresql://127.0.0.1:1/shop;password={0}",
    "postgresql://127.0.0.1:1/shop;user=bo;password={0}?sslmode=disable",
    "postgresql://127.0.0.1:1/password={0}",
    "postgresql://127.0.0.1:1/shop#password={0}",
    "postgresql://127.0.0.1:1/shop?user=bo;password={0}",
    "postgresql://127.0.0.1:1/shop?sslmode=disable;password={0}",
    "postgresql://127.0.0.1:1/shop?sslmode={0}",
    "postgresql://127.0.0.1:1/shop?connect_timeout={0}",
    "postgresql://127.0.0.1:1/shop?pwd={0}",
    "postgresql://127.0.0.1:1/shop?{0}",
    "postgresql://127.0.0.1:1;password={0}/shop",
    "postgresql://127.0.0.1:{0}/shop",
    "postgresql://127.0.0.1&password={0}/shop",
    "postgresql://bo;password={0}@127.0.0.1:1/shop",
    "postgresql://bo&password={0}@127.0.0.1:1/shop",
    "postgresql://bo:{0}/127.0.0.1:1/shop",
    "postgresql:bo:{0}@127.0.0.1:1/shop",
    "postgresql//bo:{0}@127.0.0.1:1/shop",
    "jdbc:postgresql://127.0.0.1:1/shop?user=bo&password={0}",
    "host=127.0.0.1 port=1 password={0}",
    "Host=127.0.0.1;Password={0};Database=shop",
    "Host=127.0.0.1;Password={0};Url=tcp://db",
    "sqlserver://bo:{0}@127.0.0.1:1/shop",
    "SqlServer://bo:{0}@127.0.0.1:1/shop",
    "sqlserver://127.0.0.1:1;databaseName=shop;user=bo;password={0}",
    "sqlserver://127.0.0.1:1/shop;password={0}",
    "sqlserver://127.0.0.1:1/shop&password={0}",
    "sqlserver://127.0.0.1:1/shop?user=bo&password={0}",
    "sqlserver://127.0.0.1:1/shop?user=bo;password={0}",
    "sqlserver://127.0.0.1:1/shop?encrypt=yes;password={0}",
    "sqlserver://127.0.0.1:1/shop?encrypt={0}",
    "sqlserver://127.0.0.1:1/shop?passwort={0}",
    "sqlserver://127.0.0.1:1/shop?password:{0}=yes",
    "sqlserver://127.0.0.1:1/shop?{0}",
    "sqlserver://127.0.0.1:{0}/shop",
    "sqlserver://bo;password={0}@127.0.0.1:1/shop",
    "Server=127.0.0.1,1;Database=shop;Password={0}",
]
# a text that is in no url, error or name, with what a url and SQL have to quote
PASSWORDS = st.text(st.sampled_from("xz79 ;&=?#/@:%'\"\\ß[]{}<>$"), min_size=1, max_size=12).map(
    lambda text: f"pA55{text}55Ap"
)


def errors_of(url: str) -> str:
    """What a read, a write, their session and a job's dry run print, log and raise for a url."""
    shown = [settings.show_value("url", url), settings.show_value("source", {"url": url})]
    with logged() as log:
        for kind in (SourceOptions, SinkOptions):
            try:
                options = kind.parse({"url": url, "queue": "q", "queryTimeout": "1s"})
                shown.append(repr(options))
                with Session(options, "test") as session:
                    session.run_with_retries(lambda connection: connection.value("clock"))
            except errors.SqlQueueError as error:
                shown += [repr(error), repr(vars(error)), *traceback.format_exception(error)]
    return "\n".join([*shown, log.getvalue()])


def command_output(words: list[str]) -> str:
    """What a command prints and logs."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), logged() as log, suppress(SystemExit):
        main.main(words)
    return out.getvalue() + log.getvalue()


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Give what is logged in the block, at every level."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def lines_with(password: str, text: str) -> list[str]:
    """The lines that have a part of a password, in any spelling."""
    known = (password, quote(password), quote(password, safe=""), "pA55", "55Ap")
    return [line for line in text.splitlines() if any(each in line for each in known)]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the url and passwords of this machine, and give commands a line to read."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_PASSWORD", "PGPASSWORD", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "x"}')))


@settings_of(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), password=PASSWORDS, is_coded=st.booleans())
@example(place="postgresql://127.0.0.1:1;password={0}/shop", password="pA55@55Ap", is_coded=False)  # noqa: S106
@example(place="postgresql://127.0.0.1:{0}/shop", password="pA55@55Ap", is_coded=False)  # noqa: S106
@example(place="postgresql://bo:{0}/127.0.0.1:1/shop", password="pA55@55Ap", is_coded=False)  # noqa: S106
@example(place="sqlserver://127.0.0.1:{0}/shop", password="pA55@55Ap", is_coded=False)  # noqa: S106
def test_no_error_and_no_line_shows_a_password(place: str, password: str, is_coded: bool) -> None:  # noqa: FBT001
    """The password may be anywhere in the url, as it is or percent-encoded."""
    url = place.format(quote(password, safe="") if is_coded else password)

    assert lines_with(password, errors_of(url)) == []


@pytest.mark.parametrize("place", PLACES)
def test_no_command_shows_a_password(place: str) -> None:
    """The password is tried in each place of a url."""
    password = "pA55x y#;=/@z55Ap"  # noqa: S105
    for url in (place.format(password), place.format(quote(password, safe=""))):
        said = command_output(["stats", "q", "--url", url, "--query-timeout", "1s"])

        assert said
        assert lines_with(password, said) == []


@pytest.mark.parametrize("name", CALLS)
def test_each_command_keeps_the_password(name: str) -> None:
    """One url leads to no server, and one cannot be read."""
    password = "pA5555Ap"  # noqa: S105
    for place in ("postgresql://bo:{0}@127.0.0.1:1/s", "PostgreSQL://127.0.0.1:1/s;password={0}"):
        words = [*name.split(), *CALLS[name], "--url", place.format(password)]

        assert lines_with(password, command_output(words)) == []


def test_a_sentence_of_the_driver_with_the_url_is_dropped() -> None:
    """Libpq quotes what it cannot read, and the server quotes a login that holds the password."""
    url = "postgresql://bo:geheim@db:5432/shop?application_name=x&target_session_attrs=tajna"
    for text in (
        f'missing "=" after "{url}" in connection info string',
        'role "bo;geheim" does not exist',
        'invalid target_session_attrs value: "tajna"',
    ):
        assert quotes_secret(text, url)
    for text in ('role "bo" does not exist', 'database "shop" does not exist', "host db: x"):
        assert not quotes_secret(text, url)
    plain = "postgresql://postgres:postgres@db/postgres"
    assert not quotes_secret('database "postgres" does not exist', plain)
