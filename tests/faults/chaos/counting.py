"""What became of every message: pure counting over numbers, so that it can be tested alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What everyone's books say at the end of a round, by the numbers of messages."""

    sent: dict[int, str]  # number → plain, expiring or poison
    confirmed: set[int]  # what the producer heard, or found, to be committed
    streamed: list[int]  # in the sinks
    taken: list[int]  # by the competitor
    errors: list[int]  # in the error queue
    left: list[int]  # still in the queue
    expired: int  # by the streams' rows,
    delivered: int  # and delivered,
    diverted: int  # and diverted


def problems(tally: Tally) -> dict[str, list[int]]:
    """
    Find every message in exactly one place; returns what is wrong, by number.

    Only messages that had a time to be received may be missing, as many as streams say expired:
    if more are, the highest of them count as lost, and stand last.
    """
    places = Counter([*tally.streamed, *tally.taken, *tally.errors, *tally.left])
    missing = sorted(number for number in tally.sent if number not in places)
    dropped = [number for number in missing if tally.sent[number] == "expiring"]
    poison = {number for number, kind in tally.sent.items() if kind == "poison"}
    found = {
        "lost": [each for each in missing if each not in dropped] + dropped[tally.expired :],
        "repeated": [number for number, times in places.items() if times > 1],
        "never committed, but delivered": set(places) - set(tally.sent),
        "committed, but not in the producer's table": tally.confirmed - set(tally.sent),
        "in the producer's table, but not confirmed": set(tally.sent) - tally.confirmed,
        "poison, but delivered": set(tally.streamed) & poison,
        "no poison, but in the error queue": set(tally.errors) - poison,
        "left in the queue": tally.left,
        **_counters(tally, len(dropped)),
    }
    return {name: list(numbers) for name, numbers in found.items() if numbers}


def _counters(tally: Tally, dropped: int) -> dict[str, list[int]]:
    """Where the streams' rows do not say what the books say: counted, and there."""
    pairs = {
        "expired": [tally.expired, dropped],
        "delivered": [tally.delivered, len(tally.streamed)],
        "diverted": [tally.diverted, len(tally.errors)],
    }
    return {f"counted and {name}": pair for name, pair in pairs.items() if pair[0] != pair[1]}
