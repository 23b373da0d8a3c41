"""Rights: what WIRE.md 7 lists is enough; a missing one is told with the GRANT that mends it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from sqlq_spark import browse, send
from sqlq_spark.address import QueueAddress
from sqlq_spark.errors import DatabaseFailure, RightMissing
from sqlq_spark.reader import Reader
from sqlq_spark.receive import Origin, receive
from sqlq_spark.sessions import Session

from .conftest import TIMEOUT, Bench, Clock
from .test_send import parcel

if TYPE_CHECKING:
    from collections.abc import Iterator

# what WIRE.md 7 and DESIGN.md 2 give a service; each is one right that can be missing
RIGHTS = {
    "schema": "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "input": "GRANT SELECT ON {input} TO {role}",
    "delete": "GRANT DELETE ON {input} TO {role}",
    "update": "GRANT UPDATE (seq) ON {input} TO {role}",
    "errors": "GRANT INSERT ON {errors} TO {role}",
    "error sequence": "GRANT USAGE ON SEQUENCE {errors_sequence} TO {role}",
    "destination": "GRANT INSERT ON {output} TO {role}",
    "sequence": "GRANT USAGE ON SEQUENCE {output_sequence} TO {role}",
    "state": "GRANT USAGE ON SCHEMA {state} TO {role}",
    "state tables": (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {state} TO {role}"
    ),
}
# where a queue's name may pass for a word of the server's sentence
AWKWARD = ["input", "errors", "error sequence", "sequence"]


class Service:
    """A login that has what it was granted, and nothing else."""

    def __init__(self, bench: Bench, queue: QueueAddress, errors: QueueAddress) -> None:
        self.bench, self.input, self.errors = bench, queue, errors
        self.output = QueueAddress("the output", bench.peer.schema)
        self.role = f"role_{secrets.token_hex(4)}"
        for queue_ in (self.input, self.errors, self.output):
            bench.peer.create(queue_)
        bench.peer.state_run(f"CREATE ROLE {self.role} LOGIN PASSWORD 'secret'")
        parts = urlsplit(bench.peer.url)
        place = parts.netloc.rpartition("@")[2]
        self.url = parts._replace(netloc=f"{self.role}:secret@{place}").geturl()

    def names(self) -> dict[str, str]:
        """What the grants speak of, quoted."""

        def quoted(queue: QueueAddress, suffix: str = "") -> str:
            return '"{}"."{}"'.format(queue.schema, (queue.table + suffix).replace('"', '""'))

        return {
            "schema": f'"{self.bench.peer.schema}"',
            "state": f'"{self.bench.peer.state}"',
            "role": self.role,
            "input": quoted(self.input),
            "errors": quoted(self.errors),
            "errors_sequence": quoted(self.errors, "_seq_seq"),
            "output": quoted(self.output),
            "output_sequence": quoted(self.output, "_seq_seq"),
        }

    def run(self, text: str) -> None:
        """Execute a statement of the DBA."""
        self.bench.peer.state_run(text.replace("{", "{{").replace("}", "}}"))

    def grant(self, *without: str) -> None:
        """Give all rights but some."""
        for name, text in RIGHTS.items():
            if name not in without:
                self.run(text.format(**self.names()))

    def work(self) -> None:
        """Do all that a service does: plan, receive, divert, browse, ack, stage, dispatch."""
        names = self.names()
        raw = {"url": self.url, "queue": names["input"], "errorQueue": names["errors"]}
        options = self.bench.source(**raw)
        reader = Reader(options, Clock())
        try:
            end = reader.latest({"v": 1, "reader": None, "batch": 0, "plan": []})
            with Session(options, "service") as session:
                connection = session.open()
                for task in reader.tasks(end):
                    receive(connection, task, timeout=TIMEOUT, origin=Origin())
                assert browse.ranges(connection, self.input, parts=2, timeout=5) == []
                sink = self.bench.sink(url=self.url, queue=names["output"])
                staged = send.stage(session, [parcel(b"out", lives=1000)], sink=self.role, batch=0)
                send.dispatch(connection, [staged], sink)
            reader.latest(end)
        finally:
            reader.close()


@pytest.fixture
def service(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Give a service without any right; its input holds a message and a poisoned one."""
    name = getattr(request, "param", "the input")
    made = Service(
        bench,
        QueueAddress(name, bench.peer.schema),
        QueueAddress(f"{name} errors", bench.peer.schema),
    )
    bench.peer.send(made.input)
    bench.peer.send(made.input, "[]")
    yield made
    bench.peer.kill("sqlqueue service")
    bench.close()
    made.run(f"DROP OWNED BY {made.role}")
    made.run(f"DROP ROLE {made.role}")


def test_the_rights_that_are_listed_are_enough(service: Service) -> None:
    """Not one more than WIRE.md part 7."""
    service.grant()

    service.work()

    assert [row.body for row in service.bench.peer.rows(service.output)] == [b"out"]
    assert len(service.bench.peer.rows(service.errors)) == 1
    assert service.bench.peer.rows(service.input) == []


def mend(error: DatabaseFailure, missing: str, role: str) -> str:
    """What a DBA does who reads the error: runs its GRANT, or grants USAGE where it says so."""
    text = str(error)
    if isinstance(error, RightMissing):
        assert "a DBA can mend it with: GRANT " in text
        return text.rpartition("a DBA can mend it with: ")[2].replace("the_user", role)
    # a schema that one may not see holds no queue for this login
    assert "grant USAGE on its schema" in text or "or grant USAGE on it" in text
    return missing


@pytest.mark.parametrize(
    ("service", "missing"),
    [*(("the input", each) for each in RIGHTS), *(("sequence schema", each) for each in AWKWARD)],
    indirect=["service"],
)
def test_a_missing_right_is_told_with_the_grant_that_mends_it(
    service: Service, missing: str
) -> None:
    """The text can be run as it stands, but for the name of the user; then the work goes on."""
    service.grant(missing)
    told: list[str] = []
    for _ in range(4):  # a grant of one statement may be followed by that of the next
        try:
            service.work()
            break
        except DatabaseFailure as error:
            told.append(str(error))
            service.run(mend(error, RIGHTS[missing].format(**service.names()), service.role))

    assert told
    assert len(service.bench.peer.rows(service.errors)) == 1
    assert len(service.bench.peer.rows(service.output)) >= 1


def test_without_a_right_nothing_is_taken(service: Service) -> None:
    """Poison that cannot be moved stays, and its batch with it."""
    service.grant("errors")

    with pytest.raises(RightMissing):
        service.work()

    assert len(service.bench.peer.rows(service.input)) == 2
