"""Every table and every block of code of the documents has a test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sqlq_spark.admin.selftest import CHECKS
from sqlq_spark.database.postgresql import TOKENS
from sqlq_spark.database.postgresql import url as postgresql_url
from sqlq_spark.database.sqlserver import url as sqlserver_url
from sqlq_spark.errors import BadFrame, BadOption
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import SERVICES
from sqlq_spark.options.fields import option_names
from sqlq_spark.options.source import COLUMNS
from sqlq_spark.send.frame import WRITTEN, check_frame

from . import programs
from .page import PAGES, ROOT, Block, blocks, read, sections, table, tables
from .proofs import FIGURES, PROSE, ROWS, TRIED, VENDOR, WHOLE
from .shop import commands, parse

TESTS = ROOT / "tests"
ALL = ["README.md", "CONTRIBUTING.md", *PAGES]
# languages that no test runs: C# is another team's, JSON and text are held by tests of their own,
# mermaid is a drawing, and eval-rst names docstrings
SHOWN = {"csharp", "json", "mermaid", "text", "{eval-rst}"}
# page → the test file that runs its blocks, in the order of the page or group by group
RUN = {
    "README.md": "pages/test_spark_pages.py",
    "docs/bodies.md": "pages/test_bodies.py",
    "docs/dba.md": "pages/test_dba.py",
    "docs/dotnet.md": "pages/test_spark_pages.py",
    "docs/failed.md": "pages/test_spark_pages.py",
    "docs/for-the-dba.md": "pages/test_runbooks.py",
    "docs/guide/checkpoints.md": "pages/test_running.py",
    "docs/guide/databricks.md": "pages/test_running.py",
    "docs/guide/monitoring.md": "pages/test_running.py",
    "docs/guide/troubleshooting.md": "pages/test_troubleshooting.py",
    "docs/guide/versions.md": "pages/test_running.py",
    "docs/emergency.md": "pages/test_runbooks.py",
    "docs/functions.md": "pages/test_spark_pages.py",
    "docs/guide/bodies.md": "pages/test_guide_data.py",
    "docs/guide/changing-options.md": "pages/test_changing_options.py",
    "docs/guide/kafka.md": "pages/test_guide_data.py",
    "docs/guide/raw-table.md": "pages/test_guide_data.py",
    "docs/guide/read-and-write.md": "pages/test_guide_data.py",
    "docs/guide/send.md": "pages/test_guide_data.py",
    "docs/guide/sinks.md": "pages/test_guide_data.py",
    "docs/guide/sizing.md": "pages/test_guide_data.py",
    "docs/guide/trial.md": "pages/test_guide_data.py",
    "docs/isolation.md": "pages/test_runbooks.py",
    "docs/jobs.md": "pages/test_jobs_page.py",
    "docs/load.md": "pages/test_load.py",
    "docs/migration.md": "pages/test_spark_pages.py",
    "docs/operations.md": "pages/test_operations.py",
    "docs/pipelines.md": "pages/test_pipelines_page.py",
    "docs/restore.md": "pages/test_runbooks.py",
    "docs/retention.md": "pages/test_runbooks.py",
    "docs/sql.md": "pages/test_sql_page.py",
    "docs/sqlqueue.md": "pages/test_spark_pages.py",
    "docs/testing.md": "test_testing.py",
    "docs/transactions.md": "pages/test_spark_pages.py",
    "docs/upgrade.md": "pages/test_runbooks.py",
}
# their commands start other programs, or a server of their own: they are parsed here
PARSED = [
    *("README.md", "CONTRIBUTING.md", "docs/commandline.md", "docs/iceberg.md", "docs/jobs.md"),
    "docs/testing.md",
]


def source(path: str) -> str:
    """The text of a test file."""
    return (TESTS / path).read_text(encoding="utf-8")


def code() -> list[Block]:
    """The blocks that are to be run."""
    found = [each for page in ALL for each in blocks(page)]
    return [each for each in found if each.language not in SHOWN and each.unrun is None]


# ---------------------------------------------------------------- code


def test_every_block_of_code_is_run() -> None:
    """A new page, or a new group of blocks, fails here until a test runs it."""
    lost = []
    for each in code():
        if each.page in PARSED and each.language == "sh":
            continue
        text = source(RUN[each.page]) if each.page in RUN else ""
        by_group = f'runbook("{each.group}")' in text or f'PAGE, "{each.group}")' in text
        by_id = f'"{each.id}"' in text
        whole = f'blocks("{each.page}")' in text or "in blocks(PAGE)" in text
        if not (by_group or by_id or whole):
            lost.append(each.name)

    assert lost == []


@pytest.mark.parametrize("page", ALL)
def test_no_id_is_given_twice(page: str) -> None:
    """Each block, table and row of a table has its own."""
    given = [[each.id for each in blocks(page)], [each.id for each in tables(page)]]
    given += [each.ids for each in tables(page)]

    for ids in given:
        known = [each for each in ids if each]
        assert sorted(set(known)) == sorted(known)


def test_python_that_is_not_run_is_parsed() -> None:
    """Each block has a language; the line before a block that is not run has the reason."""
    for each in (each for page in ALL for each in blocks(page)):
        assert each.language, f"{each.name} has no language"
        if each.unrun is not None and each.language == "python":
            compile(each.text, each.name, "exec")


@pytest.mark.parametrize("page", PARSED)
def test_commands_that_are_not_run_are_parsed(page: str) -> None:
    """Their switches, files and extras exist; the command line reads `sqlqueue …`."""
    found = [each for each in blocks(page) if each.language == "sh"]
    for line in (line for each in found for line in commands(each.text)):
        words = programs.split(line)
        if words[0].endswith("sqlqueue"):
            parse(words)
        else:
            programs.check(words)

    assert found


@pytest.mark.parametrize("page", ALL)
def test_commands_in_the_text_are_read_by_the_command_line(page: str) -> None:
    """`sqlqueue …` between backticks: its commands and switches are known."""
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`sqlqueue ([a-z][^`…]*)`", text):
        programs.known_words(line.split())


# ---------------------------------------------------------------- tables


def test_every_table_is_held() -> None:
    """By a test for each row, by one test, or `proofs.py` says what the table is."""
    found = [each for page in ALL for each in tables(page)]

    assert [each.name for each in found if each.id is None] == []
    assert ROWS.keys().isdisjoint(WHOLE)
    assert {(each.page, each.id) for each in found} == ROWS.keys() | WHOLE.keys()


@pytest.mark.parametrize(("page", "table_id"), ROWS)
def test_every_row_has_its_test(page: str, table_id: str) -> None:
    """No row without an id, no id without a test, no test for a row that is gone."""
    assert set(table(page, table_id).ids) == ROWS[page, table_id].keys()


def test_the_tests_that_are_named_are_there() -> None:
    """By file and name, here and in the pages' own text."""
    named = {each for rows in ROWS.values() for each in rows.values()}
    named |= set(WHOLE.values())
    gone = []
    for each in named - {FIGURES, PROSE, TRIED, VENDOR}:
        path, _, name = each.partition("::")
        if not re.search(rf"^def {name}\(", source(path), flags=re.MULTILINE):
            gone.append(each)
    files = {name for page in ALL for name in re.findall(r"`(tests/[\w/]+\.py)`", read(page))}

    assert gone == []
    assert [each for each in files if not (ROOT / each).exists()] == []


