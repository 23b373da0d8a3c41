"""The command line, on a real database; the demo has a file of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from sqlq_spark.cli import main
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import task as receive
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import Origin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Place

STREAM = "0f0e0d0c-0000-4000-8000-000000000001"

Run = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def run(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Give a way to run one command; what comes back is its exit code and what it printed."""
    monkeypatch.setenv("SQLQUEUE_URL", place.url)

    def run(*words: str, stdin: str | bytes = b"") -> tuple[int, str, str]:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def orders(place: Place, run: Any) -> str:
    """Give the address of a new queue, and state tables."""
    queue = f'"{place.schema}"."Shop.Orders"'
    assert run("create", queue)[0] == 0
    assert run("install", "--state-schema", place.state)[0] == 0
    return queue


def received(
    place: Place, *, messages: int, batch: int = 1, url: str = "", errors: str | None = None
) -> list[bytes]:
    """Receive as a task does, as a login with an error queue, and never acknowledge; the bodies."""
    options = SourceOptions.parse(
        {"url": url or place.url, "queue": "x", "stateSchema": place.state, "queryTimeout": "10s"}
    )
    queue = QueueAddress("Shop.Orders", place.schema)
    with Session(options, "test") as session:
        connection = session.open()
        if batch == 1:
            address = connection.printed(queue)
            connection.run("new_stream", stream=STREAM, queue_name=address, driver="d")
        task = receive.Task(
            queue=queue,
            stream=STREAM,
            batch=batch,
            task=0,
            first=0,
            stop=2**31,
            messages=messages,
            rules=receive.TaskRules(errors=QueueAddress(errors, place.schema) if errors else None),
        )
        rows = receive.receive(connection, task, timeout=10, origin=Origin())
        bodies: list[bytes] = rows["body"].to_pylist()
        return bodies


def rows(place: Place) -> list[tuple[Any, ...]]:
    """Read the queue with psycopg: headers and body, by seq."""
    found = place.sql(f'SELECT headers, body FROM "{place.schema}"."Shop.Orders" ORDER BY seq')
    return [(json.loads(headers), bytes(body)) for headers, body in found]


# ---------------------------------------------------------------- tables


def test_create_and_install_can_be_run_again(run: Any, orders: str, place: Place) -> None:
    """An operator need not know whether it was done before."""
    again = run("create", orders), run("install", "--state-schema", place.state)

    assert [code for code, _, _ in again] == [0, 0]
    assert f"queue {orders} is in postgresql://" in again[0][1]


def test_script_makes_the_same_tables_as_create_and_install(
    run: Any, orders: str, place: Place
) -> None:
    """What a DBA runs by hand is what the installer would have run."""
    shape = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default IS NULL"
        "  FROM information_schema.columns WHERE table_schema IN (%s, %s) ORDER BY 1, 2"
    )
    installed = place.sql(shape, place.schema, place.state)
    constraints = (
        f"SELECT count(*) FROM pg_constraint WHERE connamespace = '{place.state}'::regnamespace"
    )
    law = place.sql(constraints)
    place.sql(f"DROP TABLE {orders}")
    place.sql(f"DROP SCHEMA {place.state} CASCADE")
    roles = ("--reader", f"{place.schema}_r", "--sender", f"{place.schema}_s")
    code, text, _ = run("script", orders, "--state-schema", place.state, *roles)

    try:
        for _ in range(2):  # it may be run again
            place.connection.execute(text.encode())

        assert code == 0
        assert place.sql(shape, place.schema, place.state) == installed
        assert place.sql(constraints) == law
    finally:
        drop_roles(place)


def test_script_connects_to_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no url."""
    monkeypatch.delenv("SQLQUEUE_URL")

    code, text, _ = run("script", "Shop.Orders")

    assert code == 0
    assert 'GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders"' in text


def test_the_rights_of_the_script_are_enough_to_receive_and_to_send(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream receives and diverts poison, a sender sends; neither owns a thing."""
    queue, errors = f'"{place.schema}"."Shop.Orders"', f'"{place.schema}"."Er""ror; --"'
    reader, sender = f"{place.schema}_r", f"{place.schema}_s"
    words = ("--error", errors, "--reader", reader, "--sender", sender)
    text = run("script", queue, "--state-schema", place.state, *words)[1]

    try:
        place.connection.execute(text.encode())
        place.sql(
            f"INSERT INTO {queue} (id, headers, body) VALUES (gen_random_uuid(), 'poison', '')"
        )
        monkeypatch.setenv("SQLQUEUE_URL", as_role(place.url, sender))
        assert run("send", queue, stdin='{"body": "1"}')[0] == 0
        assert run("browse", queue)[0] == 3

        url = as_role(place.url, reader)
        assert received(place, messages=10, url=url, errors='Er"ror; --') == [b"1"]
        assert place.sql(f"SELECT headers FROM {errors}") == [("poison",)]
    finally:
        drop_roles(place)


