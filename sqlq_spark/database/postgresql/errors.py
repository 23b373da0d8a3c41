"""
Turn a driver's error into the package's error, with the SQL that fixes the problem.

For a failed statement the driver reports a SQLSTATE. What is missing is read from the catalogue
(see `why_refused`), and not from the server's sentence, whose language is a setting of the server
(lc_messages). For a failed connection libpq reports only a sentence. So this module knows the
sentences of libpq, and the English sentences of servers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adbc_driver_manager import AdbcStatusCode

from sqlq_spark import errors
from sqlq_spark.database import Place
from sqlq_spark.wire.address import DELAYED, QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from adbc_driver_manager import Error

    from sqlq_spark.database import Tables

NO_CONNECTION_LEFT = "53300"  # a SQLSTATE
NO_SQLSTATE = "?????"  # used if the driver reports no SQLSTATE
# Before a bulk insert the driver itself looks for the table. If it does not find the table, the
# error has a status of the driver and no SQLSTATE. Here: status → the SQLSTATE that means the same.
DRIVER_STATES = {
    AdbcStatusCode.NOT_FOUND: "42P01",
    AdbcStatusCode.UNAUTHORIZED: "42501",
    AdbcStatusCode.ALREADY_EXISTS: "42703",  # the driver's status for an absent column
}

# words in the sentence of a failed connection → the error that they mean; the first match counts
WORDS: dict[str, type[errors.DatabaseFailure]] = {
    # the server was reached, but it crashed, is stopping or is starting
    r"terminat|closed the connection|reset by peer|is (?:starting|shutting|not yet)|"
    r"recovery mode": errors.ConnectionLost,
    # the server, or PgBouncer, has no connection left
    r"too many (?:clients|connections)|slots are reserved|"
    r"no more connections allowed": errors.ServerShort,
    # a certificate is not trusted, or the server has none
    r"certificate verify failed|[Ss]erver certificate for|root certificate|"
    r"does not support SSL, but SSL was required|could not get server's host name|"
    r"host name must be specified for a verified": errors.ServerNotVerified,
    # the server refuses the client's certificate by a TLS alert, or this machine cannot read it
    r"\balert\b|valid client certificate|certificate authentication failed|certificate file|"
    r"private key": errors.CertificateRefused,
    r"database.*does not exist": errors.DatabaseNotFound,
    r"no password supplied": errors.PasswordMissing,
    r"authentication|password|role .* (?:does not exist|is not permitted)|"
    r"pg_hba": errors.LoginRefused,
    # no server has answered: libpq's own sentences are always English
    r"refused$|refused |could not (?:translate|connect|create|look up)|[Tt]imed out|timeout|"
    r"unreachable|No route|No such file|Permission denied|[Hh]ost is down|invalid |"
    r"not currently accepting|Cannot assign": errors.NotReachable,
}

FIND_PRIMARY = (
    "The server is a standby, or its database is read-only. Some services make a database "
    "read-only when a disk is full. To find the primary, list several hosts in the url and add "
    "target_session_attrs=read-write."
)

# SQLSTATE → the error that it means
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
# this is added to the server's sentence if the seq of a row is taken (23505)
BEHIND = (
    "; the sequence of {0} is behind its highest seq, as after a copy of rows. `sqlqueue doctor` "
    "prints the SELECT setval(…) that sets it"
)
# classes of SQLSTATEs for a wrong message or table: another attempt would fail too
LASTING = ("0A", "22", "23", "42", "44", "P0")

# Data exceptions (SQLSTATEs of class 22) whose sentence quotes no value of a row: value too long,
# null not allowed, division by zero, wrong binary format. All others may quote a value of a
# message.
WITHOUT_VALUE = {"22001", "22004", "22012", "22P03"}
NOT_SHOWN = "the server refuses a value, which is not shown because it may be a message's"
# Classes of SQLSTATEs whose DETAIL quotes no value of a row. They are about deadlocks, names,
# resources, limits, locks and cancelled statements.
WITHOUT_ROWS = ("40", "42", "53", "54", "55", "57")
TRANSACTION_TIMEOUT = "25P04"  # a SQLSTATE
# SQLSTATEs for which the catalogue says what is missing
LOOKED_UP = {"23505", "3F000", "42501", "42P01"}

# A statement that somebody cancelled has the same SQLSTATE as one that reached its time limit. If
# it took less than this share of the limit, it was cancelled.
LIMIT_REACHED = 0.95

MAKES = ("create", "install")  # names of statements that create tables begin with these
# names of other statements that only the owner of a table may run begin with these
ONLY_OWNERS = ("add", "drop", "migrate", "revert")

# "statement", or "statement role" for a table that has a role of its own → the rights needed on it
NEEDED_RIGHTS = {
    # statements that lock rows of a queue and delete them
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
    """The facts of a driver's error: no object of the driver, no SQL text, no value of a row."""

    state: str  # SQLSTATE
    text: str  # the server's sentence, or libpq's
    constraint: str = ""  # the constraint or index that refused a row


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of `why_refused`: what the catalogue says of one table of a failed statement."""

    role: str  # the table's name in the statement's braces
    has_schema: bool
    has_table: bool
    of_seq: bool  # whether the index that refused a row is on seq
    # what is lacking: database, schema, owner, rights, sequence or policy; None if nothing is
    lacks: str | None
    named: str  # the quoted name of the database, schema, table or sequence without the right


def read_error(error: Error) -> Failure:
    fields = {name: value.decode(errors="replace") for name, value in map(_field, error.details)}
    state = error.sqlstate
    if state is None:
        # in a bulk insert the driver itself looks for the table, and then for the columns
        state = DRIVER_STATES.get(error.status_code, NO_SQLSTATE)
        if state in {"42P01", "42501"}:
            return Failure(state, "the driver cannot look at the table")
        return Failure(state, cut_sentence(error))
    text = fields.get("MESSAGE_PRIMARY", "")
    if state.startswith("22") and state not in WITHOUT_VALUE:
        text = NOT_SHOWN
    elif state.startswith(WITHOUT_ROWS) and "MESSAGE_DETAIL" in fields:
        text = f"{text}. {fields['MESSAGE_DETAIL']}"
    return Failure(state, " ".join(text.split()), fields.get("CONSTRAINT_NAME", ""))


def _field(detail: tuple[str | bytes, bytes]) -> tuple[str, bytes]:
    name, value = detail
    text = name.decode() if isinstance(name, bytes) else name
    return text.removeprefix("PG_DIAG_"), value


def cut_sentence(error: Error) -> str:
    """Return the sentence of libpq or of the driver, without the statement's SQL text."""
    text = re.split(r"\n+Query was:|\. SQLSTATE:", str(error))[0]
    text = re.sub(r"(?s)Failed to execute query '.*': ", "", text)
    sentence = re.search(r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\nLINE |\nCONTEXT:|$)", text, re.DOTALL)
    text = sentence[1] if sentence else text.rpartition("[libpq]")[2]
    return " ".join(text.split())


