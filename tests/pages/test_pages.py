"""Every block of code is run, every command exists, and every promise has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutants.drawn import DRAWN
from mutants.history import HISTORY
from sqlserver_lint import parse

from . import programs
from .page import PAGES, ROOT, blocks, read, table, without_code
from .proofs import ATTACKS, PROOFS
from .test_spark_pages import CASES

TESTS = ROOT / "tests"
ALL = ["README.md", "CONTRIBUTING.md", *PAGES]
# C# is another team's, mermaid is a drawing, eval-rst names docstrings, the others are compared
SHOWN = {"csharp", "json", "mermaid", "text", "{eval-rst}"}
# their commands start other programs, or a server of their own
CHECKED = ["README.md", "CONTRIBUTING.md", "docs/commandline.md", "docs/iceberg.md"]
TESTING = "docs/testing.md"
CHECKED += ["docs/jobs.md", "docs/orchestration.md", TESTING]
TSQL = "needs a SQL Server"  # begins the reason why a block of T-SQL is not run
# T-SQL that the parser does not know, in the forms that the documentation of SQL Server has
UNKNOWN_TSQL = re.compile(
    r"ALTER LOGIN \[\w+\] DISABLE;"
    r"|RESTORE (?:DATABASE|LOG) \w+ FROM DISK = N'[^']+' WITH \w+(?: = N'[^']+')?(?:, \w+)*;"
)


def test_every_block_of_code_is_run() -> None:
    """A new page, or a new group of blocks, fails here until a test runs it."""
    tests = [each.read_text(encoding="utf-8") for each in TESTS.glob("*/test_*.py")]
    tests.append((TESTS / "test_testing.py").read_text("utf-8").replace("PAGE", f'"{TESTING}"'))
    whole, lost = {page for case in CASES for page in case.pages}, []
    for each in (each for page in ALL for each in blocks(page)):
        name = f"{each.page}: {each.text.splitlines()[0]}"
        assert each.language, f"{name} has no language"
        if each.unrun is not None and each.language == "python":
            compile(each.text, name, "exec")
        if each.unrun is not None or each.language in SHOWN or each.page in whole:
            continue
        if each.language == "sh" and each.page in CHECKED:
            continue
        place = f'"{Path(each.page).stem}/{each.group}"'
        whole_page, part = f'blocks("{each.page}")', f'blocks("{each.page}", "{each.group}")'
        if not any(x in text for text in tests for x in (place, whole_page, part)):
            lost.append(name)

    assert lost == []


def test_t_sql_can_be_parsed() -> None:
    """The parser reads T-SQL of blocks, of both databases, and with a name in brackets."""
    shown = [each for page in PAGES for each in blocks(page) if each.language == "sql"]
    texts = [each.text for each in shown if (each.unrun or "").startswith(TSQL)]
    texts += [each.text for each in blocks("docs/restore.md", "compare") if each.language == "sql"]
    for page in PAGES:
        texts += re.findall(r"`([A-Z]{4,} [^`…\n]*\[[^`…\n]*)`", without_code(page))

    assert len(texts) > 12
    for text in texts:
        assert [fault.desc() for fault in parse(UNKNOWN_TSQL.sub("", text)).violations] == [], text


@pytest.mark.parametrize("page", ALL)
def test_commands_are_read_by_their_programs(page: str) -> None:
    """Commands in blocks and between backticks can be parsed, and files of tests exist."""
    for each in blocks(page):
        for line in programs.lines(each.text) if each.language == "sh" else []:
            programs.check(programs.split(line))
    for line in re.findall(r"`sqlqueue ([a-z][^`…]*)`", without_code(page)):
        programs.check_sqlqueue(line.split())
    for path in re.findall(r"`(tests/[\w/]+\.py)`", read(page)):
        assert (ROOT / path).exists(), path


def test_every_row_of_the_table_of_failures_and_every_fault_has_its_test() -> None:
    """A row is found by its id, and its test by file and name."""
    assert PROOFS.keys() == {*table("docs/guarantees.md", "promises").ids}
    assert ATTACKS.keys() == {*table("docs/security.md", "authors").ids}
    faults = [*HISTORY, *DRAWN]
    texts = {each.path: (ROOT / each.path).read_text(encoding="utf-8") for each in faults}
    assert [each.id for each in faults if each.apply(texts[each.path]) is None] == []
    caught = {test for fault in faults for test in fault.tests}
    for each in {*PROOFS.values(), *ATTACKS.values()} | caught:
        path, _, name = each.partition("::")
        assert f"\ndef {name}(" in (TESTS / path).read_text(encoding="utf-8"), each
