"""Addresses: whatever a name holds, it is read back as it was, and never leaves its quotes."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import POSTGRESQL, SQLSERVER, QueueAddress, split_canonical

SPECIAL = "\"'[]@.;-/*\\%{}$ \n\t\r"
CHARACTERS = st.one_of(
    st.sampled_from(SPECIAL),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
)


def names(*, utf8: int = 10_000, utf16: int = 10_000) -> st.SearchStrategy[str]:
    """Any legal name of at most so many bytes or units."""
    return st.text(CHARACTERS, min_size=1, max_size=128).filter(
        lambda name: len(name.encode()) <= utf8 and len(name.encode("utf-16-le")) <= 2 * utf16
    )


IN_POSTGRESQL = st.builds(QueueAddress, names(utf8=55), st.none() | names(utf8=63))
IN_SQLSERVER = st.builds(
    QueueAddress, names(utf16=128), st.none() | names(utf16=128), st.none() | names(utf16=128)
)

DOUBLED = "double the {} if it belongs to the name"
WHOLE = "put the whole part in quotes and double those inside"
Parse = Callable[[str], QueueAddress]

# ----- one address -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (POSTGRESQL.parse_address, '"public"."orders"', QueueAddress("orders", "public")),
        (POSTGRESQL.parse_address, '"public"."Shop.Orders"', QueueAddress("Shop.Orders", "public")),
        (POSTGRESQL.parse_address, '"Shop.Orders"', QueueAddress("Shop.Orders")),
        (POSTGRESQL.parse_address, "orders", QueueAddress("orders")),
        (POSTGRESQL.parse_address, "sales.orders", QueueAddress("orders", "sales")),
        (POSTGRESQL.parse_address, 'sales."Shop.Orders"', QueueAddress("Shop.Orders", "sales")),
        (POSTGRESQL.parse_address, '"sa.les".orders', QueueAddress("orders", "sa.les")),
        (POSTGRESQL.parse_address, '"say ""hi"""."a"', QueueAddress("a", 'say "hi"')),
        (POSTGRESQL.parse_address, '""""', QueueAddress('"')),
        (POSTGRESQL.parse_address, " Orders ", QueueAddress(" Orders ")),
        (POSTGRESQL.parse_address, "orders@[dbo]", QueueAddress("orders@[dbo]")),
        (POSTGRESQL.parse_queue, "orders", QueueAddress("orders")),
        (POSTGRESQL.parse_queue, "Shop.Orders", QueueAddress("Shop.Orders")),
        (POSTGRESQL.parse_queue, '"sales"."Shop.Orders"', QueueAddress("Shop.Orders", "sales")),
        (POSTGRESQL.parse_queue, 'or"ders', QueueAddress('or"ders')),
        (POSTGRESQL.parse_queue, "[dbo]", QueueAddress("[dbo]")),
        (POSTGRESQL.parse_queue, ".", QueueAddress(".")),
        (SQLSERVER.parse_address, "orders", QueueAddress("orders")),
        (SQLSERVER.parse_address, "Shop.Orders@[dbo]", QueueAddress("Shop.Orders", "dbo")),
        (SQLSERVER.parse_address, "orders@dbo", QueueAddress("orders", "dbo")),
        (
            SQLSERVER.parse_address,
            "orders@my.schema@my.catalog",
            QueueAddress("orders", "my.schema", "my.catalog"),
        ),
        (SQLSERVER.parse_address, "orders@[]@[shop]", QueueAddress("orders", None, "shop")),
        (SQLSERVER.parse_address, "orders@[]", QueueAddress("orders")),
        (SQLSERVER.parse_address, "orders@[a@b]@[c@d]", QueueAddress("orders", "a@b", "c@d")),
        (SQLSERVER.parse_address, "orders@[my]]schema]", QueueAddress("orders", "my]schema")),
        (SQLSERVER.parse_address, "orders@my]schema", QueueAddress("orders", "my]schema")),
        (SQLSERVER.parse_address, "my]table@[dbo]", QueueAddress("my]table", "dbo")),
        (SQLSERVER.parse_address, "my[table@[dbo]", QueueAddress("my[table", "dbo")),
        (SQLSERVER.parse_address, "[a@b]@[dbo]", QueueAddress("a@b", "dbo")),
        (
            SQLSERVER.parse_address,
            "Shop.Orders@[dbo]@[shop]",
            QueueAddress("Shop.Orders", "dbo", "shop"),
        ),
        (
            SQLSERVER.parse_address,
            "[orders]",
            QueueAddress("[orders]"),
        ),  # the transport keeps its brackets
        (SQLSERVER.parse_address, "[orders]@[dbo]", QueueAddress("[orders]", "dbo")),
        (SQLSERVER.parse_address, "[a]]@[dbo]", QueueAddress("[a]]", "dbo")),
        (SQLSERVER.parse_address, "[a@[dbo]@[shop]", QueueAddress("[a", "dbo", "shop")),
        (SQLSERVER.parse_address, "[]@[dbo]", QueueAddress("[]", "dbo")),
        (SQLSERVER.parse_queue, "[orders]@[dbo]", QueueAddress("orders", "dbo")),
        (SQLSERVER.parse_queue, "[[orders]]]@[dbo]", QueueAddress("[orders]", "dbo")),
        (SQLSERVER.parse_address, '"public"."orders"', QueueAddress('"public"."orders"')),
        (SQLSERVER.parse_queue, "Shop.Orders", QueueAddress("Shop.Orders")),
        (SQLSERVER.parse_queue, "Shop.Orders@[sales]", QueueAddress("Shop.Orders", "sales")),
        (SQLSERVER.parse_queue, "[a@b]", QueueAddress("a@b")),
        (SQLSERVER.parse_queue, "my]table", QueueAddress("my]table")),
        (SQLSERVER.parse_queue, '"public"."orders"', QueueAddress('"public"."orders"')),
    ],
)
def test_an_address_is_split_outside_its_quotes(
    parse: Parse, text: str, expected: QueueAddress
) -> None:
    """
    Quotes or brackets are optional, doubled inside, and hide the sign that separates.

    What a user writes is an address only if it begins with a quote, or holds an at sign.
    """
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (POSTGRESQL.parse_address, "", "the table is empty"),
        (POSTGRESQL.parse_address, '""', "the table is empty"),
        (POSTGRESQL.parse_address, '""."orders"', "the schema is empty"),
        (POSTGRESQL.parse_address, ".orders", "the schema is empty"),
        (POSTGRESQL.parse_address, "sales.", "the table is empty"),
        (POSTGRESQL.parse_address, "or\0ders", "the table holds a NUL character"),
        (POSTGRESQL.parse_address, "or\ud83dders", "the table holds half of a surrogate pair"),
        (
            POSTGRESQL.parse_address,
            's."orders',
            "the quote that opens at character 3 is not closed",
        ),
        (
            POSTGRESQL.parse_address,
            '"orders""',
            "the quote that opens at character 1 is not closed",
        ),
        (
            POSTGRESQL.parse_address,
            '"orders"; DROP TABLE x',
            "text follows the quote that closes at character 8; " + DOUBLED.format("quote"),
        ),
        (
            POSTGRESQL.parse_address,
            'or"ders',
            "the quote at character 3 stands inside a part that does not begin with one; " + WHOLE,
        ),
        (
            POSTGRESQL.parse_address,
            "shop.public.orders",
            "it has 3 parts where 2 are the most; put a part that holds '.' in quotes",
        ),
        (POSTGRESQL.parse_address, "o" * 56, "the table has 56 UTF-8 bytes where 55 are the most"),
        (POSTGRESQL.parse_address, "ä" * 28, "the table has 56 UTF-8 bytes where 55 are the most"),
        (
            POSTGRESQL.parse_address,
            "s" * 64 + ".orders",
            "the schema has 64 UTF-8 bytes where 63 are the most",
        ),
        (SQLSERVER.parse_address, "", "the table is empty"),
        (SQLSERVER.parse_address, "@[dbo]", "the table is empty"),
        (SQLSERVER.parse_address, "orders@", "the schema is empty"),
        (SQLSERVER.parse_address, "orders@@[shop]", "the schema is empty"),
        (SQLSERVER.parse_address, "orders@[dbo]@", "the catalog is empty"),
        (SQLSERVER.parse_address, "or\0ders", "the table holds a NUL character"),
        (SQLSERVER.parse_address, "orders@[\udc00]", "the schema holds half of a surrogate pair"),
        (
            SQLSERVER.parse_address,
            "orders@[dbo",
            "the bracket that opens at character 8 is not closed",
        ),
        (
            SQLSERVER.parse_address,
            "orders@[dbo]]",
            "the bracket that opens at character 8 is not closed",
        ),
        (
            SQLSERVER.parse_address,
            "orders@[dbo]; DROP TABLE x",
            "text follows the bracket that closes at character 12; " + DOUBLED.format("bracket"),
        ),
        (
            SQLSERVER.parse_address,
            "a@b@c@d",
            "it has 4 parts where 3 are the most; put a part that holds '@' in brackets",
        ),
        (
            SQLSERVER.parse_address,
            "o" * 129,
            "the table has 129 UTF-16 code units where 128 are the most",
        ),
        (
            SQLSERVER.parse_address,
            "🚀" * 65,
            "the table has 130 UTF-16 code units where 128 are the most",
        ),
        (
            SQLSERVER.parse_address,
            "orders@" + "s" * 129,
            "the schema has 129 UTF-16 code units where 128 are the most",
        ),
    ],
)
def test_an_address_that_cannot_be_read_says_why(parse: Parse, text: str, reason: str) -> None:
    """The error holds the text and the reason."""
    with pytest.raises(BadAddress) as caught:
        parse(text)

    assert (caught.value.text, caught.value.reason) == (text, reason)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (QueueAddress("orders"), "orders@[dbo]"),
        (QueueAddress("Shop.Orders", "sales"), "Shop.Orders@[sales]"),
        (QueueAddress("orders", None, "shop"), "orders@[dbo]@[shop]"),
        (QueueAddress("orders", "my]schema", "a@b"), "orders@[my]]schema]@[a@b]"),
        (QueueAddress("my]table", "dbo"), "my]table@[dbo]"),
        (QueueAddress("a@b", "dbo"), "[a@b]@[dbo]"),
        (QueueAddress("[a]", "dbo"), "[[a]]]@[dbo]"),
    ],
)
def test_a_user_reads_a_sqlserver_address_that_can_be_given_back(
    address: QueueAddress, expected: str
) -> None:
    """The table is plain unless it could not be read back."""
    assert SQLSERVER.print_address(address) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (QueueAddress("Shop.Orders", None, "shop"), "Shop.Orders@[dbo]@[shop]"),
        (QueueAddress("my]table", "a]b", "c@d"), "my]table@[a]]b]@[c@d]"),
        (QueueAddress("[Orders]", "dbo", "shop"), "[Orders]@[dbo]@[shop]"),
        (QueueAddress("a@b", "dbo", "shop"), "[a@b]@[dbo]@[shop]"),
    ],
)
def test_a_message_holds_a_sqlserver_address_as_the_transport_writes_it(
    address: QueueAddress, expected: str
) -> None:
    """A table has brackets only if the transport has no address for it."""
    assert SQLSERVER.canonical_address(address) == expected
    assert SQLSERVER.parse_address(expected) == replace(address, schema=address.schema or "dbo")


