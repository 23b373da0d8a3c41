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

# A table has at most one of these hints. The server refuses READPAST with the first five.
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
    """Return a parser of T-SQL, which takes a while to make."""
    return Linter(dialect="tsql")


@cache
def parse(sql: str) -> Any:
    """Parse a text once for all tests. Clauses that the parser does not know are left out."""
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
    """A join skips the locked rows of all its tables, or of none. Otherwise it waits for a row."""
    for clause in text.all("from_clause"):
        elements = clause.recursive_crawl(
            "from_expression_element", no_recursive_seg_type=["select_statement"]
        )
        tables = filter(None, (TABLE.match(each.raw) for each in elements))
        found = {each[1]: "READPAST" in (each[2] or "") for each in tables}
        if len(set(found.values())) > 1:
            yield f"joined with and without READPAST: {found}"


def hints_agree(text: Text) -> Iterator[str]:
    """A table has one isolation and one granularity. No hint is there twice, and READPAST fits."""
    for hints in re.findall(r"WITH \(([A-Z, ]+)\)", text.sql):
        given = hints.split(", ")
        groups = [{*ISOLATION}, GRANULARITY]
        past = "READPAST" in given and {*ISOLATION[:5]}.intersection(given)
        if past or len({*given}) < len(given) or any(len(each & {*given}) > 1 for each in groups):
            yield hints


# ---------------------------------------------------------------- columns


def insert_has_its_columns(text: Text) -> Iterator[str]:
    """An INSERT has as many values as columns."""
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
    """An OUTPUT into a table has as many values as columns."""
    for output in text.all("output_clause"):
        parts = code(output)
        into = [at for at, each in enumerate(parts) if each.raw.upper() == "INTO"]
        for at in into:
            columns = [code(each) for each in parts[at:] if each.is_type("bracketed")]
            if commas(parts[:at]) != (commas(columns[0]) if columns else -1):
                yield f"OUTPUT INTO {parts[at + 1].raw}"


# ---------------------------------------------------------------- types


def indexes_are_not_converted(text: Text) -> Iterator[str]:
    """A value that is compared with an indexed column has its type, collation and time zone."""
    # a value of OPENJSON is nvarchar
    yield from re.findall(r"(?:SELECT|DISTINCT|,)\s+value AS \w+", text.sql)
    yield from re.findall(r"(?:Expires|Due) \S+ (?!GETUTCDATE|@)\w+\(.*", text.sql)
    for declared in text.all("declare_segment"):
        yield from re.findall(
            r"\w+ +n?varchar\(\d+\)(?!\s+COLLATE).*", declared.raw.partition("TABLE")[2]
        )


# ---------------------------------------------------------------- collations

# columns that hold no text; and `query_id`, whose state tables declare its collation
NO_TEXT = re.compile(r"(?:\w+_)?(?:id|batch|level|time)|class|created|seen|unit_of_work")
# functions that return no text, or not that of their argument
OWN_RESULT = {
    *("DATABASE_PRINCIPAL_ID", "OBJECTPROPERTY", "HAS_PERMS_BY_NAME", "DATEDIFF"),
    *("USER_NAME", "SCHEMA_NAME"),
}
CONDITIONS = {"IS", "IN", "LIKE", "BETWEEN", "EXISTS"}
OF_SERVER = re.compile(r"\bsys\.(?:databases|dm_\w+)(?:\s*\([^)]*\))?\s+AS\s+(\w+)")


def function_name(segment: Any) -> str:
    """The name of a function in upper case, or nothing for any other element."""
    return code(segment)[0].raw.upper() if segment.is_type("function") else ""


def results(segment: Any) -> list[Any]:
    """The parts of an expression that its result may consist of. A condition has none."""
    parts = code(segment)
    words = {each.raw.upper() for each in parts}
    if any(each.is_type("comparison_operator") for each in parts) or words & CONDITIONS:
        return []
    return parts[2:] if segment.is_type("when_clause") else parts


def without_collation(segment: Any) -> Iterator[str]:
    """The columns in an expression whose own collation is that of the result."""
    if segment.is_type("column_reference"):
        if not NO_TEXT.fullmatch(segment.raw.rpartition(".")[2]):
            yield segment.raw
        return
    if not segment.segments or function_name(segment) in OWN_RESULT:
        return
    if any(each.raw.upper() == "COLLATE" for each in code(segment)):
        return
    for part in results(segment):
        yield from without_collation(part)


def unions_have_a_collation(text: Text) -> Iterator[str]:
    """
    Each column of each branch has COLLATE. Otherwise two collations meet at ORDER BY.

    The server's names have another collation than the names of a database. Even columns of one
    view have different ones.
    """
    for union in text.all("set_expression"):
        for branch in union.segments:
            if branch.is_type("select_statement"):
                yield from without_collation(code(branch)[0])


def names_of_the_server_have_a_collation(text: Text) -> Iterator[str]:
    """Names of the server have COLLATE in a CONCAT, beside names of a database or of the script."""
    for query in text.all("select_statement"):
        clauses = code(query)
        aliases = {
            alias
            for clause in clauses
            if clause.is_type("from_clause")
            for alias in OF_SERVER.findall(clause.raw)
        }
        for call in clauses[0].recursive_crawl("function") if aliases else ():
            if function_name(call) == "CONCAT":
                found = without_collation(call)
                yield from (each for each in found if each.rpartition(".")[0] in {*aliases, ""})


# ---------------------------------------------------------------- what a result is executed from

STATEMENT = re.compile(r"N'(?:; )?(?:DROP|ALTER|CREATE|GRANT|REVOKE|KILL|EXEC|USE|DBCC) ")
OURS = {"wanted", "k"}  # the names of the transport's columns


def unquoted(segment: Any) -> Iterator[str]:
    """The columns in an expression that are not in QUOTENAME."""
    if segment.is_type("column_reference"):
        place, _, name = segment.raw.rpartition(".")
        if place not in OURS and not NO_TEXT.fullmatch(name) and name != "permission_name":
            yield segment.raw
    elif segment.segments and function_name(segment) != "QUOTENAME":
        for part in results(segment):
            yield from unquoted(part)


def executed_names_are_quoted(text: Text) -> Iterator[str]:
    """A name that `selftest` or a DBA executes is quoted. Any creator of a schema chose it."""
    for item in text.all("select_clause_element"):
        if STATEMENT.search(item.raw) and "SELECT" not in item.raw:
            yield from unquoted(item)


RULES: tuple[Rule, ...] = (
    readpast_is_shared,
    hints_agree,
    insert_has_its_columns,
    output_has_its_columns,
    indexes_are_not_converted,
    unions_have_a_collation,
    names_of_the_server_have_a_collation,
    executed_names_are_quoted,
)
