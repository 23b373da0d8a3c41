"""What became of every message: pure counting over numbers, so that it can be tested by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What everyone's books say at the end of a round, by the numbers of messages."""

    sent: dict[int, str]  # number → plain, expiring or poison
    confirmed: set[int]  # what the producer was told, or found, to be committed
    streamed: list[int]  # in the sinks
    taken: list[int]  # by the competitor
    errors: list[int]  # in the error queue
    left: list[int]  # still in the queue
    expired: int  # by the streams' rows,
    delivered: int  # and delivered,
    diverted: int  # and diverted


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong, by number; all empty where nothing is."""

    lost: list[int]
    repeated: list[int]
    expired: int  # and counted as such
    others: dict[str, list[int]] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)  # of streams, that do not fit

    @property
    def sentences(self) -> list[str]:
        """All that is wrong, in words."""
        named = {"lost": self.lost, "repeated": self.repeated, **self.others}
        said = [
            f"{len(numbers)} {name}: {', '.join(map(str, numbers[:10]))}"
            for name, numbers in named.items()
            if numbers
        ]
        return said + self.counters


def reckon(ledger: Ledger) -> Verdict:
    """
    Find every message in exactly one place.

    Only messages that had a time to be received may be missing, as many as streams say expired:
    if more are, the highest of them count as lost, and stand last.
    """
    places = Counter([*ledger.streamed, *ledger.taken, *ledger.errors, *ledger.left])
    missing = sorted(number for number in ledger.sent if number not in places)
    lost = [number for number in missing if ledger.sent[number] != "expiring"]
    dropped = [number for number in missing if ledger.sent[number] == "expiring"]
    counted = dropped[: ledger.expired]
    others = {
        "never committed, but delivered": sorted(set(places) - set(ledger.sent)),
        "committed, but not in the producer's table": sorted(ledger.confirmed - set(ledger.sent)),
        "in the producer's table, but not confirmed": sorted(set(ledger.sent) - ledger.confirmed),
        "poison, but delivered": sorted(
            number for number in set(ledger.streamed) if ledger.sent.get(number) == "poison"
        ),
        "no poison, but in the error queue": sorted(
            number for number in set(ledger.errors) if ledger.sent.get(number) != "poison"
        ),
        "left in the queue": sorted(ledger.left),
    }
    return Verdict(
        lost=lost + dropped[ledger.expired :],
        repeated=sorted(number for number, times in places.items() if times > 1),
        expired=len(counted),
        others={name: numbers for name, numbers in others.items() if numbers},
        counters=_counters(ledger, len(dropped)),
    )


def _counters(ledger: Ledger, dropped: int) -> list[str]:
    """Where the streams' rows do not say what the books say."""
    pairs = {
        "expired": (ledger.expired, dropped),
        "delivered": (ledger.delivered, len(ledger.streamed)),
        "diverted": (ledger.diverted, len(ledger.errors)),
    }
    return [
        f"streams counted {counter} {name}, but there are {found}"
        for name, (counter, found) in pairs.items()
        if counter != found
    ]
