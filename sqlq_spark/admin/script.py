"""
The script for a DBA: the tables that the installer would create, and the permissions of each role.

It consists of the statements that the installer runs, with their values written out. It can be run
again. Nothing here connects to a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from sqlq_spark.database import Statements
from sqlq_spark.database.schema import (
    KEPT_APART,
    ROW_SECURITY,
    TABLES,
    VERSION,
    VERSIONS,
    delayed_of,
)
from sqlq_spark.database.sqlserver import calls
from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.wire.address import QueueAddress, bracketed, due_index, identifier, quote_postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The roles and what they may do. The script creates missing ones, without a login."""

    reader: str = "sqlqueue_reader"
    sender: str = "sqlqueue_sender"
    operator: str | None = None  # may run `sqlqueue`; None: no such role
    installer: str | None = None  # may run `sqlqueue create`; None: no such role
    owner: str = "sqlqueue_owner"  # owns the state tables, if there is an installer

    def __post_init__(self) -> None:
        """Reject names that would end the quotes of the script's block, or are too long."""
        for each in fields(self):
            option, name = f"--{each.name}", getattr(self, each.name)
            if name is None:
                continue
            size = len(name.encode("utf-8", "replace"))
            if not 0 < size <= 63 or "$" in name or "\0" in name:  # noqa: PLR2004
                raise BadOption(option, name, "a role's name of at most 63 bytes, without $")


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A group of logins that trust one another: they share a state schema and two roles."""

    state: str = "sqlqueue"  # schema of the state tables
    reader: str = Roles.reader
    sender: str = Roles.sender

    @classmethod
    def of(cls, name: str | None) -> Domain:
        """The domain of this name; without a name, the default domain."""
        if name is None:
            return cls()
        return cls(state=f"sqlqueue_{name}", reader=f"{name}_reader", sender=f"{name}_sender")


def script(
    endpoint: Endpoint,
    *,
    state: str,
    subscriptions: QueueAddress | None = None,
    roles: Roles | None = None,
    body_string: bool = False,
    delayed: bool = False,
    dialect: str = "postgresql",
) -> str:
    """
    Write the script.

    Args:
        endpoint: its queues are created. The reader may receive from the endpoint's own queues, and
            insert into its error and audit queues. The sender may send to the own queues. An
            operator may do both with all queues.
        state: schema of the state tables.
        subscriptions: the subscription table. It is created, and the sender may read it.
        roles: which roles to grant to.
        body_string: also add the column BodyString to each queue.
        delayed: also create the table of delayed messages; the reader may move due messages.
        dialect: the name of the dialect.
    """
    roles = roles or Roles()
    apart = dialect == "postgresql"  # row security; SQL Server uses a schema for each domain
    steps = [*_tables(endpoint, body_string=body_string, apart=apart)]
    steps += _rights(endpoint, roles, apart=apart)
    steps += _topics(subscriptions, roles)
    if delayed:
        steps += _delayed(endpoint.primary, roles)
    if roles.operator is not None:
        steps += _operator(endpoint, roles.operator, subscriptions, delayed=delayed, apart=apart)
    if roles.installer is not None:
        steps += _installer(endpoint, roles.installer, roles.owner)
    return WRITERS[dialect](Statements.load(dialect), steps, state, roles.owner)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A statement of the script with its tables and role, or a comment."""

    comment: str = ""
    statement: str = ""
    tables: dict[str, QueueAddress] = field(default_factory=dict)
    role: str = ""
    state_table: str = ""  # the name of a state table, if the statement uses one


READER_TABLES, SENDER_TABLES = KEPT_APART[:4], KEPT_APART[4:]


