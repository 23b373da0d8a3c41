"""conf/compose.yaml: both servers, reachable from this machine alone, no password in the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import servers
import yaml

ROOT = Path(__file__).parent.parent
FILE = ROOT / "conf" / "compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ["sqlserver", "postgresql"]

# what the compose file format knows of these parts, as far as a file of ours may use it
TOP = {"name", "services", "volumes"}
SERVICE = {"image", "environment", "ports", "volumes", "healthcheck"}
HEALTH = {"test", "interval", "timeout", "retries", "start_period"}
SECRET = re.compile(r"PASSWORD")


def test_only_parts_that_compose_knows_are_in_the_file() -> None:
    """A misspelt one would be refused by it, or left out."""
    assert set(COMPOSE) <= TOP
    for service in SERVICES.values():
        assert {"image", "environment"} <= set(service) <= SERVICE
        assert set(service.get("healthcheck", ())) <= HEALTH


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_reached_from_this_machine_alone(name: str) -> None:
    """A port without an address would be open to the network."""
    (port,) = SERVICES[name]["ports"]

    assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port)


@pytest.mark.parametrize("name", SERVERS)
def test_an_image_is_named_by_its_version(name: str) -> None:
    """One that moves would change what the suites ran with."""
    tag = SERVICES[name]["image"].rpartition(":")[2]

    assert re.fullmatch(r"2022-CU\d+-ubuntu-22\.04|\d+\.\d+", tag)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_says_when_it_is_ready_and_keeps_its_data(name: str) -> None:
    """`up --wait` waits for the check; a volume of its own outlives the container."""
    service = SERVICES[name]
    kind, command = service["healthcheck"]["test"]
    (volume,) = service["volumes"]

    assert kind == "CMD-SHELL"
    assert ("sqlcmd" if name == "sqlserver" else "pg_isready") in command
    assert volume.partition(":")[0] in COMPOSE["volumes"]
    for span in ("interval", "timeout"):
        assert re.fullmatch(r"\d+s", service["healthcheck"][span])


def test_every_password_must_come_from_the_environment() -> None:
    """Without one compose stops and says which; a password with a default would be known to all."""
    found = {
        name: value
        for service in SERVICES.values()
        for name, value in service["environment"].items()
        if SECRET.search(name)
    }

    assert set(found) == {"MSSQL_SA_PASSWORD", "POSTGRES_PASSWORD"}
    for name, value in found.items():
        assert re.fullmatch(rf"\$\{{{name}:\?[^}}]+\}}", value)


def test_a_file_of_passwords_is_not_committed() -> None:
    """Git looks away from it."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()

    assert ".env" in ignored


def test_the_check_reads_the_password_in_the_container() -> None:
    """One $ would be filled in by compose, and shown by `docker compose config`."""
    command = SERVICES["sqlserver"]["healthcheck"]["test"][1]

    assert '-P "$$MSSQL_SA_PASSWORD"' in command
    assert "$" not in command.replace("$$MSSQL_SA_PASSWORD", "")


def test_the_server_is_ready_when_its_database_is_there() -> None:
    """One that reads row versions, as Azure SQL's do; made once, and left as it is then."""
    command = SERVICES["sqlserver"]["healthcheck"]["test"][1]

    assert SERVICES["sqlserver"]["image"] == servers.IMAGE
    made = command.partition("IF DB_ID(N'shop') IS NULL BEGIN ")[2].rpartition(" END")[0]
    assert made.startswith("CREATE DATABASE shop;")
    assert "SET READ_COMMITTED_SNAPSHOT ON" in made
    assert SERVICES["postgresql"]["environment"]["POSTGRES_DB"] == "shop"


def test_sql_server_starts_with_its_terms_accepted() -> None:
    """It ends at once without."""
    assert SERVICES["sqlserver"]["environment"]["ACCEPT_EULA"] == "Y"


def test_the_page_tells_how_the_suite_is_run_on_it() -> None:
    """By the names that the file and the suite have."""
    page = (ROOT / "docs" / "sqlserver.md").read_text(encoding="utf-8")

    for word in ("conf/compose.yaml", "--wait", servers.VARIABLE, *servers_passwords()):
        assert word in page


def servers_passwords() -> set[str]:
    """The variables that the file asks for."""
    return set(re.findall(r"\$\{(\w+):\?", TEXT))
