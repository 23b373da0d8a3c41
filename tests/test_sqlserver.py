"""
The T-SQL of the SQL Server dialect: that it is T-SQL, what it says, and what the transport says.

No server is asked here; tests/conformance runs it on one that SQLQ_TEST_SQLSERVER names.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
import sqlserver_lint
import sqlserver_texts
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sqlq_spark.admin import plans
from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.cli import endpoints
from sqlq_spark.database.schema import LOCK_WAIT, VERSION
from sqlq_spark.database.sqlserver import calls, connection, rows
from sqlq_spark.database.statements import Statements
from sqlq_spark.database.trust import DELAYED, RETURNED
from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import SQLSERVER, QueueAddress
from sqlq_spark.wire.header_columns import LEGACY_LENGTH

GOLDEN = Path(__file__).parent / "golden" / "sqlserver.sql"
TEXTS = sqlserver_texts.rendered()


def faults(text: str) -> list[str]:
    """What a parser does not understand in a text."""
    return [fault.desc() for fault in sqlserver_lint.parse(text).violations]


def plain(text: str) -> str:
    """A text with its white space evened out."""
    return " ".join(text.split())


# ---------------------------------------------------------------- all of it


@pytest.mark.parametrize("shape", plans.SHAPES["sqlserver"])
def test_the_shapes_of_selftest_parse_as_t_sql(shape: str) -> None:
    """No server of the suite may have run them yet."""
    assert faults(plans.SHAPES["sqlserver"][shape].format(queue="[sales].[Shop.Orders]")) == []


@pytest.mark.parametrize("name", TEXTS)
def test_every_statement_parses_as_t_sql(name: str) -> None:
    """As sqlfluff knows the language of SQL Server; hints and clauses in their places."""
    assert faults(TEXTS[name]) == []


def test_the_parser_finds_faults() -> None:
    """A clause out of place, a hint that does not exist, a statement without its end."""
    receive = TEXTS["receive"]
    for broken in (
        receive.replace("READPAST", "SKIPLOCKED"),
        receive.replace("DELETE FROM message", "DELETE message FROM WHERE"),
        receive.replace("binary(16)) AS id", "binary(16) AS id"),
    ):
        assert broken != receive
        assert faults(broken)


def test_the_riskiest_statements_are_as_they_were_reviewed() -> None:
    """A change shows in tests/golden/sqlserver.sql; sqlserver_texts.py writes that file."""
    assert sqlserver_texts.golden() == GOLDEN.read_text(encoding="utf-8")


# functions and clauses of SQL Server 2017, 2019, 2022 and 2025
LATER = re.compile(
    r"""\b(?:STRING_AGG|TRIM|LTRIM|RTRIM|CONCAT_WS|TRANSLATE|APPROX_COUNT_DISTINCT|GREATEST|LEAST
    |GENERATE_SERIES|DATE_BUCKET|DATETRUNC|JSON_OBJECT|JSON_ARRAY|JSON_PATH_EXISTS|ISJSON|WINDOW
    |IS\s+(?:NOT\s+)?DISTINCT|BIT_COUNT|LEFT_SHIFT|FIRST_VALUE|REGEXP_\w+|RESUMABLE|IGNORE\s+NULLS
    |CREATE\s+OR\s+ALTER|JSON_ARRAYAGG|PRODUCT|UNISTR|CURRENT_DATE|BASE64_\w+)\b""",
    flags=re.VERBOSE | re.IGNORECASE,
)


@pytest.mark.parametrize("name", TEXTS)
def test_no_statement_needs_more_than_sql_server_2016(name: str) -> None:
    """No function and no clause that came later; Azure knows all of these."""
    assert LATER.findall(TEXTS[name]) == []


def test_no_word_in_braces_is_left() -> None:
    """Each statement has all its names."""
    for name, text in TEXTS.items():
        assert not re.search(r"\{[a-z_]+\}", text), name


# ---------------------------------------------------------------- as the transport has it


@pytest.mark.parametrize("name", ["receive", "take", "move_due", "purge_expired"])
def test_what_takes_messages_takes_them_with_the_transports_hints(name: str) -> None:
    """And with READCOMMITTEDLOCK, for a database that reads row versions."""
    text = TEXTS[name]
    taking = text[text.index("DELETE q") :] if name == "purge_expired" else text
    hints = re.findall(r"WITH \(([A-Z, ]+)\)", taking)

    assert hints
    for each in hints:
        assert set(each.split(", ")) - {"FORCESEEK"} == {
            *("UPDLOCK", "READPAST", "ROWLOCK", "READCOMMITTEDLOCK"),
        }


def test_a_message_expires_by_the_transports_clock() -> None:
    """GETUTCDATE, not the finer clock: Expires is a datetime, cut to 1/300 s."""
    for name in ("receive", "browse", "purge_expired", "stats", "clock"):
        assert "GETUTCDATE()" in TEXTS[name], name
        assert "SYSUTCDATETIME" not in TEXTS[name], name


def test_what_is_sent_is_what_an_endpoint_would_send() -> None:
    """Recoverable is 1 where the column exists; the columns of version 1 stay NULL."""
    text = plain(TEXTS["load"])

    assert text.startswith(
        "INSERT INTO [sales].[Shop.Orders] (Headers, Body, Expires, Id, Recoverable) "
        "SELECT Headers, ISNULL(Body, 0x), Expires, Id, 1 FROM OPENJSON(@rows)"
    )
    names = ["headers", "body", "id"]
    with_nulls = plain(calls.build_insert(names, {"id": ""}, null_bodies=True))
    assert "SELECT Headers, Body, Id FROM" in with_nulls
    assert "Recoverable" not in calls.build_insert(["headers", "body", "id"], {"id": ""})
    divert = plain(TEXTS["divert_large"])
    assert "INSERT INTO [dbo].[error] (Id, Recoverable, Headers, Body) SELECT CASE" in divert
    without = calls.fill_names(
        calls.STATEMENTS["divert_large"], "sqlqueue", sqlserver_texts.TABLES, recoverable="", one=""
    )
    assert "Recoverable" not in without
    assert "1, Headers" not in plain(without)


def test_the_columns_of_version_1_are_filled_where_the_table_has_them() -> None:
    """An older or a later table may have none."""
    names = ["headers", "correlationid", "replytoaddress", "id"]
    shape = dict.fromkeys((*names, "recoverable"), "")

    full = plain(calls.build_insert(names, shape))
    bare = plain(calls.build_insert(names, {"headers": "", "id": ""}))

    assert "(Headers, CorrelationId, ReplyToAddress, Id, Recoverable)" in full
    assert "CorrelationId varchar(256) '$[2]'" in full
    assert "(Headers, Id)" in bare
    assert "Id uniqueidentifier '$[4]'" in bare


def test_what_is_sent_as_json_is_never_cut() -> None:
    """OPENJSON cuts silently. One character too many stays, so that the INSERT fails."""
    names = ["headers", "correlationid", "replytoaddress"]
    read = [*TEXTS.values(), calls.build_insert(names, dict.fromkeys(names, ""))]
    longest = QueueAddress("]" * 128, "]" * 128, "]" * 128)

    found = re.findall(r"(\w+) n?varchar\((\d+)\) '\$", " ".join(read))

    assert {(name, int(size)) for name, size in found} == {
        ("name", len(SQLSERVER.quote_address(longest))),
        ("catalog", SQLSERVER.longest),
        ("query", len(str(uuid.uuid4()))),
        ("CorrelationId", LEGACY_LENGTH + 1),
        ("ReplyToAddress", LEGACY_LENGTH + 1),
    }


# ---------------------------------------------------------------- checks


def test_only_a_trigger_on_delete_stops_a_receive() -> None:
    """An audit trigger on INSERT does not; the finding names the trigger, and disables no other."""
    text = TEXTS["check_queue"]

    assert "e.type_desc = N'DELETE'" in text
    assert "CONCAT(N'ALTER TABLE ', @named, N' DISABLE TRIGGER ', QUOTENAME(g.name" in plain(text)
    assert not any("DISABLE TRIGGER ALL" in each for each in TEXTS.values())


def test_a_fix_names_the_database_of_its_table() -> None:
    """DISABLE TRIGGER and the parts of a foreign key take none, so others are used."""
    other = dict.fromkeys(sqlserver_texts.TABLES, QueueAddress("Orders", "sales", "other"))
    for name in ("check_queue", "check_delayed"):
        text = plain(calls.fill_names(calls.STATEMENTS[name], "sqlqueue", other))

        assert re.findall(r"DISABLE TRIGGER.{8}", text) == ["DISABLE TRIGGER ', QUOT"]
        for fix in re.findall(r"CONCAT\((?:N'USE [^']*', )?N'(?:ALTER|GRANT) \w+ .{20}", text):
            assert re.search(r"USE |@named|\[other\]", fix), fix


def test_the_right_on_an_azure_database_shows_sessions() -> None:
    """Of Azure SQL Database and of Fabric; on a server the right is granted in master."""
    for name in ("check_server", "blockers"):
        assert (
            "SERVERPROPERTY(N'EngineEdition') IN (5, 12) AND HAS_PERMS_BY_NAME(QUOTENAME("
            in plain(TEXTS[name])
        )
    assert "N'USE master; GRANT VIEW SERVER STATE TO '" in TEXTS["check_server"]


def test_a_table_that_is_being_changed_is_named_without_its_lock() -> None:
    """OBJECT_NAME waits for the session that holds Sch-M, which is what is to be reported."""
    text = TEXTS["blockers"]

    assert not re.search("OBJECT_(SCHEMA_)?NAME", text)
    assert re.findall(r"JOIN sys\.(?:objects|schemas) AS \w (.*) ON", text) == ["WITH (NOLOCK)"] * 2


def test_a_load_gets_memory_for_its_sort() -> None:
    """The server expects 50 rows of OPENJSON; a load has 2,000 with their bodies."""
    assert TEXTS["load"].endswith("ORDER BY place OPTION (MAXDOP 1, MIN_GRANT_PERCENT = 1)")


@pytest.mark.parametrize("name", ["triggers", "foreign_keys", "check_constraints"])
def test_what_output_into_refuses_is_found_with_delayed_messages(name: str) -> None:
    """The server names them by the errors 331 to 333, when the first message is due."""
    assert f"sys.{name}" in TEXTS["check_delayed"]
    assert "OUTPUT" in TEXTS["move_due"]
    assert name == "triggers" or f"sys.{name}" not in TEXTS["check_queue"]


def test_characters_that_a_varchar_cannot_hold_are_refused() -> None:
    """By the code page of the column; SQL Server would keep question marks."""
    shape = {"headers": "varchar COLLATE Latin1_General_CI_AS"}
    kept = (
        "CAST(CAST(Headers COLLATE Latin1_General_CI_AS AS varchar(max)) AS nvarchar(max)) "
        "COLLATE Latin1_General_100_BIN2 <> Headers"
    )

    load = plain(calls.build_insert(["body", "headers"], shape))
    moved = plain(calls.check_fit(shape))

    source = "OPENJSON(@rows) WITH (Headers nvarchar(max) '$[2]')"
    assert load.startswith(f"IF EXISTS (SELECT 1 FROM {source} WHERE {kept}) BEGIN; THROW 51901, ")
    assert moved.startswith(f"IF EXISTS (SELECT 1 FROM @gone WHERE {kept}) BEGIN; THROW 51901, ")
    assert calls.check_fit({"headers": "nvarchar"}) == ""


# ---------------------------------------------------------------- values and rows


def test_no_null_is_ever_bound() -> None:
    """A driver asks the server for the type of one, and may lose what was done before by that."""
    text = "UPDATE s SET plan = @plan WHERE batch = @batch"

    sql, bound = calls.build_call("x", text, {"plan": None, "batch": 1, "n": 2}, guarded=False)

    assert sql.endswith("sys.sp_executesql @text, @types, @plan = NULL, @batch = ?")
    assert bound == (f"/* sqlqueue:x */ {text}", "@plan nvarchar(4000), @batch bigint", 1)


@given(st.lists(st.uuids(), max_size=5))
def test_a_uniqueidentifier_is_turned_into_network_order(ids: list[uuid.UUID]) -> None:
    """SQL Server keeps the first three parts of a uuid from the low byte up."""
    stored = pa.chunked_array([pa.array([each.bytes_le for each in ids], pa.binary())])

    assert rows.network_order(stored).to_pylist() == [each.bytes for each in ids]


# ---------------------------------------------------------------- locks


@pytest.mark.parametrize(
    "name",
    [
        *("peek", "sample", "top", "browse", "browse_seq", "stats", "check_rows", "next_due"),
        *("weigh", "check_owner"),
    ],
)
def test_what_only_looks_waits_for_no_row_and_keeps_no_lock(name: str) -> None:
    """Also where streams lock, and where they read row versions."""
    tables = TEXTS[name].count("[sales].[Shop.Orders")
    text = re.sub(r"N'\[sales\].*?'", "", TEXTS[name])

    assert tables
    hints = "READPAST, ROWLOCK, READCOMMITTEDLOCK)"
    assert text.count("[sales].[Shop.Orders") == text.count(hints)
    assert "UPDLOCK" not in text


def test_the_fence_is_a_lock_also_where_row_versions_are_read() -> None:
    """REPEATABLEREAD keeps it until commit; the ack's is an update, which no stream passes over."""
    assert "WITH (REPEATABLEREAD, ROWLOCK)" in TEXTS["fence"]
    assert "WITH (REPEATABLEREAD, ROWLOCK)" in TEXTS["settle"]
    assert TEXTS["lock_stream"].startswith(
        "UPDATE [sqlqueue].stream WITH (REPEATABLEREAD, ROWLOCK)"
    )


