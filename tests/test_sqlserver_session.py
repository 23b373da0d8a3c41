"""
A session with SQL Server, as far as it goes without one.

The url, the drivers, what is handed to them, what their errors become. Where a driver is needed,
one that records stands in for it; both real ones are connected to a closed port.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pickle
import socket
import struct
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark import dialects, errors
from sqlq_spark.address import QueueAddress
from sqlq_spark.dialects import (
    sqlserver,
    sqlserver_calls,
    sqlserver_drivers,
    sqlserver_errors,
    sqlserver_rows,
    transaction,
)
from sqlq_spark.dialects.sqlserver_drivers import Driver
from sqlq_spark.dialects.sqlserver_url import Target, braced
from sqlq_spark.options import with_login

QUEUE = QueueAddress("orders")
SECRET = "hush-#1"  # noqa: S105 - of no one
QUOTED = "hush-%231"

# ---------------------------------------------------------------- the url


def test_a_url_is_read() -> None:
    """Percent signs in user, password and database; the defaults are the strict ones."""
    found = Target.parse(f"sqlserver://bo%40x:{QUOTED}@db.example:14330/my%20shop?driver=pyodbc")

    assert found == Target(
        host="db.example",
        port=14330,
        database="my shop",
        user="bo@x",
        password=SECRET,
        encrypt="yes",
        trust_server_certificate="no",
        driver="pyodbc",
    )
    assert found.server == "sqlserver://db.example:14330/my shop"
    assert Target.parse("sqlserver://db").port == 1433


def test_user_and_password_of_options_win() -> None:
    """They are put behind what the url says itself."""
    found = Target.parse(with_login("sqlserver://a:b@db/shop?encrypt=strict", "bo", SECRET))

    assert (found.user, found.password, found.encrypt) == ("bo", SECRET, "strict")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("encryptt=yes", "option encryptt (in url) is not known: did you mean encrypt?"),
        ("trustservercert=1", "did you mean trustServerCertificate?"),
        ("app=x", "expected only the parameters encrypt, trustServerCertificate"),
        ("encrypt=maybe", "option url, parameter encrypt is 'maybe': expected one of yes, no"),
        ("authentication=Magic", "expected one of SqlPassword, Integrated, ActiveDirectoryDefault"),
        ("encrypt=yes&Encrypt=no", "option url is 'encrypt twice': expected each parameter once"),
        ("database=x", "expected only the parameters"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_by_its_name(query: str, told: str) -> None:
    """A misspelt encrypt would be silently no encryption."""
    with pytest.raises(errors.BadInput) as found:
        Target.parse(f"sqlserver://bo:{QUOTED}@db/shop?{query}")

    assert told in str(found.value)
    assert "hush" not in str(found.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlserver://bo:hush@db:port/shop",
        "sqlserver://bo:hu/sh@db/shop",
        "sqlserver://bo:hush#@db/shop",
        "sqlserver://bo:hush@/shop",
        "sqlserver://db;user=bo;password=hush",
        "sqlserver://bo:hush@db/shop/more",
        "sqlserver://bo:hush%00@db/shop",
        "sqlserver://bo:hush%ff@db/shop",
        "sqlserver://bo:hush@[db/shop",
        "sqlserver://db/shop?password=hush%0a",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """Its password may stand anywhere in it."""
    with pytest.raises(errors.BadOption) as found:
        Target.parse(url)

    assert "hush" not in str(found.value)
    assert "hu/sh" not in str(found.value)


def test_a_target_shows_no_password() -> None:
    """Neither as text nor in a repr."""
    found = Target.parse(f"sqlserver://bo:{QUOTED}@db/shop")

    assert SECRET not in repr(found)
    assert SECRET not in found.server


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), max_size=30))
def test_no_value_can_end_its_braces(text: str) -> None:
    """As the drivers read a connection string: `}}` is a brace, `}` the end."""
    inside = braced(text)[1:-1]

    assert inside.replace("}}", "") == inside.replace("}}", "").replace("}", "")
    assert inside.replace("}}", "}") == text


def test_the_connection_string_says_encryption_and_no_way_around_it() -> None:
    """Values in braces; a password cannot add a keyword."""
    target = Target.parse("sqlserver://bo:x%7D%3BEncrypt%3Dno@db/shop")

    assert target.connection_string(Driver="ODBC Driver 18 for SQL Server") == (
        "Driver={ODBC Driver 18 for SQL Server};Server={tcp:db,1433};Database={shop};UID={bo};"
        "PWD={x}};Encrypt=no};Encrypt={yes};TrustServerCertificate={no};ConnectRetryCount={0}"
    )


def test_integrated_authentication_sends_no_password() -> None:
    """Kerberos knows who it is."""
    text = Target.parse("sqlserver://bo:pw@db?authentication=integrated").connection_string()

    assert "Trusted_Connection={yes}" in text
    assert "UID" not in text
    assert "PWD" not in text


# ---------------------------------------------------------------- the drivers


@pytest.fixture
def closed_port() -> int:
    """Give a port of this machine that no one listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def loadable(driver: str) -> bool:
    """Whether this machine has all parts of a driver."""
    if driver == sqlserver_drivers.PYODBC:
        try:
            return bool(sqlserver_drivers.pyodbc(sqlserver_drivers.ODBC))
        except sqlserver_drivers.NotHere:
            return False
    found = importlib.util.find_spec("mssql_python_odbc")
    places = found.submodule_search_locations if found else None
    return any(loads(file) for place in places or () for file in Path(place).rglob("libmsodbcsql*"))


