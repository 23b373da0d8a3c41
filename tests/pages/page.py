"""A page of the documents, parsed. CONTRIBUTING shows the ids of its blocks and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))

BLOCK = re.compile(
    r"(?:^<!-- block: (?P<id>[\w/-]+) -->\n)?"
    r"(?:^<!-- not run: (?P<unrun>.+?) -->\n)?"
    r"^```(?P<language>[\w{}-]*)\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
TABLE = re.compile(
    r"^<!-- table: (?P<id>[\w-]+) -->\n"
    r"(?:^<!-- .+? -->\n)*"  # such as the marks of a table that is generated
    r"(?P<text>(?:^\|.*\|\n?)+)",
    flags=re.MULTILINE,
)
ROW_ID = re.compile(r"<!-- id: ([\w:-]+) --> ?")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of code."""

    page: str
    language: str
    text: str
    id: str | None
    unrun: str | None  # why it is not run

    @property
    def group(self) -> str | None:
        """The part of its id that the blocks of its section share."""
        return self.id and self.id.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: the text of its cells, without the head, and the ids of its rows."""

    id: str
    ids: list[str | None]
    rows: list[list[str]]

    def column(self, at: int = 0) -> list[str]:
        """One of its columns."""
        return [row[at] for row in self.rows]

    def row(self, row_id: str) -> list[str]:
        """The cells of one row."""
        return self.rows[self.ids.index(row_id)]


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, group: str | None = None) -> list[Block]:
    """The blocks of a page, or of one group, in their order."""
    found = [Block(page=page, **each.groupdict()) for each in BLOCK.finditer(read(page))]
    return [each for each in found if group in {None, each.group}]


def without_code(page: str) -> str:
    """The text of a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)


def tables(page: str) -> list[Table]:
    """The tables of a page that have an id, in their order."""
    found = []
    for each in TABLE.finditer(without_code(page)):
        _, _, *lines = each["text"].splitlines()
        ids = [mark and mark[1] for mark in (re.match(rf"\|\s*{ROW_ID.pattern}", x) for x in lines)]
        found.append(Table(id=each["id"], ids=ids, rows=[*map(cells, lines)]))
    return found


def table(page: str, table_id: str) -> Table:
    """One table of a page."""
    [found] = [each for each in tables(page) if each.id == table_id]
    return found


def cells(line: str) -> list[str]:
    """The cells of a row. A bar inside a cell is written with a backslash."""
    bare = ROW_ID.sub("", line)
    return [each.strip().replace(r"\|", "|") for each in re.split(r"(?<!\\)\|", bare)[1:-1]]