def test_settling_locks_the_stream_before_its_receipts() -> None:
    """As the ack does: in the other order the two could wait for one another."""
    text = TEXTS["settle"]

    assert text.index("REPEATABLEREAD") < text.index("UPDATE r")


def test_a_new_subscription_locks_the_gap_and_is_no_merge() -> None:
    """Two who find nothing at once must not both insert."""
    assert "WITH (UPDLOCK, HOLDLOCK, ROWLOCK)" in TEXTS["subscribe"]
    assert "MERGE" not in TEXTS["subscribe"]


def test_a_duplicate_row_of_ours_is_no_error_and_no_gap_is_locked() -> None:
    """The transaction goes on with the other session's row. Any other error is raised."""
    text = plain(TEXTS["new_sink"])

    assert text.startswith("SET XACT_ABORT OFF; BEGIN TRY INSERT INTO")
    assert text.endswith("IF ERROR_NUMBER() <> 2627 BEGIN; THROW; END; END CATCH")
    assert "HOLDLOCK" not in text


@pytest.mark.parametrize("name", ["lock_stream", "sink_close"])
def test_a_row_is_locked_by_an_update_that_changes_nothing(name: str) -> None:
    """A lock that is only hinted may be passed over by others."""
    found = re.search(r"WITH \(REPEATABLEREAD, ROWLOCK\)\s+SET (\w+) = (\w+)\s+OUTPUT", TEXTS[name])

    assert found is not None
    assert found[1] == found[2]


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "sp_getapplock" in text])
def test_an_application_lock_that_was_not_granted_is_an_error(name: str) -> None:
    """sp_getapplock tells it by its result alone; the lock ends with the transaction."""
    text = plain(TEXTS[name])

    assert text.count("EXEC @got = sys.sp_getapplock") == text.count("IF @got < 0 BEGIN") == 1
    assert "@LockOwner = N'Transaction'" in text
    assert "THROW @number, @said, 1;" in text


