"""
What Spark does with the package, by hand, so that it can die anywhere and is cheap to repeat.

`Desk` is what one process holds: a stream and sessions. The deeds below it are the package's calls,
made as datasource and cli make them; they travel to a process that is to be killed.
`Stream` is a query of two or more micro-batches from a queue into two others, `write` a job that
writes frames, `operate` an operator who brings back what a lost checkpoint has left. Each does what
died again, as Spark or a user would, until all is done.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from sqlq_spark import database
from sqlq_spark.admin import checks, failed_messages
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import CheckpointIncomplete, StaleTask
from sqlq_spark.jobs.error_triage import in_log
from sqlq_spark.receive import pace, receipts
from sqlq_spark.receive import task as receiving
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import insert, subscriptions
from sqlq_spark.send.dispatch import SENT, give_up, open_request
from sqlq_spark.wire import payload
from sqlq_spark.wire.rows import NO_STREAM, Origin

from .message_count import TIMEOUT, Shop
from .points import watching

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.receive.task import Task
    from sqlq_spark.send.dispatch import Staged

    from .message_count import Books
    from .points import Point

    Patch = Callable[[Any, str, Any], None]
    Harm = Callable[[Patch], None]  # takes something away from the package

TRIES = 20  # more than one trip can need

# So that a handful of messages makes two tasks of several steps, and some payloads have pages.
SMALL = [
    (pace, "MESSAGES_PER_TASK", 3),
    (receiving, "STEP", 220),
    (payload, "LARGE", 1400),
    (payload, "PAGE", 500),
]


class Died(Exception):
    """The process that was to do a deed is gone."""


class Doing(Protocol):
    """Does a deed, and may kill the process that does it."""

    fell: Point | None  # where the last deed was struck

    def __call__(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Do `work` at a desk; raises Died, where it has to be done again by another process."""


def until_done(do: Doing, name: str, work: Callable[..., Any], *args: Any) -> Any:
    """Do a deed again until no process dies of it."""
    for _ in range(TRIES):
        with suppress(Died):
            return do(name, work, *args)
    raise AssertionError(f"{name} found no end")


# ---------------------------------------------------------------- a process


class Desk:
    """What one process holds; nothing is connected until it is used."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.loop = self._new_loop()

    def _new_loop(self) -> StreamDriver:
        # every look at the clock is a minute later: no pause lasts
        return StreamDriver(self.shop.source(), partial(next, count(0.0, 60.0)), checks.at_start)

    @cached_property
    def tasks(self) -> Session:
        """What executors receive by."""
        return Session(self.shop.source(), "task")

    @cached_property
    def sends(self) -> Session:
        """What is sent by."""
        return StateSession(self.shop.sink(), "sink")

    def restart(self) -> None:
        """Be a new driver."""
        self.loop.close()
        self.loop = self._new_loop()

    def close(self) -> None:
        """End the sessions."""
        self.loop.close()
        self.tasks.close()
        self.sends.close()


def elsewhere(shop: Shop, harm: Harm, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Do a deed in a process of its own, just forked."""
    dialect: Any = database.of(shop.url)
    dialect.connect = watching(shop.url, shop.mark)
    for place, name, value in SMALL:
        setattr(place, name, value)
    harm(setattr)
    work(Desk(shop), *args)


# ---------------------------------------------------------------- deeds


def latest(desk: Desk, start: Offset) -> Offset:
    """Acknowledge, peek and plan."""
    return desk.loop.latest(start)


def receive(desk: Desk, task: Task, origin: Origin) -> pa.Table:
    """Run the receive of a task."""
    return desk.tasks.run_with_retries(
        lambda connection: receiving.receive(connection, task, origin=origin)
    )


def refused(desk: Desk, task: Task, origin: Origin) -> bool:
    """Run the receive of a task that must not receive; whether it is refused."""
    with suppress(CheckpointIncomplete):
        receive(desk, task, origin)
        return False
    return True


def stage(desk: Desk, chunks: list[pa.Table], sink: str, batch: int, origin: Origin) -> Staged:
    """Run the write of a task."""
    return send.stage(desk.sends, chunks, sink=sink, batch=batch, origin=origin)


def dispatch(desk: Desk, staged: list[Staged], options: SinkOptions) -> int:
    """Commit a write."""
    return desk.sends.run_with_retries(
        lambda connection: send.dispatch(connection, staged, options)
    )


def discard(desk: Desk, sink: str, batch: int) -> None:
    """Abort a micro-batch, or a write without a name, which is not tried again."""
    final = sink.startswith("write:")
    desk.sends.run_with_retries(
        lambda connection: send.discard(connection, sink, batch, final=final)
    )


