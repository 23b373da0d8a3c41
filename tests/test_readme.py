"""The options that the documents list are those of the package."""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import TYPE_CHECKING

import pytest
from pages.page import blocks, table

from sqlq_spark.database.names import POSTGRESQL
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_fields, option_names, read_option

if TYPE_CHECKING:
    from sqlq_spark.options.connection import DatabaseOptions


def defaults(table_id: str) -> dict[str, str]:
    """Option → default, from a table of options."""
    rows = table("docs/sqlqueue.md", table_id).rows
    return {name: default for names, default, _ in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("table_id", "options"), [("read-options", SourceOptions), ("write-options", SinkOptions)]
)
def test_the_tables_name_every_option(table_id: str, options: type[DatabaseOptions]) -> None:
    """With its default; none is made up, and checkpointLocation is Spark's own."""
    found = defaults(table_id)

    names = set(option_names(options).values()) - {"checkpointLocation"}
    assert set(found) == names | {"user", "password"}
    for each in option_fields(options):
        default = found.get(each.metadata["option"], "")
        if default.startswith("`"):
            assert read_option(each, default.strip("`"), POSTGRESQL) == each.default
        else:
            assert each.default in {None, MISSING, ()}


def test_each_set_up_command_stands_alone() -> None:
    """Two of them, the demo and the tests, each from making the environment to what it is for."""
    commands = {each.id: each.text for each in blocks("README.md") if each.language == "sh"}

    for block in ("demo", "test"):
        assert commands[block].startswith("python3 -m venv .venv && ")
        assert commands[block].count("\n") == 1
