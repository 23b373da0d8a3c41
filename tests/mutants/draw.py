"""
Draw faults for drawn.toml: `python -m tests.mutants.draw --package receive --number 8`.

Each package of the product, and the SQL of each database, gets a part of the faults in proportion
to its lines. Which ones is decided by SEED, so the same tree gives the same faults. For each that
is drawn, a person writes the promise and finds the tests. One that changes nothing, or that no test
catches, is left out, and the next one is taken.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "sqlq_spark"
SEED = "sqlqueue"
FAULTS = 40
DIALECTS = ("postgresql", "sqlserver")
# The code of these words was about to be removed or rewritten when the faults were drawn.
LEAVING = re.compile(
    r"login|policy|row_security|tenant|sinks_lock|sink_elsewhere|install|script|rights|body_?string"
    r"|history|chart|complet|lazy|domain|owner",
    re.IGNORECASE,
)
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
}
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+")}
IN_SQL = (
    (r"^ *AND .*$", ""),
    (r"<=", "<"),
    (r">=", ">"),
    (r"(?<=\w )<(?= )", "<="),
    (r"(?<=\w )>(?= )", ">="),
    (r" DESC\b", ""),
    (r"(?<=ORDER BY )[\w.]+$", r"\g<0> DESC"),
    (r" FOR UPDATE SKIP LOCKED| SKIP LOCKED| FOR UPDATE| FOR SHARE", ""),
    (r"\b(READPAST|UPDLOCK|HOLDLOCK|ROWLOCK), ", ""),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r"\b(min|MIN)\(", "max("),
    (r"\b(max|MAX)\(", "min("),
    (r"\bUNION ALL\b", "UNION"),
    (r"\bAND\b", "OR"),
    (r"\bOR\b", "AND"),
    (r"\bLEFT JOIN\b", "JOIN"),
)


@dataclass(frozen=True, order=True)
class Change:
    """A fault that can be made."""

    file: str
    start: int  # characters before it
    stop: int
    new: str


def group_of(path: Path) -> str:
    """The package of a file; the SQL of each database is one of its own."""
    parts = path.relative_to(PRODUCT).parts
    return f"{parts[-2]} SQL" if path.suffix == ".sql" else Path(parts[0]).stem


@dataclass(frozen=True)
class Module:
    """A module's text, with the places of its nodes."""

    name: str
    text: str

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends, in characters."""
        lines = self.text.splitlines(keepends=True)
        first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
        start = len(lines[first].encode()[: node.col_offset].decode())  # type: ignore[attr-defined]
        stop = len(lines[last].encode()[: node.end_col_offset].decode())  # type: ignore[attr-defined]
        return sum(map(len, lines[:first])) + start, sum(map(len, lines[:last])) + stop

    def source(self, node: ast.AST) -> str:
        """A node's text."""
        return self.text[slice(*self.span(node))]

    def replace(self, node: ast.AST, new: str) -> Iterator[Change]:
        """Write something else for a node."""
        yield Change(self.name, *self.span(node), new)

    def swap(self, left: ast.AST, right: ast.AST, pair: tuple[str, str]) -> Iterator[Change]:
        """Write another operator between two nodes."""
        start, stop = self.span(left)[1], self.span(right)[0]
        between = self.text[start:stop]
        if between.count(pair[0]) == 1:
            yield Change(self.name, start, stop, between.replace(*pair))

    def operators(self, node: ast.AST) -> Iterator[Change]:
        """Give the faults of a node that is an operator or a condition."""
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self.replace(test, f"not ({self.source(test)})")
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                yield from self.swap(left, right, COMPARISONS[type(op)])
            case ast.BoolOp(op=op, values=[left, right]):
                pair = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self.swap(left, right, pair)
                yield from self.replace(node, self.source(left))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                yield from self.swap(left, right, ARITHMETIC[type(op)])

    def others(self, node: ast.AST) -> Iterator[Change]:
        """Give the faults of a call, a `not` or a constant."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self.replace(node, self.source(operand))
            case ast.Expr(value=ast.Call()):
                yield from self.replace(node, "pass")
            case ast.Constant(value=bool(value)):
                yield from self.replace(node, str(not value))
            case ast.Constant(value=int(value)):
                yield from self.replace(node, str(value + 1))

    def changes(self) -> Iterator[Change]:
        """Give all its faults, but for those of decorators."""
        tree = ast.parse(self.text)
        known = [node for each in ast.walk(tree) for node in getattr(each, "decorator_list", ())]
        decorating = {node for each in known for node in ast.walk(each)}
        for node in ast.walk(tree):
            if node not in decorating:
                yield from self.operators(node)
                yield from self.others(node)


def changes_of_sql(text: str, name: str) -> Iterator[Change]:
    """Give the faults of an SQL file."""
    at = 0
    for line in text.splitlines(keepends=True):
        for pattern, new in () if line.lstrip().startswith("--") else IN_SQL:
            for found in re.finditer(pattern, line.rstrip("\n")):
                if new or found[0].count("(") == found[0].count(")"):
                    yield Change(name, at + found.start(), at + found.end(), found.expand(new))
        at += len(line)


def changes(path: Path, text: str) -> Iterator[Change]:
    """Give all faults of a file."""
    name = str(path.relative_to(ROOT))
    return changes_of_sql(text, name) if path.suffix == ".sql" else Module(name, text).changes()


def is_leaving(text: str, change: Change) -> bool:
    """Whether the fault is in, or close to, code that was about to be removed."""
    before = text.rfind("\n-- name: " if change.file.endswith(".sql") else "\n\n", 0, change.start)
    end = text.find("\n", change.stop)
    return any(LEAVING.search(each) for each in (change.file, text[max(0, before) : end]))


def describe(text: str, change: Change) -> str:
    """Show the lines before and after."""
    start = text.rfind("\n", 0, change.start) + 1
    stop = text.find("\n", change.stop)
    old = text[start:stop]
    new = text[start : change.start] + change.new + text[change.stop : stop]
    line = text.count("\n", 0, change.start) + 1
    return f"{change.file}:{line}\n" + "\n".join(
        f"  {sign} {each}" for sign, part in (("-", old), ("+", new)) for each in part.split("\n")
    )


def main() -> int:
    """Print the faults in the order in which they are drawn."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.draw", description=__doc__)
    parser.add_argument("--package", help="only of this one, such as send or `postgresql SQL`")
    parser.add_argument("--number", type=int, help="of each; default: its part of the faults")
    given = parser.parse_args()
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(PRODUCT.rglob("*"))
        if path.suffix in {".py", ".sql"}
    }
    lines = Counter[str]()
    for path, text in texts.items():
        lines[group_of(path)] += text.count("\n")
    for group in sorted(lines):
        share = FAULTS * lines[group] / lines.total()
        console.print(f"# {group}: {lines[group]} lines, {share:.1f} faults")
        if given.package not in {None, group}:
            continue
        possible = sorted(
            change
            for path, text in texts.items()
            if group_of(path) == group
            for change in changes(path, text)
            if not is_leaving(text, change)
        )
        random.Random(f"{SEED} {group}").shuffle(possible)
        number = round(share) if given.number is None else given.number
        for place, change in enumerate(possible[:number], 1):
            console.print(f"\n{group} {place}: {describe(texts[ROOT / change.file], change)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
