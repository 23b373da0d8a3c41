"""
The page of `sqlqueue report`: what is in it, that it runs nothing, how a browser shows it.

SQLQ_TEST_PICTURES names a folder in which the browser's pictures are kept, to be looked at.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import browser
import pytest

from sqlq_spark.admin import report, watch
from sqlq_spark.admin.inspect import Delayed, Depth, Stream
from sqlq_spark.admin.problems import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 6, 30, 12, tzinfo=UTC)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"
LONG = "Shop.Contracts." + "Sales." * 30 + "OrderPlaced"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "section", "footer", "p"),
    *("h1", "h2", "dl", "div", "dt", "dd", "figure", "figcaption", "strong", "ul", "li", "span"),
    *("svg", "rect", "table", "thead", "tbody", "tr", "th", "td"),
}


def page(name: str = "Shop.Orders", *, messages: int = 5000) -> str:
    """Write a page on which every name is `name`, or hostile, or long."""
    depths = [Depth(name, messages, 3, 123_456_789, 1, messages)]
    depths += [Depth(f"Shop.Q{at}", at, 0, 8192, 1, at) for at in range(1, 15)]
    problem = Finding(where=name, name="dead_rows", severity="error", found=name, fix=name)
    queues = [
        watch.QueueLook(
            at=NOW,
            depth=depth,
            highest=messages,
            oldest=90_061.0,
            delayed=Delayed(7, 2, 9000),
            problems=[problem] if depth is depths[0] else [],
        )
        for depth in depths
    ]
    stream = Stream(name, name, 3, 100, 0, 0, 0, NOW, NOW - timedelta(hours=3), 2, 40, lag=5040)
    fields = ("exception", "messages", "queues", "first", "last", "example")
    rows: tuple[tuple[object, ...], ...] = (
        (name, 9, {name: 9}, NOW, NOW, f"{name} was not there"),
        (LONG, 1, {}, None, None, None),
    )
    groups = [dict(zip(fields, values, strict=True)) for values in rows]
    failures = [{"queue": name, "messages": 20_010, "read": 20_000, "groups": groups}]
    look = watch.Look(at=NOW, queues=queues, streams=[stream])
    return report.write_page("postgresql://127.0.0.1/shop", look, failures)


class Tags(HTMLParser):
    """All tags of a page, and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.names.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.texts.append(data)


def parsed(text: str) -> Tags:
    """Read a page."""
    tags = Tags()
    tags.feed(text)
    return tags


# ---------------------------------------------------------------- what stands in it


def test_a_page_has_no_script_and_fetches_nothing_whatever_the_names_are() -> None:
    """Text of untrusted writers stays text; the page's own policy forbids the rest."""
    tags = parsed(page(HOSTILE))

    names = {name for name, _ in tags.attributes}
    assert tags.names <= TAGS
    assert not {"src", "href", "style", "srcset", "action"} & names
    assert not any(name.startswith("on") for name in names)
    assert ("content", POLICY) in tags.attributes
    assert HOSTILE in tags.texts


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202egpj.exe", "\ud800", "\0", "a\nb"])
def test_a_text_holds_nothing_that_is_not_seen(text: str) -> None:
    """Neither control characters, nor those that turn a line round; a file can hold it."""
    shown = page(text)

    assert text not in shown
    assert all(each.isprintable() or each == "\n" for each in shown)
    shown.encode()
    assert "<" * 301 not in "".join(parsed(page("<" * 10_000)).texts)


def test_numbers_stand_beside_the_charts() -> None:
    """Counts, and what the charts leave out in words."""
    texts = parsed(page()).texts

    for shown in (
        "5,000",
        "1 d 1 h",
        "123 MB",
        "The 12 largest of 15.",
        "What is wrong: 1 problem",
        "20,000 of 20,010 messages were read",
    ):
        assert any(shown in text for text in texts), shown


def test_a_page_says_what_is_absent() -> None:
    """Queues and streams."""
    text = report.write_page("server", watch.Look(at=NOW, queues=[], streams=None), [])

    assert "This login may read no table that has the columns of a queue." in text
    assert "Streams are unknown" in text


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[browser.Page, Path]]:
    """Give a tab, and the file of a page with hostile names."""
    program = browser.program()
    if program is None:
        pytest.skip("no browser: see the closing lines")
    folder = tmp_path_factory.mktemp("browser")
    file = folder / "report.html"
    file.write_text(page(HOSTILE), encoding="utf-8")
    with browser.page(program, folder / "profile") as tab:
        yield tab, file


SMALLEST = """Math.min(...[...document.querySelectorAll('main *')].filter(e =>
 [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !e.closest('svg'))
 .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
CONTRASTS = """(() => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const against = (one, two) => { const [a, b] = [light(one), light(two)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) };
  const style = (kind, of) => getComputedStyle(document.querySelector(kind))[of];
  const paper = style('body', 'backgroundColor');
  return [against(style('body', 'color'), paper), against(style('figcaption', 'color'), paper),
    against(style('rect.bar', 'fill'), paper)] })()"""
FLAT = """[...document.querySelectorAll('.bars svg')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width < 100 || box.height < 5 || box.left < 0 || box.right > innerWidth }).length"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(
    shown: tuple[browser.Page, Path], *, width: int, dark: bool
) -> None:
    """On a phone and a screen, by day and night: readable, and nothing else happens."""
    tab, file = shown
    tab.show(file, width=width, dark=dark)

    assert tab.ask("innerWidth") == width
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask("document.querySelectorAll('script, img').length") == 0
    assert tab.ask(SMALLEST) >= 12
    assert tab.ask("document.querySelectorAll('.bars svg').length") > 10
    assert tab.ask(FLAT) == 0
    body, faint, bar = tab.ask(CONTRASTS)
    assert min(body, faint) >= 4.5  # text
    assert bar >= 3  # shapes
    asked = [each for each in tab.events if each["method"] == "Network.requestWillBeSent"]
    assert [each["params"]["request"]["url"] for each in asked] == [file.as_uri()]
    methods = {each["method"] for each in tab.events}
    assert not methods & {"Page.javascriptDialogOpening", "Log.entryAdded"}
    picture = tab.picture()
    assert picture.startswith(b"\x89PNG")
    if folder := os.environ.get("SQLQ_TEST_PICTURES"):
        name = f"report_{width}_{'dark' if dark else 'light'}.png"
        Path(folder, name).write_bytes(picture)