def _tables(endpoint: Endpoint, *, body_string: bool, apart: bool) -> Iterator[Step]:
    yield Step(comment="Tables. The login that runs this owns them.")
    for each in endpoint.queues:
        yield Step(statement="create_queue", tables={"queue": each})
        if body_string:
            yield Step(statement="add_body_string", tables={"queue": each})
    yield Step(statement="script_state_check")
    for name in TABLES:
        yield Step(statement=name)
    yield Step(statement="script_state_check")
    for name, table in ROW_SECURITY if apart else ():
        yield Step(statement=name, state_table=table)
    for name in VERSIONS:
        yield Step(statement=name)


def _rights(endpoint: Endpoint, roles: Roles, *, apart: bool) -> Iterator[Step]:
    uses = ((roles.reader, "reader", READER_TABLES), (roles.sender, "sender", SENDER_TABLES))
    for role, use, tables in uses:
        yield Step(comment=f"Rights of a {use}: {{grant}} the login of its Spark job.", role=role)
        yield Step(statement="script_role", role=role)
        yield Step(statement=f"script_{use}_state", role=role)
        for table in tables if apart else ():
            yield Step(statement="script_share", role=role, state_table=table)
        for each in endpoint.own:
            yield Step(statement=f"script_{use}", tables={"queue": each}, role=role)
        for each in endpoint.shared if use == "reader" else ():
            yield Step(statement="script_errors", tables={"queue": each}, role=role)


def _topics(table: QueueAddress | None, roles: Roles) -> Iterator[Step]:
    """The permissions that a sender also needs to publish."""
    if table is None:
        return
    yield Step(comment="Subscriptions: which queues get which topics.")
    for name in ("create_subscriptions", "script_publisher"):
        yield Step(statement=name, tables={"subscriptions": table}, role=roles.sender)


def _delayed(queue: QueueAddress, roles: Roles) -> Iterator[Step]:
    tables = {"queue": queue, "delayed": delayed_of(queue)}
    yield Step(comment="Delayed messages.")
    for name in ("create_delayed", "create_delayed_index"):
        yield Step(statement=name, tables=tables)
    for role, name in ((roles.reader, "script_mover"), (roles.sender, "script_delayer")):
        yield Step(statement=name, tables=tables, role=role)


def _operator(
    endpoint: Endpoint,
    role: str,
    subscriptions: QueueAddress | None,
    *,
    delayed: bool,
    apart: bool,
) -> Iterator[Step]:
    """The permissions for every command that creates no tables."""
    yield Step(comment="Rights of an operator: {grant} whoever runs `sqlqueue`.", role=role)
    for name in ("script_role", "script_reader_state", "script_sender_state"):
        yield Step(statement=name, role=role)
    for table in KEPT_APART if apart else ():
        yield Step(statement="script_all_rows", role=role, state_table=table)
    for each in endpoint.queues:
        for name in ("script_reader", "script_sender"):
            yield Step(statement=name, tables={"queue": each}, role=role)
    if delayed:
        tables = {"queue": endpoint.primary, "delayed": delayed_of(endpoint.primary)}
        for name in ("script_mover", "script_delayer"):
            yield Step(statement=name, tables=tables, role=role)
    if subscriptions is not None:
        for name in ("script_publisher", "script_subscriber"):
            yield Step(statement=name, tables={"subscriptions": subscriptions}, role=role)


def _installer(endpoint: Endpoint, role: str, owner: str) -> Iterator[Step]:
    """The permissions for `create`. The state tables exist already, and no login owns them."""
    yield Step(comment="Owner of the state tables: no login may be a member of it.")
    for name in ("script_role", "script_owner"):
        yield Step(statement=name, role=owner)
    yield Step(comment="Rights of an installer: {grant} whoever creates queues.", role=role)
    yield Step(statement="script_role", role=role)
    for each in {each.schema: each for each in endpoint.queues}.values():
        yield Step(statement="script_creator", tables={"queue": each}, role=role)


# ---------------------------------------------------------------- dialects


