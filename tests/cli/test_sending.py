"""What `sqlqueue send` reads in its lines, and what a browse keeps when it is sent again."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from conformance.conftest import ON_DATABASE
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.cli import sending
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import sender
from sqlq_spark.wire import headers as wire

from .database import address, count, messages, put

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run

AWAY = "postgresql://127.0.0.1:1/shop"  # a line is read without a connection


def read(line: bytes, **raw: str) -> list[dict[str, Any]]:
    """Read lines as the command does, and return the messages."""
    options = SinkOptions.parse({"url": AWAY, "queue": "q", **raw})
    session = Session(options, "test")
    tables = sending.read_lines(session, options, io.BytesIO(line), {}, is_body=False)
    return [row for table in tables for row in table.to_pylist()]


def refused(line: bytes, **raw: str) -> str:
    """Read a line that cannot be sent, and return the reason."""
    with pytest.raises(sending.BadLine) as error:
        read(line, **raw)
    return str(error.value)


# ---------------------------------------------------------------- texts of JSON

# a line feed ends a line
SPACES = st.text(" \t\r", max_size=2)
ESCAPES = st.sampled_from(["\\n", '\\"', "\\\\", "\\/", "\\u0041", "\\u00e4", "\\ud83d\\ude00"])
CHARACTERS = st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters='"\\')
TEXTS = st.lists(ESCAPES | CHARACTERS, max_size=6).map(lambda parts: f'"{"".join(parts)}"')
NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)
NAMES = TEXTS | st.sampled_from(['"body"', '"headers"', '"a"'])


@st.composite
def members(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """Draw a list of members, of names that may repeat."""
    parts = draw(st.lists(st.tuples(SPACES, NAMES, SPACES, SPACES, values, SPACES), max_size=3))
    return ",".join(f"{a}{name}{b}:{c}{value}{d}" for a, name, b, c, value, d in parts)


@st.composite
def items(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """Draw a list of values."""
    return ",".join(
        f"{a}{value}{b}" for a, value, b in draw(st.lists(st.tuples(SPACES, values, SPACES)))
    )


JSON = st.recursive(
    NUMBERS | TEXTS | st.sampled_from(["true", "false", "null"]),
    lambda values: (
        members(values).map("{{{}}}".format)
        | items(values).map("[{}]".format)
        | SPACES.map("[{}]".format)
    ),
    max_leaves=8,
)
SPELLINGS = st.sampled_from(['"body"', '"b\\u006fdy"', '"\\u0062ody"'])


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a line and the text of its body."""
    body = draw(JSON.filter(lambda text: text != "null"))
    others = ['"id":"body"', '"headers" : {"body":"\\u0041 }"}', '"seq":1e400', '"delay":null']
    members = draw(st.lists(st.sampled_from(others), unique=True))
    space = draw(SPACES)
    own = f"{draw(SPELLINGS)}{space}:{draw(SPACES)}{body}{space}"
    members.insert(draw(st.integers(0, len(members))), own)
    return f"{draw(SPACES)}{{{space}{(space + ',' + space).join(members)}}}{space}", body


@given(drawn=lines())
def test_the_own_text_of_a_body_is_sent(drawn: tuple[str, str]) -> None:
    """A JSON string is sent as the text that it means. Any other JSON is sent byte for byte."""
    line, body = drawn

    (message,) = read(line.encode())

    meant = json.loads(body)
    expected = meant if isinstance(meant, str) else body
    assert message["body"] == expected.encode()
    assert isinstance(meant, str) or json.loads(message["body"]) == json.loads(line)["body"]


