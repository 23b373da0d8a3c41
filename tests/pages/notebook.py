"""
The notebook of ten minutes: its cells are run, and what they print is stored in it.

    python -m tests.pages.notebook

writes the outputs into the notebook again. They are the same in each run: no ids, no times.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from .page import ROOT

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOK = ROOT / "docs" / "notebooks" / "ten_minutes.ipynb"
PATIENCE = 600  # seconds for the start, and for a cell


def stored() -> Any:
    """The notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def executed(folder: Path) -> Any:
    """The notebook with the outputs of a run in a folder."""
    notebook = stored()
    with tempfile.TemporaryDirectory() as sockets:  # a short path, and no port
        manager = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        NotebookClient(
            notebook,
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            config=Config({"KernelManager": manager}),
        ).execute()
    for each in cells(notebook):
        # the JVM's warnings differ from machine to machine
        each.outputs = [one for one in each.outputs if one.get("name") != "stderr"]
    return notebook


def cells(notebook: Any) -> list[Any]:
    """The cells with code."""
    return [each for each in notebook.cells if each.cell_type == "code"]


def printed(notebook: Any) -> list[str]:
    """What each cell printed, and its value."""
    return ["".join(text(one) for one in each.outputs) for each in cells(notebook)]


def text(output: Any) -> str:
    """The text of one output."""
    return str(output.text if output.output_type == "stream" else output.data["text/plain"])


if __name__ == "__main__":
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place:
        done = executed(Path(place))
    for each in cells(done):
        each.execution_count = None
        for output in each.outputs:
            if "execution_count" in output:
                output.execution_count = None
    done.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(done, NOTEBOOK)  # type: ignore[no-untyped-call]
    sys.stdout.write("\n".join(printed(done)) + "\n")