def as_role(url: str, role: str) -> str:
    """The same login, with the rights of a role only."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20role%3D{role}"


def drop_roles(place: Place) -> None:
    """Take back what the script granted."""
    for role in (f"{place.schema}_r", f"{place.schema}_s"):
        name = sql.Identifier(role)
        place.connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
        place.connection.execute(sql.SQL("DROP ROLE {}").format(name))


# ---------------------------------------------------------------- send and browse


def test_send_reads_json_lines(run: Any, orders: str, place: Place) -> None:
    """Text is sent as it is, other values serialised; a line's headers go before the options'."""
    text = (
        '{"body": "plain ä", "id": "m1"}\n\n'
        '{"body": {"a": [1, 2.5, null]}, "headers": {"k": "own"}, "timeToBeReceived": 60000}\n'
    )
    options = ("--message-type", "Shop.Placed", "--content-type", "application/json")
    code, said, _ = run("send", orders, *options, "--header", "k=v=w", stdin=text)

    (first, plain), (second, value) = rows(place)
    assert (code, said) == (0, f"2 messages sent to {orders}\n")
    assert (plain, value) == ("plain ä".encode(), b'{"a":[1,2.5,null]}')
    assert first["NServiceBus.MessageId"] == "m1"
    assert first["NServiceBus.EnclosedMessageTypes"] == "Shop.Placed"
    assert first["NServiceBus.ContentType"] == "application/json"
    assert (first["k"], second["k"]) == ("v=w", "own")
    assert second["NServiceBus.TimeToBeReceived"] == "00:01:00"


def test_send_takes_a_file_as_the_body(run: Any, orders: str, place: Place, tmp_path: Path) -> None:
    """Byte for byte."""
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00\n")

    code, said, _ = run("send", orders, "--file", str(path))

    assert (code, said) == (0, f"1 message sent to {orders}\n")
    assert rows(place)[0][1] == b"\xff\x00\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON"),
        ("[1]", "expected an object"),
        ("{}", "it has no body"),
        ('{"body": null}', "it has no body"),
        ('{"body": "", "bdoy": 1}', "'bdoy' is not known; expected one of body"),
        ('{"body": "", "id": 1}', "id is 1: expected text"),
        ('{"body": "", "headers": {"a": 1}}', "headers is not an object of texts"),
        ('{"body": "", "headers": {"a": "\\ud800"}}', "header 'a' holds half of a surrogate pair"),
        ('{"body": "\\ud800"}', "body holds half of a surrogate pair"),
        ('{"body": "", "timeToBeReceived": "soon"}', "cannot be read"),
        ('{"body": "", "timeToBeReceived": -1}', "is not between 0 and"),
        ('{"bodyBase64": "?"}', "bodyBase64 is not base64"),
    ],
)
def test_one_bad_line_and_nothing_is_sent(
    run: Any, orders: str, place: Place, line: str, reason: str
) -> None:
    """The error names the line, blank ones counted."""
    code, _, error = run("send", orders, stdin=f'{{"body": "good"}}\n\n{line}\n')

    assert code == 2
    assert error.startswith("line 3 cannot be sent: ")
    assert reason in error
    assert error.endswith(". Nothing was sent.\n")
    assert rows(place) == []


def test_what_browse_prints_can_be_sent_again(run: Any, orders: str, place: Place) -> None:
    """Headers and bodies of any bytes make the round."""
    run("send", orders, stdin='{"body": "ä"}\n{"bodyBase64": "/wA="}\n{"body": ""}')
    before = rows(place)

    _, printed, _ = run("browse", orders, "--json")
    run("send", orders, stdin=printed)

    assert [body for _, body in before] == ["ä".encode(), b"\xff\x00", b""]
    assert rows(place)[3:] == before


def test_browse_shows_the_lowest_up_to_the_limit_and_takes_nothing(
    run: Any, orders: str, place: Place
) -> None:
    """Poison and null bodies are shown too."""
    run("send", orders, "--message-type", "A.B.Placed, X", stdin='{"body": "1"}\n{"body": "2"}')
    place.sql(f"INSERT INTO {orders} (id, headers) VALUES (gen_random_uuid(), '[]')")

    _, two, _ = run("browse", orders, "--json", "--limit", "2")
    _, table, _ = run("browse", orders)

    assert [json.loads(line)["body"] for line in two.splitlines()] == ["1", "2"]
    assert "Placed" in table
    assert "(corrupt headers)" in table
    assert len(rows_of(place, orders)) == 3


def rows_of(place: Place, queue: str) -> list[Any]:
    """Read the queue's seqs."""
    return place.sql(f"SELECT seq FROM {queue}")


