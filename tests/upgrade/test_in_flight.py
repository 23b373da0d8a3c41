"""
Streams and sinks of the old release go on with this one, on their checkpoints.

`SQLQ_UPGRADE_KILLS=20` runs the test under load with as many kills at random moments; by default
there is one on each side of the step.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from processes import kill_session

from sqlq_spark import errors
from sqlq_spark.database import schema
from sqlq_spark.database.postgresql.connection import connect

from .make_state import INCOMING, ORDERS, RELAYED, put
from .releases import start_program

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from .conftest import OldState

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("SQLQ_UPGRADE_KILLS", "1"))
STARTS = 3  # how often a program is started if Spark fails
SECONDS = 240.0  # until a program must have ended, on a busy machine


def jobs(state: OldState, *, write: bool = False, **more: object) -> str:
    """Return the argument of the program: the jobs of the fixture, on their checkpoints."""
    receive = {
        "kind": "receive",
        "folder": str(state.folder / "receive"),
        "options": {"url": state.url, "queue": ORDERS, "maxMessagesPerTrigger": "160"}
        | {"maxConcurrency": "1", "delayedDelivery": "true"},
    }
    relay = {
        "kind": "relay",
        "folder": str(state.folder / "relay"),
        "options": {"url": state.url, "queue": INCOMING},
        "sink": {"url": state.url, "queue": RELAYED},
    }
    named = {**relay, "kind": "write", "folder": str(state.folder / "write")}
    return json.dumps([job | more for job in (receive, relay, *([named] if write else []))])


def install(state: OldState) -> None:
    """Take the steps, as often as sessions are in the way."""
    until = time.monotonic() + SECONDS
    while True:
        with closing(
            connect(state.superuser, application="install", timeout=30, state="sqlqueue")
        ) as connection:
            try:
                schema.install(connection)
            except errors.InstallBlocked:
                if time.monotonic() > until:
                    raise
            else:
                return


def finish(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a program."""
    try:
        return process.wait(SECONDS)
    finally:
        if process.poll() is None:
            kill_session(process)


def run(state: OldState, **more: Any) -> tuple[int, str]:
    """Run the jobs by this release to their end; return the exit code and what they printed."""
    log = state.folder / "log"
    log.unlink(missing_ok=True)
    code = finish(start_program(None, jobs(state, **more), log))
    return code, log.read_text()


def run_to_end(state: OldState, **more: Any) -> str:
    """
    Run the jobs by this release until they succeed; return what they printed.

    They are started again, as a supervisor does it: on a busy machine Spark sometimes fails to
    start a Python process in time. An error of this package is not repeated.
    """
    logs = []
    for _ in range(STARTS):
        code, text = run(state, **more)
        logs.append(text)
        if code == 0:
            return "\n".join(logs)
        assert "sqlq_spark.errors" not in text, text[-10_000:]
    raise AssertionError("\n".join(log[-5_000:] for log in logs))


def expected(state: OldState, *more: str) -> list[str]:
    """Return the ids that are received in all: one message is due in 2099."""
    return sorted({*state.sent["receive"], *more} - {"delayed-1"})


def test_what_was_in_flight_arrives_once(old_state: OldState) -> None:
    """
    A receipt in pages, a staged batch, a due message and what waits, after the step.

    A write with a name that was sent before is not sent again.
    """
    install(old_state)

    log = run_to_end(old_state, write=True)

    assert old_state.landed("receive") == expected(old_state), log[-3000:]
    relayed = sorted([*old_state.sent["relay"], *old_state.sent["write"]])
    assert old_state.ids(RELAYED) == relayed, log[-3000:]
    for table in ("staging", "staging_page"):
        assert old_state.sql(f"SELECT count(*) FROM sqlqueue.{table}") == [(0,)]


