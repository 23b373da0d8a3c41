"""Errors of the state tables and of the receipts and chunks in them."""

from __future__ import annotations

from sqlq_spark.errors.root import DatabaseFailure, SqlQueueError


class StateNotInstalled(DatabaseFailure):
    """The state tables do not exist, or this login may not see them."""

    template = (
        "the state tables were not found in schema {0} of {1}. Run `sqlqueue install` once, "
        "set the option stateSchema to your team's schema, or ask for membership in a role that "
        "may use it."
    )

    def __init__(self, schema: str, server: str) -> None:
        super().__init__(schema, server)


class StateTooOld(DatabaseFailure):
    """An older release created the state tables."""

    template = (
        "the state tables in schema {0} have version {1}, but this release supports {2}. Stop the "
        "queries that use them, and see that the tables receipt and staging are empty. Then drop "
        "the schema and run `sqlqueue install`, or the script of `sqlqueue script`. If receipt or "
        "staging is not empty, its messages would be lost."
    )

    def __init__(self, schema: str, found: int, known: int) -> None:
        super().__init__(schema, found, known)


class StateTooNew(DatabaseFailure):
    """A newer release created the state tables."""

    template = (
        "the state tables in schema {0} have version {1}, but this release supports {2}. "
        "Upgrade sqlq-spark here."
    )

    def __init__(self, schema: str, found: int, known: int) -> None:
        super().__init__(schema, found, known)


class StateOfOther(DatabaseFailure):
    """An untrusted login owns the state schema or a table in it, and could run code as this one."""

    template = (
        "nothing is installed in schema {0} of {1}: {2}. The owner of a state table, or of a "
        "trigger on it, can run code as the logins that use it. Trusted are this login, superusers "
        "and the owner of the database. Ask a DBA to drop or rename what is there, or name another "
        "schema in the option stateSchema."
    )

    def __init__(self, schema: str, server: str, found: str) -> None:
        super().__init__(schema, server, found)


class InstallBlocked(DatabaseFailure):
    """Another session creates or changes the state tables for longer than an install waits."""

    template = (
        "nothing was installed in schema {0} of {1}: another session creates the state tables, or "
        "holds a lock on one, for longer than {2:g} s ({3}). End that session's transaction, or "
        "run the install again later."
    )

    def __init__(self, schema: str, server: str, seconds: float, reason: str) -> None:
        super().__init__(schema, server, seconds, reason)


class PayloadRefused(SqlQueueError):
    """A receipt's or chunk's content differs from what was written. None of it was used."""

    template = (
        "the payload of {0} in the state tables cannot be used: {1}. None of it was delivered or "
        "sent. A login that may write the state tables changed it, or the database is damaged. "
        "Restore that row from a backup. Or run `sqlqueue receipts drop`, which loses the messages "
        "of a receipt. If a larger maxMessageBytes was set when it was written, set that again."
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)


class ReceiptSettled(SqlQueueError):
    """A receipt's messages were already sent on. They cannot be returned to the queue."""

    template = (
        "receipt {0}/{1}/{2} is settled: its messages were processed and sent on in one "
        "transaction. Drop it with `sqlqueue receipts drop`."
    )

    def __init__(self, stream: str, batch: int, task: int) -> None:
        super().__init__(stream, batch, task)


class ReceiptRefused(SqlQueueError):
    """A receipt names a queue from which its login may not receive. Nothing was returned."""

    template = (
        "receipt {0} of login {1} names queue {2}, from which that login may not receive, so the "
        "receipt may be forged. If you trust it, name the queue in --allow."
    )

    def __init__(self, receipt: str, login: str, queue: str) -> None:
        super().__init__(receipt, login, queue)


class ReceiptMoveRefused(SqlQueueError):
    """A move of a receipt is not in the table of moves. This is a defect of the package."""

    template = (
        "move {1} of {0} from state {2} is not allowed: MOVES in database/receipt_moves.py does "
        "not list it. Nothing was changed. Report this as a bug of sqlq_spark."
    )

    def __init__(self, receipts: str, move: str, state: str) -> None:
        super().__init__(receipts, move, state)
