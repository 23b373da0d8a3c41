"""The steps from version to version: what they make, whose rights they keep, and when they wait."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conftest import Database

from sqlq_spark import errors
from sqlq_spark.admin.script import Roles, write_script
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.migrations import STATE_VERSION, STEPS
from sqlq_spark.database.postgresql.connection import connect

from .conftest import new_database
from .make_state import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName

    from .conftest import OldState

# all of a schema's tables that their users can see, but the order of columns and constraints' names
CATALOG = """
SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, a.attstorage::text
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'sqlqueue'::regnamespace AND c.relkind = 'r'
UNION ALL
SELECT c.relname, n.contype::text, pg_get_constraintdef(n.oid), NULL, NULL, NULL, NULL
  FROM pg_class AS c
  JOIN pg_constraint AS n ON n.conrelid = c.oid
 WHERE c.relnamespace = 'sqlqueue'::regnamespace
UNION ALL
SELECT i.tablename, i.indexname, i.indexdef, NULL, NULL, NULL, NULL
  FROM pg_indexes AS i
 WHERE i.schemaname = 'sqlqueue'
UNION ALL
SELECT c.relname, 'options', c.reloptions::text, NULL, NULL, NULL, NULL
  FROM pg_class AS c
 WHERE c.relnamespace = 'sqlqueue'::regnamespace AND c.relkind = 'r'
"""
RIGHTS = """
SELECT c.relname::text, a.attname::text, r.privilege_type
  FROM pg_class AS c
  LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 CROSS JOIN LATERAL (
        SELECT grantee, privilege_type FROM aclexplode(a.attacl)
         UNION ALL
        SELECT grantee, privilege_type FROM aclexplode(c.relacl)) AS r
 WHERE c.relnamespace = 'sqlqueue'::regnamespace AND c.relkind = 'r'
   AND r.grantee = {}::regrole
"""


def opened(url: str) -> Connection:
    return connect(url, application="upgrade", timeout=30, state="sqlqueue")


def install(url: str) -> schema.Installed:
    with closing(opened(url)) as connection:
        return schema.install(connection)


class Other(Database):
    """Another database."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)


@pytest.fixture
def fresh(server: str) -> Iterator[Other]:
    """Give a database in which this release has installed the state tables by its script."""
    with new_database(server) as url:
        other = Other(url)
        other.connection.execute(
            write_script(state="sqlqueue", roles=Roles(operator="fresh_operator"))
        )
        with closing(other.connection):
            yield other


def test_the_steps_make_what_an_install_makes(old_state: OldState, fresh: Other) -> None:
    """Tables of version 3 differ from new ones in nothing but the order of their columns."""
    done = install(old_state.superuser)

    assert (done.before, done.after) == (3, STATE_VERSION)
    assert sorted(map(str, old_state.sql(CATALOG))) == sorted(map(str, fresh.sql(CATALOG)))
    assert install(old_state.superuser).before == STATE_VERSION  # a second install changes nothing


@pytest.mark.parametrize("role", ROLES)
def test_a_role_of_the_old_script_has_the_rights_of_the_new_one(
    old_state: OldState, fresh: Other, role: str
) -> None:
    """The step gives what the new script would; no script is run again."""
    install(old_state.superuser)
    name = old_state.roles[ROLES[role]]
    new = {"reader": "sqlqueue_reader", "sender": "sqlqueue_sender", "operator": "fresh_operator"}

    assert sorted({*old_state.sql(RIGHTS.format(f"'{name}'"))}) == sorted(
        {*fresh.sql(RIGHTS.format(f"'{new[role]}'"))}
    )


def test_the_script_takes_the_same_steps(old_state: OldState, fresh: Other) -> None:
    """It has all steps, because it connects to nothing. A second run changes nothing."""
    text = write_script(state="sqlqueue", trusted=["postgres"])
    for _ in range(2):
        old_state.connection.execute(text)
        assert sorted(map(str, old_state.sql(CATALOG))) == sorted(map(str, fresh.sql(CATALOG)))

    assert old_state.sql("SELECT version FROM sqlqueue.version") == [(STATE_VERSION,)]


