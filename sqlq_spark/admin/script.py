"""
The script for a DBA: the state tables, endpoints' queues, and the permissions of each role.

Its parts are the statements that `install` and `create` run, and those of each dialect's
script.sql. It can be run again. Nothing here connects to a database.

An endpoint's queues have the names that the transport gives them; `sqlqueue create` uses them too.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from sqlq_spark.database import dialect_named
from sqlq_spark.database.statements import Statements
from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.wire.address import DELAYED, QueueAddress, delayed_of
from sqlq_spark.wire.dialects import DEFAULT_DIALECT, DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Tables
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import Names

BEGIN: tuple[StatementName, ...] = ("script_begin", "script_check", "install_state")
# role → kind of table → its rights; the first statement begins with the comment above them
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
# line ends of all kinds, and NUL
UNUSABLE = "[\0\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The roles and what they may do. The script creates missing ones, without a login."""

    reader: str = "sqlqueue_reader"
    sender: str | None = "sqlqueue_sender"  # None: no such role, as of those below
    operator: str | None = None  # may run `sqlqueue`
    producer: str | None = None  # may send to the queues, as endpoints do

    def __post_init__(self) -> None:
        """Reject names that would end a comment, or are too long."""
        for role, name in asdict(self).items():
            size = 1 if name is None else len(name.encode("utf-8", "replace"))
            if not 0 < size <= 63 or (name and re.search(UNUSABLE, name)):  # noqa: PLR2004
                expected = "a role's name of at most 63 bytes, in one line"
                raise BadOption(option=f"--{role}", found=name, expected=expected)


def of_domain(name: str | None) -> tuple[str, str, str]:
    """
    The state schema, and the roles reader and sender, of logins that trust one another.

    Without a name they are those of the default domain.
    """
    if name is None:
        return DatabaseOptions.state_schema, "sqlqueue_reader", "sqlqueue_sender"
    return f"sqlqueue_{name}", f"{name}_reader", f"{name}_sender"


def write_script(
    *endpoints: Endpoint,
    state: str,
    subscriptions: QueueAddress | None = None,
    roles: Roles | None = None,
    body_string: bool = False,
    delayed: bool = False,
    trusted: Sequence[str] = (),
    database: str | None = None,
    dialect: str = DEFAULT_DIALECT,
) -> str:
    """
    Write the script.

    Args:
        endpoints: their queues are created. The reader may receive from the endpoints' own queues,
            and insert into their error and audit queues. The sender and the producer may send to
            the own queues. An operator may do both with all queues.
        state: schema of the state tables.
        subscriptions: the subscription table. It is created, and the sender may read it.
        roles: which roles to grant to.
        body_string: also add the column BodyString to each queue.
        delayed: also create the tables of delayed messages; the reader may move due messages.
        trusted: roles whose tables may be there already, and who may add members to the roles.
        database: the only database in which the script does anything.
        dialect: the name of the dialect.

    Raises:
        BadAddress: the tool that runs the script would misread a name. Or an address names a
            database, which a GRANT cannot.
    """
    names = DIALECTS[dialect]
    used = {use: name for use, name in asdict(roles or Roles()).items() if name is not None}
    tables: dict[str, list[Tables]] = {
        "state": [{}],
        "own": [{"queue": queue} for its in endpoints for queue in its.own],
        "shared": [{"queue": queue} for its in endpoints for queue in its.shared],
        "delayed": [
            {"queue": its.primary, "delayed": delayed_of(its.primary)}
            for its in endpoints
            if delayed
        ],
        "subscriptions": [] if subscriptions is None else [{"subscriptions": subscriptions}],
    }
    given = [state, *used.values(), *filter(None, [database])]
    for each in (queue for some in tables.values() for its in some for queue in its.values()):
        given += filter(None, (each.table, each.schema))
        if each.catalog is not None:
            reason = "run the script in its database, and leave the database out of the name"
            raise BadAddress(text=names.print_address(each), reason=reason)
    for name in given:
        names.check_for_script(name)
    created = [
        names.quote_address(queue)
        for kind in ("own", "shared", "delayed", "subscriptions")
        for its in tables[kind]
        for queue in its.values()
    ]
    writer = dialect_named(dialect)
    script_words = {
        "owners_escaped": _escape(json.dumps([*trusted])),
        "made_escaped": _escape(json.dumps(created)),
        "roles_escaped": _escape(json.dumps([*used.values()])),
        "database_escaped": _escape(database or ""),
        "database": _word(database or "the_database"),
    }
    bare, commented = writer.STATEMENTS, Statements.read(dialect, comments=True)

    def write(text: str, its: Tables | None = None, *, role: str = "", roles: str = "") -> str:
        quoted = names.quote_name(role)
        words = {"role": quoted, "role_escaped": _escape(quoted), "roles": roles}
        return writer.fill_names(
            text, state, its or {}, role_name=_escape(role), **words, **script_words
        )

    parts = [write(commented[name]) for name in BEGIN]
    statements = ["create_queue", *(["add_body_string"] if body_string else [])]
    made = {"own": statements, "shared": statements, "delayed": ["create_delayed"]}
    made["subscriptions"] = ["create_subscriptions"]
    creations = [
        write(bare[name], its) for kind in made for its in tables[kind] for name in made[kind]
    ]
    parts.append("-- Queues, as the transport creates them.\n" + _join(creations))
    missing = ";\n".join(write(bare["script_role"], role=role) for role in used.values())
    parts.append(write(commented["script_roles"], roles=missing))
    for use, role in used.items():
        (first, *_), *_ = ROLE_RIGHTS[use].values()
        comment = commented[first].removesuffix(bare[first])
        grants = [
            write(grant, its, role=role)
            for kind, rights in ROLE_RIGHTS[use].items()
            for its, right in product(tables[kind], rights)
            for grant in bare[right].split(";\n")
        ]
        parts.append(write(comment, role=role) + _join(grants))
    parts.append(commented["script_end"])
    return writer.join_script(parts)


def _escape(text: str) -> str:
    """Return a text as it stands inside a literal."""
    return text.replace("'", "''")


def _word(name: str) -> str:
    """Return a name as one word of a command line."""
    return name if re.fullmatch(r"[\w.-]+", name) else '"' + name.replace('"', '""') + '"'


def _join(statements: Iterable[str]) -> str:
    """Statements in one part of the script, each once."""
    return ";\n".join(dict.fromkeys(statements))


# ---------------------------------------------------------------- an endpoint's queues


class Endpoint(NamedTuple):
    """
    The queues of an endpoint, by the names that the transport gives them.

        endpoint[.qualifier][.discriminator]

    All instances share the queue `shop`. `shop.web1` belongs to the instance web1, and
    `shop.Retries` to a satellite. Endpoints share error and audit queues, which have full names.
    """

    own: list[QueueAddress]  # that the endpoint receives from; the first is that of all instances
    shared: list[QueueAddress]  # that it only sends to

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
        url: its scheme says which database's notation to use.
        queue: the endpoint's name, or the address of its queue.
        instances: discriminators, which follow the endpoint's name; or whole addresses.
        qualifiers: qualifiers of satellites, or whole addresses.
        error: a queue's name or address, as in a stream's option errorQueue.
        audit: as `error`.
        delayed: whether the endpoint has a table of delayed messages, whose name is longer.

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
    """The queue whose name follows the endpoint's, unless `text` is a whole address."""
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
