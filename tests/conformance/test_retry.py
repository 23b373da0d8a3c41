"""Return to source: a failed message is in the error queue or where it failed, in one of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from wire import golden

from sqlq_spark.admin import failed_messages
from sqlq_spark.admin.failed_messages import Choice, Plan
from sqlq_spark.errors import MessageChanged
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FAULT_PREFIXES,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    dumps,
    escape,
)

from .conftest import TIMEOUT, Bench

if TYPE_CHECKING:
    import uuid

EXCEPTION = f"{EXCEPTION_INFO}ExceptionType"
ADDED = {
    "NServiceBus.Retries": "3",
    "NServiceBus.Retries.Timestamp": "2026-06-30 17:05:09:423456 Z",
    f"{EXCEPTION_INFO}Message": "no",
    f"{EXCEPTION_INFO}StackTrace": "   at Shop.Sales.Handle()",
    TIME_OF_FAILURE: "2026-06-30 17:05:39:000001 Z",
}
KEPT = {MESSAGE_ID: "m", "NServiceBus.ProcessingEndpoint": "Shop.Sales", "tenant": 'a/"b"', "n": ""}


def fail(bench: Bench, body: bytes = b"{}", /, **headers: str | None) -> uuid.UUID:
    """Put a message into the error queue, as an endpoint does; `headers` are more of them."""
    return bench.dotnet.send(bench.errors, failed(bench, **headers), body)


def failed(bench: Bench, **headers: str | None) -> str:
    """Headers of a message that failed in the queue."""
    return dumps({**KEPT, **ADDED, EXCEPTION: "System.Bad", FAILED_Q: bench.printed, **headers})


def planned(bench: Bench, **choice: Any) -> Plan:
    """Look at the error queue."""
    return failed_messages.plan(bench.desk, bench.errors, Choice(**choice), bench.source())


def give_back(bench: Bench, found: Plan, application: str = "retry", batch: int = 2) -> list[Any]:
    """Return what can be returned."""
    return list(
        failed_messages.give_back(bench.session(application), bench.errors, found, batch=batch)
    )


def waiting(bench: Bench, queue: QueueAddress | None = None) -> list[bytes | None]:
    """The bodies of the error queue, or of another."""
    return bench.bodies(queue or bench.errors)


def test_failures_of_real_endpoints_are_returned_as_they_were(bare: Bench) -> None:
    """What the endpoint added when it failed leaves the text; all else stays byte for byte."""
    failures = [case for case in golden() if FAILED_Q in (case.read or {})]
    here = f'"{FAILED_Q}":"{escape(bare.printed)}"'
    texts = [
        re.sub(rf'"{FAILED_Q}":"(\\"|[^"])*"', lambda _: here, str(each.headers))
        for each in failures
    ]
    for text, each in zip(texts, failures, strict=True):
        bare.dotnet.send(bare.errors, text, each.body)

    found = planned(bare, exceptions=frozenset({"InvalidOperationException"}))
    (done,) = give_back(bare, found, batch=100)

    kind = "System.InvalidOperationException"
    assert [each[1:] for each in found.groups] == [(kind, 5)]
    assert (done.messages, waiting(bare)) == (5, [])
    added = rf',"({"|".join(map(re.escape, FAULT_PREFIXES))})[^"]*":"(\\.|[^"\\])*"'
    assert [(each.headers, each.body) for each in bare.dotnet.rows(bare.queue)] == [
        (re.sub(added, "", text), each.body) for text, each in zip(texts, failures, strict=True)
    ]


def test_a_message_keeps_its_identity(bare: Bench) -> None:
    """One without a message id goes by its row's, which changes: it is written down."""
    row = bare.dotnet.send(bare.errors, dumps({FAILED_Q: bare.printed}), None)

    give_back(bare, planned(bare, ids=frozenset({str(row)})))

    (back,) = bare.dotnet.rows(bare.queue)
    assert back.headers == dumps({MESSAGE_ID: str(row)})
    assert back.body == b""


def test_a_choice_takes_what_fits_all_of_it(bare: Bench) -> None:
    """Ids of messages and rows, exceptions by either name, the failed queue, and the time."""
    noon = "2026-06-30 12:00:00:000000 Z"
    row = fail(bare, b"0", **{MESSAGE_ID: "a", EXCEPTION: "Shop.Late"})
    fail(bare, b"1", **{MESSAGE_ID: "b", EXCEPTION: "System.Bad", TIME_OF_FAILURE: noon})
    fail(bare, b"2", **{MESSAGE_ID: "c", EXCEPTION: None, TIME_OF_FAILURE: "lunch"})
    at = datetime(2026, 6, 30, 12, tzinfo=UTC)

    def count(**choice: Any) -> int:
        return planned(bare, **choice).messages

    assert count() == 3
    assert count(ids=frozenset({str(row), "b", "z"})) == 2
    assert planned(bare, ids=frozenset({"z", "a"})).missing == ["z"]
    assert count(exceptions=frozenset({"Late"})) == 1
    assert count(exceptions=frozenset({"Shop.Late", "System.Bad", "System"})) == 2
    assert count(exceptions=frozenset({""})) == 0
    assert count(failed_queue=bare.queue) == 3
    assert count(failed_queue=QueueAddress("other")) == 0
    assert (count(since=at), count(until=at), count(since=at, until=at)) == (2, 0, 0)
    assert count(ids=frozenset({"a", "b"}), exceptions=frozenset({"Bad"})) == 1