def test_browse_shows_no_markup_and_no_control_characters(run: Any, orders: str) -> None:
    """A message cannot write on the operator's terminal."""
    run("send", orders, stdin=json.dumps({"body": "[red]x\x1b[2J\x07"}))

    _, table, _ = run("browse", orders)

    assert "[red]x·[2J·" in table


# ---------------------------------------------------------------- stats and receipts


def test_stats_counts_what_waits_and_what_streams_hold(run: Any, orders: str, place: Place) -> None:
    """Depth, expired, streams, receipts."""
    run("send", orders, "--time-to-be-received", "00:00:00", stdin='{"body": "1"}')
    run("send", orders, stdin='{"body": "2"}\n{"body": "3"}')
    received(place, messages=2)

    code, printed, _ = run("stats", orders, "--json", "--state-schema", place.state)
    _, table, _ = run("stats", "--state-schema", place.state)

    found = json.loads(printed)
    (depth,), (stream,) = found["queues"], found["streams"]
    assert code == 0
    assert (depth["queue"], depth["messages"], depth["expired"]) == (orders, 1, 0)
    assert (stream["stream"], stream["receipts"], stream["held"]) == (STREAM, 1, 1)
    assert STREAM in table
    assert orders in table


def test_stats_tells_of_each_queue_of_a_stream_of_several(
    run: Any, orders: str, place: Place
) -> None:
    """Of one of them that stream too; a comma in a name does not make two of it."""
    other = f'"{place.schema}"."Shop, Billing"'
    run("create", other)
    received(place, messages=1)
    queues = f"{orders}, {other}"
    place.sql(f'UPDATE "{place.state}".stream SET queue = %s', queues)

    printed = [
        json.loads(run("stats", *queue, "--json", "--state-schema", place.state)[1])
        for queue in ((), (other,))
    ]
    _, held, _ = run("receipts", "list", orders, "--json", "--state-schema", place.state)

    assert [each["queue"] for each in printed[0]["queues"]] == [other, orders]
    assert [each["queue"] for each in printed[1]["queues"]] == [other]
    assert [[each["queue"] for each in said["streams"]] for said in printed] == [[queues]] * 2
    assert json.loads(held)["queue"] == orders


def test_stats_needs_no_state_tables(run: Any, place: Place) -> None:
    """It says that there are none."""
    queue = f'"{place.schema}".q'
    run("create", queue)

    code, table, _ = run("stats", queue, "--state-schema", place.state)

    assert code == 0
    assert f"no state tables in schema {place.state}" in table


def test_return_puts_messages_back_as_they_were(run: Any, orders: str, place: Place) -> None:
    """Ids, headers and bodies; only seq is new."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}')
    whole = f"SELECT id, expires, headers, body FROM {orders} ORDER BY seq"
    before = place.sql(whole)
    received(place, messages=10)
    assert place.sql(whole) == []
    words = ("--stream", STREAM, "--state-schema", place.state)

    code, said, _ = run("receipts", "return", *words, "--yes")

    assert code == 0
    assert f"This will return 2 messages of 1 receipt to {shown(place)}." in said
    assert said.endswith("2 messages returned\n")
    assert place.sql(whole) == before
    assert run("receipts", "return", *words, "--yes")[0] == 1


def shown(place: Place) -> str:
    """The queue as the receipt has it."""
    return str(place.sql(f"SELECT queue FROM {place.state}.stream")[0][0])


def test_return_takes_one_batch_where_it_is_told_to(run: Any, orders: str, place: Place) -> None:
    """The other receipt stays."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}')
    received(place, messages=1, batch=1)
    received(place, messages=1, batch=2)

    words = ("--stream", STREAM, "--state-schema", place.state)
    code, *_ = run("receipts", "return", *words, "--batch", "2", "--task", "0", "--yes")
    _, left, _ = run("receipts", "list", "--json", "--state-schema", place.state)

    assert code == 0
    assert [body for _, body in rows(place)] == [b"2"]
    assert [json.loads(line)["batch"] for line in left.splitlines()] == [1]


