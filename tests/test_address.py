"""Addresses: whatever a name holds, it is read back as it was, and never leaves its quotes."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import (
    QueueAddress,
    message_sqlserver,
    name_postgresql,
    name_sqlserver,
    parse_postgresql,
    parse_sqlserver,
    print_postgresql,
    print_sqlserver,
    quote_postgresql,
    quote_sqlserver,
    split_list,
    split_list_sqlserver,
)

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


POSTGRESQL = st.builds(QueueAddress, names(utf8=55), st.none() | names(utf8=63))
SQLSERVER = st.builds(
    QueueAddress, names(utf16=128), st.none() | names(utf16=128), st.none() | names(utf16=128)
)

HOSTILE = [
    'orders"; DROP TABLE orders; --',
    "orders]; DROP TABLE orders; --",
    '"',
    '""',
    '"""',
    "]",
    "]]",
    "[",
    "[]",
    "[a",
    "[a]",
    "[a]]",
    "@",
    "a@b",
    ".",
    "Shop.Orders",
    " leading blanks",
    "line\nbreak",
    "🚀",
    "%s{queue}$1",
    "'; --",
    "\\",
]

# ----- PostgreSQL ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"public"."orders"', QueueAddress("orders", "public")),
        ('"public"."Shop.Orders"', QueueAddress("Shop.Orders", "public")),
        ('"Shop.Orders"', QueueAddress("Shop.Orders")),
        ("orders", QueueAddress("orders")),
        ("sales.orders", QueueAddress("orders", "sales")),
        ('sales."Shop.Orders"', QueueAddress("Shop.Orders", "sales")),
        ('"sa.les".orders', QueueAddress("orders", "sa.les")),
        ('"say ""hi"""."a"', QueueAddress("a", 'say "hi"')),
        ('""""', QueueAddress('"')),
        (" Orders ", QueueAddress(" Orders ")),
        ("orders@[dbo]", QueueAddress("orders@[dbo]")),
    ],
)
def test_a_postgresql_address_is_split_at_the_dot_outside_quotes(
    text: str, expected: QueueAddress
) -> None:
    """Quotes are optional, doubled inside, and hide dots."""
    assert parse_postgresql(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the table is empty"),
        ('""', "the table is empty"),
        ('""."orders"', "the schema is empty"),
        (".orders", "the schema is empty"),
        ("sales.", "the table is empty"),
        ("or\0ders", "the table holds a NUL character"),
        ("or\ud83dders", "the table holds half of a surrogate pair"),
        ('s."orders', "the quote that opens at character 3 is not closed"),
        ('"orders""', "the quote that opens at character 1 is not closed"),
        (
            '"orders"; DROP TABLE x',
            (
                "text follows the quote that closes at character 8; "
                "double the quote if it belongs to the name"
            ),
        ),
        (
            'or"ders',
            (
                "the quote at character 3 stands inside a part that does not begin with one; "
                "put the whole part in quotes and double those inside"
            ),
        ),
        (
            "shop.public.orders",
            "it has 3 parts where 2 are the most; put a part that holds '.' in quotes",
        ),
        ("o" * 56, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("ä" * 28, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("s" * 64 + ".orders", "the schema has 64 UTF-8 bytes where 63 are the most"),
    ],
)
def test_a_postgresql_address_that_cannot_be_read_says_why(text: str, reason: str) -> None:
    """The error holds the text and the reason."""
    with pytest.raises(BadAddress) as caught:
        parse_postgresql(text)

    assert caught.value.args == (text, reason)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", QueueAddress("orders")),
        ("Shop.Orders", QueueAddress("Shop.Orders")),
        ('"sales"."Shop.Orders"', QueueAddress("Shop.Orders", "sales")),
        ('or"ders', QueueAddress('or"ders')),
        ("[dbo]", QueueAddress("[dbo]")),
        (".", QueueAddress(".")),
    ],
)
def test_a_user_of_postgresql_writes_a_table_name_or_an_address(
    text: str, expected: QueueAddress
) -> None:
    """Only text that begins with a quote is an address; dots belong to the name."""
    assert name_postgresql(text) == expected


@given(POSTGRESQL)
def test_any_postgresql_address_is_read_back_as_it_was(address: QueueAddress) -> None:
    """Printed, it names its schema, the default one if it had none."""
    back = parse_postgresql(print_postgresql(address, "public"))

    assert back == replace(address, schema=address.schema or "public")


@given(POSTGRESQL)
def test_no_name_leaves_its_quotes_on_postgresql(address: QueueAddress) -> None:
    """The identifier is two quoted names and nothing else."""
    quoted = quote_postgresql(address)

    found = re.fullmatch(r'"((?:[^"]|"")+)"\."((?:[^"]|"")+)"', quoted)
    assert found is not None
    unquoted = [name.replace('""', '"') for name in found.groups()]
    assert unquoted == [address.schema or "public", address.table]


