"""
First contact with a real server: `python -m tests.conformance.first_contact --url sqlserver://…`.

It runs ten checks, and prints for each what was expected and what was seen. This takes some
minutes. Its tables are in schemas of its own, which it drops. A url of PostgreSQL works too.

The login needs, on SQL Server: db_owner in the database; ALTER ANY LOGIN, to make a login for the
printed rights; VIEW SERVER STATE, to see locks and sessions, and ALTER ANY CONNECTION, to end its
own. With --both-row-versions the checks run again with READ_COMMITTED_SNAPSHOT switched over, and
it is switched back. For that no other session may be in the database.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from conftest import placed

from sqlq_spark.database import schema
from sqlq_spark.options.names import names_of
from sqlq_spark.wire.address import QueueAddress

from . import sqlserver
from .conftest import TIMEOUT, Bench
from .dotnet import PostgreSQL
from .first_checks import CHECKS, TEXTS, Seen
from .transport_sqlserver import SQLServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .dotnet import DotNet


# fails at once if another session is in the database
SWITCH = "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT {} WITH NO_WAIT"


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks; 1 if one is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.first_contact")
    parser.add_argument("--url", required=True, help="a database for tests, with an admin's login")
    parser.add_argument("--only", nargs="*", default=[], help="names of checks")
    parser.add_argument(
        "--both-row-versions", action="store_true", help="run again with them switched over"
    )
    asked = parser.parse_args(words)
    results = run_all(asked.url, asked.only)
    if asked.both_row_versions:
        with switched_row_versions(asked.url):
            results += run_all(asked.url, asked.only)
    sys.stdout.write(f"{sum(results)} of {len(results)} checks are as expected\n")
    return 0 if all(results) else 1


def run_all(url: str, only: Sequence[str]) -> list[bool]:
    """Run and report the chosen checks, or all."""
    chosen = [each for each in CHECKS if not only or each.__name__ in only]
    with place(url) as dotnet:
        sys.stdout.write(f"{version(dotnet)}\n\n")
        return [report(each, run(each, dotnet)) for each in chosen]


@contextmanager
def switched_row_versions(url: str) -> Iterator[None]:
    """Switch a SQL Server's READ_COMMITTED_SNAPSHOT over as long as the block lasts."""

    def switch() -> None:
        with closing(SQLServer(url, "dbo").connect()) as connection:
            ((kind,),) = connection.run(TEXTS["sqlserver"]["row_versions"])
            connection.run(SWITCH.format("OFF" if kind == "on" else "ON"))

    switch()
    try:
        yield
    finally:
        switch()


@contextmanager
def place(url: str) -> Iterator[DotNet]:
    """Give an endpoint in schemas of its own, which are dropped after."""
    if names_of(url).dialect == "sqlserver":
        with sqlserver.place(url) as found:
            yield found
        return
    with placed(url) as made:
        yield PostgreSQL.at(made)


def version(dotnet: DotNet) -> str:
    """What the server says it is, in one line."""
    text = "SELECT @@VERSION" if dotnet.dialect == "sqlserver" else "SELECT version()"
    return " ".join(str(dotnet.execute(text)[0][0]).split())


def run(check: Callable[[Bench], Seen], dotnet: DotNet) -> Seen:
    """Run one check on a queue of its own; an error is what was seen."""
    name = secrets.token_hex(4)
    queue = QueueAddress(f"queue {name}", dotnet.schema)
    bench = Bench(dotnet, queue, QueueAddress(f"error {name}", dotnet.schema), name=name)
    try:
        dotnet.create(bench.queue)
        dotnet.create(bench.errors)
        schema.install(bench.desk, timeout=TIMEOUT)
        return check(bench)
    except Exception as error:  # noqa: BLE001 - the next check runs all the same
        return Seen("no error", f"{type(error).__name__}: {error}", ok=False)
    finally:
        dotnet.kill(name)
        bench.close()


def report(check: Callable[[Bench], Seen], found: Seen) -> bool:
    """Print one result."""
    purpose = (check.__doc__ or "").strip()
    lines = (
        f"{'ok ' if found.ok else 'NOT'}  {check.__name__}: {purpose}",
        f"       expected: {found.expected}",
        f"       seen:     {found.seen}",
    )
    sys.stdout.write("\n".join(lines) + "\n\n")
    return found.ok


if __name__ == "__main__":
    sys.exit(main())