def loads(library: Path) -> bool:
    """Whether a library and all that it links to is there."""
    try:
        return bool(ctypes.CDLL(str(library)))
    except OSError:
        return False


@pytest.mark.parametrize("driver", [sqlserver_drivers.MSSQL_PYTHON, sqlserver_drivers.PYODBC])
def test_a_closed_port_is_not_reachable(driver: str, closed_port: int) -> None:
    """By each driver that the machine can load; for the others both ways to get one are told."""
    url = f"sqlserver://bo:{QUOTED}@127.0.0.1:{closed_port}/shop?driver={driver}"
    expected = errors.NotReachable if loadable(driver) else errors.MissingDriver

    with pytest.raises(errors.SqlQueueError) as found:
        dialects.of(url).connect(url, application="test", timeout=1, state="sqlqueue")

    assert type(found.value) is expected
    assert SECRET not in str(found.value)
    assert SECRET not in str(found.value.__cause__)
    if expected is errors.MissingDriver:
        assert "pip install 'sqlq-spark[sqlserver]'" in str(found.value)
        assert "ODBC Driver 18 for SQL Server" in str(found.value)
    else:
        assert f"no connection to sqlserver://127.0.0.1:{closed_port}/shop" in str(found.value)


def test_an_unknown_driver_is_refused_by_name() -> None:
    """With those that there are."""
    with pytest.raises(errors.BadOption, match="expected mssql-python, pyodbc or ODBC Driver 18"):
        sqlserver.connect(
            "sqlserver://db?driver=jdbc", application="test", timeout=1, state="sqlqueue"
        )


