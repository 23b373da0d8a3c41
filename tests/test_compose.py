"""conf/compose.yaml: both servers, reachable from this machine alone, no password in the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import servers
import yaml

ROOT = Path(__file__).parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "conf/compose.yaml").read_text())[
    "services"
]


@pytest.mark.parametrize(
    ("name", "variable", "program"),
    [
        ("sqlserver", "MSSQL_SA_PASSWORD", "sqlcmd"),
        ("postgresql", "POSTGRES_PASSWORD", "pg_isready"),
    ],
)
def test_a_server_is_local_and_its_password_comes_from_the_environment(
    name: str, variable: str, program: str
) -> None:
    """Without one compose stops and says which; `up --wait` waits for the server's check."""
    service = SERVICES[name]
    (port,) = service["ports"]

    assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port)
    assert re.fullmatch(rf"\$\{{{variable}:\?[^}}]+\}}", service["environment"][variable])
    assert program in service["healthcheck"]["test"][1]
    assert variable in (ROOT / "docs" / "sqlserver.md").read_text(encoding="utf-8")


def test_sql_server_is_the_suites_and_ready_when_its_database_is_there() -> None:
    """It reads row versions, as Azure SQL's does; the check reads the password in the container."""
    command = SERVICES["sqlserver"]["healthcheck"]["test"][1]

    assert SERVICES["sqlserver"]["image"] == servers.IMAGE
    made = command.partition("IF DB_ID(N'shop') IS NULL BEGIN ")[2].rpartition(" END")[0]
    assert "SET READ_COMMITTED_SNAPSHOT ON" in made
    # one $ would be filled in by compose, and shown by `docker compose config`
    assert '-P "$$MSSQL_SA_PASSWORD"' in command
    assert "$" not in command.replace("$$MSSQL_SA_PASSWORD", "")