def send_now(desk: Desk, chunks: list[pa.Table]) -> None:
    """Run the write of a task with delivery=atLeastOnce."""
    insert.send_now(desk.sends, chunks, desk.shop.sink(delivery="atLeastOnce"))


def give_back(desk: Desk, stream: str, batch: int, task: int) -> int:
    """Return a receipt."""
    with transaction(desk.tasks.open(), timeout=TIMEOUT):
        queue = desk.shop.address("orders")
        return receipts.return_(desk.tasks.open(), (stream, batch, task), queue)


def return_to_source(desk: Desk) -> None:
    """Return what has failed, two messages in a transaction."""
    session, errors = desk.tasks, desk.shop.address("error")
    planned = failed_messages.plan(
        session.open(), errors, failed_messages.Choice(), session.options
    )
    for _ in failed_messages.give_back(session, errors, planned, batch=2):
        pass


def drop(desk: Desk, stream: str, batch: int, task: int) -> int:
    """Drop a receipt."""
    with transaction(desk.tasks.open(), timeout=TIMEOUT):
        return receipts.drop(desk.tasks.open(), (stream, batch, task))


# ---------------------------------------------------------------- a query


class Stream:
    """A query with a checkpoint: what is in its logs is all that a new driver knows."""

    def __init__(self, desk: Desk, books: Books, do: Callable[..., Any]) -> None:
        self.desk = desk
        self.books = books
        self.do = do
        self.query = str(uuid.uuid4())
        self.offsets: list[Offset] = []  # offsets/N
        self.commits = 0  # how many batches the commit log has
        self.failed = False  # the job of batch 2 fails once

    def run(self) -> None:
        """Run until nothing waits; a driver that dies is started again."""
        for _ in range(TRIES):
            with suppress(Died):
                if not self.batch():
                    return
                continue
            self.desk.restart()
        raise AssertionError(f"the stream found no end: {self.offsets}")

    def batch(self) -> bool:
        """Run a micro-batch, or the one that the offset log has and the commit log has not."""
        if len(self.offsets) == self.commits:
            start = self.offsets[-1] if self.offsets else INITIAL
            end = self.do(f"latest {self.commits + 1}", latest, start)
            if end == start:
                return self.books.waiting()
            self.offsets.append(end)
        number, end = len(self.offsets), self.offsets[-1]
        staged = [self.task(task, number) for task in self.desk.loop.tasks(end)]
        sink = f"query:{self.query}"
        if number == 2 and not self.failed:
            self.failed = True
            self.do(f"discard {number}", discard, sink, number)
            raise Died
        options = self.desk.shop.sink(transactionMode="sendsAtomicWithReceive")
        self.do(f"dispatch+settle {number}", dispatch, staged, options)
        self.commits = number
        self.books.let_go()
        return True

    def task(self, task: Task, number: int) -> Staged:
        """Run a task, its first one twice at once, until it is through."""
        for _ in range(TRIES):
            with suppress(Died):
                return self.attempt(task, number)
        raise AssertionError(f"task {task.task} of batch {number} found no end")

    def attempt(self, task: Task, number: int) -> Staged:
        """Receive, and stage what the query makes of it."""
        name, origin = f"{number}.{task.task}", Origin(query_id=self.query, query_batch=number - 1)
        rows = self.do(f"receive {name}", receive, task, origin)
        if task.task == 0 and not rows.equals(self.do(f"replay {name}", receive, task, origin)):
            self.books.wrong.append(f"replay {name}: other rows")
        chunks = [self.chunk(part) for part in (rows[:2], rows[2:]) if part.num_rows]
        sink = f"query:{self.query}"
        staged: Staged = self.do(f"stage {name}", stage, chunks, sink, number, origin)
        return staged

    def chunk(self, rows: pa.Table) -> pa.Table:
        """What the query makes of messages."""
        return self.books.chunk(rows["body"].to_pylist(), rows["headers"].to_pylist())


def lose(desk: Desk, books: Books, do: Doing) -> None:
    """Lose a query's first entry when the sink has its batch, and start a new query after it."""

    def unharmed(_: str, work: Callable[..., Any], *args: Any) -> Any:
        return work(desk, *args)

    query = Stream(desk, books, unharmed)
    query.batch()
    (end,), query.offsets, query.commits = query.offsets, [], 0
    books.post(["good"] * 3)
    desk.restart()
    again, origin = latest(desk, INITIAL), Origin(query_id=query.query, query_batch=0)
    tasks = desk.loop.tasks(again)
    if not all(until_done(do, "receive_lost", refused, task, origin) for task in tasks):
        query.offsets.append(again)
        query.run()
    for at in range(end.tasks):
        drop(desk, str(end.stream), end.batch, at)
    desk.restart()
    Stream(desk, books, unharmed).run()


