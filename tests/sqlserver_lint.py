"""
Rules for T-SQL that no parser checks: hints, numbers of columns, types.

Each rule is a function of a `Text` that returns what is wrong. sqlfluff parses the text; the rules
walk over its tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlfluff.core import Linter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Rule = Callable[["Text", "Schema"], Iterator[str]]

ISOLATION = {
    *("HOLDLOCK", "SERIALIZABLE", "NOLOCK", "READUNCOMMITTED", "READCOMMITTED"),
    *("REPEATABLEREAD", "READCOMMITTEDLOCK", "SNAPSHOT"),
}
# Microsoft's page also lists READCOMMITTEDLOCK here. Other queues combine it with ROWLOCK.
GRANULARITY = {"PAGLOCK", "ROWLOCK", "TABLOCK", "TABLOCKX", "NOLOCK"}
NOT_WITH_READPAST = {"HOLDLOCK", "SERIALIZABLE", "NOLOCK", "READUNCOMMITTED", "SNAPSHOT"}
# the lower one of two types is converted; of a column, that may cost its index
PRECEDENCE = [
    *("varbinary", "varchar", "nvarchar", "uniqueidentifier", "bit", "int", "bigint", "float"),
    *("datetime", "datetime2"),
]
# The server seeks an int by a bigint. It does not seek a varchar by an nvarchar.
HARMLESS = {("int", "bigint")}
FUNCTIONS = {"GETUTCDATE": "datetime", "SYSUTCDATETIME": "datetime2", "USER_NAME": "nvarchar"}
# casts of the other dialect → the types that a parameter has here
DECLARED = {"bigint": "bigint", "boolean": "bit", "float8": "float", "bytea": "varbinary"}
BASE = re.compile(r"(?:\[(?:[^\]]|\]\])*\]\.)+(?!sys\b)\S+")
# T-SQL that the parser does not know
UNKNOWN = re.compile(r"ALTER TABLE \[sqlqueue\]\.\w+ SET \(LOCK_ESCALATION = DISABLE\);")
SPACES = ("whitespace", "newline", "comment", "indent", "dedent")


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
    """A statement, what stands above it, and the types of its parameters."""

    sql: str
    comment: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    tree: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", parse(self.sql).tree)

    def all(self, *kinds: str) -> Iterator[Any]:
        """Every segment of some kinds."""
        return iter(self.tree.recursive_crawl(*kinds))


@dataclass(frozen=True)
class Source:
    """A table where a statement names it, with its hints."""

    table: str
    alias: str
    hints: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)  # of a subquery

    @property
    def is_base(self) -> bool:
        """Whether it is a table of messages or of state, not a variable or the catalogue."""
        return BASE.fullmatch(self.table) is not None


# ---------------------------------------------------------------- the tree


def code(segment: Any) -> list[Any]:
    """The segments inside one, without white space."""
    return [each for each in segment.segments if not each.is_meta and not each.is_type(*SPACES)]


def child(segment: Any, *kinds: str) -> Any:
    """The first segment of some kinds directly inside one; None if there is none."""
    inside = segment.segments if segment is not None else ()
    return next((each for each in inside if each.is_type(*kinds)), None)


def hints(segment: Any) -> tuple[str, ...]:
    """The hints behind a table."""
    behind = child(segment, "post_table_expression")
    found = re.search(r"\((.*)\)", behind.raw, flags=re.DOTALL) if behind else None
    return tuple(re.findall(r"\b[A-Z]+\b", found[1])) if found else ()


def from_sources(clause: Any) -> list[Source]:
    """The tables of one FROM, without those of its subqueries."""
    elements = clause.recursive_crawl(
        "from_expression_element", no_recursive_seg_type=["select_statement"]
    )
    return [from_element(each) for each in elements]


def from_element(element: Any) -> Source:
    """A table of a FROM."""
    inside = child(element, "table_expression")
    alias = child(element, "alias_expression")
    name = child(inside, "table_reference")
    last = code(alias)[1].raw if alias else name.raw if name else ""
    casts = re.findall(r"CAST\(.+? AS (\w+)(?:\(\w+\))?\) AS (\w+)", element.raw)
    columns = {} if name else {column: kind.lower() for kind, column in casts}
    given = hints(element) or hints(inside)  # behind an alias, or behind the name
    return Source(name.raw if name else "", last, given, columns)


def targets(text: Text) -> Iterator[Source]:
    """The tables that a statement changes, where it names no FROM."""
    for statement in text.all("update_statement", "delete_statement", "insert_statement"):
        name = child(statement, "table_reference")
        if name is not None:
            yield Source(name.raw, name.raw, hints(statement))


def sources(text: Text) -> list[Source]:
    """Every table that a text names."""
    found = [each for clause in text.all("from_clause") for each in from_sources(clause)]
    return [*found, *targets(text)]


# ---------------------------------------------------------------- hints


def readpast_is_shared(text: Text, _: Schema) -> Iterator[str]:
    """A join skips the locked rows of all its tables, or of none: else it waits for a row."""
    for clause in text.all("from_clause"):
        joined = [each for each in from_sources(clause) if each.is_base]
        if any("READPAST" in each.hints for each in joined):
            for each in joined:
                if "READPAST" not in each.hints:
                    yield f"{each.table} is joined without READPAST"


def hints_agree(text: Text, _: Schema) -> Iterator[str]:
    """A table has one isolation and one granularity, and no hint twice."""
    for each in sources(text):
        for group in (ISOLATION, GRANULARITY):
            if len(group.intersection(each.hints)) > 1:
                yield f"{each.table}: {sorted(group.intersection(each.hints))}"
        if len(set(each.hints)) < len(each.hints):
            yield f"{each.table}: a hint twice"


def readpast_is_allowed(text: Text, _: Schema) -> Iterator[str]:
    """The server refuses READPAST at these isolations."""
    for each in sources(text):
        if "READPAST" in each.hints and NOT_WITH_READPAST.intersection(each.hints):
            yield f"{each.table}: READPAST with {each.hints}"


def promised_seek(text: Text, _: Schema) -> Iterator[str]:
    """What locks rows, or has "a seek" in its comment, has the hint that makes it one."""
    index = re.search(r"Index:(.+?)(?:Returns:|Locks:|$)", text.comment, flags=re.DOTALL)
    if index is None:
        return
    for each in sources(text):
        if each.is_base and "FORCESEEK" not in each.hints and "UPDLOCK" in each.hints:
            yield f"{each.table} is locked without FORCESEEK"
    if re.search(r"\bseek\b", index[1]) and "FORCESEEK" not in text.sql:
        yield "its comment promises a seek"


# ---------------------------------------------------------------- columns


def insert_has_its_columns(text: Text, _: Schema) -> Iterator[str]:
    """As many values as columns."""
    for insert in text.all("insert_statement"):
        columns = child(insert, "bracketed")
        select, values = child(insert, "select_statement"), child(insert, "values_clause")
        if columns is None:
            yield f"{child(insert, 'table_reference').raw}: no columns are named"
            continue
        wanted = len(list(columns.recursive_crawl("column_reference")))
        given = []
        if select is not None:
            given = [
                len(
                    list(
                        child(select, "select_clause").recursive_crawl(
                            "select_clause_element", recurse_into=False
                        )
                    )
                )
            ]
        elif values is not None:
            given = [commas(each) + 1 for each in code(values) if each.is_type("bracketed")]
        if any(each != wanted for each in given) or not given:
            yield f"{child(insert, 'table_reference').raw}: {wanted} columns, {given} values"


def output_has_its_columns(text: Text, _: Schema) -> Iterator[str]:
    """As many values as columns, where OUTPUT goes into a table."""
    for output in text.all("output_clause"):
        parts = code(output)
        into = [at for at, each in enumerate(parts) if each.raw.upper() == "INTO"]
        if not into:
            continue
        given = sum(each.is_type("comma") for each in parts[: into[0]]) + 1
        columns = next((each for each in parts[into[0] :] if each.is_type("bracketed")), None)
        wanted = commas(columns) + 1 if columns is not None else 0
        if given != wanted:
            yield f"OUTPUT INTO {parts[into[0] + 1].raw}: {wanted} columns, {given} values"


def commas(segment: Any) -> int:
    """How many commas stand directly inside a segment."""
    return sum(each.is_type("comma") for each in segment.segments)


# ---------------------------------------------------------------- types


class Schema:
    """The columns of our tables and of the transport's, as the statements create them."""

    def __init__(self, creates: list[Text]) -> None:
        self.columns: dict[str, dict[str, str]] = {}
        self.indexed: dict[str, set[str]] = {}
        for text in creates:
            for create in text.all("create_table_statement"):
                name = child(create, "table_reference").raw
                self.columns[name] = columns_of(create)
                self.indexed[name] = set()
            for name in self.columns.keys() & set(re.findall(BASE.pattern, text.sql)):
                self.indexed[name] |= indexed_columns(text.sql)

    def kinds(self, table: str) -> dict[str, str]:
        """The types of a table's columns; the error queue is a queue."""
        queue = next(name for name in self.columns if "Orders]" in name)
        return self.columns.get(table, self.columns[queue] if table.endswith("[error]") else {})


