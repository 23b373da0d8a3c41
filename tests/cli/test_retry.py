"""`sqlqueue retry`: which failed messages return to their queues, and why others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, MESSAGE_ID, TIME_OF_FAILURE, dumps

from .database import address, messages

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def error(place: Place, run: Run) -> str:
    """Give the address of an error queue with three messages of two kinds from two queues."""
    for name in ("error", "Shop.Sales", "Shop.Bills"):
        assert run("create", address(place, name)).code == 0
    failures = [("Shop.Sales", "Late"), ("Shop.Sales", "Late"), ("Shop.Bills", "Bad")]
    for number, (source, kind) in enumerate(failures):
        fail(place, address(place, source), number, kind)
    return address(place, "error")


def fail(place: Place, source: str, number: int, kind: str = "Bad") -> None:
    """Put a message into the error queue, as an endpoint does."""
    headers = {
        MESSAGE_ID: f"m-{number}",
        f"{EXCEPTION_INFO}ExceptionType": f"System.{kind}",
        TIME_OF_FAILURE: f"2026-06-30 1{number}:00:00:000000 Z",
        FAILED_Q: source,
    }
    put = "(id, headers, body) VALUES (gen_random_uuid(), %s, ''::bytea)"
    place.sql(f"INSERT INTO {address(place, 'error')} {put}", dumps(headers))


def ids(place: Place, table: str) -> list[str | None]:
    """What a queue holds."""
    return [headers[MESSAGE_ID] for headers, _ in messages(place, address(place, table))]


def test_all_messages_return_to_the_queues_where_they_failed(
    run: Run, error: str, place: Place
) -> None:
    """After a yes; it shows how many of which exception go where, and then has nothing left."""
    refused = run("retry", error, "--all", stdin="n\n")
    kept = len(ids(place, "error"))
    returned = run("retry", error, "--all", "--yes")

    assert (refused.code, kept) == (1, 3)
    assert (returned.code, returned.err) == (0, "")
    lines = [line.split() for line in returned.out.splitlines()]
    assert ["2", address(place, "Shop.Sales"), "System.Late"] in lines
    assert ["1", address(place, "Shop.Bills"), "System.Bad"] in lines
    assert f"This will return 3 messages of {error} to 2 queues." in returned.out
    assert returned.out.endswith("3 messages returned\n")
    assert [ids(place, "Shop.Sales"), ids(place, "Shop.Bills")] == [["m-0", "m-1"], ["m-2"]]
    assert ids(place, "error") == []
    assert run("retry", error, "--all") == (0, "no messages to return\n0 messages returned\n", "")


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["m-1"], ["m-0", "m-2"]),
        (["m-0", "m-2"], ["m-1"]),
        (["--all", "--limit", "2"], ["m-2"]),
        (["--exception", "Late", "--limit", "1"], ["m-1", "m-2"]),
        (["--exception", "Late"], ["m-2"]),
        (["--exception", "System.Bad"], ["m-0", "m-1"]),
        (["--since", "2026-06-30T13:00:00+02:00"], ["m-0"]),
        (["--until", "2026-06-30T11:00:00Z", "--exception", "Late"], ["m-1", "m-2"]),
        (["--failed-queue", "SALES"], ["m-2"]),
    ],
)
def test_messages_are_chosen_by_id_exception_time_and_queue(
    run: Run, error: str, place: Place, words: list[str], left: list[str]
) -> None:
    """The others stay."""
    own = [word.replace("SALES", address(place, "Shop.Sales")) for word in words]

    assert run("retry", error, *own, "--yes").code == 0
    assert ids(place, "error") == left


def test_programs_read_what_was_returned_and_why_the_rest_stays(
    run: Run, error: str, place: Place
) -> None:
    """In one JSON line."""
    fail(place, "nowhere\x1b[2J", 3)

    returned = run("retry", error, "m-2", "m-3", "m-9", "--yes", "--json")

    (found,) = returned.objects
    chosen = {"failedQueue": address(place, "Shop.Bills"), "exception": "System.Bad", "messages": 1}
    assert returned.code == 1
    assert [found["queue"], found["returned"]] == [error, 1]
    assert found["chosen"] == [chosen]
    assert found["missing"] == ["m-9"]
    ((reason, number),) = found["staying"].items()
    assert number == 1
    assert "nowhere" in reason


def test_errors_say_why_messages_stay(run: Run, error: str, place: Place) -> None:
    """An absent queue, a dotted name without its schema, an absent id; no control characters."""
    fail(place, '"nowhere\x1b[2J"', 3)
    fail(place, "Shop.Sales", 4)

    absent = run("retry", error, "m-3", "m-9", "--yes")
    dotted = run("retry", error, "m-4", "--yes")

    assert (absent.code, dotted.code) == (1, 1)
    assert absent.out.endswith("0 messages returned\n")
    assert "1 message cannot be returned: " in absent.err
    assert "this login cannot insert into a queue " in absent.err
    assert " in postgresql://" in absent.err
    assert "not in the error queue: m-9" in absent.err
    assert "\x1b" not in absent.err
    assert '\'Shop.Sales\' is read as schema and table "Shop"."Sales".' in dotted.err
    assert 'contains a dot, write "public"."Shop.Sales", with its schema' in dotted.err
    assert len(ids(place, "error")) == 5


def test_a_reason_reads_well_for_one_message_and_for_many(
    run: Run, error: str, place: Place
) -> None:
    """It has no pronoun that would have to agree with the number."""
    put = f"INSERT INTO {error} (id, headers, body) VALUES (gen_random_uuid(), %s, ''::bytea)"
    for headers in ("poison", "poison", "{}"):
        place.sql(put, headers)
    fail(place, error, 3)

    stayed = run("retry", error, "--all", "--yes").err.splitlines()

    reasons = [line.partition(" (")[0] for line in stayed]
    assert sorted(reasons) == [
        "1 message cannot be returned: no header NServiceBus.FailedQ, so the source is unknown",
        "1 message cannot be returned: the header NServiceBus.FailedQ names the error queue itself",
        "2 messages cannot be returned: corrupt headers",
    ]
