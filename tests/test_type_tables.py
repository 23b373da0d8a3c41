"""Names of tables from names of types that anyone may have written."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.jobs.table_writer import OTHER, application, place, routes, table_name

texts = st.text(st.characters(exclude_categories=[]), max_size=300)


@given(texts)
def test_a_name_is_harmless(message_type: str) -> None:
    """Letters, digits and underscores, of bounded length, and never that of the rest."""
    name = table_name(message_type)

    assert re.fullmatch(r"[a-z0-9_]{8,69}", name)
    assert name == table_name(message_type) != OTHER


def test_what_looks_alike_is_kept_apart() -> None:
    """Also where names of tables ignore case."""
    types = ["Shop.Placed", "shop.placed", "Shop_Placed", "Shop`Placed", "../Shop.Placed", "Ü", ""]

    names = {table_name(each) for each in types}

    assert len({each.lower() for each in names}) == len(types)
    assert all(each.startswith("shop_placed_") for each in map(table_name, types[:5]))


def test_where_a_table_stands() -> None:
    """Below a path, beside a name."""
    assert place("s3://lake/orders/", "a_1") == "s3://lake/orders/a_1"
    assert place("main.lake.orders", "a_1") == "main.lake.orders_a_1"


def test_the_most_frequent_types_have_tables() -> None:
    """Beside those that are named, be they rare; the rest is in none."""
    found = [("B", 5), ("A", 5), ("C", 9), ("Rare", 1), ("D", 4), (None, 100)]

    shared = routes(found, {"Rare": "rare", "Gone": "gone"}, most=2)

    assert shared == {table_name("A"): ["A"], table_name("C"): ["C"], "rare": ["Rare"]}
    assert routes(reversed(found), {"Rare": "rare"}, most=2) == shared


def test_types_may_share_a_table() -> None:
    """One that is named so, or the rest."""
    named = {"A": "both", "B": "both", "C": OTHER}

    assert routes([("A", 1), ("B", 2), ("C", 3)], named, most=9) == {"both": ["A", "B"]}


def test_a_write_is_known_again_by_its_rules() -> None:
    """Other rules make another write of it; so does another stream or share."""
    known = {
        application(query, name, named, most=most, form=form)
        for query in ("1", "2")
        for name in ("paid", "Paid")
        for named in ({}, {"A": "a"}, {"A": "b"})
        for most in (1, 2)
        for form in ("map", "json")
    }
    one, other = ({"A": "a", "B": "b"}, {"B": "b", "A": "a"})

    assert len(known) == 48
    assert application("1", "x", one, most=1, form="map") == application(
        "1", "x", other, most=1, form="map"
    )
