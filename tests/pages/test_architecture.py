"""The architecture page names modules, functions, statements and columns that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import get_args

from sqlq_spark.database.postgresql.rows import STATEMENTS as POSTGRESQL
from sqlq_spark.database.sqlserver.calls import STATEMENTS as SQLSERVER
from sqlq_spark.database.statements import StatementName

from .page import ROOT, blocks, read, table

PAGE = "docs/architecture.md"
NAMES = {*get_args(StatementName)}
# what a diagram names beside statements
OTHERS = re.compile(r"or receive in steps|(?:then )?a bulk insert.*|pages of .*|then .*")
PLACE = re.compile(r"`((?:[\w/]+/)?\w+\.py)(?:::(\w+))?`")
VALUE = re.compile(r"^\d+\. `(\w+)`, `([\w/]+\.py)`: ", re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    """Return the functions, classes and constants of a file, those in classes included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def place_of(path: str) -> str:
    """Return a path of the page from the root: those of the package are named without it."""
    return path if (ROOT / path).exists() else f"sqlq_spark/{path}"


def test_what_the_page_names_is_there() -> None:
    """Each file exists, and defines the name behind `::`."""
    missing = [
        (path, name)
        for path, name in PLACE.findall(read(PAGE))
        if not (ROOT / place_of(path)).exists() or (name and name not in names_in(place_of(path)))
    ]

    assert missing == []


def test_each_value_is_a_class_of_its_module() -> None:
    """Each item of the list of values names a class and where it is."""
    _, section = read(PAGE).split("## The values of one batch")
    items = re.findall(r"^\d+\. ", section.partition("\n## ")[0], re.MULTILINE)
    values = VALUE.findall(section)

    assert len(values) == len(items) > 10
    assert [(name, path) for name, path in values if name not in names_in(place_of(path))] == []


def test_diagrams_name_statements() -> None:
    """What the driver or a task asks of the database is a statement of each dialect."""
    texts = [block.text for block in blocks(PAGE) if block.language == "mermaid"]
    calls = [call for text in texts for call in re.findall(r"->>DB: (.*)", text)]
    words = {word.strip() for call in calls for word in re.sub(r"\(.*\)", "", call).split(",")}
    unknown = {word for word in words if word not in NAMES and not OTHERS.fullmatch(word)}

    assert len(words) > 20
    assert unknown == set()


def test_the_table_of_columns_is_the_state_schema() -> None:
    """Each column is in both dialects' tables, and each statement writes or reads there."""
    rows = [
        (column, written_by + read_by)
        for columns, written_by, read_by, _ in table(PAGE, "state-columns").rows
        for column in columns.split(", ")
    ]

    for column, used_by in rows:
        name, field = column.strip("`").split(".")
        for statements in (POSTGRESQL, SQLSERVER):
            created = re.search(
                rf"CREATE TABLE \{{state\}}\.{name} \((.*?)\)(?: WITH \(|;)",
                statements["install_state"],
                re.DOTALL,
            )
            assert created, name
            assert re.search(rf"(?:^|\n)\s*\[?{field}\]?\s", created[1]), column
        for statement in re.findall(r"`(\w+)`", used_by):
            if statement in NAMES:
                assert re.search(rf"\b{name}\b", POSTGRESQL[statement]), (column, statement)