def test_no_statement_takes_so_many_rows_that_the_table_is_locked() -> None:
    """From 5,000 locks on, SQL Server may lock the table, and no endpoint passes over that."""
    takes = ("weigh", "receive", "purge_expired")
    for name in takes:
        assert re.search(r"TOP \(CASE WHEN .* < 2000 THEN .* ELSE 2000 END\)", TEXTS[name]), name
    assert connection.MOST_ROWS <= 2000
    made = set(re.findall(r"CREATE TABLE \[sqlqueue\]\.(\w+) \(", TEXTS["install_state"]))
    kept = re.findall(r"ALTER TABLE \[sqlqueue\]\.(\w+) SET \(LOCK_ESC", TEXTS["install_state"])
    assert made - set(kept) == {"version"}


# ---------------------------------------------------------------- names


HOSTILE = "a]b'c--{state}@x?{d '1'}%(y)s"


def test_a_hostile_name_stays_a_name() -> None:
    """In brackets and in a text; words in braces inside it are not filled in."""
    tables = dict.fromkeys(sqlserver_texts.TABLES, QueueAddress(HOSTILE, HOSTILE, HOSTILE))
    for name, text in calls.STATEMENTS.items():
        found = sqlserver_texts.filled(calls.fill_names(text, HOSTILE, tables))

        assert "{queue" not in found, name
        inside = HOSTILE.replace("]", "]]")
        bare = found.replace(f"[{inside}]", "[x]")
        bare = bare.replace("[" + inside.replace("'", "''") + "]", "[x]")
        bare = bare.replace(calls.literal(HOSTILE), "N'x'")
        bare = bare.replace(calls.literal(inside), "N'x'")
        assert "--{state}" not in bare, name
        assert faults(bare.replace("[x]", "[sqlqueue]")) == [], name


