"""
The script for a DBA: the state tables, endpoints' queues, and the permissions of each role.

The script consists of the statements that `install` and `create` run, and of those in the dialect's
script.sql. It can be run again. Nothing here connects to a database.

An endpoint's queues get the names that the transport gives them. `sqlqueue create` uses the same
names.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

from sqlq_spark import __version__
from sqlq_spark.database import dialect_named
from sqlq_spark.database.migrations import STATE_VERSION, STEPS
from sqlq_spark.database.statements import Statements
from sqlq_spark.errors import BadAddress, BadOption, clean
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.wire.address import DELAYED, QueueAddress, delayed_of
from sqlq_spark.wire.dialects import DEFAULT_DIALECT, DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlq_spark.database import Dialect, Tables
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import Names

BEGIN: tuple[StatementName, ...] = (
    "script_begin",
    "script_check",
    *(step.forward for step in STEPS),
    "install_state",
)
# Role → kind of table → statements that grant its rights. In the script, the comment of the first
# statement stands above all grants of the role.
ROLE_RIGHTS: dict[str, dict[str, tuple[StatementName, ...]]] = {
    "reader": {
        "state": ("script_reader",),
        "own": ("script_receive",),
        "shared": ("script_divert",),
        "delayed": ("script_move", "script_produce"),
    },
    "sender": {
        "state": ("script_sender",),
        "own": ("script_send",),
        "delayed": ("script_delay",),
        "subscriptions": ("script_publish",),
    },
    "operator": {
        "state": ("script_operator", "script_reader", "script_sender"),
        "own": ("script_receive", "script_produce"),
        "shared": ("script_receive", "script_produce"),
        "delayed": ("script_move", "script_delay"),
        "subscriptions": ("script_publish", "script_subscribe"),
    },
    "producer": {"own": ("script_produce",)},
}
# Line ends of all kinds, and NUL, which a role's name must not have.
UNUSABLE = "[\0\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """
    The names of the roles to which the script grants rights. It creates those that are missing.

    These roles cannot log in themselves. If a name is None, the script has no such role.
    """

    reader: str = "sqlqueue_reader"
    sender: str | None = "sqlqueue_sender"
    operator: str | None = None  # may run `sqlqueue`
    producer: str | None = None  # may send to the queues, as endpoints do

    def __post_init__(self) -> None:
        """Reject names that are too long, or that would end a comment of the script."""
        for role, name in asdict(self).items():
            check_role_name(f"--{role}", name)


def check_role_name(option: str, name: str | None) -> None:
    """Reject a name that is too long, or that would end a comment of the script."""
    if name is None:
        return
    size = len(name.encode("utf-8", "replace"))
    if not 0 < size <= 63 or re.search(UNUSABLE, name):  # noqa: PLR2004
        expected = "a role's name of at most 63 bytes, in one line"
        raise BadOption(option=option, found=name, expected=expected)


def of_domain(name: str | None) -> tuple[str, str, str]:
    """
    Return the names of a domain's state schema, reader and sender.

    The logins of a domain trust one another. If `name` is None, it is the default domain.
    """
    if name is None:
        return DatabaseOptions.state_schema, "sqlqueue_reader", "sqlqueue_sender"
    return f"sqlqueue_{name}", f"{name}_reader", f"{name}_sender"


def write_script(
    *endpoints: Endpoint,
    state: str,
    subscriptions: QueueAddress | None = None,
    roles: Roles | None = None,
    login: str | None = None,
    body_string: bool = False,
    delayed: bool = False,
    trusted: Sequence[str] = (),
    database: str | None = None,
    command: str | None = None,
    dialect: str = DEFAULT_DIALECT,
) -> str:
    """
    Write the script.

    Args:
        endpoints: the script creates their queues. The reader may receive from the endpoints' own
            queues, and insert into their error and audit queues. The sender and the producer may
            send to the endpoints' own queues. An operator may receive from all queues and send to
            all.
        state: schema of the state tables.
        subscriptions: the subscription table. The script creates it, and the sender may read it.
        roles: which roles to grant to.
        login: a login that exists. The script makes it a member of the reader and the sender.
        body_string: also add the column BodyString to each queue.
        delayed: also create the tables of delayed messages; the reader may move due messages.
        trusted: roles that may own tables that are there already, and that may add members to the
            script's roles.
        database: in any other database the script does nothing.
        command: the command line that prints it. Only with one the script has a head, for the tool
            of a DBA. The head names release, command line and version of the state tables.
        dialect: the name of the dialect.

    Raises:
        BadAddress: the tool that runs the script would misread a name. Or an address names a
            database, and a GRANT cannot name one.
    """
    names = DIALECTS[dialect]
    check_role_name("--login", login)
    role_names = {role: name for role, name in asdict(roles or Roles()).items() if name is not None}
    tables = tables_by_kind(endpoints, subscriptions, delayed=delayed)
    given = [state, *role_names.values(), *filter(None, [login, database])]
    check_names(names, given, tables)
    writer = ScriptWriter(
        names=names,
        dialect=dialect_named(dialect),
        commented=Statements.read(dialect, comments=True),
        state=state,
        tables=tables,
        words={
            "owners_escaped": _escape(json.dumps([*trusted])),
            "made_escaped": _escape(json.dumps([*quoted_tables(names, tables)])),
            "roles_escaped": _escape(json.dumps([*role_names.values()])),
            "database_escaped": _escape(database or ""),
            "database": _word(database or "the_database"),
        },
    )
    parts = [
        *(writer.fill(writer.commented[name]) for name in BEGIN),
        writer.creations(body_string=body_string),
        writer.roles([*role_names.values()]),
        *(writer.grants(role, name) for role, name in role_names.items()),
        *([] if login is None else [writer.members(login, role_names)]),
        writer.commented["script_end"],
    ]
    text = writer.dialect.join_script(parts)
    return text if command is None else writer.head(command) + text


def tables_by_kind(
    endpoints: Sequence[Endpoint], subscriptions: QueueAddress | None, *, delayed: bool
) -> dict[str, list[Tables]]:
    """Return the tables of a script by their kind, each with its name in the statements."""
    with_delayed = endpoints if delayed else ()
    return {
        "state": [{}],
        "own": [{"queue": queue} for endpoint in endpoints for queue in endpoint.own],
        "shared": [{"queue": queue} for endpoint in endpoints for queue in endpoint.shared],
        "delayed": [
            {"queue": endpoint.primary, "delayed": delayed_of(endpoint.primary)}
            for endpoint in with_delayed
        ],
        "subscriptions": [] if subscriptions is None else [{"subscriptions": subscriptions}],
    }


def check_names(names: Names, given: Sequence[str], tables: Mapping[str, Sequence[Tables]]) -> None:
    """Refuse an address with a database, and names that the tool of a DBA would misread."""
    parts = [*given]
    for places in chain(*tables.values()):
        for address in places.values():
            if address.catalog is not None:
                reason = "run the script in its database, and leave the database out of the name"
                raise BadAddress(text=names.print_address(address), reason=reason)
            parts += filter(None, (address.table, address.schema))
    for part in parts:
        names.check_for_script(part)


def quoted_tables(names: Names, tables: Mapping[str, Sequence[Tables]]) -> Iterator[str]:
    """Give the quoted names of the tables that a script creates, without the state tables."""
    for kind in ("own", "shared", "delayed", "subscriptions"):
        for places in tables[kind]:
            yield from map(names.quote_address, places.values())


@dataclass(frozen=True, kw_only=True)
class ScriptWriter:
    """Writes the parts of one script."""

    names: Names
    dialect: Dialect
    commented: Statements  # the statements with the comments above them
    state: str  # schema of the state tables
    tables: Mapping[str, Sequence[Tables]]  # by kind
    words: Mapping[str, str]  # what is put into braces of any part, by the word in the braces

    def head(self, command: str) -> str:
        """Return the lines above the script. No name of the command line ends its comment."""
        shown = clean(command)
        self.names.check_for_script(shown)
        return (
            f"-- {shown}\n"
            f"-- printed by release {__version__}, with state tables of version {STATE_VERSION}\n"
            f"{self.names.script_settings}"
        )

    def fill(
        self,
        text: str,
        tables: Tables | None = None,
        *,
        role: str = "",
        roles: str = "",
        login: str = "",
    ) -> str:
        """Put the names of tables and of a role into the braces of a statement."""
        quoted = self.names.quote_name(role)
        return self.dialect.fill_names(
            text,
            self.state,
            tables or {},
            role_name=_escape(role),
            role=quoted,
            role_escaped=_escape(quoted),
            roles=roles,
            login=self.names.quote_name(login),
            **self.words,
        )

    def creations(self, *, body_string: bool) -> str:
        """Return the part that creates the queues and the tables beside them."""
        of_queue: list[StatementName] = ["create_queue"]
        if body_string:
            of_queue.append("add_body_string")
        statements: dict[str, list[StatementName]] = {
            "own": of_queue,
            "shared": of_queue,
            "delayed": ["create_delayed"],
            "subscriptions": ["create_subscriptions"],
        }
        bare = self.dialect.STATEMENTS
        filled = (
            self.fill(bare[name], tables)
            for kind, created in statements.items()
            for tables, name in product(self.tables[kind], created)
        )
        return "-- Queues, as the transport creates them.\n" + _join(filled)

    def roles(self, names: Sequence[str]) -> str:
        """Return the part that creates the roles that are missing."""
        bare = self.dialect.STATEMENTS["script_role"]
        missing = ";\n".join(self.fill(bare, role=name) for name in names)
        return self.fill(self.commented["script_roles"], roles=missing)

    def grants(self, role: str, name: str) -> str:
        """Return the part that grants a role its rights, below the first statement's comment."""
        bare = self.dialect.STATEMENTS
        rights_by_kind = ROLE_RIGHTS[role]
        comment = self.comment(next(iter(rights_by_kind.values()))[0])
        filled = (
            self.fill(grant, tables, role=name)
            for kind, rights in rights_by_kind.items()
            for tables, right in product(self.tables[kind], rights)
            for grant in bare[right].split(";\n")
        )
        return self.fill(comment, role=name) + _join(filled)

    def members(self, login: str, role_names: Mapping[str, str]) -> str:
        """Return the part that makes a login a member of the reader and the sender."""
        bare = self.dialect.STATEMENTS["script_member"]
        names = [role_names[role] for role in ("reader", "sender") if role in role_names]
        filled = (self.fill(bare, role=name, login=login) for name in names)
        return self.comment("script_member") + _join(filled)

    def comment(self, name: StatementName) -> str:
        """Return the comment above a statement."""
        return self.commented[name].removesuffix(self.dialect.STATEMENTS[name])