def connection_error(server: str, text: str, shown: str | None = None) -> errors.DatabaseFailure:
    """
    Return the error for a connection that failed.

    libpq's sentence `text` decides the kind of the error. If `shown` is given, the error quotes
    `shown` instead of `text`.
    """
    kinds = (kind for words, kind in WORDS.items() if re.search(words, text))
    place = Place(server=server)
    kind = next(kinds, errors.ConnectionUnclear)
    return place.error(kind, text if shown is None else shown, code=NO_CONNECTION_LEFT)


def statement_error(
    failure: Failure,
    place: Place,
    *,
    took: float,
    login_limit: float = 0.0,
    refusal: Refusal | None = None,
    team: tuple[str, str] | None = None,
) -> errors.DatabaseFailure:
    """
    Return the error of a statement.

    Args:
        failure: what the server reported.
        place: the statement, and the table because of which it failed.
        took: seconds until the statement failed.
        login_limit: seconds that the login's statement_timeout gives a statement, or 0.
        refusal: what the catalogue says of that table. None if the catalogue was not asked.
        team: a state schema that this login may not use, and the roles that may use it.
    """
    state = failure.state
    text = failure.text
    fix = ""
    has_stricter_login = 0 < login_limit < place.seconds
    if state == "57014" and has_stricter_login:
        place = replace(place, seconds=login_limit)
    kind = kind_of(state, place, took, refusal)
    if state == "57014" and has_stricter_login and kind is errors.TimedOut:
        kind = errors.StatementLimited
    if state == "55P03":
        place = replace(place, seconds=place.lock_seconds)
    if kind is errors.TimeZoneNotFound and place.statement == "endpoint_zone":
        text = "the server does not know the time zone"
    elif kind is errors.ReadOnly:
        fix = FIND_PRIMARY
    elif kind is errors.ReceiptExists and refusal is not None and refusal.of_seq:
        text += BEHIND.format(place.target)
    elif kind is errors.RightMissing and team is not None:
        kind = errors.StateRightMissing
        fix = errors.StateRightMissing.fix_of(*team)
    elif kind is errors.RightMissing:
        fix = missing_grant(place, refusal)
    return place.error(kind, text, code=state, fix=fix)


