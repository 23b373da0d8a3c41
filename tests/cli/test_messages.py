"""The commands on messages: `send`, `browse`, `retry`, `receipts`, `purge` and their `trail`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from conftest import ORDINARY

from sqlq_spark.wire import headers as wire

from .commands import json_lines
from .database import STREAM, address, count, messages, put, received

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

    from .commands import Run


# ---------------------------------------------------------------- send


def test_lines_become_messages(run: Run, orders: str, place: Place, tmp_path: Path) -> None:
    """A field of a line wins over the option. A line may also delay, publish or name a queue."""
    other, path = address(place, "Shop.Billing"), tmp_path / "event"
    run("create", orders, "--delayed")
    run("create", other)
    run("subscribe", "Shop.Placed", "--endpoint", "Lake", "--queue", other)
    path.write_bytes(b"\xff\x00\n")
    options = ("--content-type", "text/plain", "--header", "k=v=w", "--json")
    value, moment = {"a": [1, 2.5, None]}, "2345-06-07T10:09:10.111213+02:00"
    lines = json_lines(
        {"body": "plain ä", "id": "m1"},
        {"body": value, "headers": {"k": "own"}, "timeToBeReceived": "00:01:00"},
        {"bodyBase64": "/wA=", "replyToAddress": "Spark.In"},
        {"body": "2", "queue": other},
        {"body": "soon", "delay": "01:00:00"},
        {"body": "then", "deliverAt": moment},
        {"body": "event", "topics": ["Shop.Special", "Shop.Placed"]},
        {"body": "lost", "topics": ["Shop.Nothing"]},
    )

    sent = run("send", orders, *options, stdin=f"\n{lines}\n\n")
    of_file = run("send", "--file", str(path), "--topic", "Shop.Placed")

    names = ("sent", "delayed", "published", "unheard", "queues")
    figures = [8, 2, 2, 1, {orders: 5, other: 1}]
    assert [sent.objects[0][name] for name in names] == figures
    assert "1 published message discarded" in sent.err
    assert of_file.code == 0
    (first, *own), (_, event, _) = (
        [{"body": body, **headers} for headers, body in messages(place, queue)]
        for queue in (orders, other)
    )
    assert first["body"] == "plain ä".encode()
    assert (first[wire.MESSAGE_ID], first["k"]) == ("m1", "v=w")
    assert first[wire.CONTENT_TYPE] == "text/plain"
    assert [each["body"] for each in own] == [json.dumps(value).encode(), b"\xff\x00"]
    assert (own[0]["k"], own[0][wire.TIME_TO_BE_RECEIVED]) == ("own", "00:01:00")
    assert own[1][wire.REPLY_TO_ADDRESS] == '"public"."Spark.In"'
    assert event[wire.ENCLOSED_MESSAGE_TYPES] == "Shop.Special;Shop.Placed"
    assert messages(place, other)[-1][1] == b"\xff\x00\n"
    soon, then = place.sql(f'SELECT body, headers, due FROM {orders[:-1]}.Delayed" ORDER BY body')
    assert (soon[0], then[0], then[2]) == (b"soon", b"then", datetime.fromisoformat(moment))
    assert json.loads(then[1])[wire.DELIVER_AT] == "2345-06-07 08:09:10:111213 Z"


# ---------------------------------------------------------------- browse


def test_a_browse_obeys_no_character_and_can_be_sent_again(
    run: Run, orders: str, place: Place
) -> None:
    """Headers and bodies of any bytes come back. A terminal gets no control character."""
    body = "[red]\x1b[2J a\x9b31mb\u202ec\u2066d\u200be\x7ff\U000e0041g ä 😀"
    lines = {"body": body, "headers": {"k\u202e": "\x85\u2028"}}, {"bodyBase64": "/wA="}
    run("send", orders, "--message-type", "A.B.Placed, X", stdin=json_lines(*lines))
    before = messages(place, orders)

    shown = run("browse", orders, "--json", "--limit", "2")
    run("send", orders, stdin=shown.out)
    again = messages(place, orders)
    put(place, orders, "[]")
    table = run("browse", orders).out

    assert shown.out.replace("\n", "").isprintable()
    assert "ä 😀" in shown.out
    assert shown.objects[0]["body"] == body
    assert again == before * 2
    assert all(text in table for text in ("Placed", "(corrupt headers)", "[red]·[2J a·31mb·c·d"))


def test_a_browse_of_an_error_queue_shows_what_failed_where(run: Run, place: Place) -> None:
    """Exception and endpoint are columns as soon as one message has failed, and only then."""
    error = address(place, "error")
    run("create", error)
    put(place, error, wire.dumps({wire.PROCESSING_ENDPOINT: "Shop.Audited"}), b"1")
    before = run("browse", error).out
    exception = f"{wire.EXCEPTION_INFO}ExceptionType"
    failed = {wire.FAILED_Q: "q", wire.PROCESSING_ENDPOINT: "Shop\x1b[2J", exception: "System.Late"}
    put(place, error, wire.dumps(failed), b"2")
    put(place, error, "[]")

    title, head, *_, last, corrupt = run("browse", error).out.splitlines()

    assert "endpoint" not in before
    assert (title.strip(), head.split()[3:5]) == ("messages", ["exception", "endpoint"])
    assert last.split() == ["2", "-", "-", "Late", "Shop·[2J", "-", "1", "B", "2"]
    assert corrupt.split()[1:6] == ["(corrupt", "headers)", "-", "-", "-"]


# ---------------------------------------------------------------- retry


def test_failed_messages_return_to_the_queues_where_they_failed(run: Run, place: Place) -> None:
    """`retry` asks first. It chooses by time, exception and number, by id, or all."""
    error, sales, bills = (address(place, each) for each in ("error", "Shop.Sales", "Shop.Bills"))
    for queue in (error, sales, bills):
        assert run("create", queue).code == 0
    kinds = ((sales, "Late"), (sales, "Late"), (bills, "Bad"), ('"nowhere\x1b[2J"', "Bad"))
    for number, (source, kind) in enumerate(kinds):
        headers = {
            wire.MESSAGE_ID: f"m-{number}",
            f"{wire.EXCEPTION_INFO}ExceptionType": f"System.{kind}",
            wire.TIME_OF_FAILURE: f"2026-06-30 1{number}:00:00:000000 Z",
            wire.FAILED_Q: source,
        }
        put(place, error, wire.dumps(headers))

    def ids(queue: str) -> list[str | None]:
        return [headers[wire.MESSAGE_ID] for headers, _ in messages(place, queue)]

    times = ("--since", "2026-06-30T11:00:00+01:00", "--until", "2026-06-30T11:30:00Z")
    assert run("retry", error, *times, "--exception", "Late", "--limit", "1", "--yes").code == 0
    assert ids(sales) == ["m-0"]
    refused = run("retry", error, "--all", stdin="n\n")
    assert (refused.code, ids(error)) == (1, ["m-1", "m-2", "m-3"])

    returned = run("retry", error, "--all", "--yes")

    assert returned.code == 1
    assert ["1", sales, "System.Late"] in [line.split() for line in returned.out.splitlines()]
    assert "1 message cannot be returned: this login cannot insert into a queue " in returned.err
    assert "\x1b" not in returned.err
    assert [ids(queue) for queue in (sales, bills, error)] == [["m-0", "m-1"], ["m-2"], ["m-3"]]
    absent = run("retry", error, "m-3", "m-9", "--yes", "--json")
    (found,) = absent.objects
    assert (absent.code, found["missing"], [*found["staying"].values()]) == (1, ["m-9"], [1])


def test_copies_and_poison_are_not_returned(run: Run, place: Place) -> None:
    """Copies return only with `--copies`, and poison only with headers that can be read."""
    log, orders = address(place, "error.Log"), address(place, "Shop.Orders")
    for queue in (log, orders):
        assert run("create", queue).code == 0
    exception = f"{wire.EXCEPTION_INFO}ExceptionType"
    put(place, log, wire.dumps({wire.FAILED_Q: orders}))
    put(place, log, wire.dumps({wire.FAILED_Q: orders, exception: wire.POISON_TYPE}))

    refused = run("retry", log, "--all", "--yes")
    waiting = count(place, log)
    returned = run("retry", log, "--all", "--yes", "--copies")

    assert (refused.code, waiting) == (2, 2)
    assert "are copies" in refused.err
    assert "--copies" in refused.err
    assert (returned.code, count(place, log), count(place, orders)) == (1, 1, 1)
    assert 'in docs/operations.md, "Poison messages"' in returned.err


# ---------------------------------------------------------------- receipts, purges and the trail

STREAMS = ("--stream", STREAM)


def test_list_has_the_names_that_sinks_store(run: Run, orders: str, place: Place) -> None:
    """They are Spark's id of the query and number of the batch, if Spark gave them."""
    put(place, orders, times=2)
    for batch in (1, 2):
        received(place, messages=1, batch=batch)
    change = "SET query_id = %s, spark_batch = 7 WHERE batch = 2"
    place.sql(f"UPDATE {place.state}.receipt {change}", STREAM[::-1])

    first, second = run("receipts", "list", "--json").objects
    table = run("receipts", "list").out

    assert (first["query_id"], first["spark_batch"]) == (None, None)
    assert (second["query_id"], second["spark_batch"]) == (STREAM[::-1], 7)
    assert [STREAM, "2", "0", STREAM[::-1], "7", "1"] in [
        line.split()[:6] for line in table.splitlines()
    ]


