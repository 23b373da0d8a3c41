"""The command `selftest`."""

from __future__ import annotations

import json
import platform
import re
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from typer import Option

from sqlq_spark.cli.options import FOUND, AskingCommand, Context, require_option
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer()

DRIVERS = {package for names in DIALECTS.values() for package in names.driver_packages}
PACKAGES = {"sqlq-spark", "pyarrow", *DRIVERS}
# The kinds of databases for which a server has several collations.
COLLATED = " or ".join(f"a {names.database}" for names in DIALECTS.values() if names.collations)


AlsoRoles = Annotated[
    bool, Option("--roles", help="Also make roles and logins, and do their work.")
]
AlsoDatabases = Annotated[
    bool,
    Option(
        "--databases",
        help="Also make databases of other collations, if the server has them.",
    ),
]
OnlyChecks = Annotated[
    list[str] | None, Option(help="Only the check of this name; may be repeated.")
]
ReportFile = Annotated[Path, Option(help="The report, for an issue; without password and host.")]


@app.command("selftest", cls=AskingCommand)
def selftest_command(
    context: Context,
    *,
    roles: AlsoRoles = False,
    databases: AlsoDatabases = False,
    only: OnlyChecks = None,
    file: ReportFile = Path("sqlqueue-selftest.json"),
) -> None:
    """
    Check whether everything works on this server, and write a report. Asks first.

    Use a database for tests. It makes schemas, sends and receives 100,000
    messages in a minute or two, and drops all that it made. What this login
    may not do is not checked. The exit code is 1 if a check failed.
    """
    from sqlq_spark.admin import selftest  # noqa: PLC0415 - imports pyarrow

    shared, names = context.obj, {check.__name__: check for check in selftest.CHECKS}
    for name in only or ():
        require_option(name in names, "--only", name, ", ".join(names))
    asked = {"roles": roles, "databases": databases}
    chosen = [names[name] for name in only or names if only or asked.get(name, True)]
    given = {"url": shared.location, "queryTimeout": shared.query_timeout}
    given |= {"credentials": shared.credentials} if shared.credentials else {}
    connection = context.connect(shared.database())
    server = connection.server
    fits = selftest.databases not in chosen or connection.names.collations != ()
    require_option(fits, "--databases", server, COLLATED)
    context.confirm(f"make schemas {selftest.MARK}… in {server}, work in them, and drop them")
    results = list[dict[str, object]]()
    for each in context.with_resource(closing(selftest.run_checks(given, chosen))):
        results.append(each)
        # The report is written now, because the clean-up may fail.
        file.write_text(report_text(results, server), "utf-8")
        figures = f"{each['check']:<21}{each['seconds']:6.1f} s"
        context.answer(each, f"{each['outcome']:<13}{figures}  {each['seen']}")
    outcomes = [each["outcome"] for each in results]
    counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
    context.note(f"the report is in {file}: attach it if you open an issue")
    has_failed = "failed" in outcomes
    verdict = "not everything works" if has_failed else "everything that was checked works"
    context.note(f"{verdict}: {counts}")
    if has_failed:
        raise typer.Exit(FOUND)


def report_text(results: Sequence[dict[str, object]], server: str) -> str:
    """Return the report of the checks that have run, without the server's names."""
    versions = {each.name: each.version for each in distributions() if each.name in PACKAGES}
    versions |= {"python": platform.python_version(), "system": platform.platform()}
    report = {"at": datetime.now(UTC), "versions": versions, "checks": results}
    text = json.dumps(report, indent=1, ensure_ascii=False, default=str)
    for secret in filter(None, (server, *re.split(r":\d+(?:,|$)|,", urlsplit(server).netloc))):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "the server", text)
    return text + "\n"
