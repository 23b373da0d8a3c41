"""The script that `sqlqueue script` prints, as the logins that a bank lets run it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import conninfo, errors, sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

PAGE = Path(__file__).parents[2] / "docs" / "dba.md"
ROLES = ("reader", "sender", "operator", "installer", "owner")
# tables of ours on which a session holds more than readers and writers do
STRONG = """
SELECT DISTINCT c.relname, l.mode
  FROM pg_locks AS l
  JOIN pg_class AS c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relpersistence = 'p'
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
   AND c.relnamespace >= 16384
"""
EFFECTIVE = """
SELECT pg_has_role(%(login)s, %(role)s, 'USAGE')
       OR pg_has_role(%(login)s, %(role)s,
                      CASE WHEN current_setting('server_version_num')::int >= 160000
                           THEN 'SET' ELSE 'MEMBER' END)
"""


@dataclass(frozen=True, kw_only=True)
class Bank:
    """A database of its own, whose owner is no superuser."""

    url: str  # of the owner
    root: str  # of a superuser, in that database
    login: str
    roles: dict[str, str]

    def script(self, run: Run, queue: str, *more: str) -> str:
        """Print the script for a queue in the schema public."""
        words = (word for name, role in self.roles.items() for word in (f"--{name}", role))
        printed = run("script", queue, *words, *more)
        assert printed.code == 0, printed.err
        return printed.out

    def execute(self, text: str, *, url: str = "") -> None:
        """Run a text as the owner, or as another login."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            connection.execute(text.encode())

    def asked(self, text: str, **values: str) -> list[tuple[object, ...]]:
        """Ask as the superuser."""
        with psycopg.connect(self.root, autocommit=True) as connection:
            return connection.execute(text.encode(), values).fetchall()

    def as_role(self, role: str) -> str:
        """The url of a superuser who has the rights of a role only."""
        return conninfo.make_conninfo(self.root, options=f"-c role={self.roles[role]}")


@pytest.fixture
def bank(place: Place) -> Iterator[Bank]:
    """Give a database whose owner has CREATEROLE, and drop it with all roles."""
    name = f"bank_{secrets.token_hex(4)}"
    login, password = f"{name}_dba", secrets.token_hex(8)
    place.sql(f"CREATE ROLE {login} LOGIN CREATEROLE PASSWORD '{password}'")
    place.sql(f"CREATE DATABASE {name} OWNER {login}")
    url = conninfo.make_conninfo(place.url, dbname=name, user=login, password=password)
    root = conninfo.make_conninfo(place.url, dbname=name)
    roles = {each: f"{name}_{each}" for each in ROLES}
    try:
        yield Bank(url=url, root=root, login=login, roles=roles)
    finally:
        place.sql(f"DROP DATABASE {name} WITH (FORCE)")
        for role in (*roles.values(), login):
            place.sql(f"DROP ROLE IF EXISTS {role}")


def test_the_owner_of_the_database_with_createrole_runs_the_script(bank: Bank, run: Run) -> None:
    """Again too, for another queue, and without --installer. It stays no member of the owner."""
    bank.execute(bank.script(run, "Shop.Orders", "--delayed"))
    bank.execute(bank.script(run, "Shop.Orders", "--delayed"))
    bank.execute("DROP TABLE sqlqueue.trail", url=bank.root)  # as of an older release
    words = ("--reader", bank.roles["reader"], "--owner", bank.roles["owner"])
    later = run("script", "Shop.Billing", *words, "--sender", bank.roles["sender"])
    bank.execute(later.out)

    owners = bank.asked(
        "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'sqlqueue'"
    )
    member = bank.asked(EFFECTIVE, login=bank.login, role=bank.roles["owner"])
    assert owners == [(bank.roles["owner"],)]
    assert member == [(False,)]
    bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("reader"))
    bank.execute(bank.script(run, "Shop.Orders"), url=bank.root)  # for whom the owner is no member


def test_an_operator_gets_rights_on_a_later_queue_by_the_script(bank: Bank, run: Run) -> None:
    """And on no other table of the schema."""
    bank.execute(bank.script(run, "Shop.Orders"))
    bank.execute('CREATE TABLE "Payroll" (id int)')
    with pytest.raises(errors.UndefinedTable):
        bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("operator"))

    bank.execute(bank.script(run, "Shop.Billing"))

    bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("operator"))
    bank.execute('DELETE FROM "Shop.Billing"', url=bank.as_role("operator"))
    with pytest.raises(errors.InsufficientPrivilege):
        bank.execute('SELECT FROM "Payroll"', url=bank.as_role("operator"))


