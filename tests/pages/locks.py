"""
The table of locks of docs/dba.md, made of the comments above the statements.

    python -m tests.pages.locks

prints it, to be put between the two marks of the page.
"""

from __future__ import annotations

import re
import sys

from sqlq_spark.database import dialect_named
from sqlq_spark.database.statements import FILES, sql

# what a plain SELECT keeps on each
DIALECTS = {"postgresql": "no row", "sqlserver": "keeps none"}
ABSENT = "-"  # in place of the locks, if one dialect lacks the statement
# a word of a statement whose comment names no lock → its locks; the first match counts
USUAL = {
    "INSERT|MERGE": "the rows it writes, until commit",
    "DELETE": "the rows it deletes, until commit",
    "UPDATE": "the rows it changes, until commit",
    "CREATE TABLE": "the table that it creates, until commit; none that is there",
}
UNTIL = ", until (?:commit|the transaction ends)"  # left out: the page says it once for all
# no row, the rows that the statement is there to change, or the table; the page says this once too
USUALLY = re.compile(
    "-|no row|keeps none(?:, waits for no row)?|an advisory lock|(?:an|the) application lock.*"
    "|the table, as an? (?:SELECT|INSERT|DELETE) does"
    "|the (?:rows?|tables?) (?:that )?it (?:write|delete|change|create)s"
    "(?:; (?:none|nothing|begin_receipt) .*)?|.*them already"
)
# SQL files with statements that run in tasks, dispatches and installs. Others run seldom.
CONCERNS = ["schema", "peek", "receive", "trust", "receipts"]
CONCERNS += ["staging", "subscriptions", "delayed", "browse"]


def comments(dialect: str, concerns: list[str] | None = None) -> dict[str, str]:
    """What stands above each statement, in one line."""
    text = "\n".join(sql(dialect, each) for each in concerns or FILES)
    parts = re.findall(r"^-- name: *(\w+) *\n\s*((?:^ *--.*\n)*)", text, flags=re.MULTILINE)
    return {
        name: " ".join(re.sub(r"^ *-- ?", "", head, flags=re.MULTILINE).split())
        for name, head in parts
    }


def locked_by(name: str, commented: dict[str, str], statements: dict[str, str], reads: str) -> str:
    """Return what a statement locks, by its comment, by that of a similar one, or by its kind."""
    if name not in statements:
        return ABSENT
    comment = commented[name]
    if like := re.match(r"As (\w+)[,.]", comment):
        return locked_by(like[1], commented, statements, reads)
    if re.search(r"\bLocks nothing\b|locking nothing|Locks: +nothing", comment):
        return reads
    if locks := re.search(r"Locks: (.+?)(?=\s(?:Locks|Index|Returns):|$)", comment):
        return locks[1].rstrip(".")
    bare = re.sub(r"'[^']*'", "", statements[name])
    found = (text for verbs, text in USUAL.items() if re.search(rf"\b(?:{verbs})\b", bare))
    return next(found, reads)


def table() -> str:
    """The table in Markdown: statements with the same locks share a row."""
    found = {each: (comments(each), dialect_named(each).STATEMENTS) for each in DIALECTS}
    names = [x for concern in CONCERNS for each in DIALECTS for x in comments(each, [concern])]
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(names):
        locks = [locked_by(name, *found[each], reads) for each, reads in DIALECTS.items()]
        first, second = (re.sub(UNTIL, "", each) for each in locks)
        if not (USUALLY.fullmatch(first) and USUALLY.fullmatch(second)):
            same = "the same" if first == second else second
            rows.setdefault((first, same), []).append(f"`{name}`")
    head = "| Statement | PostgreSQL | SQL Server |\n|---|---|---|\n"
    return head + "".join(
        f"| {', '.join(statements)} | {' | '.join(locks)} |\n" for locks, statements in rows.items()
    )


if __name__ == "__main__":
    sys.stdout.write(table())
