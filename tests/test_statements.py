"""Each call of a statement gives the tables and values that its text has, in both databases."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from sqlq_spark.database.postgresql import rows as postgresql
from sqlq_spark.database.sqlserver import calls as sqlserver
from sqlq_spark.database.statements import StatementName, Statements
from sqlq_spark.receive.receipts import COUNTS
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parent.parent / "sqlq_spark"
METHODS = {"rows", "arrow"}  # of a connection
STATEMENTS = get_args(StatementName)
POSTGRESQL, SQLSERVER = Statements.load("postgresql"), Statements.load("sqlserver")
BRACES = re.compile(r"\{(\w+)\}")

RECEIPT = {"stream", "batch", "task"}
BATCH = {"sink", "batch"}
CHUNK = BATCH | {"attempt", "chunk"}
LIMITS = {"first", "stop", "messages", "bytes", "ceiling", "largest"}
# statement → what calls give it by `**`, where that is no literal in the same function
UNPACKED = {
    **dict.fromkeys(("find_receipt", "receipt_pages", "drop_receipt"), RECEIPT),
    **dict.fromkeys(("begin_receipt", "save_receipt"), RECEIPT),
    **dict.fromkeys(("chunk", "chunk_pages"), CHUNK),
    **dict.fromkeys(("chunks", "discard"), BATCH),
    "stage": CHUNK | {"messages"},
    "acknowledge": {*COUNTS},
    "weigh": LIMITS,
}
# statement → values that only another statement of the same call takes
SPARE = {
    "receive": {"ceiling"},
    "weigh": {"bytes", "ceiling", "largest"},
    "browse_seq": {"bytes", "largest"},
}
# function that executes what it is given → statement, its tables and values
FORWARDED: dict[str, list[tuple[str, set[str], set[str]]]] = {
    "_delete": [
        ("purge_range", {"queue"}, {"first", "stop"}),
        ("purge_expired", {"queue"}, {"messages"}),
    ],
    "_rows": [
        ("subscribers", {"subscriptions"}, {"topic"}),
        ("unsubscribe", {"subscriptions"}, {"topic", "endpoint"}),
    ],
    "create": [
        ("create_queue", {"queue"}, set()),
        ("create_delayed", {"delayed"}, set()),
        ("create_subscriptions", {"subscriptions"}, set()),
    ],
}


@dataclass(frozen=True)
class Call:
    """One call of a connection's method, and the function that has it."""

    place: str
    function: ast.AST
    node: ast.Call

    def assigned(self, name: str) -> Iterator[ast.expr]:
        """What the function assigns to a name, alone or beside others."""
        for node in ast.walk(self.function):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            value = getattr(node, "value", None)
            match targets[0], value:
                case ast.Name(id=found), ast.expr() if found == name:
                    yield value
                case ast.Tuple(elts=names), ast.Tuple(elts=values):
                    pairs = zip(names, values, strict=True)
                    yield from (at for to, at in pairs if getattr(to, "id", "") == name)

    def statements(self, node: ast.expr) -> set[str]:
        """The statements that an argument names; none where the function's caller names it."""
        match node:
            case ast.Constant(value=str(name)):
                return {name}
            case ast.IfExp(body=one, orelse=other):
                return self.statements(one) | self.statements(other)
            case ast.Name(id=name):
                return set().union(*map(self.statements, self.assigned(name)))
        return set()

    def keys(self, node: ast.expr | None) -> set[str] | None:
        """The keys of a dictionary; None where the function does not write them."""
        match node:
            case None:
                return set()
            case ast.Dict(keys=keys) if all(isinstance(each, ast.Constant) for each in keys):
                return {str(each.value) for each in keys if isinstance(each, ast.Constant)}
            case ast.DictComp():
                return {"queue0", "queue1"}  # of a statement that is repeated for each
            case ast.Name(id=name) if found := [*self.assigned(name)]:
                return self.keys(found[-1])
        return None

    def given(self, statement: str) -> tuple[set[str], set[str]]:
        """The tables and the values that the call gives to a statement."""
        values: set[str] = set()
        tables: set[str] = set()
        for each in self.node.keywords:
            if each.arg == "tables":
                found = self.keys(each.value)
                assert found is not None, f"{self.place}: write the tables of {statement} there"
                tables = found
            elif each.arg is not None:
                values.add(each.arg)
            else:
                found = self.keys(each.value)
                values |= UNPACKED[statement] if found is None else found
        return tables, values


def find_calls() -> Iterator[Call]:
    """Yield the calls of statements in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        outer: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                outer |= dict.fromkeys(ast.walk(node), node)  # the innermost comes last
            match node:
                case ast.Call(func=ast.Attribute(attr=method, value=owner), args=[first]) if (
                    method in METHODS and is_connection(path, owner, first)
                ):
                    place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                    yield Call(place, outer[node], node)


def is_connection(path: Path, owner: ast.expr, argument: ast.expr) -> bool:
    """Whether a method is a connection's: by its first argument, or by the name of its owner."""
    if isinstance(argument, ast.Constant):
        return argument.value in STATEMENTS
    name = ast.unparse(owner)
    return name.endswith("connection") and path.name != "connection.py"


def list_executed() -> Iterator[tuple[str, str, set[str], set[str]]]:
    """Yield place, statement, tables and values of each call."""
    for call in find_calls():
        statements = call.statements(call.node.args[0])
        for statement in statements:
            yield (call.place, statement, *call.given(statement))
        if not statements:
            assert isinstance(call.function, ast.FunctionDef)
            yield from ((call.place, *each) for each in FORWARDED[call.function.name])


EXECUTED = sorted(list_executed(), key=lambda each: each[:2])


@pytest.mark.parametrize(
    ("place", "statement", "tables", "values"),
    [pytest.param(*each, id=f"{each[0]} {each[1]}") for each in EXECUTED],
)
def test_a_call_gives_what_its_statement_takes(
    place: str, statement: str, tables: set[str], values: set[str]
) -> None:
    """No table and no value is missing in either database, and no value is there in vain."""
    addresses = {name: QueueAddress(name) for name in tables}
    taken = SPARE.get(statement, set())
    if (text := POSTGRESQL.get(statement)) and "/sqlserver/" not in place:
        bound = set(postgresql.PARAMETER.findall(text))
        postgresql.fill_names(text, "sqlqueue", addresses)  # a missing table is a KeyError
        assert bound <= values
        taken = taken | bound
    if (text := SQLSERVER.get(statement)) and "/postgresql/" not in place:
        found = set(sqlserver.PARAMETER.findall(text))
        bound = {name for name in found if not re.search(rf"DECLARE\b[^;]*@{name} ", text)}
        bound |= set(BRACES.findall(sqlserver.fill_names(text, "sqlqueue", addresses)))
        assert bound <= values
        taken = taken | bound

    assert values <= taken


def test_every_statement_is_executed_and_checked() -> None:
    """A call that is not found here is not checked; `script` prints its statements."""
    executed = {statement for _, statement, _, _ in EXECUTED}

    assert {each for each in STATEMENTS if not each.startswith("script_")} == executed
    assert UNPACKED.keys() | {each[0] for some in FORWARDED.values() for each in some} <= executed
