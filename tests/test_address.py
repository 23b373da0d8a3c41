"""Addresses: any name is read back as it was, and never leaves its quotes."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.dialects import split_canonical
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER

CHARACTERS = st.one_of(
    st.sampled_from("\"'[]@.;-/*\\%{}$ \n\t\r"),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
)
Parse = Callable[[str], QueueAddress]


def names(*, utf8: int = 10_000, utf16: int = 10_000) -> st.SearchStrategy[str]:
    """Any legal name of at most `utf8` bytes and `utf16` UTF-16 units."""
    return st.text(CHARACTERS, min_size=1, max_size=128).filter(
        lambda name: len(name.encode()) <= utf8 and len(name.encode("utf-16-le")) <= 2 * utf16
    )


SHORT = names(utf16=128)
IN_POSTGRESQL = st.builds(QueueAddress, names(utf8=55), st.none() | names(utf8=63))
IN_SQLSERVER = st.builds(QueueAddress, SHORT, st.none() | SHORT, st.none() | SHORT)

MINE, OTHER = POSTGRESQL.parse_address, SQLSERVER.parse_address
# what a user writes is an address only if it begins with a quote, or holds an at sign
WRITTEN, OTHERS = POSTGRESQL.parse_queue, SQLSERVER.parse_queue
CASES: list[tuple[Parse, str, tuple[Any, ...] | str]] = [
    (MINE, '"public"."Shop.Orders"', ("Shop.Orders", "public")),
    (MINE, 'sales."Shop.Orders"', ("Shop.Orders", "sales")),
    (MINE, '""""', ('"',)),
    (MINE, "orders@[dbo]", ("orders@[dbo]",)),
    (WRITTEN, "Shop.Orders", ("Shop.Orders",)),
    (WRITTEN, ".", (".",)),
    (OTHER, "Shop.Orders@[dbo]", ("Shop.Orders", "dbo")),
    (OTHER, "orders@my.schema@my.catalog", ("orders", "my.schema", "my.catalog")),
    (OTHER, "orders@[]@[shop]", ("orders", None, "shop")),
    (OTHER, "orders@[a@b]@[c@d]", ("orders", "a@b", "c@d")),
    (OTHER, "[a@b]@[dbo]", ("a@b", "dbo")),
    (OTHER, "[orders]", ("[orders]",)),  # the transport keeps its brackets
    (OTHER, "[a@[dbo]@[shop]", ("[a", "dbo", "shop")),
    (OTHERS, "[orders]@[dbo]", ("orders", "dbo")),
    # refused, with the reason
    (MINE, "", "the table is empty"),
    (MINE, "or\0ders", "the table holds a NUL character"),
    (MINE, 's."orders', "the quote that opens at character 3 is not closed"),
    (MINE, '"orders"; DROP TABLE x', "text follows the quote that closes at character 8; "),
    (MINE, "shop.public.orders", "it has 3 parts where 2 are the most"),
    (MINE, "ä" * 28, "the table has 56 UTF-8 bytes where 55 are the most"),
    (OTHER, "orders@[\udc00]", "the schema holds half of a surrogate pair"),
    (OTHER, "o@[dbo]; DROP TABLE x", "text follows the bracket that closes at character 7; "),
]


def test_an_address_is_split_outside_its_quotes_or_refused() -> None:
    """The error holds the text and the reason."""
    for parse, text, expected in CASES:
        if isinstance(expected, tuple):
            assert parse(text) == QueueAddress(*expected)
            continue
        with pytest.raises(BadAddress) as caught:
            parse(text)
        assert caught.value.text == text
        assert caught.value.reason.startswith(expected)


def test_an_address_of_sqlserver_for_a_user_and_in_a_message() -> None:
    """The table has brackets where it could not be read back. In a message it seldom has them."""
    for address, printed, canonical in (
        (("Shop.Orders", None, "shop"), "Shop.Orders@[dbo]@[shop]", "Shop.Orders@[dbo]@[shop]"),
        (("my]table", "a]b", "c@d"), "my]table@[a]]b]@[c@d]", "my]table@[a]]b]@[c@d]"),
        (("a@b", "dbo", "shop"), "[a@b]@[dbo]@[shop]", "[a@b]@[dbo]@[shop]"),
        (("[a]", "dbo", "shop"), "[[a]]]@[dbo]@[shop]", "[a]@[dbo]@[shop]"),
    ):
        assert SQLSERVER.print_address(QueueAddress(*address)) == printed
        assert SQLSERVER.canonical_address(QueueAddress(*address)) == canonical