@pytest.mark.parametrize("trigger", [{}, {"interval": "1 second"}])
def test_this_release_takes_nothing_from_older_tables(
    old_state: OldState, trigger: dict[str, str]
) -> None:
    """Its error says what to run, also if Spark first runs the tasks of an open batch."""
    before = old_state.ids(ORDERS)

    code, log = run(old_state, **trigger)

    assert code == 1
    assert log.count("Run `sqlqueue install`") >= 2, log[-3000:]
    assert old_state.ids(ORDERS) == before
    assert len(old_state.ids(RELAYED)) == 45
    assert old_state.sql("SELECT count(*) FROM sqlqueue.receipt") == [(2,)]


def test_the_old_release_ends_at_its_next_statement(old_state: OldState, old_release: Path) -> None:
    """
    Its stream and its sink run while the step is taken; they end and take or send nothing more.

    docs/upgrade.md quotes the error, because it is all that a user of the old release reads.
    """
    log = old_state.folder / "old.log"
    running = start_program(old_release, jobs(old_state, interval="100 milliseconds"), log)
    more = send_until_received(old_state, running)

    install(old_state)
    # an idle stream looks at its queue only; it ends with the next batch
    for queue in (ORDERS, INCOMING):
        put(old_state.connection, queue, range(90_000, 90_020), "last")
    more += [f"last-{number}" for number in range(90_000, 90_020)]
    finish(running)

    ends = re.findall(r"(\w+) failed with error 42703: column", log.read_text())
    assert {"lock_stream", "fence"} & {*ends}, log.read_text()[-3000:]
    assert {"sink_open", "sink_close", "lock_stream", "fence"} >= {*ends}
    log_of_this = run_to_end(old_state)
    assert old_state.landed("receive") == expected(old_state, *more), log_of_this[-3000:]
    relayed = {*old_state.sent["relay"], *old_state.sent["write"]}
    assert {*old_state.ids(RELAYED)} - {*more} == relayed
    assert len(old_state.ids(RELAYED)) == len({*old_state.ids(RELAYED)})


def send_until_received(state: OldState, running: subprocess.Popen[bytes]) -> list[str]:
    """Send messages to both jobs until each has received some of them; return their ids."""
    first = 10_000
    received = len(state.landed("receive"))
    until = time.monotonic() + SECONDS
    ids: list[str] = []
    while time.monotonic() < until:
        for queue in (ORDERS, INCOMING):
            put(state.connection, queue, range(first, first + 20), "more")
        ids += [f"more-{number}" for number in range(first, first + 20)]
        first += 20
        time.sleep(0.5)
        assert running.poll() is None, (state.folder / "old.log").read_text()[-3000:]
        is_sent = any(name.startswith("more") for name in state.ids(RELAYED))
        if is_sent and len(state.landed("receive")) > received + 300:
            return ids
    message = "the old release received nothing"
    raise AssertionError(message)


def kill_by_chance(process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Kill a program at a moment drawn by chance, from before its first statement on."""
    until = time.monotonic() + chance.uniform(4.0, 25.0)
    while time.monotonic() < until and process.poll() is None:
        time.sleep(0.1)
    kill_session(process)


def test_an_upgrade_under_load_and_kills_loses_and_repeats_nothing(
    old_state: OldState, old_release: Path
) -> None:
    """Both releases are killed at random moments, before and after the step, under load."""
    seed = random.randrange(1 << 30)  # printed where the test fails
    chance = random.Random(seed)
    ids: set[str] = set()
    numbers = iter(range(20_000, 1 << 30, 40))
    for package in (old_release, None):
        for _ in range(KILLS):
            first = next(numbers)
            for queue in (ORDERS, INCOMING):
                put(old_state.connection, queue, range(first, first + 40), "load")
            ids |= {f"load-{number}" for number in range(first, first + 40)}
            words = jobs(old_state, interval="100 milliseconds")
            kill_by_chance(start_program(package, words, old_state.folder / "log"), chance)
        if package is not None:
            install(old_state)

    log = run_to_end(old_state)

    assert old_state.landed("receive") == expected(old_state, *ids), (seed, log[-3000:])
    relayed = sorted({*old_state.sent["relay"], *old_state.sent["write"], *ids})
    assert old_state.ids(RELAYED) == relayed, (seed, log[-3000:])