def _escape(text: str) -> str:
    """Return a text as it is written inside a literal of SQL."""
    return text.replace("'", "''")


def _word(name: str) -> str:
    """Return a name as one word of a command line."""
    return name if re.fullmatch(r"[\w.-]+", name) else '"' + name.replace('"', '""') + '"'


def _join(statements: Iterable[str]) -> str:
    """Join the statements of one part of the script. Each statement stands only once."""
    return ";\n".join(dict.fromkeys(statements))


# ---------------------------------------------------------------- an endpoint's queues


class Endpoint(NamedTuple):
    """
    The queues of an endpoint, by the names that the transport gives them.

        endpoint[.qualifier][.discriminator]

    For the endpoint `shop`: all its instances share the queue `shop`. `shop.web1` belongs to the
    instance web1, and `shop.Retries` to a satellite. Error and audit queues are shared by several
    endpoints, so their names do not begin with an endpoint's name.
    """

    own: list[QueueAddress]  # the endpoint receives from these; all instances share the first
    shared: list[QueueAddress]  # the endpoint only sends to these

    @property
    def primary(self) -> QueueAddress:
        return self.own[0]

    @property
    def queues(self) -> list[QueueAddress]:
        return self.own + self.shared


def endpoint(
    url: str,
    queue: str,
    *,
    instances: Sequence[str] = (),
    qualifiers: Sequence[str] = (),
    error: str | None = None,
    audit: str | None = None,
    delayed: bool = False,
) -> Endpoint:
    """
    Name the queues of an endpoint.

    Args:
        url: its scheme says in which database's notation the addresses are.
        queue: the endpoint's name, or the address of its queue.
        instances: the discriminators of instances, or whole addresses.
        qualifiers: the qualifiers of satellites, or whole addresses.
        error: the error queue's name or address, as in a stream's option errorQueue.
        audit: the audit queue's name or address.
        delayed: whether the endpoint has a table of delayed messages. Its name is longer than the
            queue's, so the queue's name must be shorter.

    Raises:
        BadOption: a name is empty or too long. The error names the flag.
    """
    naming = names_of(url)
    primary = parse_queue("queue", queue, naming)
    size = naming.size(primary.table)
    if delayed and size > naming.longest_with_delayed:
        expected = (
            f"a queue's name of at most {naming.longest_table} {naming.unit}, or of "
            f"{naming.longest_with_delayed} with --delayed, which needs room for {DELAYED} "
            f"(the table has {size} {naming.unit})"
        )
        raise BadOption(option="queue", found=queue, expected=expected)
    own = [primary]
    for flag, texts in (("--instance", instances), ("--qualifier", qualifiers)):
        own += [_derive(flag, naming, primary, text) for text in texts]
    shared = [
        parse_queue(flag, text, naming)
        for flag, text in (("--error", error), ("--audit", audit))
        if text is not None
    ]
    return Endpoint(own, shared)


def _derive(flag: str, naming: Names, primary: QueueAddress, text: str) -> QueueAddress:
    """Return the queue `endpoint.text`, or the queue of `text` if that is a whole address."""
    given = parse_queue(flag, text, naming)
    if given != QueueAddress(text):
        return given
    made = replace(primary, table=f"{primary.table}.{text}")
    try:
        naming.parse_queue(naming.print_address(made))
    except BadAddress as error:
        expected = f"a name that can follow {primary.table}. ({error.reason})"
        raise BadOption(option=flag, found=text, expected=expected) from None
    return made
