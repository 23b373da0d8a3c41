"""What the package says and reads differently for the two databases, outside of their dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import stamina
from hypothesis import example, given
from hypothesis import strategies as st
from test_address import names

from sqlq_spark import errors
from sqlq_spark.cli import options
from sqlq_spark.database import sessions
from sqlq_spark.errors import BadAddress
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.wire.address import (
    QueueAddress,
    name_sqlserver,
    print_postgresql,
    print_sqlserver,
    split_canonical,
    split_list_sqlserver,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

POSTGRESQL, SQLSERVER = "postgresql://db/shop", "sqlserver://db:1433/shop"

# ---------------------------------------------------------------- lists of names


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
def test_a_list_of_names_of_sql_server_is_split_outside_brackets(
    text: str, found: list[str]
) -> None:
    """A double quote is a character like others, and so is a bracket inside a part."""
    assert split_list_sqlserver(text) == found


@pytest.mark.parametrize("text", ["", "a,", ",a", "a, ,b"])
def test_a_name_that_is_missing_in_a_list_is_told(text: str) -> None:
    """A comma too many is more likely a name too few."""
    with pytest.raises(BadAddress, match="a name is missing beside a comma"):
        split_list_sqlserver(text)


def test_queues_are_read_in_the_notation_of_the_url() -> None:
    """A comma inside the quotes of either database belongs to the name."""
    mine = SourceOptions.parse({"url": SQLSERVER, "queues": '[a, b]@[sales], o"r"'})
    other = SourceOptions.parse({"url": POSTGRESQL, "queues": '"sales"."a, b", orders'})

    assert mine.addresses == (QueueAddress("a, b", "sales"), QueueAddress('o"r"'))
    assert mine.names == ("a, b@[sales]", 'o"r"@[dbo]')
    assert other.names == ('"sales"."a, b"', '"public"."orders"')


ADDRESSES = st.lists(
    st.builds(QueueAddress, names(utf16=128), st.none() | names(utf16=128)), min_size=1, max_size=4
)


@given(ADDRESSES)
@example([QueueAddress("a, b"), QueueAddress("c@[d], e", "f]@["), QueueAddress("[x")])
def test_the_queues_of_a_stream_are_found_again_on_sql_server(
    addresses: list[QueueAddress],
) -> None:
    """As its row keeps them; whatever their names hold, commas and brackets too."""
    printed = [print_sqlserver(address) for address in addresses]

    assert split_canonical(", ".join(printed)) == printed


def test_a_catalog_in_a_streams_queues_is_kept() -> None:
    """A queue of another database is one address."""
    printed = [print_sqlserver(QueueAddress("a, b", "s", "c, d]")), "e@[dbo]"]

    assert split_canonical(", ".join(printed)) == printed
    assert [name_sqlserver(each).table for each in printed] == ["a, b", "e"]


@given(
    st.lists(
        st.builds(QueueAddress, names(utf8=55), st.none() | names(utf8=63)), min_size=1, max_size=4
    )
)
def test_the_queues_of_a_stream_are_found_again_on_postgresql(
    addresses: list[QueueAddress],
) -> None:
    """By the same law."""
    printed = [print_postgresql(address) for address in addresses]

    assert split_canonical(", ".join(printed)) == printed


@given(st.text(st.sampled_from('a",[]@. '), max_size=12))
def test_any_other_text_of_a_streams_queues_is_one_name(text: str) -> None:
    """Nothing of it is lost."""
    assert ", ".join(split_canonical(text)) == text


# ---------------------------------------------------------------- how to fix it


def test_a_missing_url_is_asked_for_with_both_databases() -> None:
    """Either would do."""
    with pytest.raises(errors.MissingOption) as found:
        SourceOptions.parse({"queue": "orders"})

    assert "postgresql://user@host:5432/database" in str(found.value)
    assert "sqlserver://user@host:1433/database" in str(found.value)


# ---------------------------------------------------------------- names, passwords, retries


@pytest.mark.parametrize("name", ["jobs ", " jobs", "jobs\t"])
def test_a_write_is_not_named_with_a_blank_at_its_end(name: str) -> None:
    """SQL Server would take it for the write without: its batches would count as sent."""
    raw = {"url": SQLSERVER, "queue": "q", "txnAppId": name, "txnVersion": "1"}

    with pytest.raises(errors.BadOption, match="a name without blanks at its ends"):
        SinkOptions.parse(raw)


@pytest.mark.parametrize("url", [POSTGRESQL, SQLSERVER])
def test_a_password_of_the_environment_is_that_of_either_database(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the option of the data source; nothing is added where there is none."""
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush&;1")
    with_one = options.database_options(url)
    monkeypatch.delenv("SQLQUEUE_PASSWORD")
    without = options.database_options(url)

    assert with_one.url == f"{url}?password=hush%26%3B1"
    assert without.url == url
    assert "hush" not in repr(with_one)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:own@localhost/shop",
        "postgresql://localhost/shop?user=a&password=own",
        "sqlserver://user:own@localhost:1433/shop",
    ],
)
def test_a_password_in_the_url_wins_over_that_of_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said last and by hand is meant; so it is for a job."""
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush")

    assert options.database_options(url).url == url


@pytest.mark.parametrize(
    "url",
    ["postgresql://[::1]:5432/shop?application_name=a@b", "postgresql://h:5432/a?passfile=/x:y@z"],
)
def test_what_only_looks_like_a_password_is_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port and an @ behind it."""
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush")

    assert options.database_options(url).url == f"{url}&password=hush"


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (errors.LockTimedOut("receive", 30, "…"), sessions.ATTEMPTS),
        (errors.LogFull("load", "9002", "…"), sessions.ATTEMPTS),
        (errors.ServerShort("load", "1105", "…"), sessions.ATTEMPTS),
        (errors.Deadlock("receive", "…"), sessions.ATTEMPTS),
        (errors.ConnectionLost("commit", "…"), sessions.ATTEMPTS),
        (errors.TimedOut("receive", 30, "…"), 1),
        (errors.StatementRefused("load", "2628", "…"), 1),
        (errors.StatementFailed("load", "824", "…"), 1),
    ],
)
def test_what_may_be_over_soon_is_tried_again(
    fault: errors.DatabaseFailure, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is."""
    seen: list[int] = []

    def work(_: object) -> None:
        seen.append(1)
        raise fault

    session = sessions.Session(SourceOptions.parse({"url": SQLSERVER, "queue": "q"}), "test")
    monkeypatch.setattr(session, "open", lambda: None)

    with pytest.raises(type(fault)):
        session.do(work)

    assert len(seen) == times


@pytest.fixture
def _no_pauses() -> Iterator[None]:
    """Retry as often as in earnest, without the pauses."""
    with stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True):
        yield


@pytest.mark.parametrize("option", ["txnAppId", "stateSchema", "messageType"])
def test_half_of_a_surrogate_pair_is_refused_as_an_option(option: str) -> None:
    """No driver can send it; the shell of a machine may hand one over."""
    raw = {"url": SQLSERVER, "queue": "q", "txnAppId": "a", "txnVersion": "1", option: "x\udcff"}

    with pytest.raises(errors.BadOption, match=f"option {option} is "):
        SinkOptions.parse(raw)
