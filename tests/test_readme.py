"""The options that the documents list are those of the package."""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import TYPE_CHECKING

import pytest
from pages.page import table

from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_fields, read_option
from sqlq_spark.wire.address import POSTGRESQL

if TYPE_CHECKING:
    from sqlq_spark.options.connection import DatabaseOptions


def rows(table_id: str) -> dict[str, tuple[str, str]]:
    """Option → default and meaning, from a table of options."""
    return {
        name: (default, meaning)
        for names, default, meaning in table("docs/sqlqueue.md", table_id).rows
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize(
    ("table_id", "options"), [("read-options", SourceOptions), ("write-options", SinkOptions)]
)
def test_the_tables_name_every_option(table_id: str, options: type[DatabaseOptions]) -> None:
    """With its default, and what an error says that it expects: its choices and its limits."""
    found, lost = rows(table_id), []
    fields = {each.metadata["option"]: each for each in option_fields(options)}
    fields.pop("checkpointLocation", None)  # Spark's own

    assert set(found) == {*fields, "user", "password"}
    for name, each in fields.items():
        default, meaning = found[name]
        if default.startswith("`"):
            assert read_option(each, default.strip("`"), POSTGRESQL) == each.default
        else:
            assert each.default in {None, MISSING, ()}
            assert (default == "required") == (each.default is MISSING)
        if "as in a read" in meaning:
            meaning += rows("read-options")[name][1]
        expected = each.metadata["expected"]
        bounds = re.findall(r"(?:at most|of at least|from|to) (\d[\w.:]+)", expected)
        choice = re.fullmatch(r"(?:[\w.:]+, )*[\w.:]+ or [\w.:]+", expected)
        offered = re.split(r", | or ", expected) if choice else []
        texts = re.findall(r"`([^`]+)`", f"{default} {meaning}")
        lost += [(name, word) for word in bounds + offered if word not in texts]
    assert lost == []
