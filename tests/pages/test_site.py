"""The site is built without a warning, its diagrams are those of the code, the notebook runs."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, get_args

import browser
import pytest
from receipt_moves import MOVES, Move

from .notebook import executed, printed, stored
from .page import ROOT, blocks, read, table

if TYPE_CHECKING:
    from pathlib import Path

DIAGRAMS = "docs/diagrams.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a folder of its own; every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [
        *(sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"),
        *("--conf-dir", "docs", "--doctree-dir", str(folder / "doctrees")),
        *(".", str(folder / "html")),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def text(page: Path) -> str:
    """What a page of the site shows."""
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))


def test_the_site_has_every_page(site: Path) -> None:
    """Pages, the notebook with its outputs, and the API; a link to a folder is plain text."""
    docs = site / "docs"
    api = (docs / "api.html").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    built = [(site / each.relative_to(ROOT)).with_suffix(".html") for each in pages]

    assert [each for each in built if not each.exists()] == []
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")
    assert 'id="sqlq_spark.functions.reply"' in api
    assert 'id="sqlq_spark.testing.Message"' in api
    assert "BillOrder {'OrderId': 7" in text(docs / "notebooks" / "ten_minutes.html")
    assert "conf" in text(docs / "jobs.html")
    assert 'href="../conf"' not in (docs / "jobs.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_the_pages(site: Path, tmp_path: Path, width: int) -> None:
    """No page is wider than the screen, because tables, code and diagrams scroll alone."""
    program = browser.program()
    if program is None:
        pytest.skip("no browser: see the closing lines")
    with browser.page(program, tmp_path / "profile") as tab:
        for each in sorted((site / "docs").rglob("*.html")):
            tab.show(each, width=width)

            assert tab.ask("document.documentElement.scrollWidth") <= width, each.name


def test_the_lists_of_the_front_page_have_the_titles_of_the_pages() -> None:
    """The site's navigation is made of them; the build fails for a page that no list has."""
    named = re.findall(r"^- \[(.+)\]\((.+)\)$", read("docs/index.md"), flags=re.MULTILINE)
    for title, path in named:
        page = (ROOT / "docs" / path).read_text(encoding="utf-8")
        first = "".join(json.loads(page)["cells"][0]["source"]) if "ipynb" in path else page

        assert f"# {title}" in first.splitlines(), path
    assert named


def test_the_states_of_a_receipt_are_those_of_the_code() -> None:
    """Each arrow is a move of MOVES, and each move of MOVES is an arrow."""
    [drawn] = blocks(DIAGRAMS, "receipt-states")
    arrows = re.findall(r"^ +(\S+) --> (\S+): (\w+)$", drawn.text, flags=re.MULTILINE)

    coded = {
        (state.replace("none", "[*]"), then.replace("none", "[*]"), move.strip("_"))
        for (state, move), then in MOVES.items()
    }
    assert set(arrows) == coded
    assert len(arrows) == len(coded)


def test_the_moves_of_a_receipt_are_explained() -> None:
    """Each of them once, in the order of the code."""
    named = [each.strip("`") for each in table(DIAGRAMS, "receipt-moves").column()]

    assert named == [each.strip("_") for each in get_args(Move)]


def test_the_steps_of_the_tables_are_those_of_the_diagrams() -> None:
    """No table speaks of a step that its diagram lacks."""
    drawn = [each.text for each in blocks(DIAGRAMS) if "autonumber" in each.text]
    for text, name in zip(drawn, ["kills-of-a-read", "kills-of-a-write"], strict=True):
        steps = len(re.findall(r"^ +\w+--?>>\w+:", text, flags=re.MULTILINE))
        cells = " ".join(table(DIAGRAMS, name).column())
        named = {int(each) for each in re.findall(r"\d+", cells)}

        assert named <= set(range(1, steps + 1))
        assert steps in named


@pytest.mark.spark
def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    """Its cells run in their order, in a process of their own."""
    found = printed(executed(tmp_path))

    assert found == printed(stored())
    assert any("|     7|  280|" in each for each in found)


def test_each_diagram_is_linked_from_its_page() -> None:
    """So that a reader of the reference finds it."""
    linked = {
        *re.findall(r"diagrams\.md#([\w-]+)", "".join(map(read, ["README.md"]))),
        *(
            name
            for page in ("sqlqueue", "delayed", "dba")
            for name in re.findall(r"diagrams\.md#([\w-]+)", read(f"docs/{page}.md"))
        ),
    }

    assert linked >= {
        "from-a-queue-to-delta",
        "a-kill-on-the-way-to-delta",
        "a-sent-message",
        "a-delayed-message",
        "the-states-of-a-receipt",
    }
