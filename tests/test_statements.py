"""The statements of both databases take the same tables and values, and each has a caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from sqlq_spark.database.postgresql import rows as postgresql
from sqlq_spark.database.sqlserver import calls as sqlserver
from sqlq_spark.database.statements import LACKS, StatementName, Statements
from sqlq_spark.wire.address import QueueAddress

PACKAGE = Path(__file__).parent.parent / "sqlq_spark"
NAMES = get_args(StatementName)
SHARED = [name for name in NAMES if not any(name in lacks for lacks in LACKS.values())]
POSTGRESQL, SQLSERVER = Statements.load("postgresql"), Statements.load("sqlserver")
BRACES = re.compile(r"\{(\w+)\}")
ROLES = {"queue", "delayed", "errors", "subscriptions", "table"}  # of tables
WORDS = {"role_name"}  # for `role_escaped`


@pytest.mark.parametrize("name", SHARED)
def test_a_call_gives_what_its_statement_takes(name: str) -> None:
    """The suites run each call on PostgreSQL; on SQL Server it lacks no table and no value."""
    named = {*BRACES.findall(POSTGRESQL[name])}
    given = {*postgresql.PARAMETER.findall(POSTGRESQL[name])}
    roles = {word.removesuffix("_escaped") for word in named} | ({"table_name"} & given)
    tables = {role: QueueAddress(role) for role in ROLES if role in roles}
    if "table_name" in given:
        tables |= {"queue": QueueAddress("q"), "delayed": QueueAddress("d")}

    text = sqlserver.fill_names(SQLSERVER[name], "sqlqueue", tables)

    assert {*BRACES.findall(text)} <= named | given | WORDS
    bound = {*sqlserver.PARAMETER.findall(text)}
    assert {each for each in bound if not re.search(rf"DECLARE\b[^;]*@{each} ", text)} <= given


def test_every_statement_has_a_caller() -> None:
    """In quotes; one that nothing runs would not be tested."""
    source = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))

    assert [name for name in NAMES if source.count(f'"{name}"') < 2] == []