def test_a_step_keeps_all_rows(old_state: OldState) -> None:
    """Receipts with their pages, chunks, the dispatch log, streams and the trail stay."""
    tables = (
        "receipt",
        "receipt_page",
        "staging",
        "staging_page",
        "dispatch_log",
        "stream",
        "trail",
    )
    counts = {
        table: old_state.sql(f"SELECT count(*) FROM sqlqueue.{table}")[0][0] for table in tables
    }

    install(old_state.superuser)

    assert all(counts[table] for table in tables if table != "staging_page")
    for table, count in counts.items():
        assert old_state.sql(f"SELECT count(*) FROM sqlqueue.{table}") == [(count,)]


def test_a_step_back_makes_what_was_there(old_state: OldState) -> None:
    """All rows and columns of version 3 are there again, unless a value is new."""
    before = sorted(map(str, old_state.sql(CATALOG)))
    install(old_state.superuser)
    old_state.sql("UPDATE sqlqueue.dispatch_log SET destination = 'x' WHERE sink = 'app:nightly'")
    with closing(opened(old_state.superuser)) as connection:
        with pytest.raises(errors.StatementFailed, match="is not changed"):
            schema.step_back(connection, 3)
        assert schema.find_version(connection) == STATE_VERSION
        old_state.sql("UPDATE sqlqueue.dispatch_log SET destination = NULL")

        schema.step_back(connection, 3)

    assert sorted(map(str, old_state.sql(CATALOG))) == before
    assert old_state.sql("SELECT version FROM sqlqueue.version") == [(3,)]


def test_a_step_names_the_sessions_that_keep_it_waiting(
    old_state: OldState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a few seconds, changes nothing, and says which sessions to stop."""
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.3)
    with (
        psycopg.connect(old_state.superuser, application_name="a busy task") as busy,
        closing(opened(old_state.superuser)) as connection,
    ):
        busy.execute("SELECT FROM sqlqueue.stream FOR SHARE")
        with pytest.raises(errors.InstallBlocked, match=r"stream: session \d+ .*'a busy task'"):
            schema.install(connection)
        assert schema.find_version(connection) == 3

    assert install(old_state.superuser).before == 3


def test_a_login_that_does_not_own_the_tables_is_told_who_may(old_state: OldState) -> None:
    """It has the old roles, which may not change a table. Nothing is changed."""
    with pytest.raises(errors.RightMissing, match="a login that owns"):
        install(old_state.url)

    assert old_state.sql("SELECT version FROM sqlqueue.version") == [(3,)]


def test_two_installers_take_a_step_once(old_state: OldState) -> None:
    """The second waits for the first, and finds the tables of this version."""
    found: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(install(old_state.superuser).before))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(str, found)) == ["3", str(STATE_VERSION), str(STATE_VERSION)]


def test_each_version_has_a_step() -> None:
    """Steps follow one another without a gap, up to the version of this release."""
    versions = [step.version for step in STEPS]

    assert versions == [*range(4, STATE_VERSION + 1)]


def test_a_release_fails_at_its_first_statement_after_a_later_step(old_state: OldState) -> None:
    """Its statements name the column of its version, which the later step renames."""
    install(old_state.superuser)
    with closing(opened(old_state.superuser)) as connection:
        stream = old_state.sql("SELECT stream FROM sqlqueue.stream")[0][0]
        for table in ("stream", "dispatch_log"):
            old_state.sql(
                f"ALTER TABLE sqlqueue.{table} RENAME version_{STATE_VERSION} TO version_99"
            )

        calls: tuple[tuple[StatementName, dict[str, Any]], ...] = (
            ("fence", {"stream": stream, "query_id": None, "run_id": "", "queue_name": ""}),
            ("lock_stream", {"stream": stream}),
            ("sink_open", {"sink": "s"}),
            ("sink_close", {"sink": "s"}),
            ("advance", {"sink": "s", "sink_batch": 1, "messages": 1, "destination": None}),
        )
        for statement, values in calls:
            with pytest.raises(errors.StateChanged), transaction(connection):
                connection.run(statement, **values)
