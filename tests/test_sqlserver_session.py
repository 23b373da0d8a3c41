"""A session with SQL Server, as far as it goes without one; a driver that records stands in."""

from __future__ import annotations

import re
import struct
import uuid
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sqlserver_errors import DENIED, VICTIM, Mssql, Odbc, odbc

from sqlq_spark import database, errors
from sqlq_spark.admin import checks, failed_messages, inspect
from sqlq_spark.database import transaction
from sqlq_spark.database.spellings import find_same, unite
from sqlq_spark.database.sqlserver import calls
from sqlq_spark.database.sqlserver import connection as sqlserver
from sqlq_spark.database.sqlserver import rows as sqlserver_rows
from sqlq_spark.database.sqlserver.drivers import Driver
from sqlq_spark.jobs import relay
from sqlq_spark.jobs.frame.settings import BadSettings
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.forward import forward
from sqlq_spark.send.message.sender import Sender
from sqlq_spark.send.queue_writer import own_address, unite_spellings
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, REPLY_TO_ADDRESS
from sqlq_spark.wire.rows import QUEUE_ROW

QUEUE = QueueAddress("orders")
URL = "sqlserver://db:1433/shop"


class Cursor:
    """Hands out the results that were laid ready, and notes what it was given."""

    def __init__(self, raw: Recorder) -> None:
        self.raw = raw
        self.results: list[tuple[list[str], list[tuple[Any, ...]]]] = []

    @property
    def description(self) -> list[tuple[str]] | None:
        """Of the result at hand."""
        return [(name,) for name in self.results[0][0]] if self.results else None

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Note it, or fail as told."""
        self.raw.sent.append((sql, tuple(values)))
        inner = values[0] if values else sql
        for part, error in self.raw.fails.items():
            if part in inner:
                raise error
        name = inner.partition("sqlqueue:")[2].partition(" ")[0]
        self.results = list(self.raw.ready.get(name, []))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Rows of the result at hand."""
        return self.results[0][1]

    def nextset(self) -> bool:
        """Go on."""
        self.results = self.results[1:]
        return bool(self.results)

    def close(self) -> None:
        """End."""


class Recorder:
    """A driver's connection that leads nowhere."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.ready: dict[str, list[tuple[list[str], list[tuple[Any, ...]]]]] = {}
        self.fails: dict[str, Exception] = {}
        self.timeout = 0
        self.closed = False

    def cursor(self) -> Cursor:
        """Begin."""
        return Cursor(self)

    def close(self) -> None:
        """End."""
        self.closed = True

    def inner(self) -> list[str]:
        """The statements inside the calls."""
        return [values[0] if values else sql for sql, values in self.sent]


@pytest.fixture
def raw() -> Recorder:
    """Give a driver that records."""
    made = Recorder()
    made.ready["queue_columns"] = [
        (["name", "type"], [(name, "x") for name in ("Id", "Recoverable", "Headers", "Body")])
    ]
    return made


@pytest.fixture
def connection(raw: Recorder) -> sqlserver.Connection:
    """Give a session on it."""
    return sqlserver.Connection(
        raw,
        Driver(name="recorder", open=lambda *_: raw, errors=(Odbc, Mssql)),
        server="sqlserver://db:1433/shop",
        state="sqlqueue",
        timeout=30,
        application="sqlqueue test",
    )


def test_a_statement_is_data_and_each_value_has_a_type(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """The text that the driver parses is ours alone, whatever the queue is called."""
    queue = QueueAddress("o]r'd?{d '1'}%(x)s@first")

    connection.rows("peek", tables={"queue": queue}, first=-(2**63), last=7, messages=9, grain=1)

    ((sql, (text, types, *values)),) = raw.sent
    assert sql == (
        "DECLARE @text nvarchar(max) = ?, @types nvarchar(max) = ?; EXEC sys.sp_executesql @text, "
        "@types, @first = ?, @last = ?, @messages = ?, @grain = ?"
    )
    assert text.startswith("/* sqlqueue:peek */ DECLARE")
    assert "[dbo].[o]]r'd?{d '1'}%(x)s@first]" in text
    assert types == "@first bigint, @last bigint, @messages bigint, @grain bigint"
    assert values == [-(2**63), 7, 9, 1]


def test_no_null_is_ever_bound(raw: Recorder, connection: sqlserver.Connection) -> None:
    """A driver asks the server for the type of one, and may lose what was done before by that."""
    connection.rows("subscribers", tables={"subscriptions": QUEUE}, topic=None)
    connection.run("store_plan", stream="r", batch=1, plan="x" * 5000)

    assert raw.sent[-2][0].endswith("@topic = NULL")
    sql, (_, types, *values) = raw.sent[-1]
    assert sql.endswith("@stream = ?, @batch = ?, @plan = ?")
    assert types == "@stream nvarchar(4000), @batch bigint, @plan nvarchar(max)"
    assert None not in values


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bit"),
        (1, "bigint"),
        (1.5, "float"),
        ("x" * 4000, "nvarchar(4000)"),
        ("🚀" * 2001, "nvarchar(max)"),
        (b"", "varbinary(8000)"),
        (b"x" * 8001, "varbinary(max)"),
        (None, "nvarchar(4000)"),
    ],
)
def test_a_type_holds_its_value(value: database.Value, kind: str) -> None:
    """In a few sizes, so that plans are found again."""
    assert calls.type_of("x", value) == kind


def test_a_transaction_is_made_of_plain_statements(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Its settings are the session's; all inside makes sure that it is still there."""
    connection.application = "sqlqueue ü" + "x" * 200

    with transaction(connection, timeout=2.5):
        connection.rows("clock")

    begin, timeouts, clock, commit = raw.sent
    assert begin[1] == timeouts[1] == commit[1] == ()
    assert begin[0].endswith("BEGIN TRANSACTION")
    assert "SET LOCK_TIMEOUT 2500;" in timeouts[0]
    context = bytes.fromhex(timeouts[0].partition("0x")[2])
    assert context.decode() == ("sqlqueue ü" + "x" * 200).encode()[:128].decode()
    assert raw.timeout == 3
    assert clock[0].startswith("IF @@TRANCOUNT <> 1 BEGIN; THROW 51900, ")
    assert commit[0].endswith("COMMIT TRANSACTION")


