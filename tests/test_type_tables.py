"""Names of tables from names of types that anyone may have written."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.jobs.queue_to_delta import OTHER, Settings, application, table_name

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


def rules(names: dict[str, str], form: str = "map") -> Settings:
    """Settings of a job that writes a table for each type."""
    given: dict[str, Any] = {"url": "postgresql:///s", "queues": "q", "table": "t"}
    return Settings(**given, checkpoint="c", split=True, names=names, form=form)


def test_a_write_is_known_again_by_its_rules() -> None:
    """Other rules make another write of it; so does another stream or share."""
    known = {
        application(query, name, rules(named, form))
        for query in ("1", "2")
        for name in ("paid", "Paid")
        for named in ({}, {"A": "a"}, {"A": "b"})
        for form in ("map", "json")
    }
    one, other = (rules(names) for names in ({"A": "a", "B": "b"}, {"B": "b", "A": "a"}))

    assert len(known) == 24
    assert application("1", "x", one) == application("1", "x", other)
