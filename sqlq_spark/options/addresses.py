"""Names of queues and tables that users write, in options and in commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.wire.address import SHOWN, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.wire.address import Names


def parse_queue(option: str, text: str, naming: Names) -> QueueAddress:
    """
    Read a queue's name in the notation of the database.

    Args:
        option: the option or flag that an error names.
        text: as the user wrote it.
        naming: of the database.

    Raises:
        BadOption: the text is no queue's name.
    """
    return _parse(option, text, naming.parse_queue)


def parse_queue_unless(word: str) -> Callable[[str, str, Names], QueueAddress | None]:
    """Return a reader like `parse_queue` that reads one word, in any case, as None."""

    def read(option: str, text: str, naming: Names) -> QueueAddress | None:
        return None if text.lower() == word else parse_queue(option, text, naming)

    return read


def parse_destination(option: str, text: str, naming: Names) -> QueueAddress:
    """Read where a row of a frame goes: a queue's name, or an address that a message holds."""
    return _parse(option, text, naming.parse_destination)


def parse_reply_address(option: str, text: str, naming: Names) -> QueueAddress:
    """
    Read where replies go, from an option: a queue's name, or an address that a message holds.

    Nobody checks whether this queue exists, because it may be in another endpoint's hands. So a
    text in the notation of another database is refused.

    Raises:
        BadOption: the text is no queue's name.
    """
    return _parse_reply(option, text, naming, naming.parse_queue)


def parse_reply_column(option: str, text: str, naming: Names) -> QueueAddress:
    """Read where replies go, from a row of a frame, as `parse_reply_address`."""
    return _parse_reply(option, text, naming, naming.parse_destination)


def _parse_reply(
    option: str, text: str, naming: Names, parse: Callable[[str], QueueAddress]
) -> QueueAddress:
    if naming.is_of_other_database(text):
        example = naming.print_address(QueueAddress("Spark.In"))
        raise BadOption(
            option=option,
            found=text[:SHOWN],
            expected=f"an address of this database, for example {example}",
        )
    # `public."Spark.In"` is an address, although no name of a queue begins so
    return _parse(option, text, naming.parse_address if '"' in text else parse)


def parse_table(option: str, text: str, naming: Names) -> QueueAddress:
    """Read the name of an existing table, as `parse_queue`; it may be longer than a queue's."""
    return _parse(option, text, naming.parse_table)


def parse_queues(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of queues that commas separate, as `parse_queue`."""
    return tuple(parse_queue(option, each, naming) for each in _split(option, text, naming))


def parse_tables(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of existing tables that commas separate; each result has its schema."""
    found = (parse_table(option, each, naming) for each in _split(option, text, naming))
    return tuple(map(naming.qualify, found))


def _parse(option: str, text: str, parse: Callable[[str], QueueAddress]) -> QueueAddress:
    try:
        return parse(text)
    except BadAddress as error:
        raise BadOption(
            option=option, found=text[:SHOWN], expected=f"a queue's name ({error.reason})"
        ) from None


def _split(option: str, text: str, naming: Names) -> list[str]:
    try:
        return naming.split_list(text)
    except BadAddress as error:
        expected = f"names of queues, separated by commas ({error.reason})"
        raise BadOption(option=option, found=text, expected=expected) from None
