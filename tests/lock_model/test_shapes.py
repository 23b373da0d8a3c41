"""The paths of the model are those of the statements, so a changed statement fails here."""

from __future__ import annotations

import re

import pytest
from conformance.transport_sqlserver import _SQLSERVER

from sqlq_spark.database import TRANSIENT, Place
from sqlq_spark.database.sqlserver import connection, errors
from sqlq_spark.database.sqlserver.calls import STATEMENTS

from .table import ALIKE, GROUPS, NO_PATH, PATHS, SHAPES, hints, skeleton

# They create or drop a table, or are printed for a DBA. They wait for all sessions of the table.
DEFINITIONS = ("install_", "create_", "script_", "add_", "lock_queue", "drop_queue")
CHANGES = re.compile(r"\b(?:(?:INSERT|UPDATE|DELETE) [a-z]|MERGE|DELETE)")
PAST = {"READPAST", "ROWLOCK", "READCOMMITTEDLOCK"}
OTHERS = [name for name in STATEMENTS if not name.startswith(DEFINITIONS) and name not in SHAPES]


@pytest.mark.parametrize("name", SHAPES)
def test_the_tables_and_hints_of_a_path_are_those_of_its_statement(name: str) -> None:
    """
    The model lists them in their order, with verbs, joins and orders.

    The transport's statements are as endpoints run them.
    """
    text = STATEMENTS.get(name, "")
    if name.startswith("transport."):
        table = next(each for each in ("delayed", "subscriptions", "queue") if each in SHAPES[name])
        text = _SQLSERVER.get(name.partition(".")[2], "DELETE FROM {queue}")  # the endpoint's purge
        text = text.replace("{queue}", f"{{{table}}}").replace("{to}", "{queue}")

    assert skeleton(text) == SHAPES[name]


@pytest.mark.parametrize("name", OTHERS)
def test_a_statement_without_a_path_only_reads_and_skips_rows_of_queues(name: str) -> None:
    """The others share the path of another statement, or a list has the reason."""
    found = skeleton(STATEMENTS[name])

    if name in ALIKE:
        assert found == SHAPES[ALIKE[name]]
    elif name not in NO_PATH:
        assert not CHANGES.search(found)
        for table in ("queue", "errors", "delayed"):
            for number in range(len(re.findall(rf"(?<![\w.]){table}(?!\w)", found))):
                assert hints(found, table, number) - {"FORCESEEK"} == PAST


def test_every_path_is_met() -> None:
    """A path that no group of sessions uses shows nothing."""
    scripts = "; ".join(script for group in GROUPS.values() for script in group.values())
    met = {call.split()[0] for call in scripts.split("; ")}

    assert met - {"rollback"} == set(PATHS)
    assert set(SHAPES) <= set(PATHS)


def test_a_deadlock_is_retried_and_its_victim_is_ours() -> None:
    """A deadlock that the model finds therefore costs an endpoint nothing."""
    failure = errors.Failure(1205, "40001", "was deadlocked")
    place = Place(statement="purge", target="orders", server="", seconds=1.0)

    assert "SET DEADLOCK_PRIORITY LOW" in connection.SETTINGS
    assert isinstance(errors.statement_error(failure, place), TRANSIENT)