def test_the_next_driver_is_tried_where_one_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing of each is told where none is left."""

    def absent(*_: object) -> Driver:
        message = "libodbc.so.2: cannot open shared object file"
        raise sqlserver_drivers.NotHere(message)

    made = Driver(name="pyodbc", open=lambda *_: "connected", errors=(ValueError,))
    monkeypatch.setattr(sqlserver_drivers, "mssql_python", absent)
    monkeypatch.setattr(sqlserver_drivers, "pyodbc", lambda _: made)

    assert sqlserver_drivers.connect(Target(host="db"), "test", 1) == (made, "connected")

    monkeypatch.setattr(sqlserver_drivers, "pyodbc", absent)
    with pytest.raises(errors.MissingDriver, match=r"mssql-python: libodbc.*; pyodbc: libodbc"):
        sqlserver_drivers.connect(Target(host="db"), "test", 1)


def test_pyodbc_binds_no_legacy_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of a UTF-8 collation refuses ntext, which a long text would be by itself."""
    name = sqlserver_drivers.ODBC[0]
    sizes: list[Any] = []
    module = SimpleNamespace(
        drivers=lambda: [name], Error=ValueError, SQL_WVARCHAR=-9, SQL_VARBINARY=-3
    )
    monkeypatch.setattr(sqlserver_drivers, "imported", lambda _: module)
    cursor = SimpleNamespace(setinputsizes=sizes.append)

    sqlserver_drivers.pyodbc((name,)).typed(cursor, ("text", 1, b"bytes", 1.5, True))

    assert sizes == [[(-9, 0, 0), None, (-3, 0, 0), None, None]]


# ---------------------------------------------------------------- errors


class Odbc(Exception):
    """An error as pyodbc raises it: SQLSTATE, and a text that ends with the number."""


class Mssql(Exception):
    """An error as mssql-python raises it: its phrase for the SQLSTATE, the server's sentence."""

    def __init__(self, phrase: str, sentence: str) -> None:
        super().__init__(f"Driver Error: {phrase}; DDBC Error: {sentence}")
        self.driver_error, self.ddbc_error = phrase, sentence


def odbc(state: str, number: int, sentence: str) -> Odbc:
    """One of pyodbc."""
    prefix = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return Odbc(state, f"{prefix}{sentence} ({number}) (SQLExecDirectW)")


def mssql(phrase: str, sentence: str) -> Mssql:
    """One of mssql-python."""
    return Mssql(phrase, f"[Microsoft][SQL Server]{sentence}")


DENIED = "The SELECT permission was denied on the object 'orders', database 'shop', schema 'dbo'."
DENIED_COLUMN = DENIED.replace("the object", "the column 'Body' of the object")
VICTIM = (
    "Transaction (Process ID 61) was deadlocked on lock resources with another process and has "
    "been chosen as the deadlock victim. Rerun the transaction."
)
FULL = "The transaction log for database 'shop' is full due to 'LOG_BACKUP'."
BUSY = "The service is currently busy. Retry the request after 10 seconds. Incident ID: 1. Code: 2"
GONE = (
    "Database 'shop' on server 'x' is not currently available. Please retry the connection later."
)
HINTS = "Query processor could not produce a query plan because of the hints defined in this query."
SHORT = "Resource ID : 1. The request limit for the database is 90 and has been reached."

TRIGGER = (
    "The target table 'message' of the DML statement cannot have any enabled triggers if the "
    "statement contains an OUTPUT clause without INTO clause."
)

