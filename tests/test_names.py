"""How each database writes names, asked of one value for each dialect."""

from __future__ import annotations

import pickle

import pytest

from sqlq_spark.errors import BadOption
from sqlq_spark.options.names import DIALECTS, names_of, other_password_variables
from sqlq_spark.wire.address import POSTGRESQL, SQLSERVER, Names, QueueAddress


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("postgresql://host/shop", POSTGRESQL),
        ("POSTGRES://host/shop", POSTGRESQL),
        ("sqlserver://host:1433/shop", SQLSERVER),
    ],
)
def test_a_urls_scheme_names_the_dialect(url: str, names: Names) -> None:
    """In any case."""
    assert names_of(url) is names


@pytest.mark.parametrize("url", ["mysql://user:hush@host/shop", "user:hush@host", ""])
def test_an_unknown_scheme_raises_without_the_password(url: str) -> None:
    """The error shows the scheme and nothing behind it."""
    with pytest.raises(BadOption, match="option url") as refused:
        names_of(url)

    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("names", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("address", [QueueAddress("a, b"), QueueAddress('q]"', 's".[')])
def test_a_printed_address_is_read_back(names: Names, address: QueueAddress) -> None:
    """Whatever quotes and commas its names hold."""
    printed = names.print_address(address)
    expected = names.qualify(address)

    assert names.parse_address(printed) == expected
    assert names.parse_queue(printed) == expected
    assert names.parse_table(printed) == expected


@pytest.mark.parametrize("names", DIALECTS.values(), ids=DIALECTS)
def test_names_are_equal_after_pickling(names: Names) -> None:
    """Spark pickles options, which hold them."""
    assert pickle.loads(pickle.dumps(names)) == names  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("url", "others"),
    [
        ("postgresql://host/shop", set()),
        ("sqlserver://host/shop", {"PGPASSWORD"}),
        ("", {"PGPASSWORD"}),
    ],
)
def test_a_password_of_another_database_is_known(url: str, others: set[str]) -> None:
    """PGPASSWORD is for PostgreSQL alone."""
    assert other_password_variables(url) == others


@pytest.mark.parametrize(
    ("names", "text", "other"),
    [
        (POSTGRESQL, "orders@machine", True),
        (POSTGRESQL, '"a@b"', False),
        (POSTGRESQL, "Shop.Orders", False),
        (POSTGRESQL, '"sales"."orders"', False),
        (SQLSERVER, '"sales"."orders"', True),
        (SQLSERVER, "Shop.Orders@[sales]", False),
    ],
)
def test_an_address_in_another_notation_is_recognised(
    names: Names,
    text: str,
    other: bool,  # noqa: FBT001 - a case of the table
) -> None:
    """The error of a return to source then says so."""
    assert names.is_of_other_database(text) is other
