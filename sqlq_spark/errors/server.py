"""Errors of the connection and of statements in general."""

from __future__ import annotations

from sqlq_spark.errors.root import DatabaseFailure


class NotReachable(DatabaseFailure):
    """No connection to the server could be opened."""

    template = "no connection to {0}: {1}. Check host, port and firewall in the url."

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class LoginRefused(DatabaseFailure):
    """The server does not accept this user or password."""

    template = "{0} refused the login: {1}. Check user and password."

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class LoginUnclear(LoginRefused):
    """The server accepts this login or its database not. The driver does not report which."""

    template = "{0} refused the login: {1}. Check user and password, and the database's name."


class CertificateRefused(LoginRefused):
    """The server does not accept this client's certificate, or it cannot be read here."""

    template = (
        "{0} refused the login: {1}. Check the client's certificate and its key, which the url's "
        "parameters sslcert and sslkey name (see docs/security.md)."
    )


class CredentialsFailed(DatabaseFailure):
    """The function or the service of the option `credentials` raised an error."""

    template = "option credentials is {0!r}, but it gave no password: {1}"

    def __init__(self, credentials: str, reason: str) -> None:
        super().__init__(credentials, reason)


class ServerNotVerified(DatabaseFailure):
    """The server has no certificate that this machine trusts for the host's name."""

    template = (
        "{0} could not be verified, so nothing was sent to it: {1}. Write the host in the url as "
        "its certificate names it. Name the file with the issuer's certificate in the url's "
        "parameter sslrootcert, or set a weaker sslmode (see docs/security.md)."
    )

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class DatabaseNotFound(DatabaseFailure):
    """The server has no database of this name."""

    template = "{0}: {1}. Create the database, or name another one at the end of the url."

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class ConnectionLost(DatabaseFailure):
    """The connection broke. It is unknown whether a commit in progress was carried out."""

    template = "the connection was lost during {0}: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class ReadOnly(ConnectionLost):
    """The server accepts no writes, for example a standby. Another host may be the primary."""

    template = "{0} was refused: {1}. {2}"

    def __init__(self, statement: str, reason: str, fix: str) -> None:
        DatabaseFailure.__init__(self, statement, reason, fix)


class Deadlock(DatabaseFailure):
    """The database rolled this transaction back to end a deadlock. It may be tried again."""

    template = "{0} was rolled back to end a deadlock: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class ReceiptExists(DatabaseFailure):
    """Another attempt of the same task has left its receipt. The task may be tried again."""

    template = "another attempt of the same task has finished meanwhile ({0}: {1})"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class TimedOut(DatabaseFailure):
    """A statement, or the wait for a lock, took longer than queryTimeout."""

    template = "{0} took longer than {1:g} s: {2}. Raise the option queryTimeout."

    def __init__(self, statement: str, seconds: float, reason: str) -> None:
        super().__init__(statement, seconds, reason)


class LockTimedOut(TimedOut):
    """The wait for a lock took longer than queryTimeout. It may be tried again."""


class Cancelled(DatabaseFailure):
    """Ctrl-C or a DBA cancelled a statement. Its transaction was rolled back."""

    template = "{0} was cancelled by Ctrl-C or by a DBA (pg_cancel_backend): {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class RightMissing(DatabaseFailure):
    """The login lacks a permission."""

    template = "{1} (statement {0}). A DBA can fix this with: {2}"

    def __init__(self, statement: str, reason: str, grant: str) -> None:
        super().__init__(statement, reason, grant)


class StateRightMissing(RightMissing):
    """The login may not use a state schema: it is another team's, or the login lacks a role."""

    template = (
        "{1} (statement {0}). The state schema is another team's, or this login lacks a role of "
        "its team. {2}"
    )

    @staticmethod
    def fix(schema: str, roles: str) -> str:
        """
        Say what to do. A GRANT would hand out all of another team's state.

        Args:
            schema: the state schema.
            roles: those that may use it, joined by ", "; empty where the server does not show them.
        """
        return (
            f"Set the option stateSchema to your team's schema instead of {schema}, or ask for "
            f"membership in a role of its team{f' ({roles})' if roles else ''}."
        )


class TimeZoneNotFound(DatabaseFailure):
    """The server knows no time zone of this name."""

    template = "{0} failed: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class ServerTooOld(DatabaseFailure):
    """The server's version lacks what the statements use. Nothing was changed."""

    template = "{0} is PostgreSQL {1}, but {2} or later is needed. Ask a DBA to upgrade it."

    def __init__(self, server: str, found: str, needed: int) -> None:
        super().__init__(server, found, needed)


class DatabaseTooOld(DatabaseFailure):
    """The compatibility level of a SQL Server database has no JSON."""

    template = (
        "the database of {0} has compatibility level {1}, but {2} is needed, because messages are "
        "sent as JSON. A DBA can fix this on SQL Server 2016 or later with: "
        "ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = {2}"
    )

    def __init__(self, server: str, found: int, needed: int) -> None:
        super().__init__(server, found, needed)


class StatementPooling(DatabaseFailure):
    """A pooler assigns a server session for one statement only. Nothing was changed."""

    template = (
        "a pooler in front of {0} assigns a session for one statement only ({1}), but transactions "
        "are needed. Set pool_mode=transaction or pool_mode=session for this database in the "
        "pooler, or use a url that bypasses the pooler."
    )

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class StatementFailed(DatabaseFailure):
    """The database answered with any other error."""

    template = "{0} failed with error {1}: {2}"

    def __init__(self, statement: str, code: str, reason: str) -> None:
        super().__init__(statement, code, reason)


class ServerShort(StatementFailed):
    """The server is short of memory, locks, space or connections. It may be tried again."""


class LogFull(ServerShort):
    """The transaction log is full. The statement may be tried again."""


class StatementRefused(StatementFailed):
    """The message or the table causes the error. Another attempt would fail as well."""