def test_a_table_of_another_database_is_looked_up_there() -> None:
    """The catalogue of this one does not know it."""
    tables = {"queue": QueueAddress("orders", "dbo", "other")}

    text = calls.fill_names(calls.STATEMENTS["queue_columns"], "sqlqueue", tables)

    assert "FROM [other].sys.columns" in text
    assert "OBJECT_ID(N'[other].[dbo].[orders]', N'U')" in text


# ---------------------------------------------------------------- the DBA's script


def made(**more: str) -> str:
    """A script with everything in it."""
    queues = endpoint(
        "sqlserver://",
        more.get("queue", "Shop.Orders@[sales]"),
        instances=["web1"],
        error="error",
        audit="audit",
    )
    return script(
        queues,
        state="sqlqueue",
        subscriptions=QueueAddress("SubscriptionRouting"),
        roles=Roles(
            reader=more.get("reader", "sqlqueue_reader"),
            operator="sqlqueue_operator",
        ),
        body_string=True,
        delayed=True,
        dialect="sqlserver",
    )


def test_the_script_parses_and_creates_all_in_one_batch() -> None:
    """An error ends the batch and undoes its transaction; after a failed check nothing runs."""
    settings, batch, end, nothing = made().split("\nGO\n")

    assert "SET XACT_ABORT ON;" in settings
    assert "SET QUOTED_IDENTIFIER ON;" in settings
    checked = ("ROLLBACK TRANSACTION;", "RAISERROR", "SET NOEXEC ON;", "RETURN;")
    places = ("BEGIN TRANSACTION;", *checked, "CREATE TABLE", "CREATE ROLE", "COMMIT", "GRANT ")
    assert [batch.index(each) for each in places] == sorted(batch.index(each) for each in places)
    assert batch.count("TRANSACTION;") == 3
    assert "GRANT" not in batch.partition("COMMIT TRANSACTION;")[0]
    assert re.sub("--.*\n", "", end).startswith("SET NOEXEC OFF;")
    assert "LOCK_TIMEOUT" not in end
    assert nothing == ""
    for each in (settings, batch, end):
        assert faults(each) == []


