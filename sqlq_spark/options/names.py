"""
Names that users write: which database a url means, and queues and tables in its notation.

wire/address.py has the notation of each database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.wire.address import POSTGRESQL, SHOWN, SQLSERVER, Names, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = "postgresql://user@host:5432/database or sqlserver://user@host:1433/database"
STATE = "sqlqueue"  # default schema of the state tables; that of a domain is sqlqueue_NAME

# by the dialect's name; the statements of the first are the model for the others
DIALECTS = {names.dialect: names for names in (POSTGRESQL, SQLSERVER)}
SCHEMES = DIALECTS | {"postgres": POSTGRESQL}


def names_of(url: str) -> Names:
    """
    Return how the database of a url writes names.

    Raises:
        BadOption: no dialect has this scheme.
    """
    scheme, colon, _ = url.partition("://")
    try:
        return SCHEMES[scheme.lower()]
    except KeyError:
        found = f"{scheme}://…" if colon else "…"  # the text may hold a password
        raise BadOption(option="url", found=found, expected=EXAMPLES) from None


def other_password_variables(url: str) -> set[str]:
    """Return the environment variables whose password is for other databases than the url's."""
    own = SCHEMES.get(url.partition("://")[0].lower())
    return {
        each.password_variable
        for each in DIALECTS.values()
        if each.password_variable is not None and each is not own
    }


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


def parse_table(option: str, text: str, naming: Names) -> QueueAddress:
    """Read the name of an existing table, as `parse_queue`; it may be longer than a queue's."""
    return _parse(option, text, naming.parse_table)


def parse_queues(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of queues that commas separate, as `parse_queue`."""
    return tuple(parse_queue(option, name, naming) for name in _split(option, text, naming))


def parse_tables(option: str, text: str, naming: Names) -> tuple[QueueAddress, ...]:
    """Read the names of existing tables that commas separate; each result has its schema."""
    tables = (parse_table(option, name, naming) for name in _split(option, text, naming))
    return tuple(map(naming.qualify, tables))


def _parse_reply(
    option: str, text: str, naming: Names, parse: Callable[[str], QueueAddress]
) -> QueueAddress:
    if naming.is_of_other_database(text):
        example = naming.print_address(QueueAddress("Spark.In"))
        expected = f"an address of this database, for example {example}"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected)
    # `public."Spark.In"` is an address, although no name of a queue begins so
    return _parse(option, text, naming.parse_address if '"' in text else parse)


def _parse(option: str, text: str, parse: Callable[[str], QueueAddress]) -> QueueAddress:
    try:
        return parse(text)
    except BadAddress as error:
        expected = f"a queue's name ({error.reason})"
        raise BadOption(option=option, found=text[:SHOWN], expected=expected) from None


def _split(option: str, text: str, naming: Names) -> list[str]:
    try:
        return naming.split_list(text)
    except BadAddress as error:
        expected = f"names of queues, separated by commas ({error.reason})"
        raise BadOption(option=option, found=text, expected=expected) from None
