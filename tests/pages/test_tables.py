"""The tables of the documents have the names that the code has: columns, options, jobs, errors."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, get_args
from unittest import mock

import pytest
import yaml  # comes with sqlfluff
from pyspark.sql.types import StructType
from receipt_moves import MOVES, Move

from sqlq_spark import errors
from sqlq_spark.admin.selftest import CHECKS
from sqlq_spark.database.postgresql import TOKENS
from sqlq_spark.database.postgresql import url as postgresql_url
from sqlq_spark.database.sqlserver import url as sqlserver_url
from sqlq_spark.datasource.write import StreamWriter
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import load
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import SERVICES
from sqlq_spark.options.fields import option_names
from sqlq_spark.options.source import COLUMNS
from sqlq_spark.receive.receipts import CEILING
from sqlq_spark.send.frame import WRITTEN, check_frame

from .page import PAGES, ROOT, Block, blocks, read, table, tables
from .programs import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

JOBS = {
    path.stem: importlib.import_module(f"sqlq_spark.jobs.{path.stem}")
    for path in (ROOT / "jobs").glob("*.py")
}
BUNDLE = yaml.safe_load(read("conf/databricks/databricks.yml"))
TROUBLES = "docs/guide/troubleshooting.md"
BASES = {"BadInput", "CheckpointFailure", "DatabaseFailure"}  # only classes below them are raised
URL = "postgresql://host/shop"


def names(cells: list[str]) -> set[str]:
    """What stands between backticks."""
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(
    ("page", "table_id", "known"),
    [
        ("jobs", "jobs", {*JOBS}),
        ("jobs", "targets", {*BUNDLE["targets"]}),
        ("failed", "acknowledging-jobs", {*JOBS} - {"maintenance"}),
        ("sqlqueue", "write-columns", {*WRITTEN}),
        ("security", "credentials", {*SERVICES, "package.module:function"}),
        ("security", "tls", {"verify-full", "verify-ca", *postgresql_url.WEAK}),
        ("diagrams", "receipt-moves", {each.strip("_") for each in get_args(Move)}),
    ],
)
def test_a_table_has_a_row_for_each_name(page: str, table_id: str, known: set[str]) -> None:
    """And none for another; `known` is what the code has."""
    found = table(f"docs/{page}.md", table_id).column(0)
    sslmode = {"sslmode", "PGSSLMODE"}

    assert names(found) - sslmode == known


# ---------------------------------------------------------------- the format


def test_the_columns_of_a_read_and_of_a_write_have_their_types() -> None:
    """Those of a read in their order; a wrong type of a write raises with the words of the page."""
    read_columns = table("docs/sqlqueue.md", "read-columns").rows

    assert {row[0].strip("`"): row[1] for row in read_columns} == COLUMNS
    for cell, kind, _ in table("docs/sqlqueue.md", "write-columns").rows:
        with pytest.raises(errors.BadFrame) as refused:
            check_frame({"body": "binary", cell.strip("`"): "boolean"}, queue=True)
        assert str(refused.value).endswith(f"expected {kind}")


def test_options_have_their_names() -> None:
    """A name between backticks, on any page, that is an option but for its case has its case."""
    lower = option_names(SourceOptions, SinkOptions)
    for page in PAGES:
        for name in re.findall(r"`([a-z]+[A-Z]\w+)(?:=[^`]*)?`", read(page)):
            assert lower.get(name.lower(), name) == name, f"{page}: {name}"


@pytest.mark.parametrize(
    ("table_id", "options"), [("read-changes", SourceOptions), ("write-changes", SinkOptions)]
)
def test_the_page_of_changing_options_names_every_option(table_id: str, options: type) -> None:
    """An option that is new fails here, until the page says whether it may change."""
    cells = table("docs/guide/changing-options.md", table_id).column()
    named = {each for each in names(cells) if each.isidentifier()} - {"none", "receiveOnly"}

    known = {*option_names(options).values(), "user", "password"} - {"checkpointLocation"}
    assert named == known


def test_the_defaults_of_the_common_options_are_those_of_the_reference() -> None:
    """Each row of the guide has one option of the tables of docs/sqlqueue.md."""
    known: dict[str, str] = {}
    for each in ("read-options", "write-options"):
        for cell, default, _ in table("docs/sqlqueue.md", each).rows:
            known |= dict.fromkeys(names([cell]), default)

    for _, name, default in table("docs/guide/read-and-write.md", "common-options").rows:
        assert known[name.strip("`")].startswith(default), name


def test_what_the_pages_name_of_sql_server_and_of_credentials_is_there() -> None:
    """Parameters of a url, checks of selftest, extras and functions of the services."""
    with pytest.raises(errors.BadOption) as refused:
        sqlserver_url.Target.parse("sqlserver://host/shop?nope=1")
    parameters = names(table("docs/sqlserver.md", "url-parameters").column())
    checks = re.findall(r"`([a-z_]+)`", " ".join(table("docs/sqlserver.md", "checked").column(2)))

    assert parameters <= set(re.findall(r"\w+", str(refused.value)))
    assert {*checks} - {"sp_tableoption"} <= {each.__name__ for each in CHECKS}
    assert {*SERVICES} <= PROJECT["optional-dependencies"].keys() & TOKENS.keys()


def test_types_in_a_wrong_order_are_rejected_where_that_is_certain() -> None:
    """And warned of where only the names say so."""
    types = table("docs/bodies.md", "types")
    right, first, twice, blank = (
        types.row(each)[0].strip("`") for each in ("right", "interface-first", "twice", "blank")
    )

    def warned(text: str) -> bool:
        with mock.patch("sqlq_spark.datasource.write.warn_once") as warning:
            options = {"url": URL, "queue": "q", "messageType": text}
            StreamWriter(SinkOptions.parse(options), StructType().add("body", "binary"))
        return "handles each message twice" in str(warning.call_args)

    assert (warned(right), warned(first)) == (False, True)
    for text in (twice, blank):
        with pytest.raises(errors.BadOption, match="or several joined by ;, each once"):
            warned(text)


def test_the_states_of_a_receipt_are_those_of_the_code() -> None:
    """Each arrow is a move of MOVES, and each move of MOVES is an arrow."""
    [drawn] = blocks("docs/diagrams.md", "receipt-states")
    arrows = re.findall(r"^ +(\S+) --> (\S+): (\w+)$", drawn.text, flags=re.MULTILINE)

    assert sorted(arrows) == sorted(
        (state.replace("none", "[*]"), then.replace("none", "[*]"), move.strip("_"))
        for (state, move), then in MOVES.items()
    )


# ---------------------------------------------------------------- the jobs


@pytest.mark.parametrize(
    "block",
    [each for each in blocks("docs/jobs.md") if each.language == "toml"],
    ids=lambda each: each.text,
)
def test_the_settings_on_the_page_are_read_by_their_job(block: Block, tmp_path: Path) -> None:
    """Every name and value; the first line names the job."""
    path = tmp_path / "settings.toml"
    path.write_text(block.text, encoding="utf-8")
    name = block.text.partition("\n")[0].removeprefix("# ")

    settings: Any = load("", JOBS[name].Settings, ["--settings", str(path)])[0]

    assert settings.options()


def test_the_page_of_jobs_has_their_names_codes_and_sizes() -> None:
    """Settings between backticks, exit codes, who acknowledges, and the rule of sizes."""
    known = {*JOBS} | set(re.findall(r"\b(\w+):", read("conf/databricks/databricks.yml")))
    known = known.union(*(each.Settings.__dataclass_fields__ for each in JOBS.values()))
    acknowledging = table("docs/failed.md", "acknowledging-jobs").rows
    codes = [int(each) for each in table("docs/jobs.md", "exit-codes").column()]
    text = read("docs/jobs.md")

    assert set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)) - known == set()
    assert codes == [runner.GOOD, runner.FOUND, runner.USAGE, runner.FAILED]
    assert {name.strip("`") for name, answer, _ in acknowledging if answer.startswith("yes")} == {
        name for name, job in JOBS.items() if hasattr(job.Settings, "acknowledge_retries")
    }
    assert f"{SourceOptions.parse({'url': URL, 'queue': 'q'}).max_messages:,}" in text
    assert f"{CEILING >> 20} MiB" in text
    assert [name for name in JOBS if not (ROOT / "conf" / f"{name}.toml").exists()] == []


# ---------------------------------------------------------------- errors


def test_each_error_has_a_row_with_the_text_that_it_prints() -> None:
    """Under its name, and no row is for an error that is gone."""
    rows = {
        row_id: row
        for each in tables(TROUBLES)
        if each.id not in {"symptoms", "spark"}
        for row_id, row in zip(each.ids, each.rows, strict=True)
    }
    kinds = {name for name, each in vars(errors).items() if each.__class__ is type}

    assert rows.keys() == kinds - BASES
    assert all("template" not in vars(getattr(errors, name)) for name in BASES)
    for name in rows.keys() - {"SqlQueueError"}:
        template: str = getattr(errors, str(name)).template
        # the page has three dots for each fact, and options by their names
        facts = re.sub(rf"\{{({'|'.join(errors.NAMED_OPTIONS)})\}}", r"\1", template)
        full = re.sub(r"\{[^}]*\}", "…", facts)
        shown, text = (re.findall(r"`([^`]+)`", cell)[0] for cell in rows[name][:2])
        assert shown == name
        assert text in full
