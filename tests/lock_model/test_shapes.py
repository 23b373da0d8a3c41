"""The paths are those of the statements: a statement that changes must be looked at here."""

from __future__ import annotations

import re

import pytest
from conformance.transport_sqlserver import _SQLSERVER

from sqlq_spark.database import TRANSIENT, Place
from sqlq_spark.database.sqlserver import connection, errors
from sqlq_spark.database.sqlserver.calls import STATEMENTS, build_insert

from . import transport
from .explore import ESCALATION, NO_ESCALATION
from .groups import GROUPS, worlds
from .skeletons import hints, skeleton
from .statements import ALIKE, NO_PATH, SHAPES

# made once, dropped once, or printed for a DBA: they wait for all who use the table
DEFINITIONS = ("install_", "create_", "script_", "add_", "lock_queue", "drop_queue")
CHANGES = re.compile(r"\b(?:(?:INSERT|UPDATE|DELETE) [a-z]|MERGE|DELETE)")
PAST = {"READPAST", "ROWLOCK", "READCOMMITTEDLOCK"}
OTHERS = [name for name in STATEMENTS if not name.startswith(DEFINITIONS) and name not in SHAPES]


@pytest.mark.parametrize("name", SHAPES)
def test_the_tables_and_hints_of_a_path_are_those_of_its_statement(name: str) -> None:
    """In their order, with verbs, joins and orders."""
    assert skeleton(STATEMENTS[name]) == SHAPES[name]


@pytest.mark.parametrize("name", OTHERS)
def test_a_statement_without_a_path_only_reads_and_skips_rows_of_queues(name: str) -> None:
    """Or its path is that of another statement, or there is a reason."""
    found = skeleton(STATEMENTS[name])

    if name in ALIKE:
        assert found == SHAPES[ALIKE[name]]
    elif name not in NO_PATH:
        assert not CHANGES.search(found)
        for table in ("queue", "errors", "delayed"):
            for number in range(len(re.findall(rf"(?<![\w.]){table}(?!\w)", found))):
                assert hints(found, table, number) - {"FORCESEEK"} == PAST


@pytest.mark.parametrize("name", transport.SHAPES)
def test_the_paths_of_the_transport_are_those_of_its_statements(name: str) -> None:
    """As the tests with real databases run them."""
    text = _SQLSERVER.get(name, "DELETE FROM {queue}")  # `purge` is the same on both databases

    assert skeleton(text) == transport.SHAPES[name]


def test_the_bulk_insert_has_no_hint() -> None:
    """Rows go into the queue in their order."""
    text = build_insert(["headers", "body", "id"], {"headers": "", "body": "", "id": ""})

    assert skeleton(text) == "INSERT queue SELECT ORDER BY place"


def test_every_path_is_met() -> None:
    """A path that no group of sessions uses shows nothing."""
    met = {
        statement.name
        for makers in GROUPS.values()
        for make in makers.values()
        for statement in make(worlds()[0], "1").statements
    }

    assert set(SHAPES) <= met


@pytest.mark.parametrize("name", ["weigh", "receive", "purge_expired"])
def test_a_statement_locks_fewer_rows_than_escalate(name: str) -> None:
    """Each row is one lock on the table and one on each index, and they are counted separately."""
    ((most, limit),) = re.findall(
        r"TOP \(CASE WHEN @messages(?: - @gone)? < (\d+) .*? ELSE (\d+) END\)",
        STATEMENTS[name],
    )

    assert most == limit
    assert int(limit) < ESCALATION


def test_locks_on_state_tables_do_not_escalate() -> None:
    """A driver that deletes many receipts locks no table."""
    text = " ".join(text for name, text in STATEMENTS.items() if name.startswith("install_"))

    found = re.findall(r"ALTER TABLE \{state\}\.(\w+) SET \(LOCK_ESCALATION = DISABLE\)", text)
    assert set(found) == NO_ESCALATION


def test_a_deadlock_is_retried_and_its_victim_is_ours() -> None:
    """So the deadlocks that the model may find cost an endpoint nothing."""
    failure = errors.Failure(1205, "40001", "was deadlocked")
    place = Place(statement="purge", target="orders", server="", seconds=1.0)

    assert "SET DEADLOCK_PRIORITY LOW" in connection.SETTINGS
    assert isinstance(errors.statement_error(failure, place), TRANSIENT)
