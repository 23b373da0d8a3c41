"""
How each database writes names: one frozen value for each dialect.

The rest of the package asks this value. It never looks at a url's scheme or at a quote character.
No driver is imported here. `wire/address.py` holds the notations that the functions follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import POSTGRESQL as POSTGRESQL_NOTATION
from sqlq_spark.wire.address import SQLSERVER as SQLSERVER_NOTATION
from sqlq_spark.wire.address import (
    Notation,
    QueueAddress,
    bracketed,
    identifier,
    name_postgresql,
    name_sqlserver,
    parse_postgresql,
    parse_sqlserver,
    print_postgresql,
    print_sqlserver,
    quote_postgresql,
    quote_sqlserver,
    table_postgresql,
)
from sqlq_spark.wire.address_list import split_list, split_list_sqlserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database.statements import StatementName

EXAMPLES = "postgresql://user@host:5432/database or sqlserver://user@host:1433/database"
STATE = "sqlqueue"  # default schema of the state tables; that of a domain is sqlqueue_NAME


@dataclass(frozen=True, kw_only=True)
class Names:
    """
    How one database writes names.

    Functions that read a text raise BadAddress for a name that the database cannot hold.
    """

    dialect: str  # the folder beside this module
    notation: Notation  # with the limits of names
    has_catalogs: bool  # an address in a message names the database too
    has_legacy_columns: bool  # its queues have columns for endpoints of version 1
    lacks: frozenset[StatementName]  # statements that it has no use for; callers ask
    misread: str | None  # what the tool that runs a script would misread in a name, a pattern
    password_variable: str | None  # the environment variable that only this database's tools read
    # what replaces the option `credentials`; None: the option may be set
    own_credentials: str | None
    parse_address: Callable[[str], QueueAddress]  # an address in a message
    parse_queue: Callable[[str], QueueAddress]  # a queue's name, as a user writes it
    parse_destination: Callable[[str], QueueAddress]  # a name or an address in a row of a frame
    parse_table: Callable[[str], QueueAddress]  # the same for any existing table
    print_address: Callable[[QueueAddress], str]  # as in options and state tables
    quote_address: Callable[[QueueAddress], str]  # as an SQL identifier
    quote_name: Callable[[str], str]  # one part, as an SQL identifier
    split_list: Callable[[str], list[str]]  # names that commas separate
    is_of_other_database: Callable[[str], bool]  # an address in another notation, or with a host
    guess_table: Callable[[str], QueueAddress | None]  # what an address without quotes may mean

    @property
    def default_schema(self) -> str:
        """The schema of a name without one."""
        return self.notation.default_schema

    def qualify(self, address: QueueAddress) -> QueueAddress:
        """Return the address with its schema, the default one if it names none."""
        return address if address.schema else replace(address, schema=self.default_schema)


def _is_no_postgresql(text: str) -> bool:
    return "@" in text and not text.startswith('"')


def _is_no_sqlserver(text: str) -> bool:
    return text.startswith('"')


def _guess_postgresql(text: str) -> QueueAddress | None:
    """Guess the table whose name has dots: without quotes, the first part is read as a schema."""
    return QueueAddress(text) if "." in text and '"' not in text else None


def _guess_sqlserver(_: str) -> QueueAddress | None:
    """Guess nothing: dots separate no parts."""
    return None


POSTGRESQL = Names(
    dialect="postgresql",
    notation=POSTGRESQL_NOTATION,
    has_catalogs=False,
    has_legacy_columns=False,
    lacks=frozenset({"weigh"}),  # `receive` weighs the rows that it locks
    misread=None,
    password_variable="PGPASSWORD",  # noqa: S106 - the variable's name
    own_credentials=None,
    parse_address=parse_postgresql,
    parse_queue=name_postgresql,
    parse_destination=name_postgresql,
    parse_table=table_postgresql,
    print_address=print_postgresql,
    quote_address=quote_postgresql,
    quote_name=identifier,
    split_list=split_list,
    is_of_other_database=_is_no_postgresql,
    guess_table=_guess_postgresql,
)

SQLSERVER = Names(
    dialect="sqlserver",
    notation=SQLSERVER_NOTATION,
    has_catalogs=True,
    has_legacy_columns=True,
    # It defers no check to the commit. `receive` has one pass, which locks a row as it deletes it.
    # The right to INSERT gives no lock of a table: what an INSERT runs is checked before and after.
    # Due is a datetime in UTC, whatever the session's zone. To end a session needs a right on the
    # whole server.
    lacks=frozenset(
        {
            *("check_deferred", "receive_range", "lock_destination", "destination_locks"),
            *("endpoint_zone", "end_frozen"),
        }
    ),
    misread=r"\$\(|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]",
    password_variable=None,
    own_credentials="authentication=ActiveDirectoryDefault (or another value) in the url",
    parse_address=parse_sqlserver,
    parse_queue=name_sqlserver,
    parse_destination=parse_sqlserver,
    parse_table=name_sqlserver,
    print_address=print_sqlserver,
    quote_address=quote_sqlserver,
    quote_name=bracketed,
    split_list=split_list_sqlserver,
    is_of_other_database=_is_no_sqlserver,
    guess_table=_guess_sqlserver,
)

# by the dialect's name; the statements of the first are the model for the others
DIALECTS = {each.dialect: each for each in (POSTGRESQL, SQLSERVER)}
SCHEMES = {"postgresql": POSTGRESQL, "postgres": POSTGRESQL, "sqlserver": SQLSERVER}


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
