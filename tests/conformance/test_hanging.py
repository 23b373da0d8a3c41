"""
A process that hangs in the middle of a statement, and whoever waits for its locks.

No limit of the server ends a statement that waits for its client. Here a session of the test plays
the process: it begins a COPY, and neither reads nor writes.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from servers import only
from waiting import until

from sqlq_spark.database import transaction
from sqlq_spark.errors import TimedOut
from sqlq_spark.receive.offset import Offset
from sqlq_spark.receive.receipts import acknowledge
from sqlq_spark.receive.task import receive
from sqlq_spark.send.dispatch import discard, dispatch, stage
from sqlq_spark.wire.rows import NO_STREAM

from .conftest import bodies
from .test_send import chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection

    from .conftest import Bench

pytestmark = [
    only("postgresql", "no session of SQL Server may end another"),
    pytest.mark.usefixtures("impatient"),
]

TIMEOUT = 1.0  # seconds
READS = "COPY (SELECT repeat('x', 1000000) FROM generate_series(1, 1000)) TO STDOUT"
WRITES = 'COPY "{state}".staging_page FROM STDIN'
WORKS = "SELECT pg_sleep(1000)"
TASK = """
    SELECT 1 FROM "{state}".stream FOR SHARE;
    INSERT INTO "{state}".receipt_page SELECT stream, 1, 0, -1, '' FROM "{state}".stream"""
CHUNK = 'SELECT 1 FROM "{state}".dispatch_log FOR SHARE'
DISPATCH = 'SELECT 1 FROM "{state}".dispatch_log FOR UPDATE'


@contextmanager
def hanging(bench: Bench, name: str, locks: str, copy: str) -> Iterator[int]:
    """Lock rows in a session of that name, and begin what never ends; gives its pid."""
    with closing(psycopg.connect(bench.dotnet.url, application_name=f"sqlqueue {name}")) as session:
        session.execute(locks.format(state=bench.dotnet.state).encode())
        session.pgconn.send_query(copy.format(state=bench.dotnet.state).encode())
        pid = session.info.backend_pid
        until(lambda: is_there(bench, pid, "AND state = 'active' AND wait_event IS NOT NULL"))
        yield pid


def is_there(bench: Bench, pid: int, more: str = "") -> bool:
    """Whether a session exists."""
    return bool(bench.dotnet.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = %s {more}", pid))


class Waiting:
    """Those that wait for rows of the state tables; a stream and a sink with a staged batch."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.stream = bench, bench.new_stream()
        bench.plan(self.stream, 1)
        bench.dotnet.send(bench.queue, "{}", b"received")
        session = bench.session("waits", queryTimeout=f"{TIMEOUT}s")
        self.do = session.run_with_retries
        self.stage = partial(stage, session, [chunk(b"sent")], sink="app:sink", batch=0)
        self.staged = self.stage()

    def attempt(self) -> list[bytes]:
        task = self.bench.task(self.stream)
        return bodies(self.do(partial(receive, task=task, origin=NO_STREAM)))

    def acknowledge(self) -> int:
        def work(connection: Connection) -> int:
            with transaction(connection, timeout=TIMEOUT):
                end = Offset(stream=self.stream, batch=1)
                return acknowledge(connection, end, self.bench.who).batch

        return self.do(work)

    def dispatch(self) -> int:
        options = self.bench.sink(queryTimeout=f"{TIMEOUT}s")
        return self.do(partial(dispatch, staged=[self.staged], options=options))

    def abort(self) -> None:
        self.do(partial(discard, sink="app:sink", batch=0, final=False))


@pytest.mark.parametrize(
    ("work", "done", "name", "locks", "copy"),
    [
        ("attempt", [b"received"], "{} 1/0", TASK, READS),
        ("attempt", [b"received"], "{} 1/0", TASK, WRITES),
        ("acknowledge", 1, "{} 1/0", TASK, WRITES),
        ("stage", None, "dispatch app:sink/0", DISPATCH, READS),
        ("dispatch", 1, "sink app:sink/0/1", CHUNK, WRITES),
        ("dispatch", 1, "dispatch app:sink/0", DISPATCH, WRITES),
        ("abort", None, "sink app:sink/0/1", CHUNK, WRITES),
    ],
)
def test_a_session_that_hangs_is_ended(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    *,
    work: str,
    done: object,
    name: str,
    locks: str,
    copy: str,
) -> None:
    """Whoever waits for it ends it, logs that, and goes on."""
    waiting = Waiting(bench)
    name = name.format(waiting.stream)

    with hanging(bench, name, locks, copy) as pid:
        found = getattr(waiting, work)()
        assert not is_there(bench, pid)

    assert done is None or found == done
    assert f"ended sqlqueue {name} (pid {pid})" in caplog.text


@pytest.mark.parametrize(
    ("work", "name", "locks", "copy"),
    [
        ("attempt", "{} 1/0", TASK, WORKS),
        ("attempt", "00000000-0000-0000-0000-000000000000 1/0", TASK, WRITES),
        ("dispatch", "sink app:sink/0/1", CHUNK, WORKS),
        ("dispatch", "sink app:sink2/0/1", CHUNK, WRITES),
    ],
)
def test_no_other_session_is_ended(
    bench: Bench, work: str, name: str, locks: str, copy: str
) -> None:
    """One that works, or is of another stream or sink."""
    waiting = Waiting(bench)

    with hanging(bench, name.format(waiting.stream), locks, copy) as pid:
        with pytest.raises(TimedOut, match="Raise the option queryTimeout"):
            getattr(waiting, work)()
        assert is_there(bench, pid)
        bench.dotnet.execute("SELECT pg_terminate_backend(%s)", pid)