@given(drawn=lines(), data=st.data())
def test_a_line_that_is_no_json_is_never_sent(drawn: tuple[str, str], data: st.DataObject) -> None:
    """NaN and Infinity are no JSON either. What is sent is what a JSON parser reads."""
    line, _ = drawn
    first = data.draw(st.integers(0, len(line)))
    last = data.draw(st.integers(first, min(len(line), first + 3)))
    new = data.draw(st.sampled_from([*' ,:{}[]"\\019e-.', "NaN", "-Infinity", "\v", "\ufeff", ""]))
    changed = line[:first] + new + line[last:]

    def refuse(text: str) -> None:
        raise ValueError(text)

    sent: list[dict[str, Any]] = []
    with suppress(SqlQueueError):
        sent = read(changed.encode())

    for message in sent:
        meant = json.loads(changed.removeprefix("\ufeff"), parse_constant=refuse)["body"]
        body = message["body"].decode()
        assert body == meant if isinstance(meant, str) else json.loads(body) == meant


@pytest.mark.parametrize(
    "body",
    [
        *("1234567890123456.78", "19.90", "1E2", "1.00", "1e400", "-0", "true", "[ ]"),
        *('{"a":1,"a":2}', '{ "a" :\t1 }', '{"a":"\\u0041\\ud800"}', "1" * 5_000),
        pytest.param("[" * 900 + "]" * 900, id="deep"),
        pytest.param(f'{{"a":"{"x" * 30_000_000}"}}', id="big"),
    ],
)
def test_no_number_or_name_of_a_body_changes(body: str) -> None:
    """Sums of money stay as they are, and so do numbers that Python cannot hold."""
    (message,) = read(b'{"id":"m","body": %b }' % body.encode())

    assert message["body"] == body.encode()


WRONG = {
    b'{"body":{"a":NaN}}': "line 1 cannot be sent: it has NaN, which is no JSON. Nothing was sent.",
    b'{"body":"","headers":{"a":Infinity}}': "it has Infinity, which is no JSON",
    b'{"body":"","seq":-Infinity}': "it has -Infinity, which is no JSON",
    b'{"body":1,"b\\u006fdy":2}': "it has 'body' twice",
    b'{"body":"","seq":1,"seq":1}': "it has 'seq' twice",
    b'{"body":"","headers":{"a":"1","a":"2"}}': "expected an object of texts, each name once",
    b'{"body":"","headers":{"a":1.00}}': 'headers is {"a":1.00}: expected an object of texts',
    b'{"body":"","headers":[["a","b"]]}': 'headers is [["a","b"]]: expected an object of texts',
    b'{"body":"","headers":"{}"}': "expected an object of texts",
    b'{"body":1} {"body":2}': "it is not JSON (Extra data",
    b'{"body":1,}': "it is not JSON (",
    b'{"body" 1}': "it is not JSON (Expecting ':'",
    b'{1:"body"}': "it is not JSON (",
    b"[]": "expected an object",
    b'{"body":' + b"[" * 100_000: "it is nested too deeply",
    b'{"body":"\xe4"}': "it is not UTF-8",
    b'{"body":null}': 'it has no body; use "" to send an empty body',
    b'{"body":null,"seq":1,"bodyBase64":"?"}': 'bodyBase64 is "?": expected base64',
}


@pytest.mark.parametrize("line", WRONG)
def test_a_line_that_would_lose_something_is_an_error(line: bytes) -> None:
    """The error says what would be lost, and in which line."""
    assert WRONG[line] in refused(line)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_in_utf_16_is_named(encoding: str) -> None:
    """PowerShell writes UTF-16. A file in UTF-8 may have a byte order mark."""
    lines = '\n{"body":"Łódź"}\n'

    assert "UTF-16" in refused(lines.encode(encoding))
    assert read(b"\xef\xbb\xbf" + lines.strip().encode())[0]["body"] == "Łódź".encode()
    assert read(b"\xef\xbb\xbf\r\n") == []


# ---------------------------------------------------------------- a browse that is sent again