@given(names(utf8=55))
def test_a_postgresql_table_name_without_a_first_quote_is_taken_whole(name: str) -> None:
    """A user need not know how to quote a dotted, hostile or odd name."""
    if not name.startswith('"'):
        assert name_postgresql(name) == QueueAddress(name)


def test_a_postgresql_delayed_table_may_be_longer_than_a_queue() -> None:
    """The longest queue's `.Delayed` has 63 bytes: quoted, but not a queue to receive from."""
    assert quote_postgresql(QueueAddress("o" * 55 + ".Delayed"))
    with pytest.raises(BadAddress, match="64 UTF-8 bytes where 63"):
        quote_postgresql(QueueAddress("o" * 64))


def test_postgresql_has_no_catalog() -> None:
    """An address made for SQL Server is refused, not cut."""
    with pytest.raises(BadAddress, match="it names a catalog, which PostgreSQL does not have"):
        quote_postgresql(QueueAddress("orders", "dbo", "shop"))


# ----- SQL Server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", QueueAddress("orders")),
        ("Shop.Orders@[dbo]", QueueAddress("Shop.Orders", "dbo")),
        ("orders@dbo", QueueAddress("orders", "dbo")),
        ("orders@my.schema@my.catalog", QueueAddress("orders", "my.schema", "my.catalog")),
        ("orders@[]@[shop]", QueueAddress("orders", None, "shop")),
        ("orders@[]", QueueAddress("orders")),
        ("orders@[a@b]@[c@d]", QueueAddress("orders", "a@b", "c@d")),
        ("Shop.Orders@[dbo]@[shop]", QueueAddress("Shop.Orders", "dbo", "shop")),
        ("orders@[my]]schema]", QueueAddress("orders", "my]schema")),
        ("orders@my]schema", QueueAddress("orders", "my]schema")),
        ("my]table@[dbo]", QueueAddress("my]table", "dbo")),
        ("my[table@[dbo]", QueueAddress("my[table", "dbo")),
        ("[a@b]@[dbo]", QueueAddress("a@b", "dbo")),
        ("[orders]", QueueAddress("[orders]")),
        ("[orders]@[dbo]", QueueAddress("[orders]", "dbo")),
        ("[a]]@[dbo]", QueueAddress("[a]]", "dbo")),
        ("[a@[dbo]@[shop]", QueueAddress("[a", "dbo", "shop")),
        ("[]@[dbo]", QueueAddress("[]", "dbo")),
        ('"public"."orders"', QueueAddress('"public"."orders"')),
    ],
)
def test_a_sqlserver_address_is_split_at_the_at_signs_outside_brackets(
    text: str, expected: QueueAddress
) -> None:
    """The table keeps its brackets, as in the transport. Others are optional, and hide `@`."""
    assert parse_sqlserver(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the table is empty"),
        ("@[dbo]", "the table is empty"),
        ("orders@", "the schema is empty"),
        ("orders@@[shop]", "the schema is empty"),
        ("orders@[dbo]@", "the catalog is empty"),
        ("or\0ders", "the table holds a NUL character"),
        ("orders@[\udc00]", "the schema holds half of a surrogate pair"),
        ("orders@[dbo", "the bracket that opens at character 8 is not closed"),
        ("orders@[dbo]]", "the bracket that opens at character 8 is not closed"),
        (
            "orders@[dbo]; DROP TABLE x",
            (
                "text follows the bracket that closes at character 12; "
                "double the bracket if it belongs to the name"
            ),
        ),
        (
            "a@b@c@d",
            "it has 4 parts where 3 are the most; put a part that holds '@' in brackets",
        ),
        ("o" * 129, "the table has 129 UTF-16 code units where 128 are the most"),
        ("🚀" * 65, "the table has 130 UTF-16 code units where 128 are the most"),
        (
            "orders@" + "s" * 129,
            "the schema has 129 UTF-16 code units where 128 are the most",
        ),
    ],
)
def test_a_sqlserver_address_that_cannot_be_read_says_why(text: str, reason: str) -> None:
    """The error holds the text and the reason."""
    with pytest.raises(BadAddress) as caught:
        parse_sqlserver(text)

    assert caught.value.args == (text, reason)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Shop.Orders", QueueAddress("Shop.Orders")),
        ("Shop.Orders@[sales]", QueueAddress("Shop.Orders", "sales")),
        ("[a@b]", QueueAddress("a@b")),
        ("[orders]@[dbo]", QueueAddress("orders", "dbo")),
        ("[[orders]]]@[dbo]", QueueAddress("[orders]", "dbo")),
        ("my]table", QueueAddress("my]table")),
        ('"public"."orders"', QueueAddress('"public"."orders"')),
    ],
)
def test_a_user_of_sqlserver_writes_a_table_name_or_an_address(
    text: str, expected: QueueAddress
) -> None:
    """The table may have brackets, unlike in a message; dots belong to the name."""
    assert name_sqlserver(text) == expected


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
    assert print_sqlserver(address) == expected


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
    assert message_sqlserver(address) == expected
    assert parse_sqlserver(expected) == replace(address, schema=address.schema or "dbo")


