"""
The statements of the SQL Server dialect: they are T-SQL, keep rules, and have what they need.

No server is used here. tests/conformance runs them on one that SQLQ_TEST_SQLSERVER names.
"""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
import sqlserver_texts
from conformance.transport_sqlserver import _INSTALL, SQLServer
from hypothesis import given
from hypothesis import strategies as st
from sqlserver_lint import RULES, UNKNOWN, Text, parse

from sqlq_spark.admin import selftest
from sqlq_spark.admin.script import Roles, endpoint, write_script
from sqlq_spark.database import dialect_named
from sqlq_spark.database.migrations import OLDEST_STATE_VERSION, STATE_VERSION, STEPS
from sqlq_spark.database.results import Result
from sqlq_spark.database.schema import LOCK_WAIT
from sqlq_spark.database.sqlserver import calls, connection, explain, rows
from sqlq_spark.errors import BadAddress
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import driver, poison
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import LEGACY_LENGTH
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from sqlserver_lint import Rule

GOLDEN = Path(__file__).parent / "golden" / "sqlserver.sql"
TEXTS = sqlserver_texts.rendered()
# what is sent beside the statements of the files
SENT = {
    **{name: text.format(queue="[q]") for name, text in explain.SHAPES.items()},
    "settings": connection.SETTINGS,
    "call": calls.build_call("take", "SELECT 1", {"chosen": "[[1]]"}, guarded=True)[0],
    "look for triggers": sqlserver_texts.named(connection.TRIGGERS),
    **{
        f"{name} without Recoverable": sqlserver_texts.named(
            calls.STATEMENTS[name], recoverable="", one=""
        )
        for name in ("divert_large", "move_due")
    },
}


def faults(text: str) -> list[str]:
    """What the parser does not understand in a text. A question mark is a value."""
    return [
        fault.desc() for fault in parse(re.sub(r"(?<=\W)\?(?=\W|$)", "@value", text)).violations
    ]


def plain(text: str) -> str:
    """A text with single blanks as its only white space."""
    return " ".join(text.split())


QUEUE = "[sales].[Shop.Orders]"


def endpoint_text(text: str) -> str:
    """A text of the transport with its words filled in, and its values as parameters."""
    text = re.sub(r"(?<!:):(\w+)", r"@\1", text.replace("{text}", QUEUE))
    return plain(re.sub(r"\{\w+\}", QUEUE, text).replace("{{", "{").replace("}}", "}"))


THEIRS = {name: endpoint_text(text) for name, text in SQLServer.texts.items()}
ALL = TEXTS | SENT | {f"endpoint {name}": text for name, text in THEIRS.items()}


# ---------------------------------------------------------------- all of it

# functions and clauses of SQL Server 2017, 2019, 2022 and 2025
LATER = re.compile(
    r"""\b(?:STRING_AGG|TRIM|LTRIM|RTRIM|CONCAT_WS|TRANSLATE|APPROX_COUNT_DISTINCT|GREATEST|LEAST
    |GENERATE_SERIES|DATE_BUCKET|DATETRUNC|JSON_OBJECT|JSON_ARRAY|JSON_PATH_EXISTS|ISJSON|WINDOW
    |IS\s+(?:NOT\s+)?DISTINCT|BIT_COUNT|LEFT_SHIFT|FIRST_VALUE|REGEXP_\w+|RESUMABLE|IGNORE\s+NULLS
    |CREATE\s+OR\s+ALTER|JSON_ARRAYAGG|PRODUCT|UNISTR|CURRENT_DATE|BASE64_\w+)\b""",
    flags=re.VERBOSE | re.IGNORECASE,
)


@pytest.mark.parametrize("name", ALL)
def test_every_statement_is_t_sql_of_sql_server_2016(name: str) -> None:
    """Each can be parsed, with all its names, and has no words of a later version."""
    text = ALL[name]

    assert faults(text) == []
    assert LATER.findall(text) == []
    assert not re.search(r"\{[a-z_]+\}", text)
    # the parser passes over one clause only
    assert plain(UNKNOWN.sub("", text)) == plain(text) or name.startswith(("install_", "migrate_"))