HEADERS = st.dictionaries(
    st.sampled_from([wire.MESSAGE_ID, wire.ENCLOSED_MESSAGE_TYPES, wire.CORRELATION_ID])
    | st.sampled_from([wire.FORWARD_DESTINATION, wire.FAILED_Q, wire.TIME_SENT, "__type", ""])
    | st.text(max_size=5),
    st.none() | st.text(max_size=5) | st.sampled_from(["A.B, C", "\ufeff", "\u2028\x85"]),
    max_size=5,
)
STORED = (
    st.builds(wire.dumps, HEADERS)
    | st.builds(json.dumps, HEADERS)
    | st.sampled_from(["", ' { "a" : "1" , "a" : "2" } ', '{"__type":"\\u0000","b":null}'])
)
BODIES = st.none() | st.binary(max_size=9) | st.text(max_size=9).map(str.encode)
# seconds from now until a message expires
LEFT = st.none() | st.integers(-1_000_000, 3_000_000_000)
ROWS = st.lists(
    st.tuples(st.uuids(), STORED, BODIES, LEFT), unique_by=lambda row: row[0], max_size=6
)
SELECT = "SELECT id, headers, body, expires FROM {} ORDER BY seq"
NOW = "SELECT clock_timestamp() AT TIME ZONE 'UTC'"


@pytest.fixture
def queues(place: Place, run: Run) -> tuple[str, str]:
    """Give two queues."""
    both = address(place, "Shop.Łódź"), address(place, "Shop.Later")
    for each in both:
        assert run("create", each).code == 0
    return both


def fill(place: Place, queue: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Write rows as another sender does, and return what was written."""
    for row in rows:
        place.sql(
            f"INSERT INTO {queue} (id, headers, body, expires) SELECT %s, %s, %s, ({NOW})"
            " + make_interval(secs => %s)",
            *row,
        )
    return place.sql(SELECT.format(queue))


def now(place: Place) -> datetime:
    """Ask the database for its time."""
    ((found,),) = place.sql(NOW)
    assert hasattr(found, "tzinfo")
    return found  # type: ignore[no-any-return]


@ON_DATABASE
@given(rows=ROWS)
def test_a_browse_is_sent_again_as_it_was_received(
    run: Run, place: Place, queues: tuple[str, str], rows: list[tuple[Any, ...]]
) -> None:
    """Every row keeps its id, body, headers and remaining time."""
    source, target = queues
    place.sql(f"TRUNCATE {source}, {target}")
    before = fill(place, source, rows)

    shown, began = run("browse", source, "--json").out, now(place)
    sent = run("send", target, "--as-received", stdin=shown)

    ended = now(place)
    assert sent.code == 0, sent.err
    after = place.sql(SELECT.format(target))
    assert place.sql(SELECT.format(source)) == before
    for (row, text, body, expires), (new, new_text, new_body, later) in zip(
        before, after, strict=True
    ):
        assert (new, new_body) == (row, body or b"")
        assert json.loads(new_text) == json.loads(text or "{}")
        assert (later is None) == (expires is None)
        if expires is not None:
            least = max(expires, began).timestamp() - 0.001  # whole milliseconds
            most = max(expires, ended).timestamp() + (ended - began).total_seconds()
            assert least <= later.timestamp() <= most


@ON_DATABASE
@given(rows=ROWS)
def test_a_browse_is_sent_again_with_all_that_it_says(
    run: Run, place: Place, queues: tuple[str, str], rows: list[tuple[Any, ...]]
) -> None:
    """The sender adds headers but changes none, and the message keeps its id."""
    source, target = queues
    place.sql(f"TRUNCATE {source}, {target}")
    before = fill(place, source, [(*row[:3], None) for row in rows])

    sent = run("send", target, stdin=run("browse", source, "--json").out)

    assert sent.code == 0, sent.err
    after = place.sql(SELECT.format(target))
    for (row, text, body, _), (new, new_text, new_body, later) in zip(before, after, strict=True):
        old, headers = json.loads(text or "{}"), json.loads(new_text)
        assert (new, new_body, later) == (row, body or b"", None)
        assert headers | old == headers
        assert headers[wire.MESSAGE_ID] == old.get(wire.MESSAGE_ID, str(row))


def test_a_remaining_life_is_by_the_databases_clock(
    run: Run, place: Place, queues: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this machine may be wrong by years."""
    source, target = queues
    fill(place, source, [(UUID(int=1), "{}", b"", 3600)])
    late = type(
        "Late", (datetime,), {"now": classmethod(lambda _, zone: datetime(1999, 1, 1, tzinfo=zone))}
    )
    monkeypatch.setattr(sender, "datetime", late)

    run("send", target, "--as-received", stdin=run("browse", source, "--json").out)

    left = f"SELECT extract(epoch FROM expires - ({NOW}))::int FROM {target}"
    assert 3000 < place.sql(left)[0][0] <= 3600


def test_rows_that_are_in_the_queue_already_get_new_ids(
    run: Run, place: Place, orders: str
) -> None:
    """The command reports it. The messages keep their own ids."""
    for headers in ("{}", '{"NServiceBus.MessageId":"m"}'):
        put(place, orders, headers, b"1")
    ((first,), _) = place.sql(f"SELECT id::text FROM {orders} ORDER BY seq")

    sent = run("send", orders, "--as-received", stdin=run("browse", orders, "--json").out)

    names = [headers.get(wire.MESSAGE_ID) for headers, _ in messages(place, orders)]
    assert (sent.code, names) == (0, [None, "m", first, "m"])
    assert "2 messages sent under new row ids: " in sent.err
    assert len({*place.sql(f"SELECT id FROM {orders}")}) == 4


LOSSES = [
    ({"corruptHeaders": "["}, {}, "it has corruptHeaders: "),
    ({"corruptHeaders": "["}, {"asReceived": "true"}, "it has corruptHeaders: "),
    ({"expires": "2030-01-01T00:00:00+00:00"}, {}, "it has expires: use --as-received to keep "),
    ({"expires": "2030-01-01"}, {"asReceived": "true"}, "expected a time with its zone"),
    ({"correlationId": "c"}, {"asReceived": "true"}, "it has correlationId, which states a header"),
    ({"replyToAddress": "q"}, {"asReceived": "true"}, "it has replyToAddress, which states a head"),
    (
        {"timeToBeReceived": "1:0:0"},
        {"asReceived": "true"},
        "it has timeToBeReceived, which states",
    ),
]


@pytest.mark.parametrize(("more", "raw", "reason"), LOSSES)
def test_a_line_of_a_browse_loses_nothing_in_silence(
    more: dict[str, str], raw: dict[str, str], reason: str
) -> None:
    """What cannot be kept is an error that names the line."""
    good: dict[str, Any] = {"body": None, "seq": 1, "expires": None, "headers": {}}
    good["corruptHeaders"] = None
    lines = f"\n{json.dumps(good)}\n{json.dumps(good | more)}".encode()

    error = refused(lines, **raw)

    assert error.startswith("line 3 cannot be sent: ")
    assert reason in error


def test_a_poison_message_of_a_browse_stops_all(run: Run, orders: str, place: Place) -> None:
    """The error names its line, and nothing is sent."""
    put(place, orders)
    put(place, orders, "[]")
    shown = run("browse", orders, "--json").out

    for words in ((), ("--as-received",)):
        failed = run("send", orders, *words, stdin=shown)
        assert failed.code == 2
        assert failed.err.startswith("line 2 cannot be sent: it has corruptHeaders: ")

    assert count(place, orders) == 2


def test_a_header_is_not_added_to_a_message_as_received(run: Run, orders: str) -> None:
    """`--header` and `--as-received` together are refused."""
    failed = run("send", orders, "--as-received", "--header", "a=b", stdin='{"body":""}')

    assert (failed.code, "--as-received" in failed.err) == (2, True)
