"""
The notebook of ten minutes: its cells are run, and what they print is stored in it.

    python -m tests.pages.notebook

writes the outputs into the notebook again. They are the same in each run: no ids, no times.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from .page import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "ten_minutes.ipynb"
PATIENCE = 600  # seconds for the start, and for a cell


def stored() -> Any:
    """The notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def executed() -> Any:
    """The notebook with the outputs of a run."""
    notebook = stored()
    with tempfile.TemporaryDirectory() as folder:  # a short path for sockets, and no port
        manager = {"transport": "ipc", "ip": f"{folder}/kernel"}
        NotebookClient(
            notebook,
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            config=Config({"KernelManager": manager}),
        ).execute()
    for cell in cells(notebook):
        cell.execution_count = None
        # the JVM's warnings differ from machine to machine
        cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
    return notebook


def cells(notebook: Any) -> list[Any]:
    """The cells with code."""
    return [each for each in notebook.cells if each.cell_type == "code"]


def printed(notebook: Any) -> list[str]:
    """What each cell printed, and its value."""
    return [
        "".join(
            str(each.text if each.output_type == "stream" else each.data["text/plain"])
            for each in cell.outputs
        )
        for cell in cells(notebook)
    ]


if __name__ == "__main__":
    done = executed()
    done.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(done, NOTEBOOK)  # type: ignore[no-untyped-call]
    sys.stdout.write("\n".join(printed(done)) + "\n")