def kind_of(
    state: str, place: Place, took: float, refusal: Refusal | None
) -> type[errors.DatabaseFailure]:
    """Return the kind of error that a SQLSTATE means. `place.error` also uses the statement."""
    other = errors.StatementRefused if state.startswith(LASTING) else errors.StatementFailed
    if place.queue is not None and refusal is not None:
        # if the table exists, something that its trigger or policy uses is missing
        is_there = {"42P01": refusal.has_table, "3F000": refusal.has_schema}.get(state, False)
        if is_there or (state == "42501" and refusal.lacks == "policy"):
            return other
    if state == "3F000" and (place.queue is None or not place.creates):
        return errors.QueueNotFound
    if state == "57014" and took < LIMIT_REACHED * place.seconds:
        return errors.Cancelled
    return CODES.get(state, other)


def schema_of(queue: QueueAddress) -> str:
    return queue.schema or POSTGRESQL.default_schema


def tables_to_look_up(place: Place, tables: Tables) -> list[dict[str, Any]]:
    """
    Return what to ask `why_refused` about: a statement's tables or, if none, the state schema.

    If a statement uses one table in two roles, as in `lock_table`, the last role counts.
    """
    roles = {queue: role for role, queue in tables.items()}
    asked = [
        {
            "role": role,
            "schema": schema_of(queue),
            "table": queue.table,
            "needs": needed_rights(place.statement, role, queue).split(", "),
        }
        for queue, role in roles.items()
    ]
    return asked or [{"role": "", "schema": place.state, "table": None, "needs": []}]


def choose_refusal(state: str, refusals: list[Refusal]) -> Refusal | None:
    """
    Return what the catalogue says of the first table that lacks something.

    This table made the statement fail.
    """

    def is_cause(refusal: Refusal) -> bool:
        if state == "42501":
            return refusal.lacks is not None
        return refusal.of_seq or not refusal.has_table

    causes = filter(is_cause, refusals)
    return next(iter([*causes, *refusals]), None)


def needed_rights(statement: str, role: str, queue: QueueAddress) -> str:
    """Return the rights that a statement needs on one of its tables, as a GRANT lists them."""
    rights = NEEDED_RIGHTS.get(f"{statement} {role}", NEEDED_RIGHTS.get(statement, "SELECT"))
    return rights.replace("(seq)", "(due)") if queue.table.endswith(DELAYED) else rights


def missing_grant(place: Place, refusal: Refusal | None) -> str:
    """Return the GRANT that is missing, for a table outside of the state schemas."""
    queue = place.queue
    lacks = None if refusal is None else refusal.lacks
    target = place.target if queue is None else POSTGRESQL.quote_address(queue)
    if lacks == "owner":
        return f"a login that owns {target}"
    if refusal is not None and lacks in {"database", "schema"}:
        right = "CREATE" if place.statement.startswith(MAKES) else "USAGE"
        return f"GRANT {right} ON {lacks.upper()} {refusal.named} TO the_user"
    if refusal is not None and lacks == "sequence":
        return f"GRANT USAGE ON SEQUENCE {refusal.named} TO the_user"
    rights = "SELECT" if queue is None else needed_rights(place.statement, place.role, queue)
    return f"GRANT {rights} ON {target} TO the_user"