def test_the_riskiest_statements_are_as_they_were_reviewed() -> None:
    """A change shows in tests/golden/sqlserver.sql; sqlserver_texts.py writes that file."""
    assert sqlserver_texts.golden() == GOLDEN.read_text(encoding="utf-8")


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize("rule", RULES)
def test_every_statement_keeps_the_rule(rule: Rule) -> None:
    """Each batch of the printed script keeps it too."""
    texts = {name: Text(sql) for name, sql in TEXTS.items()}
    texts |= {f"batch {at}": Text(sql) for at, sql in enumerate(made())}

    assert [f"{name}: {each}" for name, text in texts.items() for each in rule(text)] == []


FAULTS = [
    ("readpast_is_shared", "receipts", r"(stream AS o) WITH \([^)]*\)", r"\1"),
    ("hints_agree", "receive", "ROWLOCK, READ", "ROWLOCK, REPEATABLEREAD, READ"),
    ("insert_has_its_columns", "save_receipt", "@unpacked, ", ""),
    ("output_has_its_columns", "move_due", r"NEWID\(\), 1,", "NEWID(),"),
    ("indexes_are_not_converted", "stats", "<= GETUTCDATE", "<= SYSUTCDATETIME"),
    ("unions_have_a_collation", "selftest_remains", "d.name COLLATE DATABASE_DEFAULT,", "d.name,"),
    (
        "unions_have_a_collation",
        "selftest_remains",
        r"(NULL\)\))\s+COLLATE DATABASE_DEFAULT",
        r"\1",
    ),
    (
        "unions_have_a_collation",
        "check_queue",
        "(p.permission_name) COLLATE DATABASE_DEFAULT",
        r"\1",
    ),
    ("names_of_the_server_have_a_collation", "check_server", "s.status COLLATE \\w+", "s.status"),
    ("names_of_the_server_have_a_collation", "blockers", "(s.program_name) COLLATE \\w+", r"\1"),
    (
        "executed_names_are_quoted",
        "selftest_remains",
        r"DROP SCHEMA ', QUOTENAME\((.*?)\)",
        r"DROP ', \1",
    ),
    (
        "executed_names_are_quoted",
        "selftest_remains",
        r"LOGIN ' \+ QUOTENAME\((.*?)\)",
        r"LOGIN ' + \1",
    ),
    (
        "executed_names_are_quoted",
        "selftest_remains",
        r"DATABASE ', QUOTENAME\((.*?)\)",
        r"X ', \1",
    ),
]


@pytest.mark.parametrize(("rule", "name", "old", "new"), FAULTS)
def test_a_planted_fault_is_found(rule: str, name: str, old: str, new: str) -> None:
    """The rule that the fault breaks finds it."""
    (check,) = (each for each in RULES if each.__name__ == rule)
    broken = re.sub(old, new, TEXTS[name])

    assert broken != TEXTS[name]
    assert list(check(Text(broken))) != []


# ---------------------------------------------------------------- facts of the server