# what mssql-python says for a SQLSTATE
PHRASES = {
    "42S02": "Base table or view not found",
    "42S22": "Column not found",
    "42000": "Syntax error or access violation",
    "40001": "Serialization failure",
    "HYT00": "Timeout expired",
    "23000": "Integrity constraint violation",
    "08S01": "Communication link failure",
    "HY000": "General error",
    "25000": "Invalid transaction state",
}
# what we make of a server's sentence, with its SQLSTATE and number before it
SAID = {
    errors.QueueNotFound: ["42S02 208 Invalid object name 'dbo.orders'."],
    errors.NotAQueue: ["42S22 207 Invalid column name 'Headers'."],
    errors.BodyStringMissing: ["42S22 207 Invalid column name 'BodyString'."],
    errors.RightMissing: [
        f"42000 229 {DENIED}",
        f"42000 230 {DENIED_COLUMN}",
        "42000 262 CREATE TABLE permission denied in database 'shop'.",
    ],
    errors.Deadlock: [
        f"40001 1205 {VICTIM}",
        "42000 51003 sp_getapplock returned -3",
    ],
    errors.LockTimedOut: [
        "HYT00 1222 Lock request time out period exceeded.",
        "42000 1222 Lock request time out period exceeded.",
        "42000 51001 sp_getapplock returned -1",
    ],
    errors.TimedOut: ["HYT00 0 Query timeout expired"],
    errors.LogFull: [f"42000 9002 {FULL}"],
    errors.StatementFailed: ["42000 1105 Could not allocate space for object 'x'."],
    errors.DatabaseTooOld: ["42S02 208 Invalid object name 'OPENJSON'."],
    errors.StatementRefused: [
        f"42000 8622 {HINTS}",
        f"42000 334 {TRIGGER}",
        "42000 2628 String or binary data would be truncated in table 'x', column 'y'.",
        "23000 515 Cannot insert the value NULL into column 'x', table 'y'; INSERT fails.",
        '23000 547 The INSERT statement conflicted with the CHECK constraint "x".',
        "42000 51901 characters of Headers do not fit",
        "23000 2627 Violation of PRIMARY KEY constraint 'x'.",
    ],
    errors.ConnectionLost: [
        "08S01 10054 TCP Provider: An existing connection was forcibly closed by the remote host.",
        "08S01 0 Communication link failure",
        "HY000 596 Cannot continue the execution because the session is in the kill state.",
        "42000 40197 The service has encountered an error processing your request. Code 4815",
        f"42000 40501 {BUSY}",
        f"42000 40613 {GONE}",
        f"42000 10928 {SHORT}",
        f"42000 10929 {SHORT}",
        "42000 49918 Not enough resources to process request. Please retry your request later.",
        "42000 49919 Cannot process create or update request. Too many operations in progress.",
        "42000 49920 Cannot process request. Too many operations in progress for subscription.",
        "25000 3902 The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.",
        "42000 51900 the transaction is gone",
    ],
}
CASES = [(*said.split(" ", 2), kind) for kind, sentences in SAID.items() for said in sentences]


def place(statement: str = "receive", *, state: bool = False) -> sqlserver_errors.Place:
    """Where a statement failed."""
    return sqlserver_errors.Place(
        statement=statement,
        target="sqlqueue" if state else "orders@[dbo]",
        table="[sqlqueue]" if state else "[dbo].[orders]",
        is_state=state,
        server="sqlserver://db:1433/shop",
        seconds=30,
    )


@pytest.mark.parametrize(("state", "number", "sentence", "kind"), CASES)
def test_an_error_is_the_same_by_either_driver(
    state: str, number: str, sentence: str, kind: type[errors.DatabaseFailure]
) -> None:
    """By the number where a driver reports it, by the server's sentence where not."""
    for raised in (odbc(state, int(number), sentence), mssql(PHRASES[state], sentence)):
        said = sqlserver_errors.read(raised)
        found = sqlserver_errors.failed(said, place())

        assert type(found) is kind
        assert said.text == sentence
        assert str(pickle.loads(pickle.dumps(found))) == str(found)  # noqa: S301 - our own


def test_an_error_tells_its_mend() -> None:
    """The GRANT, the log, the index, the level of the database."""

    def told(state: str, number: int, sentence: str, statement: str = "receive") -> str:
        said = sqlserver_errors.read(odbc(state, number, sentence))
        return str(sqlserver_errors.failed(said, place(statement)))

    assert "GRANT SELECT ON [dbo].[orders] TO the_user" in told("42000", 229, DENIED)
    denied = "CREATE TABLE permission denied in database 'shop'."
    assert "GRANT CREATE TABLE TO the_user" in told("42000", 262, denied, "create_queue")
    assert "GRANT SELECT, DELETE ON [dbo].[orders] TO the_user" in told("42000", 229, "Verboten.")
    assert "log_reuse_wait_desc" in told("42000", 9002, FULL)
    assert "COMPATIBILITY_LEVEL = 130" in told("42S02", 208, "Invalid object name 'OPENJSON'.")
    assert "sqlqueue doctor" in told("42000", 8622, HINTS)
    assert told("42000", 334, TRIGGER).endswith(
        "the table of orders@[dbo] has a trigger, with which nothing can be received: "
        "DISABLE TRIGGER ALL ON [dbo].[orders]"
    )
    assert "ALTER TABLE [dbo].[orders] ALTER COLUMN Headers nvarchar(max) NOT NULL" in told(
        "42000", 51901, "characters of Headers do not fit"
    )