def _postgresql(known: Statements, steps: Sequence[Step], state: str, owner: str) -> str:
    """
    Write the script as one transaction.

    Raises:
        BadOption: the schema's name would end the quotes of the script's blocks.
    """
    if "$" in state:
        raise BadOption("--state-schema", state, "a schema's name without $")
    parts = []
    values = {"state_name": literal(state), "owner": literal(owner)}
    faults = _fill(known["state_faults"], values).rstrip(";")
    for step in steps:
        role = identifier(step.role)
        if step.comment:
            parts.append("-- " + step.comment.format(grant=f"GRANT {_plain(role)} TO"))
            continue
        words = {"state": identifier(state), "version": str(VERSION), "faults": faults}
        words |= {"role": role, "literal": literal(step.role)}
        if step.state_table:
            words["table"] = f"{identifier(state)}.{identifier(step.state_table)}"
        for name, table in step.tables.items():
            words |= _names(name, table)
        parts.append(_fill(known[step.statement], words))
    body = "\n\n".join(parts)
    return f"{known['begin']};\n\n{body}\n\nCOMMIT;\n"


def _names(name: str, table: QueueAddress) -> dict[str, str]:
    """The quoted names of a table, its schema and the sequence that `serial` creates."""
    words = {name: quote_postgresql(table)}
    if name == "delayed":
        return words | {"index": identifier(due_index(table))}
    sequence = QueueAddress(f"{table.table}_seq_seq", table.schema)
    words["schema"] = identifier(table.schema or "public")
    return words | {"sequence": quote_postgresql(sequence)}


def _sqlserver(known: Statements, steps: Sequence[Step], state: str, owner: str) -> str:
    """
    Write each statement as a batch in its own transaction, because variables end with their batch.

    Raises:
        BadAddress: a name has a line break, which may end a batch, or `$(`, which sqlcmd reads as a
            variable.
    """
    names = [state, owner, *(name for step in steps for name in (step.role, *_parts(step)))]
    for name in names:
        if "$(" in name or len(name.splitlines()) > 1:
            raise BadAddress(name, "sqlcmd would misread a line break or $( in a name")
    # sqlcmd sets QUOTED_IDENTIFIER off, but an index with a filter needs it on
    settings = ("NOCOUNT", "XACT_ABORT", "ANSI_NULLS", "QUOTED_IDENTIFIER")
    parts = ["".join(f"SET {each} ON;\n" for each in settings) + "GO"]
    values = {"state_name": calls.literal(state), "owner": calls.literal(owner)}
    text = calls.named(known["state_faults"], state, {})
    faults = _fill(text, values).rstrip(";")
    for step in steps:
        role = bracketed(step.role)
        if step.comment:
            grant = f"ALTER ROLE {_plain(role)} ADD MEMBER"
            parts.append("-- " + step.comment.format(grant=grant))
            continue
        words = calls.names(state, step.tables) | {"faults": faults}
        words |= {
            "role": role,
            "role_name": calls.literal(step.role),
            "version": str(VERSION),
        }
        if "queue" in step.tables:
            words["schema"] = bracketed(step.tables["queue"].schema or "dbo")
        text = _fill(known[step.statement], words)
        parts.append(f"BEGIN TRANSACTION;\n{text}\nCOMMIT TRANSACTION;\nGO")
    return "\n\n".join(parts) + "\n"


def _parts(step: Step) -> Iterator[str]:
    for table in step.tables.values():
        yield from filter(None, (table.table, table.schema, table.catalog))


WRITERS = {"postgresql": _postgresql, "sqlserver": _sqlserver}


def _fill(statement: str, words: dict[str, str]) -> str:
    """Write out a statement's words, in one pass, so that no value is replaced again."""
    pattern = "|".join(rf"\{{{name}\}}|(?<![:@\w])[:@]{name}\b" for name in words)
    return re.sub(pattern, lambda found: words[found[0].strip("{:@}")], statement) + ";"


def _plain(quoted: str) -> str:
    """A name for a comment, without line breaks, which would end the comment."""
    return " ".join(quoted.split())


def literal(text: str) -> str:
    """A quoted string."""
    return "'" + text.replace("'", "''") + "'"
