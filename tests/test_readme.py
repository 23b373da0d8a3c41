"""What the documents say of options is what the package does: tables are held to dataclasses."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from sqlq_spark.options import DatabaseOptions

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "sqlqueue.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    """Option → default, from the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", section, flags=re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("heading", "options"),
    [("Options of a read", SourceOptions), ("Options of a write", SinkOptions)],
)
def test_the_tables_name_every_option(heading: str, options: type[DatabaseOptions]) -> None:
    """None is missing and none is made up; checkpointLocation is Spark's own."""
    names = {each.metadata["option"] for each in fields(options)} - {"checkpointLocation"}

    assert set(table(heading)) == names | {"user", "password"}


@pytest.mark.parametrize(
    ("heading", "options"),
    [("Options of a read", SourceOptions), ("Options of a write", SinkOptions)],
)
def test_the_tables_tell_the_defaults(heading: str, options: type[DatabaseOptions]) -> None:
    """A default in the table, read as an option, is the dataclass's default."""
    told = table(heading)
    for each in fields(options):
        default = told.get(each.metadata["option"], "")
        if default.startswith("`"):
            assert each.metadata["read"](default.strip("`")) == each.default
        else:
            assert each.default in {None, MISSING}


def test_each_set_up_command_stands_alone() -> None:
    """Exactly two, each from making the environment to what it is for."""
    commands = re.findall(r"```sh\n(.*?)\n```", README, flags=re.DOTALL)

    assert len(commands) == 2
    assert all(each.startswith("python3 -m venv .venv && ") for each in commands)
