"""
The script for a DBA: the tables that the installer would create, and the permissions of each role.

It consists of the statements that the installer runs, with their values written out. It can be run
again. Nothing here connects to a database.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sqlq_spark.database import dialect_named
from sqlq_spark.database.schema import LOCKING, TABLES, VERSIONS, delayed_of
from sqlq_spark.database.script import Step
from sqlq_spark.errors import BadOption
from sqlq_spark.options.connection import DatabaseOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.admin.endpoint import Endpoint
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress


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

    state: str = DatabaseOptions.state_schema  # schema of the state tables
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
    joins = dialect == "postgresql"  # SQL Server: the owner of a schema owns its tables
    steps = [Step(statement="script_begin")]
    steps += _tables(endpoint, roles.owner, body_string=body_string, joins=joins)
    steps += _rights(endpoint, roles)
    steps += _topics(subscriptions, roles)
    if delayed:
        steps += _delayed(endpoint.primary, roles)
    if roles.operator is not None:
        steps += _operator(endpoint, roles.operator, subscriptions, delayed=delayed)
    if roles.installer is not None:
        steps += _installer(endpoint, roles.installer, roles.owner)
    steps += [Step(statement=name, role=roles.owner) for name in LAST] if joins else []
    return dialect_named(dialect).write_script(steps, state=state, owner=roles.owner)


# statements that end the membership in the owner's role which script_join began
LAST: tuple[StatementName, ...] = ("script_adopt", "script_leave")
OPERATOR_STATE: tuple[StatementName, ...] = (
    "script_reader_state",
    "script_sender_state",
    "script_operator_state",
)


def _tables(endpoint: Endpoint, owner: str, *, body_string: bool, joins: bool) -> Iterator[Step]:
    yield Step(comment="Tables. The login that runs this owns them.")
    for each in endpoint.queues:
        yield Step(statement="create_queue", tables={"queue": each})
        if body_string:
            yield Step(statement="add_body_string", tables={"queue": each})
    yield Step(statement="script_state_check")
    if joins:
        yield Step(statement="script_join", role=owner)
    for name in TABLES:
        locked = LOCKING.get(name)
        yield Step(statement=name, state_table=locked or "", part=name if locked else "")
    yield Step(statement="script_state_check")
    for name in VERSIONS:
        yield Step(statement=name)


def _rights(endpoint: Endpoint, roles: Roles) -> Iterator[Step]:
    uses = ((roles.reader, "reader"), (roles.sender, "sender"))
    for role, use in uses:
        yield Step(comment=f"Rights of a {use}: {{grant}} the login of its Spark job.", role=role)
        yield Step(statement="script_role", role=role)
        yield Step(statement=f"script_{use}_state", role=role)
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
) -> Iterator[Step]:
    """The permissions for every command that creates no tables."""
    yield Step(comment="Rights of an operator: {grant} whoever runs `sqlqueue`.", role=role)
    for name in ("script_role", *OPERATOR_STATE):
        yield Step(statement=name, role=role)
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
