"""The command `retry`: returns messages of an error queue to the queues where they failed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    Allow,
    AskingCommand,
    Queue,
    Shared,
    confirm,
)
from sqlq_spark.cli.screen import print_json, say, say_error, show
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.admin.failed_messages import Plan, Returned

app = typer.Typer()

SHOWN_IDS = 5  # in one line
MOMENT = "a time with its zone, for example 2026-06-30T17:05:09Z"


@app.command("retry", cls=AskingCommand)
def retry_(
    context: typer.Context,
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Messages, by message id or row id.")
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Return all messages of the error queue.")
    ] = False,
    exception: Annotated[
        list[str] | None,
        typer.Option(help="Only failures of this exception type: its full name or its last part."),
    ] = None,
    failed_queue: Annotated[
        str | None, typer.Option(help="Only messages that failed in this queue.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only messages that failed at this time or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only messages that failed before this time.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the oldest so many of them, to try a fix before the rest."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages per transaction.")] = 1000,
    allow: Allow = None,
) -> None:
    """
    Return failed messages from an error queue to the queues in which they failed.

    Name messages, or choose them by exception, queue and time (all conditions
    must match), or use --all. With --limit the oldest of them are returned.
    A message that cannot be returned stays in the error queue. The command
    reports it and exits with 1.
    """
    from sqlq_spark.admin.failed_messages import Choice, give_back, plan  # noqa: PLC0415 - see cli

    shared: Shared = context.obj
    options = shared.source(queue, allowedDestinations=", ".join(allow) if allow else None)
    choice = Choice(
        ids=frozenset(ids or ()),
        exceptions=frozenset(exception or ()),
        failed_queue=None
        if failed_queue is None
        else parse_queue("--failed-queue", failed_queue, options.naming),
        since=moment("--since", since),
        until=moment("--until", until),
    )
    if everything and choice != Choice():
        raise BadOption(
            option="--all", found="true", expected="no other choice of messages with it"
        )
    if not everything and choice == Choice():
        raise MissingOption(
            option="ID", example="the messages to return, or --exception, --failed-queue, or --all"
        )
    with Session(options, "retry") as session:
        connection = session.open()
        name = connection.printed(options.address)
        planned = plan(connection, options.address, choice, options, limit=limit)
        ask(name, planned, shared)
        batches = give_back(session, options.address, planned, batch=batch)
        done = follow(batches, planned.messages, quiet=shared.as_json)
        refused = {connection.printed(each.destination): each for each in done if each.reason}
    if shared.as_json:
        print_json(summary(name, planned, done, refused))
    else:
        report(done, refused)
    if planned.staying or planned.missing or any(each.skipped or each.reason for each in done):
        raise typer.Exit(FOUND)


def moment(option: str, text: str | None) -> datetime | None:
    """Read a time with its zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadOption(option=option, found=text, expected=MOMENT)
    return found


def ask(name: str, planned: Plan, shared: Shared) -> None:
    """Show what will be returned and what will not, and ask before messages are returned."""
    if not shared.as_json:
        rows = ((messages, *group) for *group, messages in planned.groups)
        show(("messages", "failed queue", "exception"), rows, "messages to return")
        for reason, some in planned.staying.items():
            ids = first_of([each.id for each in some])
            say_error(f"{quantity(len(some), 'message')} cannot be returned: {reason} ({ids})")
        if planned.missing:
            say_error(f"not in the error queue: {first_of(planned.missing)}")
    if planned.messages:
        queues = quantity(len(planned.returning), "queue")
        messages = quantity(planned.messages, "message")
        confirm(f"return {messages} of {name} to {queues}", shared)


def first_of(ids: list[str]) -> str:
    """The first ids, for one line."""
    return ", ".join(ids[:SHOWN_IDS]) + (", …" if len(ids) > SHOWN_IDS else "")


def follow(batches: Iterable[Returned], messages: int, *, quiet: bool) -> list[Returned]:
    """Show the progress; returns the result of each batch."""
    done = []
    with screen.progress("message", messages, quiet=quiet, done="returned") as advance:
        for each in batches:
            done.append(each)
            advance(each.messages)
    return done


def summary(
    name: str, planned: Plan, done: list[Returned], refused: dict[str, Returned]
) -> dict[str, Any]:
    """The result as a JSON object."""
    staying = {reason: len(some) for reason, some in planned.staying.items()}
    for each in refused.values():
        staying[str(each.reason)] = staying.get(str(each.reason), 0) + each.left
    return {
        "queue": name,
        "returned": sum(each.messages for each in done),
        "skipped": sum(each.skipped for each in done),
        "chosen": [
            {"failedQueue": queue, "exception": exception, "messages": messages}
            for queue, exception, messages in planned.groups
        ],
        "staying": staying,
        "missing": planned.missing,
    }


def report(done: list[Returned], refused: dict[str, Returned]) -> None:
    """Print the result as lines."""
    for queue, each in refused.items():
        say_error(f"{quantity(each.left, 'message')} of {queue} cannot be returned: {each.reason}")
    if skipped := sum(each.skipped for each in done):
        say_error(
            f"{quantity(skipped, 'message')} skipped: another session has locked or received them"
        )
    say(f"{quantity(sum(each.messages for each in done), 'message')} returned")
