"""The command `selftest`."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from sqlq_spark.admin.formats import clean
from sqlq_spark.cli.options import FOUND, AskingCommand, Context, require
from sqlq_spark.cli.screen import STYLES, out, print_json, say
from sqlq_spark.database.sessions import Session

app = typer.Typer()

PACKAGES = ("sqlq-spark", "adbc-driver-postgresql", "mssql-python", "pyodbc", "pyarrow")
MARKS = {"passed": STYLES["ok"], "failed": STYLES["error"], "not checked": STYLES["warning"]}


@app.command(cls=AskingCommand)
def selftest(
    context: Context,
    *,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also make roles and logins, and do their work.")
    ] = False,
    databases: Annotated[
        bool,
        typer.Option("--databases", help="Also make databases of other collations: SQL Server."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the check of this name; may be repeated.")
    ] = None,
    file: Annotated[
        Path, typer.Option(help="The report, for an issue; without password and host.")
    ] = Path("sqlqueue-selftest.json"),
) -> None:
    """
    Check whether everything works on this server, and write a report. Asks first.

    Use a database for tests. It makes schemas, sends and receives 100,000
    messages in a minute or two, and drops all that it made. What this login
    may not do is not checked. The exit code is 1 if a check failed.
    """
    from sqlq_spark.admin import selftest as run  # noqa: PLC0415 - imports pyarrow
    from sqlq_spark.admin.server_checks import CHECKS  # noqa: PLC0415 - as above

    shared = context.obj
    names = {check.__name__: check for check in CHECKS}
    for name in only or ():
        require(name in names, "--only", name, ", ".join(names))
    asked = {"roles": roles, "databases": databases}
    chosen = only or [name for name in names if asked.get(name, True)]
    given = {"url": shared.location, "queryTimeout": shared.query_timeout}
    given |= {"credentials": shared.credentials} if shared.credentials else {}
    with Session(shared.database(), "selftest") as session:
        server = session.open().server
    context.confirm(f"make schemas {run.MARK}… in {server}, work in them, and drop them")
    results: list[dict[str, Any]] = []
    with closing(run.run(given, [names[name] for name in chosen])) as running:
        for each in running:
            results.append(without_host(asdict(each), server))
            show(results[-1], as_json=shared.as_json)
    report = {"at": str(datetime.now(UTC)), "versions": versions(), "checks": results}
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    outcomes = Counter(each["outcome"] for each in results)
    if not shared.as_json:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        say(f"{counts}; {file} is to be attached to an issue")
    if outcomes["failed"]:
        raise typer.Exit(FOUND)


def show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    outcome = result["outcome"]
    rest = f"{result['check']:<21}{result['seconds']:6.1f} s  {clean(result['seen'])}"
    line = Text.assemble((f"{outcome:<13}", MARKS[outcome]), rest)
    out().print(line, soft_wrap=True)


def versions() -> dict[str, str]:
    """Return the versions of what takes part here."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def without_host(result: dict[str, Any], server: str) -> Any:  # noqa: ANN401 - as it was
    """Return a result with the words `the server` for its url and for each host."""
    text = json.dumps(result, default=str)
    hosts = urlsplit(server).netloc.rpartition("@")[2].split(",")
    for each in filter(None, (server, *(re.sub(r":\d+$", "", host) for host in hosts))):
        text = re.sub(rf"(?<!\w){re.escape(json.dumps(each)[1:-1])}(?!\w)", "the server", text)
    return json.loads(text)
