"""What all commands have in common: options, help, JSON, exit codes, and their page."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Place, placed
from pages.page import table

from sqlq_spark import __version__, demo
from sqlq_spark.cli import options as cli_options

from .calls import CALLS, STATE, TABLE, filled, prepare
from .commands import COMMANDS, options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from .commands import Run

PAGE = Path(__file__).parents[2] / "docs" / "commandline.md"
NOWHERE = "postgresql://127.0.0.1:1/shop"
CONNECTING = [name for name in sorted(COMMANDS) if "--url" in options(name)]


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[Place]:
    """Give one place to all tests here: what one test changes, no other needs."""
    with placed(server) as made:
        yield made


@pytest.fixture
def place(shared: Place) -> Place:
    """Give the shared place to `run`."""
    return shared


@pytest.fixture(scope="module")
def ready(shared: Place) -> dict[str, str]:
    """Make what the calls work on."""
    return prepare(shared)


# ---------------------------------------------------------------- options and help


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_the_common_options(run: Run, name: str) -> None:
    """--json, a timeout if it connects, help of 80 columns, and 2 for an unknown option."""
    refused = run(*name.split(), "--no-such-option")

    assert (refused.code, refused.out) == (2, "")
    assert "--no-such-option" in refused.err
    assert name in CALLS or name == "demo"
    assert "--json" in options(name)
    assert ("--url" in options(name)) == ("--query-timeout" in options(name))
    assert ("--url" in options(name)) == ("--credentials" in options(name))
    # line breaks are kept below the first paragraph: a longer line would be broken twice
    _, *below = (COMMANDS[name].help or "").split("\n\n")
    assert [line for line in "\n".join(below).splitlines() if len(line) > 78] == []


def test_help_shows_brackets_and_the_version_is_printed(run: Run) -> None:
    """Brackets of an address are no markup."""
    assert "table@[schema]" in run("browse", "--help").out
    assert run("--version") == (0, f"sqlqueue {__version__}\n", "")


def test_the_script_for_a_shell_is_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --show-completion; --install-completion installs it."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    script = run("--show-completion", "bash")

    assert script.code == 0
    assert "complete -o default -F" in script.out
    assert "--install-completion" in run("--help").out


def test_a_command_waits_no_longer_than_its_timeout(
    run: Run, ready: dict[str, str], place: Place
) -> None:
    """Also for a lock; the error names the option to raise. stats shows who has the lock."""
    queue = ready["OTHER"]
    place.sql(f"BEGIN; LOCK TABLE {queue} IN ACCESS EXCLUSIVE MODE")

    shown = run("stats", queue, "--query-timeout", "1s")
    purged = run("purge", queue, "--yes", "--query-timeout", "1s")
    place.sql("ROLLBACK")

    assert shown.code == 0
    assert f"{queue}: session " in shown.out
    assert purged.code == 3
    assert purged.err.startswith("stats took longer than 1 s: ")
    assert purged.err.endswith("Raise the option --query-timeout.\n")


# ---------------------------------------------------------------- JSON and exit codes


ASKING = [
    *("purge", "receipts return", "receipts drop", "retire", "retry", "selftest", "unsubscribe"),
]


@pytest.mark.parametrize("name", ASKING)
def test_a_program_must_say_yes(run: Run, ready: dict[str, str], name: str) -> None:
    """Without --yes nothing is done."""
    call = [word for word in filled(CALLS[name], ready) if word != "--yes"]

    refused = run(*name.split(), *call, "--json", stdin="y\n")

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.endswith("expected --yes with it, because a program cannot be asked\n")


@pytest.mark.parametrize("name", CONNECTING)
def test_an_unreachable_database_is_exit_code_3(run: Run, name: str) -> None:
    """One sentence says where it was looked for."""
    words = filled(CALLS[name], {"QUEUE": "q", "STATE": "s", "TABLE": "t"})
    report = ["--json"] if name == "report" else []  # it must be asked for a form

    failed = run(*name.split(), *words, *report, "--url", NOWHERE)

    assert (failed.code, failed.out) == (3, "")
    assert failed.err.startswith(f"no connection to {NOWHERE}: ")
    assert len(failed.err.splitlines()) == 1


@pytest.mark.parametrize(
    "call",
    [
        ("doctor", "QUEUE", *STATE),
        ("unsubscribe", "a", "--endpoint", "b", *TABLE),
        ("receipts", "return", "--stream", "nobody", *STATE, "--yes"),
        ("receipts", "drop", "--stream", "nobody", *STATE, "--yes"),
    ],
)
def test_a_problem_or_nothing_to_work_on_is_exit_code_1(
    run: Run, ready: dict[str, str], call: tuple[str, ...]
) -> None:
    """As is the answer no."""
    assert run(*filled(call, ready)).code == 1


def test_the_demo_prints_its_figures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no bars; a result stands in for the minute that it takes."""
    figures = {"sent": 9, "received": 9, "lost": 0, "repeated": 0, "strange": 0, "left": 0}
    result = demo.Result(**figures, kills=2, sent_each_second=1, received_each_second=1)

    def run_demo(bars: Progress, **_: object) -> demo.Result:
        with bars:
            bars.add_task("send", total=None, count="")
            bars.console.print("SIGKILL")
        return result

    monkeypatch.setattr(demo, "run", run_demo)
    endings = (signal.SIGTERM, signal.SIGHUP)  # the demo handles these signals
    before = [signal.getsignal(ending) for ending in endings]

    printed = run("demo", "--json")
    for ending, handler in zip(endings, before, strict=True):
        signal.signal(ending, handler)

    assert (printed.code, printed.err) == (0, "")
    (found,) = printed.objects
    assert found | figures == found
    assert found["good"] is True


# ---------------------------------------------------------------- docs/commandline.md


def test_the_page_has_a_row_for_each_command_and_exit_code() -> None:
    """None is missing and none is made up."""
    rows = [name.strip("`") for name in table("docs/commandline.md", "commands").column()]
    codes = {int(code) for code in table("docs/commandline.md", "exit-codes").column()}

    found = cli_options
    assert sorted(rows) == sorted(COMMANDS)
    assert codes == {0, found.FOUND, found.USAGE, found.DATABASE, found.STOPPED}


@pytest.mark.parametrize(
    "line", re.findall(r"\bsqlqueue [a-z][^`\n]*", PAGE.read_text(encoding="utf-8"))
)
def test_the_commands_have_the_options_of_each_line_of_the_page(line: str) -> None:
    """In the same spelling."""
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]

    assert {word for word in words if word.startswith("--")} <= options(name)