AZURE = r"SERVERPROPERTY\(N'EngineEdition'\) IN \(5, 12\) AND 1 IN \(HAS_PERMS_BY_NAME\(QUOTENAME\("
NEWER = r"N'VIEW SERVER PERFORMANCE STATE'.*N'VIEW DATABASE PERFORMANCE STATE'"
GRANTEE = r"@grantee nvarchar\(258\) = IIF\(ISNULL\(DATABASE_PRINCIPAL_ID\(\), 0\) = 0 OR "
GRANTEE += (
    r"ISNULL\(DB_ID\(PARSENAME\(N'.*', 3\)\), DB_ID\(\)\) <> DB_ID\(\), N'the_user', @login\)"
)
OLD = r"AND EXISTS \(SELECT 1 FROM sys\.dm_tran_active_transactions .*-10, .*\) SELECT TOP"
GRANTED = r"EXEC @got = sys\.sp_getapplock.*@LockOwner = N'Transaction'.*IF @got < 0 BEGIN.*"
GRANTED += r"THROW @number, @said, 1;"
# statements, what stands in their text or does not, and why
FACTS = [
    ("check_queue", "e.type_desc = N'DELETE'", "an audit trigger on INSERT stops no receive"),
    ("check_queue check_delayed", "(?!.*DISABLE TRIGGER ALL)", "it disables no other trigger"),
    *(
        ("check_delayed", rf"sys\.{kind}", "OUTPUT INTO refuses them, errors 331 to 333")
        for kind in ("triggers", "foreign_keys", "check_constraints")
    ),
    ("check_server blockers", AZURE, "on a server the right is granted in master"),
    ("check_server blockers", NEWER, "it is enough since 2022 and on Azure"),
    ("check_server", r"WHERE SERVERPROPERTY\(N'EngineEdition'\) = 12", "it mirrors bodies"),
    ("check_server", r"SUSER_ID\(SUSER_SNAME\(\)\) IS NULL, N'the_login'", "as for a user"),
    ("check_queue check_delayed", GRANTEE, "15151: a member of a group has no such user"),
    ("check_queue check_delayed", r"(?!.*GRANT [^;]{1,80} TO ', @login)", "so has each GRANT"),
    ("blockers", OLD, "the list of locks is long"),
    (
        "blockers",
        r"IN \(N'IS', N'IX', N'IU', N'Sch-S'\) THEN 0 ELSE 1 END",
        "the others exclude IX",
    ),
    ("blockers", "GROUP BY k.request_session_id, k.resource_assoc", "a lock for each processor"),
    ("blockers", "LEFT JOIN sys.dm_exec_sessions", "-2 is no session"),
    (
        "blockers",
        r"WHEN l.session_id = -2 THEN CONCAT.N'KILL '+, l.unit_of_work,",
        "no number names it",
    ),
    ("table_owners", r"COL_LENGTH\(t.name, j.name\).* AS sysname\) AS name", "it takes no (max)"),
    ("blockers", "(?!.*OBJECT_(SCHEMA_)?NAME)", "it waits for the session that is reported"),
    ("blockers", r"(?!.*JOIN sys\.(objects|schemas) AS \w (?!WITH \(NOLOCK\)))", "so does this"),
    ("weigh_page browse", r"(?!.*\bOVER\b)", "a sum over rows with bodies spools them in tempdb"),
    (
        "dues",
        r"CASE WHEN CAST\(j\.value AS datetime2\(6\)\) > GETUTCDATE\(\) THEN j\.value ELSE",
        "a datetime begins in 1753, so a time in the past is now",
    ),
    ("load", r"SELECT TOP \(@messages\) (?!.*GRANT)", "the server knows how many rows it sorts"),
    (
        "selftest_costs",
        "max_grant_kb, s.max_used_grant_kb, s.max_spills",
        "it shows what a sort took",
    ),
    ("new_sink", "IF ERROR_NUMBER\\(\\) <> 2627 BEGIN; THROW; END; END CATCH$", "no other error"),
    ("new_sink", "(?!.*HOLDLOCK)SET XACT_ABORT OFF; BEGIN TRY INSERT INTO", "no gap is locked"),
    (
        "weigh receive purge_expired",
        r"TOP \(CASE WHEN .* < 2000 THEN .* ELSE 2000 END\)",
        "from 5,000 locks on the table may be locked",
    ),
    (" ".join(n for n, text in TEXTS.items() if "applock" in text), GRANTED, "or it is an error"),
    ("subscribe", r"Endpoint = @\w+ AND Topic = @.*QueueAddress <> @", "as the transport's MERGE"),
    ("begin", "SET NOCOUNT ON", "else an UPDATE has a result, which hides the rows"),
]


@pytest.mark.parametrize(("names", "pattern", "why"), FACTS, ids=range(len(FACTS)))
def test_a_statement_says_what_its_server_needs(names: str, pattern: str, why: str) -> None:
    """These are facts of SQL Server that no test of the suite can run."""
    for name in names.split():
        anywhere = pattern if pattern.startswith("(?!") else f".*?{pattern}"
        assert re.match(anywhere, plain(TEXTS[name])), f"{name}: {why}"


def test_an_index_on_due_is_what_a_move_seeks_by() -> None:
    """The check has the rule of `move_due`. A filtered or a columnstore index does not count."""
    assert plain(TEXTS["due_index"]) in plain(TEXTS["check_delayed"])
    assert "i.type IN (1, 2) AND i.is_disabled = 0 AND i.has_filter = 0" in TEXTS["due_index"]