def test_the_columns_of_a_read_are_the_formats() -> None:
    """Names and types, in their order."""
    rows = table("docs/sqlqueue.md", "read-columns").rows
    named = {row[0].strip("`"): row[1] for row in rows}

    assert list(named.items()) == list(COLUMNS.items())


def test_the_columns_of_a_write_are_those_that_are_known() -> None:
    """Each by its name; a wrong type is answered with the words of the page."""
    columns = table("docs/sqlqueue.md", "write-columns")

    assert {name.strip("`") for name in columns.column()} == set(WRITTEN)
    for cell, kind, _ in columns.rows:
        with pytest.raises(BadFrame) as refused:
            check_frame({"body": "binary", cell.strip("`"): "boolean"}, queue=True)
        assert str(refused.value).endswith(f"expected {kind}")


def test_options_have_their_names() -> None:
    """A name between backticks, on any page, that is an option but for its case has its case."""
    lower = option_names(SourceOptions, SinkOptions)
    for page in ALL:
        for name in re.findall(r"`([a-z]+[A-Z]\w+)(?:=[^`]*)?`", read(page)):
            assert lower.get(name.lower(), name) == name, f"{page}: {name}"


def test_the_parameters_of_a_sql_server_url_are_known() -> None:
    """No parameter is missing."""
    cells = table("docs/sqlserver.md", "url-parameters").column()
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}

    with pytest.raises(BadOption) as refused:
        sqlserver_url.Target.parse("sqlserver://host/shop?nope=1")
    assert named <= set(re.findall(r"\w+", str(refused.value)))


