"""Rights: those that WIRE.md 7 lists are enough. An error names the GRANT of a queue's table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from _pytest.mark.structures import ParameterSet
from servers import only

from sqlq_spark.admin import checks
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.errors import DatabaseFailure, RightMissing, StateRightMissing
from sqlq_spark.receive import browse
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch
from sqlq_spark.wire.rows import Origin

from .conftest import Bench, Clock
from .shapes import cases
from .test_delayed import chunk as delayed_chunk
from .test_send import chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.wire.address import QueueAddress

# what WIRE.md 7 and DESIGN.md 2 give a service; each is one right that can be missing
RIGHTS = [
    each if isinstance(each, ParameterSet) else pytest.param(each) for each in cases("rights")
]
STATE = [each for each in RIGHTS if str(each.values[0]).startswith("state")]
POSTGRESQL = only("postgresql", "an error's sentence that says schema, table and sequence alike")
# where a queue's name may pass for a word of the server's sentence
AWKWARD = ["input", "errors", "error sequence", "sequence"]


class Service:
    """A login that has what it was granted, and nothing else."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.login = bench, bench.dotnet.dba.login()
        self.input, self.errors = bench.another(name), bench.another(f"{name} errors")
        self.output = bench.another("the output")
        self.delayed = schema.delayed_of(self.input)
        schema.create_delayed(bench.desk, self.input)
        quoted = bench.dotnet.dba.quoted
        self.names = {  # what the grants speak of
            "schema": bench.dotnet.schema,
            "state": bench.dotnet.state,
            "role": self.login.name,
            "delayed": quoted(self.delayed),
        }
        for word in ("input", "errors", "output"):
            queue: QueueAddress = getattr(self, word)
            self.names[word] = quoted(queue)
            self.names[f"{word}_sequence"] = quoted(replace(queue, table=f"{queue.table}_seq_seq"))

    def grant(self, *without: str) -> None:
        """Give all rights but some."""
        for name, text in self.bench.dotnet.dba.shapes.rights.items():
            if name not in without:
                self.bench.dotnet.dba.run(text.format(**self.names))

    def work(self) -> None:
        """Do all that a service does: move, plan, receive, divert, browse, ack, delay, dispatch."""
        printed = self.bench.desk.printed
        url = self.login.url
        raw = {"queue": printed(self.input), "errorQueue": printed(self.errors), "url": url}
        options = self.bench.source(**raw, delayedDelivery="true")
        loop = StreamDriver(options, Clock(), checks.at_start)
        try:
            end = loop.latest(INITIAL)
            with StateSession(options, "service") as session:
                connection = session.open()
                for task in loop.tasks(end):
                    receive(connection, task, origin=Origin())
                assert browse.parts(connection, [self.input], parts=2) == []
                names = {"queue": printed(self.output), "delayedQueue": printed(self.delayed)}
                out = chunk(b"out", lives=1000), delayed_chunk({"delay": 0})
                staged = dispatch.stage(session, out, sink=self.login.name, batch=0)
                dispatch.dispatch(connection, [staged], self.bench.sink(url=url, **names))
            loop.latest(end)
        finally:
            loop.close()


@pytest.fixture
def service(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Give a service without any right; a message, a poisoned one and a delayed one wait for it."""
    made = Service(bench, getattr(request, "param", "the input"))
    bench.dotnet.send(made.input)
    bench.dotnet.send(made.input, "[]")
    bench.dotnet.store(made.delayed, "", b"", delay=-3600)
    yield made
    bench.dotnet.kill("sqlqueue service")
    bench.close()
    bench.dotnet.dba.drop_login(made.login)


def fix(error: DatabaseFailure, missing: str, role: str) -> str:
    """What a DBA does who reads the error: runs its GRANT, or grants USAGE where it says so."""
    text = str(error)
    if isinstance(error, RightMissing):
        assert "A DBA can fix this with: GRANT " in text
        return text.rpartition("A DBA can fix this with: ")[2].replace("the_user", role)
    # a schema or a table that one may not see is not there for this login
    assert "grant " in text
    return missing


@pytest.mark.parametrize(
    ("service", "missing"),
    [
        *(
            pytest.param("the input", *each.values, marks=each.marks)
            for each in RIGHTS
            if each not in STATE
        ),
        *(pytest.param("sequence schema", each, marks=POSTGRESQL) for each in AWKWARD),
    ],
    indirect=["service"],
)
def test_the_error_of_a_missing_right_has_the_grant_that_fixes_it(
    service: Service, missing: str
) -> None:
    """The text can be run as it stands, but for the name of the user; then the work goes on."""
    rights = service.bench.dotnet.dba.shapes.rights
    service.grant(missing)
    said: list[str] = []
    for _ in range(4):  # a grant of one statement may be followed by that of the next
        try:
            service.work()
            break
        except DatabaseFailure as error:
            said.append(str(error))
            text = fix(error, rights[missing].format(**service.names), service.login.name)
            service.bench.dotnet.dba.run(text)

    assert said
    assert len(service.bench.dotnet.rows(service.errors)) == 1
    assert len(service.bench.dotnet.rows(service.output)) >= 1


@pytest.mark.parametrize("missing", STATE)
def test_no_error_has_a_grant_on_a_state_schema(service: Service, missing: str) -> None:
    """It would give away all of another team's state; the error says to ask for membership."""
    service.grant(missing)

    with pytest.raises(StateRightMissing) as refused:
        service.work()

    assert "GRANT" not in str(refused.value)
    schema = service.bench.dotnet.state
    assert f"stateSchema to your team's schema instead of {schema}, or ask" in str(refused.value)
