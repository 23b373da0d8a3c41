"""The checks of a starting stream."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlq_spark.admin.checks.queue import MOVED_INTO, of_delayed, of_owner, of_queue
from sqlq_spark.admin.checks.server import of_any_server
from sqlq_spark.database import transaction
from sqlq_spark.database.trust import Destinations
from sqlq_spark.errors import BadOption, MoveRefused, NotAQueue

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Log the problems of the queues of a starting stream; no transaction is open.

    Raises:
        BadOption: two queues of the options are one.
        QueueNotFound, DestinationRefused: the error queue would take no poison message.
        NotAQueue: it is not a plain table, so that rows could exist outside of receipts.
        MoveRefused: delayed messages that are due could not be moved into it.
    """
    check_spellings(connection, options)
    check_error_queue(connection, options)
    found = of_any_server(connection, timeout=options.query_timeout)
    with transaction(connection, timeout=options.query_timeout):
        for each in options.addresses:
            found += of_queue(connection, each, peek_delay=options.peek_delay)
            found += of_delayed(connection, each) if options.delayed_delivery else []
            found += of_owner(connection, each) if options.warn_if_shared else []
    for one in found:
        if one.name in MOVED_INTO and one.severity == "error":
            raise MoveRefused(queue=one.where, reason=one.found, fix=one.fix)
        if one.name == "table_kind":
            raise NotAQueue(queue=one.where, reason=one.found)
        if one.is_problem:
            log.warning("%s: %s. Fix: %s", one.where, one.found, one.fix)


def check_error_queue(connection: Connection, options: SourceOptions) -> None:
    """
    Make sure that each queue's poison messages can go to the error queue; no transaction is open.

    Raises:
        QueueNotFound, NotAQueue, DestinationRefused.
    """
    if options.error_address is None:
        return
    with transaction(connection, timeout=options.query_timeout):
        for queue in options.addresses:
            known = Destinations(connection, options.allowed, source=queue)
            known.check([options.error_address])


def check_spellings(connection: Connection, options: SourceOptions) -> None:
    """
    Refuse two spellings of one queue in the options, which only the server can compare.

    A poison message in an error queue that is also read would circulate.

    Raises:
        BadOption.
    """
    errors = () if options.error_address is None else (options.error_address,)
    named = [*options.addresses, *errors]
    seen: dict[object, QueueAddress] = {}
    for queue, identity in zip(named, connection.identities(named), strict=True):
        first = seen.setdefault(identity, queue)
        if first is not queue:
            option = "errorQueue" if queue is options.error_address else "queues"
            expected = f"another queue than {connection.printed(first)}, which is the same table"
            raise BadOption(option=option, found=connection.printed(queue), expected=expected)
