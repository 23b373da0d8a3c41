"""`sqlqueue --help`, `--version` and a TAB import little, because people wait for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# what they may import beside the standard library
PACKAGES = {
    *("sqlq_spark", "typer", "click", "shellingham", "annotated_doc", "typing_extensions"),
    *("rich", "markdown_it", "mdurl", "pygments"),  # of typer's help
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection"),  # of typer's options
    *("attr", "colorama"),  # by these, where something else has installed them
}
PROGRAM = """
import atexit, sys

def report():
    names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    print("\\nLOADED", *sorted(names), *{"sqlq_spark.demo"} & set(sys.modules))

atexit.register(report)
sys.argv = ["sqlqueue", *sys.argv[1:]]
from sqlq_spark.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("words", "variables", "shown"),
    [
        (["--help"], {}, "browse"),
        (["retry", "--help"], {}, "--failed-queue"),
        (["--version"], {}, "sqlqueue "),
        ([], {"COMP_WORDS": "sqlqueue unsub", "COMP_CWORD": "1"}, "unsubscribe"),
    ],
)
def test_help_and_completion_import_neither_pyarrow_nor_the_demo(
    words: list[str], variables: dict[str, str], shown: str
) -> None:
    """Only the packages of a list."""
    asked = {"_SQLQUEUE_COMPLETE": "complete_bash", **variables} if variables else {}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, **asked, "TERMINAL_WIDTH": "100"},
        capture_output=True,
        text=True,
        check=False,
    )

    out, _, loaded = done.stdout.rpartition("LOADED ")
    assert shown in out, done.stderr
    assert {"sqlq_spark", "typer"} <= set(loaded.split())
    assert {each for each in loaded.split() if not each.startswith("_")} - PACKAGES == set()


def test_help_takes_less_than_four_tenths_of_a_second_of_processor_time() -> None:
    """The least of three runs; a slow machine gets four imports of the package that prints it."""

    def least(*words: str) -> float:
        seconds = []
        for _ in range(3):
            before = os.times()
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            after = os.times()
            spent = after.children_user + after.children_system
            seconds.append(spent - before.children_user - before.children_system)
        return min(seconds)

    help_, typer_ = least("-m", "sqlq_spark", "--help"), least("-c", "import typer.rich_utils")

    assert help_ < max(0.4, 4 * typer_)