@given(SQLSERVER)
def test_any_sqlserver_address_is_read_back_as_it_was(address: QueueAddress) -> None:
    """Printed, it names its schema, the default one if it had none."""
    expected = replace(address, schema=address.schema or "dbo")

    assert name_sqlserver(print_sqlserver(address, "dbo")) == expected


@given(SQLSERVER)
def test_any_sqlserver_address_in_a_message_is_read_back_or_refused(address: QueueAddress) -> None:
    """Refused only if the table has `@[` in its name, which the transport could not read either."""
    whole = replace(address, schema=address.schema or "dbo", catalog=address.catalog or "shop")
    text = message_sqlserver(whole)

    if "@" in whole.table and "@[" in f"[{whole.table}":
        with pytest.raises(BadAddress):
            parse_sqlserver(text)
    else:
        assert parse_sqlserver(text) == whole


@given(SQLSERVER)
def test_no_name_leaves_its_brackets_on_sqlserver(address: QueueAddress) -> None:
    """The identifier is two or three bracketed names and nothing else."""
    quoted = quote_sqlserver(address)

    part = r"\[((?:[^\]]|\]\])+)\]"
    found = re.fullmatch(rf"(?:{part}\.)?{part}\.{part}", quoted)
    assert found is not None
    unquoted = [name and name.replace("]]", "]") for name in found.groups()]
    assert unquoted == [address.catalog, address.schema or "dbo", address.table]


# ----- both ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(name: str) -> None:
    """As table and as schema, on both databases."""
    address = QueueAddress(name, name)

    assert parse_postgresql(print_postgresql(address)) == address
    assert name_sqlserver(print_sqlserver(address)) == address
    assert parse_sqlserver(message_sqlserver(address)) == address


@pytest.mark.parametrize("name", ["", "a\0b", "\ud83d"])
@pytest.mark.parametrize("write", [quote_postgresql, quote_sqlserver, print_sqlserver])
def test_an_address_made_by_hand_is_checked_too(write: object, name: str) -> None:
    """No identifier is written that no parser would have let in."""
    assert callable(write)
    with pytest.raises(BadAddress):
        write(QueueAddress(name))
    with pytest.raises(BadAddress):
        write(QueueAddress("orders", name))


@given(st.text(st.sampled_from('a."[]@\n\0\ud800'), max_size=12))
def test_any_text_is_an_address_or_refused_with_its_reason(text: str) -> None:
    """Nothing a message holds makes the parser fail in another way, or not end."""
    for parse, write in (
        (parse_postgresql, print_postgresql),
        (name_postgresql, print_postgresql),
        (parse_sqlserver, message_sqlserver),
        (name_sqlserver, print_sqlserver),
    ):
        try:
            address = parse(text)
        except BadAddress as error:
            assert error.args[0] == text  # noqa: PT017
        else:
            assert replace(parse(write(address)), schema=None) == replace(address, schema=None)


@given(st.lists(POSTGRESQL, min_size=1, max_size=5))
def test_a_list_of_canonical_addresses_is_split_as_it_was_joined(
    addresses: list[QueueAddress],
) -> None:
    """Whatever their names hold."""
    names = [print_postgresql(address) for address in addresses]

    assert split_list(", ".join(names)) == names


@given(st.text(st.sampled_from('a", ')))
def test_a_list_of_any_text_is_split_or_refused(text: str) -> None:
    """No name is empty, and nothing but commas and blanks is lost."""
    try:
        names = split_list(text)
    except BadAddress:
        return

    assert all(names)
    assert ",".join(names).replace(" ", "") == text.replace(" ", "")


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
        assert split_list_sqlserver(text) == expected
    else:
        with pytest.raises(BadAddress):
            split_list_sqlserver(text)


@pytest.mark.parametrize("part", ["@[", "a,[", "]]", "[", "@[]]", "a, @[]", " ", "x,"])
def test_a_long_list_of_sqlserver_takes_time_in_proportion(part: str) -> None:
    """Of a million characters, where the square would be beyond the time of a suite."""
    text = "[" + part * (1_000_000 // len(part)) + "x"

    assert len(split_list_sqlserver(text)) >= 1
