"""What docs/commandline.md says is what the commands are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pages.page import table
from test_cli_options import COMMANDS, options

from sqlq_spark.cli import options as cli_options

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "commandline.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_command() -> None:
    """None is missing and none is made up."""
    rows = [name.strip("`") for name in table("docs/commandline.md", "commands").column()]

    assert sorted(rows) == sorted(COMMANDS)


def test_the_page_has_a_row_for_each_exit_code() -> None:
    """Those that the package ends with."""
    codes = {int(code) for code in table("docs/commandline.md", "exit-codes").column()}

    found = cli_options
    assert codes == {0, found.FOUND, found.USAGE, found.DATABASE, found.STOPPED}


@pytest.mark.parametrize("line", re.findall(r"\bsqlqueue [a-z][^`\n]*", PAGE))
def test_the_options_of_each_line_of_the_page_are_there(line: str) -> None:
    """As the command has them."""
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]

    assert {word for word in words if word.startswith("--")} <= options(name)