def test_the_grants_of_the_page_give_an_operator_a_queue_of_an_installer(
    bank: Bank, run: Run
) -> None:
    """As the installer, who owns the queue."""
    bank.execute(bank.script(run, "Shop.Orders"))
    installer = bank.as_role("installer")
    assert run("create", "Shop.Later", "--url", as_url(installer)).code == 0
    (grants,) = re.findall(r"```sql\n(GRANT [^`]+ TO sqlqueue_operator;\n)```", PAGE.read_text())

    bank.execute(grants.replace("sqlqueue_operator", bank.roles["operator"]), url=installer)

    operator = as_url(bank.as_role("operator"))
    assert run("send", "Shop.Later", "--url", operator, stdin='{"body": "1"}').code == 0
    assert run("purge", "Shop.Later", "--yes", "--url", operator).code == 0
    assert bank.asked("SELECT messages, login::text FROM sqlqueue.trail") == [
        (1, bank.roles["operator"])
    ]


def as_url(given: str) -> str:
    """A connection string of keywords as a url."""
    known = conninfo.conninfo_to_dict(given)
    name = known.pop("dbname")
    return f"postgresql:///{name}?{urlencode(known, quote_via=quote)}"


def test_the_script_says_which_right_its_login_lacks(bank: Bank, run: Run, place: Place) -> None:
    """To create a role, and to join the owner of the tables; nothing is installed."""
    text = bank.script(run, "Shop.Orders")
    place.sql(f"ALTER ROLE {bank.login} NOCREATEROLE")

    with pytest.raises(errors.RaiseException, match="may not create it") as caught:
        bank.execute(text)

    assert "CREATEROLE" in str(caught.value)
    assert bank.asked("SELECT FROM pg_namespace WHERE nspname = 'sqlqueue'") == []
    bank.execute(text, url=bank.root)
    with pytest.raises(errors.RaiseException, match="may not join"):
        bank.execute(text)


def test_a_login_that_is_a_member_of_the_owner_is_an_error(bank: Bank, run: Run) -> None:
    """It could add code to the state tables."""
    text = bank.script(run, "Shop.Orders")
    other, owner = f"{bank.login}_2", bank.roles["owner"]
    bank.execute(f"CREATE ROLE {owner}; CREATE ROLE {other} LOGIN; GRANT {owner} TO {other}",
                 url=bank.root)  # fmt: skip
    try:
        with pytest.raises(errors.RaiseException, match="has a login as a member"):
            bank.execute(text, url=bank.root)
    finally:
        bank.execute(f"DROP ROLE {other}", url=bank.root)


def test_a_second_run_of_the_script_takes_no_lock_that_blocks_streams(bank: Bank, run: Run) -> None:
    """Neither on a state table nor on a queue."""
    words = ("--delayed", "--body-string", "--subscription-table", "SubscriptionRouting")
    hostile = ("--state-schema", 'O\'Brien "%s" (1)')
    text = bank.script(run, 'O\'Brien "$do$" (1)', *words, *hostile)
    bank.execute(text)

    with psycopg.connect(bank.url) as connection:
        connection.execute(text.removesuffix("COMMIT;\n").encode())
        taken = connection.execute(STRONG).fetchall()

    assert taken == []


def test_the_script_gives_up_on_a_locked_table(bank: Bank, run: Run) -> None:
    """Within its own time limit, and changes nothing."""
    text = bank.script(run, "Shop.Orders")
    bank.execute(text)
    bank.execute('DROP POLICY "own rows" ON sqlqueue.stream', url=bank.root)
    with psycopg.connect(bank.root) as stream:
        stream.execute("SELECT FROM sqlqueue.stream FOR SHARE")

        with pytest.raises(errors.LockNotAvailable):
            bank.execute(text)

    policy = sql.SQL(
        "SELECT FROM pg_policies WHERE tablename = 'stream' AND policyname = 'own rows'"
    )
    assert bank.asked(policy.as_string()) == []
    bank.execute(text)
    assert bank.asked(policy.as_string()) == [()]
