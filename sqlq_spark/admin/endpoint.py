"""
The queues of an endpoint, by the names that the transport gives them. Does no IO.

    endpoint[.qualifier][.discriminator]

All instances share the queue `shop`. `shop.web1` belongs to the instance web1, and `shop.Retries`
to a satellite. Endpoints share error and audit queues, which have full names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress, BadOption
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.wire.address import DELAYED, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.wire.address import Names


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The tables of an endpoint."""

    primary: QueueAddress
    instances: tuple[QueueAddress, ...] = ()
    satellites: tuple[QueueAddress, ...] = ()
    error: QueueAddress | None = None
    audit: QueueAddress | None = None

    @property
    def own(self) -> tuple[QueueAddress, ...]:
        """The queues that the endpoint receives from."""
        return self.primary, *self.instances, *self.satellites

    @property
    def shared(self) -> tuple[QueueAddress, ...]:
        """The queues that it only sends to."""
        return tuple(each for each in (self.error, self.audit) if each is not None)

    @property
    def queues(self) -> tuple[QueueAddress, ...]:
        """All queues."""
        return *self.own, *self.shared


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
        BadOption: a name is empty, too long, or appears twice. The error names the flag.
    """
    naming = names_of(url)
    primary = _primary(naming, queue, delayed=delayed)
    made = Endpoint(
        primary=primary,
        instances=tuple(_derive("--instance", naming, primary, text) for text in instances),
        satellites=tuple(_derive("--qualifier", naming, primary, text) for text in qualifiers),
        error=None if error is None else parse_queue("--error", error, naming),
        audit=None if audit is None else parse_queue("--audit", audit, naming),
    )
    _check_each_once(naming, made)
    return made


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


def _primary(naming: Names, text: str, *, delayed: bool) -> QueueAddress:
    """Read the endpoint's name; one that is too long is refused with both naming."""
    both = (
        f"a queue's name of at most {naming.longest_table} {naming.unit}, or of "
        f"{naming.longest_with_delayed} with --delayed, which needs room for {DELAYED}"
    )
    try:
        found = parse_queue("queue", text, naming)
    except BadOption as error:
        expected = error.expected.replace("a queue's name", both)
        raise BadOption(option=error.option, found=error.found, expected=expected) from None
    size = naming.size(found.table)
    if delayed and size > naming.longest_with_delayed:
        raise BadOption(
            option="queue", found=text, expected=f"{both} (the table has {size} {naming.unit})"
        )
    return found


def _check_each_once(naming: Names, made: Endpoint) -> None:
    seen: set[str] = set()
    for flag, queues in _by_flag(made):
        for each in queues:
            name = naming.print_address(each)
            if name in seen:
                raise BadOption(
                    option=flag, found=name, expected="another queue than those before it"
                )
            seen.add(name)


def _by_flag(made: Endpoint) -> Iterator[tuple[str, tuple[QueueAddress, ...]]]:
    yield "queue", (made.primary,)
    yield "--instance", made.instances
    yield "--qualifier", made.satellites
    yield "--error", () if made.error is None else (made.error,)
    yield "--audit", () if made.audit is None else (made.audit,)
