"""Names of .NET types: whatever a header or a column holds, it is read in one pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.wire.headers import (
    SEPARATOR,
    begins_with_interface,
    full_name,
    split_names,
    split_types,
    topic_problem,
    types_problem,
)

VERSION = "Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
GENERIC = f"Shop.Changed`2[[Shop.Order, Shop, {VERSION}],[System.Int32[,], mscorlib]]"
MARKED = st.text(alphabet="aB.+`,;[]\\ \n\0é🚀", max_size=40)

FULL_NAMES = {
    f" Shop.Placed , Shop, {VERSION} ": "Shop.Placed",
    "Shop.Outer+Inner, Shop": "Shop.Outer+Inner",
    f"{GENERIC}, Shop, {VERSION}": GENERIC,  # its arguments keep their assemblies, as in .NET
    GENERIC: GENERIC,
    r"Shop.Odd\,Name\[, Shop": r"Shop.Odd\,Name\[",
    "Placed]], Shop": "Placed]]",
    "Placed[[Order, Shop": "Placed[[Order, Shop",
    ",": "",
    "\\": "\\",
}


def test_a_full_name_ends_at_the_first_comma_outside_brackets() -> None:
    """A hundred thousand of any mark take one pass; one over the rest at each would take hours."""
    assert {name: full_name(name) for name in FULL_NAMES} == FULL_NAMES
    for text in ("[" * 10**5, "]" * 10**5, "[]" * 10**5, "\\" * 10**5, "," * 10**5):
        assert text.startswith(full_name(text))


@given(MARKED)
def test_a_full_name_is_its_own_full_name(name: str) -> None:
    """Any text has one, and it is a beginning of the text."""
    full = full_name(name)

    assert name.lstrip().startswith(full)
    assert full_name(full) == full


@given(st.lists(MARKED.map(str.strip).filter(lambda text: topic_problem(text) is None), max_size=5))
def test_topics_that_fit_come_back_from_their_header(topics: list[str]) -> None:
    """So that none of them can pass for two; blank ones do not count, but in an option."""
    assert split_types(SEPARATOR.join(topics)) == topics
    assert split_types(" ; ;") == split_types(None) == []
    assert split_names(f"Shop.Placed, {GENERIC},,") == ["Shop.Placed", GENERIC, "", ""]


@pytest.mark.parametrize(
    ("topic", "why"), [("", "blank"), (" \n", "blank"), ("a;b", "';'"), ("a\0", "NUL")]
)
def test_what_can_be_no_topic_is_refused_with_the_reason(topic: str, why: str) -> None:
    """And what can, is not."""
    assert why in (topic_problem(topic) or "")
    assert topic_problem("Shop.Placed, Shop") is None


PROBLEMS = {
    f"Shop.Rush, Shop, {VERSION}; Shop.Placed, Shop;Shop.IEvent": None,
    f"{GENERIC}, Shop;{GENERIC}2, Shop": None,
    r"Shop.Odd\,Name\[, Shop": None,
    "Shop.Placed; ;Shop.IEvent": "a blank name",
    ", Shop": "a blank name",
    "Shop.Placed, Shop;Shop.IEvent;Shop.Placed": "Shop.Placed twice",
    '["Shop.Placed"]': "'[\"Shop.Placed\"]', which is no type name",
    "Shop.\nPlaced": "'Shop.\\nPlaced', which is no type name",
}


def test_only_what_is_certainly_wrong_is_no_header_of_types() -> None:
    """An odd name may be right: .NET decides."""
    assert {header: types_problem(header) for header in PROBLEMS} == PROBLEMS


WARNED = {
    "Shop.IEvent;Shop.Placed": True,
    "Shop.Outer+IShopEvent, Shop;Shop.Placed": True,
    "Shop.Placed;Shop.IEvent;Shop.Base": False,  # the order of an endpoint
    "Shop.IPlaced;Shop.IEvent": False,  # an interface that is the message
    "Shop.ItemAdded;Shop.Base": False,
    "Shop.IPAddressChanged;Shop.Base": False,
    "": False,
}


def test_an_interface_before_a_class_is_seen_by_its_name() -> None:
    """As .NET code names interfaces."""
    assert {header: begins_with_interface(header) for header in WARNED} == WARNED
