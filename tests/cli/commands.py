"""What a command printed, and the commands and options that there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer.main

from sqlq_spark.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON lines of standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Run(Protocol):
    """Runs one command in this process."""

    def __call__(self, *words: str, stdin: str = "", own: bool = True) -> Result:
        """
        Run the command to its end.

        By default it has the state schema and subscriptions of the test.
        """


def without_psql(script: str) -> str:
    """Leave out the line of a printed script that only psql understands."""
    return script.replace("\\set ON_ERROR_STOP on\n", "")


def json_lines(*objects: dict[str, Any]) -> str:
    """The lines that `sqlqueue send` reads."""
    return "\n".join(map(json.dumps, objects))


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Each command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(main.app)))


def options(name: str) -> set[str]:
    """The options of a command, as they are spelled."""
    return {spelling for each in COMMANDS[name].params for spelling in each.opts}