def test_the_list_of_what_was_checked_names_the_checks_of_selftest() -> None:
    """And no other."""
    cells = " ".join(row[2] for row in table("docs/sqlserver.md", "checked").rows)
    named = {*re.findall(r"`([a-z_]+)`", cells)} - {"sp_tableoption"}

    assert named <= {each.__name__ for each in CHECKS}


def test_the_services_of_credentials_have_extras() -> None:
    """The table has each service, with the extra that brings its package, and a function."""
    rows = {row[0].strip("`"): row[2] for row in table("docs/security.md", "credentials").rows}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert set(rows) == {*SERVICES, "package.module:function"}
    for name in SERVICES:
        assert f"pip install '.[{name}]'" in rows[name]
        assert project["optional-dependencies"][name]
        assert name in TOKENS


def test_the_modes_of_tls_are_libpqs() -> None:
    """With a warning for those that verify nothing, and the default for none."""
    modes = {
        mode: row[3]
        for row in table("docs/security.md", "tls").rows
        for mode in (re.findall(r"`([\w-]+)`", row[0]) or [None])
    }

    assert set(modes) == {None, "verify-full", "verify-ca", *postgresql_url.WEAK}
    for mode, does in modes.items():
        url = "postgresql://db.example/shop" + (f"?sslmode={mode}" if mode else "")
        target = postgresql_url.Target.parse(url, {})
        assert ("warning" in does) == (target.weakness() is not None)
        assert target.verification().get("sslmode") == (None if mode else "verify-full")


def test_the_suites_are_there() -> None:
    """Folders, and the variables that something reads."""
    suites = table("CONTRIBUTING.md", "suites")
    for folder, _, switch in suites.rows:
        assert list(ROOT.glob(folder.strip("`"))), folder
        for name in re.findall(r"`(SQLQ_\w+)`", switch):
            programs.variable(name)
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "._"}

    assert folders - {Path(cell.strip("`")).name for cell in suites.column()} == set()


def figures(text: str) -> set[str]:
    """The numbers of a text, as they are written."""
    return set(re.findall(r"\d[\d,.]*\d|\d", text))


def test_figures_that_are_repeated_are_those_of_the_bench() -> None:
    """The speed in README and on other pages, and the WAL of a message, are those of growth.md."""
    speed, limits = (table("docs/growth.md", each) for each in ("speed", "limits"))
    measured = figures("".join(text for title, text in sections("docs/growth.md")[:3]))
    [repeated] = [text for title, text in sections("README.md") if title == "Speed"]
    [receive] = re.findall(r"([\d.]+) of a JDBC read; (\d+) times", speed.row("receive-json")[2])
    compared = " ".join(table("README.md", "comparison").row("rate"))
    rate, _, endpoint, loop = re.findall(r"\d\.\d+|\d", compared)
    [slow, fast] = re.findall(r"received ([\d,]+) to ([\d,]+) per second", read("docs/growth.md"))[
        0
    ]
    read_by_jdbc = float(speed.row("receive-json")[1].replace(",", "")) / float(receive[0])
    [browse] = re.findall(r"([\d.]+) of a JDBC read", speed.row("browse-json")[2])
    wal = table("docs/dba.md", "growth").row("wal")[1]

    assert figures(repeated) <= measured
    assert (rate, loop) == (receive[0], f"{float(receive[0]) / int(receive[1]):.3f}")
    each = {f"{float(text.replace(',', '')) / read_by_jdbc:.3f}" for text in (slow, fast)}
    assert each == {endpoint}
    assert {browse, receive[1]} <= figures(read("docs/migration.md"))
    assert figures(wal) == figures(" ".join(limits.column(2)))


# ---------------------------------------------------------------- links


def anchor(title: str) -> str:
    """What a heading is called in a link."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*ALL, "CHANGELOG.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    """To a file of the tree, and a heading of it."""
    for target in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", read(page)):
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if heading:
            titles = [
                anchor(title) for title, _ in sections(file.resolve().relative_to(ROOT).as_posix())
            ]
            assert heading in titles, f"{page}: {target}"
