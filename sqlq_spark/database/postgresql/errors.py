"""
A driver's error → the package's error, with the SQL that fixes the problem.

libpq reports why a connection failed in words only. A statement that failed has a SQLSTATE.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.wire.address import POSTGRESQL, QueueAddress

if TYPE_CHECKING:
    from adbc_driver_manager import Error

# words of libpq for a server that was reached, and crashed, stops or starts
GONE = (
    r"terminat|closed the connection|reset by peer|is (?:starting|shutting|not yet)|recovery mode"
)

# words of the server, or of PgBouncer, that has no connection left; libpq gives no SQLSTATE (53300)
TOO_MANY = r"too many (?:clients|connections)|slots are reserved|no more connections allowed"

# words of libpq for a certificate that is not trusted, or a server without one
UNVERIFIED = (
    r"certificate verify failed|[Ss]erver certificate for|root certificate|"
    r"does not support SSL, but SSL was required|could not get server's host name|"
    r"host name must be specified for a verified"
)

# words of libpq for a client's certificate that the server refuses, or that cannot be read here;
# an alert comes from the server
CLIENT_CERTIFICATE = (
    r"\balert\b|valid client certificate|certificate authentication failed|certificate file|"
    r"private key"
)

FIND_PRIMARY = (
    "The server is a standby, or its database is read-only. Some services make a database "
    "read-only when a disk is full. To find the primary, list several hosts in the url and add "
    "target_session_attrs=read-write."
)

# SQLSTATEs of a wrong message or table: another attempt would fail as well
LASTING = ("0A", "22", "23", "42", "44", "P0")

# share of the time limit; a statement that ends sooner was cancelled, with the same SQLSTATE
LIMIT_REACHED = 0.95

# what locks rows of a queue and deletes them
RECEIVES = (
    "receive",
    "receive_range",
    "take",
    "find_large",
    "divert_large",
    "purge_expired",
)

# statement, or statement and role of the table → the rights that it needs there
RIGHTS = {
    **dict.fromkeys(RECEIVES, "SELECT, DELETE, UPDATE (seq)"),
    "purge": "SELECT, DELETE",
    "purge_range": "SELECT, DELETE",
    "divert_large errors": "INSERT",
    "subscribe": "SELECT, INSERT, UPDATE",
    "unsubscribe": "SELECT, DELETE",
    "load": "INSERT",
    "lock_destination": "INSERT",
    "move_due": "SELECT, DELETE, UPDATE (due)",
    "move_due queue": "INSERT, SELECT (id)",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, without the driver."""

    state: str  # SQLSTATE
    text: str  # the server's sentence, or libpq's


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a statement failed."""

    statement: str
    target: str  # a queue's canonical address, or the schema of the state tables
    role: str = ""  # of the queue in the statement; empty where it has only one table
    state: str  # schema of the state tables
    team: tuple[str, str] | None = None  # a state schema that may not be used, and its roles
    server: str
    limit: float  # seconds that a statement may take
    took: float  # seconds


def read_error(error: Error) -> Failure:
    text = sentence(error)
    state: Any = getattr(error, "sqlstate", None)
    if not state:  # a bulk insert into an absent table, or column, which the driver looks for
        absent = "42P01" if "does not exist" in str(error) else "?????"
        state = "42703" if text.startswith('Column "') else absent
    return Failure(str(state), text)


def sentence(error: Error) -> str:
    """Return the server's sentence, or libpq's, without the statement's text and our values."""
    text = re.split(r"\n+Query was:|\. SQLSTATE:", str(error))[0]
    found = re.search(
        r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\nLINE |\nCONTEXT:|$)", text, flags=re.DOTALL
    )
    text = found[1] if found else text.rpartition("[libpq]")[2]
    return " ".join(text.split())


def connection_error(server: str, text: str) -> errors.DatabaseFailure:
    """Return the error for a connection that failed, by libpq's sentence."""
    if re.search(GONE, text):
        return errors.ConnectionLost(statement="connect", reason=text)
    if re.search(TOO_MANY, text):
        return errors.ServerShort(statement="connect", code="53300", reason=text)
    if re.search(UNVERIFIED, text):
        return errors.ServerNotVerified(server=server, reason=text)
    if re.search(CLIENT_CERTIFICATE, text):
        return errors.CertificateRefused(server=server, reason=text)
    if "does not exist" in text and "database" in text:
        return errors.DatabaseNotFound(server=server, reason=text)
    if re.search(r"authentication|password|role .* (does not exist|is not permitted)|pg_hba", text):
        return errors.LoginRefused(server=server, reason=text)
    return errors.NotReachable(server=server, reason=text)


