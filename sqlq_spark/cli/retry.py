"""The command `retry`: returns messages of an error queue to the queues where they failed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    TIMEOUT,
    AsJson,
    Credentials,
    Patience,
    Queue,
    Url,
    Yes,
    answerable,
    confirm,
    source_options,
)
from sqlq_spark.cli.screen import print_json, say, say_error, show
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.admin.failed_messages import Choice, Plan
    from sqlq_spark.admin.return_to_source import Returned
    from sqlq_spark.options import SourceOptions

app = typer.Typer()

BATCH = 1000  # that of return_to_source, which --help does not import
SHOWN_IDS = 5  # in one line
MOMENT = "a time with its zone, for example 2026-06-30T17:05:09Z"


@app.command("retry")
def retry_(
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
    batch: Annotated[int, typer.Option(min=1, help="Messages per transaction.")] = BATCH,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Also return to this table of another owner; * and ? are wildcards."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
) -> None:
    """
    Return failed messages from an error queue to the queues in which they failed.

    Name messages, or choose them by exception, queue and time (all conditions
    must match), or use --all.
    A message that cannot be returned stays in the error queue. The command
    reports it and exits with 1.
    """
    from sqlq_spark.admin import failed_messages, return_to_source  # noqa: PLC0415 - see cli

    answerable(yes=yes, as_json=as_json)
    options = source_options(
        url,
        queue,
        queryTimeout=query_timeout,
        allowedDestinations=", ".join(allow) if allow else None,
        credentials=credentials,
    )
    choice = read_choice(
        options,
        ids=ids or (),
        exceptions=exception or (),
        failed_queue=failed_queue,
        since=since,
        until=until,
    )
    if everything != (choice == failed_messages.Choice()):
        raise no_choice(everything=everything)
    with Session(options, "retry") as session:
        connection = session.open()
        name = connection.printed(options.address)
        planned = failed_messages.plan(
            connection,
            options.address,
            choice,
            timeout=options.query_timeout,
            allowed=options.allowed,
        )
        ask(name, planned, yes=yes, as_json=as_json)
        batches = return_to_source.give_back(
            session, options.address, planned, batch=batch, allowed=options.allowed
        )
        done = follow(batches, planned.messages, quiet=as_json)
        refused = {connection.printed(each.destination): each for each in done if each.reason}
    if as_json:
        print_json(summary(name, planned, done, refused))
    else:
        report(done, refused)
    if is_incomplete(planned, done):
        raise typer.Exit(FOUND)


def ask(name: str, planned: Plan, *, yes: bool, as_json: bool) -> None:
    """Show the plan, and ask before messages are returned."""
    if not as_json:
        show_plan(planned)
    if planned.messages:
        queues = quantity(len(planned.returning), "queue")
        messages = quantity(planned.messages, "message")
        confirm(f"return {messages} of {name} to {queues}", yes=yes, as_json=as_json)


def no_choice(*, everything: bool) -> Exception:
    """The error for a choice of nothing, or of all messages and a part of them."""
    if everything:
        return BadOption(
            option="--all", found="true", expected="no other choice of messages with it"
        )
    return MissingOption(
        option="ID", example="the messages to return, or --exception, --failed-queue, or --all"
    )


def read_choice(
    options: SourceOptions,
    *,
    ids: Iterable[str],
    exceptions: Iterable[str],
    failed_queue: str | None,
    since: str | None,
    until: str | None,
) -> Choice:
    """Read which messages the command is to return."""
    from sqlq_spark.admin import failed_messages  # noqa: PLC0415 - see cli

    queue = None
    if failed_queue is not None:
        queue = parse_queue("--failed-queue", failed_queue, options.naming)
    return failed_messages.Choice(
        ids=frozenset(ids),
        exceptions=frozenset(exceptions),
        failed_queue=queue,
        since=moment("--since", since),
        until=moment("--until", until),
    )


def moment(option: str, text: str | None) -> datetime | None:
    """Read a time with its zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(option=option, found=text, expected=MOMENT) from None
    if found.tzinfo is None:
        raise BadOption(option=option, found=text, expected=MOMENT)
    return found


def show_plan(planned: Plan) -> None:
    """Print what will be returned, and what will not."""
    rows = ((each.messages, each.failed_queue, each.exception) for each in planned.groups)
    show(("messages", "failed queue", "exception"), rows, "messages to return")
    for reason, some in planned.staying.items():
        ids = first_of([each.id for each in some])
        say_error(f"{quantity(len(some), 'message')} cannot be returned: {reason} ({ids})")
    if planned.missing:
        say_error(f"not in the error queue: {first_of(planned.missing)}")


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
            {
                "failedQueue": each.failed_queue,
                "exception": each.exception,
                "messages": each.messages,
            }
            for each in planned.groups
        ],
        "staying": staying,
        "missing": planned.missing,
    }


def report(done: list[Returned], refused: dict[str, Returned]) -> None:
    """Print the result as lines."""
    messages, skipped = (sum(getattr(each, of) for each in done) for of in ("messages", "skipped"))
    for queue, each in refused.items():
        say_error(f"{quantity(each.left, 'message')} of {queue} cannot be returned: {each.reason}")
    if skipped:
        say_error(
            f"{quantity(skipped, 'message')} skipped: another session has locked or received them"
        )
    say(f"{quantity(messages, 'message')} returned")


def is_incomplete(planned: Plan, done: list[Returned]) -> bool:
    """Whether a chosen message was not returned."""
    left = any(each.skipped or each.reason for each in done)
    return left or bool(planned.staying or planned.missing)