def test_no_line_of_a_result_ends_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`selftest` sends statements with names of others as they are. Only a script has lines GO."""
    sent: list[str] = []

    def do(_session: Any, _statement: str, text: str, _tables: Any) -> Result:
        sent.append(text)
        return Result((), [])

    hostile = "DROP SCHEMA [a\nGO\nDROP TABLE x\nGO\n]"
    monkeypatch.setattr(connection.Connection, "_do", do)
    monkeypatch.setattr(connection.Connection, "values", lambda *_, **__: [hostile])
    session = object.__new__(connection.Connection)

    selftest.drop_remains(session, "a", "b")
    session.run_script("SELECT 1\nGO\nSELECT 2")

    assert sent == [hostile, "SELECT 1\n", "\nSELECT 2"]


def test_a_purge_at_the_start_is_logged_with_the_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A DBA knows queues by that name. The options and the state tables leave the database out."""
    given = {"url": "sqlserver://db/shop", "queues": "a, b@[sales]", "purgeOnStartup": "true"}
    stream = driver.StreamDriver(SourceOptions.parse(given), time.monotonic, lambda *_: None)
    session = object.__new__(connection.Connection)
    session.catalog = "shop"
    monkeypatch.setattr(driver, "purge", lambda *_: 3)

    stream._prepare(session)  # noqa: SLF001 - without a session of its own

    (record,) = caplog.records
    queues = "a@[dbo]@[shop], b@[sales]@[shop]"
    assert record.getMessage() == f"{queues}: 3 messages purged (purgeOnStartup=true)"


def test_no_lock_on_a_state_table_escalates() -> None:
    """No INSERT has so many rows that the whole table would be locked."""
    tables = set(re.findall(r"CREATE TABLE \[sqlqueue\]\.(\w+) \(", TEXTS["install_state"]))
    kept = re.findall(r"ALTER TABLE \[sqlqueue\]\.(\w+) SET \(LOCK_ESC", TEXTS["install_state"])

    assert tables - set(kept) == {"version"}
    assert connection.MOST_ROWS <= 2000


def test_what_is_sent_as_json_is_never_cut() -> None:
    """OPENJSON cuts silently. One character too many stays, so that the INSERT fails."""
    longest = QueueAddress("]" * 128, "]" * 128, "]" * 128)
    texts = [*TEXTS.values(), sqlserver_texts.golden()]

    sizes = re.findall(r"(\w+) n?varchar\((\d+)\) '\$", " ".join(texts))
    assert {(name, int(size)) for name, size in sizes} == {
        ("name", len(SQLSERVER.quote_address(longest))),
        ("catalog", SQLSERVER.longest),
        ("schema_name", SQLSERVER.longest),
        ("query", len(str(uuid.uuid4()))),
        ("CorrelationId", LEGACY_LENGTH + 1),
        ("ReplyToAddress", LEGACY_LENGTH + 1),
    }


def test_no_null_is_ever_bound() -> None:
    """To bind one, a driver asks the server for its type, and may lose what was done before."""
    text = "UPDATE s SET plan = @plan WHERE batch = @batch"

    sql, bound = calls.build_call("x", text, {"plan": None, "batch": 1, "n": 2}, guarded=False)

    assert sql.endswith("sys.sp_executesql @text, @types, @plan = NULL, @batch = ?")
    assert bound == (f"/* sqlqueue:x */ {text}", "@plan nvarchar(4000), @batch bigint", 1)


@given(st.lists(st.uuids(), max_size=5))
def test_a_uniqueidentifier_is_turned_into_network_order(ids: list[uuid.UUID]) -> None:
    """SQL Server keeps the first three parts of a uuid from the low byte up."""
    stored = pa.chunked_array([pa.array([each.bytes_le for each in ids], pa.binary())])

    assert rows.network_order(stored).to_pylist() == [each.bytes for each in ids]


# ---------------------------------------------------------------- as the transport has it


