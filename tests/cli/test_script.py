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
from psycopg import conninfo, errors

from sqlq_spark.database import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

PAGE = Path(__file__).parents[2] / "docs" / "dba.md"
ROLES = ("reader", "sender", "operator")
ALL = ("--delayed", "--body-string", "--subscription-table", "SubscriptionRouting")
# what another session holds: only a look at the rows does not wait for it
EVERY_TABLE = """
SELECT string_agg(format('LOCK TABLE %%I.%%I IN EXCLUSIVE MODE', schemaname, tablename), ';')
  FROM pg_tables WHERE schemaname IN ('public', %(state)s)
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
        state = () if "--state-schema" in more else ("--state-schema", "sqlqueue")
        printed = run("script", queue, *words, *state, *more)
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
    """Again too, and for another queue; a superuser goes on."""
    text = bank.script(run, "Shop.Orders", *ALL)
    for url in (bank.url, bank.url, bank.root):
        bank.execute(text, url=url)
    bank.execute(bank.script(run, "Shop.Billing"))

    assert bank.asked("SELECT version FROM sqlqueue.version") == [(schema.VERSION,)]
    bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("reader"))


def test_a_script_of_a_superuser_is_run_again_by_the_owner_of_the_database(
    bank: Bank, run: Run
) -> None:
    """For its next domain: each trusts what the other has made, if it may grant."""
    bank.execute(bank.script(run, "Shop.Orders"), url=bank.root)
    bank.execute(bank.script(run, "Shop.Orders", "--state-schema", "other"), url=bank.root)
    text = bank.script(run, "Shop.Billing", "--state-schema", "own")

    bank.execute(text)
    bank.execute(text, url=bank.root)

    owners = bank.asked("SELECT DISTINCT schemaname, tableowner FROM pg_tables"
                        " WHERE schemaname IN ('sqlqueue', 'own') ORDER BY 1")  # fmt: skip
    assert [owner for _, owner in owners] == [bank.login, owners[1][1]]


def test_an_operator_gets_rights_on_a_later_queue_by_the_script(bank: Bank, run: Run) -> None:
    """And on no other table of the schema; the same role may operate a second domain."""
    bank.execute(bank.script(run, "Shop.Orders"))
    bank.execute('CREATE TABLE "Payroll" (id int)')
    with pytest.raises(errors.UndefinedTable):
        bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("operator"))

    bank.execute(bank.script(run, "Shop.Billing", "--state-schema", "second"))

    bank.execute('SELECT FROM "Shop.Billing"', url=bank.as_role("operator"))
    bank.execute('DELETE FROM "Shop.Billing"', url=bank.as_role("operator"))
    for state in ("sqlqueue", "second"):
        bank.execute(f"SELECT FROM {state}.trail", url=bank.as_role("operator"))
    with pytest.raises(errors.InsufficientPrivilege):
        bank.execute('SELECT FROM "Payroll"', url=bank.as_role("operator"))


def test_a_login_with_create_on_a_schema_creates_queues(bank: Bank, run: Run) -> None:
    """It owns them, and their owner's GRANTs of the page let an operator use them."""
    bank.execute(bank.script(run, "Shop.Orders"))
    maker = f"{bank.login}_maker"
    bank.execute(f"CREATE ROLE {maker}; GRANT CREATE, USAGE ON SCHEMA public TO {maker}",
                 url=bank.root)  # fmt: skip
    creates = conninfo.make_conninfo(bank.root, options=f"-c role={maker}")
    try:
        assert run("create", "Shop.Later", "--url", as_url(creates)).code == 0
        (grants,) = re.findall(r"```sql\n(GRANT [^`]+ TO orders_operator;\n)```", PAGE.read_text())

        bank.execute(grants.replace("orders_operator", bank.roles["operator"]), url=creates)

        operator = as_url(bank.as_role("operator"))
        assert run("send", "Shop.Later", "--url", operator, stdin='{"body": "1"}').code == 0
        assert run("purge", "Shop.Later", "--yes", "--url", operator).code == 0
        assert bank.asked("SELECT messages, login::text FROM sqlqueue.trail") == [
            (1, bank.roles["operator"])
        ]
    finally:
        bank.execute(f"DROP OWNED BY {maker}; DROP ROLE {maker}", url=bank.root)


def as_url(given: str) -> str:
    """A connection string of keywords as a url."""
    known = conninfo.conninfo_to_dict(given)
    name = known.pop("dbname")
    return f"postgresql:///{name}?{urlencode(known, quote_via=quote)}"


def test_a_script_that_may_not_create_its_roles_changes_nothing(
    bank: Bank, run: Run, place: Place
) -> None:
    """Its head says which login can."""
    text = bank.script(run, "Shop.Orders")
    place.sql(f"ALTER ROLE {bank.login} NOCREATEROLE")

    with pytest.raises(errors.InsufficientPrivilege, match="permission denied to create role"):
        bank.execute(text)

    assert "CREATEROLE" in text.partition("\nBEGIN")[0]
    assert bank.asked("SELECT FROM pg_namespace WHERE nspname = 'sqlqueue'") == []