def columns_of(segment: Any) -> dict[str, str]:
    """The columns that a CREATE TABLE or a table variable declares, with their collations."""
    found = {}
    for column in segment.recursive_crawl("column_definition"):
        name, kind = code(column)[0].raw, child(column, "data_type").raw
        collation = re.search(r"COLLATE (\w+)", column.raw)
        found[name.strip("[]")] = f"{kind} {collation[1]}" if collation else kind
    return found


def indexed_columns(sql: str) -> set[str]:
    """The columns of the keys of the indexes that a text creates."""
    lists = re.findall(r"(?:PRIMARY KEY(?: CLUSTERED)?|INDEX \w+)(?: ON \S+)?\s*\(([^)]*)\)", sql)
    alone = re.findall(r"^ *(\w+) .*NOT NULL PRIMARY KEY\b(?! *\()", sql, flags=re.MULTILINE)
    return {each.split()[0] for text in lists for each in text.split(",")} | set(alone)


def indexes_are_not_converted(text: Text, schema: Schema) -> Iterator[str]:
    """An indexed column is compared with a value of its own type, or of a type below it."""
    named = names(text, schema)
    for column, other in comparisons(text):
        for kind in (kind for kind, indexed in column_types(column, schema, named) if indexed):
            for against in types_of(other, text, schema, named):
                if reason := conversion(kind, against) or (
                    collations(kind, against) if is_column(other) else ""
                ):
                    yield f"{column.raw} ({kind}) and {other.raw} ({against}): {reason}"