def test_a_settled_receipt_is_not_returned(run: Any, orders: str, place: Place) -> None:
    """What was sent on would come twice."""
    run("send", orders, stdin='{"body": "1"}')
    received(place, messages=1)
    place.sql(f"UPDATE {place.state}.receipt SET settled = true")

    words = ("--stream", STREAM, "--state-schema", place.state, "--yes")
    code, _, error = run("receipts", "return", *words)

    assert code == 1
    assert "is settled" in error
    assert rows(place) == []


def test_drop_deletes_only_after_a_yes(run: Any, orders: str, place: Place) -> None:
    """It says what it will do, and asks."""
    run("send", orders, stdin='{"body": "1"}')
    received(place, messages=1)
    words = ("receipts", "drop", "--stream", STREAM, "--state-schema", place.state)

    refused, said, _ = run(*words, stdin="n\n")
    _, kept, _ = run("receipts", "list", orders, "--json", "--state-schema", place.state)
    agreed, *_ = run(*words, stdin="y\n")
    _, left, _ = run("receipts", "list", "--json", "--state-schema", place.state)

    assert (refused, agreed) == (1, 0)
    assert "This will delete 1 message of 1 receipt permanently." in said
    assert json.loads(kept)["messages"] == 1
    assert left == ""


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("stats", "nowhere"), 3, 'queue "public"."nowhere" was not found'),
        (("send", "nowhere", "--file", __file__), 3, 'queue "public"."nowhere" was not found'),
        (("receipts", "list", "--state-schema", "nowhere"), 3, "Run `sqlqueue install` once"),
        (
            ("create", '"not there"."q"'),
            3,
            'schema "not there" does not exist. Ask a DBA to create',
        ),
        (("create", "x" * 56), 2, "56 UTF-8 bytes where 55 are the most"),
        (("create", ""), 2, "option queue is ''"),
        (
            ("send", "q", "--time-to-be-received", "soon"),
            2,
            "option --time-to-be-received is 'soon'",
        ),
        (("send", "q", "--header", "novalue"), 2, "expected KEY=VALUE"),
        (("send", "q", "/nowhere"), 2, "No such file"),
        (("send", "q", "--file", "/nowhere"), 2, "No such file"),
        (("script", "q", "--dialect", "mysql"), 2, "option --dialect is 'mysql'"),
        (("script", "q", "--reader", "$do$"), 2, "option --reader is '$do$'"),
        (("browse", "q", "--limit", "0"), 2, "limit"),
        (("nothing",), 2, "nothing"),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(
    run: Any, words: tuple[str, ...], code: int, sentence: str
) -> None:
    """2 for what we were given, 3 for what the database said."""
    found, _, error = run(*words)

    assert found == code
    assert sentence in error
    assert "Traceback" not in error


def test_a_missing_url_is_asked_for(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option, and by the environment."""
    monkeypatch.delenv("SQLQUEUE_URL")

    code, _, error = run("stats")

    assert code == 2
    assert error == (
        "option --url is missing: give postgresql://user@host:5432/database or "
        "sqlserver://user@host:1433/database, or set SQLQUEUE_URL\n"
    )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/shop?user=someone&password=hunter2",
        "mysql://someone:hunter2@127.0.0.1/shop",
        "hunter2",
    ],
)
def test_no_error_holds_the_password(run: Any, url: str) -> None:
    """Wherever it stood in the url."""
    code, said, error = run("stats", "--url", url)

    assert code in {2, 3}
    assert error
    assert "hunter2" not in said + error


def test_a_wrong_password_is_refused_without_a_traceback(place: Place) -> None:
    """In a process of its own, as a user sees it."""
    info = psycopg.conninfo.conninfo_to_dict(place.url)
    url = f"postgresql://nobody:hunter2@{info['host']}:{info['port']}/{info['dbname']}"

    done = subprocess.run(
        [sys.executable, "-m", "sqlq_spark", "stats", "Shop.Orders"],
        env={**os.environ, "SQLQUEUE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    assert "refused the login" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr
