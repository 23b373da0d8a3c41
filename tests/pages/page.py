"""
A page of the documents, read: its blocks of code and its tables, each below its heading.

A block is run by the page's test, unless the line before it is `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of code."""

    page: str
    heading: str
    language: str
    text: str
    unrun: str | None = None  # why it is not run

    @property
    def name(self) -> str:
        """Where it stands, and how it begins."""
        return f"{self.page}, {self.heading}: {self.text.splitlines()[0]}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, its cells as they stand."""

    page: str
    heading: str
    rows: list[list[str]]  # without the head and the line below it

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page}, {self.heading}"

    def column(self, at: int = 0) -> list[str]:
        """One of its columns."""
        return [row[at] for row in self.rows]


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, heading: str | None = None) -> list[Block]:
    """The blocks of a page, or of what stands below one of its headings."""
    return [each for each in _blocks(page) if heading in {None, each.heading}]


def _blocks(page: str) -> Iterator[Block]:
    for title, section in sections(page):
        pattern = r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$"
        for unrun, language, text in re.findall(pattern, section, flags=re.MULTILINE | re.DOTALL):
            yield Block(page=page, heading=title, language=language, text=text, unrun=unrun or None)


def tables(page: str, heading: str | None = None) -> list[Table]:
    """The tables of a page, or of what stands below one of its headings."""
    return [each for each in _tables(page) if heading in {None, each.heading}]


def _tables(page: str) -> Iterator[Table]:
    for title, section in sections(page):
        bare = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
        for text in re.findall(r"(?:^\|.*\|\n?)+", bare, flags=re.MULTILINE):
            _, _, *lines = text.splitlines()
            yield Table(page=page, heading=title, rows=[cells(line) for line in lines])


def cells(line: str) -> list[str]:
    """The cells of a row; a bar inside a cell is written with a backslash."""
    return [each.strip().replace(r"\|", "|") for each in re.split(r"(?<!\\)\|", line)[1:-1]]


def sections(page: str) -> list[tuple[str, str]]:
    """A page cut at its headings of any level; a `#` inside a block is none."""
    found: list[tuple[str, list[str]]] = [("", [])]
    inside = False
    for line in read(page).splitlines(keepends=True):
        inside ^= line.startswith("```")
        if line.startswith("#") and not inside:
            found.append((line.strip("# \n"), []))
        else:
            found[-1][1].append(line)
    return [(title, "".join(lines)) for title, lines in found]
