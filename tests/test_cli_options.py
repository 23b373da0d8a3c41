"""What the commands have in common: their options, and how errors name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from test_cli import orders, run

from sqlq_spark import __version__
from sqlq_spark.cli import main
from sqlq_spark.cli import options as cli_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

__all__ = ["orders", "run"]  # the fixtures


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Each command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(main.app)))


def options(name: str) -> set[str]:
    """How the options of a command are use_flags."""
    return {spelling for each in COMMANDS[name].params for spelling in each.opts}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_connects_can_be_told_how_long_to_wait(name: str) -> None:
    """A database that is slow or locked is no reason to hang."""
    assert ("--url" in options(name)) == ("--query-timeout" in options(name))


def test_what_only_looks_waits_no_longer_than_it_is_told(
    run: Any, orders: str, place: Place
) -> None:
    """Also for a lock that keeps out streams."""
    asked = (("stats", orders), ("purge", orders, "--yes"))
    place.sql(f"BEGIN; LOCK TABLE {orders} IN ACCESS EXCLUSIVE MODE")

    found = [run(*words, "--query-timeout", "1s") for words in asked]
    place.sql("ROLLBACK")

    for code, _, error in found:
        assert code == 3
        assert error.startswith("stats took longer than 1 s: ")
        assert error.endswith("Raise the option --query-timeout.\n")


def test_errors_name_options_as_the_commands_spell_them() -> None:
    """Each of them is an option of some command."""
    everything = {spelling for name in COMMANDS for spelling in options(name)}

    for name in cli_options.SHARED.split("|"):
        spelling = cli_options.use_flags(f"the option {name}").removeprefix("the option ")
        assert spelling in everything
    assert (
        cli_options.use_flags("in queue option; optionurl url") == "in queue option; optionurl url"
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_fits_into_80_columns(name: str) -> None:
    """Its line breaks are kept below the first paragraph: a longer line would be broken twice."""
    _, *below = (COMMANDS[name].help or "").split("\n\n")

    assert [line for line in "\n".join(below).splitlines() if len(line) > 78] == []


def test_help_shows_brackets_as_they_are(run: Any) -> None:
    """They are no markup."""
    _, text, _ = run("browse", "--help")

    assert "table@[schema]" in text


def test_the_version_can_be_asked_for(run: Any) -> None:
    """By whoever reports what went wrong."""
    assert run("--version") == (0, f"sqlqueue {__version__}\n", "")