def statement_error(failure: Failure, place: Place) -> errors.DatabaseFailure:
    statement, text, state = place.statement, failure.text, failure.state
    match state:
        case "25006":
            return errors.ReadOnly(statement=statement, reason=text, fix=FIND_PRIMARY)
        case "40P01" | "40001":
            return errors.Deadlock(statement=statement, reason=text)
        case "23505" if statement == "begin_receipt":
            return errors.ReceiptExists(statement=statement, reason=text)
        case "53000" | "53100" | "53200" | "53300":  # no room, memory, locks or connection left
            return errors.ServerShort(statement=statement, code=state, reason=text)
        case "57014" if place.took < LIMIT_REACHED * place.limit:
            return errors.Cancelled(statement=statement, reason=text)
        case "57014" | "55P03" | "25P03":
            return errors.TimedOut(statement=statement, seconds=place.limit, reason=text)
        case "42501" if place.team is not None:
            fix = errors.StateRightMissing.fix_of(*place.team)
            return errors.StateRightMissing(statement=statement, reason=text, fix=fix)
        case "42501" if "row-level security" not in text:
            return errors.RightMissing(
                statement=statement, reason=text, fix=missing_grant(text, place)
            )
        case "22023" if statement == "endpoint_zone":
            return errors.TimeZoneNotFound(statement=statement, reason=text)
    kind = errors.StatementRefused if state.startswith(LASTING) else errors.StatementFailed
    other = kind(statement=statement, code=state, reason=text)
    return _missing_object(failure, place) or other


def _missing_object(failure: Failure, place: Place) -> errors.DatabaseFailure | None:
    state, text, target = failure.state, failure.text, place.target
    # whether the server misses the queue or its schema, not something that its trigger uses
    is_named = any(name.strip('"').replace('""', '"') in text for name in target.split('"."'))
    if state in {"42P01", "3F000"}:
        if target == place.state:
            return errors.StateNotInstalled(schema=place.state, server=place.server)
        if not place.statement.startswith("create") and is_named:
            return errors.QueueNotFound(queue=target, server=place.server)
    if state == "3F000":
        return errors.SchemaNotFound(table=target, server=place.server, reason=text)
    if state == "42703" and target != place.state:
        return errors.NotAQueue(queue=target, reason=text)
    return None


def find_table(tables: dict[str, QueueAddress], text: str) -> tuple[str, str]:
    """Return the role and the address of the table in the server's sentence; else the first's."""
    first, *others = tables.items()
    ends = " {}", '.{}" does not exist'
    named = (at for at in others if text.endswith(tuple(end.format(at[1].table) for end in ends)))
    role, address = next(named, first)
    return role, POSTGRESQL.print_address(address)


def refused_schema(failure: Failure, target: str) -> str | None:
    """Return the schema that the login may not use, or has a table that it may not use."""
    kind, _, name = failure.text.removeprefix("permission denied for ").partition(" ")
    if failure.state != "42501" or kind == "database" or failure.text.startswith("must be owner"):
        return None
    if kind == "schema":
        return name
    return POSTGRESQL.parse_address(target).schema if target.startswith('"') else target


def missing_grant(text: str, place: Place) -> str:
    """Return the GRANT that is missing. `refused_schema` was no state schema."""
    statement, target = place.statement, place.target
    kind, _, name = text.removeprefix("permission denied for ").partition(" ")
    if text.startswith("must be owner"):
        return f"a login that owns {target}"
    if kind in {"schema", "database"}:
        right = "CREATE" if statement.startswith(("create", "install")) else "USAGE"
        return f"GRANT {right} ON {kind.upper()} {POSTGRESQL.quote_name(name)} TO the_user"
    if kind == "sequence":
        # the server leaves out the schema of the sequence, which is the queue's
        sequence = POSTGRESQL.quote_address(
            QueueAddress(name, POSTGRESQL.parse_address(target).schema)
        )
        return f"GRANT USAGE ON SEQUENCE {sequence} TO the_user"
    rights = RIGHTS.get(f"{statement} {place.role}") or RIGHTS.get(statement, "SELECT")
    return f"GRANT {rights} ON {target} TO the_user"
