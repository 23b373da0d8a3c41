"""Rules of commands and browses without IO: an endpoint's queues, filters, the report's page."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as filters

from sqlq_spark.admin import report, stats
from sqlq_spark.admin.queue_checks import Finding
from sqlq_spark.admin.queue_sizes import Delayed, Depth
from sqlq_spark.admin.script import endpoint
from sqlq_spark.admin.state_tables import Stream
from sqlq_spark.errors import BadOption
from sqlq_spark.receive.browse import ALL
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "postgresql://"


def test_a_delayed_table_leaves_less_room_for_a_name() -> None:
    """The transport accepts the longer name only for an endpoint without delayed messages."""
    for url, longest, limits in (
        (URL, "ü" * 23, "at most 55 UTF-8 bytes, or of 47 with --delayed, .* has 48 "),
        ("sqlserver://", "x" * 120, "at most 128 UTF-16 .* or of 120 with --delayed, .* has 121 "),
    ):
        longer = longest + longest[0]
        assert endpoint(url, longest, delayed=True).primary.table == longest
        assert endpoint(url, longer).primary.table == longer
        with pytest.raises(BadOption, match=limits):
            endpoint(url, longer, delayed=True)


# ----- filters of a browse: for every row the same as Spark's own ------------------------------

SEQ, QUEUE = ("seq",), ("queue",)
SEQS = st.integers(LOWEST_SEQ, HIGHEST_SEQ) | st.integers(-3, 3)
QUEUES = st.sampled_from(["a", "A", "b"])
MEANING: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("EqualTo", "EqualNullSafe"), operator.eq),
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda found, value: found in value,
}


def conditions(column: tuple[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Each kind of filter of a column."""
    single = st.sampled_from([name for name in MEANING if name != "In"])
    many = st.lists(values | st.none(), max_size=3).map(tuple)
    return st.tuples(single, st.just(column), values) | st.tuples(
        st.just("In"), st.just(column), many
    )


@given(
    st.lists(conditions(SEQ, SEQS) | conditions(QUEUE, QUEUES), max_size=4),
    st.lists(st.tuples(SEQS, QUEUES), max_size=8),
)
def test_what_is_selected_and_left_to_spark_is_what_was_asked(
    asked: list[Any], rows: list[tuple[int, str]]
) -> None:
    """The selection and the filters that Spark applies accept the same rows as all filters."""
    wanted, left = ALL, []
    for kind, column, value in asked:
        wanted, done = wanted.narrow(getattr(filters, kind)(column, value))
        left += [] if done else [(kind, column, value)]

    for row in rows:
        named = wanted.queues is None or row[1] in wanted.queues
        selected = [wanted.first <= row[0] < wanted.stop and named]
        passed = [MEANING[kind](row[column == QUEUE], value) for kind, column, value in asked]
        rest = [MEANING[kind](row[column == QUEUE], value) for kind, column, value in left]
        assert all(selected + rest) == all(passed)


# ----- the page of `sqlqueue report` -----------------------------------------------------------

NOW = datetime(2026, 6, 30, 12, tzinfo=UTC)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"


def page(name: str) -> str:
    """Write a page on which every name is `name`."""
    problem = Finding(where=name, name="dead_rows", severity="error", found=name, fix=name)
    more: dict[str, Any] = {"at": NOW, "highest": 5000, "oldest": 90_061.0}
    more |= {"delayed": Delayed(7, 2, 9000), "problems": [problem]}
    sizes: dict[str, Any] = {"expired": 3, "bytes": 123_456_789, "first": 1, "last": 5000}
    depths = [
        Depth(queue=name + str(number or ""), messages=5000 - number, **sizes)
        for number in range(15)
    ]
    queues = [stats.QueueLook(depth=depth, **more) for depth in depths]
    stream = Stream(
        stream=name,
        name=name,
        queue=name,
        host=name,
        process=7,
        query_id=name,
        batch=3,
        messages=100,
        expired=0,
        diverted=0,
        forwarded=0,
        created=NOW,
        seen=NOW - timedelta(hours=3),
        receipts=2,
        held=40,
        is_open=True,
        silent=10_800.0,
        lag=5040,
    )
    group = {"exception": name, "messages": 9, "queues": {name: 9}, "first": NOW, "last": None}
    groups = [group | {"example": f"{name} was not there"}, group | {"example": None}]
    failures = [{"queue": name, "messages": 20_010, "read": 20_000, "groups": groups}]
    look = stats.Look(at=NOW, queues=queues, streams=[stream])
    return report.write_page("postgresql://127.0.0.1/shop", look, failures)


class Tags(HTMLParser):
    """All tags of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.handle_data = self.texts.append  # type: ignore[method-assign,assignment]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the tag."""
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
    """It has no control character, and none that turns a line round. A file can hold it."""
    for text in ("\x1b[2J", "\u202egpj.exe", "\ud800", "\0", "a\nb"):
        shown = page(text)

        assert text not in shown
        assert all(each.isprintable() or each == "\n" for each in shown)
        shown.encode()
    assert "<" * 301 not in "".join(Tags(page("<" * 10_000)).texts)
