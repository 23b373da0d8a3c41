"""
A driver's error → the package's error, with the SQL that fixes the problem.

libpq reports why a connection failed in words only. A statement that failed has a SQLSTATE.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.database import Place
from sqlq_spark.wire.address import DELAYED, QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from adbc_driver_manager import Error

    from sqlq_spark.database import Tables

NO_CONNECTION_LEFT = "53300"  # a SQLSTATE

# words of libpq for a connection that failed → what they mean; the first that are found count
WORDS: dict[str, type[errors.DatabaseFailure]] = {
    # the server was reached, and crashed, stops or starts
    r"terminat|closed the connection|reset by peer|is (?:starting|shutting|not yet)|"
    r"recovery mode": errors.ConnectionLost,
    # the server, or PgBouncer, has no connection left
    r"too many (?:clients|connections)|slots are reserved|"
    r"no more connections allowed": errors.ServerShort,
    # a certificate is not trusted, or the server has none
    r"certificate verify failed|[Ss]erver certificate for|root certificate|"
    r"does not support SSL, but SSL was required|could not get server's host name|"
    r"host name must be specified for a verified": errors.ServerNotVerified,
    # a client's certificate that the server refuses, by an alert, or that cannot be read here
    r"\balert\b|valid client certificate|certificate authentication failed|certificate file|"
    r"private key": errors.CertificateRefused,
    r"database.*does not exist": errors.DatabaseNotFound,
    r"authentication|password|role .* (?:does not exist|is not permitted)|"
    r"pg_hba": errors.LoginRefused,
}

FIND_PRIMARY = (
    "The server is a standby, or its database is read-only. Some services make a database "
    "read-only when a disk is full. To find the primary, list several hosts in the url and add "
    "target_session_attrs=read-write."
)

# SQLSTATE → what it means; `Place.error` looks at the statement too
CODES: dict[str, type[errors.DatabaseFailure]] = {
    "22023": errors.TimeZoneNotFound,
    "23505": errors.ReceiptExists,
    "25006": errors.ReadOnly,
    "3F000": errors.SchemaNotFound,
    "42501": errors.RightMissing,
    "42703": errors.NotAQueue,
    "42P01": errors.QueueNotFound,
    **dict.fromkeys(("40P01", "40001"), errors.Deadlock),
    # no room, memory, locks or connection left
    **dict.fromkeys(("53000", "53100", "53200", NO_CONNECTION_LEFT), errors.ServerShort),
    **dict.fromkeys(("57014", "55P03", "25P03"), errors.TimedOut),
}
# what follows the server's sentence where a row's seq is taken (23505)
BEHIND = (
    "; the sequence of {0} is behind its highest seq, as after a copy of rows. `sqlqueue doctor` "
    "prints the SELECT setval(…) that sets it"
)
# SQLSTATEs of a wrong message or table: another attempt would fail as well
LASTING = ("0A", "22", "23", "42", "44", "P0")

# share of the time limit; a statement that ends sooner was cancelled, with the same SQLSTATE
LIMIT_REACHED = 0.95

# statement, or statement and role of the table → the rights that it needs there
RIGHTS = {
    # what locks rows of a queue and deletes them
    **dict.fromkeys(("receive", "receive_range", "take"), "SELECT, DELETE, UPDATE (seq)"),
    **dict.fromkeys(("find_large", "divert_large"), "SELECT, DELETE, UPDATE (seq)"),
    "purge_expired": "SELECT, DELETE, UPDATE (seq)",
    "purge": "SELECT, DELETE",
    "purge_range": "SELECT, DELETE",
    "divert_large errors": "INSERT",
    "skip_taken": "SELECT (seq)",
    **dict.fromkeys(("subscribed", "subscribe"), "SELECT, INSERT, UPDATE"),
    "unsubscribe": "SELECT, DELETE",
    "load": "INSERT",
    "lock_insert": "INSERT",
    "lock_insert subscriptions": "SELECT, INSERT, UPDATE",
    "lock_delete": "SELECT, DELETE, UPDATE (seq)",
    "lock_delete subscriptions": "SELECT, DELETE",
    "move_due": "SELECT, DELETE, UPDATE (due)",
    "move_due queue": "INSERT, SELECT (id)",
    "peek": "SELECT (seq)",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, without the driver."""

    state: str  # SQLSTATE
    text: str  # the server's sentence, or libpq's


