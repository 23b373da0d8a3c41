"""
Rules for T-SQL that no parser checks: hints, numbers of columns, types.

Each rule is a function of a `Text` that returns what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlfluff.core import Linter

from sqlq_spark.database.sqlserver import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    Rule = Callable[["Text"], Iterator[str]]

# of each only one; the server refuses READPAST with the first five
ISOLATION = [
    *("HOLDLOCK", "SERIALIZABLE", "NOLOCK", "READUNCOMMITTED", "SNAPSHOT"),
    *("READCOMMITTED", "REPEATABLEREAD", "READCOMMITTEDLOCK"),
]
GRANULARITY = {"PAGLOCK", "ROWLOCK", "TABLOCK", "TABLOCKX", "NOLOCK"}
# the lower one of two types is converted; of a column, that may cost its index
PRECEDENCE = [
    *("varbinary", "varchar", "nvarchar", "uniqueidentifier", "bit", "int", "bigint", "float"),
    *("datetime", "datetime2"),
]
HARMLESS = {("int", "bigint")}  # the server seeks an int by a bigint
FUNCTIONS = {"GETUTCDATE()": "datetime", "SYSUTCDATETIME()": "datetime2"}
# casts of the other dialect → the types that a parameter has here
CASTS = {"bigint": 1, "boolean": True, "float8": 0.5, "bytea": b"x"}
DECLARED = {cast: calls.type_of("x", value).split("(")[0] for cast, value in CASTS.items()}  # type: ignore[arg-type]
# T-SQL that the parser does not know
UNKNOWN = re.compile(r"ALTER TABLE \[sqlqueue\]\.\w+ SET \(LOCK_ESCALATION = DISABLE\);")
TABLE = re.compile(
    r"(?<!N')((?:\[(?:[^\]]|\]\])*\]\.)+(?!sys\b)[^\s(;]+)(?: AS \w+)?(?:\s+WITH \(([A-Z, ]+)\))?"
)


@cache
def parser() -> Linter:
    """Return a parser of T-SQL; making one takes a while."""
    return Linter(dialect="tsql")


@cache
def parse(sql: str) -> Any:
    """Parse a text once for all tests; what the parser does not know is left out."""
    return parser().parse_string(UNKNOWN.sub("", sql) + "\n")


@dataclass(frozen=True)
class Text:
    """A statement, the types of its parameters and of the columns of all tables."""

    sql: str
    kinds: Mapping[str, str] = field(default_factory=dict)
    indexed: Collection[str] = ()

    def all(self, *kinds: str) -> Iterator[Any]:
        """Every segment of some kinds."""
        return iter(parse(self.sql).tree.recursive_crawl(*kinds))


def code(segment: Any) -> list[Any]:
    """The segments inside one, without white space."""
    spaces = ("whitespace", "newline", "comment", "indent", "dedent")
    return [each for each in segment.segments if not each.is_meta and not each.is_type(*spaces)]


def commas(segments: list[Any]) -> int:
    """How many commas stand among segments."""
    return sum(each.is_type("comma") for each in segments)


# ---------------------------------------------------------------- hints


def readpast_is_shared(text: Text) -> Iterator[str]:
    """A join skips the locked rows of all its tables, or of none: else it waits for a row."""
    for clause in text.all("from_clause"):
        elements = clause.recursive_crawl(
            "from_expression_element", no_recursive_seg_type=["select_statement"]
        )
        tables = filter(None, (TABLE.match(each.raw) for each in elements))
        found = {each[1]: "READPAST" in (each[2] or "") for each in tables}
        if len(set(found.values())) > 1:
            yield f"joined with and without READPAST: {found}"


def hints_agree(text: Text) -> Iterator[str]:
    """A table has one isolation, one granularity, no hint twice, and READPAST where it may."""
    for hints in re.findall(r"WITH \(([A-Z, ]+)\)", text.sql):
        given = hints.split(", ")
        groups = [{*ISOLATION}, GRANULARITY]
        past = "READPAST" in given and {*ISOLATION[:5]}.intersection(given)
        if past or len({*given}) < len(given) or any(len(each & {*given}) > 1 for each in groups):
            yield hints


# ---------------------------------------------------------------- columns


def insert_has_its_columns(text: Text) -> Iterator[str]:
    """As many values as columns."""
    for insert in text.all("insert_statement"):
        parts = {each.get_type(): each for each in code(insert)}
        wanted = commas(code(parts["bracketed"])) + 1 if "bracketed" in parts else 0
        given = []
        if "select_statement" in parts:
            given = [commas(code(code(parts["select_statement"])[0])) + 1]
        elif "values_clause" in parts:
            rows = (each for each in code(parts["values_clause"]) if each.is_type("bracketed"))
            given = [commas(code(each)) + 1 for each in rows]
        if {*given} != {wanted}:
            yield f"{parts['table_reference'].raw}: {wanted} columns, {given} values"


def output_has_its_columns(text: Text) -> Iterator[str]:
    """As many values as columns, where OUTPUT goes into a table."""
    for output in text.all("output_clause"):
        parts = code(output)
        into = [at for at, each in enumerate(parts) if each.raw.upper() == "INTO"]
        for at in into:
            columns = [code(each) for each in parts[at:] if each.is_type("bracketed")]
            if commas(parts[:at]) != (commas(columns[0]) if columns else -1):
                yield f"OUTPUT INTO {parts[at + 1].raw}"


# ---------------------------------------------------------------- types


def columns_of(segments: Iterator[Any]) -> dict[str, str]:
    """The columns that are declared, with their types and collations."""
    found = {}
    for column in segments:
        name, kind, *_ = code(column)
        collation = re.search(r" COLLATE \w+", column.raw)
        found[name.raw.strip("[]")] = kind.raw.split("(")[0] + (collation[0] if collation else "")
    return found


def indexed_columns(sql: str) -> set[str]:
    """The columns of the keys of the indexes that a text creates."""
    lists = re.findall(r"(?:PRIMARY KEY(?: CLUSTERED)?|INDEX \w+)(?: ON \S+)?\s*\(([^)]*)\)", sql)
    return {each.split()[0] for text in lists for each in text.split(",")}


def kind_of(operand: Any, text: Text) -> str:
    """The type of an operand; empty for a literal, which takes the column's."""
    name = operand.raw.split(".")[-1].strip("[]")
    if operand.is_type("parameter", "column_reference"):
        declared = re.search(rf"DECLARE[^;]*{name} (\w+)", text.sql)
        cast = re.search(rf"CAST\([^()]*(?:\(\w*\))?[^()]* AS (\w+)\) AS {name}\b", text.sql)
        local = columns_of(text.all("column_definition")).get(name)
        local = local or (cast and cast[1]) or (name[0] == "@" and declared and declared[1])
        return local or text.kinds.get(name, "unknown")
    cast = re.search(r" AS (\w+)(?:\(\w+\))?\)$", operand.raw)
    return FUNCTIONS.get(operand.raw, cast[1] if cast else "")


