"""The audit trail: each purge, return and drop leaves an entry, in the transaction that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from .database import STREAM, as_role, count, executed, received

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

LINES = "\n".join(f'{{"body": "{number}"}}' for number in range(4))
ENTRY = "(action, queue, messages) VALUES ('purge', 'forged', 1)"


@pytest.fixture
def four(run: Run, orders: str) -> str:
    """Give a queue of four messages."""
    assert run("send", orders, stdin=LINES).code == 0
    return orders


@pytest.fixture
def roles(place: Place, run: Run, four: str, state: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Give the urls of a reader and of an operator of that queue."""
    names = {each: f"{place.schema}_{each}" for each in ("reader", "sender", "operator")}
    words = (word for each, name in names.items() for word in (f"--{each}", name))
    script = run("script", four, *state, *words)
    with executed(place, script.out, *names.values()):
        yield {each: as_role(place.url, name) for each, name in names.items()}


def test_purge_return_and_drop_leave_entries(
    run: Run, four: str, place: Place, state: tuple[str, str]
) -> None:
    """Who, when, what and how many: an entry for each receipt, and for each batch of a purge."""
    for batch in (1, 2):
        received(place, messages=1, batch=batch)
    words = ("--stream", STREAM, "--yes", "--json", *state)
    done = [
        run("receipts", "return", *words, "--batch", "1"),
        run("receipts", "drop", *words),
        run("purge", four, "--yes", "--json", *state),
    ]

    found = run("trail", "--json", *state).objects

    ((login, session_login),) = place.sql("SELECT current_user::text, session_user::text")
    assert [each.objects[0]["recorded"] for each in done] == [True] * 3
    what = ("action", "queue", "messages", "stream", "batch", "task")
    assert [tuple(each[name] for name in what) for each in reversed(found)] == [
        ("return", four, 1, STREAM, 1, 0),
        ("drop", four, 1, STREAM, 2, 0),
        ("purge", four, 3, None, None, None),
    ]
    assert {(each["login"], each["session_login"]) for each in found} == {(login, session_login)}
    assert [each["at"] for each in found] == sorted((each["at"] for each in found), reverse=True)
    assert run("trail", "Other", *state).out == "no entries\n"
    shown = run("trail", "--last", "1", *state).out
    assert "purge" in shown
    assert "drop" not in shown


def test_without_state_tables_a_purge_works_and_says_that_it_leaves_no_entry(
    run: Run, queue: str, place: Place, state: tuple[str, str]
) -> None:
    """On standard error, and in the JSON; also with state tables of an older release."""
    run("send", queue, stdin=LINES)
    purged = run("purge", queue, "--yes", "--json", *state)
    assert run("install", *state).code == 0
    place.sql(f"DROP TABLE {place.state}.trail")
    run("send", queue, stdin=LINES)

    again = run("purge", queue, "--yes", "--json", *state)

    for each in (purged, again):
        assert each.code == 0
        assert each.objects == [{"queue": queue, "deleted": 4, "recorded": False}]
        assert f"no entry in the audit trail: schema {place.state} of " in each.err
        assert "sqlqueue install" in each.err


def test_neither_the_action_nor_its_entry_is_there_alone(
    run: Run, four: str, place: Place, state: tuple[str, str]
) -> None:
    """If one of them fails, the other is undone."""
    received(place, messages=1)
    words = ("--stream", STREAM, "--yes", *state)
    place.sql(f"ALTER TABLE {four} ADD CHECK (body <> '0') NOT VALID")
    assert run("receipts", "return", *words).code == 3
    place.sql(f"ALTER TABLE {place.state}.trail ADD CHECK (messages > 99)")

    failed = [run("receipts", "drop", *words).code, run("purge", four, "--yes", *state).code]

    assert failed == [3, 3]
    assert count(place, f"{place.state}.trail") == 0
    assert (count(place, f"{place.state}.receipt"), count(place, four)) == (1, 3)


def test_a_login_can_neither_read_nor_forge_nor_delete_entries(
    run: Run, four: str, place: Place, state: tuple[str, str], roles: dict[str, str]
) -> None:
    """A reader inserts under its own name only. An operator also reads, and changes nothing."""
    table = f"{place.state}.trail"
    assert run("purge", four, "--yes", *state, "--url", roles["reader"]).code == 0
    forged = f"INSERT INTO {table} (login, action, queue, messages) VALUES ('x', 'purge', 'q', 1)"
    dated = f"INSERT INTO {table} (at, action, queue, messages) VALUES ('epoch', 'purge', 'q', 1)"
    attacks = (forged, dated, f"DELETE FROM {table}", f"UPDATE {table} SET messages = 0")
    for role, more in (("reader", [f"SELECT FROM {table}"]), ("operator", [])):
        for text in (*attacks, *more):
            with (
                psycopg.connect(roles[role]) as connection,
                pytest.raises(psycopg.errors.InsufficientPrivilege),
            ):
                connection.execute(text.encode())

    found = run("trail", "--json", *state, "--url", roles["operator"])

    assert [(each["login"], each["messages"]) for each in found.objects] == [
        (f"{place.schema}_reader", 4)
    ]
    assert run("trail", *state, "--url", roles["reader"]).code == 3


def test_a_login_without_the_right_to_leave_an_entry_purges_nothing(
    run: Run, four: str, place: Place, state: tuple[str, str], roles: dict[str, str]
) -> None:
    """The error names the roles that may."""
    place.sql(f"REVOKE ALL (action) ON {place.state}.trail FROM {place.schema}_reader")

    refused = run("purge", four, "--yes", *state, "--url", roles["reader"])

    assert refused.code == 3
    assert f"a role of its team ({place.schema}_operator, {place.schema}_reader" in refused.err
    assert count(place, four) == 4