LEVELLED = """the database of sqlserver://db:1433/shop has compatibility level 120, and messages \
are sent as JSON, which needs 130: a DBA can mend it with ALTER DATABASE CURRENT SET \
COMPATIBILITY_LEVEL = 130, on SQL Server 2016 or later"""


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


def test_a_missing_state_table_is_told_as_such() -> None:
    """A statement about no queue."""
    said = sqlserver_errors.read(odbc("42S02", 208, "Invalid object name 'sqlqueue.version'."))

    found = sqlserver_errors.failed(said, place("version", state=True))

    assert type(found) is errors.StateNotInstalled


def test_a_missing_schema_is_told_as_such() -> None:
    """Whoever made it may have made it under another name."""
    sentence = (
        'The specified schema name "sales" either does not exist or you do not have permission '
        "to use it."
    )
    for raised in (odbc("42000", 2760, sentence), mssql("Syntax error", sentence)):
        found = sqlserver_errors.failed(sqlserver_errors.read(raised), place("create_queue"))

        assert type(found) is errors.SchemaNotFound
        assert sentence in str(found)


def test_a_queues_name_cannot_pass_for_an_error() -> None:
    """The sentence counts from its beginning."""
    name = "Lock request time out period exceeded (1222) [x]"
    sentence = f"Invalid object name 'dbo.{name}'."

    said = sqlserver_errors.read(mssql("Base table or view not found", sentence))

    assert said.number == 208
    assert said.text == sentence


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (odbc("28000", 18456, "Login failed for user 'bo'."), errors.LoginRefused),
        (
            mssql("Invalid authorization specification", "Login failed for user 'bo'."),
            errors.LoginRefused,
        ),
        (
            odbc("42000", 4060, 'Cannot open database "x" requested by the login.'),
            errors.DatabaseNotFound,
        ),
        (
            mssql("Syntax error", 'Cannot open database "x" requested by the login.'),
            errors.DatabaseNotFound,
        ),
        (odbc("HYT00", 0, "Login timeout expired"), errors.NotReachable),
        (
            Mssql("Client unable to establish connection", "TCP Provider: Error code 0x2749"),
            errors.NotReachable,
        ),
        (odbc("08001", 10061, "TCP Provider: refused"), errors.NotReachable),
        (odbc("08S01", 104, "TCP Provider: reset"), errors.ConnectionLost),
        (odbc("42000", 40613, GONE), errors.ConnectionLost),
        (mssql("Syntax error", GONE), errors.ConnectionLost),
    ],
)
def test_only_a_server_that_is_there_is_worth_another_try(
    raised: Exception, kind: type[errors.DatabaseFailure]
) -> None:
    """A wrong url, login or database is told at once."""
    found = sqlserver_errors.refused("sqlserver://db", sqlserver_errors.read(raised))

    assert type(found) is kind


def test_a_password_in_a_drivers_text_is_blotted_out() -> None:
    """Whatever made the driver repeat its connection string."""
    raised = Odbc("HY000", f"[HY000] cannot use PWD={SECRET} (0) (SQLDriverConnect)")

    assert sqlserver_errors.read(raised, (SECRET, "")).text == "cannot use PWD=…"