@given(IN_POSTGRESQL, IN_SQLSERVER)
@example(QueueAddress('"', "]]"), QueueAddress("]", '""'))
def test_any_address_is_read_back_as_it_was(
    postgresql: QueueAddress, sqlserver: QueueAddress
) -> None:
    """Printed, it names its schema; in a message a table with `@[` in its name may be refused."""
    assert SQLSERVER.parse_queue(SQLSERVER.print_address(sqlserver)) == SQLSERVER.qualify(sqlserver)
    assert POSTGRESQL.parse_address(POSTGRESQL.print_address(postgresql)) == replace(
        postgresql, schema=postgresql.schema or "public"
    )
    if not postgresql.table.startswith('"'):  # a dotted, hostile or odd name needs no quotes
        assert POSTGRESQL.parse_queue(postgresql.table) == QueueAddress(postgresql.table)

    whole = replace(sqlserver, schema=sqlserver.schema or "dbo", catalog=sqlserver.catalog or "s")
    text = SQLSERVER.canonical_address(whole)
    if "@" in whole.table and "@[" in f"[{whole.table}":  # the transport fails on it too
        with pytest.raises(BadAddress):
            SQLSERVER.parse_address(text)
    else:
        assert SQLSERVER.parse_address(text) == whole


@given(IN_POSTGRESQL, IN_SQLSERVER)
def test_no_name_leaves_its_quotes(postgresql: QueueAddress, sqlserver: QueueAddress) -> None:
    """The identifier is two or three quoted names and nothing else."""
    part = r"\[((?:[^\]]|\]\])+)\]"
    mine = re.fullmatch(r'"((?:[^"]|"")+)"\."((?:[^"]|"")+)"', POSTGRESQL.quote_address(postgresql))
    other = re.fullmatch(rf"(?:{part}\.)?{part}\.{part}", SQLSERVER.quote_address(sqlserver))

    assert mine is not None
    names = [name.replace('""', '"') for name in mine.groups()]
    assert names == [postgresql.schema or "public", postgresql.table]
    assert other is not None
    names = [name and name.replace("]]", "]") for name in other.groups()]
    assert names == [sqlserver.catalog, sqlserver.schema or "dbo", sqlserver.table]


def test_no_identifier_is_written_that_no_parser_would_accept() -> None:
    """The longest queue's `.Delayed` has 63 bytes. SQL Server's addresses are refused, not cut."""
    assert POSTGRESQL.quote_address(QueueAddress("o" * 55 + ".Delayed"))
    with pytest.raises(BadAddress, match="64 UTF-8 bytes where 63"):
        POSTGRESQL.quote_address(QueueAddress("o" * 64))
    for write in (POSTGRESQL.quote_address, SQLSERVER.quote_address, SQLSERVER.print_address):
        for made_by_hand in (QueueAddress("a\0b"), QueueAddress("orders", "")):
            with pytest.raises(BadAddress):
                write(made_by_hand)
    with pytest.raises(BadAddress, match="it names a catalog, which PostgreSQL does not have"):
        POSTGRESQL.quote_address(QueueAddress("orders", "dbo", "shop"))


@given(st.text(st.sampled_from('a.,"[]@ \n\0\ud800'), max_size=12))
def test_any_text_is_an_address_or_refused_with_its_reason(text: str) -> None:
    """No text of a message makes the parser fail in another way, or run for ever."""
    writes = (POSTGRESQL.print_address,) * 2 + (
        SQLSERVER.canonical_address,
        SQLSERVER.print_address,
    )
    for parse, write in zip((MINE, WRITTEN, OTHER, OTHERS), writes, strict=True):
        try:
            address = parse(text)
        except BadAddress as error:
            assert error.text == text  # noqa: PT017
        else:
            assert replace(parse(write(address)), schema=None) == replace(address, schema=None)
    assert ", ".join(split_canonical(text)) == text  # nothing of a list in a stream's row is lost
    with suppress(BadAddress):
        assert all(POSTGRESQL.split_list(text))


@given(
    st.lists(IN_POSTGRESQL, min_size=1, max_size=5),
    st.lists(IN_SQLSERVER, min_size=1, max_size=5),
)
@example(
    [QueueAddress("a")],
    [QueueAddress("a, b"), QueueAddress("c@[d], e", "f]@["), QueueAddress("[x")],
)
def test_a_list_of_canonical_addresses_is_split_as_it_was_joined(
    postgresql: list[QueueAddress], sqlserver: list[QueueAddress]
) -> None:
    """Options and the row of a stream hold such lists, with names of any characters."""
    mine = [POSTGRESQL.print_address(address) for address in postgresql]
    others = [SQLSERVER.print_address(address) for address in sqlserver]

    assert POSTGRESQL.split_list(", ".join(mine)) == mine
    assert split_canonical(", ".join(mine)) == mine
    assert split_canonical(", ".join(others)) == others


SQLSERVER_LISTS = {
    "[a, b]@[sales], c@[x, y]@[z]": ["[a, b]@[sales]", "c@[x, y]@[z]"],
    " [a]],b] ,c[d,e]": ["[a]],b]", "c[d", "e]"],
    "a@[b,c": ["a@[b", "c"],
}


def test_a_list_of_sqlserver_is_split_outside_brackets_in_one_pass() -> None:
    """Brackets open where a name begins, and after an at sign. A million characters are quick."""
    for part in ("@[", "a,[", "]]", "@[]]", "a, @[]", " "):
        assert SQLSERVER.split_list("[" + part * (1_000_000 // len(part)) + "x")
    for names, expected in SQLSERVER_LISTS.items():
        assert SQLSERVER.split_list(names) == expected
    with pytest.raises(BadAddress, match="a name is missing beside a comma"):
        SQLSERVER.split_list("a,,b")
