"""The command `retry`, on a real database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import test_cli

from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, MESSAGE_ID, TIME_OF_FAILURE, dumps

if TYPE_CHECKING:
    from conftest import Place

run = test_cli.run


@pytest.fixture
def error(place: Place, run: Any) -> str:
    """Give the address of an error queue with three messages of two kinds from two queues."""
    names = {name: f'"{place.schema}"."{name}"' for name in ("error", "Shop.Sales", "Shop.Bills")}
    for name in names.values():
        assert run("create", name)[0] == 0
    for at, (source, kind) in enumerate(
        [("Shop.Sales", "Late"), ("Shop.Sales", "Late"), ("Shop.Bills", "Bad")]
    ):
        put(place, names["error"], names[source], kind, at)
    return names["error"]


def put(place: Place, error: str, source: str, kind: str, number: int) -> None:
    """Fail a message."""
    headers = {
        MESSAGE_ID: f"m-{number}",
        f"{EXCEPTION_INFO}ExceptionType": f"System.{kind}",
        TIME_OF_FAILURE: f"2026-06-30 1{number}:00:00:000000 Z",
        FAILED_Q: source,
    }
    text = f"INSERT INTO {error} (id, headers, body) VALUES (gen_random_uuid(), %s, ''::bytea)"
    place.sql(text, dumps(headers))


def ids(place: Place, table: str) -> list[str]:
    """What a queue holds."""
    found = place.sql(f'SELECT headers FROM "{place.schema}"."{table}" ORDER BY seq')
    return [str(json.loads(headers)[MESSAGE_ID]) for (headers,) in found]


def test_all_go_back_to_where_they_failed(run: Any, error: str, place: Place) -> None:
    """It says how many of which, and where to; a second time there is nothing to do."""
    code, text, told = run("retry", error, "--all", "--yes")

    assert (code, told) == (0, "")
    lines = [line.split() for line in text.splitlines()]
    assert ["2", f'"{place.schema}"."Shop.Sales"', "System.Late"] in lines
    assert ["1", f'"{place.schema}"."Shop.Bills"', "System.Bad"] in lines
    assert f"This will return 3 messages of {error} to 2 queues." in text
    assert text.endswith("3 messages returned\n")
    assert [ids(place, "Shop.Sales"), ids(place, "Shop.Bills")] == [["m-0", "m-1"], ["m-2"]]
    assert ids(place, "error") == []
    code, text, _ = run("retry", error, "--all")
    assert (code, text) == (0, "no messages to return\n0 messages returned\n")


def test_it_asks_and_a_no_changes_nothing(run: Any, error: str, place: Place) -> None:
    """Nothing is returned without a yes."""
    code, _, _ = run("retry", error, "--all", stdin="n\n")

    assert code == 1
    assert len(ids(place, "error")) == 3


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["m-1"], ["m-0", "m-2"]),
        (["m-0", "m-2"], ["m-1"]),
        (["--exception", "Late"], ["m-2"]),
        (["--exception", "System.Bad"], ["m-0", "m-1"]),
        (["--since", "2026-06-30T13:00:00+02:00"], ["m-0"]),
        (["--until", "2026-06-30T11:00:00Z", "--exception", "Late"], ["m-1", "m-2"]),
    ],
)
def test_some_are_chosen(
    run: Any, error: str, place: Place, words: list[str], left: list[str]
) -> None:
    """By id, exception and time."""
    assert run("retry", error, *words, "--yes")[0] == 0
    assert ids(place, "error") == left


def test_those_of_one_queue_are_chosen(run: Any, error: str, place: Place) -> None:
    """By its address."""
    sales = f'"{place.schema}"."Shop.Sales"'

    assert run("retry", error, "--failed-queue", sales, "--yes")[0] == 0
    assert ids(place, "error") == ["m-2"]


def test_programs_get_one_json_line(run: Any, error: str, place: Place) -> None:
    """With what was chosen, returned, and why the rest stays."""
    put(place, error, "nowhere\x1b[2J", "Bad", 3)

    code, text, _ = run("retry", error, "m-2", "m-3", "m-9", "--yes", "--json")

    told = json.loads(text)
    bills = f'"{place.schema}"."Shop.Bills"'
    assert code == 1
    assert [told["queue"], told["returned"], told["skipped"]] == [error, 1, 0]
    assert told["chosen"] == [
        {"failedQueue": bills, "exception": "System.Bad", "messages": 1},
    ]
    assert told["missing"] == ["m-9"]
    ((reason, count),) = told["staying"].items()
    assert count == 1
    assert "nowhere" in reason


def test_what_stays_is_told_and_the_exit_code_is_1(run: Any, error: str, place: Place) -> None:
    """On a queue that is none, and an id that is not there; nothing moves a terminal's cursor."""
    put(place, error, '"nowhere\x1b[2J"', "Bad", 3)

    code, text, told = run("retry", error, "m-3", "m-9", "--yes")

    assert code == 1
    assert text.endswith("0 messages returned\n")
    assert "1 message cannot be returned: " in told
    assert "this login cannot insert into a queue " in told
    assert " in postgresql://" in told
    assert "not in the error queue: m-9" in told
    assert "\x1b" not in told
    assert len(ids(place, "error")) == 4


def test_a_dotted_name_that_someone_wrote_is_told_how_it_is_written(
    run: Any, error: str, place: Place
) -> None:
    """PostgreSQL reads its first part as a schema."""
    put(place, error, "Shop.Sales", "Bad", 3)

    code, _, told = run("retry", error, "m-3", "--yes")

    assert code == 1
    assert '\'Shop.Sales\' is read as schema and table "Shop"."Sales".' in told
    assert 'contains a dot, write "public"."Shop.Sales", with its schema' in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "option ID is missing: give the messages to return"),
        (["--all", "m-1"], "option --all is 'true': expected no other choice of messages"),
        (["--since", "noon"], "option --since is 'noon': expected a time with its zone"),
        (["--until", "2026-06-30T11:00:00"], "option --until is '2026-06-30T11:00:00'"),
        (["--all", "--json"], "option --json is 'true': expected --yes with it"),
        (["--failed-queue", '"a'], "option --failed-queue is '\"a': expected a queue's name"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Any, error: str, words: list[str], told: str) -> None:
    """Before anything is looked at."""
    code, _, said = run("retry", error, *words)

    assert code == 2
    assert said.startswith(told)


def test_an_absent_error_queue_is_a_failure_of_the_database(run: Any, place: Place) -> None:
    """It is named."""
    code, _, said = run("retry", f'"{place.schema}"."absent"', "--all")

    assert code == 3
    assert "absent" in said