def made_by(create: str, table: str) -> tuple[list[str], list[str]]:
    """The columns and the indexes of a table, as a statement makes them."""
    text = plain(create).replace(table, "T") + ";"
    (columns,) = re.findall(r"CREATE TABLE T \( ?(.*?) ?\);", text)
    names = [re.sub("(?<!NOT) NULL$", "", each) for each in re.split(r", (?![^(]*\))", columns)]
    return names, re.findall(r"CREATE NONCLUSTERED INDEX .*?;", text)


@pytest.mark.parametrize(
    ("theirs", "ours", "table"),
    [
        ("create", "create_queue", QUEUE),
        ("create_delayed", "create_delayed", "[sales].[Shop.Orders.Delayed]"),
        ("create_subscriptions", "create_subscriptions", "[dbo].[SubscriptionRouting]"),
    ],
)
def test_a_table_is_made_as_the_transport_makes_it(theirs: str, ours: str, table: str) -> None:
    """The columns are in its order, and the indexes have the names that it looks for."""
    assert made_by(TEXTS[ours], table) == made_by(THEIRS[theirs], QUEUE)
    assert TEXTS[ours].startswith("IF OBJECT_ID(N'")


def test_a_creator_waits_for_the_transports_installer() -> None:
    """The same lock, until the transaction ends. Under it each table is looked for."""
    ours = plain(TEXTS["create_lock"])

    assert "@Resource = N'{lock}', @LockMode = 'Exclusive'" in _INSTALL
    named = "LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[sales].[Shop.Orders]_lock', 255)"
    assert f"DECLARE @name nvarchar(255) = {named}" in ours
    assert re.search("@Resource = @name.*'Exclusive'", ours)


def test_what_we_insert_is_what_the_transports_send_inserts() -> None:
    """Every column is one of the transport's. What is left out is NULL there as well."""
    for theirs, ours in ((THEIRS["send"], TEXTS["load"]), (THEIRS["move"], TEXTS["move_due"])):
        texts = (theirs, plain(ours).replace(".Delayed", ""))
        found = [re.findall(r"INTO \S+ \(([\w, ]+)\)", text)[-1].split(", ") for text in texts]
        their_columns, our_columns = map(set, found)

        assert our_columns <= their_columns
        assert their_columns - our_columns <= {"CorrelationId", "ReplyToAddress", "Expires"}
    assert "NULL, NULL, 1," in THEIRS["send"]


# ---------------------------------------------------------------- how far a receive goes

LARGEST = 1000
SIZES = st.lists(st.integers(0, 2 * LARGEST), min_size=1, max_size=60)


def weighed_rows(sizes: list[int]) -> list[calls.Weight]:
    """Rows with gaps between their seqs."""
    return [calls.Weight(3 * at + 1, size, size > LARGEST) for at, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 60), st.integers(1, 20_000))
def test_a_step_is_never_larger_than_its_limits_and_one_message(
    sizes: list[int], messages: int, most: int
) -> None:
    """It holds even if all rows were committed after the weighing. Too large ones do not count."""
    weighed = weighed_rows(sizes)
    step = calls.cut_step(weighed, messages=messages, most=most, largest=LARGEST)

    fitting = [message for message in weighed if message.bytes <= LARGEST]
    passed = [message.bytes for message in fitting if message.seq < step["stop"]]
    assert min(1, len(fitting)) <= len(passed) == step["messages"] <= messages
    assert max(passed, default=0) <= step["largest"] <= LARGEST
    assert step["messages"] * step["largest"] <= most + LARGEST
    assert step["stop"] <= weighed[-1].seq + 1
    assert passed or step["stop"] == weighed[-1].seq + 1


@given(SIZES, st.integers(1, 60))
def test_a_message_with_large_headers_is_passed_over_and_not_counted(
    sizes: list[int], messages: int
) -> None:
    """The server marks the messages that are too large. A mark counts also for a small message."""
    rows = [calls.Weight(at, size % 1000, is_large=size > LARGEST) for at, size in enumerate(sizes)]
    step = calls.cut_step(rows, messages=messages, most=1 << 40, largest=LARGEST)

    passed = [row for row in rows if row.seq < step["stop"] and not row.is_large]
    assert len(passed) == step["messages"] == min(messages, sum(not row.is_large for row in rows))


