"""
The T-SQL keeps rules that neither a parser nor Microsoft's schema model checks; see sqlserver_lint.

Each rule finds a fault that is planted for it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
import sqlserver_lint
import sqlserver_texts
from pages.locks import comments
from sqlserver_lint import RULES, Schema, Text
from test_sqlserver import made

from sqlq_spark.database.sqlserver import calls
from sqlq_spark.database.statements import Statements

if TYPE_CHECKING:
    from sqlserver_lint import Rule

    from sqlq_spark.database import Value

TEXTS = sqlserver_texts.rendered()
COMMENTS = comments("sqlserver")
CASTS = {
    name: dict(re.findall(r"(?<![:\w]):([a-z_]+)::([a-z0-9]+)", text))
    for name, text in Statements.load("postgresql").items()
}


def parameters(name: str) -> dict[str, str]:
    """The types of a statement's parameters, as the other dialect casts them."""
    every = {each: cast for casts in CASTS.values() for each, cast in casts.items()}
    casts = {**every, **CASTS.get(name, {}), "rows": "text"}
    return {each: sqlserver_lint.DECLARED.get(cast, "nvarchar") for each, cast in casts.items()}


def statement(name: str, sql: str) -> Text:
    """A statement with its comment and the types of its parameters."""
    return Text(sql, COMMENTS.get(name, ""), parameters(name))


@cache
def statements() -> dict[str, Text]:
    """All statements; parsing them takes a while."""
    return {name: statement(name, sql) for name, sql in TEXTS.items()}


@cache
def schema() -> Schema:
    """The tables, as the statements create them."""
    creates = ("install_", "create_")
    return Schema([text for name, text in statements().items() if name.startswith(creates)])


def wrong(rule: Rule, texts: dict[str, Text]) -> list[str]:
    """What a rule finds."""
    return [f"{name}: {each}" for name, text in texts.items() for each in rule(text, schema())]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_statement_keeps_the_rule(rule: Rule) -> None:
    """Statements of all files, and the bulk insert."""
    assert wrong(rule, statements()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_batch_of_the_printed_script_keeps_the_rule(rule: Rule) -> None:
    """Names that a batch declares end with it; nothing is bound."""
    batches = enumerate(made().split("\nGO\n"))

    assert wrong(rule, {str(at): Text(batch) for at, batch in batches}) == []


FAULTS = [
    ("readpast_is_shared", "receipts", r"(stream AS o) WITH \([^)]*\)", r"\1"),
    ("hints_agree", "receive", "ROWLOCK, READ", "ROWLOCK, REPEATABLEREAD, READ"),
    ("hints_agree", "lock_stream", "ROWLOCK", "ROWLOCK, TABLOCK"),
    ("hints_agree", "browse_seq", "ROWLOCK", "ROWLOCK, ROWLOCK"),
    ("readpast_is_allowed", "receive", "READCOMMITTEDLOCK", "HOLDLOCK"),
    ("readpast_is_allowed", "peek", "READCOMMITTEDLOCK", "NOLOCK"),
    ("promised_seek", "receive", "FORCESEEK, ", ""),
    ("promised_seek", "move_due", "FORCESEEK, ", ""),
    ("promised_seek", "settle", r"WITH \(FORCESEEK\)", ""),
    ("insert_has_its_columns", "save_receipt", "@unpacked, ", ""),
    ("insert_has_its_columns", "divert_large", "END, 1, Headers", "END, Headers"),
    ("insert_has_its_columns", "stage", "@messages, @payload", "@payload"),
    ("output_has_its_columns", "move_due", r"NEWID\(\), 1,", "NEWID(),"),
    ("output_has_its_columns", "discard_abandoned", ", deleted.chunk", ""),
    ("indexes_are_not_converted", "take", r"CAST\(value AS bigint\)", "value"),
    ("indexes_are_not_converted", "purge_expired", "seq bigint", "seq float"),
    ("indexes_are_not_converted", "stats", "<= GETUTCDATE", "<= SYSUTCDATETIME"),
    ("indexes_are_not_converted", "discard_abandoned", r"(@gone[^,]*) COLLATE \w+", r"\1"),
    ("indexes_are_not_converted", "acknowledge", "stream = @stream", "stream = @batch"),
    ("indexes_are_not_converted", "outcome", "BETWEEN @first", "BETWEEN GETUTCDATE()"),
    ("parameters_are_declared", "receive", "@largest", "@larger"),
    ("parameters_are_declared", "install_lock", "@got int, ", ""),
]


@pytest.mark.parametrize(("rule", "name", "old", "new"), FAULTS)
def test_a_planted_fault_is_found(rule: str, name: str, old: str, new: str) -> None:
    """By its rule; without the fault the rule finds nothing there."""
    (check,) = [each for each in RULES if each.__name__ == rule]
    broken = re.sub(old, new, TEXTS[name])

    assert broken != TEXTS[name]
    assert wrong(check, {name: statement(name, broken)}) != []
    assert wrong(check, {name: statement(name, TEXTS[name])}) == []


def test_every_rule_has_a_planted_fault() -> None:
    """A rule that can find nothing would pass."""
    assert {rule for rule, *_ in FAULTS} == {rule.__name__ for rule in RULES}


def test_a_parameter_has_the_type_that_the_rules_take_it_for() -> None:
    """The types come from the casts of the other dialect; here they come from the values."""
    samples: dict[str, Value] = {
        "bigint": 1,
        "boolean": True,
        "float8": 0.5,
        "bytea": b"x",
        "text": "x",
    }

    for cast, value in samples.items():
        kind = calls.type_of("x", value).partition("(")[0]
        assert kind == sqlserver_lint.DECLARED.get(cast, "nvarchar")


@pytest.mark.parametrize(
    ("column", "other", "found"),
    [
        ("varchar(255)", "nvarchar", True),
        ("datetime", "datetime2(7)", True),
        ("nvarchar(200) Latin1_General_100_BIN2", "bigint", True),
        ("bigint", "sql_variant", True),
        ("int", "bigint", False),
        ("nvarchar(200)", "nvarchar", False),
        ("bigint", "nvarchar", False),
    ],
)
def test_the_higher_of_two_types_converts_the_other(
    column: str, other: str, *, found: bool
) -> None:
    """By the server's order of types; an int is sought by a bigint all the same."""
    assert bool(sqlserver_lint.conversion(column, other)) == found