@pytest.mark.parametrize(("seconds", "told"), [(1, 2), (2.5, 3), (30, 31)])
def test_a_wait_for_a_lock_ends_before_its_statement_does(
    raw: Recorder, connection: sqlserver.Connection, seconds: float, told: int
) -> None:
    """Or the driver, which counts whole seconds, would say only that it took too long."""
    with transaction(connection, timeout=seconds):
        pass

    assert f"SET LOCK_TIMEOUT {int(seconds * 1000)};" in raw.sent[1][0]
    assert raw.timeout == told > seconds


def test_outside_a_transaction_nothing_is_guarded(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """And after its end neither."""
    with transaction(connection, timeout=1):
        pass

    connection.rows("version")

    assert raw.sent[-1][0].startswith("DECLARE @text")


@pytest.mark.parametrize("application", ["", "x'; DROP TABLE y --", "\0", "\ud800"])
def test_the_sessions_name_cannot_leave_its_literal(
    raw: Recorder, connection: sqlserver.Connection, application: str
) -> None:
    """It is written as hexadecimal digits, at least one byte."""
    connection.application = application

    with transaction(connection, timeout=1):
        pass

    assert bytes.fromhex(raw.sent[1][0].rpartition("0x")[2])


def test_rows_come_as_the_package_knows_them(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """All results of a statement; times of our tables are aware, lists are lists."""
    naive = datetime(2026, 6, 1, 12, 0, 0, 3000)  # noqa: DTZ001 - as a driver gives it
    raw.ready["receipts"] = [
        (["stream", "created_utc", "seen_utc"], [("r", naive, None)]),
        (["stream", "created_utc", "seen_utc"], [("s", naive, naive)]),
    ]
    raw.ready["peek"] = [(["messages", "last", "marks_list"], [(3, 9, "1,5,9")])]
    raw.ready["dues"] = [
        (["delays_times", "moments_times"], [(None, "2026-06-01T12:00:00.003,2026-06-02T00:00:00")])
    ]
    raw.ready["find_receipt"] = [(["payload"], [(bytearray(b"x"),)])]

    aware = naive.replace(tzinfo=UTC)
    assert connection.rows("receipts", stream=None, queue_name=None) == [
        ("r", aware, None),
        ("s", aware, aware),
    ]
    ends = {"first": 1, "last": 9, "messages": 9, "grain": 1}
    assert connection.rows("peek", tables={"queue": QUEUE}, **ends) == [(3, 9, [1, 5, 9])]
    assert connection.rows("dues", zone="UTC", delays="[]", moments="[1,2]") == [
        ([], [aware, datetime(2026, 6, 2, tzinfo=UTC)])
    ]
    assert connection.rows("find_receipt", stream="r", batch=1, task=0) == [(b"x",)]


@given(st.lists(st.uuids(), min_size=0, max_size=5))
def test_a_uniqueidentifier_is_turned_into_network_order(ids: list[uuid.UUID]) -> None:
    """SQL Server keeps the first three parts of a uuid from the low byte up."""
    stored = pa.chunked_array([pa.array([each.bytes_le for each in ids], pa.binary())])

    assert sqlserver_rows.network_order(stored).to_pylist() == [each.bytes for each in ids]


def test_columns_are_the_same_by_rows_and_by_arrow(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Headers come as UTF-16 bytes: half of a surrogate pair must not stop what is behind it."""
    row, expires = uuid.uuid4(), datetime(2026, 6, 1, 12, 0, 0, 3000)  # noqa: DTZ001
    lone = struct.pack("<3H", 0x7B, 0xD800, 0x7D)
    names = ["id", "expires", "expired", "headers", "body", "seq"]
    values = [
        (row.bytes_le, expires, True, "{ü🚀}\0".encode("utf-16-le"), b"\xff", 7),
        (row.bytes_le, None, False, lone, None, 9),
    ]
    raw.ready["weigh"] = [(["seq", "bytes"], [(7, 5), (9, 3)])]
    raw.ready["receive"] = [(names, values)]
    limits = {"first": 0, "stop": 10, "messages": 5, "bytes": 100, "largest": 50}

    found = connection.arrow("receive", tables={"queue": QUEUE}, **limits)

    assert found.to_pylist() == [
        {"id": row.bytes, "expires": expires, "expired": True, "headers": "{ü🚀}\0",
         "body": b"\xff", "seq": 7},
        {"id": row.bytes, "expires": None, "expired": False, "headers": "{\ufffd}",
         "body": None, "seq": 9},
    ]  # fmt: skip
    large = pa.table(
        [
            pa.array([each[0] for each in values], pa.large_binary()),
            pa.array([each[1] for each in values], pa.timestamp("us")),
            pa.array([each[2] for each in values]),
            pa.array([each[3] for each in values], pa.large_binary()),
            pa.array([each[4] for each in values], pa.large_binary()),
            pa.array([each[5] for each in values]),
        ],
        names=names,
    )
    assert sqlserver_rows.plain_columns(large).equals(found)
    assert sqlserver_rows.plain_columns(large.slice(0, 0)).schema == found.schema


LIMITS = {"first": 1, "stop": 100, "messages": 9, "bytes": 10, "largest": 50}


def test_a_receive_goes_as_far_as_was_weighed(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """The rows that fit, and no row that could make the step too large."""
    raw.ready["weigh"] = [(["seq", "bytes"], [(7, 5), (9, 6), (12, 3)])]
    raw.ready["receive"] = [(RECEIVED, [(b"x" * 16, None, False, b"", b"", 7)])]

    found = connection.arrow("receive", tables={"queue": QUEUE}, **LIMITS)

    assert found["seq"].to_pylist() == [7]
    weigh, receive = map(named, raw.sent)
    assert weigh == {"first": 1, "stop": 100, "messages": 9, "largest": 50}
    assert receive == {"first": 1, "stop": 10, "messages": 2, "largest": 30}


def test_where_nothing_waits_nothing_is_received(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """The table that comes has the columns of a receive."""
    raw.ready["weigh"] = [(["seq", "bytes"], [])]
    raw.ready["weigh_body_string"] = raw.ready["weigh"]

    found = connection.arrow("receive", tables={"queue": QUEUE}, **LIMITS)
    texts = connection.arrow("receive_body_string", tables={"queue": QUEUE}, **LIMITS)

    assert found.column_names == RECEIVED
    assert found.num_rows == texts.num_rows == 0
    assert set(texts.column_names) - set(RECEIVED) == {"bodystring"}
    assert not any("DELETE" in text for text in raw.inner())


def test_what_others_took_meanwhile_is_passed_over(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """The next rows of the range are weighed; a row that only looks free is not waited for."""
    weighings = iter([[(7, 5)], [(9, 5)], []])
    raw.ready["receive"] = [(RECEIVED, [])]
    whole = raw.cursor

    def cursor() -> Cursor:
        made = whole()
        execute = made.execute

        def run(sql: str, values: tuple[Any, ...] = ()) -> None:
            if "sqlqueue:weigh" in values[0]:
                raw.ready["weigh"] = [(["seq", "bytes"], next(weighings))]
            execute(sql, values)

        made.execute = run  # type: ignore[method-assign]
        return made

    raw.cursor = cursor  # type: ignore[method-assign]

    found = connection.arrow("receive", tables={"queue": QUEUE}, **LIMITS)

    assert found.num_rows == 0
    assert [named(each)["first"] for each in raw.sent] == [1, 1, 8, 8, 10]


RECEIVED = ["id", "expires", "expired", "headers", "body", "seq"]


def named(sent: tuple[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The values of a call by their parameters."""
    sql, (_, _, *values) = sent
    names = re.findall(r"@(\w+) = \?", sql.partition("sp_executesql")[2])
    return dict(zip(names, values, strict=True))


def test_a_bulk_insert_is_in_the_transaction_and_in_small_steps(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """One parameter of JSON; ids as texts, bodies in base64, times as the server reads them."""
    ids = [uuid.UUID(int=at) for at in range(4500)]
    rows = pa.table(
        {
            "headers": pa.array(['{"ü":"\\u0000"}'] * 4500),
            "body": pa.array([b"\xff"] * 4499 + [None], pa.binary()),
            "expires": pa.array([datetime(2026, 6, 1, tzinfo=UTC)] * 4500, pa.timestamp("us")),
            "id": pa.array([each.bytes for each in ids], pa.binary(16)),
        }
    )

    with transaction(connection, timeout=1):
        connection.load(QUEUE, rows)

    inserts = [sent for sent in raw.sent if "INSERT INTO" in str(sent[1])]
    assert [len(values[2]) > 0 for _, values in inserts] == [True] * 3
    assert all(sql.startswith("IF @@TRANCOUNT <> 1") for sql, _ in inserts)
    sent = [row for _, values in inserts for row in orjson.loads(values[2])]
    assert [len(orjson.loads(values[2])) for _, values in inserts] == [2000, 2000, 500]
    assert sent[0] == [
        0,
        '{"ü":"\\u0000"}',
        "/w==",
        "2026-06-01T00:00:00.000000",
        "00000000-0000-0000-0000-000000000000",
    ]
    assert sent[-1][2] is None
    assert [row[4] for row in sent] == [str(each) for each in ids]


def test_characters_that_a_varchar_cannot_hold_are_refused(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """By the code page of the column; SQL Server would keep question marks."""
    kept = (
        "CAST(CAST({} COLLATE Latin1_General_CI_AS AS varchar(max)) AS nvarchar(max)) "
        "COLLATE Latin1_General_100_BIN2 <> {}"
    )
    columns = [("Id", "uniqueidentifier"), ("Headers", "varchar COLLATE Latin1_General_CI_AS")]
    raw.ready["queue_columns"] = [(["name", "type"], columns)]

    connection.load(QUEUE, pa.table({"body": [b""], "headers": ["{}"]}))
    tables = {"queue": QUEUE, "errors": QUEUE}
    connection.rows("divert_large", tables=tables, seqs="[1]", renamed=False)

    (divert,) = [text for text in raw.inner() if "sqlqueue:divert_large" in text]
    (load,) = [text for text in raw.inner() if "sqlqueue:load" in text]
    assert (
        "IF EXISTS (SELECT 1 FROM OPENJSON(@rows) WITH (Headers nvarchar(max) '$[2]') WHERE "
        f"{kept.format('Headers', 'Headers')}) BEGIN; THROW 51901, "
    ) in load
    assert load.index("THROW 51901") < load.index("INSERT INTO")
    assert f"FROM @gone WHERE {kept.format('Headers', 'Headers')}) BEGIN; THROW 51901, " in divert
    assert divert.index("THROW 51901") < divert.index("INSERT INTO")


def test_a_bulk_insert_into_an_absent_queue_is_told(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Before anything is sent."""
    raw.ready["queue_columns"] = []

    with pytest.raises(errors.QueueNotFound):
        connection.load(QUEUE, pa.table({"headers": ["{}"], "body": [b""], "id": [b"x" * 16]}))

    assert "INSERT" not in str(raw.sent)


def test_a_table_that_was_made_anew_is_looked_at_anew(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """In the next transaction: Recoverable may have come or gone."""
    rows = pa.table({"headers": ["{}"], "body": [b""]})
    for _ in range(2):
        with transaction(connection, timeout=1):
            connection.load(QUEUE, rows)
            connection.load(QUEUE, rows)
        raw.ready["queue_columns"] = [(["name", "type"], [("Headers", "x")])]

    said = [text.partition("sqlqueue:")[2].partition(" ")[0] for text in raw.inner()]
    looks_and_loads = [name for name in said if name in {"queue_columns", "load"}]
    assert looks_and_loads == ["queue_columns", "load", "load"] * 2
    inserts = [text for text in raw.inner() if "sqlqueue:load" in text]
    assert ["Recoverable" in text for text in inserts] == [True, True, False, False]


def test_the_pages_of_a_payload_are_one_row(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """A large value is kept in pages by the database itself."""
    pages = pa.table(
        {
            "stream": ["r", "r"],
            "batch": [1, 1],
            "task": [0, 0],
            "page": [0, 1],
            "payload": pa.array([b"a" * 7900, b"b"], pa.binary()),
        }
    )

    connection.store("receipt_page", pages)
    connection.store("receipt_page", pages.slice(0, 0))

    ((_, (text, types, *values)),) = raw.sent
    assert "INSERT INTO [sqlqueue].[receipt_page] ([stream], [batch]," in text
    assert "@payload varbinary(8000)" in types
    assert values == ["r", 1, 0, 0, b"a" * 7900 + b"b"]


def test_a_failure_undoes_the_transaction(raw: Recorder, connection: sqlserver.Connection) -> None:
    """At once; and what comes after it is not taken for a part of it."""
    raw.fails["sqlqueue:fence"] = odbc("40001", 1205, VICTIM)

    with pytest.raises(errors.Deadlock), transaction(connection, timeout=1):
        connection.rows("fence", stream="r")

    assert raw.inner()[-2:] == [
        calls.STATEMENTS["rollback"],
        "/* sqlqueue:rollback */ " + calls.STATEMENTS["rollback"],
    ]


def test_a_session_that_cannot_roll_back_is_lost(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Whatever the first error was: what was done is not known."""
    raw.fails["sqlqueue:clock"] = odbc("42000", 229, DENIED)
    raw.fails["ROLLBACK"] = odbc("08S01", 10054, "TCP Provider: closed.")

    with pytest.raises(errors.ConnectionLost), transaction(connection, timeout=1):
        connection.rows("clock")

    assert raw.closed


def test_a_transaction_that_vanished_is_done_again(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """The server undid it and no error was passed on: nothing goes on without it."""
    raw.fails["sqlqueue:clock"] = odbc("42000", 51900, "the transaction is gone")

    with pytest.raises(errors.ConnectionLost, match="the transaction is gone"):
        connection.rows("clock")


def test_an_attempt_is_undone_alone(raw: Recorder, connection: sqlserver.Connection) -> None:
    """XACT_ABORT is off for it, and on again after."""
    raw.fails["sqlqueue:top"] = odbc("42S02", 208, "Invalid object name 'dbo.orders'.")

    with transaction(connection, timeout=1):
        with pytest.raises(errors.QueueNotFound), database.attempt(connection):
            connection.rows("top", tables={"queue": QUEUE})
        connection.rows("clock")

    inner = raw.inner()
    assert "SET XACT_ABORT OFF;\nSAVE TRANSACTION attempt" in inner[2]
    assert sqlserver.UNDO in inner
    assert calls.STATEMENTS["rollback"] not in inner
    assert raw.sent[-2][0].startswith("IF @@TRANCOUNT <> 1")
    assert inner[-1].endswith("COMMIT TRANSACTION")


def test_a_table_that_the_server_speaks_of_is_blamed(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Of two in a statement."""
    raw.fails["sqlqueue:move_due"] = odbc("42S02", 208, "Invalid object name 'dbo.orders.Delayed'.")
    tables = {"queue": QUEUE, "delayed": QueueAddress("orders.Delayed")}

    with pytest.raises(errors.QueueNotFound) as found:
        connection.rows("move_due", tables=tables, zone="UTC", messages=1)

    assert found.value.args[0] == "orders.Delayed@[dbo]"


@pytest.mark.parametrize("found", [[], [(1,)]])
def test_a_move_seeks_where_the_table_has_an_index_on_due(
    raw: Recorder, connection: sqlserver.Connection, found: list[tuple[int]]
) -> None:
    """The hint for an index that is not there would be an error."""
    raw.ready["due_index"] = [(["found"], [*found])]
    tables = {"queue": QUEUE, "delayed": QueueAddress("orders.Delayed")}

    connection.rows("move_due", tables=tables, zone="UTC", messages=1)

    (move,) = [text for text in raw.inner() if "sqlqueue:move_due" in text]
    assert ("WITH (FORCESEEK, UPDLOCK, READPAST" in move) == bool(found)
    (asked,) = [text for text in raw.inner() if "sqlqueue:due_index" in text]
    assert "OBJECT_ID(N'[dbo].[orders.Delayed]', N'U')" in asked


@pytest.mark.parametrize(
    ("delayed", "told"),
    [
        ([("Due", "datetime")], errors.QueueNotFound("orders@[dbo]", "sqlserver://db:1433/shop")),
        ([], errors.QueueNotFound("orders.Delayed@[dbo]", "sqlserver://db:1433/shop")),
        ([("Id", "int")], errors.NotAQueue("orders.Delayed@[dbo]", "it has no column Due")),
    ],
)
def test_of_two_tables_that_are_amiss_the_delayed_one_is_told(
    raw: Recorder,
    connection: sqlserver.Connection,
    delayed: list[tuple[str, str]],
    told: errors.DatabaseFailure,
) -> None:
    """Its mover is asked for by those who delay; and nothing is moved."""
    raw.ready["queue_columns"] = []
    other = QueueAddress("orders.Delayed")
    if delayed:
        connection._shapes._known[other] = {name.lower(): kind for name, kind in delayed}  # noqa: SLF001

    with pytest.raises(type(told)) as found:
        connection.rows("move_due", tables={"delayed": other, "queue": QUEUE}, messages=1)

    assert str(found.value) == str(told)
    assert not any("DELETE" in text for text in raw.inner())


def test_a_session_has_its_name_from_the_beginning(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """Before its first transaction too: whoever looks for it in sys.dm_exec_sessions finds it."""
    connection.settle()

    ((sql, values),) = raw.sent
    assert values == ()
    context = sql.rpartition("SET CONTEXT_INFO 0x")[2].partition(";")[0]
    assert bytes.fromhex(context) == b"sqlqueue test"


# ---------------------------------------------------------------- addresses


@pytest.fixture
def shop(raw: Recorder, connection: sqlserver.Connection) -> sqlserver.Connection:
    """Give a session that has read the name of its database."""
    raw.ready["connect"] = [(["catalog"], [("shop",)])]
    connection.settle()
    raw.sent.clear()
    return connection


PLACED = ["place", "identity", "catalog", "here", "schema", "table", "missing"]


def same_table(*places: int) -> list[tuple[list[str], list[tuple[Any, ...]]]]:
    """What `destinations` answers if some of the tables asked for are one, and others absent."""
    return [(PLACED, [(at, 7, "shop", True, "dbo", "Orders", None) for at in places])]


@pytest.mark.parametrize(
    ("address", "printed", "canonical"),
    [
        (QueueAddress("Shop.Orders"), *["Shop.Orders@[dbo]@[shop]"] * 2),
        (QueueAddress("Orders", "sales", "Other"), *["Orders@[sales]@[Other]"] * 2),
        (QueueAddress("[Orders]"), "[[Orders]]]@[dbo]@[shop]", "[Orders]@[dbo]@[shop]"),
    ],
)
def test_an_address_names_its_database(
    shop: sqlserver.Connection, address: QueueAddress, printed: str, canonical: str
) -> None:
    """As an endpoint's canonical address does; a user reads one that can be given back."""
    assert shop.printed(address) == printed
    assert shop.canonical(address) == canonical
    assert shop.printed(shop.names.parse_queue(printed)) == printed
    assert shop.canonical(shop.parsed(canonical)) == canonical


def test_equal_addresses_are_one_queue_without_asking(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """With and without schema and database."""
    spellings = ["Orders", "Orders@[dbo]", "Orders@[]@[shop]", "Orders@[dbo]@[shop]"]

    first, *others = shop.identities([shop.parsed(each) for each in spellings])

    assert others == [first] * 3
    assert raw.sent == []


def test_the_server_decides_which_spellings_are_one_queue(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """Whether case matters is known there; all are asked for at once; an absent one is itself."""
    raw.ready["destinations"] = same_table(0, 1)

    found = find_same(shop, QueueAddress("Orders"), ["orders@[dbo]", "Absent", "a@b@c@d"])

    assert found == {"orders@[dbo]"}
    ((_, (_, _, places)),) = raw.sent
    assert [each["name"] for each in orjson.loads(places)] == [
        *("[shop].[dbo].[Orders]", "[shop].[dbo].[orders]", "[shop].[dbo].[Absent]"),
    ]


def test_a_delayed_message_for_another_spelling_of_its_queue_is_delivered(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """It is not inserted again under a new id, nor moved to the error queue."""
    raw.ready["destinations"] = same_table(0, 1)
    texts = [f'{{"{FORWARD_DESTINATION}":"{each}@[dbo]@[shop]"}}' for each in ("Orders", "orders")]
    rows = pa.table(
        {
            "id": pa.array([bytes(16)] * 2, pa.binary(16)),
            "expires": pa.nulls(2, pa.timestamp("us")),
            "headers": texts,
            "body": [b"1", b"2"],
            "seq": [1, 2],
        },
        schema=QUEUE_ROW,
    )

    found = forward(shop, QueueAddress("Orders"), None, rows)

    assert (found.forwarded, found.failed) == (0, 0)
    assert found.rows["headers"].to_pylist() == ["{}", "{}"]
    assert not any("sqlqueue:load" in text for text in raw.inner())


def test_a_failed_queue_is_found_as_an_endpoint_writes_it(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """With its database, without asking; another spelling is looked up once."""
    spellings = failed_messages.Spellings(shop, QueueAddress("Shop.Orders"))

    assert spellings.find({"Shop.Orders@[dbo]@[shop]"}) == {"Shop.Orders@[dbo]@[shop]"}
    assert raw.sent == []
    raw.ready["destinations"] = same_table(0, 1)
    for _ in range(2):
        assert len(spellings.find({"Shop.Orders@[dbo]@[shop]", "shop.orders"})) == 2
    assert len(raw.sent) == 1


def test_two_spellings_of_a_subscriber_are_one_queue(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """It receives an event once."""
    raw.ready["destinations"] = same_table(0, 1)
    web, upper = QueueAddress("web", "dbo", "shop"), QueueAddress("WEB", "dbo")

    assert unite(shop, [web, upper]) == {web: web, upper: web}


def test_rows_for_two_spellings_of_a_queue_are_inserted_together(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """So they keep their order; another queue's rows stay apart."""
    raw.ready["destinations"] = same_table(0, 1)
    rows = [pa.chunked_array([[at == one for at in range(3)]]) for one in range(3)]
    queues = [QueueAddress("Orders"), QueueAddress("orders", "dbo", "shop"), QueueAddress("b")]

    found = unite_spellings(shop, dict(zip(queues, rows, strict=True)))

    assert {queue.table: each.to_pylist() for queue, each in found.items()} == {
        "Orders": [True, True, False],
        "b": [False, False, True],
    }


def test_an_error_queue_that_is_also_read_is_refused_in_any_spelling(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """Poison messages would circulate."""
    raw.ready["destinations"] = same_table(0, 1)
    options = SourceOptions.parse({"url": URL, "queue": "Orders", "errorQueue": "orders"})

    with pytest.raises(errors.BadOption) as caught:
        checks.check_spellings(shop, options)

    assert str(caught.value) == (
        "option errorQueue is 'orders@[dbo]@[shop]': expected another queue than "
        "Orders@[dbo]@[shop], which is the same table"
    )


def test_a_reply_address_names_the_database(shop: sqlserver.Connection) -> None:
    """In the option and in the column; a value that is no address is refused with its row."""
    rows = pa.record_batch(
        {"body": [b"", b""], "replyToAddress": pa.array([None, "Spark.In@[sales]"], pa.string())}
    )
    options = SinkOptions.parse({"url": URL, "queue": "x", "replyToAddress": "Spark.In"})
    session: Any = SimpleNamespace(open=lambda: shop)
    sender = Sender(options=options, partition=0, own_address=partial(own_address, session))

    texts = sender.messages(rows, 0)["headers"].to_pylist()

    assert [orjson.loads(text)[REPLY_TO_ADDRESS] for text in texts] == [
        *("Spark.In@[dbo]@[shop]", "Spark.In@[sales]@[shop]"),
    ]
    bad = rows.set_column(1, "replyToAddress", pa.array([None, "a@b@c@d"], pa.string()))
    with pytest.raises(errors.BadMessage, match=r"row 1 .*it has 4 parts"):
        sender.messages(bad, 0)


def test_a_relay_into_another_spelling_of_its_queue_is_refused(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """It would never end; routes to other queues stay."""
    routes = relay.whole_routes({"a@[dbo]": "A@[dbo]", "b@[dbo]": "c@[s]"}, shop, shop)
    assert routes == {"a@[dbo]@[shop]": "A@[dbo]@[shop]", "b@[dbo]@[shop]": "c@[s]@[shop]"}

    relay.find_loop(routes, shop)
    raw.ready["destinations"] = same_table(0, 2)

    with pytest.raises(BadSettings, match=r"queue a@\[dbo\]@\[shop\] is read and sent to"):
        relay.find_loop(routes, shop)


def test_state_rows_are_shown_with_their_database(
    raw: Recorder, shop: sqlserver.Connection
) -> None:
    """They leave it out, so that a copy of the database does not name the original."""
    assert inspect.queue_names(shop, "a@[dbo], b@[s]") == "a@[dbo]@[shop], b@[s]@[shop]"
    raw.ready["receipts"] = []

    inspect.receipts(shop, queue=QueueAddress("a"))

    assert raw.sent[-1][1][-1] == "a@[dbo]"


def test_closing_undoes_what_is_open(raw: Recorder, connection: sqlserver.Connection) -> None:
    """A pool of connections must not keep it; a broken session is closed all the same."""
    connection.run("begin")
    raw.fails["ROLLBACK"] = odbc("08S01", 10054, "TCP Provider: closed.")

    connection.close()

    assert raw.inner()[-1] == calls.STATEMENTS["rollback"]
    assert raw.closed


# ---------------------------------------------------------------- an old level


LEVELLED = """the database of sqlserver://db:1433/shop has compatibility level 120, but 130 is \
needed, because messages are sent as JSON. A DBA can fix this on SQL Server 2016 or later with: \
ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 130"""


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (208, "Invalid object name 'OPENJSON'."),
        (102, "Incorrect syntax near '$[1]'."),
        (319, "Incorrect syntax near the keyword 'with'."),
    ],
)
def test_a_database_of_an_old_level_is_told_with_its_level(
    raw: Recorder, connection: sqlserver.Connection, number: int, sentence: str
) -> None:
    """The server says only that it does not know a function, or its syntax."""
    raw.fails["sqlqueue:load"] = odbc("42000", number, sentence)
    raw.ready["level"] = [(["compatibility_level"], [(120,)])]

    with pytest.raises(errors.DatabaseTooOld) as found:
        connection.load(QUEUE, pa.table({"headers": ["{}"], "body": [b""], "id": [b"x" * 16]}))

    assert str(found.value) == LEVELLED


def test_at_a_newer_level_a_syntax_error_is_told_as_it_is(
    raw: Recorder, connection: sqlserver.Connection
) -> None:
    """It is a mistake of ours."""
    raw.fails["sqlqueue:load"] = odbc("42000", 102, "Incorrect syntax near 'x'.")
    raw.ready["level"] = [(["compatibility_level"], [(150,)])]

    with pytest.raises(errors.StatementFailed, match=r"load failed with error 102: Incorrect"):
        connection.load(QUEUE, pa.table({"headers": ["{}"], "body": [b""], "id": [b"x" * 16]}))