@given(IN_POSTGRESQL, IN_SQLSERVER)
@example(QueueAddress('"', "]]"), QueueAddress("]", '""'))
def test_any_address_is_read_back_as_it_was(
    postgresql: QueueAddress, sqlserver: QueueAddress
) -> None:
    """Printed, it names its schema, the default one if it had none."""
    expected = replace(sqlserver, schema=sqlserver.schema or "dbo")

    assert SQLSERVER.parse_queue(SQLSERVER.print_address(sqlserver)) == expected
    assert POSTGRESQL.parse_address(POSTGRESQL.print_address(postgresql)) == replace(
        postgresql, schema=postgresql.schema or "public"
    )
    if not postgresql.table.startswith('"'):  # a dotted, hostile or odd name needs no quotes
        assert POSTGRESQL.parse_queue(postgresql.table) == QueueAddress(postgresql.table)


@given(IN_SQLSERVER)
def test_any_sqlserver_address_in_a_message_is_read_back_or_refused(address: QueueAddress) -> None:
    """Refused only if the table has `@[` in its name, which the transport could not read either."""
    whole = replace(address, schema=address.schema or "dbo", catalog=address.catalog or "shop")
    text = SQLSERVER.canonical_address(whole)

    if "@" in whole.table and "@[" in f"[{whole.table}":
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


def test_postgresql_has_longer_delayed_tables_and_no_catalog() -> None:
    """The longest queue's `.Delayed` has 63 bytes; an address of SQL Server is refused, not cut."""
    assert POSTGRESQL.quote_address(QueueAddress("o" * 55 + ".Delayed"))
    with pytest.raises(BadAddress, match="64 UTF-8 bytes where 63"):
        POSTGRESQL.quote_address(QueueAddress("o" * 64))
    with pytest.raises(BadAddress, match="it names a catalog, which PostgreSQL does not have"):
        POSTGRESQL.quote_address(QueueAddress("orders", "dbo", "shop"))


@pytest.mark.parametrize("name", ["", "a\0b", "\ud83d"])
@pytest.mark.parametrize(
    "write", [POSTGRESQL.quote_address, SQLSERVER.quote_address, SQLSERVER.print_address]
)
def test_an_address_made_by_hand_is_checked_too(
    write: Callable[[QueueAddress], str], name: str
) -> None:
    """No identifier is written that no parser would accept."""
    for address in (QueueAddress(name), QueueAddress("orders", name)):
        with pytest.raises(BadAddress):
            write(address)


@given(st.text(st.sampled_from('a."[]@\n\0\ud800'), max_size=12))
def test_any_text_is_an_address_or_refused_with_its_reason(text: str) -> None:
    """Nothing a message holds makes the parser fail in another way, or not end."""
    for parse, write in (
        (POSTGRESQL.parse_address, POSTGRESQL.print_address),
        (POSTGRESQL.parse_queue, POSTGRESQL.print_address),
        (SQLSERVER.parse_address, SQLSERVER.canonical_address),
        (SQLSERVER.parse_queue, SQLSERVER.print_address),
    ):
        try:
            address = parse(text)
        except BadAddress as error:
            assert error.text == text  # noqa: PT017
        else:
            assert replace(parse(write(address)), schema=None) == replace(address, schema=None)


# ----- lists -----------------------------------------------------------------------------------


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
    """As options and the row of a stream hold them, whatever their names contain."""
    mine = [POSTGRESQL.print_address(address) for address in postgresql]
    others = [SQLSERVER.print_address(address) for address in sqlserver]

    assert POSTGRESQL.split_list(", ".join(mine)) == mine
    assert split_canonical(", ".join(mine)) == mine
    assert split_canonical(", ".join(others)) == others


@given(st.text(st.sampled_from('a",[]@. '), max_size=12))
def test_a_list_of_any_text_is_split_or_refused(text: str) -> None:
    """No name is empty, and nothing but commas and blanks is lost; of a stream's row nothing is."""
    assert ", ".join(split_canonical(text)) == text
    try:
        names = POSTGRESQL.split_list(text)
    except BadAddress:
        return
    assert all(names)
    assert ",".join(names).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("orders, billing", ["orders", "billing"]),
        ('or"ders,bil"ling', ['or"ders', 'bil"ling']),
        ("[a, b]@[sales], c@[x, y]@[z]", ["[a, b]@[sales]", "c@[x, y]@[z]"]),
        (" [a]],b] ,c[d,e]", ["[a]],b]", "c[d", "e]"]),
        ("a@[b,c", ["a@[b", "c"]),
    ],
)
def test_a_list_of_sqlserver_is_split_outside_brackets(text: str, found: list[str]) -> None:
    """A double quote is a character like others, and so is a bracket inside a part."""
    assert SQLSERVER.split_list(text) == found


# the rule in one pattern, which takes quadratic time where brackets are not closed; `]]` is always
# a bracket inside a name
LISTED_BY_RULE = re.compile(
    r"\s*(?:\[(?:[^\]]|\]\])*+\])?[^,@]*(?:@(?:\[(?:[^\]]|\]\])*+\])?[^,@]*)*"
)


@given(st.text(alphabet="[]@, a", max_size=14))
def test_a_list_of_sqlserver_is_split_by_the_rule(text: str) -> None:
    """At the commas outside brackets, which open where a name begins and behind an at sign."""
    expected, at = [], 0
    while at <= len(text) and (found := LISTED_BY_RULE.match(text, at)) is not None:
        expected.append(found[0].strip())
        at = found.end() + 1

    if all(expected):
        assert SQLSERVER.split_list(text) == expected
    else:
        with pytest.raises(BadAddress, match="a name is missing beside a comma"):
            SQLSERVER.split_list(text)


@pytest.mark.parametrize("part", ["@[", "a,[", "]]", "[", "@[]]", "a, @[]", " ", "x,"])
def test_a_long_list_of_sqlserver_takes_time_in_proportion(part: str) -> None:
    """Of a million characters, where the square would be beyond the time of a suite."""
    text = "[" + part * (1_000_000 // len(part)) + "x"

    assert len(SQLSERVER.split_list(text)) >= 1
