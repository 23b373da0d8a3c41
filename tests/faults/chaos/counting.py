"""What became of every message: pure counting over numbers, so that it can be tested by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Tally:
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


def reckon(tally: Tally) -> Verdict:
    """
    Find every message in exactly one place.

    Only messages that had a time to be received may be missing, as many as streams say expired:
    if more are, the highest of them count as lost, and stand last.
    """
    places = Counter([*tally.streamed, *tally.taken, *tally.errors, *tally.left])
    missing = sorted(number for number in tally.sent if number not in places)
    lost = [number for number in missing if tally.sent[number] != "expiring"]
    dropped = [number for number in missing if tally.sent[number] == "expiring"]
    counted = dropped[: tally.expired]
    others = {
        "never committed, but delivered": sorted(set(places) - set(tally.sent)),
        "committed, but not in the producer's table": sorted(tally.confirmed - set(tally.sent)),
        "in the producer's table, but not confirmed": sorted(set(tally.sent) - tally.confirmed),
        "poison, but delivered": sorted(
            number for number in set(tally.streamed) if tally.sent.get(number) == "poison"
        ),
        "no poison, but in the error queue": sorted(
            number for number in set(tally.errors) if tally.sent.get(number) != "poison"
        ),
        "left in the queue": sorted(tally.left),
    }
    return Verdict(
        lost=lost + dropped[tally.expired :],
        repeated=sorted(number for number, times in places.items() if times > 1),
        expired=len(counted),
        others={name: numbers for name, numbers in others.items() if numbers},
        counters=_counters(tally, len(dropped)),
    )


def _counters(tally: Tally, dropped: int) -> list[str]:
    """Where the streams' rows do not say what the books say."""
    pairs = {
        "expired": (tally.expired, dropped),
        "delivered": (tally.delivered, len(tally.streamed)),
        "diverted": (tally.diverted, len(tally.errors)),
    }
    return [
        f"streams counted {counter} {name}, but there are {found}"
        for name, (counter, found) in pairs.items()
        if counter != found
    ]
