"""Errors of the commands: one sentence, an exit code, no password."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from sqlq_spark.cli import options as cli_options
from sqlq_spark.errors import NAMED_OPTIONS, TimedOut

from .commands import COMMANDS, options
from .database import address

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run

TABLE = ("--subscription-table", "TABLE")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("stats", "nowhere"), 'queue "public"."nowhere" was not found'),
        (("send", "nowhere", "--file", __file__), 'queue "public"."nowhere" was not found'),
        (("receipts", "list", "--state-schema", "nowhere"), "Run `sqlqueue install` once"),
        (("create", '"not there"."q"'), 'schema "not there" does not exist. Ask a DBA to create'),
        (("retry", '"public"."absent"', "--all"), "absent"),
        (("subscribers", *TABLE), "the subscription table"),
        (("unsubscribe", "a", "--endpoint", "b", *TABLE), "the subscription table"),
        (("subscribe", "a", "--endpoint", "b", "--queue", "no", *TABLE), "sqlqueue create"),
    ],
)
def test_an_error_of_the_database_is_one_sentence_and_exit_code_3(
    run: Run, place: Place, words: tuple[str, ...], sentence: str
) -> None:
    """It says what to do, and nothing is created."""
    own = [word.replace("TABLE", address(place, "SubscriptionRouting")) for word in words]

    failed = run(*own)

    assert failed.code == 3
    assert sentence in failed.err
    assert "Traceback" not in failed.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "x" * 56), "56 UTF-8 bytes where 55 are the most"),
        (("create", ""), "option queue is ''"),
        (("send", "q", "--time-to-be-received", "soon"), "option --time-to-be-received is 'soon'"),
        (("send", "q", "--header", "novalue"), "expected KEY=VALUE"),
        (("send", "q", "/nowhere"), "No such file"),
        (("send", "q", __file__, "--file", __file__), "no file of JSON lines with it"),
        (("send", "q", "--file", "/nowhere"), "No such file"),
        (
            ("send", "--file", __file__),
            "queue is null, topics too, and the sink has no option",
        ),
        (("send", "q", "--topic", "A"), "option --topic is 'A'"),
        (("send", "--topic", "a;b"), "a;b"),
        (("script", "q", "--dialect", "mysql"), "option --dialect is 'mysql'"),
        (("script", "q", "--reader", "$do$"), "option --reader is '$do$'"),
        (("browse", "q", "--limit", "0"), "limit"),
        (("stats", "q", "--count", "2"), "option --count is '2': expected --watch with it\n"),
        (("subscribe", "a, b", "--endpoint", "b", "--queue", "q"), "a type's full name, as a"),
        (("subscribe", "a", "--endpoint", "", "--queue", "q"), "option endpoint is ''"),
        (("subscribe", "a", "--endpoint", "b", "--queue", '"q'), "option --queue is '\"q'"),
        (("subscribe", "a", "--endpoint", "b"), "--queue"),
        (("subscribers", "--subscription-table", ""), "option --subscription-table is ''"),
        (("retry", "q"), "option --all is 'false': expected either this, or the messages by ID"),
        (("retry", "q", "--all", "m"), "option --all is 'true': expected either this, or the mes"),
        (("retry", "q", "--since", "noon"), "option --since is 'noon': expected a time with its"),
        (("retry", "q", "--until", "2026-06-30T11:00:00"), "option --until is '2026-06-30T11:00"),
        (("retry", "q", "--failed-queue", '"a'), "option --failed-queue is '\"a': expected a queu"),
        (("nothing",), "nothing"),
    ],
)
def test_an_error_of_the_user_is_one_sentence_and_exit_code_2(
    run: Run, words: tuple[str, ...], sentence: str
) -> None:
    """It names the option in the command's spelling."""
    failed = run(*words, stdin='{"body": ""}')

    assert failed.code == 2
    assert sentence in failed.err
    assert "Traceback" not in failed.err


def test_errors_name_options_as_the_commands_spell_them() -> None:
    """Each of them is an option of some command; the errors themselves stay."""
    everything = {spelling for name in COMMANDS for spelling in options(name)}
    error = TimedOut(statement="peek", seconds=1, reason="queryTimeout")

    assert set(cli_options.FLAGS.values()) <= everything
    assert cli_options.FLAGS["endpointTimeZone"] == "--endpoint-time-zone"
    assert set(NAMED_OPTIONS) <= set(cli_options.FLAGS)
    text = "peek took longer than 1 s: queryTimeout. Raise the option {}."
    assert error.describe(cli_options.FLAGS) == text.format("--query-timeout")
    assert str(error) == text.format("queryTimeout")


def test_a_missing_url_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option, and by the environment."""
    monkeypatch.delenv("SQLQUEUE_URL")

    sentence = (
        "option --url is missing: give postgresql://user@host:5432/database or "
        "sqlserver://user@host:1433/database, or set SQLQUEUE_URL\n"
    )
    assert run("stats") == (2, "", sentence)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/shop?user=someone&password=hunter2",
        "mysql://someone:hunter2@127.0.0.1/shop",
        "hunter2",
    ],
)
def test_no_error_holds_the_password(run: Run, url: str) -> None:
    """Wherever it stood in the url."""
    failed = run("stats", "--url", url)

    assert failed.code in {2, 3}
    assert failed.err
    assert "hunter2" not in failed.out + failed.err


def test_a_wrong_password_is_refused_without_a_traceback(place: Place) -> None:
    """In a process of its own, as a user sees it."""
    info = psycopg.conninfo.conninfo_to_dict(place.url)
    url = f"postgresql://nobody:hunter2@{info['host']}:{info['port']}/{info['dbname']}"

    done = subprocess.run(
        [sys.executable, "-m", "sqlq_spark", "stats", "Shop.Orders"],
        env={**os.environ, "SQLQUEUE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    assert "refused the login" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr
