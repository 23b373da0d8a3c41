"""What the package says and reads differently for the two databases, outside of their dialects."""

from __future__ import annotations

import pytest
import stamina

from sqlq_spark import errors
from sqlq_spark.cli.options import Shared
from sqlq_spark.database import sessions
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.wire.address import QueueAddress

POSTGRESQL, SQLSERVER = "postgresql://db/shop", "sqlserver://db:1433/shop"


def test_queues_are_read_in_the_notation_of_the_url() -> None:
    """A comma inside the quotes of either database belongs to the name."""
    mine = SourceOptions.parse({"url": SQLSERVER, "queues": '[a, b]@[sales], o"r"'})
    other = SourceOptions.parse({"url": POSTGRESQL, "queues": '"sales"."a, b", orders'})

    assert mine.addresses == (QueueAddress("a, b", "sales"), QueueAddress('o"r"'))
    assert mine.names == ("a, b@[sales]", 'o"r"@[dbo]')
    assert other.names == ('"sales"."a, b"', '"public"."orders"')


@pytest.mark.parametrize(
    ("url", "added"),
    [
        (POSTGRESQL, "?password=hush%26%3B1"),
        (SQLSERVER, "?password=hush%26%3B1"),
        # a port and an @ behind it only look like a password
        ("postgresql://[::1]:5432/shop?application_name=a@b", "&password=hush%26%3B1"),
        ("postgresql://h:5432/a?passfile=/x:y@z", "&password=hush%26%3B1"),
        # a password in the url wins
        ("postgresql://user:own@localhost/shop", ""),
        ("postgresql://localhost/shop?user=a&password=own", ""),
        ("sqlserver://user:own@localhost:1433/shop", ""),
    ],
)
def test_a_password_of_the_environment_is_added_to_a_url_without_one(
    url: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of either database; the options never show it."""
    without = Shared(url=url).database()
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush&;1")
    found = Shared(url=url).database()

    assert (without.url, found.url) == (url, url + added)
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (errors.LockTimedOut(statement="receive", seconds=30, reason="…"), sessions.ATTEMPTS),
        (errors.LogFull(statement="load", code="9002", reason="…"), sessions.ATTEMPTS),
        (errors.Deadlock(statement="receive", reason="…"), sessions.ATTEMPTS),
        (errors.ServerShort(statement="load", code="1105", reason="…"), sessions.ATTEMPTS),
        (errors.ConnectionLost(statement="commit", reason="…"), sessions.ATTEMPTS),
        (errors.TimedOut(statement="receive", seconds=30, reason="…"), 1),
        (errors.StatementRefused(statement="load", code="2628", reason="…"), 1),
        (errors.StatementFailed(statement="load", code="824", reason="…"), 1),
    ],
)
def test_a_fault_that_may_pass_is_tried_again(
    fault: errors.DatabaseFailure, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is."""
    seen: list[int] = []

    def work(_: object) -> None:
        seen.append(1)
        raise fault

    session = sessions.StateSession(SourceOptions.parse({"url": SQLSERVER, "queue": "q"}), "test")
    monkeypatch.setattr(session, "open", lambda: None)

    with (
        stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True),  # no pauses
        pytest.raises(type(fault)),
    ):
        session.run_with_retries(work)

    assert len(seen) == times


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("txnAppId", name) for name in ("jobs ", " jobs", "jobs\t", "x\udcff")),
        ("stateSchema", "x\udcff"),
        ("messageType", "x\udcff"),
    ],
)
def test_an_option_that_sql_server_would_change_is_refused(option: str, value: str) -> None:
    """It compares names without blanks at their ends, and no driver sends half a surrogate pair."""
    raw = {"url": SQLSERVER, "queue": "q", "txnAppId": "a", "txnVersion": "1", option: value}

    expected = "" if "x" in value else "a name without blanks at its ends"
    with pytest.raises(errors.BadOption, match=f"option {option} is .*{expected}"):
        SinkOptions.parse(raw)
