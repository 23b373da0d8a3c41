"""What all commands have in common: options, JSON, exit codes, time limits, errors and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conftest import Place, placed
from waiting import PATIENCE, until

from .calls import CALLS, filled, prepare
from .commands import COMMANDS, options
from .database import STREAM, count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .commands import Run


@pytest.fixture(scope="module")
def place(server: str) -> Iterator[Place]:
    """Give one place to all tests here, because no test needs what another one changes."""
    with placed(server) as made:
        yield made


@pytest.fixture(scope="module")
def ready(place: Place) -> dict[str, str]:
    """Make what the calls work on."""
    at = place.connection.info
    nobody = f"postgresql://nobody:hunter2@{at.host}:{at.port}/{at.dbname}"
    return prepare(place) | {"NOBODY": nobody, "VERSION": f'"{place.state}"."version"'}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_json_yes_and_a_database_that_may_be_away(
    run: Run, ready: dict[str, str], name: str
) -> None:
    """
    A command that asks refuses a program without `--yes`.

    An unreachable database is exit code 3, and its error shows no password.
    """
    known, call = options(name), filled(CALLS.get(name, ()), ready)
    assert name in CALLS or name == "demo"
    assert "--json" in known
    assert len(known & {"--url", "--query-timeout", "--credentials"}) in {0, 3}

    if "--yes" in known:
        words = [word for word in call if word != "--yes"]
        refused = run(*name.split(), *words, "--json", stdin="y\n")
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.endswith("expected --yes with it, because a program cannot be asked\n")
    if "--url" in known:
        more = ("--json", "--url", "postgresql://a:hunter2@127.0.0.1:1/shop")
        failed = run(*name.split(), *call, *more)
        assert (failed.code, failed.out) == (3, "")
        assert failed.err.startswith("no connection to postgresql://127.0.0.1:1/shop: ")
        assert "hunter2" not in failed.err
        assert len(failed.err.splitlines()) == 1


ONE_TOPIC = (
    "expected a type's full name, as Shop.OrderPlaced. Give each type a --topic of its own. A name "
    "with its assembly, as 'Shop.OrderPlaced, Shop', is for --message-type"
)
FAILURES: list[tuple[Any, ...]] = [
    (1, ("receipts", "return", "--stream", "nobody", "--yes"), "has no such receipt"),
    (1, ("receipts", "show", STREAM, "--message", "M-3"), "holds message M-3"),
    (1, ("receipts", "show", STREAM, "--batch", "9"), "holds a message"),
    (2, ("send", "q", "--time-to-be-received", "soon"), "option --time-to-be-received is 'soon'"),
    (2, ("send", "q", __file__, "--file", __file__), "no file of JSON lines with it"),
    (2, ("send", "q", "--topic", "A"), "option --topic is 'A'"),
    (
        2,
        ("send", "q", "--header", "a=\udcff"),
        "option --header is 'a=\\udcff': expected KEY=VALUE",
    ),
    *(
        (2, ("send", "--topic", topic), f"option --topic is {topic!r}: {ONE_TOPIC}")
        for topic in ("Shop.OrderPlaced, Shop", "Shop.OrderPlaced,Shop", "Shop Placed", " Shop.A")
    ),
    (2, ("script", "q", "--reader", "clerk"), "expected --domain or --state-schema with it"),
    (2, ("script", "q@[dbo]@[shop]", "--dialect", "sqlserver"), "run the script in its database"),
    (2, ("stats", "q", "--count", "2"), "option --count is '2': expected --watch with it\n"),
    (2, ("stats", "--openmetrics", "/"), "option --openmetrics is '/': expected a file to write ("),
    (2, ("stats", "--url", ""), "option --url is missing: give postgresql://user@host:5432/data"),
    (2, ("stats", "--url", "mysql://someone:hunter2@127.0.0.1/shop"), "sqlserver://"),
    (2, ("subscribe", "a", "--endpoint", "b", "--queue", '"q'), "option --queue is '\"q'"),
    (2, ("retry", "q"), "option --all is 'false': expected either this, or the messages by ID"),
    (2, ("selftest", "--yes", "--only", "everything"), "option --only is 'everything'"),
    (3, ("stats", "nowhere"), 'queue "public"."nowhere" was not found'),
    (3, ("stats", "--url", "NOBODY"), "refused the login"),
    (3, ("receipts", "list", "--state-schema", "nowhere"), "Run `sqlqueue install` once"),
    (3, ("move-due", "OTHER"), "Create it with `sqlqueue create QUEUE --delayed`"),
    (3, ("subscribers",), "the subscription table"),
    (3, ("retire", "VERSION", "--yes"), "is not a queue: it has no column body"),
]


# the third line that `send` reads; the second is blank
LINES = {
    "{": "it is not JSON",
    '{"body": null}': "it has no body",
    '{"body": [NaN]}': "it has NaN, which is no JSON",
    '{"body": 1, "body": 2}': "it has 'body' twice",
    '{"body": "", "corruptHeaders": "["}': "it has corruptHeaders: a poison message",
    '{"body": "", "expires": "2030-01-01T00:00:00Z"}': "use --as-received to keep",
    '{"body": ""}': "queue is null, topics too, and ",
    '{"body": "", "bdoy": 1}': "'bdoy' is not known; expected one of body",
    '{"body": "", "headers": {"a": "\\ud800"}}': "expected an object of texts",
    '{"body": "\\ud800"}': "text without half of a surrogate pair",
    '{"bodyBase64": "?"}': 'bodyBase64 is "?": expected base64',
    '{"body": "", "topics": "Shop.A"}': "expected an array of texts",
    '{"body": "", "topics": ["A"], "queue": "q"}': "both a queue and topics",
    '{"body": "", "deliverAt": "2030-01-01T00:00:00"}': "expected a time with its zone",
    '{"body": "", "deliverAt": "0001-01-01T00:00:00+14:00"}': "outside of the years 1900 to",
}
SEND = ("send", "--url", "postgresql://127.0.0.1:1/shop")  # the error comes before a connection


@pytest.mark.parametrize("failure", FAILURES + [(2, SEND, LINES[each], each) for each in LINES])
def test_what_fails_ends_by_its_exit_code_with_one_sentence(
    run: Run, ready: dict[str, str], failure: tuple[Any, ...]
) -> None:
    """The sentence names the option as the command spells it, has a fix, and no password."""
    code, words, sentence, *lines = failure
    given = "\n\n".join(('{"body": "good", "queue": "q"}', *lines))

    failed = run(*filled(words, ready), stdin=given)

    assert failed.code == code
    assert sentence in failed.err
    assert "hunter2" not in failed.out + failed.err
    if lines:
        assert failed.err.startswith("line 3 cannot be sent: ")
        assert failed.err.endswith(". Nothing was sent.\n")


# ---------------------------------------------------------------- Ctrl-C


def test_ctrl_c_at_a_question_is_130(ready: dict[str, str], place: Place) -> None:
    """Ctrl-C ends a process that waits for an answer, and nothing is purged."""
    question = b"Continue? [y/N]: "
    with subprocess.Popen(
        [sys.executable, "-m", "sqlq_spark", "purge", ready["OTHER"]],
        env={**os.environ, "SQLQUEUE_URL": place.url},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read(len(question)) == question
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130

    assert count(place, ready["OTHER"]) == 4


def interrupted(place: Place) -> threading.Thread:
    """Send this process a Ctrl-C as soon as a session of ours waits for a lock."""
    waiting = (
        "SELECT application_name FROM pg_stat_activity"
        " WHERE application_name LIKE 'sqlqueue %' AND wait_event_type = 'Lock'"
    )

    def strike() -> None:
        with psycopg.connect(place.url, autocommit=True) as other:
            until(lambda: other.execute(waiting).fetchall())
        os.kill(os.getpid(), signal.SIGINT)  # the command waits, so it gets the signal

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("command", "stopped"),
    [
        (("purge", "OTHER"), "0 of 4 messages deleted"),
        (("receipts", "return", "--stream", STREAM), "0 of 3 messages returned"),
    ],
)
def test_ctrl_c_during_work_is_130_and_reports_the_progress(
    run: Run, ready: dict[str, str], place: Place, command: tuple[str, ...], stopped: str
) -> None:
    """What was under way is undone."""
    table = ready["OTHER"] if command[0] == "purge" else f"{place.state}.stream"
    place.sql(f"BEGIN; SELECT FROM {table} FOR UPDATE")

    striker = interrupted(place)
    ended = run(*filled(command, ready), "--yes")
    striker.join()
    place.sql("ROLLBACK")

    assert (ended.code, ended.err.splitlines()[-1]) == (130, f"stopped: {stopped}")
    assert (count(place, ready["OTHER"]), count(place, f"{place.state}.receipt")) == (4, 3)


# ---------------------------------------------------------------- what is loaded


def test_help_imports_neither_pyarrow_nor_the_demo() -> None:
    """People wait for `--help`, and these imports are slow."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sqlq_spark", "browse", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    slow = {"pyarrow", "psycopg", "numpy", "pyspark", "jinja2", "sqlq_spark.demo"}
    assert "sqlq_spark.cli.main" in loaded
    assert slow & loaded == set()
