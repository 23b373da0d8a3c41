"""conf/compose.yaml: both servers, reachable from this machine alone, no password in the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import servers
import yaml

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "conf" / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

# what the compose file format knows of these parts, as far as a file of ours may use it
TOP = {"name", "services", "volumes"}
SERVICE = {"image", "environment", "ports", "volumes", "healthcheck"}
HEALTH = {"test", "interval", "timeout", "retries", "start_period"}


@pytest.mark.parametrize(
    ("name", "program", "tag"),
    [
        ("sqlserver", "sqlcmd", r"2022-CU\d+-ubuntu-22\.04"),
        ("postgresql", "pg_isready", r"\d+\.\d+"),
    ],
)
def test_a_server_is_local_named_by_its_version_and_keeps_its_data(
    name: str, program: str, tag: str
) -> None:
    """Its port is bound to this machine; `up --wait` waits for its check; it has a volume."""
    service = SERVICES[name]
    (port,), (volume,) = service["ports"], service["volumes"]
    kind, command = service["healthcheck"]["test"]

    assert set(COMPOSE) <= TOP  # another part would be refused, or left out
    assert {"image", "environment"} <= set(service) <= SERVICE
    assert set(service["healthcheck"]) <= HEALTH
    assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port)
    assert re.fullmatch(tag, service["image"].rpartition(":")[2])
    assert kind == "CMD-SHELL"
    assert program in command
    assert volume.partition(":")[0] in COMPOSE["volumes"]
    for span in ("interval", "timeout"):
        assert re.fullmatch(r"\d+s", service["healthcheck"][span])


def test_every_password_must_come_from_the_environment() -> None:
    """Without one compose stops and says which; a file of them is not committed."""
    found = {
        name: value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if "PASSWORD" in name
    }

    assert set(found) == {"MSSQL_SA_PASSWORD", "POSTGRES_PASSWORD"}
    for name, value in found.items():
        assert re.fullmatch(rf"\$\{{{name}:\?[^}}]+\}}", value)
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_sql_server_is_ready_when_its_database_is_there() -> None:
    """It reads row versions, as Azure SQL's does; the check reads the password in the container."""
    service = SERVICES["sqlserver"]
    command = service["healthcheck"]["test"][1]

    assert service["image"] == servers.IMAGE
    assert service["environment"]["ACCEPT_EULA"] == "Y"  # it ends at once without
    made = command.partition("IF DB_ID(N'shop') IS NULL BEGIN ")[2].rpartition(" END")[0]
    assert made.startswith("CREATE DATABASE shop;")
    assert "SET READ_COMMITTED_SNAPSHOT ON" in made
    assert SERVICES["postgresql"]["environment"]["POSTGRES_DB"] == "shop"
    # one $ would be filled in by compose, and shown by `docker compose config`
    assert '-P "$$MSSQL_SA_PASSWORD"' in command
    assert "$" not in command.replace("$$MSSQL_SA_PASSWORD", "")


def test_the_page_says_how_the_suite_is_run_on_it() -> None:
    """By the names that the file and the suite have."""
    page = (ROOT / "docs" / "sqlserver.md").read_text(encoding="utf-8")

    for word in (
        "conf/compose.yaml",
        "--wait",
        servers.VARIABLE,
        *re.findall(r"\$\{(\w+):\?", TEXT),
    ):
        assert word in page
