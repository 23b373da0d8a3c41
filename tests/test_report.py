"""The page of `sqlqueue report`: what is in it, and that it runs nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

from sqlq_spark.admin import report, watch
from sqlq_spark.admin.inspect import Delayed, Depth, Stream
from sqlq_spark.admin.problems import Finding

NOW = datetime(2026, 6, 30, 12, tzinfo=UTC)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"


def page(name: str) -> str:
    """Write a page on which every name is `name`, or long."""
    depths = [Depth(name, 5000, 3, 123_456_789, 1, 5000)]
    depths += [Depth(f"Shop.Q{at}", at, 0, 8192, 1, at) for at in range(1, 15)]
    problem = Finding(where=name, name="dead_rows", severity="error", found=name, fix=name)
    more: dict[str, Any] = {"at": NOW, "highest": 5000, "oldest": 90_061.0}
    more |= {"delayed": Delayed(7, 2, 9000), "problems": [problem]}
    queues = [watch.QueueLook(depth=depth, **more) for depth in depths]
    stream = Stream(name, name, 3, 100, 0, 0, 0, NOW, NOW - timedelta(hours=3), 2, 40, lag=5040)
    group = {"exception": name, "messages": 9, "queues": {name: 9}, "first": NOW, "last": NOW}
    none = {"exception": "Shop." * 50, "messages": 1, "queues": {}, "first": None, "last": None}
    groups = [group | {"example": f"{name} was not there"}, none | {"example": None}]
    failures = [{"queue": name, "messages": 20_010, "read": 20_000, "groups": groups}]
    look = watch.Look(at=NOW, queues=queues, streams=[stream])
    return report.write_page("postgresql://127.0.0.1/shop", look, failures)


class Tags(HTMLParser):
    """All tags of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.handle_data = self.texts.append  # type: ignore[method-assign]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.names.add(tag)
        self.attributes += attrs


def test_a_page_has_no_script_and_fetches_nothing_whatever_the_names_are() -> None:
    """Text of untrusted writers stays text; the page's own policy forbids the rest."""
    tags = Tags(page(HOSTILE))

    names = {name for name, _ in tags.attributes}
    assert tags.names == Tags(page("Shop.Orders")).names
    assert not {"script", "img", "link", "iframe", "a", "form"} & tags.names
    assert not {"src", "href", "style", "srcset", "action"} & names
    assert not any(name.startswith("on") for name in names)
    assert ("content", POLICY) in tags.attributes
    assert HOSTILE in tags.texts


def test_a_text_holds_nothing_that_is_not_seen() -> None:
    """Neither control characters, nor those that turn a line round; a file can hold it."""
    for text in ("\x1b[2J", "\u202egpj.exe", "\ud800", "\0", "a\nb"):
        shown = page(text)

        assert text not in shown
        assert all(each.isprintable() or each == "\n" for each in shown)
        shown.encode()
    assert "<" * 301 not in "".join(Tags(page("<" * 10_000)).texts)


def test_a_page_says_what_there_is_and_what_is_absent() -> None:
    """Counts, and what the charts leave out in words."""
    text = "\n".join(Tags(page("Shop.Orders")).texts)
    for shown in (
        "5,000",
        "1 d 1 h",
        "123 MB",
        "The 12 largest of 15.",
        "What is wrong: 15 ",
    ):
        assert shown in text
    assert "20,000 of 20,010 messages were read" in text
    text = report.write_page("server", watch.Look(at=NOW, queues=[], streams=None), [])
    assert "This login may read no table that has the columns of a queue." in text
    assert "Streams are unknown" in text