def read_error(error: Error) -> Failure:
    text = sentence(error)
    state: Any = getattr(error, "sqlstate", None)
    if not state:  # a bulk insert into an absent table, or column, which the driver looks for
        absent = "42P01" if "does not exist" in str(error) else "?????"
        state = "42703" if text.startswith('Column "') else absent
    return Failure(str(state), text)


def sentence(error: Error) -> str:
    """Return the server's sentence, or libpq's, without the statement's text and row's values."""
    text = re.split(r"\n+Query was:|\. SQLSTATE:", str(error))[0]
    found = re.search(
        r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\nLINE |\nCONTEXT:|\nDETAIL:  (?:Failing row|Token) |$)",
        text,
        flags=re.DOTALL,
    )
    text = found[1] if found else text.rpartition("[libpq]")[2]
    return " ".join(text.split())


def connection_error(server: str, text: str) -> errors.DatabaseFailure:
    """Return the error for a connection that failed, by libpq's sentence."""
    found = (kind for words, kind in WORDS.items() if re.search(words, text))
    place = Place(server=server)
    return place.error(next(found, errors.NotReachable), text, code=NO_CONNECTION_LEFT)


def statement_error(
    failure: Failure, place: Place, *, took: float, team: tuple[str, str] | None
) -> errors.DatabaseFailure:
    """Return the error after `took` seconds; `team`: a state schema that is refused, its roles."""
    state, text, queue, fix = failure.state, failure.text, place.queue, ""
    other = errors.StatementRefused if state.startswith(LASTING) else errors.StatementFailed
    kind = CODES.get(state, other)
    # whether the server misses the queue or its schema, not something that its trigger uses
    is_queue = queue is not None and (queue.table in text or schema_of(queue) in text)
    match state:
        case "57014" if took < LIMIT_REACHED * place.seconds:
            kind = errors.Cancelled
        case "42P01" if queue is not None and not is_queue:
            kind = other
        case "3F000" if queue is None or (is_queue and not place.creates):
            kind = errors.QueueNotFound
        case "25006":
            fix = FIND_PRIMARY
        case "23505" if queue is not None and "Key (seq)=" in text:
            text += BEHIND.format(place.target)
        case "42501" if team is not None:
            kind, fix = errors.StateRightMissing, errors.StateRightMissing.fix_of(*team)
        case "42501" if "row-level security" in text:
            kind = other
        case "42501":
            fix = missing_grant(text, place)
    return place.error(kind, text, code=state, fix=fix)


def find_table(tables: Tables, text: str) -> tuple[str, QueueAddress]:
    """Return the role and the address of the table in the server's sentence; else the first's."""
    first, *others = tables.items()
    ends = " {}", '.{}" does not exist'
    named = (at for at in others if text.endswith(tuple(end.format(at[1].table) for end in ends)))
    return next(named, first)


def schema_of(queue: QueueAddress) -> str:
    return queue.schema or POSTGRESQL.default_schema


def refused_schema(failure: Failure, place: Place) -> str | None:
    """Return the schema that the login may not use, or has a table that it may not use."""
    kind, _, name = failure.text.removeprefix("permission denied for ").partition(" ")
    if failure.state != "42501" or kind == "database" or failure.text.startswith("must be owner"):
        return None
    if kind == "schema":
        return name
    return place.state if place.queue is None else schema_of(place.queue)


def missing_grant(text: str, place: Place) -> str:
    """Return the GRANT that is missing. `refused_schema` was no state schema."""
    queue = place.queue
    target = place.target if queue is None else POSTGRESQL.quote_address(queue)
    kind, _, name = text.removeprefix("permission denied for ").partition(" ")
    if text.startswith("must be owner"):
        return f"a login that owns {target}"
    if kind in {"schema", "database"}:
        right = "CREATE" if place.statement.startswith(("create", "install")) else "USAGE"
        return f"GRANT {right} ON {kind.upper()} {POSTGRESQL.quote_name(name)} TO the_user"
    if kind == "sequence" and queue is not None:
        # the server leaves out the schema of the sequence, which is the queue's
        sequence = POSTGRESQL.quote_address(QueueAddress(name, queue.schema))
        return f"GRANT USAGE ON SEQUENCE {sequence} TO the_user"
    needs = RIGHTS.get(place.statement, "SELECT")
    rights = RIGHTS.get(f"{place.statement} {place.role}", needs)
    if queue is not None and queue.table.endswith(DELAYED):
        rights = rights.replace("(seq)", "(due)")
    return f"GRANT {rights} ON {target} TO the_user"
