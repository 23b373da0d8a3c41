"""
The table of locks of docs/dba.md, made of the comments above the statements.

    python -m tests.pages.locks

prints it, to be put between the two marks of the page.
"""

from __future__ import annotations

import re
import sys
from itertools import chain

from sqlq_spark.database.statements import FILES, Statements, sql

# what a plain SELECT keeps on each
DIALECTS = {"postgresql": "no row", "sqlserver": "keeps none"}
ABSENT = "-"  # of a statement that one of them lacks
LABELS = r"(?=\s(?:Locks|Index|Returns):|$)"
# for statements whose comments do not name locks: the first word that they contain
USUAL = {
    "INSERT|MERGE": "the rows it writes, until commit",
    "DELETE": "the rows it deletes, until commit",
    "UPDATE": "the rows it changes, until commit",
    "CREATE TABLE": "the table that it creates, until commit; none that is there",
    "ALTER TABLE": "the whole table, until commit",
    "CREATE (?:NONCLUSTERED )?INDEX": "the table against writes, until commit",
}
# of tasks, of a dispatch, and of those who install; the others run once, or when a user asks
CONCERNS = [
    "schema",
    "peek",
    "receive",
    "trust",
    "receipts",
    "staging",
    "subscriptions",
    "delayed",
    "browse",
]


def names(dialect: str, concern: str) -> list[str]:
    """The names of the statements of one file."""
    return re.findall(r"^-- name: *(\w+)", sql(dialect, concern), flags=re.MULTILINE)


def comments(dialect: str) -> dict[str, str]:
    """What stands above each statement, in one line."""
    text = "\n".join(sql(dialect, each) for each in FILES)
    _, *parts = re.split(r"^-- name: *(\w+) *$", text, flags=re.MULTILINE)
    found = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        head = re.match(r"\s*((?:^ *--.*\n)*)", part, flags=re.MULTILINE)
        lines = re.findall(r"^ *-- ?(.*)$", head[1] if head else "", flags=re.MULTILINE)
        found[name] = " ".join(" ".join(lines).split())
    return found


def locked_by(name: str, commented: dict[str, str], statements: dict[str, str], reads: str) -> str:
    """What a statement locks: by its comment, or that of a similar one, else by its kind."""
    if name not in statements:
        return ABSENT
    comment = commented[name]
    if like := re.match(r"As (\w+)[,.]", comment):
        return locked_by(like[1], commented, statements, reads)
    if re.search(r"\bLocks nothing\b|locking nothing|Locks: +nothing", comment):
        return reads
    if locks := re.search(rf"Locks: (.+?){LABELS}", comment):
        return locks[1].rstrip(".")
    bare = re.sub(r"'[^']*'", "", statements[name])
    found = (text for verbs, text in USUAL.items() if re.search(rf"\b(?:{verbs})\b", bare))
    return next(found, reads)


def rows() -> list[list[str]]:
    """Statement, and what it locks on each database; without those that lock nothing on either."""
    found = {each: comments(each) for each in DIALECTS}
    texts = {each: Statements.load(each) for each in DIALECTS}
    all_rows = [
        [
            f"`{name}`",
            *(locked_by(name, found[each], texts[each], reads) for each, reads in DIALECTS.items()),
        ]
        for concern in CONCERNS
        for name in dict.fromkeys(chain.from_iterable(names(each, concern) for each in DIALECTS))
    ]
    nothing = {*DIALECTS.values(), ABSENT}
    return [row for row in all_rows if not {*row[1:]} <= nothing]


def table() -> str:
    """The table in Markdown."""
    head = "| statement | PostgreSQL | SQL Server |\n|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows())


if __name__ == "__main__":
    sys.stdout.write(table())