# ---------------------------------------------------------------- a session


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
    connection.run("store_plan", reader="r", batch=1, plan="x" * 5000)

    assert raw.sent[-2][0].endswith("@topic = NULL")
    sql, (_, types, *values) = raw.sent[-1]
    assert sql.endswith("@reader = ?, @batch = ?, @plan = ?")
    assert types == "@reader nvarchar(4000), @batch bigint, @plan nvarchar(max)"
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
def test_a_type_holds_its_value(value: dialects.Value, kind: str) -> None:
    """In a few sizes, so that plans are found again."""
    assert sqlserver_calls.declared("x", value) == kind


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
        (["reader", "created_utc", "seen_utc"], [("r", naive, None)]),
        (["reader", "created_utc", "seen_utc"], [("s", naive, naive)]),
    ]
    raw.ready["peek"] = [(["messages", "last", "marks_list"], [(3, 9, "1,5,9")])]
    raw.ready["dues"] = [
        (["delays_times", "moments_times"], [(None, "2026-06-01T12:00:00.003,2026-06-02T00:00:00")])
    ]
    raw.ready["find_receipt"] = [(["payload"], [(bytearray(b"x"),)])]

    aware = naive.replace(tzinfo=UTC)
    assert connection.rows("receipts", reader=None, queue_name=None) == [
        ("r", aware, None),
        ("s", aware, aware),
    ]
    ends = {"first": 1, "last": 9, "messages": 9, "grain": 1}
    assert connection.rows("peek", tables={"queue": QUEUE}, **ends) == [(3, 9, [1, 5, 9])]
    assert connection.rows("dues", zone="UTC", delays="[]", moments="[1,2]") == [
        ([], [aware, datetime(2026, 6, 2, tzinfo=UTC)])
    ]
    assert connection.rows("find_receipt", reader="r", batch=1, task=0) == [(b"x",)]


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
    raw.ready["receive"] = [(names, values)]
    limits = {"first": 0, "stop": 10, "messages": 5, "bytes": 100}

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
    assert sqlserver_rows.plain(large).equals(found)
    assert sqlserver_rows.plain(large.slice(0, 0)).schema == found.schema


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
            "reader": ["r", "r"],
            "batch": [1, 1],
            "task": [0, 0],
            "page": [0, 1],
            "payload": pa.array([b"a" * 7900, b"b"], pa.binary()),
        }
    )

    connection.store("receipt_page", pages)
    connection.store("receipt_page", pages.slice(0, 0))

    ((_, (text, types, *values)),) = raw.sent
    assert "INSERT INTO [sqlqueue].[receipt_page] ([reader], [batch]," in text
    assert "@payload varbinary(8000)" in types
    assert values == ["r", 1, 0, 0, b"a" * 7900 + b"b"]


def test_a_failure_undoes_the_transaction(raw: Recorder, connection: sqlserver.Connection) -> None:
    """At once; and what comes after it is not taken for a part of it."""
    raw.fails["sqlqueue:fence"] = odbc("40001", 1205, VICTIM)

    with pytest.raises(errors.Deadlock), transaction(connection, timeout=1):
        connection.rows("fence", reader="r")

    assert raw.inner()[-2:] == [
        sqlserver.STATEMENTS["rollback"],
        "/* sqlqueue:rollback */ " + sqlserver.STATEMENTS["rollback"],
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
        with pytest.raises(errors.QueueNotFound), dialects.attempt(connection):
            connection.rows("top", tables={"queue": QUEUE})
        connection.rows("clock")

    inner = raw.inner()
    assert "SET XACT_ABORT OFF;\nSAVE TRANSACTION attempt" in inner[2]
    assert sqlserver.UNDO in inner
    assert sqlserver.STATEMENTS["rollback"] not in inner
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
    connection._columns[other] = {name.lower(): kind for name, kind in delayed}  # noqa: SLF001
    if not delayed:
        del connection._columns[other]  # noqa: SLF001

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
    assert bytes.fromhex(sql.rpartition("SET CONTEXT_INFO 0x")[2]) == b"sqlqueue test"


def test_closing_undoes_what_is_open(raw: Recorder, connection: sqlserver.Connection) -> None:
    """A pool of connections must not keep it; a broken session is closed all the same."""
    connection.run("begin")
    raw.fails["ROLLBACK"] = odbc("08S01", 10054, "TCP Provider: closed.")

    connection.close()

    assert raw.inner()[-1] == sqlserver.STATEMENTS["rollback"]
    assert raw.closed
