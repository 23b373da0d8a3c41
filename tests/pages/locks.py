"""
The table of locks of docs/dba.md, made of the comments above the statements.

    python -m tests.pages.locks

prints it, to be put between the two marks of the page.
"""

from __future__ import annotations

import re
import sys

from sqlq_spark.database.statements import FILES, Statements, sql

# what a plain SELECT keeps on each
DIALECTS = {"postgresql": "nothing", "sqlserver": "keeps none"}
LABELS = r"(?=\s(?:Locks|Index|Returns):|$)"
# by what a statement does that says nothing of its locks; a word in it, the first that fits
USUAL = {
    "INSERT|MERGE": "the rows it writes, until commit",
    "DELETE": "the rows it deletes, until commit",
    "UPDATE": "the rows it changes, until commit",
}
# one task, one dispatch: what runs beside Spark's work; the rest is made once or asked by hand
CONCERNS = ["peek", "receive", "receipts", "staging", "subscriptions", "delayed", "browse"]


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


def told(name: str, said_of: dict[str, str], statement: str, *, reads: str) -> str:
    """What a statement locks: as its comment says, or that of its like, else as its kind does."""
    comment = said_of[name]
    if like := re.match(r"As (\w+)[,.]", comment):
        return told(like[1], said_of, statement, reads=reads)
    if said := re.search(rf"Locks: (.+?){LABELS}", comment):
        return said[1].rstrip(".")
    if re.search(r"\bLocks nothing\b|locking nothing", comment):
        return reads
    bare = re.sub(r"'[^']*'", "", statement)
    found = (text for verbs, text in USUAL.items() if re.search(rf"\b(?:{verbs})\b", bare))
    return next(found, reads)


def rows() -> list[list[str]]:
    """Statement, and what it locks on each database."""
    said = {each: comments(each) for each in DIALECTS}
    texts = {each: Statements.load(each) for each in DIALECTS}
    return [
        [
            f"`{name}`",
            *(
                told(name, said[each], texts[each][name], reads=reads)
                for each, reads in DIALECTS.items()
            ),
        ]
        for concern in CONCERNS
        for name in names("postgresql", concern)
    ]


def table() -> str:
    """The table in Markdown."""
    head = "| statement | PostgreSQL | SQL Server |\n|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows())


if __name__ == "__main__":
    sys.stdout.write(table())
