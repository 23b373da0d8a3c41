"""The command `retry`: failed messages go back from an error queue to where they failed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import retry
from sqlq_spark.admin.formats import counted
from sqlq_spark.cli.options import (
    FOUND,
    AsJson,
    Patience,
    Queue,
    Url,
    Yes,
    answerable,
    confirm,
    given_queue,
)
from sqlq_spark.cli.screens.progress import progress
from sqlq_spark.cli.screens.screen import print_json, say, say_error, show
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.addresses import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.admin.retry import Choice, Plan, Returned
    from sqlq_spark.options import SourceOptions

app = typer.Typer()

TOLD = 5  # ids that a line names
MOMENT = "a time with its zone, as 2026-06-30T17:05:09Z"


@app.command("retry")
def retry_(
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Messages, by the id of message or row.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of the error queue.")] = False,
    exception: Annotated[
        list[str] | None, typer.Option(help="Those of this type: its full name, or its last part.")
    ] = None,
    failed_queue: Annotated[
        str | None, typer.Option(help="Those that failed in this queue.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Those that failed then or later.")] = None,
    until: Annotated[str | None, typer.Option(help="Those that failed before.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Messages in a transaction.")] = retry.BATCH,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Also to this table, whoever owns it; * and ? stand for any text."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """
    Return failed messages from an error queue to the queues in which they failed.

    Name messages, or choose by exception, queue and time (all that is given
    must fit), or --all.
    What cannot be returned stays where it is and is told; the exit code is 1
    then.
    """
    answerable(yes=yes, as_json=as_json)
    options = given_queue(
        url,
        queue,
        queryTimeout=query_timeout,
        allowedDestinations=", ".join(allow) if allow else None,
    )
    choice = chosen(
        options,
        ids=ids or (),
        exceptions=exception or (),
        failed_queue=failed_queue,
        since=since,
        until=until,
    )
    if everything != (choice == retry.Choice()):
        raise whole_or_part(everything=everything)
    with Session(options, "retry", state=False) as session:
        connection = session.open()
        name = connection.printed(options.address)
        planned = retry.plan(
            connection,
            options.address,
            choice,
            timeout=options.query_timeout,
            allowed=options.allowed,
        )
        if not as_json:
            show_plan(planned)
        if planned.messages:
            queues = counted(len(planned.returning), "queue")
            messages = counted(planned.messages, "message")
            confirm(f"return {messages} of {name} to {queues}", yes=yes, as_json=as_json)
        batches = retry.give_back(
            session, options.address, planned, batch=batch, allowed=options.allowed
        )
        done = follow(batches, planned.messages, quiet=as_json)
        refused = {connection.printed(each.destination): each for each in done if each.reason}
    tell(name, planned, done, refused, as_json=as_json)
    if stays(planned, done):
        raise typer.Exit(FOUND)


def whole_or_part(*, everything: bool) -> Exception:
    """Why a choice is refused that is of nothing, or of all and a part."""
    if everything:
        return BadOption("--all", "true", "nothing that chooses a part beside it")
    return MissingOption("ID", "the messages to return, or --exception, --failed-queue, or --all")


def chosen(
    options: SourceOptions,
    *,
    ids: Iterable[str],
    exceptions: Iterable[str],
    failed_queue: str | None,
    since: str | None,
    until: str | None,
) -> Choice:
    """Read what the command was told to choose."""
    queue = None
    if failed_queue is not None:
        address = parse_queue("--failed-queue", failed_queue, options.naming)
        queue = options.naming.print_address(address)
    return retry.Choice(
        ids=frozenset(ids),
        exceptions=frozenset(exceptions),
        failed_queue=queue,
        since=moment("--since", since),
        until=moment("--until", until),
    )


def moment(option: str, text: str | None) -> datetime | None:
    """Read a time that says its zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(option, text, MOMENT) from None
    if found.tzinfo is None:
        raise BadOption(option, text, MOMENT)
    return found


def show_plan(planned: Plan) -> None:
    """What will be returned, and what will not."""
    rows = ((each.messages, each.failed_queue, each.exception) for each in planned.groups)
    show(("messages", "failed queue", "exception"), rows, "messages to return")
    for reason, some in planned.staying.items():
        named = ", ".join(each.id for each in some[:TOLD]) + (", …" if len(some) > TOLD else "")
        say_error(f"{counted(len(some), 'message')} cannot be returned: {reason} ({named})")
    if planned.missing:
        more = ", …" if len(planned.missing) > TOLD else ""
        say_error(f"not in the error queue: {', '.join(planned.missing[:TOLD])}{more}")


def follow(batches: Iterable[Returned], messages: int, *, quiet: bool) -> list[Returned]:
    """Show how far it is; what became of each batch."""
    done = []
    with progress("message", messages, quiet=quiet, done="returned") as advance:
        for each in batches:
            done.append(each)
            advance(each.messages)
    return done


def tell(
    name: str,
    planned: Plan,
    done: list[Returned],
    refused: dict[str, Returned],
    *,
    as_json: bool,
) -> None:
    """Say what was done."""
    messages, skipped = (sum(getattr(each, of) for each in done) for of in ("messages", "skipped"))
    if as_json:
        staying = {reason: len(some) for reason, some in planned.staying.items()}
        for each in refused.values():
            staying[str(each.reason)] = staying.get(str(each.reason), 0) + each.left
        print_json(
            {
                "queue": name,
                "returned": messages,
                "skipped": skipped,
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
        )
        return
    for queue, each in refused.items():
        say_error(f"{counted(each.left, 'message')} of {queue} cannot be returned: {each.reason}")
    if skipped:
        say_error(f"{counted(skipped, 'message')} passed over: others hold them, or took them")
    say(f"{counted(messages, 'message')} returned")


def stays(planned: Plan, done: list[Returned]) -> bool:
    """Whether something of what was asked for was not done."""
    left = any(each.skipped or each.reason for each in done)
    return left or bool(planned.staying or planned.missing)
