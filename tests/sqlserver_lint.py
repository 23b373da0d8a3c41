"""
Rules for T-SQL that no parser checks: hints, numbers of columns, types.

Each rule is a function of a `Text` that returns what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlfluff.core import Linter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rule = Callable[["Text"], Iterator[str]]

# of each only one; the server refuses READPAST with the first five
ISOLATION = [
    *("HOLDLOCK", "SERIALIZABLE", "NOLOCK", "READUNCOMMITTED", "SNAPSHOT"),
    *("READCOMMITTED", "REPEATABLEREAD", "READCOMMITTEDLOCK"),
]
GRANULARITY = {"PAGLOCK", "ROWLOCK", "TABLOCK", "TABLOCKX", "NOLOCK"}
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
    """A statement."""

    sql: str

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


def indexes_are_not_converted(text: Text) -> Iterator[str]:
    """What is compared with an indexed column has its type, its collation and its clock."""
    # a value of OPENJSON is nvarchar
    yield from re.findall(r"(?:SELECT|DISTINCT|,)\s+value AS \w+", text.sql)
    yield from re.findall(r"(?:Expires|Due) \S+ (?!GETUTCDATE|@)\w+\(.*", text.sql)
    for declared in text.all("declare_segment"):
        yield from re.findall(
            r"\w+ +n?varchar\(\d+\)(?!\s+COLLATE).*", declared.raw.partition("TABLE")[2]
        )


RULES: tuple[Rule, ...] = (
    readpast_is_shared,
    hints_agree,
    insert_has_its_columns,
    output_has_its_columns,
    indexes_are_not_converted,
)