@given(st.integers(0, LARGEST), st.integers(1, 60), st.integers(1, 20_000))
def test_messages_of_one_size_fill_a_step(size: int, count: int, most: int) -> None:
    """The message that reaches the limit is the last one, as on PostgreSQL."""
    step = calls.cut_step(weighed_rows([size] * count), messages=2000, most=most, largest=LARGEST)

    assert step["messages"] == sum(at * size < most for at in range(count))


def test_the_ends_of_a_step() -> None:
    """Nothing waits, large values count as a lock for each of their pages, or a seq is below 0."""
    rows = [calls.Weight(at, 9 * calls.PAGE, is_large=False) for at in range(2000)]
    pages = calls.cut_step(rows, messages=2000, most=1 << 40, largest=1 << 40)
    below = calls.cut_step([calls.Weight(-1, 1, is_large=False)], messages=1, most=1, largest=1)

    assert calls.cut_step([], messages=1, most=1, largest=1) == {}
    assert below["stop"] == 0
    assert pages["messages"] == calls.MOST_LOCKS // 10


@given(st.lists(st.integers(1, 20 << 20), min_size=1, max_size=poison.MOST_LARGE))
def test_a_move_of_large_messages_takes_no_more_locks_than_a_step(sizes: list[int]) -> None:
    """Each row is a lock, and so is each page of its value. A single message may take more."""
    found = [poison.LargeMessage(seq, size, 0, "") for seq, size in enumerate(sizes)]

    groups = [*poison.cut_groups(found, connection.Connection.most_moved)]

    moved = [message for group in groups for message in group]
    assert moved == found or sum(message.bytes for message in moved) >= poison.MOST_BYTES
    for group in groups:
        locks = sum(1 + message.bytes // calls.PAGE for message in group)
        assert locks <= calls.MOST_LOCKS or len(group) == 1


def test_a_receive_locks_no_more_rows_than_were_weighed() -> None:
    """A filter by size would lock 4,000 messages that are too large, and escalate."""
    assert "@largest" not in TEXTS["weigh"].partition(" WHERE ")[2]


# ---------------------------------------------------------------- how far a browse goes

SEQS = st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 2 * LARGEST)), min_size=1)


@given(SEQS, st.integers(1, 5000))
def test_a_page_ends_where_it_is_full_and_splits_no_seq(
    sizes: list[tuple[int, int]], most: int
) -> None:
    """The message that reaches the limit is included. One that is too large weighs nothing."""
    weighed = [calls.Size(*each) for each in sorted(sizes)]
    page = calls.cut_page(weighed, most=most, largest=LARGEST)

    inside = [message for message in weighed if message.seq < page["stop"]]
    last = inside[-1].seq
    fitting = {seq: 0 for seq, _ in sizes}
    for message in weighed:
        fitting[message.seq] += message.bytes if message.bytes <= LARGEST else 0
    before = sum(size for seq, size in fitting.items() if seq < last)
    assert page["stop"] == last + 1
    assert before < most
    assert inside == weighed or before + fitting[last] >= most
    heaviest = max((each.bytes for each in inside if each.bytes <= LARGEST), default=0)
    assert page["largest"] == heaviest


def test_a_page_of_nothing() -> None:
    """The browse then ends without a read."""
    assert calls.cut_page([], most=1, largest=1) == {}


@pytest.mark.parametrize(
    ("large", "weighed"),
    [([None, None], True), ([None, 1001], True), ([600, None], False), ([1001, 1000], False)],
)
def test_a_message_that_came_after_the_weighing_is_noticed(
    large: list[int | None], *, weighed: bool
) -> None:
    """It makes the page too heavy, but is not too large for a browse."""
    page = pa.table({"large": pa.array(large, pa.int64())})

    assert rows.is_weighed(page, LARGEST) is weighed


# ---------------------------------------------------------------- names

HOSTILE = "a]b'c--{state}@x?{d '1'}%(y)s"