def test_columns_are_named_as_the_transport_creates_them() -> None:
    """Byte for byte, also where they are text: a database may tell Id from ID or Turkish from i."""
    column = re.compile(r"^ {4,8}(\w+) +(?:uniqueidentifier|var|bit|date|nvar|big)", re.MULTILINE)
    made = {name: {*column.findall(TEXTS[f"create_{name}"])} for name in ("queue", "delayed")}
    known = {each.lower(): each for each in (*made["queue"], *made["delayed"])}

    assert {"Id", "RowVersion"} < made["queue"]
    assert {"RowVersion" if each == "Seq" else each for each in RETURNED} <= made["queue"]
    assert set(DELAYED) <= made["delayed"]
    for name, text in TEXTS.items():
        for word in re.findall(r"N'(\w+)'", text):
            assert word == known.get(word.lower(), word), name


def test_a_grant_names_no_database() -> None:
    """It takes none: the fix goes into the table's database first."""
    table = QueueAddress("orders", "dbo", "shop")
    for name, role in (("check_queue", "queue"), ("check_delayed", "delayed")):
        text = calls.fill_names(calls.STATEMENTS[name], "sqlqueue", {"queue": table, role: table})
        grants = re.findall(r"CONCAT\((.*) N'GRANT (?:SELECT|INSERT).* ON ', (N'.*?'),", text)

        assert grants == [("N'USE [shop]; ',", "N'[dbo].[orders]'")] * 2


