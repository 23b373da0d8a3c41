"""All errors: their facts are fields, which mypy checks, and their texts name the facts."""

from __future__ import annotations

import copy
import logging
import pickle
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest
from mypy import api

import sqlq_spark
from sqlq_spark import errors
from sqlq_spark.admin.queue_checks import Finding
from sqlq_spark.database import MEANINGS, Place
from sqlq_spark.database.postgresql import errors as postgresql
from sqlq_spark.database.sqlserver import errors as sqlserver
from sqlq_spark.database.sqlserver.numbers import ERRORS_BY_NUMBER
from sqlq_spark.errors import NAMED_OPTIONS, SqlQueueError
from sqlq_spark.wire.address import QueueAddress

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def error_classes() -> list[type[SqlQueueError]]:
    """The root and each class below it in the package."""
    for module in pkgutil.walk_packages(sqlq_spark.__path__, "sqlq_spark."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    classes: list[type[SqlQueueError]] = [SqlQueueError]
    for kind in classes:  # it grows
        ours = (each for each in kind.__subclasses__() if each.__module__.startswith("sqlq_spark"))
        classes += ours
    return classes


def named_facts(kind: type[SqlQueueError]) -> set[str]:
    """The facts that a text names."""
    names = {name for _, name, *_ in Formatter().parse(kind.template) if name}
    return names - {*NAMED_OPTIONS}


def test_the_fields_of_an_error_are_the_facts_of_its_text() -> None:
    """A class that only groups others has neither. The root's text is its reason."""
    for kind in error_classes():
        fields = kind.fields()

        assert len(fields) == len({*fields}), kind
        if kind.template != SqlQueueError.template or fields:
            assert {*fields} == named_facts(kind), kind


def test_an_error_keeps_its_facts_between_sparks_processes() -> None:
    """The notes that were added to it stay too."""
    for kind in error_classes():
        error = kind.from_facts(dict.fromkeys(kind.fields(), 4))
        vars(error).setdefault("reason", 4)
        error.add_note("in a task")

        for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
            assert (type(twin), vars(twin)) == (kind, vars(error))
            assert repr(twin) == f"{kind.__name__}({str(error)!r})"
            assert len({error, twin}) == 2


def test_no_fact_of_an_error_writes_a_line_of_its_own() -> None:
    """An address, a header or a server's sentence may hold line breaks and escapes."""
    hostile = "a\x1b[2J\nERROR all is lost\u2028\x85b"
    for kind in error_classes():
        error = kind.from_facts(dict.fromkeys(kind.fields(), hostile))
        vars(error).setdefault("reason", hostile)
        if any(format_spec for _, _, format_spec, _ in Formatter().parse(kind.template)):
            vars(error)["seconds"] = 1.0
        lines = str(error).splitlines() if kind.__name__ == "BadSettings" else [str(error)]

        assert all(line.isprintable() for line in lines), kind
        assert "\x1b" not in repr(error)


def test_no_argument_of_a_log_line_writes_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Arguments are names of queues, and the texts of findings."""
    logging.getLogger("sqlq_spark").warning("queue %s has %d messages", "a\nERROR b\x1b[2J", 3)

    assert caplog.messages == ["queue a·ERROR b·[2J has 3 messages"]


@pytest.mark.parametrize(
    ("fix", "lines"),
    [
        ("VACUUM a;\nSELECT 1", ["VACUUM a;", "SELECT 1"]),
        ('DROP "a\nDROP b";\nSELECT 1', ['DROP "a·DROP b";', "SELECT 1"]),
        ('ALTER "a""\nDROP b"', ['ALTER "a""·DROP b"']),
        ("SELECT 'a''\nDROP b'", ["SELECT 'a''·DROP b'"]),
        ("ALTER [a]]\nDROP b]", ["ALTER [a]]·DROP b]"]),
        ("""sqlqueue x 'a'"'"'\nDROP b'""", ["""sqlqueue x 'a'"'"'·DROP b'"""]),
        ('say "a\nDROP b', ['say "a·DROP b']),
    ],
)
def test_a_line_break_in_quotes_ends_no_statement(fix: str, lines: list[str]) -> None:
    """Quotes of databases and of shells count. An unclosed quote stays one line."""
    found = Finding(name="x", severity="error", found="x", fix=fix)

    assert found.fix_lines == lines


# each line, with what mypy says of it; "" where it is right
PLANTED = {
    "QueueNotFound(queue='a', server='b')": "",
    "QueueNotFound(queue='a')": 'Missing named argument "server"',
    "QueueNotFound(queue='a', server='b', owner='c')": 'Unexpected keyword argument "owner"',
    "QueueNotFound(queue='a', server=4)": 'Argument "server" to "QueueNotFound" has incompatible',
    "QueueNotFound('a', 'b')": "Too many positional arguments",
    "ReadOnly(statement='a', reason='b')": 'Missing named argument "fix"',
    "LogFull(statement='a', code='b', reason='c')": "",
    "MissingDelta()": "",
    "MissingDelta(found='a')": 'Unexpected keyword argument "found"',
    "SqlQueueError(reason='a')": "",
    "SqlQueueError(because='a')": 'Unexpected keyword argument "because"',
    "TimedOut(statement='a', seconds=1, reason='b').seconds": "",
    "TimedOut(statement='a', seconds=1, reason='b').second": 'has no attribute "second"',
    "DatabaseFailure().reason": 'has no attribute "reason"',
}


def test_mypy_finds_a_wrong_fact(tmp_path: Path) -> None:
    """The fact is missing, unknown, of another type, or read by another name."""
    planted = tmp_path / "planted.py"
    planted.write_text("\n".join(["from sqlq_spark.errors import *", *PLANTED]))

    told, *_ = api.run(
        ["--config-file", str(PROJECT), "--cache-dir", str(tmp_path / "cache"), str(planted)]
    )

    found = {int(line): text for line, text in re.findall(r"planted\.py:(\d+): error: (.*)", told)}
    for number, (text, expected) in enumerate(PLANTED.items(), start=2):
        assert expected in found.get(number, ""), (text, told)
        assert bool(expected) == (number in found), (text, told)


# ----- what a code means, by the statement -----------------------------------------------------

QUEUE = QueueAddress("orders", "public")


def place_of(statement: str, queue: QueueAddress | None = None) -> Place:
    """The place of an error."""
    return Place(server="db", state="sqlqueue", target="t", statement=statement, queue=queue)


CONNECT = place_of("connect")
BEGIN = place_of("begin_receipt")
ZONE = place_of("endpoint_zone")
STATE = place_of("acknowledge")
CREATE = place_of("create_queue", QUEUE)
RECEIVE = place_of("receive", QUEUE)

# the kind by an error's code, where it came, and what it means there
CASES: list[tuple[type[errors.DatabaseFailure], Place, type[errors.DatabaseFailure]]] = [
    (errors.QueueNotFound, STATE, errors.StateNotInstalled),
    (errors.QueueNotFound, BEGIN, errors.StateNotInstalled),
    (errors.QueueNotFound, CREATE, errors.StatementRefused),
    (errors.QueueNotFound, RECEIVE, errors.QueueNotFound),
    (errors.NotAQueue, STATE, errors.StateChanged),
    (errors.NotAQueue, BEGIN, errors.StateChanged),
    (errors.NotAQueue, CREATE, errors.NotAQueue),
    (errors.NotAQueue, RECEIVE, errors.NotAQueue),
    (errors.ReceiptExists, BEGIN, errors.ReceiptExists),
    (errors.ReceiptExists, STATE, errors.StatementRefused),
    (errors.ReceiptExists, RECEIVE, errors.StatementRefused),
    (errors.TimeZoneNotFound, ZONE, errors.TimeZoneNotFound),
    (errors.TimeZoneNotFound, STATE, errors.StatementRefused),
    (errors.TimeZoneNotFound, RECEIVE, errors.StatementRefused),
    (errors.DatabaseNotFound, CONNECT, errors.DatabaseNotFound),
    (errors.DatabaseNotFound, STATE, errors.StatementRefused),
    (errors.DatabaseNotFound, RECEIVE, errors.StatementRefused),
    (errors.LoginRefused, CONNECT, errors.LoginRefused),
    (errors.LoginRefused, STATE, errors.StatementRefused),
    (errors.LoginRefused, RECEIVE, errors.StatementRefused),
    (errors.LoginUnclear, RECEIVE, errors.LoginUnclear),
    (errors.SchemaNotFound, CREATE, errors.SchemaNotFound),
    (errors.Deadlock, STATE, errors.Deadlock),
]


@pytest.mark.parametrize(("kind", "place", "meaning"), CASES)
def test_what_a_code_means_depends_on_the_statement(
    kind: type[errors.DatabaseFailure], place: Place, meaning: type[errors.DatabaseFailure]
) -> None:
    """One code may be about a queue, about a state table, or about what a trigger does."""
    found = place.error(kind, "the server's words", code="42")

    assert type(found) is meaning
    if "reason" in meaning.fields():
        assert "the server's words" in str(found)


def test_each_meaning_has_a_case() -> None:
    """A row that no case reaches may be wrong."""
    reached = {(kind, scope) for kind, place, _ in CASES if (scope := place.row_of(kind))}

    assert reached == {*MEANINGS}


def test_each_kind_that_a_dialect_finds_has_its_facts() -> None:
    """An error whose text names a fact that no place has would fail as it is made."""
    kinds = {
        *(*postgresql.WORDS.values(), *postgresql.CODES.values()),
        *(*sqlserver.STATES.values(), *ERRORS_BY_NUMBER.values()),
        *(errors.Cancelled, errors.StateRightMissing, errors.NotReachable, errors.LoginUnclear),
        *MEANINGS.values(),
    }
    for kind in kinds:
        for place in (CONNECT, BEGIN, ZONE, STATE, CREATE, RECEIVE):
            assert str(place.error(kind, "reason"))
