"""The options that the documents list are those of the package."""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import TYPE_CHECKING

import pytest
from pages.page import blocks, table

from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_fields, option_names, read_option
from sqlq_spark.wire.address import POSTGRESQL

if TYPE_CHECKING:
    from sqlq_spark.options.connection import DatabaseOptions


SIDES = [("read-options", SourceOptions), ("write-options", SinkOptions)]


def rows(table_id: str) -> dict[str, tuple[str, str]]:
    """Option → default and meaning, from a table of options."""
    found = table("docs/sqlqueue.md", table_id).rows
    return {
        name: (default, meaning)
        for names, default, meaning in found
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize(("table_id", "options"), SIDES)
def test_the_tables_name_every_option(table_id: str, options: type[DatabaseOptions]) -> None:
    """With its default; none is made up, and checkpointLocation is Spark's own."""
    found = rows(table_id)

    names = set(option_names(options).values()) - {"checkpointLocation"}
    assert set(found) == names | {"user", "password"}
    for each in option_fields(options):
        default, _ = found.get(each.metadata["option"], ("", ""))
        if default.startswith("`"):
            assert read_option(each, default.strip("`"), POSTGRESQL) == each.default
        else:
            assert each.default in {None, MISSING, ()}
            assert (default == "required") == (each.default is MISSING)


@pytest.mark.parametrize(("table_id", "options"), SIDES)
def test_the_tables_name_every_choice_and_bound(
    table_id: str, options: type[DatabaseOptions]
) -> None:
    """What an error says an option expects is in its row: words to choose from, and limits."""
    found = rows(table_id)
    lost = []
    for each in option_fields(options):
        name, expected = each.metadata["option"], each.metadata["expected"]
        if name == "checkpointLocation":
            continue
        default, meaning = found[name]
        if "as in a read" in meaning:
            meaning += rows("read-options")[name][1]
        bounds = re.findall(r"(?:at most|of at least|from|to) (\d[\w.:]+)", expected)
        choice = re.fullmatch(r"(?:[\w.:]+, )*[\w.:]+ or [\w.:]+", expected)
        offered = re.split(r", | or ", expected) if choice else []
        texts = re.findall(r"`([^`]+)`", f"{default} {meaning}")
        lost += [(name, word) for word in bounds + offered if word not in texts]

    assert lost == []


def test_each_set_up_command_stands_alone() -> None:
    """Two of them, the demo and the tests, each from making the environment to what it is for."""
    commands = {each.id: each.text for each in blocks("README.md") if each.language == "sh"}

    for block in ("demo", "test"):
        assert commands[block].startswith("python3 -m venv .venv && ")
        assert commands[block].count("\n") == 1