# ---------------------------------------------------------------- a job that writes


def write(desk: Desk, books: Books, do: Doing) -> None:
    """
    Give one write up, send and publish one under a name, and one at least once.

    Some messages of the second have no destination, and go to the error queue.
    """
    given_up(desk, books, do)
    clean_up(desk, books, do)
    options = desk.shop.sink(undeliverable=desk.shop.printed("error"))
    # a job of its own: nothing is remembered
    subscriptions.cache.drop(options)
    chunks = [books.to_send(4), books.to_set_aside(3), books.to_publish(2)]
    for _ in range(TRIES):
        staged = [stage(desk, [chunk], "app:bill", 7, NO_STREAM) for chunk in chunks]
        with suppress(Died):
            do("dispatch", dispatch, staged, options)
            break
    chunks = [books.to_send(3), books.to_publish(2)]
    try:
        do("send_now", send_now, chunks)
    except Died:
        send_now(desk, chunks)
        books.twice(chunks if do.fell is None else chunks[: do.fell.commits])


def given_up(desk: Desk, books: Books, do: Doing) -> None:
    """Abort a write without a name; a late task of it stages nothing, or nothing that lasts."""
    sink = f"{send.NAMELESS}{uuid.uuid4()}"
    chunks = [books.chunk([books.message(None)] * 2, ["{}"] * 2)]
    stage(desk, chunks, sink, 0, NO_STREAM)
    with suppress(Died):
        do("discard+final", discard, sink, 0)
        stage(desk, chunks, sink, 0, NO_STREAM)
        if books.state("staging"):
            books.wrong.append("a late task staged for a write that was given up")
        return
    stage(desk, chunks, sink, 0, NO_STREAM)
    books.a_week_passes()


def clean_up(desk: Desk, books: Books, do: Doing) -> None:
    """Send a write without a name, whose dispatch deletes what such a write left a week ago."""
    sink = f"{send.NAMELESS}{uuid.uuid4()}"
    chunks = [books.chunk([books.message("sold")], ["{}"])]
    for _ in range(TRIES):
        staged = [stage(desk, chunks, sink, 0, NO_STREAM)]
        with suppress(Died):
            do("dispatch_nameless", dispatch, staged, desk.shop.sink())
            break


# ---------------------------------------------------------------- an operator


def request_opened(desk: Desk, request: str) -> None:
    """Enter a return that is about to be chosen."""
    in_log(request_sink(desk, request), open_request)


def request_given_up(desk: Desk, request: str) -> None:
    """See to it that a return is never sent."""
    in_log(request_sink(desk, request), give_up)


def request_sink(desk: Desk, request: str) -> dict[str, str]:
    """Options of the write of a return."""
    return desk.shop.raw() | {"txnAppId": request, "txnVersion": str(SENT)}


def let_go(desk: Desk, books: Books, do: Doing) -> None:
    """Give up a return while an attempt of it is under way: that sends nothing any more."""
    request = str(uuid.uuid4())
    chunks = [books.chunk([books.message(None)] * 2, ["{}"] * 2)]
    until_done(do, "open", request_opened, request)
    staged = stage(desk, chunks, f"app:{request}", SENT, NO_STREAM)
    until_done(do, "give_up", request_given_up, request)
    late = stage(desk, chunks, f"app:{request}", SENT, NO_STREAM)
    if sent := sum(dispatch(desk, [each], desk.shop.sink()) for each in (staged, late)):
        books.wrong.append(f"{sent} messages sent of a return that was given up")


def operate(desk: Desk, books: Books, do: Doing) -> None:
    """Return one receipt of a stream that is gone, drop the other, and receive again."""
    let_go(desk, books, do)
    end = latest(desk, INITIAL)
    tasks = desk.loop.tasks(end)
    kept, dropped = (receive(desk, task, Origin()) for task in tasks)
    until_done(do, "return", give_back, end.stream, end.batch, 0)
    until_done(do, "drop", drop, end.stream, end.batch, 1)
    books.dropped(dropped["body"].to_pylist())
    with suppress(StaleTask):
        books.wrong.append(f"{receive(desk, tasks[0], Origin())}: after {kept} were returned")
    desk.restart()

    def unharmed(_: str, work: Callable[..., Any], *args: Any) -> Any:
        return work(desk, *args)

    Stream(desk, books, unharmed).run()
    books.fail(3)
    until_done(do, "retry", return_to_source)