def test_a_second_run_of_the_script_waits_for_no_table_and_lets_none_wait(
    bank: Bank, run: Run
) -> None:
    """Neither for a state table nor for a queue, whatever streams do there."""
    state = 'O\'Brien "%s" $do$ (1)'
    text = bank.script(run, 'O\'Brien "$do$";\n(1)', *ALL, "--state-schema", state)
    bank.execute(text)
    ((locks,),) = bank.asked(EVERY_TABLE, state=state)

    with psycopg.connect(bank.root) as stream:
        stream.execute(str(locks).encode())
        bank.execute(text)

    assert str(locks).count("LOCK TABLE") == 11


def test_the_script_gives_up_on_a_locked_table(bank: Bank, run: Run) -> None:
    """Within its own time limit, and changes nothing."""
    bank.execute(bank.script(run, "Shop.Orders"))
    text = bank.script(run, "Shop.Billing")
    with psycopg.connect(bank.root) as stream:
        stream.execute("LOCK TABLE sqlqueue.version IN ACCESS EXCLUSIVE MODE")

        with pytest.raises(errors.LockNotAvailable):
            bank.execute(text)

    assert bank.asked("SELECT to_regclass('\"Shop.Billing\"')") == [(None,)]
    bank.execute(text)


@pytest.mark.parametrize(("version", "found"), [("1", "1"), ("4", "4"), (None, "<NULL>")])
def test_the_script_refuses_state_tables_of_another_release(
    bank: Bank, run: Run, version: str | None, found: str
) -> None:
    """It says what to do, and that messages would be lost; nothing is changed."""
    text = bank.script(run, "Shop.Orders")
    bank.execute("CREATE SCHEMA sqlqueue; CREATE TABLE sqlqueue.version (version integer)")
    if version:
        bank.execute(f"INSERT INTO sqlqueue.version VALUES ({version})")

    with pytest.raises(
        errors.RaiseException, match=f"version {found}, not {schema.VERSION}"
    ) as caught:
        bank.execute(text)

    assert "receipt and staging are empty, or their messages would be lost" in str(caught.value)
    assert bank.asked("SELECT to_regclass('\"Shop.Orders\"')") == [(None,)]


@pytest.mark.parametrize("option", ["--reader", "--sender"])
def test_roles_of_the_state_schema_that_all_share_cannot_be_named(run: Run, option: str) -> None:
    """Two pairs of roles would look like two teams, and be one."""
    words = ("script", "Shop.Orders", option, "clerk")

    refused = run(*words)

    assert refused.code == 2
    assert "expected --domain or --state-schema with it" in refused.err
    for more in (("--domain", "billing"), ("--state-schema", "sqlqueue")):
        assert 'TO "clerk"' in run(*words, *more).out


def test_a_team_that_only_reads_several_queues_has_no_sender(bank: Bank, run: Run) -> None:
    """Its endpoints share a role that only sends; the error queue is created once."""
    queues = ("Shop.Orders", "Shop.Billing", "--error", "error")
    roles = ("--reader", bank.roles["reader"], "--producer", bank.roles["operator"])
    text = run("script", *queues, "--no-sender", "--domain", "bank", *roles)

    bank.execute(text.out)

    assert text.out.count('CREATE TABLE IF NOT EXISTS "public"."error"') == 1
    for queue in queues[:2]:
        bank.execute(f'SELECT FROM "{queue}"', url=bank.as_role("reader"))
    assert "sender" not in text.out
    for more in (("--instance", "web1"), ("--sender", "clerk", "--no-sender")):
        assert run("script", *queues, *more, "--domain", "d").code == 2


def test_a_script_is_for_one_database(run: Run) -> None:
    """GRANT takes no name with a database."""
    refused = run("script", "Shop.Orders@[dbo]@[shop]", "--dialect", "sqlserver")

    assert refused.code == 2
    assert "run the script in its database" in refused.err


@pytest.mark.parametrize(
    ("dialect", "lines", "words"), [("postgresql", 260, 1500), ("sqlserver", 310, 1700)]
)
def test_a_dba_can_read_the_script(run: Run, dialect: str, lines: int, words: int) -> None:
    """Its lines, its words and its longest line have limits; it says what a team can do."""
    shop = ("Shop.Orders", "--error", "error", "--delayed")
    for more in ((), ("--domain", "orders")):
        text = run("script", *shop, "--dialect", dialect, *more).out

        assert 100 < len(text.splitlines()) <= lines
        assert 500 < len(text.split()) <= words
        assert max(map(len, text.splitlines())) <= 110
        assert not re.search(r"^ +\w+ +n?varchar\S+ [^(]*, ", text, flags=re.MULTILINE)
        assert "each can read, change and return what the others received" in " ".join(
            re.sub("\n-- ", " ", text).split()
        )
