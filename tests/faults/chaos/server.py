"""
Where chaos happens: a private server, on a disk that can be filled, and a place for each round.

The disk is a tmpfs of our own. Where none can be mounted the server stands on the usual disk, and
is never filled.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import psycopg
from waiting import until

from sqlq_spark import database
from sqlq_spark.database import schema
from sqlq_spark.testing import embedded
from sqlq_spark.wire.address import POSTGRESQL, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = tuple[Any, ...]

_DISK = "1g"
_BACK = 60.0  # seconds in which a server must answer again


@dataclass
class Ground:
    """The server of a run."""

    server: embedded.Server
    disk: Path | None  # a tmpfs of our own, or None

    @property
    def log(self) -> Path:
        """What the server wrote."""
        return self.server.place / "log"

    def ask(self, text: str, *args: object) -> list[Row]:
        """Run a statement in a session of its own, and again while the server comes back."""

        def rows() -> tuple[list[Row]] | None:
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.server.url, autocommit=True) as connection,
            ):
                cursor = connection.execute(text.encode(), args or None)
                return ([] if cursor.description is None else cursor.fetchall(),)
            return None

        (found,) = until(rows, seconds=_BACK) or ([],)
        return found

    def revive(self) -> None:
        """Start the server where it is down, and wait until it answers."""

        def answers() -> bool:
            if not (self.postmaster and processes.command(self.postmaster)):
                self.server.start()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.server.url, connect_timeout=5).close()
                return True
            return False

        until(answers, seconds=_BACK)

    @property
    def postmaster(self) -> int | None:
        """The process id of the server, None where it is down."""
        path = self.server.place / "data" / "postmaster.pid"
        try:
            return int(path.read_text(encoding="utf-8").split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def fill(self) -> Path:
        """Leave no room on the server's disk; the file returned holds all of it."""
        if self.disk is None:
            raise ValueError("there is no disk to fill")
        ballast = self.disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            block = bytes(1 << 20)
            while True:
                file.write(block)
        return ballast


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """Run a server for the block."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(_disk())
        made = Ground(stack.enter_context(embedded.server(disk, tcp=True)), disk)
        made.ask("ALTER SYSTEM SET checkpoint_timeout = '30s'")  # the disk holds little log
        made.ask("ALTER SYSTEM SET log_line_prefix = '%m [%p] %a '")
        made.ask("SELECT pg_reload_conf()")
        yield made


@contextlib.contextmanager
def _disk() -> Iterator[Path | None]:
    """Mount a small file system; None where that may not be."""
    folder = Path(tempfile.mkdtemp(prefix="sqlq-chaos-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=0711", "tmpfs", str(folder)]
    folder.chmod(0o711)  # the server's own user passes through
    mounted = bool(shutil.which("mount")) and _succeeds(mount)
    try:
        yield folder if mounted else None
    finally:
        if mounted:  # the server's last process may hold the disk for a moment
            until(lambda: _succeeds(["umount", str(folder)]))
        folder.rmdir()


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Place:
    """The tables of one round: the queues, the books of producer and competitor, our state."""

    ground: Ground
    name: str

    @property
    def url(self) -> str:
        """Where they are."""
        return self.ground.server.url

    @property
    def state(self) -> str:
        """The schema of the state tables."""
        return f"{self.name}_state"

    def address(self, table: str) -> str:
        """A queue's canonical address, which is what SQL needs too."""
        return POSTGRESQL.print_address(QueueAddress(table, self.name))

    def make(self) -> None:
        """Create all of it."""
        self.ground.ask(f"CREATE SCHEMA {self.name}")
        connection = database.of(self.url).connect(
            self.url, application="chaos", timeout=30.0, state=self.state
        )
        with contextlib.closing(connection):
            schema.install(connection)
            for table in ("orders", "error", "out"):
                schema.create_queue(connection, QueueAddress(table, self.name))
        self.ground.ask(f"CREATE TABLE {self.name}.sent (number int PRIMARY KEY, kind text)")
        self.ground.ask(f"CREATE TABLE {self.name}.taken (number int)")

    def count(self, table: str) -> int:
        """How many rows a table has; `table` with its schema."""
        return int(self.ground.ask(f"SELECT count(*) FROM {table}")[0][0])

    def numbers(self, table: str) -> list[int]:
        """The numbers of the messages in a queue."""
        text = f"SELECT (convert_from(body, 'UTF8')::json->>'number')::int FROM {self.name}.{table}"
        return [row[0] for row in self.ground.ask(text)]

    def leftovers(self) -> dict[str, int]:
        """Rows of state tables that ought to be empty: all but the streams and the dispatch log."""
        tables = self.ground.ask(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", self.state
        )
        kept = {"version", "stream", "dispatch_log"}
        rows = {name: self.count(f"{self.state}.{name}") for (name,) in tables if name not in kept}
        return {name: count for name, count in rows.items() if count}

    def drop(self) -> None:
        """Make room for the next round."""
        self.ground.ask(f"DROP SCHEMA {self.name}, {self.state} CASCADE")
        self.ground.ask("CHECKPOINT")
