"""
Make the fixture of an upgrade: what the release of VERSION_3 leaves when it is killed.

    python -m tests.upgrade.make_state

It writes tests/upgrade/state_3: the database as SQL, the checkpoints, and what was received and
sent. Only the old release wrote what is in it. The file is kept because that release will not be
changed again. Run it again only if the fixture needs another case.

    receive    two batches of 160 messages are received and acknowledged; the third has its receipt,
               in pages, and its offset, and was killed before its sink wrote anything
    waiting    50 messages wait in the queue, one is due, and one is due in 2099
    relay      one batch is sent; the second is staged and was killed in its dispatch
    write      a write with the name `nightly` has sent its version 7
    trail      an operator purged a queue
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
from processes import kill_session

from sqlq_spark.testing import embedded
from upgrade.releases import VERSION_3, start_program, unpack_release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATE = Path(__file__).with_name("state_3")
ROLES = {"reader": "upgrade_reader", "sender": "upgrade_sender", "operator": "upgrade_operator"}
LOGIN, PASSWORD = "upgrade_login", "upgrade"
ORDERS, INCOMING, RELAYED, WASTE, ERRORS = (
    f'"shop"."{name}"' for name in ("Orders", "Incoming", "Relayed", "Waste", "error")
)
BATCH = 160  # messages
LARGE = 4096  # bytes of a body that compresses to a half, so that a receipt is cut into pages
# what a server of another version does not know
UNKNOWN = re.compile(r"^(?:SET transaction_timeout|\\(?:un)?restrict).*\n", flags=re.MULTILINE)


def main() -> None:
    """Make the fixture."""
    with tempfile.TemporaryDirectory() as temporary, embedded.run_server(tcp=True) as server:
        folder = Path(temporary)
        package = unpack_release(VERSION_3, folder)
        superuser = server.url
        url = re.sub(r"//.*?@", f"//{LOGIN}:{quote(PASSWORD)}@", superuser)
        install(package, superuser)
        with closing(psycopg.connect(superuser, autocommit=True)) as dba:
            sent = receive(package, url, dba, folder)
            sent |= relay(package, url, dba, folder)
            sent |= write(package, url, folder)
            put(dba, WASTE, range(3), "waste")
            command(package, "purge", WASTE, "--yes", url=superuser)
        store(server.programs, superuser, folder, sent)


def install(package: Path, superuser: str) -> None:
    """Install the state tables, queues and roles by the old script, as a DBA does."""
    roles = [word for role, name in ROLES.items() for word in (f"--{role}", name)]
    queues = (ORDERS, INCOMING, RELAYED, WASTE)
    words = ("--delayed", "--error", ERRORS, "--state-schema", "sqlqueue", *roles)
    script = command(package, "script", *queues, *words)
    with closing(psycopg.connect(superuser, autocommit=True)) as dba:
        dba.execute("CREATE SCHEMA shop")
        dba.execute(script.replace("\\set ON_ERROR_STOP on\n", ""))  # of psql
        dba.execute(f"CREATE ROLE {LOGIN} LOGIN PASSWORD '{PASSWORD}'")
        dba.execute(f"GRANT upgrade_reader, upgrade_sender TO {LOGIN}")


def command(package: Path, *words: str, url: str | None = None) -> str:
    """Run a command of the old release; return what it printed."""
    environment = os.environ | {"PYTHONPATH": str(package)}
    if url is not None:
        environment["SQLQUEUE_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "sqlq_spark", *words],
        cwd=package,  # `python -m` looks for modules in this folder first
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def put(dba: psycopg.Connection, queue: str, numbers: range, name: str, size: int = 0) -> None:
    """Send messages `<name>-<number>`; their bodies are random digits."""
    with dba.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {queue} (Id, Headers, Body) VALUES (gen_random_uuid(), %s, %s)",
            [
                (
                    json.dumps({"NServiceBus.MessageId": f"{name}-{number}"}),
                    secrets.token_hex(size // 2).encode() or b"{}",
                )
                for number in numbers
            ],
        )


def receive(package: Path, url: str, dba: psycopg.Connection, folder: Path) -> dict[str, list[str]]:
    """Receive two batches, and kill the third before its sink writes."""
    put(dba, ORDERS, range(2 * BATCH), "order")
    put(dba, ORDERS, range(2 * BATCH, 3 * BATCH), "order", LARGE)
    put(dba, ORDERS, range(3 * BATCH, 3 * BATCH + 50), "order")
    for number, due in enumerate(("2020-01-01", "2099-01-01")):
        headers = json.dumps({"NServiceBus.MessageId": f"delayed-{number}"})
        dba.execute(
            'INSERT INTO "shop"."Orders.Delayed" (Headers, Body, Due) VALUES (%s, %s, %s)',
            (headers, b"{}", due),
        )
    job = {
        "kind": "receive",
        "options": {"url": url, "queue": ORDERS, "maxMessagesPerTrigger": str(BATCH)}
        | {"maxConcurrency": "1", "delayedDelivery": "false"},
        "folder": str(folder / "receive"),
        "stop": 2,
    }
    kill_when(package, job, folder, (folder / "receive" / "reached").exists)
    orders = [f"order-{number}" for number in range(3 * BATCH + 50)]
    return {"receive": [*orders, "delayed-0", "delayed-1"]}


def relay(package: Path, url: str, dba: psycopg.Connection, folder: Path) -> dict[str, list[str]]:
    """Send one batch; lock the destination, and kill the second batch in its dispatch."""
    job = {
        "kind": "relay",
        "options": {"url": url, "queue": INCOMING},
        "sink": {"url": url, "queue": RELAYED},
        "folder": str(folder / "relay"),
    }
    put(dba, INCOMING, range(40), "relayed")
    wait_for_end(package, job, folder)
    put(dba, INCOMING, range(40, 80), "relayed")
    with dba.transaction():
        dba.execute(f"LOCK TABLE {RELAYED} IN ACCESS EXCLUSIVE MODE")

        def is_blocked() -> bool:
            row = dba.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass",
                (RELAYED,),
            ).fetchone()
            staged = dba.execute("SELECT count(*) FROM sqlqueue.staging").fetchone()
            return row is not None and staged is not None and row[0] > 0 and staged[0] > 0

        kill_when(package, job, folder, is_blocked)
    return {"relay": [f"relayed-{number}" for number in range(80)]}


def write(package: Path, url: str, folder: Path) -> dict[str, list[str]]:
    """Write a frame by name."""
    job = {"kind": "write", "sink": {"url": url, "queue": RELAYED}, "folder": str(folder / "write")}
    wait_for_end(package, job, folder)
    return {"write": [f"nightly-{number}" for number in range(5)]}


def wait_for_end(package: Path, job: Mapping[str, object], folder: Path) -> None:
    """Run a job to its end."""
    process = start_program(package, json.dumps([job]), folder / "log")
    if process.wait(300):
        raise RuntimeError((folder / "log").read_text()[-4000:])


def kill_when(
    package: Path, job: Mapping[str, object], folder: Path, is_time: Callable[[], bool]
) -> None:
    """Run a job, and kill all its processes at a moment."""
    process = start_program(package, json.dumps([job]), folder / "log")
    for _ in range(3000):
        if is_time():
            kill_session(process)
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError((folder / "log").read_text()[-4000:])


def store(programs: Path, url: str, folder: Path, sent: dict[str, list[str]]) -> None:
    """Write the database, the checkpoints and what was sent."""
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir()
    dump = subprocess.run(
        [str(programs / "pg_dump"), "--no-owner", "--rows-per-insert=50", "--column-inserts", url],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (STATE / "state.sql").write_text(UNKNOWN.sub("", dump))
    (STATE / "sent.json").write_text(json.dumps(sent) + "\n")
    for job in ("receive", "relay"):
        shutil.copytree(folder / job / "checkpoint", STATE / job / "checkpoint")
        if (folder / job / "landed").exists():
            shutil.copytree(folder / job / "landed", STATE / job / "landed")


if __name__ == "__main__":
    main()