def test_a_hostile_name_stays_a_name() -> None:
    """It is quoted in brackets and in a text. Words in braces inside it are not filled in."""
    tables = dict.fromkeys(sqlserver_texts.TABLES, QueueAddress(HOSTILE, HOSTILE, HOSTILE))
    inside = HOSTILE.replace("]", "]]")
    for name, text in calls.STATEMENTS.items():
        bare = sqlserver_texts.filled(calls.fill_names(text, HOSTILE, tables))
        for word, plain_word in {
            f"[{inside}]": "[x]",
            "[" + inside.replace("'", "''") + "]": "[x]",
            calls.literal(HOSTILE): "N'x'",
            calls.literal(inside): "N'x'",
        }.items():
            bare = bare.replace(word, plain_word)

        assert "{queue" not in bare, name
        assert "--{state}" not in bare, name
        assert faults(bare.replace("[x]", "[sqlqueue]")) == [], name


def test_a_table_of_another_database_is_looked_up_and_fixed_there() -> None:
    """DISABLE TRIGGER, GRANT and the parts of a foreign key take no database: USE comes first."""
    other = dict.fromkeys(sqlserver_texts.TABLES, QueueAddress("Orders", "sales", "other"))
    columns, queue = (
        plain(calls.fill_names(calls.STATEMENTS[name], "sqlqueue", other))
        for name in ("queue_columns", "check_queue")
    )

    assert "FROM [other].sys.columns" in columns
    assert "OBJECT_ID(N'[other].[sales].[Orders]', N'U')" in columns
    assert re.search(r"N'USE \[other\]; ', N'GRANT .*? ON ', N'\[sales\]\.\[Orders\]'", queue)


# ---------------------------------------------------------------- the DBA's script


def made(queue: str = "Shop.Orders@[sales]", database: str | None = None) -> list[str]:
    """The batches of a script with all options."""
    queues = endpoint("sqlserver://", queue, instances=["web1"], error="error", audit="audit")
    text = write_script(
        queues,
        state="sqlqueue",
        subscriptions=QueueAddress("SubscriptionRouting"),
        roles=Roles(reader="sqlqueue_reader", operator="sqlqueue_operator"),
        body_string=True,
        delayed=True,
        database=database,
        dialect="sqlserver",
    )
    return text.split("\nGO\n")


def without_steps(batch: str) -> str:
    """Return a script without the steps from older versions, which are texts that it executes."""
    without, steps = re.subn(r"(?s)DECLARE @before_\d+ int.*?\nEND;\n", "", batch)
    assert steps == len(STEPS)
    return without


def test_the_script_parses_and_creates_all_in_one_batch() -> None:
    """An error ends the batch and undoes its transaction; after a failed check nothing runs."""
    settings, batch, end, nothing = made()

    assert "SET XACT_ABORT ON;" in settings
    assert "SET QUOTED_IDENTIFIER ON;" in settings
    checked = ("ROLLBACK TRANSACTION;", "RAISERROR", "SET NOEXEC ON;", "RETURN;")
    places = ("BEGIN TRANSACTION;", *checked, "CREATE TABLE", "CREATE ROLE", "COMMIT", "GRANT ")
    bare = without_steps(batch)
    assert [bare.index(each) for each in places] == sorted(bare.index(each) for each in places)
    assert batch.count("TRANSACTION;") == 3
    assert re.sub("--.*\n", "", end).startswith("SET NOEXEC OFF;")
    assert nothing == ""
    assert [faults(each) for each in (settings, batch, end)] == [[], [], []]


def test_the_script_does_nothing_in_another_database_than_its_own() -> None:
    """If it names no database, it runs in all but the system databases. It states its encoding."""
    own, any_of_users = (made(database=name)[0] for name in ("O'Brien 1", None))

    assert own.startswith('-- Run this by `sqlcmd -b -I -f 65001 -d "O\'Brien 1"` as')
    assert "@wanted sysname = N'O''Brien 1'" in own
    assert "@wanted sysname = N''" in any_of_users
    for text in map(plain, (own, any_of_users)):
        assert "@wanted = N'' AND @here IN (N'master', N'tempdb', N'model', N'msdb')" in text
        assert "OR @wanted <> N'' AND ISNULL(DB_ID(@wanted), 0) <> DB_ID() BEGIN" in text
        assert re.search(r"RAISERROR \(.*\); SET NOEXEC ON; END$", text)
    with pytest.raises(BadAddress, match="sqlcmd would misread"):
        made(database="shop\nGO")


