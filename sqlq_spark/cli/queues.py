"""
The commands on queues: `stats`, `report` and `doctor` look at them and change nothing.

`purge` and `purge-expired` delete messages, `move-due` moves delayed ones, and `trail` shows who
purged, returned, dropped or retired.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from rich.console import Group
from rich.live import Live
from rich.text import Text
from typer import Option, Typer

from sqlq_spark import errors
from sqlq_spark.admin import doctor, purge, queue_sizes, state_tables, stats
from sqlq_spark.admin.formats import ShownColumn, quantity, show_span, view, write_utf_8
from sqlq_spark.admin.queue_checks import Finding
from sqlq_spark.cli import options as cli
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import Command, Context, StateCommand, require_option
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import find_states
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options.names import parse_table
from sqlq_spark.receive.due import DUE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from sqlq_spark.admin.stats import Look
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

app = Typer()

# Each look of --watch counts the rows of the queues, which loads the server. So the pause after a
# look is at least this many times as long as the look took.
PAUSE_FACTOR = 4.0
# --watch continues after these errors.
TEMPORARY_ERRORS = (
    errors.ConnectionLost,
    errors.CredentialsFailed,
    errors.Deadlock,
    errors.NotReachable,
    errors.TimedOut,
)


# ---------------------------------------------------------------- stats


class LookCommand(StateCommand):
    """The options of the commands that look at queues and streams."""

    shared = ("endpoint_time_zone", *StateCommand.shared)


@app.command("stats", cls=LookCommand)
def stats_command(
    context: Context,
    queues: cli.Queues = None,
    *,
    watch: Annotated[bool, Option("--watch", help="Continue until Ctrl-C.")] = False,
    interval: Annotated[float, Option(min=0.1, help="Seconds between two looks of --watch.")] = 2.0,
    count: Annotated[int | None, Option(min=1, help="End --watch after so many looks.")] = None,
    openmetrics: Annotated[
        str | None,
        Option(metavar="FILE", help="Write gauges for Prometheus; - is the standard output."),
    ] = None,
) -> None:
    """
    Show the depth of queues, delayed messages and streams, and what is wrong.

    Without a name it shows all queues that this login may read.
    A number with ~ is an estimate: tables of more than 256 MiB are not counted.
    --watch redraws the screen of a terminal, and prints each look elsewhere.
    in/s is the growth of the highest seq. out/s is in/s less the change of the
    backlog. lag is waiting and held messages.
    --openmetrics replaces the file at once, also at each look of --watch.
    """
    as_json, options = context.obj.as_json, context.obj.database()
    require_option(count is None or watch, "--count", count, "--watch with it")
    require_option(not (openmetrics and as_json), "--openmetrics", openmetrics, "no --json with it")
    if openmetrics == "-":
        write_utf_8()
    on_screen = watch and not openmetrics and not as_json and sys.stdout.isatty()
    # What is printed as an error stays visible below the tables until the next look.
    live = Live(console=screen.out(), screen=True, auto_refresh=False, redirect_stderr=False)
    show = (
        partial(live.update, refresh=True)
        if on_screen
        else partial(live.console.print, soft_wrap=True)
    )
    session, state_schema = context.session(options), options.state_schema
    with screen.until_stopped() if watch else nullcontext(), live if on_screen else nullcontext():
        for done, now in enumerate(looks(session, queues or [], options, interval), 1):
            if openmetrics == "-":
                sys.stdout.write(stats.to_metrics(now, options))
            elif openmetrics:  # 0o644, so that the collector's user can read the file
                write(openmetrics, stats.to_metrics(now, options), "--openmetrics", 0o644)
            elif as_json:
                screen.print_json(stats.to_json(now))
            else:
                show(draw(now, state_schema, "watch" if watch else "once"))
            sys.stdout.flush()
            if not watch or done == count:
                return


def looks(
    session: Session, names: Sequence[str], options: DatabaseOptions, interval: float
) -> Iterator[Look]:
    """
    Look and pause, again and again, without an end.

    A temporary error is printed, and the next look tries again. An error of the first look is
    raised.
    """
    before: Look | None = None
    while True:
        began = time.monotonic()
        try:
            before = stats.add_rates(before, stats.take_look(session.open(), names, options))
        except TEMPORARY_ERRORS as error:
            if before is None:
                raise
            session.close()
            say_error(f"{error.describe(cli.FLAGS).removesuffix('.')}. Trying again.")
        else:
            yield before
        time.sleep(max(interval, PAUSE_FACTOR * (time.monotonic() - began)))


def draw(now: Look, state_schema: str, view_name: str) -> Group:
    """Draw the tables of queues and of streams, with the columns of a view, and what is wrong."""
    parts: list[RenderableType] = [
        screen.draw_rows(view(stats.QUEUE_COLUMNS, view_name), now.queues, "queues")
        if now.queues
        else Text(screen.NO_QUEUES),
        Text(
            f"no streams: this login sees no state tables in schema {errors.clean(state_schema)} "
            "(`sqlqueue install` creates them)"
        )
        if now.streams is None
        else screen.draw_rows(view(stats.STREAM_COLUMNS, view_name), now.streams, "streams"),
    ]
    for problem in now.problems:
        parts += screen.finding_lines(problem)
    if view_name == "watch":
        parts.insert(0, Text(f"{now.at:%Y-%m-%d %H:%M:%S} UTC. Press Ctrl-C to end.", "dim"))
    return Group(*parts)


# ---------------------------------------------------------------- report


@app.command("report", cls=LookCommand)
def report_command(
    context: Context,
    queues: cli.Queues = None,
    *,
    html: Annotated[Path | None, Option(help="Write the page to this file.")] = None,
) -> None:
    """
    Write one page: what waits, what failed, what is wrong.

    What failed is that of all error queues among these queues, by exception.
    The page has no script and loads nothing.
    With --json the command prints the figures, with or without a page.
    It reads headers, not bodies, and deletes and locks nothing.
    """
    from sqlq_spark.admin import report  # noqa: PLC0415 - see cli

    if html is None and not context.obj.as_json:
        example = "a file for the page, or use --json to print the figures"
        raise errors.MissingOption(option="--html", example=example)
    options = context.obj.database()
    connection = context.connect(options)
    found = stats.take_look(connection, queues or (), options)
    failures = report.find_failures(connection, found, are_named=bool(queues))
    if html is not None:
        # The page names queues, logins and failures. Others may be able to read the folder.
        page = report.write_page(connection.server, found, failures)
        write(str(html), page, "--html", 0o600)
    figures = stats.to_json(found) | {"server": connection.server, "failures": failures}
    context.answer(figures, f"the report of {quantity(len(found.queues), 'queue')} is in {html}")


def write(name: str, text: str, option: str, mode: int) -> None:
    """Replace a file, in one step, by a new one with the permissions `mode`."""
    path = Path(name)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder, "new")
            new.write_text(text, encoding="utf-8", errors="replace")
            new.chmod(mode)
            new.replace(path)
    except OSError as error:
        expected = f"a file to write ({error.strerror})"
        raise errors.BadOption(option=option, found=name, expected=expected) from None


# ---------------------------------------------------------------- purge


class PurgeCommand(StateCommand):
    """The options of `purge`."""

    shared = ("yes", *StateCommand.shared)


@app.command("purge", cls=PurgeCommand)
def purge_command(context: Context, queue: cli.QueueName) -> None:
    """
    Delete every message that waits in a queue, in batches, the lowest seq first. Asks first.

    Waits for messages that a consumer has locked. Messages sent meanwhile
    stay. A deleted message cannot be restored.
    """
    options = context.obj.source(queue)
    connection = context.connect(options)
    with transaction(connection):
        depth = queue_sizes.measure_queue(connection, options.address)
    messages = depth.messages
    if messages:
        context.confirm(f"delete {quantity(messages, 'message')} of {depth.queue} permanently")
    recorded = messages > 0 and cli.keeps_trail(connection)
    batches = purge.purge_parts(connection, options.address, depth, recorded=recorded)
    gone = context.follow(batches, "message", messages, "deleted")
    result = {"queue": depth.queue, "deleted": gone, "recorded": recorded}
    context.answer(result, f"{quantity(gone, 'message')} deleted")


@app.command("purge-expired", cls=Command)
def purge_expired_command(context: Context, queue: cli.QueueName) -> None:
    """Delete expired messages, in batches. Skips messages that others have locked."""
    options = context.obj.source(queue)
    connection = context.connect(options)
    with transaction(connection):
        depth = queue_sizes.measure_queue(connection, options.address)
    batches = purge.purge_expired(connection, options.address)
    gone = context.follow(batches, "expired message", depth.expired or 0, "deleted")
    result = {"queue": depth.queue, "deleted": gone}
    context.answer(result, f"{quantity(gone, 'expired message')} deleted from {depth.queue}")


# ---------------------------------------------------------------- move-due


class MoveDueCommand(Command):
    """The options of `move-due`."""

    shared = ("endpoint_time_zone", *Command.shared)


@app.command("move-due", cls=MoveDueCommand)
def move_due_command(
    context: Context,
    queue: cli.QueueName,
    *,
    watch: Annotated[bool, Option("--watch", help="Continue until Ctrl-C.")] = False,
    batch: Annotated[int, Option(min=1, help="Messages per transaction.")] = DUE_BATCH,
) -> None:
    """
    Move the delayed messages that are due into their queue. The receiver forwards them.

    With --watch the command looks again after 1 s, then 2 s, up to 60 s, and
    no later than the next due time. It prints each look that moved messages.
    """
    from sqlq_spark.receive.due import Moved, Mover, pause  # noqa: PLC0415 - see cli

    options = context.obj.source(queue)
    move = partial(Mover(options.address, options).move, most=batch)
    session = context.session(options)
    name, slept = session.open().printed(options.address), 0.0
    with screen.until_stopped() if watch else nullcontext():
        while True:
            messages, is_full = 0, True
            while is_full:
                moved = session.run_with_retries(move)
                messages += moved.messages
                is_full = moved.messages == batch
            if moved.next_due is None:
                then = "no message waits"
            elif moved.next_due <= 0:
                then = "more are due, but another process is moving them"
            else:
                then = f"the next is due in {show_span(moved.next_due)}"
            if messages or not watch:
                shown = {"queue": name, "moved": messages, "nextDueSeconds": moved.next_due}
                context.answer(shown, f"{quantity(messages, 'message')} moved into {name}; {then}")
            if not watch:
                return
            slept = pause(slept, Moved(messages, moved.next_due))
            time.sleep(slept)


# ---------------------------------------------------------------- doctor


class DoctorCommand(Command):
    """The options of `doctor`."""

    shared = ("subscription_table", "state_schema", *Command.shared)
    meanings: ClassVar[dict[str, str]] = {"state_schema": cli.ALL_STATES}


@app.command("doctor", cls=DoctorCommand)
def doctor_command(
    context: Context,
    queues: cli.Queues = None,
    *,
    warn_if_shared: Annotated[
        bool, Option(help="Warn if an endpoint seems to own the queue of a stream.")
    ] = True,
) -> None:
    """
    Check queues, subscriptions, streams and the server, and print the fix of each problem.

    Without a name it checks all queues that this login may read. Without
    --state-schema it names the state schemas that it did not look into.
    Changes nothing. The exit code is 1 if there is an error or a warning.
    """
    options = context.obj.sink()
    asked = [parse_table("QUEUE", name, options.naming) for name in queues or ()]
    connection = context.connect(options)
    connection.trusted = options.trusted.with_named(asked)
    states, unread = ([], {}) if context.obj.state_schema else find_states(connection)
    states = states or ([] if unread else [options.state_schema])
    unnamed, found = ([], []) if asked else find_queues(connection, states)
    for state, reason in unread.items():
        problem = f"state schema {state} was not looked into: {reason}"
        note = Finding(
            where=connection.server, name="state_unread", severity="note", found=problem, fix=""
        )
        found.append(note)
    found += doctor.run_all_checks(
        connection,
        [*asked, *unnamed],
        warn_if_shared=warn_if_shared,
        unnamed=unnamed,
        states=states,
    )
    found += doctor.of_subscriptions(connection, options.subscription_address)
    if context.obj.as_json:
        for finding in found:
            screen.print_json(asdict(finding))
    else:
        if not (asked or unnamed):
            say(screen.NO_QUEUES)
        show_findings(found)
        for state in states:
            say(doctor.describe_version(connection, state))
    if any(finding.is_problem for finding in found):
        context.exit(cli.FOUND)


def find_queues(
    connection: Connection, states: Sequence[str]
) -> tuple[list[QueueAddress], list[Finding]]:
    """
    Find the queues that this login may read and those that streams read, each once.

    Returns:
        The queues; and a finding for each stream's queue that is no address.
    """
    of_streams, found = doctor.queues_of_streams(connection, states)
    readable = [table.address for table in queue_sizes.list_tables(connection)]
    by_name = {connection.printed(queue): queue for queue in (*readable, *of_streams)}
    return [*by_name.values()], found


def show_findings(found: Sequence[Finding]) -> None:
    """Print findings with their fixes, errors first."""
    for finding in sorted(found, key=attrgetter("rank")):
        screen.out().print(*screen.finding_lines(finding), sep="\n", soft_wrap=True)
    if not any(finding.is_problem for finding in found):
        screen.out().print("no problems found", style="green")


# ---------------------------------------------------------------- trail

TRAIL_COLUMNS = [ShownColumn(field.name) for field in fields(state_tables.TrailEntry)]


@app.command("trail", cls=StateCommand)
def trail_command(
    context: Context,
    queue: cli.MaybeQueue = None,
    *,
    last: Annotated[int, Option(min=1, help="How many entries.")] = 100,
) -> None:
    """
    Show the audit trail, the latest entry first.

    An entry says who purged, returned, dropped or retired, when, and how many
    messages. Each transaction of a command has one.
    """
    options = context.obj.database()
    address = cli.queue_or_none("queue", queue, options)
    connection = context.connect(options, StateSession)
    with transaction(connection):
        entries = state_tables.read_trail(connection, entries=last, queue=address)
    context.show(TRAIL_COLUMNS, entries, "entries")
