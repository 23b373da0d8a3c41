"""The command `selftest`: each check passes, sees a planted fault, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg.conninfo
import pytest
from servers import only
from waiting import until

from sqlq_spark.admin import selftest
from sqlq_spark.database.explain import RUN, WHOLE
from sqlq_spark.database.postgresql import connection, rows
from sqlq_spark.database.sqlserver import calls, explain
from sqlq_spark.errors import RightMissing
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER, SQLServerNames

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

    from .commands import Run

LEFT = """
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'sqlqueue\\_selftest%%'
UNION ALL SELECT rolname FROM pg_roles WHERE rolname LIKE 'sqlqueue\\_selftest%%'
"""
DELETE = "DELETE FROM {queue} WHERE seq = (SELECT max(seq) FROM {queue})"
AGAIN = """
INSERT INTO {queue} (id, headers, body)
SELECT gen_random_uuid(), headers, body FROM {queue} LIMIT 1"""
TRIGGER = """
CREATE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
CREATE TRIGGER broken BEFORE INSERT ON {queue} FOR EACH ROW EXECUTE FUNCTION {schema}.{name}()"""


@pytest.fixture(autouse=True)
def _may_make_roles(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command as a superuser: another login may not check what roles are for."""
    del run  # not needed itself: it sets the url of an ordinary login
    monkeypatch.setenv("SQLQUEUE_URL", place.superuser)


@dataclass(frozen=True)
class Fault:
    """A planted change, and a part of what the check of that name must then report."""

    missed: str
    sent: str = ""  # statement of another session, after messages were sent
    trigger: str = ""  # what an INSERT into the queue does
    before: str = ""  # statement of another session, before the check


FAULTS = {  # name of a check, and a word if the check has several faults
    "new_sinks": Fault("sink_close took longer", before="BEGIN; LOCK TABLE {schema}.dispatch_log"),
    "new_task": Fault("received: 4 (promised: 5)", sent=DELETE),
    "round_trip": Fault(
        "equal bodies: no (promised: yes)", trigger="NEW.body := 'other'; RETURN NEW;"
    ),
    "cut_connection lost": Fault("sent, cut in a statement: 2 (promised: 3)", sent=DELETE),
    "cut_connection twice": Fault("sent, cut in a statement: 4 (promised: 3)", sent=AGAIN),
    "locks": Fault(
        "ShareUpdateExclusiveLock",
        trigger="""
        IF octet_length(NEW.body) > 1 THEN
            LOCK TABLE {queue} IN SHARE UPDATE EXCLUSIVE MODE;
        END IF;
        RETURN NEW;""",
    ),
    "figures": Fault(
        "(promised: 1000)", trigger="IF NEW.seq % 100 = 0 THEN RETURN NULL; END IF; RETURN NEW;"
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fewer messages, and wait less for what never comes."""
    for name, value in {"LARGE_ROWS": 1000, "MEASURED": 1000, "FILLED": 100}.items():
        monkeypatch.setattr(selftest, name, value)


def run_one(url: str, name: str) -> dict[str, Any]:
    """Run one check, and return its result."""
    given = {"url": url, "queryTimeout": "5s"}
    (found,) = selftest.run_checks(given, [getattr(selftest, name)])
    return found


def test_every_check_passes_and_nothing_is_left(
    run: Run, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has neither host nor password."""
    file, facts = tmp_path / "report.json", psycopg.conninfo.conninfo_to_dict(place.superuser)
    password = str(facts.get("password", "none"))
    monkeypatch.setenv("SQLQUEUE_URL", place.superuser.replace(f":{password}@", "@"))
    monkeypatch.setenv("SQLQUEUE_PASSWORD", password)

    done = run("selftest", "--roles", "--yes", "--file", str(file))

    text = file.read_text("utf-8")
    checks = [each for each in selftest.CHECKS if each is not selftest.databases]
    names = [each.__name__ for each in checks]
    assert done.code == 0, done.out
    assert done.out.endswith(
        f"\nthe report is in {file}: attach it if you open an issue\n"
        f"everything that was checked works: {len(names)} passed\n"
    )
    assert not re.search(r"[{}\[\]]|True|False|b'", done.out)
    report = json.loads(text)
    assert [each["check"] for each in report["checks"]] == names
    assert str(facts["host"]) not in text
    assert "password" not in facts or password not in text
    assert place.sql(LEFT) == []


@pytest.mark.parametrize("case", FAULTS)
def test_a_check_sees_what_was_broken(
    place: Place, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """With a fault the check misses an exact number or kind of what it promises."""
    fault, name, send = FAULTS[case], case.split(maxsplit=1)[0], selftest.Bench.send
    check = getattr(selftest, name)
    monkeypatch.setattr(selftest, "WAIT", 2.0)
    with psycopg.connect(place.superuser, autocommit=True) as other:

        def act(text: str, bench: selftest.Bench) -> None:
            schema = str(bench.queue.schema)
            queue = f'"{schema}"."{bench.queue.table}"'
            other.execute(text.format(schema=schema, queue=queue, name=f"f_{name}").encode())

        @wraps(check)
        def broken(bench: selftest.Bench) -> selftest.Seen:
            if fault.trigger:
                act(TRIGGER.replace("{body}", fault.trigger), bench)
            if fault.before:
                act(fault.before, bench)
            yield from check(bench)

        def sent(bench: selftest.Bench, *args: Any, **more: Any) -> None:
            send(bench, *args, **more)
            if fault.sent:
                act(fault.sent, bench)

        def dropped(*args: Any) -> None:
            other.execute("ROLLBACK")
            drop(*args)

        drop = selftest.drop_remains
        monkeypatch.setattr(selftest, name, broken)
        monkeypatch.setattr(selftest, "drop_remains", dropped)
        monkeypatch.setattr(selftest.Bench, "send", sent)

        found = run_one(place.superuser, name)

    assert found["outcome"] == "failed"
    assert fault.missed in found["seen"]
    assert place.sql(LEFT) == []


def test_a_cut_that_did_not_happen_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A check whose connections were not cut has shown nothing."""
    monkeypatch.setitem(rows.STATEMENTS, "selftest_end", "SELECT :session::text")
    rows.number_parameters.cache_clear()
    request.addfinalizer(rows.number_parameters.cache_clear)

    found = run_one(place.superuser, "cut_connection")

    assert found["seen"].startswith("send cut in a statement, connected again: no (promised")


def test_a_database_that_is_not_utf8_is_found(place: Place) -> None:
    """It rejects the characters that its encoding lacks."""
    name = f"latin_{secrets.token_hex(4)}"
    place.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")

    found = run_one(urlsplit(place.superuser)._replace(path=f"/{name}").geturl(), "facts")
    place.sql(f"DROP DATABASE {name} WITH (FORCE)")

    assert found["outcome"] == "failed"
    assert "encoding: LATIN1 (promised: UTF8); errors: none" in found["seen"]


def test_an_error_of_the_server_is_found(place: Place) -> None:
    """The check reports the error in the words of `sqlqueue doctor`."""

    def seen(change: str, wanted: str) -> str:
        place.sql(f"ALTER SYSTEM {change}")
        place.sql("SELECT pg_reload_conf()")
        until(lambda: run_one(place.superuser, "facts")["outcome"], wanted)
        return str(run_one(place.superuser, "facts")["seen"])

    try:
        assert "errors: autovacuum is off on this" in seen("SET autovacuum = off", "failed")
    finally:
        seen("RESET autovacuum", "passed")


@only("sqlserver", "its databases have collations of their own")
def test_a_database_in_which_a_check_fails_is_found(
    dialect: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names collation and check. A collation that the server lacks is not checked."""
    facts = selftest.facts

    @wraps(facts)
    def broken(bench: selftest.Bench) -> selftest.Seen:
        bench.open().run_script("ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 120")
        yield from facts(bench)

    collations = ("Turkish_100_CI_AS", "Nowhere_100_CI_AS")
    monkeypatch.setattr(SQLServerNames, "collations", collations)
    monkeypatch.setattr(selftest, "IN_EACH_DATABASE", (broken,))

    found = run_one(request.getfixturevalue(f"{dialect}_server"), "databases")

    assert found["outcome"] == "failed"
    assert "Turkish_100_CI_AS: facts (promised: none)" in found["seen"]
    assert "Nowhere_100_CI_AS: not checked" in found["seen"]


def test_a_statement_without_its_index_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statements that need the index on seq are named, with the shape of the table."""
    names = ("plans bare_seq_key", "errors bare_seq_key")
    drops = ", ".join(f'DROP CONSTRAINT IF EXISTS "{name}"' for name in names)
    shapes = {"bare": f"ALTER TABLE {{queue}} {drops}"}
    monkeypatch.setattr(connection.Connection, "shapes", shapes)

    found = run_one(place.superuser, "statements")

    assert found["outcome"] == "failed"
    assert found["seen"].startswith("as created: none; bare: ")
    named = {
        each.partition(":")[0] for each in re.findall(r"(?<= )(\w+: it reads all)", found["seen"])
    }
    # `take` is not among them, because it also finds rows by their ids
    assert {"receive", "peek", "sample", "browse", "purge_range"} <= named
    assert named.isdisjoint({"fence", "move_due", *WHOLE})


def test_a_right_that_the_script_forgot_is_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check does the work of the role, and reports the missing right."""
    as_login = selftest.Bench.as_login

    def revoked(bench: selftest.Bench, role: str) -> selftest.Bench:
        if role.endswith("reader"):
            place.sql(f'REVOKE DELETE ON "{bench.queue.schema}"."roles" FROM {role}')
        return as_login(bench, role)

    monkeypatch.setattr(selftest.Bench, "as_login", revoked)

    found = run_one(place.superuser, "roles")

    assert found["outcome"] == "failed"
    assert "GRANT DELETE" in found["seen"] or "permission denied" in found["seen"]
    assert place.sql(LEFT) == []


def test_what_the_login_may_not_do_is_not_checked(run: Run, place: Place, tmp_path: Path) -> None:
    """The report names the missing right, and the check has not failed."""
    dba = place.dotnet.dba
    login = dba.login()

    done = run(
        "selftest", "--yes", "--json", "--url", login.url, "--file", str(tmp_path / "r.json")
    )
    dba.drop_login(login)

    assert done.code == 0
    first, *others = done.objects
    assert first["outcome"] == "passed"
    assert {each["outcome"] for each in others} == {"not checked"}
    assert all("CREATE" in each["seen"] for each in others)


def test_a_failed_check_is_exit_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A check that fails, and then lacks a right, counts as failed."""

    def missed(_: selftest.Bench) -> selftest.Seen:
        yield "first", 1, 2
        raise RightMissing(reason="no right", statement="peek", fix="GRANT")

    monkeypatch.setattr(selftest, "CHECKS", (missed,))

    done = run("selftest", "--yes", "--json", "--file", str(tmp_path / "report.json"))

    (found,) = done.objects
    assert (done.code, found["outcome"]) == (1, "failed")
    assert found["seen"].startswith("first: 1 (promised: 2); RightMissing: no right")


def test_only_a_server_with_several_collations_gets_more_databases(run: Run) -> None:
    """The error names the databases that have them."""
    done = run("selftest", "--yes", "--databases")

    assert done.code == 2
    assert "expected a SQL Server" in done.err


def test_a_login_of_a_selftest_is_by_password() -> None:
    """The login that creates it may connect in another way. Other parameters stay in the url."""
    url = "sqlserver://db/shop?authentication=ActiveDirectoryDefault&encrypt=yes"
    plain = "postgresql://bo@db/shop?authentication=x"

    assert (
        SQLSERVER.by_password(url) == "sqlserver://db/shop?authentication=SqlPassword&encrypt=yes"
    )
    assert POSTGRESQL.by_password(plain) == plain


@pytest.mark.parametrize(
    "more", ["_dead", "0; {drop}; --", '0"; {drop}; --', "0\nGO\n{drop}\nGO\n"]
)
def test_what_a_killed_run_has_left_is_dropped_by_the_next(place: Place, more: str) -> None:
    """Younger objects stay, because they may be another run's. A name is never executed."""
    place.sql("CREATE SCHEMA kept")
    old, young = f"{selftest.MARK}00000001", f"{selftest.MARK}ffffffff"
    end = more.format(drop="DROP SCHEMA kept")
    for name in (POSTGRESQL.quote_name(each + end) for each in (old, young)):
        place.sql(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (); CREATE ROLE {name}")
        place.sql(f"GRANT USAGE ON SCHEMA {name} TO {name}")

    run_one(place.superuser, "facts")
    left = {name for (name,) in place.sql(LEFT)}
    live = POSTGRESQL.quote_name(young + end)
    place.sql(f"DROP SCHEMA {live} CASCADE; DROP ROLE {live}; DROP SCHEMA kept")

    assert left == {young + end}


def test_a_clean_up_that_fails_leaves_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report is written after each check."""

    def failing(*_: object) -> None:
        raise RightMissing(reason="no right to drop", statement="selftest", fix="GRANT")

    monkeypatch.setattr(selftest, "drop_remains", failing)
    file = tmp_path / "report.json"

    done = run("selftest", "--yes", "--only", "facts", "--file", str(file))

    assert done.code == 3
    assert "no right to drop" in done.err
    (check,) = json.loads(file.read_text("utf-8"))["checks"]
    assert check["outcome"] == "passed"


def test_a_slow_login_is_no_fault_of_a_second_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions of both attempts are open before the first one commits."""
    receive, sessions = selftest.Bench.receive, list[object]()

    def seen(bench: selftest.Bench, task: Any, connection: Any = None) -> Any:
        sessions.append(connection)
        return receive(bench, task, connection)

    monkeypatch.setattr(selftest.Bench, "receive", seen)

    found = run_one(place.superuser, "new_task")

    assert found["outcome"] == "passed"
    first, second, *_ = sessions
    assert first is not None
    assert second is not None


def test_a_run_that_is_stopped_drops_what_it_made(place: Place) -> None:
    """Ctrl-C stops a run in this way between two checks."""
    running = selftest.run_checks({"url": place.superuser}, [selftest.facts, selftest.figures])
    next(running)
    next(running)
    before = place.sql(LEFT)

    running.close()

    assert before
    assert place.sql(LEFT) == []


# ---------------------------------------------------------------- plans of SQL Server

COLUMN = '<ColumnReference Schema="[s]" Table="[q]" Column="{}"/>'
SCAN = """
<RelOp PhysicalOp="{kind}"><OutputList/>
  <IndexScan Ordered="{ordered}"><Object Table="{table}"/></IndexScan></RelOp>"""
SORT = '<RelOp PhysicalOp="{}"><OutputList>{}</OutputList></RelOp>'
CONVERSION = '<ScalarOperator ScalarString="CONVERT_IMPLICIT({},[d].[s].[q].[{}],0)&lt;[@last]"/>'
ANY_ROW = """
<RelOp PhysicalOp="Nested Loops" LogicalOp="Left {}"><OutputList/><NestedLoops>
  <RelOp PhysicalOp="Constant Scan"/>{}</NestedLoops></RelOp>"""
BELOW_TOP = '<RelOp PhysicalOp="Top"><Top>{}</Top></RelOp>'
QUEUE, ORDERED = {"table": "[q]"}, {"table": "[q]", "ordered": "true"}
UNORDERED = {"table": "[q]", "ordered": "false"}


@pytest.mark.parametrize(
    ("plan", "statement", "found"),
    [
        (SCAN.format(kind="Table Scan", ordered="0", **QUEUE), "peek", ["Table Scan of [q]"]),
        (SCAN.format(kind="Index Scan", **ORDERED), "peek", ["Index Scan of [q]"]),
        (BELOW_TOP.format(SCAN.format(kind="Index Scan", **ORDERED)), "peek", []),
        (ANY_ROW.format("Semi Join", SCAN.format(kind="Index Scan", **UNORDERED)), "waiting", []),
        (
            ANY_ROW.format("Outer Join", SCAN.format(kind="Index Scan", **UNORDERED)),
            "waiting",
            ["Index Scan of [q]"],
        ),
        (
            ANY_ROW.format("Semi Join", SCAN.format(kind="Index Scan", **UNORDERED)).replace(
                "</IndexScan>", "<Predicate/></IndexScan>"
            ),
            "check_owner",
            ["Index Scan of [q]"],
        ),
        (SORT.format("Window Spool", COLUMN.format("RowVersion")), "browse_seq", []),
        (
            SORT.format("Window Spool", COLUMN.format("Body")),
            "browse",
            ["Window Spool of bodies"],
        ),
        (SCAN.format(kind="Table Scan", ordered="0", **QUEUE), "stats", []),
        (SCAN.format(kind="Table Scan", ordered="0", table="[receipt]"), "peek", []),
        (SORT.format("Sort", COLUMN.format("RowVersion")), "receive", []),
        (SORT.format("Sort", COLUMN.format("Body")), "receive", ["Sort of bodies"]),
        (SORT.format("Sort", COLUMN.format("Body")), "load", []),
        (CONVERSION.format("float(53)", "RowVersion"), "receive", ["RowVersion is converted"]),
        (CONVERSION.format("bigint", "Expires"), "receive", []),
    ],
)
def test_a_plan_of_sql_server_is_judged(plan: str, statement: str, found: list[str]) -> None:
    """Faults are scans of a queue, sorts and spools of bodies, and conversions of RowVersion."""
    namespace = "http://schemas.microsoft.com/sqlserver/2004/07/showplan"
    text = f'<ShowPlanXML xmlns="{namespace}"><QueryPlan>{plan}</QueryPlan></ShowPlanXML>'

    tables = {"queue": QueueAddress("q", "s")}

    assert explain.judge(text, statement, tables) == found


@pytest.mark.parametrize("name", [name for name in calls.STATEMENTS if not RUN.match(name)])
def test_a_statement_of_sql_server_becomes_a_batch_with_its_parameters(name: str) -> None:
    """Each parameter is declared once, also one that the statement declares itself."""
    text = calls.STATEMENTS[name]

    batch = explain.declare(text)

    kinds = r"(?:TABLE|\w*int|bit|float|datetime2?|\w+\(\w+\))"
    declared = Counter(re.findall(rf"@(\w+) {kinds}(?= [=(]|[,;])", batch))
    assert batch.endswith(text)
    assert declared == Counter({*calls.PARAMETER.findall(text)})