def test_the_script_uses_no_role_of_another() -> None:
    """Whoever owns a role adds members; a user or a group is no role."""
    batch = plain(made()[1])

    roles = """OPENJSON(N'["sqlqueue_reader", "sqlqueue_sender", "sqlqueue_operator"]')"""
    assert f"p.name IN (SELECT r.value COLLATE DATABASE_DEFAULT FROM {roles} AS r)" in batch
    owners = "(p.type <> N'R' OR ISNULL(p.owning_principal_id, 0) NOT IN ( SELECT t.id"
    assert batch.index(owners) < batch.index("CREATE ROLE")


def test_the_script_can_be_run_again() -> None:
    """The script looks for whatever it makes before it makes it. Grants may be given twice."""
    batch = re.sub(r"^ *--.*\n", "", without_steps(made()[1]), flags=re.MULTILINE)
    looks = r"IF (?:NOT EXISTS|OBJECT_ID|SCHEMA_ID|COL_LENGTH|DATABASE_PRINCIPAL_ID)"
    makes = [
        each.strip()
        for each in re.split(r";\n+(?=\S)", batch)
        if re.search(r"\b(?:CREATE|ADD) ", each)
    ]

    assert len(makes) == 16
    assert [each for each in makes if not re.match(rf"{looks}|GRANT ", each)] == []


@pytest.mark.parametrize("dialect", ["postgresql", "sqlserver"])
def test_the_version_of_the_texts_is_that_of_the_code(dialect: str) -> None:
    """Version and time limit are written in the SQL, because a DBA reads it."""
    texts = dialect_named(dialect).STATEMENTS

    assert f".version (version) VALUES ({STATE_VERSION})" in texts["install_state"]
    assert re.search(
        rf"expected {OLDEST_STATE_VERSION} to {STATE_VERSION}\b", texts["script_check"]
    )
    assert re.search(
        rf"(?i)NOT BETWEEN {OLDEST_STATE_VERSION} AND {STATE_VERSION}\b", texts["script_check"]
    )
    # what a stream and a sink run first names the column of the version
    for statement in ("fence", "lock_stream", "store_plan", "sink_open", "sink_close", "advance"):
        assert f"version_{STATE_VERSION} IS NULL" in texts[statement], statement
    assert re.search(rf"(?i)lock_timeout (?:= )?{LOCK_WAIT * 1000:.0f}", texts["script_begin"])


def test_the_script_gives_the_rights_that_the_wire_lists() -> None:
    """A reader may SELECT and DELETE, a sender INSERT. On state tables both may do all but DDL."""
    grants = re.findall(r"GRANT (.*) TO \[(?:sqlqueue_(reader|sender))\];", "\n".join(made()))

    assert {
        ("SELECT, DELETE ON [sales].[Shop.Orders]", "reader"),
        ("SELECT, DELETE ON [sales].[Shop.Orders.web1]", "reader"),
        ("SELECT, DELETE ON [sales].[Shop.Orders.Delayed]", "reader"),
        ("SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].receipt", "reader"),
        ("INSERT ON [dbo].[error]", "reader"),
        ("INSERT, SELECT (RowVersion) ON [sales].[Shop.Orders]", "sender"),
        ("INSERT ON [sales].[Shop.Orders.Delayed]", "sender"),
        ("SELECT ON [dbo].[SubscriptionRouting]", "sender"),
    } <= {*grants}


@pytest.mark.parametrize("name", ["a\nGO\nDROP TABLE x", "a\rGO\rb", "$(x)", "a\u2028GO"])
def test_a_name_that_sqlcmd_would_misread_is_refused(name: str) -> None:
    """A batch ends at a line GO, also inside brackets; $(x) is a variable."""
    with pytest.raises(BadAddress, match="sqlcmd would misread"):
        made(name)


def test_headers_weigh_two_bytes_for_each_utf_16_unit() -> None:
    """The server stores them so, and the limit of poison's headers counts the stored bytes."""
    texts = ["", "a", "é", "\u2028", "🚀", "a🚀\U0010ffff"]

    found = connection.Connection.stored_bytes(cast("connection.Connection", None), pa.array(texts))

    assert found.to_pylist() == [len(text.encode("utf-16-le")) for text in texts]