def conversion(column: str, other: str) -> str:
    """Why a comparison converts a column; empty if it does not."""
    first, second = (re.split(r"[ (]", each.lower())[0] for each in (column, other))
    if second not in PRECEDENCE:
        return "the other type is not known"
    if PRECEDENCE.index(second) > PRECEDENCE.index(first) and (first, second) not in HARMLESS:
        return "the column is converted"
    return ""


def collations(column: str, other: str) -> str:
    """Whether the collations of two columns differ; a value takes that of its column."""
    first, second = (each.partition(" ")[2] for each in (column, other))
    return "" if first == second else "the collations differ"


def names(text: Text, schema: Schema) -> dict[str, list[dict[str, str]]]:
    """The columns behind each alias, and behind no alias."""
    found: dict[str, list[dict[str, str]]] = {"": []}
    variables = {code(each)[1].raw: columns_of(each) for each in text.all("declare_segment")}
    for each in sources(text):
        columns = each.columns or variables.get(each.table) or schema.kinds(each.table)
        if columns:
            marked = {"": each.table, **columns}
            found.setdefault(each.alias, []).append(marked)
            found[""].append(marked)
    return found


def column_types(
    column: Any, schema: Schema, named: dict[str, list[dict[str, str]]]
) -> Iterator[tuple[str, bool]]:
    """The types that a column may have, and whether it is in the key of an index."""
    *alias, name = column.raw.split(".")
    name = name.strip("[]")
    for columns in named.get(alias[0] if alias else "", []):
        if name in columns:
            table = columns[""]
            queue = "[sales].[Shop.Orders]" if table.endswith("[error]") else table
            yield columns[name], name in schema.indexed.get(queue, set())


def types_of(
    operand: Any, text: Text, schema: Schema, named: dict[str, list[dict[str, str]]]
) -> list[str]:
    """The types that an operand may have; empty for a literal, which takes the column's."""
    if operand.is_type("parameter"):
        local = re.search(rf"{operand.raw} (\w+(?:\(\w+\))?)", declarations(text))
        return [local[1] if local else text.parameters.get(operand.raw[1:], "unknown")]
    if operand.is_type("column_reference"):
        return [kind for kind, _ in column_types(operand, schema, named)] or ["unknown"]
    if operand.is_type("function"):
        name = code(operand)[0].raw.upper()
        cast = re.search(r" AS (\w+)(?:\(\w+\))?\)$", operand.raw)
        return [cast[1] if cast else FUNCTIONS.get(name, "")] if cast or name in FUNCTIONS else []
    return []


def declarations(text: Text) -> str:
    """What a text declares."""
    return "; ".join(each.raw for each in text.all("declare_segment"))


def comparisons(text: Text) -> Iterator[tuple[Any, Any]]:
    """A column and what it is compared with, both ways round."""
    for expression in text.all("expression"):
        parts = code(expression)
        for at, each in enumerate(parts[1:-1], 1):
            left, right = parts[at - 1], parts[at + 1]
            if each.is_type("comparison_operator"):
                yield from ((a, b) for a, b in ((left, right), (right, left)) if is_column(a))
            if each.raw.upper() == "BETWEEN" and is_column(left):
                yield from ((left, parts[at + 1]), (left, parts[at + 3]))


def is_column(segment: Any) -> bool:
    """Whether it is a column's name."""
    return bool(segment.is_type("column_reference"))


def parameters_are_declared(text: Text, _: Schema) -> Iterator[str]:
    """Each is bound with a known type, or declared in the text, or is a procedure's own."""
    known = set(re.findall(r"@(\w+)", declarations(text))) | set(text.parameters)
    bare = re.sub(r"N?'(?:[^']|'')*'", "''", text.sql)
    bare = re.sub(r"EXEC .*?;", lambda call: re.sub(r"@\w+ =", "", call[0]), bare, flags=re.DOTALL)
    for name in sorted(set(re.findall(r"(?<![@\w])@(\w+)", bare)) - known):
        yield f"@{name} has no type"


RULES: tuple[Rule, ...] = (
    readpast_is_shared,
    hints_agree,
    readpast_is_allowed,
    promised_seek,
    insert_has_its_columns,
    output_has_its_columns,
    indexes_are_not_converted,
    parameters_are_declared,
)