def test_show_finds_a_message_by_either_of_its_ids(run: Run, orders: str, place: Place) -> None:
    """
    `receipts show` prints the receipt, the headers and the whole body.

    A body that is no text is printed in base64.
    """
    names = [{"NServiceBus.MessageId": f"M-{each}"} for each in (1, 2)]
    text = "x" * 500
    lines = {"body": text, "headers": names[0]}, {"bodyBase64": "/w==", "headers": names[1]}
    run("send", orders, stdin=json_lines(*lines))
    ((row,), _) = place.sql(f"SELECT id::text FROM {orders} ORDER BY seq")
    received(place, messages=2)

    shown = run("receipts", "show", STREAM, "--message", "m-1").out
    (by_row,) = run("receipts", "show", STREAM, "--message", row.upper(), "--json").objects
    (binary,) = run("receipts", "show", STREAM, "--message", "M-2", "--json").objects
    both = run("receipts", "show", STREAM, "--json").objects

    assert "NServiceBus.MessageId: M-1\n" in shown
    assert f"body: {text}\n" in shown
    assert (by_row["id"], by_row["receipt"]) == (row, f"{STREAM}/1/0")
    assert binary["bodyBase64"] == "/w=="
    assert both == [by_row, binary]


def test_purge_return_and_drop_ask_first_and_leave_entries(
    run: Run, orders: str, place: Place
) -> None:
    """An entry has who, when, what and how many. Each receipt and each batch of a purge has one."""
    put(place, orders, body=b"1", times=6)
    whole = f"SELECT id, expires, headers, body FROM {orders} ORDER BY seq"
    second = place.sql(whole)[1]
    for batch in (1, 2, 3):
        received(place, messages=1, batch=batch)
    ((queue,),) = place.sql(f"SELECT queue FROM {place.state}.stream")
    back = ("receipts", "return", *STREAMS, "--batch", "2", "--task", "0")
    asked = {
        back: f"return 1 message of 1 receipt to {queue}.",
        ("receipts", "drop", *STREAMS): "delete 2 messages of 2 receipts permanently.",
        ("purge", orders): f"delete 4 messages of {orders} permanently.",
    }

    for words, question in asked.items():
        before = place.sql(whole)
        refused, unheard = run(*words, stdin="n\n"), run(*words)
        assert (refused.code, unheard.code) == (1, 1)
        assert f"This will {question}" in refused.out
        assert unheard.err.endswith("nothing was done; --yes answers the question\n")
        assert place.sql(whole) == before
        (done,) = run(*words, "--yes", "--json").objects
        assert done["recorded"] is True
        if words == back:
            assert place.sql(whole)[-1] == second

    found, last = run("trail", "--json").objects, run("trail", "--last", "1").out
    what = ("action", "queue", "messages", "stream", "batch", "task")
    assert [tuple(each[name] for name in what) for each in reversed(found)] == [
        ("return", orders, 1, STREAM, 2, 0),
        ("drop", orders, 1, STREAM, 1, 0),
        ("drop", orders, 1, STREAM, 3, 0),
        ("purge", orders, 4, None, None, None),
    ]
    logins = {(each["login"], each["session_login"]) for each in found}
    assert logins == {(ORDINARY, ORDINARY)}
    assert [each["at"] for each in found] == sorted((each["at"] for each in found), reverse=True)
    assert ("purge" in last, "drop" in last) == (True, False)


def test_an_action_and_its_entry_are_there_together_or_not_at_all(
    run: Run, orders: str, place: Place
) -> None:
    """A state schema of an older release has no trail. There a purge reports this, and works."""
    put(place, orders, times=4)
    received(place, messages=1)
    trail, *failing = f"{place.state}.trail", ("receipts", "drop", *STREAMS), ("purge", orders)
    place.sql(f"ALTER TABLE {orders} ADD CHECK (body <> '') NOT VALID")
    assert run("receipts", "return", *STREAMS, "--yes").code == 3
    place.sql(f"ALTER TABLE {trail} ADD CHECK (messages > 99)")
    assert [run(*words, "--yes").code for words in failing] == [3, 3]
    assert [count(place, each) for each in (trail, f"{place.state}.receipt", orders)] == [0, 1, 3]
    place.sql(f"DROP TABLE {trail}")

    purged = run("purge", orders, "--yes", "--json")

    assert purged.objects == [{"queue": orders, "deleted": 3, "recorded": False}]
    assert f"no entry in the audit trail: schema {place.state} of " in purged.err
    assert "sqlqueue install" in purged.err