def conversion(column: str, other: str) -> str:
    """Why a comparison converts a column; empty if it does not."""
    first, second = column.split(maxsplit=1)[0], other.split(maxsplit=1)[0]
    if second not in PRECEDENCE:
        return "the other type is not known"
    lower = PRECEDENCE.index(second) > PRECEDENCE.index(first)
    return "the column is converted" if lower and (first, second) not in HARMLESS else ""


def indexes_are_not_converted(text: Text) -> Iterator[str]:
    """An indexed column is compared with its own type, or with a type below it."""
    for name, kind in columns_of(text.all("column_definition")).items():
        if name in text.indexed and kind != text.kinds[name]:
            yield f"{name} is declared as {kind}"
    for expression in text.all("expression"):
        parts = code(expression)
        for left, operator, right in zip(parts, parts[1:], parts[2:], strict=False):
            if operator.is_type("comparison_operator") or operator.raw.upper() == "BETWEEN":
                for column, other in ((left, right), (right, left)):
                    indexed = column.raw.split(".")[-1] in text.indexed
                    against = kind_of(other, text) if indexed else ""
                    if against and (reason := conversion(kind_of(column, text), against)):
                        yield f"{column.raw} and {other.raw} ({against}): {reason}"


def parameters_are_declared(text: Text) -> Iterator[str]:
    """Each is bound with a known type, or declared in the text, or is a procedure's own."""
    declared = " ".join(each.raw for each in text.all("declare_segment"))
    known = {*re.findall(r"@\w+", declared), *text.kinds}
    bare = re.sub(r"N?'(?:[^']|'')*'", "''", text.sql)
    bare = re.sub(r"EXEC .*?;", lambda call: re.sub(r"@\w+ =", "", call[0]), bare, flags=re.DOTALL)
    yield from {*re.findall(r"(?<![@\w])@\w+", bare)} - known


RULES: tuple[Rule, ...] = (
    readpast_is_shared,
    hints_agree,
    insert_has_its_columns,
    output_has_its_columns,
    indexes_are_not_converted,
    parameters_are_declared,
)