HOSTILE = {
    "": "no header NServiceBus.FailedQ",
    '"unclosed': "cannot be used",
    "a" * 5000: "cannot be used",
    "orders; DROP TABLE orders": "cannot insert into a queue",
    "Shop.Sales@[dbo]@[shop]": "names a queue in another database than",
    "Shop.Sales@MACHINE": "names a queue in another database than",
    "Shop.Sales": 'is read as schema and table "Shop"."Sales"',
}


def test_what_cannot_be_returned_stays_with_its_reason(bare: Bench) -> None:
    """Corrupt headers, no FailedQ, hostile ones, a queue that is none, or elsewhere, or itself."""
    reasons = {}
    for at, (address, reason) in enumerate(HOSTILE.items()):
        fail(bare, str(at).encode(), **{FAILED_Q: address})
        reasons[str(at).encode()] = reason if bare.dotnet.dialect == "postgresql" else ""
    fail(bare, b"itself", **{FAILED_Q: bare.address("error")})
    others = {"[]": b"poison", '{"NServiceBus.FailedQ":7}': b"number", "{}": b"homeless"}
    for text, body in others.items():
        bare.dotnet.send(bare.errors, text, body)
    reasons |= {b"itself": "error queue itself", b"poison": "corrupt", b"number": "corrupt"}
    reasons |= {b"homeless": "no header"}
    fail(bare, b"good")

    found = planned(bare)
    give_back(bare, found)

    said = {each.id: reason for reason, some in found.staying.items() for each in some}
    rows = {row.body or b"": said.get(str(row.id), "") for row in bare.dotnet.rows(bare.errors)}
    assert rows.keys() == reasons.keys()
    assert all(rows.values())
    for body, reason in reasons.items():
        assert reason in rows[body]
    assert bare.bodies() == [b"good"]


def test_with_a_limit_the_oldest_return_and_over_kills_each_returns_once(bare: Bench) -> None:
    """A message that cannot be returned takes no place; a kill comes after a commit."""
    bare.dotnet.send(bare.errors, "{}", b"homeless")
    other = bare.another("Sales")
    for at in range(7):
        fail(bare, b"%d" % at, **{FAILED_Q: bare.desk.printed((bare.queue, other)[at % 2])})
    session, plans = bare.session("retry"), []

    while len(waiting(bare)) > 1:
        found = failed_messages.plan(bare.desk, bare.errors, Choice(), bare.source(), limit=3)
        plans.append(found.messages)
        next(failed_messages.give_back(session, bare.errors, found, batch=2))

    assert plans[0] == 3
    assert max(plans) == 3
    assert [bare.bodies(), waiting(bare, other)] == [[b"0", b"2", b"4", b"6"], [b"1", b"3", b"5"]]
    assert waiting(bare) == [b"homeless"]


def test_a_queue_that_refuses_keeps_its_messages_and_the_others_go(bare: Bench) -> None:
    """One that went away, and one with a law of its own; a batch is undone as a whole."""
    gone, strict = (bare.beside(name) for name in ("gone", "strict"))
    for each in (gone, strict):
        bare.dotnet.create(each)
    for at, each in enumerate((gone, strict, strict, bare.queue)):
        fail(bare, b"%d" % at, **{FAILED_Q: bare.desk.printed(each)})
    found = planned(bare)
    bare.dotnet.dba.drop(gone)
    bare.dotnet.dba.refuse(strict)

    done = give_back(bare, found)

    assert [(each.messages, each.left) for each in done] == [(0, 1), (0, 2), (1, 0)]
    assert "was not found" in str(done[0].reason)
    assert "not today" in str(done[1].reason)
    assert [bare.bodies(), waiting(bare)] == [[b"3"], [b"0", b"1", b"2"]]


def test_batches_are_cut_by_number_and_by_weight(
    bare: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heavy message goes alone."""
    monkeypatch.setattr(failed_messages, "BATCH_BYTES", 3000)
    for size in (1, 1, 1, 4000, 1, 1):
        fail(bare, b"x" * size)

    done = give_back(bare, planned(bare))

    assert [each.messages for each in done] == [2, 1, 1, 2]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_message_that_is_not_the_one_that_was_chosen_is_not_returned(
    bare: Bench, *, replaced: bool
) -> None:
    """Its headers changed, or another has its seq in a new table; nothing of its batch goes."""
    fail(bare, b"0")
    fail(bare, b"1")
    found = planned(bare)
    if replaced:
        bare.dotnet.dba.drop(bare.errors)
        bare.dotnet.create(bare.errors)
        fail(bare, b"other")
    else:
        bare.dotnet.dba.rewrite(bare.errors, failed(bare, **{FAILED_Q: "elsewhere"}))

    with pytest.raises(MessageChanged, match="Nothing of its batch was returned"):
        give_back(bare, found)

    assert [bare.bodies(), waiting(bare)] == [[], [b"other"] if replaced else [b"0", b"1"]]


def test_two_operators_at_once_return_each_message_once(bare: Bench) -> None:
    """Each message is returned by one of them."""
    for at in range(60):
        fail(bare, b"%02d" % at)
    plans = [planned(bare), planned(bare)]

    both = [
        bare.thread(partial(give_back, bare, found, f"retry {at}", 3))
        for at, found in enumerate(plans)
    ]
    done = [each for one in both for each in one.result(timeout=TIMEOUT)]

    assert sum(each.messages for each in done) == 60
    assert sorted(filter(None, bare.bodies())) == [b"%02d" % at for at in range(60)]
    assert waiting(bare) == []
