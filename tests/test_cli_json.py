"""Every command with --json: objects on standard output, a line each, and nothing else."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Place, placed
from test_cli import STREAM, received, run
from test_cli_options import COMMANDS, options

from sqlq_spark import demo
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.send import subscriptions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run"]  # the fixture

QUEUE, STATE = "QUEUE", ("--state-schema", "STATE")  # words that stand for the place's own
TABLE = ("--subscription-table", "TABLE")
MINE = ("--stream", STREAM, "--yes", *STATE)

# a call of each command, and keys that its first object has; the demo has a test of its own
CALLS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "install": (STATE, {"stateSchema", "server"}),
    "create": ((QUEUE, "--delayed"), {"queues", "delayed", "server"}),
    "script": ((QUEUE, *STATE), {"dialect", "script"}),
    "send": ((QUEUE,), {"sent", "queues", "published", "unheard", "delayed"}),
    "browse": ((QUEUE,), {"id", "seq", "expires", "headers", "body"}),
    "stats": ((QUEUE, *STATE), {"at", "queues", "streams"}),
    "purge": (("OTHER", "--yes"), {"queue", "deleted"}),
    "purge-expired": ((QUEUE,), {"queue", "deleted"}),
    "move-due": ((QUEUE,), {"queue", "moved", "nextDueSeconds", "total"}),
    "doctor": ((QUEUE, *STATE), {"where", "name", "severity", "found", "fix"}),
    "report": ((QUEUE, *STATE), {"at", "server", "queues", "streams", "failures"}),
    "receipts list": (STATE, {"stream", "queue", "batch", "task", "messages", "settled", "login"}),
    "receipts return": ((*MINE, "--batch", "1"), {"returned", "receipts", "settled"}),
    "receipts drop": ((*MINE, "--batch", "2"), {"dropped", "receipts"}),
    "subscribe": (
        ("Shop.New", "--endpoint", "Lake", "--queue", QUEUE, *TABLE),
        {"topic", "endpoint", "address"},
    ),
    "unsubscribe": (
        ("Shop.Old", "--endpoint", "Lake", *TABLE),
        {"topic", "endpoint", "unsubscribed"},
    ),
    "subscribers": (TABLE, {"topic", "endpoint", "address"}),
    "retry": (
        (QUEUE, "--all", "--yes"),
        {"queue", "returned", "skipped", "chosen", "staying", "missing"},
    ),
}


@pytest.fixture(scope="module")
def shared(server: str) -> Iterator[Place]:
    """Give one place to all tests here: what one takes, no other needs."""
    with placed(server) as made:
        yield made


@pytest.fixture
def place(shared: Place) -> Place:
    """Give the shared place to `run`."""
    return shared


@pytest.fixture(scope="module")
def ready(shared: Place) -> dict[str, str]:
    """Make queues with messages, delayed ones, receipts, subscribers and something to fix."""
    words = {
        "QUEUE": f'"{shared.schema}"."Shop.Orders"',
        "OTHER": f'"{shared.schema}"."Shop.Billing"',
        "STATE": shared.state,
        "TABLE": f'"{shared.schema}"."Subscriptions"',
    }
    raw = {"url": shared.url, "queue": words["QUEUE"], "stateSchema": shared.state}
    options = SourceOptions.parse(raw)
    with Session(options, "test", state=False) as session:
        connection = session.open()
        schema.install(connection, timeout=10)
        schema.create_delayed(connection, options.address, timeout=10)
        for name in ("QUEUE", "OTHER"):
            queue = connection.parsed(words[name])
            schema.create_queue(connection, queue, timeout=10)
            text = (
                f"INSERT INTO {words[name]} (id, headers, body) VALUES (gen_random_uuid(), %s, '1')"
            )
            for _ in range(4):
                shared.sql(text, "{}")
        for topic in ("Shop.Old", "Shop.Heard"):
            subscriptions.subscribe(
                connection,
                connection.parsed(words["TABLE"]),
                topic=topic,
                endpoint="Lake",
                queue=options.address,
                timeout=10,
            )
    for batch in (1, 2, 3):
        received(shared, messages=1, batch=batch)
    shared.sql(f"ALTER TABLE {words['QUEUE']} SET (autovacuum_enabled = off)")
    return words


def filled(call: tuple[str, ...], words: dict[str, str]) -> list[str]:
    """Put a test's own names into a call."""
    return [words.get(word, word) for word in call]


def test_every_command_is_called_here() -> None:
    """A new one too, and has --json."""
    assert set(COMMANDS) - {"demo"} <= CALLS.keys()
    assert all("--json" in options(name) for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo"}))
def test_a_command_prints_json_and_nothing_else(run: Any, ready: dict[str, str], name: str) -> None:
    """So that a program can read it line by line."""
    call, keys = CALLS[name]

    code, printed, error = run(*name.split(), *filled(call, ready), "--json", stdin='{"body": "4"}')

    found = [json.loads(line) for line in printed.splitlines()]
    # what the one finds is to be fixed, what the other was to return never failed
    assert code == (1 if name in {"doctor", "retry"} else 0), error
    assert found
    assert keys <= found[0].keys()


def test_a_program_is_not_asked(run: Any, ready: dict[str, str]) -> None:
    """It says --yes, or nothing is done."""
    for name in ("purge", "receipts return", "receipts drop", "retry"):
        call = [word for word in filled(CALLS[name][0], ready) if word != "--yes"]

        code, printed, error = run(*name.split(), *call, "--json", stdin="y\n")

        assert (code, printed) == (2, "")
        assert error.endswith("expected --yes with it, because a program cannot be asked\n")


def test_the_demo_prints_its_figures(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no bars; its events stand in for the minute that it takes."""
    figures = {"sent": 9, "received": 9, "lost": 0, "repeated": 0, "strange": 0, "left": 0}
    result = demo.Result(
        **figures, kills=2, sent_each_second=1.5, received_each_second=2.5, rows=[{"body": "x"}]
    )

    def events(**_: object) -> Iterator[demo.Event]:
        yield demo.Step(doing="sending", messages=3, total=9)
        yield demo.Kill(batch=1, processes=2, held=3)
        yield result

    monkeypatch.setattr(demo, "run", events)
    endings = (signal.SIGTERM, signal.SIGHUP)  # which the demo takes for itself
    before = [signal.getsignal(ending) for ending in endings]

    code, printed, error = run("demo", "--json")
    for ending, handler in zip(endings, before, strict=True):
        signal.signal(ending, handler)

    assert (code, error) == (0, "")
    found = json.loads(printed)
    assert found | figures == found
    assert found["good"] is True
    assert "rows" not in found