def test_the_script_can_be_run_again() -> None:
    """Whatever it makes is looked for first; grants may be given twice."""
    batch = made().split("\nGO\n")[1]
    looks = r"IF (?:NOT EXISTS|OBJECT_ID|SCHEMA_ID|COL_LENGTH|DATABASE_PRINCIPAL_ID)"
    statements = re.split(r";\n+(?=\S)", re.sub(r"^ *--.*\n", "", batch, flags=re.MULTILINE))

    makes = [each.strip() for each in statements if re.search(r"\b(?:CREATE|ADD) ", each)]

    assert len(makes) == 16
    for each in makes:
        assert re.match(rf"{looks}|GRANT ", each), each


def test_the_version_of_the_texts_is_that_of_the_code() -> None:
    """And their time limit; both stand in the SQL, which a DBA reads."""
    for dialect in ("postgresql", "sqlserver"):
        texts = Statements.load(dialect)

        assert f".version (version) VALUES ({VERSION})" in texts["install_state"]
        assert re.search(rf"(?:DISTINCT FROM|<>) {VERSION}\b", texts["script_check"])
        assert re.search(rf"\bnot {VERSION}[.']", texts["script_check"])
        assert re.search(rf"(?i)lock_timeout (?:= )?{LOCK_WAIT * 1000:.0f}", texts["script_begin"])


def test_the_script_gives_the_rights_that_the_wire_lists() -> None:
    """Receive: SELECT and DELETE; send, divert: INSERT; state tables: all but DDL."""
    text = made()

    for right in (
        "GRANT SELECT, DELETE ON [sales].[Shop.Orders] TO [sqlqueue_reader];",
        "GRANT SELECT, DELETE ON [sales].[Shop.Orders.web1] TO [sqlqueue_reader];",
        "GRANT INSERT ON [dbo].[error] TO [sqlqueue_reader];",
        "GRANT INSERT, SELECT (RowVersion) ON [sales].[Shop.Orders] TO [sqlqueue_sender];",
        "GRANT SELECT, DELETE ON [sales].[Shop.Orders.Delayed] TO [sqlqueue_reader];",
        "GRANT INSERT ON [sales].[Shop.Orders.Delayed] TO [sqlqueue_sender];",
        "GRANT SELECT ON [dbo].[SubscriptionRouting] TO [sqlqueue_sender];",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].receipt TO [sqlqueue_reader];",
    ):
        assert right in text
    assert "@version" not in text


def test_the_command_prints_it_and_connects_to_nothing() -> None:
    """Names are read in the notation of that database."""
    words = ["script", "Shop.Orders@[sales]", "--dialect", "sqlserver", "--error", "error"]

    found = CliRunner().invoke(endpoints.app, words)

    assert found.exit_code == 0
    assert "CREATE TABLE [sales].[Shop.Orders] (" in found.stdout
    assert "GRANT INSERT ON [dbo].[error] TO [sqlqueue_reader];" in found.stdout


@pytest.mark.parametrize("name", ["a\nGO\nDROP TABLE x", "a\rGO\rb", "$(x)", "a\u2028GO"])
def test_a_name_that_sqlcmd_would_misread_is_refused(name: str) -> None:
    """A batch ends at a line GO, also inside brackets; $(x) is a variable."""
    with pytest.raises(BadAddress, match="sqlcmd would misread"):
        made(queue=name)
