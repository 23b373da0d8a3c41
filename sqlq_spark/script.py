"""
The script for a DBA: what the installer would run, and the rights by role; connects to nothing.

It is made of the same statements as install.py runs, with their values written out, and can be run
again without harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.address import QueueAddress, identifier, quote_postgresql
from sqlq_spark.dialects import Statements
from sqlq_spark.errors import BadOption
from sqlq_spark.install import STATE, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who may do what; made where they are absent, without a login."""

    reader: str = "sqlqueue_reader"
    sender: str = "sqlqueue_sender"

    def __post_init__(self) -> None:
        """Refuse what would end the quotes of the script's block, or that no role can be named."""
        for option, name in (("--reader", self.reader), ("--sender", self.sender)):
            size = len(name.encode("utf-8", "replace"))
            if not 0 < size <= 63 or "$" in name or "\0" in name:  # noqa: PLR2004
                raise BadOption(option, name, "a role's name of at most 63 bytes, without $")


def script(
    queue: QueueAddress,
    *,
    state: str,
    errors: QueueAddress | None = None,
    roles: Roles | None = None,
    dialect: str = "postgresql",
) -> str:
    """
    Write the script.

    Args:
        queue: to make, to read and to send to.
        state: schema of the state tables.
        errors: the error queue; made too, and the reader may insert into it.
        roles: whom to grant to.
        dialect: of which database.
    """
    parts = _parts(Statements.load(dialect), queue, state, errors, roles or Roles())
    body = "\n\n".join(parts)
    return f"BEGIN;\n\n{body}\n\nCOMMIT;\n"


def _parts(
    known: Statements, queue: QueueAddress, state: str, errors: QueueAddress | None, roles: Roles
) -> Iterator[str]:
    tables = {"state": identifier(state), "version": str(VERSION)}
    yield "-- Tables. The login that runs this owns them."
    for each in (queue,) if errors is None else (queue, errors):
        yield _filled(known["create_queue"], **_named(each))
    for name in STATE:
        yield _filled(known[name], **tables)
    for role, use in ((roles.reader, "reader"), (roles.sender, "sender")):
        named = {"role": identifier(role), "literal": literal(role)} | tables
        yield f"-- Rights of a {use}: GRANT {_plain(named['role'])} TO the login of its Spark job."
        yield _filled(known["script_role"], **named)
        yield _filled(known[f"script_{use}"], **named, **_named(queue))
        if errors is not None and use == "reader":
            yield _filled(known["script_errors"], **named, **_named(errors))


def _named(queue: QueueAddress) -> dict[str, str]:
    """A queue's own names, quoted; the sequence is the one that `serial` makes."""
    sequence = QueueAddress(f"{queue.table}_seq_seq", queue.schema)
    return {
        "queue": quote_postgresql(queue),
        "sequence": quote_postgresql(sequence),
        "schema": identifier(queue.schema or "public"),
    }


def _filled(statement: str, **values: str) -> str:
    """A statement with its values written out; one pass, so that no value is filled in again."""
    pattern = "|".join(rf"\{{{name}\}}|(?<!:):{name}\b" for name in values)
    return re.sub(pattern, lambda found: values[found[0].strip("{:}")], statement) + ";"


def _plain(quoted: str) -> str:
    """A name inside a comment, which a line break would end."""
    return " ".join(quoted.split())


def literal(text: str) -> str:
    """A quoted text."""
    return "'" + text.replace("'", "''") + "'"
